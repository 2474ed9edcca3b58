"""The gateway of a cluster: everything asked over REST, nothing worked here, and its copy lost and made again."""

import os
import shutil
import signal
import subprocess
import sys
import time

import duckdb
import pytest

from services.runtime.engine import ImportOptions, Refused
from services.runtime.remote import RemoteEngine, read_server_file
from tests.cluster.conftest import ROOT, free_port
from tests.cluster.test_cluster import GPUS, embedded_hash, trace_file  # noqa: F401 - fixtures
from tests.factories import kineto_trace

START_LIMIT_S = 60


class Gateway:
    """`cascade serve --kafka` on the cluster's home."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.process = None

    def start(self):
        own = {"CASCADE_HOME": str(self.cluster.home), "CASCADE_INSTANCE": "1"}
        environ = {**os.environ, **own, **self.cluster.environ}
        log = (self.cluster.home / "gateway.log").open("ab")
        command = [sys.executable, "-c", "from services.start import main; raise SystemExit(main())"]
        serve = ["serve", "--kafka", self.cluster.bootstrap, "--port", str(free_port())]
        self.process = subprocess.Popen(command + serve, cwd=ROOT, env=environ, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while (server := read_server_file(self.cluster.home)) is None or server.pid != self.process.pid:
            assert self.process.poll() is None, (self.cluster.home / "gateway.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the gateway did not start"
            time.sleep(0.1)
        return RemoteEngine(server)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture(scope="module")
def gateway(cluster):
    gateway = Gateway(cluster)
    yield gateway
    gateway.stop()


def until(is_true, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_what_is_asked_of_the_gateway_is_done_by_the_cluster(gateway, trace_file, embedded_hash):  # noqa: F811
    engine = gateway.start()
    trace = engine.import_files([trace_file], ImportOptions(name="small"))
    assert trace["status"] == "complete"
    run_id = engine.start_run(trace["trace_id"], GPUS, "analytic")
    report = engine.wait_run(run_id)
    assert report["status"] == "completed"
    assert report["state_hash"] == embedded_hash
    assert engine.verify_run(run_id)["equal"]  # its own fold of the mirrored events says the same
    what_if = engine.what_if(trace["trace_id"], "h100_sxm")
    assert what_if["kernel_time_ms"] == next(c for c in report["configs"] if c["gpu"] == "h100_sxm")["kernel_time_ms"]
    assert engine.sql("select count(*) as n from kernels", 10).rows[0]["n"] > 0
    kinds = {event["type"] for event in engine.events(run_id)}
    assert {"TraceStarted", "RunRequested", "KernelsSimulated", "StepsPredicted", "RunCompleted"} <= kinds
    with pytest.raises(Refused, match="no trace 'nothing'"):
        engine.start_run("nothing", GPUS, "analytic")


def test_a_killed_gateway_goes_on_and_a_lost_copy_is_made_again(gateway, cluster, tmp_path, embedded_hash):  # noqa: F811
    engine = gateway.start() if gateway.process is None else RemoteEngine(read_server_file(cluster.home))
    other = kineto_trace(tmp_path / "another.json", step_count=4, layers=3)
    trace = engine.import_files([other], ImportOptions(name="another"))
    run_id = engine.start_run(trace["trace_id"], GPUS, "analytic")
    gateway.kill()  # with the run under way: the cluster needs no gateway
    assert cluster.end_of(run_id).state_hash == embedded_hash
    engine = gateway.start()
    assert engine.wait_run(run_id)["state_hash"] == embedded_hash
    before = sorted((run["run_id"], run["status"], run["state_hash"]) for run in engine.runs())
    gateway.stop()
    shutil.rmtree(cluster.home / "gateway-1")
    engine = gateway.start()
    until(lambda: sorted((r["run_id"], r["status"], r["state_hash"]) for r in engine.runs()) == before)
    assert engine.verify_run(run_id)["equal"]


def test_a_gateway_whose_copy_stands_still_ends_and_says_so(gateway, cluster, tmp_path):
    if gateway.process is None:
        gateway.start()
    gateway.stop()
    with duckdb.connect(cluster.home / "gateway-1" / "cascade.duckdb") as spoilt:
        spoilt.execute("alter table trace_steps drop column q_lengths")
    engine = gateway.start()
    with pytest.raises(Refused, match="does not answer"):
        engine.import_files([kineto_trace(tmp_path / "third.json", step_count=2)], ImportOptions(name="third"))
    assert gateway.process.wait(60) == 1
    said = (cluster.home / "gateway.log").read_text()
    assert "service_failed service=follower" in said
    assert said.rstrip().endswith("the gateway's copy of the log stands still, so it ends; start it again")
    shutil.rmtree(cluster.home / "gateway-1")
    engine = gateway.start()
    until(lambda: any(trace["name"] == "third" for trace in engine.traces()))


def test_a_gateway_without_a_broker_says_so(tmp_path):
    environ = {**os.environ, "CASCADE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", "from services.start import main; raise SystemExit(main())"]
    serve = ["serve", "--kafka", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(
        command + serve, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "is the cluster started (make cluster)?" in done.stderr
