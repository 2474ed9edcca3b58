"""`cascade-trace`: a command with its workers recording, its exit status kept; programs around it; what an outage left."""

import gzip
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cascade_profiler import cli, nsys, saying
from cascade_profiler.arming import VARIABLE
from cascade_profiler.collect import Unusable, found_collectors
from cascade_profiler.cupti import CuptiCollector
from cascade_schemas.codec import decode, encode
from cascade_schemas.events import HostProfileMeasured, StepTraced, TraceCompleted
from cascade_schemas.recording import RecordStream, read_stream

from services.ingest.live import LiveIngest
from services.runtime import embedded as embedded_module
from tests.factories import fake_simulators
from tests.recordings import RECORDED, recorded_events
from tests.served import TOKEN, served

ROOT = Path(__file__).resolve().parents[2]
JOB = [sys.executable, "-m", "tests.fakes.job"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    saying.forget()
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path / "no-server-here"))
    monkeypatch.setenv(VARIABLE, "armed")
    monkeypatch.chdir(ROOT)


def trace(tmp_path, *arguments):
    """Run cascade-trace; its status and the catalog of what rank 0 wrote."""
    status = cli.main(["--to", f"file://{tmp_path}/out/job", *arguments])
    path = tmp_path / "out" / "job.rank0.cascade-trace"
    live = LiveIngest()
    said = [one for r in (read_stream(path) if path.exists() else ()) for one in live.react(decode(r.headers, r.value))]
    return status, said


def of_type(events, kind):
    return [event for event in events if isinstance(event, kind)]


def test_a_command_is_traced_from_its_first_step_to_its_last(tmp_path, capfd):
    status, said = trace(tmp_path, "--model", "opt-125m", "--", *JOB, "20", "0.001")
    assert status == 0
    (end,) = of_type(said, TraceCompleted)
    assert (end.step_count, end.kernel_count, end.is_truncated) == (20, 60, False)
    assert said[0].name.startswith("python")
    assert "cascade import" in capfd.readouterr().err


def test_a_process_that_leaves_without_a_word_still_sends_what_it_has(tmp_path):
    _, said = trace(tmp_path, "--", *JOB, "12", "0.001", "leave")
    (end,) = of_type(said, TraceCompleted)
    assert (end.step_count, end.is_truncated) == (12, False)


def test_the_exit_status_is_the_commands(tmp_path):
    assert trace(tmp_path, "--", sys.executable, "-c", "raise SystemExit(7)")[0] == 7


