"""The aggregator in a cluster, a Faust app: `python -m services.aggregator.app`. One is active, others stand by.

Faust brings batches of records and liveness. It is not trusted with the truth: its tables over-count across
rebalances, so rows and positions are in DuckDB, in one transaction, and on assignment every partition is sought to the
position stored there, whatever the group says. The active one holds a lock on its file; a standby waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Never

import faust
from aiokafka import ConsumerRecord
from aiokafka.errors import KafkaError
from cascade_schemas.events import AnyEvent
from faust.exceptions import ConsumerNotStarted

from services.aggregator.consumer import RECORDS_PER_MESSAGE, BatchTransport
from services.aggregator.shell import AggregatorShell, Delivered
from services.aggregator.store import Store, is_disk_full
from services.runtime.cluster import ClusterSettings, observed, prepare, run_program, say
from services.runtime.kafka import Broker, Publisher, events_of, read_to_end
from services.runtime.observe import Observed

TOPICS = ("catalog", "runs", "results")  # predictions are its own: read to their end before these
_TAKE, _WITHIN_S = 2048, 0.25  # records; a commit takes DuckDB 20 ms whatever is in it
_BUFFERED = 4096  # records of a topic that Faust holds at most
_BEAT_S = 1.0
_SESSIONS_WITHOUT_PARTITIONS, _WITHOUT_PARTITIONS_S = 3, 20.0  # a member that was killed holds its own for a session
_MISSED_S, _TIMES_READ_AGAIN = 3.0, 3  # Faust passes on what it has within a second
ROOM_BYTES = 64 << 20  # DuckDB writes its log into its file when it has grown to 16 MiB
_ROOM_LOOK_S, _ROOM_LOOKS = 2.0, 30

log = logging.getLogger("cascade")


def wait_for_lock(home: Path, figures: Observed) -> IO[str]:
    """Returns when this process is the active aggregator of the home; the lock ends with the process."""
    home.mkdir(parents=True, exist_ok=True)
    handle = (home / "aggregator.lock").open("a+")
    said = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if not said:
                say("aggregator_stands_by", home=home)
                said = True
            figures.seen("aggregator", is_ready=False)  # alive, and in waiting
            time.sleep(0.2)
        else:
            return handle


def begin_anew_with_room(home: Path, figures: Observed, error: BaseException) -> Never:
    """Wait until the disk has room again, then be a new process: of this one, nobody knows what its file has of what it
    knows. What was not stored was not acknowledged either, and is read again.
    """
    while True:
        usage = shutil.disk_usage(home)
        say(
            "aggregator_cannot_store",
            reason=f"the disk of {home} is full ({usage.free >> 20} MiB of {usage.total >> 20} MiB are free) or its"
            f" files may not grow ({str(error).splitlines()[0]}); nothing is lost: make {ROOM_BYTES >> 20} MiB free,"
            " and it goes on by itself",
        )
        for _ in range(_ROOM_LOOKS):
            figures.seen("aggregator", is_ready=False)
            time.sleep(_ROOM_LOOK_S)
            if shutil.disk_usage(home).free >= ROOM_BYTES:
                _begin_anew()


def begin_anew_without_partitions(limit_s: float) -> Never:
    """A broker that has just come back deals partitions before it knows its topics, and Faust asks no second time."""
    say("aggregator_has_no_partitions", reason=f"the broker dealt it none for {limit_s:.0f} s; it begins anew")
    _begin_anew()


def _begin_anew() -> Never:
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this program itself, as it was started


class _Awaited(NamedTuple):
    """A record of a partition that the broker has: since when, and how many times it was sought."""

    offset: int
    since_s: float
    times: int


class Active:
    """The shell between Faust's streams and the aggregator; deliveries are one at a time."""

    def __init__(self, settings: ClusterSettings, figures: Observed) -> None:
        self._settings = settings
        self._figures = figures
        home = settings.settings.home
        try:
            self._store = Store(home / "cascade.duckdb", thread_count=settings.settings.thread_count)
        except Exception as error:
            if not is_disk_full(error):
                raise
            begin_anew_with_room(home, figures, error)
        self._publisher = Publisher(settings.broker)
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shell: AggregatorShell | None = None
        self._is_full = False
        self._awaited: dict[Any, _Awaited] = {}
        self.consumer: Any = None  # Faust's, once it has partitions

    async def start(self) -> None:
        """Catch up with its own predictions first: what was said is not said again by newer code."""
        self._loop = asyncio.get_running_loop()
        await self._publisher.start()
        self._shell = AggregatorShell(self._store, self._publish)
        batch: list[ConsumerRecord] = []
        async for record in read_to_end(self._settings.broker, ("predictions",)):
            batch.append(record)
            if len(batch) == _TAKE:
                await self._deliver(await asyncio.to_thread(_delivered, batch))
                batch = []
        await self._deliver(await asyncio.to_thread(_delivered, batch))
        say("aggregator_started", home=self._settings.settings.home)
        self._heartbeat = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        sessions_s = _SESSIONS_WITHOUT_PARTITIONS * self._settings.session_timeout_ms / 1000
        limit_s = max(sessions_s, _WITHOUT_PARTITIONS_S)
        last_s = time.monotonic()
        while not self._is_full:
            parts = self._parts()
            if parts:
                last_s = time.monotonic()
            elif time.monotonic() - last_s > limit_s:
                begin_anew_without_partitions(limit_s)
            self._figures.seen("aggregator", is_ready=True)
            ends = await self._ends(parts)
            for part, end in ends.items():
                self._figures.lag(part.topic, part.partition, max(0, end - self._at(part)))
            await self._read_again(ends)
            await asyncio.sleep(_BEAT_S)

    def _parts(self) -> list[Any]:
        """The partitions that are its own; none while they are being dealt, and at the end."""
        if self.consumer is None:
            return []
        try:
            return [part for part in self.consumer.assignment() if part.topic in TOPICS]
        except (ConsumerNotStarted, AssertionError):
            return []

    async def _ends(self, parts: Sequence[Any]) -> dict[Any, int]:
        """How far the broker has come in each of these partitions; nothing while they are being dealt, and at the end.

        A fetch says it on the way; a partition that Faust does not fetch is asked for.
        """
        try:
            ends = {part: self.consumer.highwater(part) for part in parts}
            unknown = [part for part, end in ends.items() if end is None]
            if unknown:
                ends |= await asyncio.wait_for(self.consumer.highwaters(*unknown), _BEAT_S)
        except (ConsumerNotStarted, AssertionError, KafkaError, TimeoutError):
            return {}
        return ends

    async def _read_again(self, ends: Mapping[Any, int]) -> None:
        """Faust drops what it fetches while partitions are dealt, and goes on behind it: seek what did not come."""
        missed = self._missed(ends, time.monotonic())
        if not missed:
            return
        for part, offset in missed.items():
            say("aggregator_reads_again", topic=part.topic, partition=part.partition, offset=offset)
        if max(self._awaited[part].times for part in missed) > _TIMES_READ_AGAIN:
            say("aggregator_is_not_given_records", reason=f"sought {_TIMES_READ_AGAIN} times in vain; it begins anew")
            _begin_anew()
        with contextlib.suppress(KafkaError, TimeoutError):
            await asyncio.wait_for(self.consumer.seek_wait(missed), _MISSED_S)

    def _missed(self, ends: Mapping[Any, int], now_s: float) -> dict[Any, int]:
        """The partitions, each with its position, of which the broker has more, and nothing has come for _MISSED_S."""
        is_storing = self._lock.locked()
        awaited, missed = {}, {}
        for part, end in ends.items():
            offset = self._at(part)
            if end <= offset or is_storing:
                continue
            before = self._awaited.get(part)
            if before is None or before.offset != offset:
                before = _Awaited(offset, now_s, 0)
            elif now_s - before.since_s > _MISSED_S:
                missed[part] = offset
                before = _Awaited(offset, now_s, before.times + 1)
            awaited[part] = before
        self._awaited = awaited
        return missed

    def _at(self, part: Any) -> int:
        return self.position(part.topic, part.partition)

    async def stop(self) -> None:
        self._heartbeat.cancel()
        await self._publisher.stop()
        self._store.close()

    def position(self, topic: str, partition: int) -> int:
        assert self._shell is not None
        return self._shell.next_offset(topic, partition)

    async def take(self, events: Sequence[Any]) -> None:
        """Deliver a batch of Faust's events of one topic, in order of partition and offset."""
        due = self._due([record for event in events for record in event.message.records])
        await self._deliver(await asyncio.to_thread(_delivered, due))

    def _due(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """In order, without what is stored or lies beyond a gap: that was buffered before a seek, and comes again."""
        expected: dict[tuple[str, int], int] = {}
        due = []
        for record in sorted(records, key=lambda one: (one.partition, one.offset)):
            place = (record.topic, record.partition)
            if record.offset == expected.setdefault(place, self.position(*place)):
                due.append(record)
                expected[place] += 1
        return due

    async def _deliver(self, batch: Sequence[Delivered]) -> None:
        assert self._shell is not None
        began_s = time.monotonic()
        async with self._lock:
            try:
                await asyncio.to_thread(self._shell.deliver, batch)
            except Exception as error:
                if not is_disk_full(error):
                    raise
                self._is_full = True
                await asyncio.to_thread(begin_anew_with_room, self._settings.settings.home, self._figures, error)
        for topic, count in Counter(one.topic for one in batch).items():
            self._figures.read(topic, count)
        if batch:
            seconds = time.monotonic() - began_s
            self._figures.answered(seconds)
            keys = sorted({one.event.key for one in batch if one.event is not None})
            log.info(
                "batch service=aggregator records=%d ms=%.1f keys=%s", len(batch), seconds * 1e3, ",".join(keys[:8])
            )

    def _publish(self, events: Sequence[AnyEvent]) -> None:
        """Called in the delivering thread; returns when the broker has them."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._publisher.publish(events), self._loop).result()
        self._figures.published(event.type for event in events)


def _delivered(records: Sequence[ConsumerRecord]) -> list[Delivered]:
    return [
        Delivered(record.topic, record.partition, record.offset, event)
        for record, event in zip(records, events_of(records, "aggregator"), strict=True)
    ]


class AggregatorApp(faust.App):
    """Faust's app, started only after the aggregator has caught up with its own predictions."""

    active: Active

    def _new_transport(self) -> Any:
        return BatchTransport(self.conf.broker_consumer, self)

    async def on_start(self) -> None:
        await self.active.start()
        await super().on_start()
        self._seek_to_the_stores_positions_after_faust_has_sought()

    def _seek_to_the_stores_positions_after_faust_has_sought(self) -> None:
        """Faust seeks to the group's offsets at the end of every rebalance, after the last signal it sends."""
        consumer = self.consumer
        faust_seeks = consumer.perform_seek

        async def perform_seek() -> None:
            await faust_seeks()
            own = [part for part in consumer.assignment() if part.topic in TOPICS]
            await consumer.seek_wait({part: self.active.position(part.topic, part.partition) for part in own})
            self.active.consumer = consumer

        consumer.perform_seek = perform_seek  # type: ignore[method-assign]

    async def on_stop(self) -> None:
        await super().on_stop()
        await self.active.stop()


def _credentials(broker: Broker) -> Any:
    """As Faust wants them; None where the broker asks nobody who they are."""
    if broker.protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=broker.username,
            password=broker.password,
            mechanism=broker.mechanism,
            ssl_context=broker.ssl_context(),
        )
    context = broker.ssl_context()
    return None if context is None else faust.SSLCredentials(context=context)


