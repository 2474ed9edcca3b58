"""SASS traces as a run: imported, matched to a profile's kernels, simulated on any GPU, and refused with a reason."""

import lzma
import threading
import time

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from cascade_schemas.gpu import load_gpu

from services.aggregator import queries
from services.cli import main
from services.runtime.embedded import Embedded
from services.runtime.engine import ImportOptions, Refused
from services.runtime.local import LocalEngine
from services.simworker.simulators.catalog import simulators
from services.simworker.simulators.sass.generated import machine_of_gpu
from services.simworker.simulators.sass.reading import read_kernel
from services.simworker.simulators.sass.simulator import Progress, Simulation
from tests.factories import Clock, kineto_trace, settings
from tests.unit.test_sass_reading import text_of

CHAIN = [f"{16 * n:04x} ffffffff 1 R8 FFMA 3 R2 R4 R8 0 0" for n in range(40)]
LOADS = [f"{16 * n:04x} ffffffff 1 R{8 + n} LDG.E 1 R2 4 1 0x7f00000{n:02x}000 4 0" for n in range(8)]
EXIT = "0800 ffffffff 0 EXIT 0 0 0"


@pytest.fixture
def folder(tmp_path):
    traces = tmp_path / "traces of a job"
    traces.mkdir()
    (traces / "kernel-1.traceg").write_text(text_of(*CHAIN, EXIT).replace("= k\n", "= _Z9vectorAddPKfS0_Pfi\n"))
    packed = text_of(*LOADS, EXIT).replace("= k\n", "= _Z4loadPKf\n")
    (traces / "kernel-2.traceg.xz").write_bytes(lzma.compress(packed.encode()))
    (traces / "kernelslist.g").write_text(
        "MemcpyHtoD,0x7f0000000000,200\nkernel-1.traceg\nkernel-2.traceg.xz\nkernel-1.traceg\n"
    )
    return traces


@pytest.fixture
def engine(tmp_path):
    home = tmp_path / "home"
    opened = LocalEngine(Embedded(settings(home), simulators(2, home), now_ms=Clock()))
    yield opened
    opened.close()


def files(folder):
    return sorted(folder.iterdir())


def test_a_folder_is_a_trace_and_a_run_on_it_gives_the_simulators_own_cycles(engine, folder):
    report = engine.import_files(files(folder), ImportOptions(name="job", source_gpu="a100_sxm_80gb"))
    assert (report["kernels"], report["tasks"], report["tool"]) == (3, 2, "accelsim")
    run_id = engine.start_run(report["trace_id"], ["a100_sxm_80gb", "h100_sxm"], "sass")
    assert engine.wait_run(run_id)["status"] == "completed"
    rows = engine.sql(
        "select label, name, tier, reason, duration_ns, p10_ns, p90_ns, launch_count from kernels order by label, name",
        100,
    ).rows
    assert [row["name"] for row in rows] == ["load", "vectorAdd"] * 2
    assert {row["tier"] for row in rows} == {"B"}
    assert rows[0]["reason"] == "sass:not_validated_on_hardware;cold_caches"
    assert rows[2]["reason"].endswith(";code_of_sm_80_on_sm_90")  # Ampere's code on Hopper: said, not hidden
    for row in rows:
        file = "kernel-1.traceg" if row["name"] == "vectorAdd" else "kernel-2.traceg.xz"
        gpu = load_gpu(row["label"])
        cycles = Simulation(machine_of_gpu(gpu)).run(read_kernel(folder / file)).cycles
        assert row["duration_ns"] == max(1, round(cycles * 1e9 / gpu.boost_hz))
        assert row["p10_ns"] < row["duration_ns"] < row["p90_ns"]
    assert rows[1]["launch_count"] == 2
    assert engine.verify_run(run_id)["equal"]
    lines = [event for event in engine.events(run_id) if event["type"] == "SimulatorLogged"]
    assert lines