def test_a_baseline_is_measured_in_a_process_of_its_own_and_travels_with_the_trace(tmp_path):
    _, said = trace(tmp_path, "--baseline", "--", *JOB, "10", "0.002")
    (profile,) = of_type(said, HostProfileMeasured)
    assert len(profile.step_host_ns) == 10
    assert min(profile.step_host_ns) >= 2_000_000
    assert profile.ttft_ns[0] > 4_000_000
    assert [step.kernel_count for step in of_type(said, StepTraced)] == [3] * 10


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "no command was given"),
        (["--", "/no/such/program"], "is no program here"),
        (["--to", "ftp://x", "--", "true"], "is no destination"),
        (["--model", "no-such-model", "--", "true"], "no-such-model"),
        (["--source-gpu", "h900", "--", "true"], "h900"),
        (["--host-profile", "/nowhere.json", "--", "true"], "nowhere"),
        (["--baseline", "--host-profile", "x", "--", "true"], "one of them"),
        (["--baseline", "--", "false"], "exit code 1"),
        (["--collector", "nvbit", "--", "true"], "--tracer"),
        (["--collector", "nvbit", "--tracer", "/no/tool.so", "--", "true"], "tool.so is not there"),
        (["--resume", "/nowhere"], "--to"),
        (["--resume", "/nowhere", "--to", "memory://"], "nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_two(arguments, word, capfd):
    assert cli.main(arguments) == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert word in said[-1]
    assert said[-1].startswith("cascade-trace: ")


def test_what_an_outage_left_is_sent_later_and_then_deleted(tmp_path, capfd):
    spool = tmp_path / "spool.cascade-trace"
    with served(tmp_path / "home", fake_simulators()) as server:
        stream = RecordStream(spool)
        for event in recorded_events(3):
            stream.append([encode(event, is_compressed=True)], 0)
        stream.close()
        assert cli.main(["--resume", str(spool), "--to", "http://127.0.0.1:9", "--token", TOKEN]) == 2
        assert spool.exists()
        assert cli.main(["--resume", str(spool), "--to", server.url, "--token", TOKEN]) == 0
        assert not spool.exists()
        wait_for(lambda: status_of(server, RECORDED) == "complete")
    assert "stay in" in capfd.readouterr().err


def test_kill_minus_nine_leaves_a_usable_trace_that_says_it_is_truncated(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded_module, "SILENCE_LIMIT_MS", 3000)
    with served(tmp_path / "home", fake_simulators()) as server:
        environ = {**os.environ, "CASCADE_TOKEN": TOKEN}
        command = [sys.executable, "-m", "cascade_profiler", "--to", server.url, "--", *JOB, "30", "0.01", "kill"]
        done = subprocess.run(command, env=environ, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 128 + signal.SIGKILL, done.stderr
        (found,) = server.engine.traces()
        trace_id = found["trace_id"]
        wait_for(lambda: status_of(server, trace_id) == "complete")
        report = server.engine.trace_report(trace_id)
        assert report["is_truncated"]
        assert any("killed" in note for note in report["quality"]["notes"])
        profiled = [step for step in report["steps"] if step["kernels"]]
        assert len(profiled) == 24  # three whole windows of eight; the fourth was open
        run = server.engine.wait_run(server.engine.start_run(trace_id, ["h100_sxm"], "analytic"))
        assert run["status"] == "completed"
        assert len(run["configs"][0]["steps"]) == 24


def status_of(server, trace_id):
    return {one["trace_id"]: one["status"] for one in server.engine.traces()}.get(trace_id)


def wait_for(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


# --- programs around the command ----------------------------------------------------------------------------------


def program(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_nsys_follows_workers_and_graphs_and_its_export_loses_the_machine(tmp_path, monkeypatch, capfd):
    programs = tmp_path / "bin"
    programs.mkdir()
    program(
        programs,
        "nsys",
        f"""#!{sys.executable}
import sqlite3, subprocess, sys
arguments = sys.argv[1:]
out = next(a.split("=", 1)[1] for a in arguments if a.startswith("--output="))
if arguments[0] == "profile":
    assert "--cuda-graph-trace=node" in arguments and "--trace-fork-before-exec=true" in arguments
    command = arguments[max(i for i, a in enumerate(arguments) if a.startswith("--output=")) + 1:]
    status = subprocess.run(command).returncode
    open(out + ".nsys-rep", "w").write("report")
    raise SystemExit(status)
db = sqlite3.connect(out)
db.execute("create table TARGET_INFO_SYSTEM_ENV (name text, value text)")
db.execute("insert into TARGET_INFO_SYSTEM_ENV values ('HF_TOKEN', 'hf_this_is_a_secret')")
db.execute("create table CUPTI_ACTIVITY_KIND_KERNEL (start int)")
db.commit()
""",
    )
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    output = tmp_path / "nsys-out"
    code = "import os; raise SystemExit(3 if os.environ['VLLM_WORKER_MULTIPROC_METHOD'] == 'spawn' else 1)"
    status = cli.main(["--collector", "nsys", "--output", str(output), "--", sys.executable, "-c", code])
    assert status == 3
    said = capfd.readouterr().err
    assert "not validated on hardware" in said
    assert f"cascade import {output / 'job.sqlite'}" in said
    assert b"hf_this_is_a_secret" not in (output / "job.sqlite").read_bytes()
    with sqlite3.connect(output / "job.sqlite") as db:
        assert [name for (name,) in db.execute("select name from sqlite_master")] == ["CUPTI_ACTIVITY_KIND_KERNEL"]


def test_the_check_names_what_wraps_a_command_too(tmp_path, monkeypatch, capfd):
    programs = tmp_path / "bin"
    programs.mkdir()
    tracer = tmp_path / "tracer_tool.so"
    tracer.write_bytes(b"\x7fELF")
    monkeypatch.setenv("PATH", str(programs))
    assert cli.main(["--check", "--collector", "nsys"]) == 1
    assert "nsys    absent   nsys is not on the PATH" in capfd.readouterr().out
    program(programs, "nsys", "#!/bin/sh\necho NVIDIA Nsight Systems version 2026.4\n")
    assert cli.main(["--check", "--collector", "nsys"]) == 0
    assert "nsys    found    NVIDIA Nsight Systems version 2026.4; not validated" in capfd.readouterr().out
    program(programs, "nsys", "#!/bin/sh\nexit 3\n")
    assert cli.main(["--check", "--collector", "nsys"]) == 1
    assert "exit code 3" in capfd.readouterr().out
    assert cli.main(["--check", "--collector", "nvbit", "--tracer", str(tracer)]) == 0
    assert "nvbit   found    tracer_tool.so; not validated" in capfd.readouterr().out
    assert cli.main(["--check", "--collector", "nvbit"]) == 1


def test_without_nsys_the_way_out_is_said(monkeypatch, capfd):
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.main(["--collector", "nsys", "--", "true"]) == 2
    assert "nsys is not on the PATH" in capfd.readouterr().err


def test_a_real_export_of_nsys_is_stripped_and_still_imports(shared, tmp_path):
    from services.ingest.importers import import_trace

    (source,) = (shared / "data" / "traces" / "nsys").glob("n01*.sqlite.gz")
    path = tmp_path / "n01.sqlite"
    path.write_bytes(gzip.decompress(source.read_bytes()))
    before = import_trace([path])
    nsys.strip_private(path)
    after = import_trace([path])
    assert after.launches.duration_ns.tolist() == before.launches.duration_ns.tolist()


# --- CUPTI ----------------------------------------------------------------------------------------------------------


class FakeCupti:
    """The part of cupti-python 13.4 that is used."""

    ActivityKind = SimpleNamespace(CONCURRENT_KERNEL=10, RUNTIME=5, DRIVER=4, MEMCPY=1, MEMSET=2)

    def __init__(self, fails: str = ""):
        self.enabled = set()
        self.fails = fails
        self.waiting = []

    def get_timestamp(self):
        return time.time_ns() - 5_000_000_000

    def activity_register_callbacks(self, requested, completed):
        if self.fails:
            raise RuntimeError(self.fails)
        assert requested() == (8 << 20, 0)
        self.completed = completed

    def activity_enable(self, kind):
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.discard(kind)

    def activity_flush_all(self, _):
        self.completed(self.waiting)
        self.waiting = []

    def launch(self, number):
        now = self.get_timestamp()
        if not self.enabled:
            return
        kinds = self.ActivityKind
        self.waiting.append(
            SimpleNamespace(kind=kinds.RUNTIME, start=now, end=now + 3000, correlation_id=number, thread_id=1, cbid=211)
        )
        self.waiting.append(
            SimpleNamespace(
                kind=kinds.CONCURRENT_KERNEL, name="gemm", start=now + 9000, end=now + 14000, correlation_id=number,
                stream_id=7, grid_x=4, grid_y=2, grid_z=1, block_x=128, block_y=1, block_z=1, registers_per_thread=90,
                static_shared_memory=1024, dynamic_shared_memory=4096, graph_node_id=0, cluster_x=2, cluster_y=1,
                cluster_z=1,
            )
        )  # fmt: skip


def test_cupti_gives_kernels_with_their_cluster_on_unix_time():
    fake = FakeCupti()
    collector = CuptiCollector(fake)
    fake.launch(1)
    collector.start()
    before = time.time_ns()
    fake.launch(2)
    read = collector.stop()
    fake.launch(3)
    call, kernel = read()
    assert (kernel.name, kernel.duration_ns, kernel.correlation) == ("gemm", 5000, 2)
    assert kernel.args["cluster"] == [2, 1, 1]
    assert kernel.args["shared memory"] == 5120
    assert abs(call.start_ns - before) < 50_000_000
    assert fake.enabled == set()


def test_a_cupti_that_cannot_be_used_is_said():
    with pytest.raises(Unusable, match="CUDA driver is not found"):
        CuptiCollector(FakeCupti("CUDA driver is not found"))


def test_collectors_are_tried_in_order_and_what_is_absent_is_said(capsys):
    chosen, found = found_collectors("", find=lambda name: FakeCupti() if name == "cupti.cupti" else None)
    assert chosen is not None
    assert [(one.name, one.state) for one in found] == [("torch", "absent"), ("cupti", "used")]
    assert found[1].said == "not validated on hardware"
    chosen, found = found_collectors("dtrace")
    assert chosen is None
    assert "is no collector" in found[-1].said
    assert cli.main(["--check", "--collector", "cupti"]) == 1
    assert "cupti   absent" in capsys.readouterr().out
