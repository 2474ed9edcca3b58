"""A gateway's copy of log and store, fed with what a broker would give it."""

import random
from collections import Counter
from itertools import count
from types import SimpleNamespace

import pytest

pytest.importorskip("aiokafka", reason="NOT RUN: aiokafka is not installed; run: python3 infra/setup.py cluster")

from cascade_schemas.codec import encode
from cascade_schemas.events import KernelsSimulated

from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store
from services.runtime import replica
from services.runtime.embedded import fold
from services.runtime.eventlog import EventLog
from services.runtime.observe import Observed
from tests.factories import RUN, TRACE
from tests.unit.test_aggregator import Bench, whole_run


def said_of_a_run():
    """Everything of a run, results in records of one row, and the state that it ends in."""
    bench = Bench()
    events = whole_run()
    bench.tell(*events)
    single = []
    for event in events:
        if isinstance(event, KernelsSimulated):
            rows = [event.rows.slice(row, 1) for row in range(event.rows.num_rows)]
            single += [event.model_copy(update={"rows": row}) for row in rows]
        else:
            single.append(event)
    return single + bench.said, state_hash(bench.store, RUN)


EVENTS, HASH = said_of_a_run()


def kafka_records(events):
    offsets = Counter()
    for event in events:
        record = encode(event, is_compressed=True)
        offset = offsets[record.topic]
        offsets[record.topic] += 1
        yield SimpleNamespace(
            topic=record.topic, partition=0, offset=offset, timestamp=1_000, key=record.key.encode(),
            headers=tuple((name, text.encode()) for name, text in record.headers.items()), value=record.value,
        )  # fmt: skip


class Gateway:
    """A Replica without a broker: what it would follow is handed to it."""

    def __init__(self, folder):
        self.mirror = replica.Replica.__new__(replica.Replica)
        self.mirror.log = EventLog(folder / "events.sqlite")
        self.mirror.store = Store(None)
        self.mirror._observed = Observed("gateway")
        times = count(0, 1_000)
        self.mirror.now_ms = lambda: next(times)
        self.heard = []
        self.mirror.listeners = [self.heard.extend]
        self.start()

    def start(self):
        (self.follower,) = self.mirror._own_services({})

    def append(self, records):
        self.mirror._append(records)

    def fold(self):
        return self.follower.step()

    def fold_all(self):
        while self.fold():
            pass


@pytest.mark.parametrize("seed", range(12))
def test_batches_restarts_and_what_was_too_much_to_keep_change_nothing(seed, tmp_path, monkeypatch):
    chance = random.Random(seed)
    monkeypatch.setattr(replica, "_PENDING_LIMIT", chance.choice([3, 20, 4096]))
    monkeypatch.setattr(replica, "_RECORDS_PER_FOLD", chance.choice([1, 4, 2048]))
    gateway = Gateway(tmp_path)
    waiting = list(kafka_records(EVENTS))
    while waiting:
        size = chance.randint(1, 9)
        gateway.append(waiting[:size])
        waiting = waiting[size:]
        for _ in range(chance.randint(0, 2)):
            gateway.fold()
        if chance.random() < 0.1:
            gateway.start()
    gateway.fold_all()
    assert state_hash(gateway.mirror.store, RUN) == HASH
    ends = {topic: gateway.mirror.log.end(topic) for topic in ("catalog", "runs", "results", "predictions")}
    assert {topic: gateway.follower._shell.next_offset(topic) for topic in ends} == ends
    replayed = fold(gateway.mirror.log.read_keys([RUN, TRACE]))
    assert state_hash(replayed, RUN) == HASH


def test_each_record_is_mirrored_as_it_came_and_said_once(tmp_path):
    gateway = Gateway(tmp_path)
    records = list(kafka_records(EVENTS))
    gateway.append(records)
    for topic in ("catalog", "runs", "results", "predictions"):
        mirrored = gateway.mirror.log.read(topic, 0, 1_000)
        assert [(one.record.key.encode(), one.record.value) for one in mirrored] == [
            (record.key, record.value) for record in records if record.topic == topic
        ]
    results = [event for event in gateway.heard if isinstance(event, KernelsSimulated)]
    assert [event.rows.num_rows for event in results] == [3, 3]  # one of each config


def test_what_cannot_be_read_and_unknown_types_are_not_mirrored(tmp_path):
    gateway = Gateway(tmp_path)
    records = [record for record in kafka_records(EVENTS) if record.topic == "results"]
    records[1].value = records[1].value[:100]
    records[2].headers = (("type", b"KernelsImagined"),)
    gateway.append(records)
    assert gateway.mirror.log.end("results") == len(records) - 2
    assert gateway.mirror._mirrored("results", 0) == len(records)


def test_the_fold_never_goes_beyond_the_log(tmp_path, monkeypatch):
    """A store that knew more than its log would skip what comes again after a crash."""
    gateway = Gateway(tmp_path)
    records = list(kafka_records(EVENTS))

    def refuse(*_, **__):
        assert not gateway.fold()
        raise OSError("the disk is full")

    monkeypatch.setattr(gateway.mirror.log, "append", refuse)
    with pytest.raises(OSError, match="full"):
        gateway.append(records)
    assert not gateway.fold()
