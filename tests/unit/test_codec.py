import contextlib
import json

import pyarrow as pa
import pytest
from cascade_schemas import batches
from cascade_schemas.codec import MalformedEvent, decode, encode, topic_of
from cascade_schemas.events import EVENT_TYPES, TOPICS, KernelSimulationRequested, LaunchesTraced, RunCancelled
from cascade_schemas.gpu import load_gpu
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.factories import kernel_task, results, run_config, run_requested, trace_events

EXAMPLES = [
    *trace_events(),
    run_requested(("h100_sxm", "l4")),
    results("c", [kernel_task(0), kernel_task(1)], [10, None]),
    KernelSimulationRequested(
        run_id="r", config_id="c", gpu=load_gpu("l4"), simulator="analytic", rows=batches.tasks_batch([kernel_task()])
    ),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_an_event_survives_the_log(event, is_compressed):
    record = encode(event, is_compressed=is_compressed)
    back = decode(record.headers, record.value)
    assert back.model_dump() == event.model_dump()
    if hasattr(event, "rows"):
        assert back.rows.equals(event.rows)


def test_every_event_names_a_topic_and_a_key_it_has():
    for name, event in EVENT_TYPES.items():
        assert event.topic in TOPICS, name
        assert event.key_field in event.model_fields, name
        assert event.__doc__, name


def test_work_has_one_topic_per_simulator():
    assert topic_of(EXAMPLES[-1]) == "work.analytic"


def test_constructing_refuses_what_decoding_ignores():
    with pytest.raises(ValidationError):
        RunCancelled(run_id="r", why="tired")
    headers = {"type": "RunCancelled", "schema_version": "2"}
    assert decode(headers, b'{"type":"RunCancelled","run_id":"r","why":"tired"}') == RunCancelled(run_id="r")


def test_an_unknown_type_is_skipped():
    assert decode({"type": "RunPaused"}, b"{}") is None


def test_a_newer_writers_extra_column_is_dropped_and_a_missing_nullable_one_is_null():
    event = results("c", [kernel_task()], [5])
    rows = event.rows.append_column("energy_uj", pa.array([1]))
    rows = rows.drop_columns(["sm_cycles"])
    conformed = batches.conform(rows, batches.RESULTS)
    assert conformed.schema.equals(batches.RESULTS)
    assert conformed.column("sm_cycles").null_count == 1


def test_a_missing_required_column_is_named():
    rows = results("c", [kernel_task()], [5]).rows.drop_columns(["task_id"])
    with pytest.raises(ValueError, match="task_id"):
        batches.conform(rows, batches.RESULTS)


def test_the_error_names_the_field():
    with pytest.raises(MalformedEvent, match=r"RunRequested: configs\.0\.gpu"):
        value = json.loads(run_requested().model_dump_json())
        value["configs"][0]["gpu"] = 7
        decode({"type": "RunRequested"}, json.dumps(value).encode())


@given(st.sampled_from(sorted(EVENT_TYPES)), st.binary(max_size=300))
def test_no_bytes_break_the_decoder(event_type, value):
    with pytest.raises(MalformedEvent):
        decode({"type": event_type}, value)


@given(st.data())
def test_no_damaged_record_breaks_the_decoder(data):
    record = encode(data.draw(st.sampled_from(EXAMPLES)))
    value = bytearray(record.value)
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(record.headers, bytes(value[: data.draw(st.integers(0, len(value)))]))
    except MalformedEvent as error:
        assert str(error).startswith(record.headers["type"])


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_breaks_the_decoder(bit):
    """Arrow names a damaged type, length and buffer by exceptions of different families."""
    record = next(encode(event) for event in EXAMPLES if isinstance(event, LaunchesTraced))
    for place in range(len(record.value)):
        value = bytearray(record.value)
        value[place] ^= 1 << bit
        with contextlib.suppress(MalformedEvent):
            decode(record.headers, bytes(value))


def test_tasks_survive_as_columns_with_their_ids():
    tasks = [kernel_task(0), kernel_task(1, q_lengths=(3, 1), kv_lengths=(9, 4), attributes={"heads": 8})]
    back = batches.tasks_of(batches.tasks_batch(tasks))
    assert back == tasks
    assert [task.task_id for task in back] == [task.task_id for task in tasks]


def test_a_config_in_an_event_keeps_its_identity():
    config = run_config("b200_sxm")
    assert config.config_id == config.gpu.config_id
