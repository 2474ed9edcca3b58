"""The gateway as a destination: authenticated, bounded, each batch once, and what arrives becomes a trace."""

import time

import httpx
import pytest
from cascade_profiler import saying
from cascade_profiler.destinations import DestinationAway, DestinationRefused, Gateway, destination_of
from cascade_profiler.recorder import Recorder
from cascade_profiler.spool import Spool
from cascade_schemas.codec import encode
from cascade_schemas.events import TraceUploaded
from cascade_schemas.recording import packed_records

from tests.factories import fake_simulators
from tests.recordings import RECORDED, recorded_events, recording_started
from tests.served import TOKEN, served
from tests.unit.test_profiler_outbox import record_steps


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("home"), fake_simulators()) as running:
        yield running


def gateway(server, trace_id, token=TOKEN, rank=0):
    return Gateway(server.url, trace_id=trace_id, rank=rank, token=token)


def renamed(events, trace_id):
    return [event.model_copy(update={"trace_id": trace_id}) for event in events]


def records(events):
    return [encode(event, is_compressed=True) for event in events]


def posted(server, trace_id, batch, body, sender="one", rank=0, token=TOKEN):
    return httpx.post(
        f"{server.url}/api/recordings/{trace_id}/{rank}?batch={batch}",
        content=body,
        headers={"authorization": f"Bearer {token}", "cascade-sender": sender},
    )


def count_of(server, trace_id):
    return sum(place.topic == "traces" for place in server.engine.places([trace_id]))


def status_of(server, trace_id, wanted):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = {trace["trace_id"]: trace for trace in server.engine.traces()}.get(trace_id)
        if found is not None and found["status"] == wanted:
            return found
        time.sleep(0.05)
    raise AssertionError(f"trace {trace_id} is not {wanted}")


def test_a_recorder_on_the_gateway_makes_a_trace_that_can_be_run_meanwhile(server, tmp_path):
    trace_id = "a" * 16
    started = recording_started(trace_id=trace_id)
    recorder = Recorder(started, gateway(server, trace_id), Spool(tmp_path / "spool", 1 << 20))
    record_steps(recorder, range(3))
    status_of(server, trace_id, "importing")
    run_id = server.engine.start_run(trace_id, ["h100_sxm"], "analytic")
    record_steps(recorder, range(3, 6))
    delivery = recorder.end([], 20)
    assert (delivery.lost_records, delivery.refused) == (0, "")
    found = status_of(server, trace_id, "complete")
    assert not found["is_truncated"]
    assert found["uploaded_at_ms"] > 1_700_000_000_000
    during = server.engine.wait_run(run_id)
    after = server.engine.wait_run(server.engine.start_run(trace_id, ["h100_sxm"], "analytic"))
    assert during["state_hash"] == after["state_hash"]
    assert during["status"] == "completed"


def test_a_batch_under_a_number_that_was_taken_is_not_taken_again(server):
    trace_id = "b" * 16
    events = renamed(recorded_events(2), trace_id)
    body = packed_records(records(events[:3]), 0)
    assert posted(server, trace_id, 0, body).json() == {"taken": 3}
    before = count_of(server, trace_id)
    assert posted(server, trace_id, 0, body).json() == {"taken": 0}
    assert count_of(server, trace_id) == before
    # Another process counts for itself; what it says again changes nothing.
    assert posted(server, trace_id, 0, body, sender="two").json() == {"taken": 3}
    assert posted(server, trace_id, 1, packed_records(records(events[3:]), 0)).json() == {"taken": len(events) - 3}
    assert status_of(server, trace_id, "complete")["kernels"] == 12


def test_only_what_a_profiler_may_say_is_taken(server):
    trace_id = "c" * 16
    foreign = TraceUploaded(trace_id=trace_id, artifacts=(), name="no")
    for body, word in (
        (packed_records(records([foreign]), 0), "TraceUploaded is nothing"),
        (packed_records(records(recorded_events(1)), 0), "nothing that rank 0 of trace"),
        (packed_records(records(renamed(recorded_events(1, rank_count=2), trace_id)), 0), "nothing that rank 0"),
        (b"no stream", "not what cascade-profiler sends"),
        (packed_records([], 0), "no record"),
        (packed_records(records(renamed(recorded_events(1), trace_id)), 0)[:-200], "no record"),
    ):
        answer = posted(server, trace_id, 0, body)
        if answer.status_code == 200:
            continue  # cut off behind its first records: those are whole
        assert answer.status_code == 400, answer.text
        assert word in answer.json()["error"]
    assert posted(server, "../etc", 0, b"x").status_code in (404, 405, 422)
    assert posted(server, "NOTHEX!!", 0, b"x").status_code == 422
    assert posted(server, trace_id, -1, b"x").status_code == 422


def test_a_body_that_is_too_large_is_refused(server):
    answer = posted(server, "d" * 16, 0, b"\xff" * (3 << 20))
    assert answer.status_code == 413


def test_a_wrong_token_is_said_once_and_never_tried_again(server):
    destination = gateway(server, "e" * 16, token="not-the-token-of-this-server")
    with pytest.raises(DestinationRefused, match="token"):
        destination.send(records(renamed(recorded_events(1), "e" * 16)))
    assert count_of(server, "e" * 16) == 0


def test_a_trace_that_has_ended_takes_nothing_more(server):
    trace_id = "f" * 16
    events = records(renamed(recorded_events(1), trace_id))
    destination = gateway(server, trace_id)
    destination.send(events)
    status_of(server, trace_id, "complete")
    with pytest.raises(DestinationRefused, match="has ended"):
        destination.send(events)


def test_nobody_there_is_told_from_a_refusal():
    destination = destination_of("http://127.0.0.1:9", trace_id=RECORDED, rank=0)
    with pytest.raises(DestinationAway, match="does not answer"):
        destination.send(records(recorded_events(1)))


def test_a_server_that_goes_away_and_comes_back_loses_nothing(tmp_path):
    saying.forget()
    home = tmp_path / "home"
    trace_id = "9" * 16
    with served(home, fake_simulators()) as first:
        recorder = Recorder(
            recording_started(trace_id=trace_id), gateway(first, trace_id), Spool(tmp_path / "spool", 1 << 24)
        )
        record_steps(recorder, range(4))
        deadline = time.monotonic() + 10
        while recorder.outbox.delivery.sent_records < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
    record_steps(recorder, range(4, 9))
    time.sleep(0.5)
    assert recorder.outbox.delivery.spooled_records > 0
    with served(home, fake_simulators()) as second:
        record_steps(recorder, range(9, 12))
        delivery = recorder.end([], 20)
        assert (delivery.lost_records, delivery.refused) == (0, "")
        report = second.engine.trace_report(trace_id) if status_of(second, trace_id, "complete") else {}
    assert (len(report["steps"]), report["launches"], report["is_truncated"]) == (12, 12 * 6, False)
