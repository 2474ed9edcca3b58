"""A job's recording through Kafka: what the SDK sends, what ingest follows, and what Kafka's client does with the same records."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from cascade_profiler.destinations import Kafka
from cascade_profiler.recorder import Recorder, StepFacts
from cascade_schemas.codec import Record, decode
from cascade_schemas.events import AnyEvent, RecordingStarted

from services.ingest.live import LiveIngest
from services.runtime.kafka import (
    BATCH_BYTES,
    RECORD_BYTES_LIMIT,
    Broker,
    Outgoing,
    Publisher,
    TopicSpec,
    ensure_topics,
    outgoing,
    read_to_end,
)
from tests.bench.profiler import LAUNCHES_PER_STEP, _step_rows
from tests.cluster.conftest import Cluster

REPEATS = 3
STEPS = 600
WAIT_S = 300.0
_RECORDS_TOGETHER = 64


class _Kept:
    """A destination that keeps what is sent."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def send(self, records: Sequence[Record]) -> None:
        self.records.extend(records)

    def close(self) -> None:
        pass


def recording(trace_id: str) -> list[Record]:
    """What the SDK says of a decode phase of STEPS steps, as records."""
    kept = _Kept()
    started = RecordingStarted(
        trace_id=trace_id, rank=0, rank_count=1, name="bench", provenance="measured", tool="bench", origin_unix_ns=1
    )
    recorder = Recorder(started, kept, None, memory_bytes_limit=1 << 30, heartbeat_s=1e9)
    rows = _step_rows()
    for step in range(STEPS):
        recorder.step(StepFacts(step, step * 10_000_000, 9_000_000, (0,), (1,), (100 + step,), (100,)), rows)
    recorder.end([], 600.0)
    return kept.records


class _Times(NamedTuple):
    """Seconds by the clock, and of the work of the one process that is measured: other work on the machine is in the
    first alone.
    """

    wall_s: float
    cpu_s: float


def follow_recordings(cluster: Cluster) -> None:
    """Raw client and ingest in turn, on equal records; medians."""
    cluster.start("ingest", CASCADE_SESSION_TIMEOUT_MS="60000")
    _follow(cluster, _trace_id(0), recording(_trace_id(0)))  # what is loaded once is no part of a rate
    produced, consumed, echoed, sent, followed, live = [], [], [], [], [], []
    for number in range(1, REPEATS + 1):
        records = recording(_trace_id(2 * number))
        raw = asyncio.run(_raw_client(cluster.bootstrap, f"raw-{number}", records))
        produced.append(raw[0])
        consumed.append(raw[1])
        echoed.append(asyncio.run(_echo(cluster.bootstrap, f"raw-{number}", len(records), _answers(records))))
        sent.append(_sent(cluster, records))
        followed.append(_follow(cluster, _trace_id(2 * number)))
        live.append(_live(cluster, _trace_id(2 * number + 1)))
    print(
        f"one recording: {len(records)} records, {sum(len(one.value) for one in records) / 1e6:.1f} MB,"
        f" {STEPS * LAUNCHES_PER_STEP} launches; medians of {REPEATS}: by the clock, and per second of the program's work\n"
        f"aiokafka alone, producer: {_rates(len(records), produced)}\n"
        f"SDK's Kafka destination:  {_rates(len(records), sent)}\n"
        f"aiokafka alone, consumer: {_rates(len(records), consumed)}\n"
        f"consumer that says ingest's answers, made beforehand: {_rates(len(records), echoed)}: {_shares(consumed, echoed)}:"
        " what is left to an ingest that finds out nothing\n"
        f"ingest, from a backlog:   {_rates(len(records), followed)}: {_shares(consumed, followed)} (goal 50 %)\n"
        f"SDK -> Kafka -> ingest:   {STEPS * LAUNCHES_PER_STEP / statistics.median(live) / 1e3:.0f} k launches/s from the"
        " first record to the end of the trace in the catalog, all at once",
        flush=True,
    )


def _trace_id(number: int) -> str:
    return f"{number:016x}"


def _rates(count: int, times: Sequence[_Times]) -> str:
    wall_s, cpu_s = (statistics.median(column) for column in zip(*times, strict=True))
    launches = STEPS * LAUNCHES_PER_STEP / 1e3
    return (
        f"{count / wall_s:.0f} records/s, {launches / wall_s:.0f} k launches/s; {launches / cpu_s:.0f} k per CPU second"
    )


def _shares(alone: Sequence[_Times], own: Sequence[_Times]) -> str:
    return f"{_ratio(alone, own, 0):.1%} of the consumer alone by the clock, {_ratio(alone, own, 1):.1%} by work"


def _ratio(alone: Sequence[_Times], own: Sequence[_Times], which: int) -> float:
    return statistics.median(one[which] / other[which] for one, other in zip(alone, own, strict=True))


