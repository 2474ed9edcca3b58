"""Simworkers scale out by replicas and by configs, and say what they do."""

import contextlib
import re
import socket
import time
import urllib.request

import pytest
from cascade_schemas.gpu import load_gpu

from services.cli import sample
from services.ingest import admission
from tests.cluster.conftest import Cluster
from tests.factories import kineto_trace

WORKERS = ("1", "2", "3", "4")


@pytest.fixture(scope="module")
def crowd(broker, tmp_path_factory):
    """Four simworkers, each with its figures on a port of its own."""
    cluster = Cluster(broker, tmp_path_factory.mktemp("crowd"))
    cluster.ports = {}
    cluster.start("ingest")
    cluster.start("aggregator")
    for instance, port in zip(WORKERS, free_ports(len(WORKERS)), strict=True):
        cluster.ports[instance] = port
        cluster.start("simworker", instance, CASCADE_OBSERVE=f"127.0.0.1:{cluster.ports[instance]}")
    deadline = time.monotonic() + 60
    while not all(is_ready(cluster, instance) for instance in WORKERS):
        assert time.monotonic() < deadline, "the workers did not get ready"
        time.sleep(0.2)
    yield cluster
    cluster.stop()


def free_ports(count):
    """All held at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def is_ready(cluster, instance):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.ports[instance]}/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def figures(cluster, instance):
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.ports[instance]}/metrics", timeout=10) as answer:
        return answer.read().decode()


def read_count(cluster, instance):
    found = re.search(
        r'cascade_records_read_total\{service="simworker",topic="work.analytic"\} (\S+)', figures(cluster, instance)
    )
    return float(found[1]) if found else 0.0


def test_one_config_shared_by_four_replicas_keeps_four_workers_busy(crowd):
    path, options = sample("opt-125m")  # 126 distinct tasks
    upload = crowd.upload(path, model=options.model)
    request = admission.run(
        "replicas", upload.trace_id, ["h100_sxm*4"], simulator="analytic", simulators=("analytic",), source_gpu=None
    )
    alone = admission.run(
        "alone", upload.trace_id, ["h100_sxm"], simulator="analytic", simulators=("analytic",), source_gpu=None
    )
    crowd.publish(upload, request, alone)
    first, second = crowd.end_of("replicas"), crowd.end_of("alone")
    assert first.outcome == second.outcome == "completed"
    work = [
        event
        for event in crowd.events("work.analytic")
        if event is not None and event.type == "KernelSimulationRequested" and event.run_id == "replicas"
    ]
    shards = {event.shard for event in work if event.config_id == load_gpu("h100_sxm").config_id}
    assert len(shards) == 4
    busy = {
        event.worker
        for event in crowd.events("results")
        if event is not None and event.type == "SimulatorStarted" and event.run_id == "replicas"
    }
    assert busy == {f"simworker-{instance}" for instance in WORKERS}


def test_more_configs_than_partitions_complete_and_every_worker_works(crowd, tmp_path):
    gpus = [f"h100_sxm:dram_gbps={2000 + 10 * n}" for n in range(200)]
    upload = crowd.upload(kineto_trace(tmp_path / "many.json", step_count=3, layers=2))
    request = admission.run(
        "many", upload.trace_id, gpus, simulator="analytic", simulators=("analytic",), source_gpu="a100_sxm_80gb"
    )
    before = {instance: read_count(crowd, instance) for instance in WORKERS}
    crowd.publish(upload, request)
    assert crowd.end_of("many").outcome == "completed"
    for instance in WORKERS:
        assert read_count(crowd, instance) > before[instance], f"worker {instance} had nothing to do"


def test_each_says_that_it_is_ready(crowd):
    for instance in WORKERS:
        for path in ("health", "ready"):
            with urllib.request.urlopen(f"http://127.0.0.1:{crowd.ports[instance]}/{path}", timeout=10) as answer:
                assert answer.status == 200
    log = (crowd.home / "simworker-1.log").read_text()
    assert re.search(r"INFO batch service=simworker topics=work\.analytic records=\d+ answers=\d+ ms=\S+ keys=", log)
