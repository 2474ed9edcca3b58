"""The user's own Accel-Sim as a run's simulator and as what a run is refined with, driven by a stand-in."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from cascade_schemas.events import Refine, SimulatorLogged
from cascade_schemas.gpu import load_gpu

from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions, Refused
from services.runtime.local import LocalEngine
from services.runtime.settings import AccelSimSettings, BadSetting, Settings
from services.simworker.simulators.catalog import simulators
from tests.factories import settings
from tests.unit.test_accelsim import BODY, CONFIG, FAKE, kernel_text

A100 = "a100_sxm_80gb"


@pytest.fixture
def place(tmp_path):
    class Place:
        home = tmp_path / "home"
        binary = tmp_path / "accel-sim.out"
        configs = tmp_path / "configs"

        def open(self):
            known = simulators(
                2,
                self.home,
                accelsim=AccelSimSettings(self.binary, self.configs, self.environ),
                now_s=time.monotonic,
            )
            return LocalEngine(Embedded(settings(self.home), known, now_ms=wall_clock_ms), is_served=True)

        def traces(self, **facts):
            folder = tmp_path / "traces"
            folder.mkdir(exist_ok=True)
            for index in (1, 2):
                text = kernel_text(grid=f"({index},1,1)", body=BODY * index, **facts).replace(
                    "= k\n", f"= _Z4kern{index}PKf\n"
                )
                (folder / f"kernel-{index}.traceg").write_text(text)
            (folder / "kernelslist.g").write_text("kernel-1.traceg\nkernel-2.traceg\n")
            return sorted(folder.iterdir())

    found = Place()
    found.environ = dict(os.environ)
    found.binary.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n")
    found.binary.chmod(0o755)
    folder = found.configs / A100
    folder.mkdir(parents=True)
    (folder / "gpgpusim.config").write_text("".join(f"-{name} {value}\n" for name, value in CONFIG.items()))
    (folder / "trace.config").write_text("-trace_opcode_latency_initiation_int 4,2\n")
    return found


@pytest.fixture
def engine(place):
    opened = place.open()
    yield opened
    opened.close()


def logged(engine, run_id):
    lines = []
    for stored in engine.embedded.log.read_keys([run_id]):
        event = engine.embedded.event_of(stored, "test")
        if isinstance(event, SimulatorLogged):
            lines.extend(event.lines)
    return lines


def test_a_run_has_its_cycles_its_statistics_and_its_lines(engine, place):
    trace = engine.import_files(place.traces(), ImportOptions(source_gpu=A100))
    run_id = engine.start_run(trace["trace_id"], [A100], "accelsim")
    assert engine.wait_run(run_id)["status"] == "completed"
    rows = engine.sql("select * from simulations order by sm_cycles", 10).rows
    assert {row["simulator"] for row in rows} == {"accelsim"}
    assert {row["tier"] for row in rows} == {"C"}
    assert [row["sm_cycles"] for row in rows] == [102, 104]  # what the stand-in counts
    boost = load_gpu(A100).boost_hz
    for row in rows:
        assert row["duration_ns"] == max(1, round(row["sm_cycles"] * 1e9 / boost))
        assert row["p10_ns"] < row["p90_ns"]
        counted = json.loads(row["statistics"])
        assert (counted["cycles"], counted["dram_read_bytes"]) == (row["sm_cycles"], 7 * 32)
    lines = logged(engine, run_id)
    assert any("gpu_sim_cycle = 102" in line for line in lines)  # said while it ran
    assert any("102 cycles" in line and "its whole output is kept as" in line for line in lines)
    assert engine.verify_run(run_id)["equal"]


def test_a_run_is_refined_by_it_and_says_so_per_kernel(engine, place):
    trace = engine.import_files(place.traces(), ImportOptions(source_gpu=A100))
    run_id = engine.start_run(trace["trace_id"], [A100], "analytic", refine=Refine(simulator="accelsim"))
    report = engine.wait_run(run_id)
    assert report["status"] == "completed"
    (config,) = report["refinement"]["configs"]
    assert config["chosen"] == config["done"] > 0
    assert config["failed"] == 0
    assert all(kernel["verdict"].split(":")[0] in {"taken", "kept"} for kernel in config["kernels"])
    assert engine.verify_run(run_id)["equal"]


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [("h100_sxm", "needs h100_sxm/gpgpusim.config"), (f"{A100}:sm=120", "has overrides; sass takes them")],
)
def test_a_gpu_without_a_config_is_refused_at_once(engine, place, gpu, sentence):
    trace = engine.import_files(place.traces(), ImportOptions())
    with pytest.raises(Refused, match=sentence):
        engine.start_run(trace["trace_id"], [gpu], "accelsim")
    with pytest.raises(Refused, match=sentence):
        engine.start_run(trace["trace_id"], [gpu], "analytic", refine=Refine(simulator="accelsim"))


def test_a_failure_of_the_catalogue_is_the_kernels_reason(engine, place):
    trace = engine.import_files(place.traces(binary=89), ImportOptions())
    run_id = engine.start_run(trace["trace_id"], [A100], "accelsim")
    assert engine.wait_run(run_id)["status"] == "failed"
    reasons = {row["reason"] for row in engine.sql("select reason from simulations", 10).rows}
    assert all(reason.startswith("unsupported_binary_version: ") and "sm_89" in reason for reason in reasons)


def test_a_withdrawn_run_ends_its_process_within_two_seconds(place):
    place.environ["FAKE_ACCELSIM"] = "sleep"
    engine = place.open()
    try:
        trace = engine.import_files(place.traces(), ImportOptions())
        run_id = engine.start_run(trace["trace_id"], [A100], "accelsim")
        deadline = time.monotonic() + 60
        while not processes_of(place.binary) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_of(place.binary)
        began = time.monotonic()
        engine.cancel_run(run_id)
        while processes_of(place.binary) and time.monotonic() - began < 10:
            time.sleep(0.02)
        assert time.monotonic() - began < 2
        assert engine.wait_run(run_id)["status"] == "cancelled"
    finally:
        engine.close()
    assert threading.active_count() < 50


def processes_of(binary):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(binary) in command and "traces/kernelslist.g" in command:  # not the probe, which ends by itself
                found.append(int(entry.name))
    return found


def test_without_its_settings_it_says_which_are_missing(place, tmp_path):
    embedded = Embedded(settings(place.home), simulators(1, place.home), now_ms=wall_clock_ms)
    engine = LocalEngine(embedded)
    try:
        trace = engine.import_files(place.traces(), ImportOptions())
        with pytest.raises(Refused, match=r"accelsim needs CASCADE_ACCELSIM .* and CASCADE_ACCELSIM_CONFIGS"):
            engine.start_run(trace["trace_id"], [A100], "accelsim")
    finally:
        engine.close()
    with pytest.raises(BadSetting, match="goes with CASCADE_ACCELSIM"):
        Settings.from_environ({"CASCADE_ACCELSIM_CONFIGS": str(tmp_path)})
    with pytest.raises(BadSetting, match="is no folder"):
        Settings.from_environ({"CASCADE_ACCELSIM": "x", "CASCADE_ACCELSIM_CONFIGS": str(tmp_path / "none")})
