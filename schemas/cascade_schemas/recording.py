"""Records of a log in one file.

A recording (`.cascade`) is whole or absent: an Arrow IPC file, lz4, one row per record in replay order, for tests,
samples and moving a run between machines. A record stream (`.cascade-trace`) grows while a job runs: an Arrow IPC
stream of the same rows without places, readable up to wherever its writer was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
_STREAM = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("value", pa.large_binary(), nullable=False),
    ],
    metadata={"cascade_record_stream": str(SCHEMA_VERSION)},
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
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
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


class RecordStream:
    """Appends records to a file. Each `append` has reached the operating system when it returns, so that a killed
    writer leaves a stream that can be read to its last whole batch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, _STREAM)

    def append(self, records: Sequence[Record], timestamp_ms: int) -> None:
        self._writer.write_batch(stream_batch(records, timestamp_ms))

    def close(self) -> None:
        self._writer.close()
        self._sink.close()


def packed_records(records: Sequence[Record], timestamp_ms: int) -> bytes:
    """Records as one record stream in memory: the body of a request."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _STREAM) as writer:
        writer.write_batch(stream_batch(records, timestamp_ms))
    return bytes(sink.getvalue())


def stream_batch(records: Sequence[Record], timestamp_ms: int) -> pa.RecordBatch:
    columns = (
        [record.topic for record in records],
        [timestamp_ms] * len(records),
        [record.key for record in records],
        [sorted(record.headers.items()) for record in records],
        [record.value for record in records],
    )
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, _STREAM, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_STREAM)


def is_record_stream(head: bytes) -> bool:
    """Whether a file that begins so is a record stream."""
    return head.startswith(b"\xff\xff\xff\xff") and b"cascade_record_stream" in head[:4096]


def read_stream(source: Path | bytes) -> Iterator[Record]:
    """Records in the order they were appended, as far as they are whole. Raises MalformedRecording where none is."""
    for records in read_batches(source):
        yield from records


def read_batches(source: Path | bytes) -> Iterator[list[Record]]:
    """As `read_stream`, by what was appended together."""
    try:
        opened = pa.OSFile(str(source)) if isinstance(source, Path) else pa.BufferReader(source)
        reader = pa.ipc.open_stream(opened)
        if b"cascade_record_stream" not in (reader.schema.metadata or {}):
            raise MalformedRecording("this is no Cascade record stream")
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise MalformedRecording(f"this is no Cascade record stream: {str(error).splitlines()[0]}") from error
    with opened, reader:
        while True:
            try:
                batch = reader.read_next_batch()
                batch.validate(full=True)
            except (StopIteration, pa.ArrowException, OSError):
                return  # the end, or the place where the writer was killed
            yield [Record(row["topic"], row["key"], dict(row["headers"]), row["value"]) for row in batch.to_pylist()]
