"""The cluster's shell: reactors on Apache Kafka, by aiokafka.

At least once, made exactly once by identity: answers are published before offsets are committed, a batch that is read
again is answered again with equal events, and whoever reads them keeps the first. Reactors run in a thread, so that a
slow one never stops heartbeats; its partitions are paused meanwhile, so that nothing piles up in memory.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import create_conn
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    AuthenticationFailedError,
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAlreadyExistsError,
)
from aiokafka.helpers import create_ssl_context
from cascade_schemas.codec import MalformedEvent, decode, encode
from cascade_schemas.events import AnyEvent, KernelSimulationRequested, RecordDeadLettered
from cascade_schemas.together import decode_together

from services.runtime.deadletters import dead_letter_of
from services.runtime.observe import Observed
from services.runtime.reactor import Reactor

log = logging.getLogger("cascade")

RECORD_BYTES_LIMIT = 16 << 20
BATCH_BYTES = 1 << 20  # of records that wait together: a request for each record costs more than the record
RECORDS_PER_READ = 64
_EVENTS_PER_PUBLISH = 256
_POLL_MS = 200
_KNOCK_MS = 10_000
_KEYS_LOGGED = 8
_SAY_LIMIT_S = 5.0
_FOLLOW_POLL_MS = 20  # a viewer is looking
# A broker that answers each record takes more work to ask again than the record is; it waits so long for so much.
GATHERED_BYTES, GATHERED_MS = 256 << 10, 50


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as infra/topics.yaml describes it."""

    name: str
    partitions: int
    retention_ms: int  # -1: for ever


@dataclass(frozen=True, slots=True)
class Broker:
    """Where Kafka is and how to be let in. `ca_file`, `certificate_file`, `key_file`: PEM; "" where not needed."""

    bootstrap: str  # host:port, several separated by commas
    protocol: str = "PLAINTEXT"  # PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    mechanism: str = "PLAIN"  # PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def client(self) -> dict[str, Any]:
        """What every aiokafka client is constructed with."""
        options: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "security_protocol": self.protocol}
        if (context := self.ssl_context()) is not None:
            options["ssl_context"] = context
        if self.protocol.startswith("SASL"):
            options |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return options

    def ssl_context(self) -> ssl.SSLContext | None:
        """Of the protocols that need one. Raises OSError where a file cannot be read."""
        if not self.protocol.endswith("SSL"):
            return None
        context: ssl.SSLContext = create_ssl_context(
            cafile=self.ca_file or None, certfile=self.certificate_file or None, keyfile=self.key_file or None
        )
        return context


class BrokerRefused(RuntimeError):
    """The broker is not there, or does not let this program in; one sentence."""


async def knock(broker: Broker) -> None:
    """Connect once and leave: clients try for long and say only that they could not. Raises BrokerRefused."""
    refusal = None
    options = broker.client()
    for address in options.pop("bootstrap_servers").split(","):
        host, _, port = address.rpartition(":")
        try:
            connection = await create_conn(host, int(port), request_timeout_ms=_KNOCK_MS, **options)
        except (KafkaError, OSError, TimeoutError) as error:
            refusal = BrokerRefused(_refusal(broker, address, error))
        else:
            connection.close()
            return
    if refusal is not None:
        raise refusal


def _refusal(broker: Broker, address: str, error: Exception) -> str:
    reason = str(error) or type(error).__name__
    if isinstance(error, AuthenticationFailedError | SaslAuthenticationFailed):
        return (
            f"Kafka at {address} does not accept user {broker.username!r} by {broker.mechanism} ({reason});"
            " check CASCADE_KAFKA_USERNAME, _PASSWORD and _MECHANISM"
        )
    if isinstance(error.__cause__ or error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of Kafka at {address} is not to be trusted ({reason});"
            " set CASCADE_KAFKA_CA_FILE to the authority that signed it"
        )
    return (
        f"Kafka at {address} does not answer by {broker.protocol} ({reason}); is the cluster started (make cluster)?"
        " Does CASCADE_KAFKA_PROTOCOL say what its listener speaks?"
    )


class WrongTopic(RuntimeError):
    """A topic exists with another number of partitions than the function that chooses them assumes."""


def topic_specs(topics: Mapping[str, Mapping[str, Any]], simulators: Iterable[str]) -> list[TopicSpec]:
    """The topics of a cluster; `work` stands for one topic per simulator."""
    specs = []
    for name, spec in topics.items():
        for topic in [f"work.{simulator}" for simulator in simulators] if name == "work" else [name]:
            specs.append(TopicSpec(topic, int(spec["partitions"]), int(spec["retention_ms"])))
    return specs


