"""Recordings of earlier versions are still read, and fold to the state they ended with."""

from pathlib import Path

import pytest
from cascade_schemas.codec import decode, encode
from cascade_schemas.events import RunCompleted
from cascade_schemas.recording import read_recording

from services.aggregator import queries
from services.aggregator.reactor import Aggregator
from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store

RECORDINGS = sorted((Path(__file__).parent / "runs").glob("*.cascade"))


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: path.stem)
def events(request):
    return [decode(row.record.headers, row.record.value) for row in read_recording(request.param)]


def folded(events):
    store = Store(None)
    aggregator = Aggregator(store)
    for event in events:
        aggregator.restore(event)
    store.commit(aggregator.taken_rows(), {})
    return store


def test_there_are_recordings():
    assert len(RECORDINGS) >= 2


def test_every_record_is_understood(events):
    assert None not in events


def test_encoding_again_gives_an_equal_event(events):
    for event in events:
        record = encode(event)
        again = decode(record.headers, record.value)
        assert again.model_dump() == event.model_dump()
        if hasattr(event, "rows"):
            assert again.rows.equals(event.rows)


def test_folding_gives_the_state_the_run_ended_with(events):
    (end,) = [event for event in events if isinstance(event, RunCompleted)]
    store = folded(events)
    assert state_hash(store, "golden") == end.state_hash
    report = queries.run_report(store, "golden")
    assert report["status"] == "completed"
    assert [config["gpu"] for config in report["configs"]] == ["h100_sxm", "l4", "h100_sxm:dram_gbps=6000"]
    assert all(config["kernel_time_ms"] > 0 for config in report["configs"])


def test_a_reader_that_knows_less_still_reads(events):
    """What a newer writer adds is ignored: a field more, an event type more."""
    for event in events:
        record = encode(event)
        if record.value.startswith(b"{"):
            grown = record.value[:-1] + b',"field_of_the_next_version":1}'
            assert decode(record.headers, grown).model_dump() == event.model_dump()
    assert decode({"type": "EventOfTheNextVersion", "schema_version": "2"}, b"{}") is None
