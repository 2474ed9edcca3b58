"""`cascade run`, killed with SIGKILL at random moments by the real operating system."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.local import LocalEngine
from services.runtime.settings import Settings
from services.simworker.simulators.catalog import simulators

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from services.cli import main; raise SystemExit(main())"]
KILL_COUNT = 25
GPUS = ["--gpu", "h100_sxm", "--gpu", "l4", "--gpu", "b200_sxm"]


def engine_of(home):
    settings = Settings(home=home, thread_count=2, upload_bytes_limit=1 << 30)
    return LocalEngine(Embedded(settings, simulators(2), now_ms=wall_clock_ms))


def start(home):
    return subprocess.Popen(
        [*COMMAND, "run", "sample:opt-125m", *GPUS, "--json"],
        cwd=ROOT,
        env={**os.environ, "CASCADE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """State hash of the run that nobody kills, and how long it takes."""
    home = tmp_path_factory.mktemp("calm")
    began = time.monotonic()
    assert start(home).wait(300) == 0
    elapsed_s = time.monotonic() - began
    engine = engine_of(home)
    (run,) = engine.runs()
    engine.close()
    return run["state_hash"], elapsed_s


@pytest.mark.timeout(1200)
def test_killed_at_any_moment_a_run_completes_with_the_same_answer(tmp_path, undisturbed):
    expected_hash, elapsed_s = undisturbed
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    killed, latest_s = 0, elapsed_s
    for _ in range(KILL_COUNT):
        process = start(tmp_path)
        # From before the first byte is stored to after the table: interpreters take most of a second to start.
        delay_s = chance.uniform(0.5, 1.0) * latest_s
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        if process.wait(60) == -signal.SIGKILL:
            killed += 1
        else:
            latest_s = delay_s  # a run that finds its trace imported ends sooner than the first one did
    engine = engine_of(tmp_path)
    engine.embedded.pump()
    runs = engine.runs()
    assert {run["status"] for run in runs} <= {"completed"}, f"seed {seed}: {runs}"
    assert {run["state_hash"] for run in runs} == {expected_hash}, f"seed {seed}"
    requested = engine.embedded.log.end("runs")
    assert len(runs) == requested > 0, f"seed {seed}"
    for run in runs:
        assert engine.verify_run(run["run_id"])["equal"], f"seed {seed}"
    store = engine.embedded.store
    for table, key in (
        ("launches", "trace_id, rank, seq"),
        ("tasks", "trace_id, task_id"),
        ("simulated_kernels", "run_id, config_id, task_id"),
        ("predicted_steps", "run_id, config_id, step"),
    ):
        (row,) = store.query(f"select count(*) as n, count(distinct ({key})) as keys from {table}")
        assert row["n"] == row["keys"] > 0, f"seed {seed}: {table}"
    (trace,) = engine.traces()
    (counted,) = store.query("select count(*) as n from launches")
    (promised,) = store.query("select launch_count as n from trace_ends")
    assert counted == promised, f"seed {seed}"
    assert trace["status"] == "complete"
    engine.close()
    assert killed > KILL_COUNT // 2, f"only {killed} of {KILL_COUNT} were still alive when killed"
    assert not list(tmp_path.glob("open-*"))
    assert not list((tmp_path / "artifacts").glob("incoming-*"))