async def _raw_client(bootstrap: str, topic: str, records: Sequence[Record]) -> tuple[_Times, _Times]:
    """To produce and to consume the records, into and from a topic of their own."""
    await ensure_topics(Broker(bootstrap), [TopicSpec(topic, 8, -1)])
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        max_request_size=RECORD_BYTES_LIMIT,
        max_batch_size=BATCH_BYTES,
        linger_ms=2,
    )
    await producer.start()
    began = _now()
    sent = [
        await producer.send(
            topic, record.value, record.key.encode(), headers=[(k, v.encode()) for k, v in record.headers.items()]
        )
        for record in records
    ]
    await asyncio.gather(*sent)
    produced = _since(began)
    await producer.stop()
    consumer = _consumer(bootstrap, topic)
    await consumer.start()
    began, count = _now(), 0
    while count < len(records):
        count += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
    consumed = _since(began)
    await consumer.stop()
    return produced, consumed


def _answers(records: Sequence[Record]) -> list[Outgoing]:
    """What ingest says of a recording, ready to be sent."""
    live = LiveIngest()
    said: list[AnyEvent] = []
    for first in range(0, len(records), _RECORDS_TOGETHER):
        for record in records[first : first + _RECORDS_TOGETHER]:
            event = decode(record.headers, record.value)
            assert event is not None
            said += live.react(event)
        said += live.settle()
    return [outgoing(event) for event in said]


async def _echo(bootstrap: str, topic: str, count: int, answers: Sequence[Outgoing]) -> _Times:
    """To consume so many records and meanwhile to send answers that need no work any more, in step with them."""
    into = f"{topic}-answers"
    await ensure_topics(Broker(bootstrap), [TopicSpec(into, 8, -1)])
    consumer, publisher = _consumer(bootstrap, topic), Publisher(Broker(bootstrap))
    await publisher.start()
    await consumer.start()
    own = [answer._replace(topic=into) for answer in answers]
    sending: list[asyncio.Task[None]] = []
    began, heard, said = _now(), 0, 0
    while heard < count:
        heard += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
        first, said = said, len(own) * heard // count
        sending.append(asyncio.create_task(publisher.send(own[first:said])))
    await asyncio.gather(*sending)
    taken = _since(began)
    await consumer.stop()
    await publisher.stop()
    return taken


def _consumer(bootstrap: str, topic: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=RECORD_BYTES_LIMIT,
    )


def _now() -> _Times:
    return _Times(time.perf_counter(), time.process_time())


def _since(began: _Times) -> _Times:
    return _Times(*(now - then for now, then in zip(_now(), began, strict=True)))


def _sent(cluster: Cluster, records: Sequence[Record]) -> _Times:
    """The SDK's sending; ingest, which would follow at once, is stopped until all of it waits in the broker."""
    cluster.processes["ingest", "1"].send_signal(signal.SIGSTOP)
    began = _now()
    kafka = Kafka(cluster.bootstrap)
    kafka.send(records)
    kafka.close()
    return _since(began)


def _follow(cluster: Cluster, trace_id: str, records: Sequence[Record] = ()) -> _Times:
    """Ingest's following of a recording that waits for it, or is sent now."""
    if records:
        kafka = Kafka(cluster.bootstrap)
        kafka.send(records)
        kafka.close()
    ingest = cluster.processes["ingest", "1"]
    cpu = psutil.Process(ingest.pid).cpu_times()
    began_unix_s = time.time()
    ingest.send_signal(signal.SIGCONT)
    wall_s = _ended_unix_s(cluster, trace_id) - began_unix_s
    after = psutil.Process(ingest.pid).cpu_times()
    return _Times(wall_s, after.user + after.system - cpu.user - cpu.system)


def _live(cluster: Cluster, trace_id: str) -> float:
    """Seconds from the first record that the SDK makes to the end of the trace in the catalog."""
    began_unix_s = time.time()
    started = RecordingStarted(
        trace_id=trace_id, rank=0, rank_count=1, name="bench", provenance="measured", tool="bench", origin_unix_ns=1
    )
    recorder = Recorder(started, Kafka(cluster.bootstrap), None, memory_bytes_limit=1 << 30, heartbeat_s=1e9)
    rows = _step_rows()
    for step in range(STEPS):
        recorder.step(StepFacts(step, step * 10_000_000, 9_000_000, (0,), (1,), (100 + step,), (100,)), rows)
    delivery = recorder.end([], 600.0)
    assert not delivery.lost_records, delivery
    return _ended_unix_s(cluster, trace_id) - began_unix_s


def _ended_unix_s(cluster: Cluster, trace_id: str) -> float:
    """When the trace's end was said, as the record's own time tells; looked for seldom, so as not to be in the way."""

    async def look() -> float | None:
        async for record in read_to_end(Broker(cluster.bootstrap), ("catalog",)):
            if record.key == trace_id.encode() and ("type", b"TraceCompleted") in record.headers:
                return float(record.timestamp) / 1e3
        return None

    deadline = time.monotonic() + WAIT_S
    while (found := asyncio.run(look())) is None:
        if time.monotonic() > deadline:
            log = (cluster.home / "ingest-1.log").read_text()[-2000:]
            raise TimeoutError(f"trace {trace_id} did not end within {WAIT_S:.0f} s (process {os.getpid()})\n{log}")
        time.sleep(1.0)
    return found
