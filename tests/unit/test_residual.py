"""The table over the form: what it was learned from, that it ends where the measurements end, and what it costs."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cascade_schemas.gpu import load_gpu, resolve

from services.kernels.work import Family, Math, Work, WorkTable
from services.simworker.calibration import residual as learning
from services.simworker.calibration.constants import load_constants, shipped_constants
from services.simworker.calibration.tables import Sample, gemm_work
from services.simworker.simulators.analytic.forest import Forest
from services.simworker.simulators.analytic.residual import (
    AXES,
    Residual,
    coordinates,
    evaluate,
    from_json,
    interpolated,
    to_json,
)
from services.simworker.simulators.analytic.simulator import AnalyticSimulator

FOLDER = Path(__file__).parents[2] / "services/simworker/calibration/constants"
H100 = load_gpu("h100_sxm")


def table(values, copies=6.0) -> Residual:
    nodes = tuple(np.array([4.0, 6.0, 8.0]) for _ in AXES["gemm"])
    return Residual(nodes, np.array(values, dtype=np.int8).ravel(), (0.05,) * 4, copies, 1.0)


def gemm(m: float, n: float, k: float, **more) -> Work:
    sizes = {"a_bits": 16, "w_bits": 16, "weight_copies": 6}
    return Work(family=Family.GEMM, math=Math.BF16, m=m, n=n, k=k, **sizes | more)


def test_nodes_are_met_and_what_lies_between_them_is_linear():
    values = np.arange(27).reshape(3, 3, 3)
    x = np.array([[4.0, 5.0, 8.0], [4.0, 6.0, 8.0], [4.0, 8.0, 7.0]])
    assert interpolated(table(values).nodes, values.ravel(), x) == pytest.approx([0.0, 4.5 + 3 + 2, 18 + 6 + 1.5])


def test_where_the_table_ends_the_factor_returns_to_one():
    ln, share, _ = evaluate(
        table(np.full((3, 3, 3), 20)),
        "gemm",
        WorkTable.of([gemm(64, 64, 64), gemm(512, 64, 64), gemm(4096, 64, 64), gemm(64, 64, 64, batch=8)]),
    )
    assert share == pytest.approx([1, 0.5, 0, 0])
    assert ln == pytest.approx(0.2 * share)


def test_a_hot_benchmark_says_nothing_about_the_cold_kernel():
    hot = replace(table(np.full((3, 3, 3), 20)), l2_kept_bytes=1e9)
    _, share, _ = evaluate(hot, "gemm", WorkTable.of([gemm(64, 64, 64), gemm(64, 64, 64, weight_copies=0)]))
    assert share == pytest.approx([1, 0])


def test_a_table_survives_its_file():
    values = np.random.default_rng(3).integers(-60, 60, (3, 3, 3))
    again = from_json(json.loads(json.dumps(to_json(table(values)))))
    assert (again.values == values.ravel()).all()
    assert all((a == b).all() for a, b in zip(again.nodes, table(values).nodes, strict=True))


def test_a_small_kernel_s_lower_factor_does_not_set_in_where_the_measured_ones_grow_cold():
    """Else twice the columns would be faster: of both, the larger alone would get the factor."""
    lower = replace(table(np.full((3, 3, 3), -40)), l2_kept_bytes=16 * 16 * 2 * 6 * 1.0)
    work = WorkTable.of([gemm(16, 16 * times, 16, weight_copies=0) for times in (1, 2, 4)])
    ln, share, _ = evaluate(lower, "gemm", work)
    assert ln == pytest.approx([-0.4] * 3)
    assert share == pytest.approx([0, 1, 1])
    higher = replace(lower, values=-lower.values)
    assert evaluate(higher, "gemm", work)[0] == pytest.approx([0, 0.4, 0.4])
    assert evaluate(lower, "gemm", WorkTable.of([gemm(16, 16, 16, batch=8)]))[0] == pytest.approx([0])


def test_a_spread_survives_its_file_and_is_read_off_between_nodes():
    spread = np.arange(-13, 14).reshape(3, 3, 3)
    again = from_json(
        json.loads(json.dumps(to_json(replace(table(np.zeros(27)), spread=spread.astype(np.int8).ravel()))))
    )
    work = WorkTable.of([gemm(16, 16, 16), gemm(256, 256, 256), gemm(16, 16, 32)])
    assert evaluate(again, "gemm", work)[2] == pytest.approx([-13 / 25, 13 / 25, -12.5 / 25])
    assert evaluate(table(np.zeros(27)), "gemm", work)[2] == pytest.approx([0, 0, 0])


def test_sigma_is_the_table_s_times_its_spread_where_the_table_speaks():
    key = ("gemm", "bf16", "h100_sxm")
    plain = replace(shipped_constants().residuals[key], spread=None)
    wide = replace(plain, spread=np.full(plain.values.shape, 25, dtype=np.int8))  # e times as wide
    sure = replace(plain, spread=np.full(plain.values.shape, -127, dtype=np.int8))
    work = WorkTable.of(
        [gemm(256, 4096, 4096, weight_copies=0, work_from="shapes"), gemm(1e8, 64, 64, work_from="shapes")]
    )
    flat, twice, least = (
        AnalyticSimulator(1, replace(shipped_constants(), residuals={key: one})).simulate(work, [H100]).sigma[0]
        for one in (plain, wide, sure)
    )
    assert twice[0] == pytest.approx(flat[0] * np.e, rel=1e-3)
    assert least[0] == pytest.approx(0.01, rel=1e-3)
    assert twice[1] == flat[1]  # far beyond the table


def test_an_override_moves_the_form_and_keeps_the_factor():
    """Residuals see shapes: what a table adds to a chip it adds to any change of that chip."""
    constants = shipped_constants()
    plain = AnalyticSimulator(1, replace(constants, residuals={}))
    whole = AnalyticSimulator(1, constants)
    work = WorkTable.of(
        [gemm(m, n, k, weight_copies=0) for m in (8, 300, 4096) for n, k in ((4096, 4096), (28672, 8192))]
    )
    gpus = [H100, resolve(H100, {"dram_gbps": 5000}), resolve(H100, {"sm": 200, "clock_ghz": 2.5})]
    factors = whole.simulate(work, gpus).duration_ns / plain.simulate(work, gpus).duration_ns
    assert np.abs(factors[0] - 1).max() > 0.01
    assert factors[1] == pytest.approx(factors[0], rel=2e-3)
    assert factors[2] == pytest.approx(factors[0], rel=2e-3)


def test_a_gpu_without_a_table_gets_none():
    constants = shipped_constants()
    work = WorkTable.of([gemm(300, 4096, 4096)])
    for name in ("gh200", "mi300x", "t4"):
        with_tables, without = (
            AnalyticSimulator(1, c).simulate(work, [load_gpu(name)]).duration_ns[0, 0]
            for c in (constants, replace(constants, residuals={}))
        )
        assert with_tables == without, name


def test_another_package_of_a_measured_die_takes_its_table():
    constants = shipped_constants()
    work = WorkTable.of([gemm(300, 4096, 4096)])
    gpus = [load_gpu("a100_sxm_80gb"), load_gpu("a100_sxm_40gb")]
    plain, whole = (AnalyticSimulator(1, c).simulate(work, gpus) for c in (replace(constants, residuals={}), constants))
    factors = whole.duration_ns / plain.duration_ns
    assert factors[0, 0] != 1
    assert factors[1, 0] == pytest.approx(factors[0, 0], rel=1e-3)
    assert whole.sigma[1, 0] == plain.sigma[1, 0]


def test_no_row_that_is_left_out_or_scored_is_learned_from(monkeypatch):
    """The rows that reach the learner are those of Sample.fitted; test_analytic_calibration holds what these are."""
    random = np.random.default_rng(5)
    columns = {name: 2.0 ** random.integers(4, 13, 300) for name in ("m", "n", "k")}
    work = gemm_work(columns, Math.BF16, 16, 16, 6.0)
    measured = AnalyticSimulator(1).simulate(work, [H100]).duration_ns[0] / 1e3
    dropped = random.random(300) < 0.3
    sample = Sample(
        "gemm", "bf16", "h100_sxm", work, np.where(dropped, 1e6, measured), 0.0, np.ones(300, dtype=bool),
        dropped & (np.arange(300) % 2 == 0), dropped & (np.arange(300) % 2 == 1),
    )  # fmt: skip
    seen: list[np.ndarray] = []
    learned_from = learning.learned_from
    monkeypatch.setattr(
        learning, "learned_from", lambda c, rows, ways: seen.append(rows.measured_us) or learned_from(c, rows, ways)
    )
    learning.learn(shipped_constants(), sample)
    assert len(seen) > 1
    assert max(rows.max() for rows in seen) < 1e6


def test_every_table_says_what_it_was_learned_from_and_gained():
    stored = json.loads((FOLDER / "residual.json").read_text(encoding="utf-8"))
    assert {"script", "fitted_on", "data", "what"} <= stored["provenance"].keys()
    constants = shipped_constants()
    for key, one in stored["tables"].items():
        form, variant, gpu = key.split(" ")
        assert one["rows_fitted"] >= 30, key
        assert one["median_ape"] < one["median_ape_before"], key
        assert all(0.01 <= s < 1 for s in one["sigmas"]), key
        residual = constants.residuals[form, variant, gpu]
        if isinstance(residual, Forest):
            continue
        assert len(residual.nodes) == len(AXES[form]), key
        assert residual.values.size == np.prod([axis.size for axis in residual.nodes]), key
        assert np.abs(residual.values.astype(int)).max() <= 80, key


def test_the_tables_are_small_and_load_at_once():
    assert (FOLDER / "residual.json").stat().st_size < 3_200_000
    began = time.perf_counter()
    load_constants(FOLDER)
    assert time.perf_counter() - began < 0.5  # 0.03 on an idle machine: tables are unpacked when asked for


def test_the_digest_covers_the_tables(tmp_path):
    for file in FOLDER.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "residual.json").write_text('{"tables": {}}', encoding="utf-8")
    assert load_constants(tmp_path).digest != shipped_constants().digest


def test_coordinates_are_finite_for_every_form():
    for form in AXES:
        assert np.isfinite(coordinates(form, WorkTable.of([Work(), gemm(8, 64, 64)]))).all()
