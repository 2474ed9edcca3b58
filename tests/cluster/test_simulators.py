"""Simulators of instructions on a real broker: the embedded answer, heard while they work, withdrawn in the middle."""

import json
import os
import sys
import time

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from cascade_schemas.events import Refine

from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions
from services.runtime.local import LocalEngine
from services.runtime.settings import AccelSimSettings
from services.simworker.simulators.catalog import simulators
from tests.cluster.conftest import Cluster
from tests.cluster.test_cancellation import CHAIN, EXIT, LIMIT_S, is_running
from tests.cluster.test_gateway import Gateway, until
from tests.factories import settings
from tests.unit.test_accelsim import BODY, CONFIG, FAKE, kernel_text
from tests.unit.test_accelsim_runs import processes_of
from tests.unit.test_sass_reading import text_of

A100 = "a100_sxm_80gb"
CTAS = 6_000  # 366,000 warp instructions: between a tenth of them and the next one progress is said
BY_SASS = ([A100, "l4"], "sass", None)
REFINED = ([A100, "l4"], "analytic", Refine(simulator="sass"))
BY_ACCELSIM = ([A100], "accelsim", None)


@pytest.fixture(scope="module")
def accelsim(tmp_path_factory):
    """A stand-in, which never comes to an end while a file `slowly` is beside it."""
    folder = tmp_path_factory.mktemp("accelsim")
    binary = folder / "accel-sim.out"
    binary.write_text(
        f"#!{sys.executable}\nimport os, runpy\nif os.path.exists({str(folder / 'slowly')!r}):\n"
        f"    os.environ['FAKE_ACCELSIM'] = 'sleep'\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    binary.chmod(0o755)
    config = folder / "configs" / A100
    config.mkdir(parents=True)
    (config / "gpgpusim.config").write_text("".join(f"-{name} {value}\n" for name, value in CONFIG.items()))
    (config / "trace.config").write_text("-trace_opcode_latency_initiation_int 4,2\n")
    return AccelSimSettings(binary, folder / "configs", dict(os.environ))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    head, begin, block = text_of(*CHAIN, EXIT, ctas=CTAS).replace("= k\n", "= _Z4longPKf\n").partition("#BEGIN_TB")
    (folder / "kernel-1.traceg").write_text(head + (begin + block) * CTAS)
    (folder / "kernel-2.traceg").write_text(kernel_text(grid="(2,1,1)", body=BODY * 2))
    (folder / "kernelslist.g").write_text("kernel-1.traceg\nkernel-2.traceg\n")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def embedded(tmp_path_factory, accelsim, files, compiled):
    """What one process says of each run: its state hash, and who stands for each kernel."""
    home = tmp_path_factory.mktemp("embedded")
    (home / "numba").symlink_to(compiled)
    known = simulators(2, home, accelsim=accelsim, now_s=time.monotonic)
    engine = LocalEngine(Embedded(settings(home), known, now_ms=wall_clock_ms), is_served=True)
    try:
        trace_id = engine.import_files(files, ImportOptions(source_gpu=A100))["trace_id"]
        return {
            simulator: engine.wait_run(engine.start_run(trace_id, gpus, simulator, refine=refine))
            for gpus, simulator, refine in (BY_SASS, REFINED, BY_ACCELSIM)
        }
    finally:
        engine.close()


@pytest.fixture(scope="module")
def cluster(broker, tmp_path_factory, accelsim, compiled):
    environ = {"CASCADE_ACCELSIM": str(accelsim.binary), "CASCADE_ACCELSIM_CONFIGS": str(accelsim.configs)}
    cluster = Cluster(broker, tmp_path_factory.mktemp("simulators"), environ)
    (cluster.home / "numba").symlink_to(compiled)
    with cluster.working():
        yield cluster


@pytest.fixture(scope="module")
def engine(cluster):
    gateway = Gateway(cluster)
    yield gateway.start()
    gateway.stop()


@pytest.fixture(scope="module")
def trace_id(engine, files):
    return engine.import_files(files, ImportOptions(source_gpu=A100))["trace_id"]


def said(cluster, run_id):
    """In the order of the log: lines of a run as (config, line), and the result of a config as (config, None)."""
    found = []
    for event in cluster.events("results"):
        if getattr(event, "run_id", None) == run_id:  # other tests' unreadable records are there, too
            if event.type == "SimulatorLogged":
                found.extend((event.config_id, line) for line in event.lines)
            elif event.type == "KernelsSimulated":
                found.extend((event.config_id, None) for _ in range(event.rows.num_rows))
    return found


def test_a_run_by_sass_has_the_embedded_answer_and_says_how_far_it_is(cluster, engine, trace_id, embedded):
    gpus, simulator, _ = BY_SASS
    report = engine.wait_run(run_id := engine.start_run(trace_id, gpus, simulator))
    assert (report["status"], report["state_hash"]) == ("completed", embedded["sass"]["state_hash"])
    lines = said(cluster, run_id)
    for config in report["configs"]:
        own = [line for config_id, line in lines if config_id == config["config_id"]]
        far = [place for place, line in enumerate(own) if line and f"of {CTAS:,} thread blocks" in line]
        whole = next(
            place for place, line in enumerate(own) if line and f"{CTAS * 61:,} warp instructions, IPC" in line
        )
        assert 1 <= len(far) <= 10
        assert own[far[0] :].count(None) >= 1, "it was said after the result"
        assert max(far) < whole
        shown = engine._ask("GET", f"/api/runs/{run_id}/log/{config['config_id']}", params={"first": 0, "count": 500})
        assert [line for line in own if line] == shown["lines"]


def test_a_run_that_is_refined_upgrades_its_kernels_to_the_embedded_answer(cluster, engine, trace_id, embedded):
    gpus, simulator, refine = REFINED
    report = engine.wait_run(run_id := engine.start_run(trace_id, gpus, simulator, refine=refine))
    assert (report["status"], report["state_hash"]) == ("completed", embedded["analytic"]["state_hash"])
    for config, known in zip(
        report["refinement"]["configs"], embedded["analytic"]["refinement"]["configs"], strict=True
    ):
        assert config["done"] == config["chosen"] == known["chosen"] == 2
        assert [kernel["verdict"] for kernel in config["kernels"]] == [one["verdict"] for one in known["kernels"]]
    first = [e for e in cluster.events("predictions") if getattr(e, "run_id", None) == run_id]
    kinds = [event.type for event in first]
    assert kinds.index("KernelsPredicted") < kinds.index("RefinementChosen") < kinds.index("RunCompleted")
    assert any(e.type == "KernelsPredicted" and kinds.index("RefinementChosen") < at for at, e in enumerate(first))


def test_a_run_by_accelsim_has_the_embedded_answer_and_its_lines(cluster, engine, trace_id, embedded):
    gpus, simulator, _ = BY_ACCELSIM
    report = engine.wait_run(run_id := engine.start_run(trace_id, gpus, simulator))
    assert (report["status"], report["state_hash"]) == ("completed", embedded["accelsim"]["state_hash"])
    rows = engine.sql(f"select sm_cycles, statistics from simulations where run_id = '{run_id}' order by 1", 10).rows
    assert [row["sm_cycles"] for row in rows] == [104, 100 + 61 * CTAS]  # what the stand-in counts
    assert [json.loads(row["statistics"])["cycles"] for row in rows] == [row["sm_cycles"] for row in rows]
    lines = [line for _, line in said(cluster, run_id)]
    assert "gpu_sim_cycle = 104" in lines[: len(lines) - lines[::-1].index(None)], "it was said after the results"


def test_accelsim_is_heard_while_it_works_and_ends_within_two_seconds(cluster, engine, trace_id, accelsim, tmp_path):
    slowly = accelsim.binary.with_name("slowly")
    slowly.touch()
    try:
        # Another kernel: of those above the answers are kept.
        kernel, listed = tmp_path / "kernel-1.traceg", tmp_path / "kernelslist.g"
        kernel.write_text(kernel_text(grid="(3,1,1)", body=BODY * 3))
        listed.write_text("kernel-1.traceg\n")
        trace = engine.import_files([kernel, listed], ImportOptions(source_gpu=A100))
        run_id = engine.start_run(trace["trace_id"], [A100], "accelsim")
        until(lambda: any("LIVENESS" in (line or "") for _, line in said(cluster, run_id)))
        (process,) = processes_of(accelsim.binary)
        asked_s = time.monotonic()
        engine.cancel_run(run_id)
        while is_running(process):
            assert time.monotonic() - asked_s < LIMIT_S
            time.sleep(0.02)
        assert engine.wait_run(run_id)["status"] == "cancelled"
        assert not [line for _, line in said(cluster, run_id) if line is None]
    finally:
        slowly.unlink()
    gpus, simulator, _ = BY_ACCELSIM
    assert engine.wait_run(engine.start_run(trace_id, gpus, simulator))["status"] == "completed"
