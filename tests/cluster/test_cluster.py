"""The cluster on a real Kafka gives the embedded pipeline's answer, whatever is killed."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaProducer

from services.aggregator import queries
from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store
from services.ingest import admission
from tests.cluster.conftest import embedded_state_hash
from tests.factories import kineto_trace

GPUS = ("h100_sxm", "l4", "b200_sxm")


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    return kineto_trace(tmp_path_factory.mktemp("trace") / "small.json", step_count=4, layers=3)


def run_request(run_id, upload):
    return admission.run(
        run_id, upload.trace_id, GPUS, simulator="analytic", simulators=("analytic",), source_gpu="a100_sxm_80gb"
    )


@pytest.fixture(scope="module")
def embedded_hash(tmp_path_factory, trace_file):
    return embedded_state_hash(trace_file, tmp_path_factory.mktemp("embedded"), GPUS)


def test_the_cluster_gives_the_embedded_answer(cluster, trace_file, embedded_hash):
    upload = cluster.upload(trace_file)
    cluster.publish(upload, run_request("first", upload))
    end = cluster.end_of("first")
    assert end.outcome == "completed"
    assert end.state_hash == embedded_hash


def test_a_run_asked_for_before_its_trace_ends_the_same(cluster, trace_file, embedded_hash, tmp_path):
    other = kineto_trace(tmp_path / "other.json", step_count=4, layers=3)
    upload = cluster.upload(other)
    cluster.publish(run_request("early", upload))
    time.sleep(1)
    cluster.publish(upload)
    assert cluster.end_of("early").state_hash == embedded_hash


@pytest.mark.parametrize("service", ["ingest", "simworker", "aggregator"])
def test_a_killed_service_loses_nothing(cluster, trace_file, embedded_hash, service):
    """kill -9 while it works, another in its place: the run completes with the same answer."""
    upload = cluster.upload(trace_file)
    run_id = f"killed-{service}"
    cluster.publish(run_request(run_id, upload))
    time.sleep(0.2)
    cluster.kill(service)
    cluster.start(service)
    assert cluster.end_of(run_id).state_hash == embedded_hash


def test_a_poison_record_is_put_aside_with_its_reason_and_the_run_completes(cluster, trace_file, embedded_hash):
    async def send():
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
        await producer.start()
        for topic, kind in (
            ("results", "KernelsSimulated"),
            ("catalog", "TraceStarted"),
            ("work.analytic", "KernelSimulationRequested"),
        ):
            headers = [("type", kind.encode()), ("schema_version", b"1")]
            await producer.send_and_wait(topic, b"\x00 not an event", key=b"poison", headers=headers)
        await producer.stop()

    asyncio.run(send())
    upload = cluster.upload(trace_file)
    cluster.publish(run_request("poisoned", upload))
    assert cluster.end_of("poisoned").state_hash == embedded_hash
    letters = [event for event in cluster.events("dead_letters") if event is not None]
    assert {"aggregator", "simworker"} <= {letter.service for letter in letters}
    assert all("Arrow" in letter.reason or "JSON" in letter.reason or ":" in letter.reason for letter in letters)


def test_the_whole_log_delivered_again_changes_nothing(cluster, embedded_hash):
    topics = ("catalog", "runs", "results")
    cluster.publish(*[event for event in cluster.events(*topics) if event is not None])
    upload_free_run = next(event for event in cluster.events("runs") if event.run_id == "first")
    cluster.publish(upload_free_run.model_copy(update={"run_id": "again"}))
    assert cluster.end_of("again").state_hash == embedded_hash


def test_a_deleted_store_is_rebuilt_from_the_log(cluster, embedded_hash):
    expected = {e.run_id: e.state_hash for e in cluster.events("predictions") if e.type == "RunCompleted"}
    cluster.kill("aggregator")
    for file in cluster.home.glob("cascade.duckdb*"):
        file.unlink()
    cluster.start("aggregator")
    ends = len(cluster.events("results"))
    deadline = time.monotonic() + 240
    time.sleep(10)
    while time.monotonic() < deadline:
        cluster.processes["aggregator", "1"].terminate()
        cluster.processes["aggregator", "1"].wait(30)
        store = Store(cluster.home / "cascade.duckdb")
        try:
            if sum(offset for (topic, _), offset in store.positions().items() if topic == "results") >= ends:
                ended = [run["run_id"] for run in queries.runs(store) if run["status"] != "cancelled"]
                rebuilt = {run_id: state_hash(store, run_id) for run_id in ended}
                assert rebuilt == expected
                return
        finally:
            store.close()
        cluster.start("aggregator")
        time.sleep(8)
    raise AssertionError("the store was not rebuilt in time")
