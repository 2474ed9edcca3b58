"""What the timeline draws from, as tables: a trace's launches once, and one duration per task for each config.

Start times are not among them: the viewer composes them by the rule of timeline.py, so that a new result moves a lane
without a word from here. Columns are such as a browser reads without copying: no 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from cascade_schemas.task import KernelTask

from services.aggregator.compose import default_gaps
from services.aggregator.queries import Report, UnknownRun, UnknownTrace, trace_status
from services.aggregator.store import Store
from services.kernels.work import Family, Work
from services.kernels.work_of import work_of

LAUNCH_COUNT_LIMIT = 262_144


_word = pa.dictionary(pa.int32(), pa.string())

LAUNCH_LANES = pa.schema(
    [
        pa.field("rank", pa.uint16()),
        pa.field("seq", pa.uint32()),
        pa.field("task", pa.uint32()),  # index into the layout's tasks
        pa.field("stream", pa.uint16()),  # index into the layout's streams
        pa.field("step", pa.int32()),  # -1: outside every step
        pa.field("graph", pa.uint8()),  # 1: launched by a graph
        pa.field("host_start", pa.float64()),  # ns from the trace's start; NaN unknown
        pa.field("measured_start", pa.float64()),
        pa.field("measured_duration", pa.float64()),
    ]
)

DURATIONS = pa.schema(
    [
        pa.field("task", pa.uint32()),
        *(
            pa.field(name, pa.float64())  # ns of one launch; NaN unknown
            for name in ("duration", "p10", "p90", "forward", "roofline", "measured")
        ),
        pa.field("correction", pa.float64()),  # final ÷ forward; NaN: none
        *(pa.field(name, _word) for name in ("family", "bound", "tier", "reason")),
        pa.field("is_failed", pa.uint8()),
        pa.field("is_corrected", pa.uint8()),  # 1: the config's answer is out; 0: the forward prediction stands in
    ]
)


PROFILE_BINS = 48
HISTOGRAM_BINS = 40

PROFILE = pa.schema([pa.field("task", pa.uint32()), pa.field("bin", pa.uint8()), pa.field("count", pa.uint32())])


@dataclass(frozen=True, slots=True)
class LaunchRows:
    """Some of a trace's launches, how many are known by now, and whether there will be no more."""

    table: pa.Table
    known_count: int
    is_complete: bool


def layout(store: Store, trace_id: str) -> Report:
    """A trace's tasks in the order they were stored, its steps as ranges of rows, ranks and streams.

    Nothing stored is ever moved, so that a task's index stays as a live trace grows. Rows are launches by (rank, seq).
    A trace that has said nothing yet is empty.
    """
    rank_rows = _rank_rows(store, trace_id)
    first_row = dict(zip(rank_rows, np.cumsum([0, *rank_rows.values()]).tolist(), strict=False))
    return {
        "trace_id": trace_id,
        "launches": sum(rank_rows.values()),
        "is_complete": trace_status(store, trace_id) == "complete",
        "gaps": {"graph_ns": default_gaps().graph_gap_ns, "eager_ns": default_gaps().eager_gap_ns},
        "tasks": _tasks(store, trace_id),
        "steps": _steps(store, trace_id, first_row),
        "ranks": list(rank_rows),
        "streams": _streams(store, trace_id),
    }


def launches(store: Store, trace_id: str, first: int, count: int) -> LaunchRows:
    """Rows first to first + count of LAUNCH_LANES."""
    rank_rows = _rank_rows(store, trace_id)
    parts = []
    left = min(count, LAUNCH_COUNT_LIMIT)
    skipped = first
    for rank, rows in rank_rows.items():
        taken = min(left, rows - skipped)
        if taken > 0:
            # A rank's seq has no holes: a row's place is its seq, and no sorting finds it.
            parts.append(store.arrow(_LAUNCHES_SQL, [*[trace_id] * 3, rank, skipped, skipped + taken]))
            left -= taken
        skipped = max(skipped - rows, 0)
    table = pa.concat_tables(parts) if parts else LAUNCH_LANES.empty_table()
    return LaunchRows(
        _conformed(table, LAUNCH_LANES), sum(rank_rows.values()), trace_status(store, trace_id) == "complete"
    )


def durations(store: Store, run_id: str, config_id: str) -> pa.Table:
    """DURATIONS: one row per task that has a result so far. Raises UnknownRun where the run has no such config."""
    if not store.query("select 1 from run_configs where run_id = ? and config_id = ?", [run_id, config_id]):
        raise UnknownRun(f"run {run_id} has no config {config_id!r}")
    return _conformed(store.arrow(_DURATIONS_SQL, [run_id, run_id, config_id]), DURATIONS)


