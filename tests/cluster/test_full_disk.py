"""A full disk under the aggregator: it says so, stores nothing by halves, and goes on by itself when there is room."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store
from services.ingest import admission
from tests.cluster.conftest import ROOT, Cluster, embedded_state_hash
from tests.cluster.test_scale import free_ports
from tests.factories import kineto_trace

GPUS = tuple(f"h100_sxm:dram_gbps={2000 + 10 * number}" for number in range(40))
SMALL_BYTES = 3 << 20
RUNS_LIMIT = 20
WAIT_S = 120
UNLIMITED = resource.RLIM_INFINITY


class SmallDisk:
    """A file system of SMALL_BYTES in a namespace of its own, so that nobody needs to be root for it."""

    SCRIPT = """
        mount -t tmpfs -o size="$1" tmpfs "$2" || exit 9
        "$3" -m services.aggregator.app &
        read line && mount -o remount,size=1g "$2"
        read line; kill -TERM $!; wait $!; cp "$2"/cascade.duckdb* "$4"
    """

    @staticmethod
    def is_possible(folder):
        command = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(folder)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False

    def start(self, home, environ, log):
        self.kept = home.with_name("kept")
        self.kept.mkdir()
        words = [str(SMALL_BYTES), str(home), sys.executable, str(self.kept)]
        self.process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", self.SCRIPT, "sh", *words],
            cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip

    def _say(self):
        self.process.stdin.write("on\n")
        self.process.stdin.flush()

    def make_room(self):
        self._say()

    def stop(self):
        self._say()
        self.process.wait(60)
        return self.kept / "cascade.duckdb"


class SmallFiles:
    """A limit to the size of a file: the same refusal by the operating system, possible everywhere."""

    @staticmethod
    def is_possible(folder):
        return True

    def start(self, home, environ, log):
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.aggregator.app"],
            cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (SMALL_BYTES, UNLIMITED))

    def make_room(self):
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        return self.home / "cascade.duckdb"


def answer(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as said:
            return said.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def until(is_true, what):
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@pytest.mark.parametrize("disk", [SmallDisk(), SmallFiles()], ids=["disk", "file"])
def test_a_full_disk_is_said_and_when_there_is_room_nothing_is_lost_or_doubled(broker, tmp_path, disk):
    if not disk.is_possible(tmp_path):
        pytest.skip("this machine lets nobody make a file system in a namespace of his own")
    path = kineto_trace(tmp_path / "small.json", step_count=4, layers=3)
    expected = embedded_state_hash(path, tmp_path / "embedded", GPUS)
    home, own = tmp_path / "home", tmp_path / "aggregator"
    home.mkdir()
    own.mkdir()
    cluster = Cluster(broker, home)
    (port,) = free_ports(1)
    log_path = home / "aggregator-1.log"
    try:
        cluster.start("ingest")
        cluster.start("simworker")
        environ = {
            **os.environ,
            "CASCADE_KAFKA": broker,
            "CASCADE_HOME": str(own),
            "CASCADE_INSTANCE": "1",
            "CASCADE_SESSION_TIMEOUT_MS": "10000",
            "CASCADE_OBSERVE": f"127.0.0.1:{port}",
        }
        with log_path.open("ab") as log:
            disk.start(own, environ, log)
        until(lambda: answer(port, "ready") == 200 or "cannot_store" in log_path.read_text(), "it did not start")
        upload = cluster.upload(path)
        cluster.publish(upload)
        runs = []
        while "cannot_store" not in log_path.read_text():
            assert len(runs) < RUNS_LIMIT, "the disk did not get full"
            runs.append(f"full-{type(disk).__name__}-{len(runs)}")
            cluster.publish(
                admission.run(
                    runs[-1], upload.trace_id, GPUS, simulator="analytic", simulators=("analytic",),
                    source_gpu="a100_sxm_80gb",
                )
            )  # fmt: skip
            time.sleep(2)
        assert "is full" in log_path.read_text()
        assert "make 64 MiB free" in log_path.read_text()
        until(lambda: answer(port, "ready") == 503 or isinstance(disk, SmallFiles), "it says that it is ready")
        disk.make_room()
        for run_id in runs:
            assert cluster.end_of(run_id).state_hash == expected
        until(lambda: answer(port, "ready") == 200, "it did not get ready again")
        store = Store(disk.stop())
        try:
            assert {run_id: state_hash(store, run_id) for run_id in runs} == dict.fromkeys(runs, expected)
            doubled = "select count(*) as n from (from launches group by trace_id, rank, seq having count(*) > 1)"
            assert store.query(doubled.replace("(from", "(select 1 from")) == [{"n": 0}]
        finally:
            store.close()
    finally:
        # With all that its shell began: an aggregator left behind would take partitions from the next tests'.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(disk.process.pid, signal.SIGKILL)
        disk.process.wait(30)
        cluster.stop()
