"""The gateway's side of a cluster: a copy of the log and of the store, fed from Kafka; what is asked goes to Kafka.

Every gateway has its own copy, which it can lose: records are mirrored into an embedded log with the Kafka positions
they came from, in one transaction, and folded into a store as the aggregator folds them. So viewers, replay and SQL are
answered here, and no gateway, however many viewers it has, takes anything from the services that work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from aiokafka import ConsumerRecord
from cascade_schemas.codec import MalformedEvent, Record, encode
from cascade_schemas.events import EVENT_TYPES, AnyEvent, ColumnarEvent, RecordDeadLettered
from cascade_schemas.events import TOPICS as ALL_TOPICS
from cascade_schemas.together import decode_together

from services.aggregator.shell import TOPICS, Delivered, FollowerShell
from services.aggregator.store import Store
from services.runtime.cluster import prepare
from services.runtime.embedded import Embedded, Service, log
from services.runtime.kafka import Broker, BrokerRefused, Publisher, events_of, follow, texts
from services.runtime.observe import Observed
from services.runtime.settings import Settings
from services.simworker.simulators.base import KernelSimulator

_RECORDS_PER_FOLD = 2048
_FOLD_EVERY_MS = 250  # a commit takes DuckDB 20 ms whatever is in it, and viewers do not wait for it
_APPEND_EVERY_S = 0.05  # what comes within is one transaction, one look at it and one frame for each viewer
_START_LIMIT_S = 60.0
_PUBLISH_LIMIT_S = 30.0
_PENDING_LIMIT = 4096  # records
_CONSUMER = "mirror"
MIRRORED = tuple(topic for topic in ALL_TOPICS if topic not in {"work", "dead_letters", "traces"})
"""What the viewers of a run read: what profilers send they see as ingest's catalog, work as its results."""


class ClusterUnreachable(RuntimeError):
    """The broker does not answer; the message says which."""


class FoldFailed(RuntimeError):
    """The thread that folds the mirrored log has ended: what is shown would stay as it is."""


class Pending:
    """What was mirrored and is not folded yet, as events: the log need not be read for it.

    Batches are folded whole, since rows of many records may be one event. Methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Mapping[str, Sequence[Delivered]]] = deque()  # by topic, in the order of appending
        self._count = 0

    def put(self, batch: Mapping[str, Sequence[Delivered]]) -> None:
        """Called when the log has the batch: what is folded must not be lost with the log's end."""
        with self._lock:
            self._count += _size(batch)
            self._batches.append(batch)
            if self._count > _PENDING_LIMIT:  # the fold is far behind, and reads what it needs from the log
                self._batches.clear()
                self._count = 0

    def take(self, next_offset: Callable[[str], int]) -> list[Delivered]:
        """The oldest batches, in the order of their topics, as far as nothing is missing before them."""
        reached: dict[str, int] = {}
        taken: dict[str, list[Delivered]] = {topic: [] for topic in TOPICS}
        with self._lock:
            while self._batches and sum(map(len, taken.values())) < _RECORDS_PER_FOLD:
                first = self._batches[0]
                starts = {topic: of_topic[0].offset for topic, of_topic in first.items()}
                ahead = {t: start - reached.setdefault(t, next_offset(t)) for t, start in starts.items()}
                if max(ahead.values()) > 0:
                    break
                self._batches.popleft()
                self._count -= _size(first)
                if min(ahead.values()) < 0:
                    continue  # the fold has found it, or a part of it, in the log; the rest is there, too
                for topic, of_topic in first.items():
                    taken[topic].extend(of_topic)
                    reached[topic] = of_topic[-1].offset + 1
        return [one for of_topic in taken.values() for one in of_topic]

    def first_offset(self, topic: str) -> int | None:
        """Up to where a topic is to be read from the log; None: to its end."""
        with self._lock:
            return next((batch[topic][0].offset for batch in self._batches if topic in batch), None)


def _size(batch: Mapping[str, Sequence[Delivered]]) -> int:
    return sum(map(len, batch.values()))


class FollowerService:
    """Folds the mirrored log into the store."""

    name = "follower"

    def __init__(self, store: Store, replica: Embedded, pending: Pending) -> None:
        self._replica = replica
        self._pending = pending
        self._shell = FollowerShell(store)
        self._folded_at_ms = 0
        self._pause = threading.Event()

    def step(self) -> bool:
        early_ms = self._folded_at_ms + _FOLD_EVERY_MS - self._replica.now_ms()
        if 0 < early_ms <= _FOLD_EVERY_MS:
            self._pause.wait(early_ms / 1000)
        delivered = self._pending.take(self._shell.next_offset) or self._read()
        if delivered:
            self._shell.deliver(delivered)
            self._folded_at_ms = self._replica.now_ms()
        return bool(delivered)

    def _read(self) -> list[Delivered]:
        """From the log: after a start, and where what was mirrored was too much to keep."""
        delivered: list[Delivered] = []
        for topic in TOPICS:
            offset, pending = self._shell.next_offset(topic), self._pending.first_offset(topic)
            count = _RECORDS_PER_FOLD if pending is None else min(_RECORDS_PER_FOLD, pending - offset)
            stored = self._replica.log.read(topic, offset, count) if count > 0 else []
            events = decode_together([(one.record.headers, one.record.value) for one in stored])
            for one, event in zip(stored, events, strict=True):
                if isinstance(event, MalformedEvent):
                    event = self._replica.event_of(one, self.name)  # noqa: PLW2901 - it is said once more, to all
                delivered.append(Delivered(topic, 0, one.offset, event))
        return delivered