def profile(store: Store, trace_id: str) -> pa.Table:
    """PROFILE: launches per task in each of 48 equal parts of the trace's steps; no row where there are none."""
    return _conformed(store.arrow(_PROFILE_SQL, [trace_id, trace_id, PROFILE_BINS, trace_id]), PROFILE)


def histogram(store: Store, trace_id: str, task_id: str) -> Report:
    """Measured times of a task's launches, counted in bins whose edges are equal factors apart.

    Where nothing was measured there is no bin: a simulator gives every launch of a task the same time. Raises
    UnknownTrace where the trace has no launch of the task.
    """
    found = store.query(
        "select duration_ns from launches where trace_id = ? and task_id = ? order by duration_ns", [trace_id, task_id]
    )
    if not found:
        raise UnknownTrace(
            f"trace {trace_id} has no launch of task {task_id[:100]!r}; /api/traces/{trace_id}/layout lists them"
        )
    times = np.array([row["duration_ns"] for row in found if row["duration_ns"] is not None], dtype=np.float64)
    report: Report = {"launch_count": len(found), "measured_count": len(times), "bins": [], "median_ns": None}
    if not len(times):
        return report
    low, high = max(times[0], 1.0), max(times[-1], 1.0)
    # A bin is at least half a per cent wide: below it there is only the clock's grain.
    bins = int(np.clip(np.ceil(np.log(high / low) / np.log(1.005)), 1, HISTOGRAM_BINS))
    edges = np.geomspace(low, max(high, low * 1.005), bins + 1)
    edges[0], edges[-1] = min(low, times[0]), max(edges[-1], times[-1])
    counts, _ = np.histogram(times, edges)
    report["bins"] = [
        {"low_ns": float(low_ns), "high_ns": float(high_ns), "count": int(count)}
        for low_ns, high_ns, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    return report | {"median_ns": float(np.median(times))}


def task_works(store: Store, trace_id: str) -> list[Work]:
    """The work of each task, in the order of the layout."""
    rows = store.query("select task from tasks where trace_id = ? order by rowid", [trace_id])
    return [_work(row["task"]) for row in rows]


_TASK_INDEX_SQL = "select task_id, row_number() over (order by rowid) - 1 as task from tasks where trace_id = ?"

_STREAM_INDEX_SQL = """
    select stream, row_number() over (order by first_row) - 1 as place
    from (select stream, min(rowid) as first_row from launches where trace_id = ? group by stream)"""

_LAUNCHES_SQL = f"""
    with t as ({_TASK_INDEX_SQL}), s as ({_STREAM_INDEX_SQL})
    select l.rank, l.seq, t.task, s.place as stream, coalesce(l.step, -1) as step,
        (l.graph is not null)::utinyint as graph, l.host_launch_ns::double as host_start,
        case when l.duration_ns is not null then l.start_ns end::double as measured_start,
        l.duration_ns::double as measured_duration
    from launches l join t using (task_id) join s using (stream)
    where l.trace_id = ? and l.rank = ? and l.seq >= ? and l.seq < ? order by l.seq"""  # noqa: S608 - our own text

_PROFILE_SQL = f"""
    with t as ({_TASK_INDEX_SQL}),
        n as (select greatest(max(step) + 1, 1) as steps from launches where trace_id = ?)
    select t.task, (l.step * ? // n.steps)::utinyint as bin, count(*)::uinteger as count
    from launches l join t using (task_id), n where l.trace_id = ? and l.step is not null
    group by t.task, bin order by t.task, bin"""  # noqa: S608 - our own text

_DURATIONS_SQL = """
    with t as (
        select task_id, row_number() over (order by rowid) - 1 as task from tasks
        where trace_id = (select trace_id from run_requests where run_id = ?))
    select t.task, coalesce(p.duration_ns, s.duration_ns)::double as duration,
        coalesce(p.p10_ns, s.p10_ns)::double as p10, coalesce(p.p90_ns, s.p90_ns)::double as p90,
        s.duration_ns::double as forward, s.roofline_ns::double as roofline, p.measured_ns::double as measured,
        p.correction_ppm / 1e6 as correction, s.family, s.bound, s.tier, s.reason,
        (s.duration_ns is null)::utinyint as is_failed, (p.task_id is not null)::utinyint as is_corrected
    from simulations s join t using (task_id)
        left join predicted_kernels p on p.run_id = s.run_id and p.config_id = s.config_id and p.task_id = s.task_id
    where s.run_id = ? and s.config_id = ? and s.stands order by t.task"""


def _rank_rows(store: Store, trace_id: str) -> dict[int, int]:
    """Launches per rank."""
    rows = store.query(
        "select rank, count(*) as n from launches where trace_id = ? group by rank order by rank", [trace_id]
    )
    return {row["rank"]: row["n"] for row in rows}


def _tasks(store: Store, trace_id: str) -> list[Report]:
    rows = store.query(
        "select task_id, signature_id, name, op, task from tasks where trace_id = ? order by rowid", [trace_id]
    )
    counts = {
        row["task_id"]: row["n"]
        for row in store.query(
            "select task_id, count(*) as n from launches where trace_id = ? group by task_id", [trace_id]
        )
    }
    families = [str(_work(row["task"]).family) for row in rows]
    measured = _medians(store, trace_id)
    return [
        {
            "index": index,
            "task_id": row["task_id"],
            "signature": row["signature_id"],
            "name": row["name"],
            "op": row["op"],
            "shape": shape_of(row["task"]),
            "family": family,
            "launch_count": counts.get(row["task_id"], 0),
            "measured_ns": _measured(measured.get(row["task_id"], ()), family),
        }
        for index, (row, family) in enumerate(zip(rows, families, strict=True))
    ]


@lru_cache(maxsize=65_536)
def shape_of(task_json: str) -> str:
    """What tells tasks of one name apart, in short: operands' shapes, else lengths, tokens or bytes."""
    task = KernelTask.model_validate_json(task_json, extra="ignore")
    if task.kv_lengths:
        return f"{len(task.kv_lengths)} req, {sum(task.q_lengths)} new, {sum(task.kv_lengths)} kv"
    shapes = [" × ".join(map(str, operand.shape)) for operand in task.operands if operand.shape]
    if shapes:
        return " · ".join(shapes[:2])
    if task.moved_bytes is not None:
        return f"{task.moved_bytes} B"
    return f"{task.tokens} tokens" if task.tokens else ""


@lru_cache(maxsize=65_536)
def _work(task_json: str) -> Work:
    return work_of(KernelTask.model_validate_json(task_json, extra="ignore"))


def _medians(store: Store, trace_id: str) -> dict[str, list[int]]:
    """Per task the median measured time of each rank, as compose.median_per_task takes it."""
    rows = store.query(
        """select task_id, list(middle) as middles from (
            select task_id, floor(median(duration_ns))::bigint as middle from launches
            where trace_id = ? and duration_ns is not null group by task_id, rank) group by task_id""",
        [trace_id],
    )
    return {row["task_id"]: row["middles"] for row in rows}


def _measured(of_ranks: Sequence[int], family: str) -> int | None:
    """A collective's is the fastest rank's: the others waited for it."""
    if not of_ranks:
        return None
    return min(of_ranks) if family == Family.COLLECTIVE else int(np.median(of_ranks))


def _steps(store: Store, trace_id: str, first_row: dict[int, int]) -> list[Report]:
    rows = store.query(
        """select l.rank, l.step, s.phase, l.first, l.last, s.context_tokens, s.generation_tokens,
            s.context_requests + s.generation_requests as requests
        from (select rank, step, min(seq) as first, max(seq) + 1 as last from launches
              where trace_id = ? and step is not null group by rank, step) l
            left join trace_steps s on s.trace_id = ? and s.rank = l.rank and s.step = l.step
        order by l.rank, l.step""",
        [trace_id, trace_id],
    )
    for row in rows:
        row["first"] += first_row[row["rank"]]
        row["last"] += first_row[row["rank"]]
    return rows


def _streams(store: Store, trace_id: str) -> list[int]:
    sql = f"select stream from ({_STREAM_INDEX_SQL}) order by place"  # noqa: S608 - our own text
    return [row["stream"] for row in store.query(sql, [trace_id])]


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Nulls of numbers become NaN: a typed array has no other word for unknown."""
    columns: list[Any] = []
    for field in schema:
        column = table.column(field.name).combine_chunks()
        if pa.types.is_floating(field.type):
            column = column.fill_null(np.nan)
        elif pa.types.is_dictionary(field.type):
            column = column.cast(pa.string()).dictionary_encode()
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)
