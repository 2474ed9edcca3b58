"""A real Kafka broker for the session, and services as real processes on it."""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.aggregator import queries
from services.ingest import admission
from services.runtime.artifacts import ArtifactStore
from services.runtime.cluster import broker_of
from services.runtime.embedded import Embedded
from services.runtime.kafka import Publisher, event_of, read_to_end
from services.simworker.simulators.catalog import simulators
from tests.factories import Clock, settings

ROOT = Path(__file__).resolve().parents[2]
RUN_LIMIT_S = 120


def load_broker():
    spec = importlib.util.spec_from_file_location("broker", ROOT / "infra" / "kafka" / "broker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port():
    """A port whose successor is free too: the controller's."""
    for port in range(21000, 29000, 2):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise RuntimeError("no two free ports")


@pytest.fixture(scope="session")
def kafka():
    """The broker's starter, its jars installed."""
    is_strict = os.environ.get("CI") == "true" or os.geteuid() == 0
    for tool, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            sentence = f"NOT RUN: {tool} is missing; run: sudo apt-get install {package}"
            (pytest.fail if is_strict else pytest.skip)(sentence)
    kafka = load_broker()
    kafka.install()
    return kafka


@pytest.fixture(scope="session")
def broker(kafka, tmp_path_factory):
    data = tmp_path_factory.mktemp("kafka")
    address = kafka.start(data, free_port())
    yield address
    kafka.stop(data)


class Cluster:
    """The services of one cluster home; every process is started and ended by id."""

    def __init__(self, bootstrap, home, environ=None):
        """environ: what its programs are told beside where Kafka is, such as how to be let in."""
        self.bootstrap, self.home, self.environ = bootstrap, home, environ or {}
        self.processes = {}

    @property
    def broker(self):
        return broker_of({"CASCADE_KAFKA": self.bootstrap, **self.environ})

    def start(self, service, instance="1", **more):
        environ = {
            **os.environ,
            "CASCADE_KAFKA": self.bootstrap,
            "CASCADE_HOME": str(self.home),
            "CASCADE_INSTANCE": instance,
            "CASCADE_SESSION_TIMEOUT_MS": "3000",
            **self.environ,
            **more,
        }
        log = (self.home / f"{service}-{instance}.log").open("ab")
        command = [sys.executable, "-m", f"services.{service}.app"]
        self.processes[service, instance] = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )

    def kill(self, service, instance="1"):
        process = self.processes.pop((service, instance))
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def stop(self):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
        self.processes.clear()

    @contextlib.contextmanager
    def working(self):
        """With one of each service that a run needs."""
        try:
            for service in ("ingest", "simworker", "aggregator"):
                self.start(service)
            yield self
        finally:
            self.stop()

    def publish(self, *events):
        async def send():
            publisher = Publisher(self.broker)
            await publisher.start()
            try:
                await publisher.publish(events)
            finally:
                await publisher.stop()

        asyncio.run(send())

    def events(self, *topics):
        async def read():
            return [event_of(record, "test") async for record in read_to_end(self.broker, topics)]

        return asyncio.run(read())

    def upload(self, path, **options):
        with path.open("rb") as body:
            ref = ArtifactStore(self.home / "artifacts").put(body, path.name)
        return admission.upload([ref], name=path.stem, **({"model": None, "source_gpu": None} | options))

    def end_of(self, run_id):
        """The run's end, waited for."""
        deadline = time.monotonic() + RUN_LIMIT_S
        while time.monotonic() < deadline:
            ends = [
                event
                for event in self.events("predictions")
                if event.type in ("RunCompleted", "RunFailed") and event.run_id == run_id
            ]
            if ends:
                assert len({end.model_dump_json() for end in ends}) == 1
                return ends[0]
            time.sleep(0.3)
        logs = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in self.home.glob("*.log"))
        raise AssertionError(f"run {run_id} did not end within {RUN_LIMIT_S} s\n{logs}")


@pytest.fixture(scope="module")
def cluster(broker, tmp_path_factory):
    with Cluster(broker, tmp_path_factory.mktemp("cluster")).working() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def compiled():
    """Where all homes keep the SASS simulator in machine code, which takes a core's minute to make."""
    folder = ROOT / "build" / "numba"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def embedded_state_hash(trace_file: Path, home: Path, gpus: Sequence[str]) -> str:
    """What a run of this trace on these GPUs ends with where one process does it all."""
    engine = Embedded(settings(home), simulators(2), now_ms=Clock())
    upload = admission.upload([engine.store_artifact(trace_file)], name="small", model=None, source_gpu=None)
    engine.upload(upload)
    engine.pump()
    engine.request_run("run", upload.trace_id, gpus)
    engine.pump()
    report = queries.run_report(engine.store, "run")
    engine.close()
    return str(report["state_hash"])