def make_app(settings: ClusterSettings, figures: Observed) -> AggregatorApp:
    app = AggregatorApp(
        "cascade-aggregator",
        broker=[f"kafka://{address}" for address in settings.broker.bootstrap.split(",")],
        broker_credentials=_credentials(settings.broker),
        value_serializer="raw",
        key_serializer="raw",
        topic_disable_leader=True,
        topic_allow_declare=False,
        store="memory://",
        web_enabled=False,
        broker_session_timeout=settings.session_timeout_ms / 1000,
        broker_heartbeat_interval=settings.session_timeout_ms / 4000,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=16 << 20,
        stream_buffer_maxsize=_BUFFERED // RECORDS_PER_MESSAGE,
        datadir=str(settings.settings.home / "faust"),
    )
    app.active = Active(settings, figures)

    for name in TOPICS:
        topic = app.topic(name, value_type=bytes, value_serializer="raw", key_serializer="raw", internal=False)

        async def agent(stream: Any) -> None:
            async for events in stream.take_events(_TAKE // RECORDS_PER_MESSAGE, within=_WITHIN_S):
                await app.active.take(events)

        app.agent(topic, name=f"aggregator-{name}")(agent)
    return app


def main(settings: ClusterSettings) -> None:
    figures = observed("aggregator", settings)
    figures.expect("aggregator")
    lock = wait_for_lock(settings.settings.home, figures)
    asyncio.run(prepare(settings.broker))
    worker = faust.Worker(make_app(settings, figures), loglevel="warning", console_port=0, blocking_timeout=0)
    try:
        worker.execute_from_commandline()
    finally:
        lock.close()


if __name__ == "__main__":
    raise SystemExit(run_program(main, os.environ))