async def ensure_topics(broker: Broker, specs: Sequence[TopicSpec]) -> None:
    """Create what is missing; refuse what is there with other partitions. Raises WrongTopic."""
    admin = AIOKafkaAdminClient(**broker.client())
    await admin.start()
    try:
        existing = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
        missing = [spec for spec in specs if spec.name not in existing]
        if missing:
            await admin.create_topics([_new_topic(spec) for spec in missing])
    except TopicAlreadyExistsError:
        log.info("topics_created_by_another")
    finally:
        await admin.close()
    for spec in specs:
        if existing.get(spec.name, spec.partitions) != spec.partitions:
            raise WrongTopic(
                f"topic {spec.name} has {existing[spec.name]} partitions, infra/topics.yaml says {spec.partitions};"
                " use another cluster, or move its records"
            )


def _new_topic(spec: TopicSpec) -> NewTopic:
    configs = {"retention.ms": str(spec.retention_ms), "max.message.bytes": str(RECORD_BYTES_LIMIT)}
    return NewTopic(spec.name, spec.partitions, 1, topic_configs=configs)


class Outgoing(NamedTuple):
    """An event as the producer sends it."""

    type: str
    topic: str
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    partition: int | None  # None: the key's


def outgoing(event: AnyEvent) -> Outgoing:
    record = encode(event, is_compressed=True)
    headers = [(name, value.encode()) for name, value in record.headers.items()]
    shard = event.shard if isinstance(event, KernelSimulationRequested) else None
    return Outgoing(event.type, record.topic, record.key.encode(), record.value, headers, shard)


class Publisher:
    """An idempotent producer of events; `publish` returns when all of them are acknowledged by the broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def start(self) -> None:
        """The producer belongs to the loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._producer = AIOKafkaProducer(
            **self._broker.client(),
            enable_idempotence=True,
            acks="all",
            max_request_size=RECORD_BYTES_LIMIT,
            max_batch_size=BATCH_BYTES,
            linger_ms=2,
        )
        await self._producer.start()

    async def stop(self) -> None:
        await self._producer.stop()

    async def publish(self, events: Iterable[AnyEvent]) -> None:
        await self.send([outgoing(event) for event in events])

    def say(self, events: Sequence[AnyEvent]) -> None:
        """Publish from another thread what is worth neither holding up nor failing its work for: simulators' words.

        What the broker does not take within seconds is lost, and that is logged.
        """
        said = asyncio.run_coroutine_threadsafe(self.publish(events), self._loop)
        try:
            said.result(_SAY_LIMIT_S)
        except (KafkaError, TimeoutError) as error:
            said.cancel()
            log.warning("words_lost events=%d reason=%s", len(events), str(error) or type(error).__name__)

    async def send(self, records: Sequence[Outgoing]) -> None:
        sent = [
            await self._producer.send(
                record.topic, record.value, record.key, partition=record.partition, headers=record.headers
            )
            for record in records
        ]
        if sent:
            await asyncio.gather(*sent)


def event_of(record: ConsumerRecord, service: str, read_types: Iterable[str] = ()) -> AnyEvent | None:
    """The record's event; None for types not wanted or not known, a dead letter for what cannot be read."""
    headers = texts(record.headers)
    wanted = tuple(read_types)
    if wanted and headers.get("type") not in wanted:
        return None
    try:
        return decode(headers, record.value or b"")
    except MalformedEvent as error:
        return _unreadable(record, service, error)


def _unreadable(record: ConsumerRecord, service: str, error: MalformedEvent) -> RecordDeadLettered:
    return dead_letter_of(service, record.topic, record.partition, record.offset, record.value or b"", str(error))