class Replica(Embedded):
    """An Embedded whose events come from Kafka and whose commands go there. Raises ClusterUnreachable."""

    def __init__(
        self,
        settings: Settings,
        simulators: dict[str, KernelSimulator],
        now_ms: Callable[[], int],
        *,
        broker: Broker,
        name: str = "gateway",
        observed: Observed | None = None,
    ) -> None:
        """`settings.home` is the cluster's: artifacts are there; this copy lies in a folder of it, by `name`."""
        super().__init__(
            replace(settings, home=settings.home / name), simulators, now_ms, artifacts=settings.home / "artifacts"
        )
        self._broker = broker
        self._observed = observed or Observed("gateway")
        self._observed.expect("mirror")
        self._loop = asyncio.new_event_loop()
        self._publisher = Publisher(broker)
        self._leaving = asyncio.Event()
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self._feeder = threading.Thread(target=self._feed, name="cascade-feed", daemon=True)
        self._feeder.start()
        if not self._is_ready.wait(_START_LIMIT_S) or self._failure is not None:
            self.close()
            if isinstance(self._failure, BrokerRefused):
                raise ClusterUnreachable(str(self._failure))
            reason = self._failure or f"no answer within {_START_LIMIT_S:.0f} s"
            raise ClusterUnreachable(f"Kafka at {broker.bootstrap}: {reason}; is the cluster started (make cluster)?")

    def _own_services(self, simulators: dict[str, KernelSimulator]) -> list[Service]:  # noqa: ARG002 - others work
        self._pending = Pending()
        return [FollowerService(self.store, self, self._pending)]

    def close(self) -> None:
        if self._feeder.is_alive():
            self._loop.call_soon_threadsafe(self._leaving.set)
        self._feeder.join()
        super().close()

    @property
    def failure(self) -> str:
        if self._failure is not None and not self._leaving.is_set():
            return (
                super().failure or "this server hears nothing of the cluster any more; its log says why, start it again"
            )
        return super().failure

    def publish(self, events: Sequence[AnyEvent], *, commit: tuple[str, dict[str, int]] | None = None) -> None:
        """Returns when the broker has them; they come back through the log as everybody else's do."""
        assert commit is None  # nothing here answers from the mirrored log
        if events:
            asyncio.run_coroutine_threadsafe(self._publisher.publish(events), self._loop).result(_PUBLISH_LIMIT_S)
            # Who asked will ask on before the records are back: what was asked is known from now on.
            for listener in self.listeners:
                listener(events)

    # --- the feeding thread -----------------------------------------------------------------------------------

    def _feed(self) -> None:
        try:
            self._loop.run_until_complete(self._mirror())
        except BaseException as error:  # noqa: BLE001 - said by whoever waits, or by is_failed
            self._failure = error
            self._observed.seen("mirror", is_ready=False)
            if self._is_ready.is_set():
                log.exception("mirror_failed kafka=%s", self._broker.bootstrap)
        finally:
            self._is_ready.set()
            self._loop.close()

    async def _mirror(self) -> None:
        await prepare(self._broker)
        await self._publisher.start()
        try:
            self._is_ready.set()
            async with aclosing(follow(self._broker, MIRRORED, self._mirrored, self._leaving)) as batches:
                async for batch in batches:
                    if super().failure:
                        raise FoldFailed("what the log says can no longer be stored; a line before says why")
                    if batch:
                        await asyncio.gather(asyncio.to_thread(self._append, batch), asyncio.sleep(_APPEND_EVERY_S))
                    self._observed.seen("mirror", is_ready=True)
        finally:
            await self._publisher.stop()

    def _mirrored(self, topic: str, partition: int) -> int:
        """The next offset of a partition that is not here yet."""
        return self.log.committed(_CONSUMER, f"{topic}/{partition}")

    def _append(self, batch: Sequence[ConsumerRecord]) -> None:
        """Unpacked: the browser reads the same bytes, and it cannot unpack them."""
        events = events_of(batch, "gateway")
        records: list[Record] = []
        times: list[int] = []
        moved: dict[str, int] = {}
        pending: dict[str, list[Delivered]] = {}
        for record, event in zip(batch, events, strict=True):
            moved[f"{record.topic}/{record.partition}"] = record.offset + 1
            headers = texts(record.headers)
            # What cannot be read, others have put aside already.
            if isinstance(event, RecordDeadLettered) or headers.get("type") not in EVENT_TYPES:
                continue
            records.append(_unpacked(record, headers, event))
            times.append(record.timestamp)
            if record.topic in TOPICS:
                of_topic = pending.setdefault(record.topic, [])
                # Nobody else appends here, so an event's offset is known before it is there.
                of_topic.append(Delivered(record.topic, 0, self.log.end(record.topic) + len(of_topic), event))
        for topic, count in Counter(record.topic for record in batch).items():
            self._observed.read(topic, count)
        self.log.append(records, timestamp_ms=times, commit=(_CONSUMER, moved))
        if pending:
            self._pending.put(pending)
        said = [event for event in events if event is not None and not isinstance(event, RecordDeadLettered)]
        for listener in self.listeners:
            listener(said)


def _unpacked(record: ConsumerRecord, headers: dict[str, str], event: AnyEvent | None) -> Record:
    """As it is where it was never packed: most records that come often are small. None: another has its rows."""
    if isinstance(event, ColumnarEvent) and headers.get("compression") != "none":
        return encode(event)
    key = (record.key or b"").decode(errors="replace") if event is None else event.key
    return Record(record.topic, key, headers, record.value)
