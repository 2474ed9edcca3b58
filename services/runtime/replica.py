"""The gateway's side of a cluster: a copy of the log and of the store, fed from Kafka; what is asked goes to Kafka.

Every gateway has its own copy, which it can lose: records are mirrored into an embedded log with the Kafka positions
they came from, in one transaction, and folded into a store as the aggregator folds them. So viewers, replay and SQL are
answered here, and no gateway, however many viewers it has, takes anything from the services that work.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from aiokafka import ConsumerRecord
from cascade_schemas.codec import Record, encode, topic_of
from cascade_schemas.events import TOPICS as ALL_TOPICS
from cascade_schemas.events import AnyEvent, ColumnarEvent, RecordDeadLettered

from services.aggregator.shell import TOPICS, Delivered, FollowerShell
from services.aggregator.store import Store
from services.runtime.cluster import prepare
from services.runtime.embedded import Embedded, Service, log
from services.runtime.eventlog import StoredRecord
from services.runtime.kafka import Broker, BrokerRefused, Publisher, event_of, follow
from services.runtime.observe import Observed
from services.runtime.settings import Settings
from services.simworker.simulators.base import KernelSimulator

_RECORDS_PER_FOLD = 2048
_FOLD_EVERY_MS = 250  # a commit takes DuckDB 20 ms whatever is in it, and viewers do not wait for it
_APPEND_EVERY_S = 0.02  # what comes within is one transaction, one look at it and one frame for each viewer
_START_LIMIT_S = 60.0
_PUBLISH_LIMIT_S = 30.0
_DECODED_KEPT = 4096
_CONSUMER = "mirror"
MIRRORED = tuple(topic for topic in ALL_TOPICS if topic not in {"work", "dead_letters", "traces"})
"""What the viewers of a run read: what profilers send they see as ingest's catalog, work as its results."""


class ClusterUnreachable(RuntimeError):
    """The broker does not answer; the message says which."""


class FollowerService:
    """Folds the mirrored log into the store."""

    name = "follower"

    def __init__(self, store: Store, replica: Embedded) -> None:
        self._replica = replica
        self._shell = FollowerShell(store)
        self._folded_at_ms = 0
        self._pause = threading.Event()

    def step(self) -> bool:
        early_ms = self._folded_at_ms + _FOLD_EVERY_MS - self._replica.now_ms()
        if 0 < early_ms <= _FOLD_EVERY_MS:
            self._pause.wait(early_ms / 1000)
        delivered: list[Delivered] = []
        for topic in TOPICS:
            stored = self._replica.log.read(topic, self._shell.next_offset(topic), _RECORDS_PER_FOLD)
            delivered.extend(Delivered(topic, 0, s.offset, self._replica.event_of(s, self.name)) for s in stored)
        if delivered:
            self._shell.deliver(delivered)
            self._folded_at_ms = self._replica.now_ms()
        return bool(delivered)


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
        self._decoded: dict[tuple[str, int], AnyEvent] = {}  # mirrored and not folded yet, by topic and offset here
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
        return [FollowerService(self.store, self)]

    def close(self) -> None:
        if self._feeder.is_alive():
            self._loop.call_soon_threadsafe(self._leaving.set)
        self._feeder.join()
        super().close()

    @property
    def is_failed(self) -> bool:
        return super().is_failed or (self._failure is not None and not self._leaving.is_set())

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
            async for batch in follow(self._broker, MIRRORED, self._mirrored, self._leaving):
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
        events: list[AnyEvent] = []
        records: list[Record] = []
        times: list[int] = []
        moved: dict[str, int] = {}
        for record in batch:
            moved[f"{record.topic}/{record.partition}"] = record.offset + 1
            event = event_of(record, "gateway")
            if event is not None and not isinstance(event, RecordDeadLettered):  # others put it aside already
                events.append(event)
                records.append(_unpacked(record, event))
                times.append(record.timestamp)
        for topic, count in Counter(record.topic for record in batch).items():
            self._observed.read(topic, count)
        self._remember(events, records)
        self.log.append(records, timestamp_ms=times, commit=(_CONSUMER, moved))
        for listener in self.listeners:
            listener(events)

    def _remember(self, events: Sequence[AnyEvent], records: Sequence[Record]) -> None:
        """Nobody else appends here, so an event's offset is known before it is there."""
        next_offset: dict[str, int] = {}
        if len(self._decoded) > _DECODED_KEPT:
            self._decoded.clear()  # the fold is far behind, and reads what it needs from the log
        for event, record in zip(events, records, strict=True):
            offset = next_offset.setdefault(record.topic, self.log.end(record.topic))
            next_offset[record.topic] = offset + 1
            if record.topic in TOPICS:
                self._decoded[record.topic, offset] = event

    def event_of(self, stored: StoredRecord, service: str) -> AnyEvent | None:
        known = self._decoded.pop((stored.topic, stored.offset), None)
        return super().event_of(stored, service) if known is None else known


def _unpacked(record: ConsumerRecord, event: AnyEvent) -> Record:
    """As it is where it was never packed: most records that come often are small."""
    headers = {name: value.decode() for name, value in record.headers}
    if isinstance(event, ColumnarEvent) and headers.get("compression") != "none":
        return encode(event)
    return Record(topic_of(event), event.key, headers, record.value)
