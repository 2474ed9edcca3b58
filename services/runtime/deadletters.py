"""Records that a service could not use: put aside once, with the reason, and never waited for again."""

from __future__ import annotations

import base64

from cascade_schemas.events import RecordDeadLettered

_BYTES_LIMIT = 48 << 10  # 64 KiB in base64


def dead_letter_of(
    service: str, topic: str, partition: int, offset: int, value: bytes, reason: str
) -> RecordDeadLettered:
    return RecordDeadLettered(
        service=service,
        source_topic=topic,
        source_partition=partition,
        source_offset=offset,
        reason=reason,
        record_base64=base64.b64encode(value[:_BYTES_LIMIT]).decode(),
    )
