"""Constants from a sweep of one GPU: what is timed, fitted, written and read again. Times here are made by a form."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cascade_schemas.gpu import UnknownGpu, load_gpu

from services.cli import main
from services.kernels.work import Family, Math, Work, WorkTable
from services.simworker.calibration.constants import shipped_constants
from services.simworker.calibration.measure import measure_here
from services.simworker.calibration.measured import FOLDER, BadCalibration, NothingLearned, constants_of
from services.simworker.calibration.sweep import Point, Timed, TorchClock, measure, samples_of, sweep_points
from services.simworker.simulators.analytic.simulator import AnalyticSimulator, form_us_as_sold

GH200 = load_gpu("gh200")  # nobody measured one
TODAY = "2026-11-30"


@dataclass
class FormClock:
    """Says what the constants of its kin say, moved: DRAM slower, a longer launch."""

    device_name: str = "NVIDIA GH200 480GB"
    sm_count: int = 132
    skipped: dict[str, str] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=lambda: {"dram": 0.75, "floor": 1.6, "eff": 0.8})
    fails: str = "nothing"
    noise: float = 0.02

    def time_us(self, point: Point) -> float:
        if point.op == self.fails:
            raise RuntimeError("out of memory\nand much more")
        (sample,) = samples_of(GH200.gpu, GH200.l2_bytes, [Timed(point, 1.0)])
        constants = shipped_constants()
        _, group = constants.group(sample.form, sample.variant, GH200)
        changed = {name: value * self.moved.get(name, 1) for name, value in group.parameters.items()}
        noise = 1 + self.noise * np.sin(sum(point.sizes.values()))
        return float(form_us_as_sold(constants, sample.form, changed, GH200.gpu, sample.work)[0] * noise)


def quiet(_: str) -> None:
    """What is said is tested where it matters."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    return home, measure_here(FormClock(), None, shipped_constants(), home / FOLDER, TODAY, quiet)


def test_a_sweep_is_about_thirty_gemms_and_the_rest():
    ops = [point.op for point in sweep_points()]
    assert ops.count("gemm") == 30
    assert {"copy", "norm", "attention_prefill", "attention_decode"} < set(ops)
    assert len({str(point) for point in sweep_points()}) == len(ops)


def test_the_constants_come_near_those_that_made_the_times(measured):
    home, report = measured
    assert report["gpu"] == "gh200"
    gemm = next(row for row in report["forms"] if row["form"] == "gemm")
    assert gemm["points"] == 30
    assert gemm["median_ape_before"] > 0.1
    assert gemm["median_ape"] < 0.05
    work = WorkTable.of([Work(family=Family.GEMM, math=Math.BF16, m=m, n=12_288, k=6144, a_bits=16, w_bits=16)
                         for m in (16, 512, 3000)])  # fmt: skip
    constants = constants_of(home)
    ours = AnalyticSimulator(1, constants).simulate(work, [GH200])
    _, kin = shipped_constants().group("gemm", "bf16", GH200)
    truth = form_us_as_sold(
        constants, "gemm", {n: v * FormClock().moved.get(n, 1) for n, v in kin.parameters.items()}, "gh200", work
    )
    assert ours.duration_ns[0] / 1e3 == pytest.approx(truth, rel=0.08)
    assert ours.reasons_of(0)[0].startswith("calibrated:gh200")
    assert constants.digest != shipped_constants().digest


def test_other_gpus_stay_as_they_were(measured):
    home, _ = measured
    work = WorkTable.of([Work(family=Family.GEMM, math=Math.BF16, m=512, n=4096, k=4096, a_bits=16, w_bits=16)])
    gpus = [load_gpu("h100_sxm"), load_gpu("b200_sxm")]
    shipped, ours = (AnalyticSimulator(1, c).simulate(work, gpus) for c in (None, constants_of(home)))
    assert (shipped.duration_ns == ours.duration_ns).all()


def test_a_kernel_that_fails_is_said_and_left_out():
    said: list[str] = []
    timed = measure(FormClock(fails="norm", skipped={"attention_decode": "vLLM is not here"}), said.append)
    assert {t.point.op for t in timed} == {"gemm", "copy", "attention_prefill"}
    assert "attention_decode: not measured, vLLM is not here" in said
    assert any(line.startswith("norm rows=16 width=4096: not measured, out of memory") for line in said)
    assert not any("much more" in line for line in said)


