"""The timeline's tables: equal to what the aggregator composes from, whole for a live trace as far as it is known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from cascade_schemas.events import LaunchesTraced, TraceCompleted

from services.aggregator import lanes
from services.aggregator.compose import default_gaps, median_per_task
from services.aggregator.queries import UnknownRun
from services.aggregator.rows import rows_of
from services.aggregator.run_state import trace_columns
from services.aggregator.store import Store
from tests.factories import RUN, TRACE, kernel_task, launch_rows, results, run_config, run_requested, trace_events


def stored(events):
    store = Store(None)
    store.commit({table: [rows] for table, rows in rows_of(events).items()}, {})
    return store


def all_rows(store, page=7):
    parts, first = [], 0
    while (found := lanes.launches(store, TRACE, first, page)).table.num_rows:
        parts.append(found.table)
        first += found.table.num_rows
    return pa.concat_tables(parts), found


def test_launches_are_the_trace_in_order_of_rank_and_seq():
    tasks = [kernel_task(index).task_id for index in range(3)]
    second_rank = launch_rows(tasks, rank=1, duration_ns=[5, None, 7], step=[0, None, 0])
    events = trace_events()
    store = stored([events[0], LaunchesTraced(trace_id=TRACE, rank=1, first_seq=0, rows=second_rank), *events[1:]])
    columns = trace_columns(store.load_trace(TRACE))
    table, last = all_rows(store)
    assert last.known_count == table.num_rows == len(columns.task) == 27
    assert last.is_complete
    for name in ("rank", "task", "step"):
        assert table.column(name).to_pylist() == getattr(columns, name).tolist()
    assert table.column("seq").to_pylist() == [*range(24), 0, 1, 2]
    duration = np.asarray(table.column("measured_duration"))
    assert np.where(np.isnan(duration), -1, duration).tolist() == columns.duration_ns.tolist()
    assert np.isnan(np.asarray(table.column("measured_start"))[25])
    assert not any(pa.types.is_int64(field.type) for field in table.schema)


def test_a_layout_says_where_each_step_lies_and_what_each_task_measured():
    store = stored(trace_events())
    found = lanes.layout(store, TRACE)
    table, _ = all_rows(store)
    assert [task["index"] for task in found["tasks"]] == [0, 1, 2]
    assert found["launches"] == 24
    assert found["streams"] == [7]
    gaps = default_gaps()
    assert found["gaps"] == {"graph_ns": gaps.graph_gap_ns, "eager_ns": gaps.eager_gap_ns}
    for step in found["steps"]:
        inside = table.slice(step["first"], step["last"] - step["first"])
        assert set(inside.column("step").to_pylist()) == {step["step"]}
        assert inside.num_rows == 12
    assert [step["phase"] for step in found["steps"]] == ["prefill", "decode"]
    medians = median_per_task(trace_columns(store.load_trace(TRACE)), np.zeros(3, dtype=np.bool_))
    assert [task["measured_ns"] for task in found["tasks"]] == medians.tolist()


def test_a_live_trace_grows_without_renumbering_what_was_there():
    events = [event for event in trace_events() if not isinstance(event, TraceCompleted)]
    order = [
        task for event in events if isinstance(event, LaunchesTraced) for task in event.rows["task_id"].to_pylist()
    ]
    store, before = Store(None), []
    for event in events:
        store.commit({table: [part] for table, part in rows_of(event)}, {})
        early = lanes.layout(store, TRACE)
        assert not early["is_complete"]
        early_index = {task["task_id"]: task["index"] for task in early["tasks"]}
        known = [(task["index"], task["task_id"]) for task in early["tasks"]]
        assert known[: len(before)] == before
        before = known
        table, last = all_rows(store) if early["launches"] else (None, lanes.launches(store, TRACE, 0, 5))
        assert last.known_count == early["launches"]
        assert not last.is_complete
        if table is not None:
            assert table.column("task").to_pylist() == [early_index[task] for task in order[: table.num_rows]]


def test_a_trace_that_has_said_nothing_is_empty():
    store = Store(None)
    assert lanes.layout(store, TRACE)["tasks"] == []
    assert lanes.launches(store, TRACE, 0, 10).table.num_rows == 0


def test_durations_are_what_was_simulated_and_failures_are_named():
    tasks = [kernel_task(index) for index in range(3)]
    config = run_config()
    store = stored([*trace_events(), run_requested(), results(config.config_id, tasks[:2], [900, None])])
    rows = lanes.durations(store, RUN, config.config_id).to_pylist()
    index = {task["task_id"]: task["index"] for task in lanes.layout(store, TRACE)["tasks"]}
    simulated, failed = (next(row for row in rows if row["task"] == index[task.task_id]) for task in tasks[:2])
    assert len(rows) == 2
    assert simulated["duration"] == simulated["forward"] == 900
    assert (simulated["is_failed"], simulated["is_corrected"], simulated["bound"]) == (0, 0, "dram")
    assert failed["is_failed"] == 1
    assert np.isnan(failed["duration"])
    with pytest.raises(UnknownRun, match="nope"):
        lanes.durations(store, RUN, "nope")
