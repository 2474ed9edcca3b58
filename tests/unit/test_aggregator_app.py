"""The aggregator's shell around Faust, where a broker does not do what it should."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("faust", reason="NOT RUN: faust is not installed; run: python3 infra/setup.py cluster")

from faust.types import TP

from services.aggregator import app, consumer


class BeganAnew(Exception):
    pass


class Consumer:
    """Faust's, with the partitions it was dealt; `ends` are what fetches said, `asked_ends` what the broker would."""

    def __init__(self, *dealt, ends=(), asked_ends=()):
        self.dealt, self.asked = dealt, 0
        self.ends, self.asked_ends = dict(ends), dict(asked_ends)
        self.sought = []

    def assignment(self):
        self.asked += 1
        return [TP(topic, 0) for topic in self.dealt]

    def highwater(self, part):
        return self.ends.get(part.topic)

    async def highwaters(self, *parts):
        return {part: self.asked_ends.get(part.topic, 0) for part in parts}

    async def seek_wait(self, offsets):
        self.sought.append({part.topic: offset for part, offset in offsets.items()})


@pytest.fixture
def beating(monkeypatch):
    monkeypatch.setattr(app, "_WITHOUT_PARTITIONS_S", 0.05)
    monkeypatch.setattr(app, "_BEAT_S", 0.01)
    monkeypatch.setattr(app, "_MISSED_S", 0.03)

    def execv(program, arguments):
        raise BeganAnew

    monkeypatch.setattr(app.os, "execv", execv)

    def beat(consumer, position=lambda: 0, is_storing=False):
        active = app.Active.__new__(app.Active)
        active._settings = SimpleNamespace(session_timeout_ms=10)
        active._figures = SimpleNamespace(seen=lambda *_, **__: None, lag=lambda *_: None)
        active._is_full, active.consumer = False, consumer
        active._awaited, active._lock = {}, asyncio.Lock()
        active.position = lambda topic, partition: position()

        async def watched():
            if is_storing:
                await active._lock.acquire()
            await asyncio.wait_for(active._beat(), 0.5)

        asyncio.run(watched())

    return beat


@pytest.mark.parametrize("consumer", [None, Consumer(), Consumer("predictions")])
def test_without_partitions_it_begins_anew(beating, consumer):
    with pytest.raises(BeganAnew):
        beating(consumer)


def test_with_partitions_it_goes_on(beating):
    consumer = Consumer("results")
    with pytest.raises(TimeoutError):
        beating(consumer)
    assert consumer.asked > 10


@pytest.mark.parametrize(
    "consumer",
    [Consumer("results", ends={"results": 7}), Consumer("results", asked_ends={"results": 7})],
    ids=["fetched", "not even fetched"],
)
def test_records_that_the_broker_has_and_that_do_not_come_are_sought_and_then_it_begins_anew(beating, consumer):
    with pytest.raises(BeganAnew):
        beating(consumer, position=lambda: 5)
    assert consumer.sought == [{"results": 5}] * app._TIMES_READ_AGAIN


@pytest.mark.parametrize("end", [5, 4, 0])
def test_nothing_is_sought_where_the_broker_has_no_more(beating, end):
    consumer = Consumer("results", "runs", ends={"results": end, "runs": end})
    with pytest.raises(TimeoutError):
        beating(consumer, position=lambda: 5)
    assert consumer.sought == []


def test_nothing_is_sought_while_records_come(beating):
    consumer = Consumer("results", ends={"results": 10_000})
    offsets = iter(range(10_000))
    with pytest.raises(TimeoutError):
        beating(consumer, position=lambda: next(offsets))
    assert consumer.sought == []


def test_nothing_is_sought_while_a_batch_is_stored(beating):
    consumer = Consumer("results", ends={"results": 7})
    with pytest.raises(TimeoutError):
        beating(consumer, position=lambda: 5, is_storing=True)
    assert consumer.sought == []


def record(offset, partition=0):
    return SimpleNamespace(
        topic="results", partition=partition, offset=offset, timestamp=7, timestamp_type=0, headers=(), key=b"run",
        value=b"x", checksum=None, serialized_key_size=3, serialized_value_size=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("came", "due"),
    [
        ([5, 6, 7], [5, 6, 7]),
        ([7, 5, 6], [5, 6, 7]),
        ([3, 4, 5, 5, 6], [5, 6]),
        ([5, 7, 8], [5]),
        ([6, 7], []),
    ],
    ids=["next", "out of order", "read twice", "a gap", "buffered before a seek"],
)
def test_only_what_comes_next_is_delivered(came, due):
    active = app.Active.__new__(app.Active)
    active.position = lambda topic, partition: 5 if partition == 0 else 0
    records = [record(offset) for offset in came] + [record(0, partition=1)]
    assert [one.offset for one in active._due(records) if one.partition == 0] == due
    assert [one.offset for one in active._due(records) if one.partition == 1] == [0]


def test_a_message_stands_for_many_records_of_a_partition(monkeypatch):
    fetched = {TP("results", 0): [record(n) for n in range(150)], TP("results", 1): [record(9, 1)]}

    async def wait_next_records(self, _seconds):
        return fetched, set(fetched)

    monkeypatch.setattr(consumer.Consumer, "_wait_next_records", wait_next_records)
    mine = consumer.BatchConsumer.__new__(consumer.BatchConsumer)
    mine.app = SimpleNamespace(consumer_generation_id=3)
    pieces, parts = asyncio.run(mine._wait_next_records(1.0))
    messages = {part: [mine._to_message(part, piece) for piece in of_part] for part, of_part in pieces.items()}
    assert parts == set(fetched)
    assert [[m.offset for m in of_part] for of_part in messages.values()] == [[63, 127, 149], [9]]
    assert {part: [r for m in of_part for r in m.records] for part, of_part in messages.items()} == fetched
    assert {m.generation_id for of_part in messages.values() for m in of_part} == {3}