def texts(headers: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """A record's headers."""
    return {name: value.decode(errors="replace") for name, value in headers}


def events_of(records: Sequence[ConsumerRecord], service: str) -> list[AnyEvent | None]:
    """What `event_of` says of each, but that small records are one event, in place of the last: see decode_together."""
    read = [(texts(record.headers), record.value or b"") for record in records]
    return [
        _unreadable(record, service, event) if isinstance(event, MalformedEvent) else event
        for record, event in zip(records, decode_together(read), strict=True)
    ]


async def read_to_end(broker: Broker, topics: Sequence[str]) -> AsyncIterator[ConsumerRecord]:
    """All records of these topics as they are now, from the first to the last; belongs to no group."""
    consumer = await _reader(broker, topics)
    try:
        parts = list(consumer.assignment())
        ends = await consumer.end_offsets(parts)
        while waiting := [part for part in parts if await consumer.position(part) < ends[part]]:
            for part, records in (await consumer.getmany(*waiting, timeout_ms=_POLL_MS)).items():
                for record in records:
                    if record.offset < ends[part]:
                        yield record
    finally:
        await consumer.stop()


async def tail(
    broker: Broker, topics: Sequence[str], service: str, read_types: Sequence[str]
) -> AsyncIterator[list[AnyEvent]]:
    """Events of these topics from their beginning and then as they come, in batches; belongs to no group."""
    consumer = await _reader(broker, topics)
    try:
        while True:
            batch = await consumer.getmany(timeout_ms=_POLL_MS, max_records=RECORDS_PER_READ * 4)
            found = [event_of(record, service, read_types) for records in batch.values() for record in records]
            events: list[AnyEvent] = [e for e in found if e is not None and not isinstance(e, RecordDeadLettered)]
            if events:
                yield events
    finally:
        await consumer.stop()


async def follow(
    broker: Broker, topics: Sequence[str], next_offset: Callable[[str, int], int], leaving: asyncio.Event
) -> AsyncGenerator[list[ConsumerRecord]]:
    """Records of these topics from where the caller has come, and then as they come, until `leaving` is set.

    A batch, which is empty where nothing has come, is in replay order as far as it goes: by time, then topic, partition
    and offset. Within a partition the order is the broker's, whatever the clocks of its writers said.
    """
    consumer = await _reader(broker, topics, fetch_min_bytes=GATHERED_BYTES, fetch_max_wait_ms=GATHERED_MS)
    try:
        for part in consumer.assignment():
            consumer.seek(part, next_offset(part.topic, part.partition))
        while not leaving.is_set():
            batch = await consumer.getmany(timeout_ms=_FOLLOW_POLL_MS, max_records=RECORDS_PER_READ * 16)
            ordered: list[tuple[tuple[int, int, int, int], ConsumerRecord]] = []
            for records in batch.values():
                latest_ms = 0
                for record in records:
                    latest_ms = max(latest_ms, record.timestamp)
                    place = (latest_ms, topics.index(record.topic), record.partition, record.offset)
                    ordered.append((place, record))
            ordered.sort(key=lambda one: one[0])
            yield [record for _, record in ordered]
    finally:
        await consumer.stop()


async def _reader(broker: Broker, topics: Sequence[str], **fetching: int) -> AIOKafkaConsumer:
    """A started consumer at the first record of every partition.

    Partitions are asked for and assigned by hand: a consumer that was only told topics has no partition until its
    metadata arrives, and would look as if it had read them to their end.
    """
    admin = AIOKafkaAdminClient(**broker.client())
    await admin.start()
    try:
        described = await admin.describe_topics(list(topics))
    finally:
        await admin.close()
    parts = [TopicPartition(t["topic"], p["partition"]) for t in described for p in t["partitions"]]
    missing = set(topics) - {part.topic for part in parts}
    if missing:
        raise WrongTopic(f"topics {', '.join(sorted(missing))} do not exist; start a service first, it creates them")
    consumer = AIOKafkaConsumer(
        **broker.client(), enable_auto_commit=False, max_partition_fetch_bytes=RECORD_BYTES_LIMIT, **fetching
    )
    await consumer.start()
    consumer.assign(parts)
    await consumer.seek_to_beginning(*parts)
    return consumer


class KafkaService:
    """A reactor as a member of a consumer group: reads, reacts in a thread, publishes, commits."""

    def __init__(
        self,
        name: str,
        reactor: Reactor,
        broker: Broker,
        topics: Sequence[str],
        read_types: Sequence[str],
        *,
        instance: str,
        session_timeout_ms: int = 10_000,
        records_per_read: int = RECORDS_PER_READ,
        observed: Observed | None = None,
        on_assigned: Callable[[set[TopicPartition]], Awaitable[None]] | None = None,
    ) -> None:
        """`records_per_read`: fewer where one takes long, so that answers and cancellations come in between."""
        self.name = name
        self._reactor = reactor
        self._records_per_read = records_per_read
        self._observed = observed or Observed(name)
        self._observed.expect(name)
        self._measured: set[TopicPartition] = set()
        self._answer_count = 0
        self._read_types = tuple(read_types)
        self._topics = tuple(topics)
        self._publisher = Publisher(broker)
        self._stopping = asyncio.Event()
        self._on_assigned = on_assigned
        self._consumer = AIOKafkaConsumer(
            **broker.client(),
            group_id=f"cascade-{name}",
            group_instance_id=f"{name}-{instance}",  # static: a restarted member gets its partitions back at once
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            # In turn, not in ranges: the replicas of a config are neighbouring partitions, and each has its own worker.
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=session_timeout_ms // 4,
            max_partition_fetch_bytes=RECORD_BYTES_LIMIT,
        )

    def stop(self) -> None:
        """Finish the batch at hand, commit it, leave."""
        self._stopping.set()

    async def run(self) -> None:
        await self._publisher.start()
        await self._consumer.start()
        self._listener = _Listener(self._on_assigned)
        self._consumer.subscribe(self._topics, listener=self._listener)
        try:
            while not self._stopping.is_set():
                batch = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=self._records_per_read)
                self._observe()
                if batch:
                    await self._answer(batch)
                else:
                    await self._rest()
        finally:
            await self._consumer.stop()
            await self._publisher.stop()

    def _observe(self) -> None:
        """Ready is who has joined, with partitions or as the one in waiting; lag is said for owned partitions alone."""
        owned = self._consumer.assignment()
        self._observed.seen(self.name, is_ready=self._listener.has_joined)
        for part in self._measured - owned:
            self._observed.disown(part.topic, part.partition)
        self._measured &= owned

    def _tell(self, batch: Mapping[TopicPartition, Sequence[ConsumerRecord]], seconds: float) -> None:
        """Figures and one line for a batch that is answered, with the runs and traces it was about."""
        for part, records in batch.items():
            self._observed.read(part.topic, len(records))
            end = self._consumer.highwater(part) if part in self._consumer.assignment() else None
            if end is not None:
                self._measured.add(part)
                self._observed.lag(part.topic, part.partition, max(0, end - records[-1].offset - 1))
        self._observed.answered(seconds)
        topics = sorted({part.topic for part in batch})
        keys = sorted({(record.key or b"").decode(errors="replace")[:64] for r in batch.values() for record in r})
        more = [f"and_{len(keys) - _KEYS_LOGGED}_more"] if len(keys) > _KEYS_LOGGED else []
        shown = ",".join([*keys[:_KEYS_LOGGED], *more])
        count = sum(map(len, batch.values()))
        log.info(
            "batch service=%s topics=%s records=%d answers=%d ms=%.1f keys=%s",
            self.name, ",".join(topics), count, self._answer_count, seconds * 1e3, shown,
        )  # fmt: skip

    async def _answer(self, batch: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        began_s = time.monotonic()
        paused = self._consumer.assignment()
        self._consumer.pause(*paused)
        try:
            answers = self._answers(batch)
            self._answer_count = 0
            chunk = await asyncio.to_thread(_next_chunk, answers)
            while chunk:
                # While these are on their way, the next are made.
                _, following = await asyncio.gather(
                    self._publisher.send(chunk), asyncio.to_thread(_next_chunk, answers)
                )
                self._answer_count += len(chunk)
                self._observed.published(record.type for record in chunk)
                self._observed.seen(self.name, is_ready=True)
                chunk = following
        finally:
            still = self._consumer.assignment() & paused
            if still:
                self._consumer.resume(*still)
        try:
            await self._consumer.commit({part: records[-1].offset + 1 for part, records in batch.items()})
        except (CommitFailedError, IllegalStateError):
            # Taken away while answering: whoever has the partition now answers again, with equal events.
            log.warning("commit_lost service=%s", self.name)
        self._tell(batch, time.monotonic() - began_s)

    async def _rest(self) -> None:
        """Nothing has come for a moment: for those who must look at the clock."""

    def _note(self, record: ConsumerRecord) -> None:
        """For those who must know when something was said."""

    def _answers(self, batch: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> Iterator[AnyEvent]:
        for records in batch.values():
            for record in records:
                self._note(record)
                event = event_of(record, self.name, self._read_types)
                if isinstance(event, RecordDeadLettered):
                    yield event
                elif event is not None:
                    yield from self._reactor.react(event)
        yield from self._reactor.settle()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka ships no types
    """Tells whoever must know which partitions a rebalance brought."""

    def __init__(self, on_assigned: Callable[[set[TopicPartition]], Awaitable[None]] | None) -> None:
        self._on_assigned = on_assigned
        self.has_joined = False

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.has_joined = True
        if self._on_assigned is not None:
            await self._on_assigned(set(assigned))


def _next_chunk(answers: Iterator[AnyEvent]) -> list[Outgoing]:
    """Encoded in the reactor's thread: the loop is for talking to the broker."""
    return [outgoing(answer) for answer in islice(answers, _EVENTS_PER_PUBLISH)]
