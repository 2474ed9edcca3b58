"""Many records decoded at once: an Arrow stream is opened for all small ones that differ in their rows alone.

Opening a stream, reading what its metadata says and validating that costs three times what its one row costs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from cascade_schemas.codec import READ_OPTIONS, UNREADABLE, MalformedEvent, columnar_event, decode
from cascade_schemas.events import EVENT_TYPES, AnyEvent, ColumnarEvent

_OWNER = {"KernelsSimulated": ("run_id", "config_id")}
"""Types whose rows and these fields of the event say what they are about. Who says it first stands."""

_SMALL_BYTES = 16 << 10
_CONTINUES = b"\xff\xff\xff\xff"  # before each message of a stream, and then its length
_END = _CONTINUES + bytes(4)

Head = tuple[str, bytes]  # an event's type, and its stream's first message: schema and the rest of the event


def decode_together(records: Sequence[tuple[Mapping[str, str], bytes]]) -> list[AnyEvent | MalformedEvent | None]:
    """What `decode` says of each (headers, value), in their order; what it raises stands in the record's place.

    Small records that differ in their rows alone are one event: it has all their rows, in their order, and stands in
    place of the last of them, where the others have None. Who keeps half of an answer keeps no part of such an event.
    """
    found: list[AnyEvent | MalformedEvent | None] = [None] * len(records)
    alike: dict[Head | int, list[int]] = {}
    for place, (headers, value) in enumerate(records):
        alike.setdefault(_head(headers, value) or place, []).append(place)
    said: dict[tuple[str, ...], list[list[int]]] = {}  # by owner: the places that are one event
    for head, places in alike.items():
        event = None
        if isinstance(head, tuple) and len(places) > 1:
            event = _merged(head, [records[place][1] for place in places])
        if event is not None:
            found[places[-1]] = event
        else:  # alone, or one of them cannot be read: which, and why, it says by itself
            for place in places:
                found[place] = _decoded(*records[place])
        for as_one in [places] if event is not None else [[place] for place in places]:
            if (owner := _owner(found[as_one[-1]])) is not None:
                said.setdefault(owner, []).append(as_one)
    for of_one_owner in said.values():
        if len(of_one_owner) > 1:  # together, another could be the first to say something
            for place in (place for as_one in of_one_owner if len(as_one) > 1 for place in as_one):
                found[place] = _decoded(*records[place])
    return found


def _owner(event: AnyEvent | MalformedEvent | None) -> tuple[str, ...] | None:
    fields = _OWNER.get(getattr(event, "type", ""))
    return None if fields is None else tuple(getattr(event, name) for name in fields)


def _decoded(headers: Mapping[str, str], value: bytes) -> AnyEvent | MalformedEvent | None:
    try:
        return decode(headers, value)
    except MalformedEvent as error:
        return error


def _head(headers: Mapping[str, str], value: bytes) -> Head | None:
    """What a record must have in common with those that it is decoded with; None: it is decoded alone."""
    kind = headers.get("type", "")
    if kind not in _OWNER or len(value) > _SMALL_BYTES or not value.startswith(_CONTINUES):
        return None
    if headers.get("compression", "none") != "none" or not value.endswith(_END):
        return None  # whoever keeps records unpacked needs each with its own rows
    (length,) = struct.unpack_from("<i", value, len(_CONTINUES))
    end = len(_END) + length
    return (kind, value[:end]) if length > 0 and end <= len(value) - len(_END) else None


def _merged(head: Head, values: Iterable[bytes]) -> AnyEvent | None:
    """One event of streams with this head; None where they are not one batch each, with dictionaries of its own."""
    kind, first_message = head
    event_type = EVENT_TYPES[kind]
    assert issubclass(event_type, ColumnarEvent)
    bodies = [value[len(first_message) : -len(_END)] for value in values]
    source = pa.BufferReader(b"".join((first_message, *bodies, _END)))
    batches, end, dictionary_count = [], len(first_message), 0
    try:
        with pa.ipc.open_stream(source, options=READ_OPTIONS) as reader:
            for body in bodies:
                batches.append(reader.read_next_batch())
                end += len(body)
                count = reader.stats.num_dictionary_batches
                # A batch that ends elsewhere than its record is another's; so is a dictionary that it did not bring.
                dictionary_count = dictionary_count or count
                if source.tell() != end or count != dictionary_count * len(batches):
                    return None
            table = pa.Table.from_batches(batches)
            table.validate(full=True)
            rows = table.combine_chunks().to_batches()[0] if table.num_rows else batches[0]
            return columnar_event(event_type, reader.schema.metadata, rows)
    except (*UNREADABLE, StopIteration):
        return None
