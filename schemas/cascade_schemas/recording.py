"""Recordings: records of a log in one file (`.cascade`), for tests, samples and moving a run between machines.

The file is an Arrow IPC file, lz4, one row per record in replay order; its metadata carries the schema version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from cascade_schemas.codec import SCHEMA_VERSION, Record

_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("value", pa.large_binary(), nullable=False),
    ],
    metadata={"cascade_schema_version": str(SCHEMA_VERSION)},
)
_ROWS_PER_BATCH = 1024


class MalformedRecording(ValueError):
    """The file is no recording, or is cut off; the message says which."""


@dataclass(frozen=True, slots=True)
class RecordedRecord:
    """A record with the place it had in the log it was taken from."""

    partition: int
    offset: int
    timestamp_ms: int
    record: Record


def write_recording(path: Path, records: Iterable[RecordedRecord]) -> int:
    """Write records in the order given; returns how many. The file appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    count = 0
    try:
        with pa.OSFile(str(partial), "wb") as sink:
            options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
            with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
                rows: list[RecordedRecord] = []
                for row in records:
                    rows.append(row)
                    count += 1
                    if len(rows) == _ROWS_PER_BATCH:
                        writer.write_batch(_batch(rows))
                        rows = []
                writer.write_batch(_batch(rows))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def read_recording(path: Path) -> Iterator[RecordedRecord]:
    """Records in the order they were written. Raises MalformedRecording."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                batch.validate(full=True)
                for row in batch.to_pylist():
                    record = Record(row["topic"], row["key"], dict(row["headers"]), row["value"])
                    yield RecordedRecord(row["partition"], row["offset"], row["timestamp_ms"], record)
    except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise MalformedRecording(
            f"{path.name} is not a whole Cascade recording: {str(error).splitlines()[0]}"
        ) from error


def _batch(rows: list[RecordedRecord]) -> pa.RecordBatch:
    columns = {
        "topic": [row.record.topic for row in rows],
        "partition": [row.partition for row in rows],
        "offset": [row.offset for row in rows],
        "timestamp_ms": [row.timestamp_ms for row in rows],
        "key": [row.record.key for row in rows],
        "headers": [sorted(row.record.headers.items()) for row in rows],
        "value": [row.record.value for row in rows],
    }
    arrays = [pa.array(columns[field.name], type=field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
