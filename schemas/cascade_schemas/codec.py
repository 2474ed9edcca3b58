"""Events to records and back. A record is what a log stores: topic, key, headers and a value of bytes.

A control event's value is its JSON. A columnar event's value is one Arrow IPC stream whose schema metadata carries the
rest of the event as JSON under `event`: a record is whole by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from pydantic import ValidationError

from cascade_schemas.events import EVENT_TYPES, AnyEvent, ColumnarEvent, KernelSimulationRequested

SCHEMA_VERSION = 1
_EVENT = b"event"
# A record's columns are a few kilobytes each: handing them to a pool of threads costs three to seven times the work.
_PACKED_FROM_BYTES = 16 << 10  # a few rows are packed and unpacked for longer than the bytes they save are on their way
READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
UNREADABLE = (ValidationError, ValueError, KeyError, pa.ArrowException, OSError)
"""What reading bytes that are no event raises."""


class MalformedEvent(ValueError):
    """The record's value is not what its headers say; the message names what is wrong."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a log, before or after it has a place there."""

    topic: str
    key: str
    headers: dict[str, str]  # type, schema_version; columnar: count, compression, first_seq where the event has one
    value: bytes = field(repr=False)


def topic_of(event: AnyEvent) -> str:
    """Work has one topic per simulator; everything else says its own."""
    return f"work.{event.simulator}" if isinstance(event, KernelSimulationRequested) else event.topic


def encode(event: AnyEvent, *, is_compressed: bool = False) -> Record:
    """`is_compressed`: lz4 for the wire, where it pays; on disk rows stay uncompressed, so that readers share pages."""
    headers = {"type": event.type, "schema_version": str(SCHEMA_VERSION)}
    if isinstance(event, ColumnarEvent):
        headers["count"] = str(event.rows.num_rows)
        if (first_seq := getattr(event, "first_seq", None)) is not None:
            headers["first_seq"] = str(first_seq)
        compression = "lz4" if is_compressed and event.rows.nbytes >= _PACKED_FROM_BYTES else None
        headers["compression"] = compression or "none"
        value = _arrow_stream(event, compression)
    else:
        value = event.model_dump_json().encode()
    return Record(topic_of(event), event.key, headers, value)


def decode(headers: Mapping[str, str], value: bytes) -> AnyEvent | None:
    """The event, or None for a type this version does not know. Raises MalformedEvent."""
    event_type = EVENT_TYPES.get(headers.get("type", ""))
    if event_type is None:
        return None
    try:
        if issubclass(event_type, ColumnarEvent):
            return _of_arrow_stream(event_type, value)
        return cast("AnyEvent", event_type.model_validate_json(value, extra="ignore"))
    except UNREADABLE as error:
        reason = str(error).splitlines()[0] if not isinstance(error, ValidationError) else _first_error(error)
        raise MalformedEvent(f"{event_type.__name__}: {reason}") from error


def _arrow_stream(event: ColumnarEvent, compression: str | None) -> bytes:
    batch: pa.RecordBatch = event.rows.replace_schema_metadata({_EVENT: event.model_dump_json()})
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return cast("bytes", sink.getvalue().to_pybytes())


def columnar_event(
    event_type: type[ColumnarEvent], metadata: Mapping[bytes, bytes] | None, rows: pa.RecordBatch
) -> AnyEvent:
    """The event of valid rows and their schema's metadata. Raises what UNREADABLE has."""
    if _EVENT not in (metadata or {}):
        raise ValueError("the Arrow stream's metadata has no `event`")
    fields: dict[str, Any] = json.loads((metadata or {})[_EVENT])
    return cast("AnyEvent", event_type.model_validate({**fields, "rows": rows}, extra="ignore"))


def _of_arrow_stream(event_type: type[ColumnarEvent], value: bytes) -> AnyEvent:
    with pa.ipc.open_stream(pa.py_buffer(value), options=READ_OPTIONS) as reader:
        batches = list(reader)
    if len(batches) == 1:
        rows = batches[0]
    else:
        table = pa.Table.from_batches(batches, schema=reader.schema).combine_chunks()
        rows = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)
    rows.validate(full=True)
    return columnar_event(event_type, reader.schema.metadata, rows)


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'value'}: {first['msg']}"