def test_what_each_kernel_did_is_in_the_runs_log(engine, folder):
    report = engine.import_files(files(folder), ImportOptions())
    run_id = engine.start_run(report["trace_id"], ["a100_sxm_80gb"], "sass")
    engine.wait_run(run_id)
    logged = []
    for stored in engine.embedded.log.read_keys([run_id]):
        if stored.record.headers["type"] == "SimulatorLogged":
            logged.extend(engine.embedded.event_of(stored, "test").lines)
    assert any("41 warp instructions" in line and "waits:" in line for line in logged)


def test_a_result_comes_from_the_cache_the_second_time_and_a_refusal_does_not(engine, folder, tmp_path):
    report = engine.import_files(files(folder), ImportOptions())
    hashes = []
    for _ in range(2):
        run_id = engine.start_run(report["trace_id"], ["h100_sxm"], "sass")
        hashes.append(engine.wait_run(run_id)["state_hash"])
    assert hashes[0] == hashes[1]
    cached = engine.sql(f"select count(*) as n from simulated_kernels where is_cached and run_id = '{run_id}'", 1)
    assert cached.rows[0]["n"] == 2
    other = engine.import_files([kineto_trace(tmp_path / "k.json")], ImportOptions())
    run_id = engine.start_run(other["trace_id"], ["h100_sxm"], "sass")
    ended = engine.wait_run(run_id)
    assert ended["status"] == "failed"
    assert not list((tmp_path / "home" / "artifacts" / "results").rglob("*no_sass*"))


def test_a_profile_of_the_same_job_gets_the_traces_of_its_kernels(engine, folder, tmp_path):
    profile = kineto_trace(tmp_path / "profile.json")
    alone = engine.import_files([profile], ImportOptions(name="alone"))
    (kernel,) = engine.sql(
        "select distinct name, grid_x, grid_y, grid_z, block_x, block_y, block_z from signatures "
        f"where trace_id = '{alone['trace_id']}' and grid_x is not null order by name limit 1",
        1,
    ).rows
    grid = f"({kernel['grid_x']},{kernel['grid_y']},{kernel['grid_z']})"
    block = f"({kernel['block_x']},{kernel['block_y']},{kernel['block_z']})"
    text = text_of(*CHAIN, EXIT).replace("= k\n", f"= {kernel['name']}\n")
    text = text.replace("grid dim = (1,1,1)", f"grid dim = {grid}").replace(
        "block dim = (32,1,1)", f"block dim = {block}"
    )
    (folder / "kernel-1.traceg").write_text(text)
    report = engine.import_files([profile, *files(folder)], ImportOptions(name="together"))
    assert (report["kernels"], report["tasks"]) == (alone["kernels"], alone["tasks"])
    notes = " ".join(report["quality"]["notes"])
    assert "SASS traces were found for" in notes
    assert "1 SASS traces belong to no kernel of the profile, 'load' among them" in notes
    run_id = engine.start_run(report["trace_id"], ["h100_sxm"], "sass")
    engine.wait_run(run_id)
    reasons = engine.sql(f"select distinct reason from simulated_kernels where run_id = '{run_id}'", 10).rows
    assert {"reason": "no_sass_trace"} in reasons
    assert any(row["reason"].startswith("does_not_fit") or row["reason"].startswith("sass") for row in reasons)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / "kernel-2.traceg.xz").unlink(), "kernel-2.traceg.xz is listed and was not given"),
        (lambda f: (f / "kernelslist.g").write_text("MemcpyHtoD,0x0,1\n"), "lists no kernel"),
        (lambda f: (f / "kernelslist.g").unlink(), "2 SASS traces without a kernelslist.g"),
        (lambda f: (f / "kernel-1.traceg").write_text("-kernel name = k\n"), "ends within its header"),
        (lambda f: (f / "kernel-2.traceg.xz").write_bytes(b"\xfd7zXZ\0cut"), "compressed data is broken or cut"),
        (lambda f: (f / "kernel-1.traceg").write_text(text_of(EXIT, binary=100)), "binary version 100 is none of"),
    ],
)
def test_a_broken_folder_is_rejected_with_a_sentence(engine, folder, spoil, sentence):
    spoil(folder)
    with pytest.raises(Refused, match=sentence):
        engine.import_files(files(folder), ImportOptions())