def test_a_sweep_that_teaches_nothing_writes_nothing(tmp_path):
    with pytest.raises(NothingLearned, match="teach nothing that is not known of gh200"):
        measure_here(FormClock(moved={}, noise=0), None, shipped_constants(), tmp_path / FOLDER, TODAY, quiet)
    assert not (tmp_path / FOLDER).exists()


def test_a_device_that_nobody_knows_asks_for_its_name(tmp_path):
    with pytest.raises(UnknownGpu, match="'NVIDIA X1' is not a known GPU: say which it is by --gpu"):
        measure_here(FormClock("NVIDIA X1", 7), None, shipped_constants(), tmp_path, TODAY, quiet)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: f.update(gpu="h9000"), "not a known GPU"),
        (lambda f: f["groups"].update(convolution={}), "no form 'convolution'"),
        (lambda f: f["groups"]["gemm"]["bf16"]["parameters"].pop("floor"), "constants of gemm bf16"),
        (lambda f: f["groups"]["gemm"]["bf16"]["parameters"].update(dram=-1), "constants of gemm bf16"),
        (lambda f: f["groups"]["gemm"]["bf16"].update(sigmas=[0.1]), "1 sigmas"),
        (lambda f: f.update(kind="recipe"), "validation error"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(measured, tmp_path, change, reason):
    stored = json.loads(Path(measured[1]["file"]).read_text())
    change(stored)
    path = tmp_path / FOLDER / "gh200.json"
    path.parent.mkdir()
    path.write_text(json.dumps(stored))
    with pytest.raises(BadCalibration, match=r"gh200\.json: not a usable calibration .*measure again") as caught:
        constants_of(tmp_path)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", '{"kind": 1}'])
def test_a_broken_file_is_one_sentence(tmp_path, text):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a100.json").write_text(text)
    with pytest.raises(BadCalibration, match=r"a100\.json: not a usable calibration"):
        constants_of(tmp_path)


def test_without_a_gpu_the_command_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)  # as on a machine without it
    assert main(["calibrate", "--measure"]) == 2
    assert capsys.readouterr().err == (
        "cascade: measuring needs torch with CUDA: install it beside Cascade, or fit tables by --data\n"
    )


class _FakeCuda:
    """Just what the clock calls; a replay takes 24 µs a call."""

    def __init__(self):
        self.now_ms, self.captured, self.replays = 0.0, [], 0
        outer = self

        class CUDAGraph:
            def replay(self):
                outer.replays += 1
                outer.now_ms += 24 * 24e-3

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at_ms = outer.now_ms

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return end.at_ms - self.at_ms

        self.CUDAGraph, self.Event = CUDAGraph, Event

    def synchronize(self):
        pass

    def graph(self, _):
        from contextlib import nullcontext

        return nullcontext()


class _FakeTorch:
    bfloat16, int32 = "bf16", "i32"

    def __init__(self):
        self.cuda, self.sets, self.calls = _FakeCuda(), [], []
        self.ops = type("ops", (), {"aten": type("aten", (), {"_fused_rms_norm": self._norm})})
        self.nn = type("nn", (), {"functional": type("f", (), {"linear": self._linear})})

    def randn(self, *shape, dtype, device):
        assert (dtype, device) == ("bf16", "cuda")
        self.sets.append(shape)
        return type("Tensor", (), {"copy_": lambda _, other: self.calls.append("copy")})()

    def _linear(self, *_):
        self.calls.append("linear")

    def _norm(self, *_):
        self.calls.append("norm")

    def arange(self, *_, **__):
        return np.arange(3)


@pytest.mark.parametrize(
    ("point", "call"),
    [
        (Point("gemm", {"m": 64, "n": 4096, "k": 4096}), "linear"),
        (Point("copy", {"bytes": 1 << 20}), "copy"),
        (Point("norm", {"rows": 256, "width": 4096}), "norm"),
        (Point("attention_decode", {"batch": 2, "new_tokens": 1, "past_tokens": 1023, "heads": 32, "kv_heads": 8,
                                    "head_dim": 128}), "attention"),
    ],
)  # fmt: skip
def test_a_point_is_the_median_replay_of_a_graph_that_rotates_past_l2(point, call):
    torch = _FakeTorch()
    clock = TorchClock(torch, "fake", 132, 50 << 20, _attention=lambda **_: torch.calls.append("attention"))
    assert clock.time_us(point) == pytest.approx(24.0)
    assert set(torch.calls) == {call}
    assert torch.cuda.replays == 16  # one to warm up
    bytes_of_all = sum(2 * np.prod(shape, dtype=float) for shape in torch.sets)
    assert bytes_of_all > 3 * (50 << 20) or len(torch.sets) >= 64
