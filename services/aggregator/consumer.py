"""Faust's consumer, but that it passes on what came of a partition as one message: each takes Faust a tenth of a
millisecond, whatever is in it, and asking for each record that comes two tenths more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP, ConsumerMessage, Message

from services.runtime.kafka import GATHERED_BYTES, GATHERED_MS

RECORDS_PER_MESSAGE = 64
_LOOK_EVERY_S = 0.05  # a commit is every 0.25 s at the most


class BatchMessage(ConsumerMessage):
    """A message that stands for these records of one partition, in order; its place is the last one's."""

    records: Sequence[ConsumerRecord]


class GatheringThread(AIOKafkaConsumerThread):
    """Lets the broker gather records, for which Faust has no setting; the client reads these when it is started."""

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_min_bytes, consumer._fetch_max_wait_ms = GATHERED_BYTES, GATHERED_MS  # noqa: SLF001
        return consumer


class BatchConsumer(Consumer):
    """Looks for records at most each 0.05 s, and passes on up to 64 of a partition as one message."""

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return GatheringThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:  # noqa: ASYNC109 - Faust's
        await asyncio.sleep(_LOOK_EVERY_S)
        async for part, message in super().getmany(timeout):
            yield part, message

    async def _wait_next_records(self, timeout: float) -> tuple[Any, set[TP] | None]:  # noqa: ASYNC109 - Faust's
        records, parts = await super()._wait_next_records(timeout)
        if records is None:
            return None, parts
        return {part: list(_pieces(of_part)) for part, of_part in records.items()}, parts

    def _to_message(self, tp: TP, record: Any) -> BatchMessage:
        plain = super()._to_message(tp, record[-1])
        message = BatchMessage(
            plain.topic, plain.partition, plain.offset, plain.timestamp, plain.timestamp_type, None, None, b"", None,
            tp=tp, generation_id=plain.generation_id,
        )  # fmt: skip
        message.records = record
        return message


class BatchTransport(Transport):
    """Faust on aiokafka with the consumer above."""

    Consumer = BatchConsumer


def _pieces(records: Sequence[ConsumerRecord]) -> Iterator[Sequence[ConsumerRecord]]:
    for first in range(0, len(records), RECORDS_PER_MESSAGE):
        yield records[first : first + RECORDS_PER_MESSAGE]
