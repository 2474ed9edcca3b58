"""A job that records into Kafka: its kernels are simulated while it runs, and whoever dies meanwhile changes nothing."""

import time

import pytest
from cascade_profiler.destinations import Kafka
from cascade_schemas.codec import encode

from services.aggregator import queries
from services.ingest import admission
from services.runtime.embedded import Embedded
from services.simworker.simulators.catalog import simulators
from tests.factories import Clock, settings
from tests.recordings import RECORDED, recorded_events

GPUS = ("h100_sxm", "l4")
WAIT_S = 60


@pytest.fixture(scope="module")
def embedded_hash(tmp_path_factory):
    engine = Embedded(settings(tmp_path_factory.mktemp("embedded")), simulators(2), now_ms=Clock())
    engine.publish(recorded_events(6, rank_count=2))
    engine.pump()
    engine.request_run("run", RECORDED, GPUS)
    engine.pump()
    report = queries.run_report(engine.store, "run")
    engine.close()
    assert report["status"] == "completed"
    return report["state_hash"]


def said(cluster, topic, event_type, key):
    """Whether such an event is there for this trace or run: the broker is shared with other tests."""
    return any(event.type == event_type and event.key == key for event in cluster.events(topic) if event is not None)


def wait_for(cluster, topic, event_type, key):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if said(cluster, topic, event_type, key):
            return
        time.sleep(0.3)
    logs = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in cluster.home.glob("*.log"))
    raise AssertionError(f"no {event_type} within {WAIT_S} s\n{logs}")


def test_kernels_are_simulated_while_the_job_runs_and_killing_ingest_changes_nothing(cluster, embedded_hash):
    events = recorded_events(6, rank_count=2)
    records = [encode(event, is_compressed=True) for event in events]
    kafka = Kafka(cluster.bootstrap)
    half = len(records) // 2 + 3  # some of the second rank too: before it has begun, nobody knows when time begins
    kafka.send(records[:half])
    request = admission.run(
        "live", RECORDED, GPUS, simulator="analytic", simulators=("analytic",), source_gpu="a100_sxm_80gb"
    )
    cluster.publish(request)
    wait_for(cluster, "results", "KernelsSimulated", "live")
    assert not said(cluster, "catalog", "TraceCompleted", RECORDED)
    cluster.kill("ingest")
    kafka.send(records[half - 4 : half + 4])  # some of them for the second time
    cluster.start("ingest")
    kafka.send(records[half + 4 :])
    kafka.close()
    end = cluster.end_of("live")
    assert end.outcome == "completed"
    assert end.state_hash == embedded_hash
