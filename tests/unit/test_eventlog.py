import threading

import pytest
from cascade_schemas.codec import Record

from services.runtime.eventlog import EventLog


def record(topic="runs", key="k", value=b"v", event_type="RunCancelled"):
    return Record(topic, key, {"type": event_type, "schema_version": "1"}, value)


@pytest.fixture
def log(tmp_path):
    log = EventLog(tmp_path / "log.sqlite")
    yield log
    log.close()


def test_records_are_read_back_in_order_from_any_offset(log):
    log.append([record(value=bytes([n])) for n in range(5)], timestamp_ms=1)
    assert [stored.record.value for stored in log.read("runs", 2, 10)] == [b"\x02", b"\x03", b"\x04"]
    assert [stored.offset for stored in log.read("runs", 0, 2)] == [0, 1]


def test_offsets_count_per_topic(log):
    log.append([record("runs"), record("results"), record("runs")], timestamp_ms=1)
    assert (log.end("runs"), log.end("results"), log.end("catalog")) == (2, 1, 0)


def test_a_reopened_log_goes_on_where_it_ended(tmp_path):
    first = EventLog(tmp_path / "log.sqlite")
    first.append([record()], timestamp_ms=1, commit=("ingest", {"runs": 1}))
    first.close()
    second = EventLog(tmp_path / "log.sqlite")
    second.append([record(value=b"w")], timestamp_ms=2)
    assert [stored.record.value for stored in second.read("runs", 0, 9)] == [b"v", b"w"]
    assert second.committed("ingest", "runs") == 1
    second.close()


def test_answers_and_commit_are_one(log):
    class Broken(list):
        def __iter__(self):
            yield record()
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        log.append(Broken(), timestamp_ms=1, commit=("ingest", {"runs": 7}))
    assert log.end("runs") == 0
    assert log.committed("ingest", "runs") == 0
    assert log.read("runs", 0, 9) == []


def test_types_narrow_a_read(log):
    log.append([record(event_type="RunRequested"), record(event_type="RunCancelled")], timestamp_ms=1)
    assert [stored.offset for stored in log.read("runs", 0, 9, types=("RunCancelled",))] == [1]


def test_keys_are_read_in_replay_order(log):
    log.append([record("results", "run", b"3")], timestamp_ms=5)
    log.append([record("runs", "run", b"2"), record("catalog", "trace", b"1")], timestamp_ms=5)
    log.append([record("uploads", "trace", b"0"), record("runs", "other")], timestamp_ms=4)
    assert [s.record.value for s in log.read_keys(["run", "trace"])] == [b"0", b"1", b"2", b"3"]


def test_a_waiter_wakes_when_something_is_appended(log):
    seen = log.wait(0, 0.0)
    woken = []
    thread = threading.Thread(target=lambda: woken.append(log.wait(seen, 10)))
    thread.start()
    log.append([record()], timestamp_ms=1)
    thread.join(10)
    assert woken == [seen + 1]


def test_two_writers_lose_nothing(log):
    def write(key):
        for _ in range(100):
            log.append([record(key=key)], timestamp_ms=1)

    threads = [threading.Thread(target=write, args=(key,)) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = log.read("runs", 0, 1000)
    assert [s.offset for s in stored] == list(range(200))


def test_records_of_a_mirror_keep_their_own_times(log):
    log.append([record("runs", "a"), record("runs", "b")], timestamp_ms=[7, 5], commit=("mirror", {"runs/0": 2}))
    assert [stored.timestamp_ms for stored in log.read("runs", 0, 9)] == [7, 5]
    with pytest.raises(ValueError):
        log.append([record("runs", "c")], timestamp_ms=[1, 2])
    assert log.end("runs") == 2
