"""Records decoded together say what they say one by one."""

import pyarrow as pa
import pytest
from cascade_schemas.codec import MalformedEvent, decode, encode
from cascade_schemas.together import decode_together
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import kernel_task, results, run_requested

TASKS = [kernel_task(number) for number in range(8)]
SMALL = [
    results(config, TASKS[first : first + count], [10 + first, None, 12][:count])
    for config in ("c", "d")
    for first, count in ((0, 1), (1, 1), (2, 3), (5, 0), (5, 2), (5, 2))
]
OTHERS = [run_requested(("h100_sxm", "l4")), results("e", TASKS, range(8))]


def in_records(events, *, is_compressed=True):
    return [(record.headers, record.value) for record in (encode(e, is_compressed=is_compressed) for e in events)]


def one_by_one(records):
    found = []
    for headers, value in records:
        try:
            found.append(decode(headers, value))
        except MalformedEvent as error:
            found.append(error)
    return found


def facts(events):
    """What was said, whoever said it together: rows by their event's other fields, in order."""
    said, reasons = {}, []
    for event in events:
        if isinstance(event, MalformedEvent):
            reasons.append(str(event))
        elif event is not None:
            said.setdefault(event.model_dump_json(), []).extend(
                event.rows.to_pylist() if hasattr(event, "rows") else [1]
            )
    return said, sorted(reasons)


@given(st.lists(st.sampled_from(SMALL + OTHERS), max_size=12))
def test_together_they_say_what_each_says(events):
    records = in_records(events)
    together = decode_together(records)
    assert facts(together) == facts(one_by_one(records))
    assert len(together) == len(records)


def test_what_differs_in_rows_alone_is_one_event_in_the_last_ones_place():
    c, d = SMALL[:2], SMALL[6:8]
    together = decode_together(in_records([c[0], d[0], OTHERS[0], c[1], d[1]]))
    assert [event and event.type for event in together] == [
        None, None, "RunRequested", "KernelsSimulated", "KernelsSimulated",
    ]  # fmt: skip
    assert together[3].rows.equals(pa.concat_batches([c[0].rows, c[1].rows]))
    assert together[4].config_id == "d"


def test_what_two_writers_say_of_one_config_keeps_its_order():
    """Whoever spoke first stands, and where a batch begins is chance."""
    old, new = SMALL[1], results("c", TASKS[1:2], [99])
    newer = new.model_copy(update={"simulator": "newer"})
    records = in_records([old, newer, old])
    assert decode_together(records) == one_by_one(records)


def test_other_simulators_other_runs_and_other_configs_stay_apart():
    one = SMALL[0]
    events = [one, *(one.model_copy(update={name: "other"}) for name in ("run_id", "config_id", "simulator"))]
    assert decode_together(in_records(events)) == one_by_one(in_records(events))


@given(st.data())
def test_damage_is_said_of_the_damaged_record_alone(data):
    records = in_records(SMALL[:6])
    damaged = data.draw(st.sets(st.integers(0, 5), max_size=2))
    for place in damaged:
        headers, value = records[place]
        kind = data.draw(st.sampled_from(["cut", "flipped", "longer", "twice", "empty"]))
        at = data.draw(st.integers(0, len(value) - 1))
        flipped = bytearray(value)
        flipped[at] ^= 1 << data.draw(st.integers(0, 7))
        other = {
            "cut": value[:at],
            "flipped": bytes(flipped),
            "longer": value + value[-8:],
            "twice": value + value,
            "empty": b"",
        }
        records[place] = headers, other[kind]
    assert facts(decode_together(records)) == facts(one_by_one(records))


def messages(value):
    """A stream's messages, without its end."""
    parts, at = [], 0
    for message in pa.ipc.MessageReader.open_stream(value):
        size = message.serialize(alignment=8).size
        parts.append(value[at : at + size])
        at += size
    assert value[at:] == b"\xff\xff\xff\xff\0\0\0\0"
    return parts, value[at:]


@pytest.mark.parametrize("left_out", [1, 4, 5], ids=["first dictionary", "last dictionary", "batch"])
def test_no_record_takes_what_it_lacks_from_another(left_out):
    (headers, whole), (_, other) = in_records(SMALL[:2])
    parts, end = messages(other)
    lacking = b"".join(part for place, part in enumerate(parts) if place != left_out) + end
    more = b"".join((parts[0], *parts[1:], *parts[1:])) + end
    for records in ([whole, lacking, whole], [whole, more, lacking], [whole, lacking, more], [lacking, more]):
        expected = one_by_one([(headers, value) for value in records])
        assert facts(decode_together([(headers, value) for value in records])) == facts(expected)


def test_packed_records_stay_apart_however_small():
    """The gateway keeps each unpacked, which needs its rows."""
    tasks = [kernel_task(number) for number in range(400)]
    records = in_records([results("c", tasks, [10] * 400), results("c", tasks, [10] * 400)])
    assert all(headers["compression"] == "lz4" and len(value) < 16 << 10 for headers, value in records)
    assert None not in decode_together(records)