def test_a_cut_kernel_fails_alone_and_says_where(engine, folder):
    whole = (folder / "kernel-1.traceg").read_text()
    (folder / "kernel-1.traceg").write_text(whole[: len(whole) // 2])
    report = engine.import_files(files(folder), ImportOptions())
    run_id = engine.start_run(report["trace_id"], ["h100_sxm"], "sass")
    assert engine.wait_run(run_id)["status"] == "completed_with_failures"
    rows = engine.sql("select reason from simulated_kernels where duration_ns is null", 10).rows
    assert len(rows) == 1
    assert "so it was cut" in rows[0]["reason"]


def test_how_far_a_kernel_is_is_said_while_it_runs(engine, folder, monkeypatch):
    monkeypatch.setattr("services.simworker.simulators.sass.simulator.PAUSE_WORK", 500)
    text = text_of(*CHAIN, EXIT, ctas=3000).replace("= k\n", "= _Z4longPKf\n")
    head, begin, block = text.partition("#BEGIN_TB")
    (folder / "kernel-1.traceg").write_text(head + (begin + block) * 3000)
    report = engine.import_files(files(folder), ImportOptions())
    run_id = engine.start_run(report["trace_id"], ["h100_sxm"], "sass")
    engine.wait_run(run_id)
    said = [
        line
        for stored in engine.embedded.log.read_keys([run_id])
        if stored.record.headers["type"] == "SimulatorLogged"
        for line in engine.embedded.event_of(stored, "test").lines
    ]
    far = [line for line in said if "of 3,000 thread blocks" in line]
    assert 3 <= len(far) <= 10
    assert far[0].startswith("_Z4longPKf: ")
    assert far[0] != far[-1]


def test_equal_kernels_of_a_run_are_simulated_once(engine, folder, monkeypatch):
    text = (folder / "kernel-1.traceg").read_text()
    (folder / "kernel-3.traceg").write_text(
        text.replace("vectorAdd", "vectorMul").replace("kernel id = 1", "kernel id = 3")
    )
    (folder / "kernelslist.g").write_text("kernel-1.traceg\nkernel-2.traceg.xz\nkernel-3.traceg\n")
    simulated = []
    run = Simulation.run

    def counted(self, source, *others):
        simulated.append(source.file)
        return run(self, source, *others)

    monkeypatch.setattr(Simulation, "run", counted)
    report = engine.import_files(files(folder), ImportOptions())
    run_id = engine.start_run(report["trace_id"], ["h100_sxm"], "sass")
    assert engine.wait_run(run_id)["status"] == "completed"
    assert len([file for file in simulated if file != "text"]) == 2  # the text is what the core is compiled with
    rows = engine.sql("select name, duration_ns, p10_ns, bound, reason from kernels order by name", 10).rows
    assert [row["name"] for row in rows] == ["load", "vectorAdd", "vectorMul"]
    assert {**rows[1], "name": ""} == {**rows[2], "name": ""}


def test_a_cancelled_run_ends_within_its_kernel(engine, folder, monkeypatch):
    """The kernel goes on for ever, unless somebody asks for the run's end."""
    report = engine.import_files(files(folder), ImportOptions())
    began, ended = threading.Event(), threading.Event()
    run = Simulation.run

    def endless(self, source, watch=None):
        if watch is None:  # what the core is compiled with
            return run(self, source)
        began.set()
        try:
            while True:
                watch(Progress("kernel", 0, 10, 0, 0))
        finally:
            ended.set()

    monkeypatch.setattr(Simulation, "run", endless)
    embedded = engine.embedded
    embedded.start()
    embedded.request_run("1234", report["trace_id"], ["h100_sxm", "a100_sxm_80gb"], simulator="sass")
    assert began.wait(60)
    deadline_s = time.monotonic() + 60
    while queries.run_status(embedded.store, "1234") is None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not ended.is_set()
    embedded.cancel_run("1234")
    assert ended.wait(2)


def test_the_command_takes_the_folder_and_calls_the_trace_by_its_name(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path / "other"))
    assert main(["import", str(folder)]) == 0
    assert "traces of a job" in capsys.readouterr().out
    assert main(["import", str(tmp_path)]) == 2
    assert "has no kernelslist.g or kernelslist" in capsys.readouterr().err
