"""What the aggregator knows of a trace and of a run: folds over the log, restorable from DuckDB."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import LAUNCHES, RESULTS
from cascade_schemas.events import (
    HostProfileMeasured,
    KernelTaskTraced,
    RefinementChosen,
    RunConfig,
    RunRequested,
    StepTraced,
    TraceCompleted,
    TraceRejected,
    TraceStarted,
)
from numpy.typing import NDArray


@dataclass
class TraceState:
    """A trace as far as it is known."""

    trace_id: str
    started: TraceStarted | None = None
    tasks: dict[str, KernelTaskTraced] = field(default_factory=dict)
    steps: dict[tuple[int, int], StepTraced] = field(default_factory=dict)  # (rank, step)
    launches: list[pa.RecordBatch] = field(default_factory=list)
    next_seq: dict[int, int] = field(default_factory=dict)  # per rank: launches below it are known
    host_profile: HostProfileMeasured | None = None
    completed: TraceCompleted | None = None
    rejected: TraceRejected | None = None

    @property
    def is_whole(self) -> bool:
        """Everything the trace's end promised has arrived; across topics and ranks it may come in any order."""
        return (
            self.completed is not None
            and self.started is not None
            and len(self.tasks) == self.completed.task_count
            and len(self.steps) == self.completed.step_count
            and sum(self.next_seq.values()) == self.completed.launch_count
        )

    def add_launches(self, rank: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the launches that are new and return them. A rank's launches arrive in order: one key, one partition."""
        known = self.next_seq.get(rank, 0)
        first = rows.column("seq")[0].as_py() if rows.num_rows else known
        if first > known:
            raise AssertionError(f"launches {known} to {first - 1} of rank {rank} are missing")
        new = rows.slice(min(known - first, rows.num_rows))
        if new.num_rows:
            self.launches.append(new)
            self.next_seq[rank] = known + new.num_rows
        return new


@dataclass
class Results:
    """What one simulator said of one config's tasks, each once: the first result of a task stands."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    done: set[str] = field(default_factory=set)  # task ids with a result or a failure

    def add(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the results that are new and return them."""
        ids = rows.column("task_id").to_pylist()
        fresh: list[int] = []
        for index, task_id in enumerate(ids):
            if task_id not in self.done:
                self.done.add(task_id)
                fresh.append(index)
        new = rows if len(fresh) == len(ids) else rows.take(pa.array(fresh, type=pa.int64()))
        if new.num_rows:
            self.rows.append(new)
        return new

    def failed(self) -> set[str]:
        """Task ids that have a reason instead of a time."""
        found: set[str] = set()
        for rows in self.rows:
            if rows.column("duration_ns").null_count:
                found.update(rows.filter(rows.column("duration_ns").is_null()).column("task_id").to_pylist())
        return found


@dataclass
class ConfigState:
    """One config of a run: its first answer, and what is to come after it where the run is refined."""

    config: RunConfig
    first: Results = field(default_factory=Results)
    is_predicted: bool = False
    refinement: RefinementChosen | None = None
    refined: Results = field(default_factory=Results)
    is_refined: bool = False  # the answer with the refined kernels is said
    taken: set[str] = field(default_factory=set)  # tasks whose refined result stands in that answer

    def failed(self) -> set[str]:
        """Tasks without a time, whoever simulated them."""
        return self.first.failed() - self.taken

    @property
    def has_refinements(self) -> bool:
        """All of the results that were asked for a second time are here."""
        return self.refinement is not None and all(task.task_id in self.refined.done for task in self.refinement.tasks)


@dataclass
class RunState:
    """One run: its request, and per config what has come back."""

    request: RunRequested
    configs: dict[str, ConfigState]
    is_cancelled: bool = False
    is_ended: bool = False

    @classmethod
    def of(cls, request: RunRequested) -> RunState:
        return cls(request, {config.config_id: ConfigState(config) for config in request.configs})


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """A whole trace as arrays; every launch names its task by index into `task_ids`."""

    task_ids: list[str]
    task: NDArray[np.int64]
    rank: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]  # -1: not measured
    stream: NDArray[np.int64]
    step: NDArray[np.int64]  # -1: outside every step
    graph: NDArray[np.int64]
    host_launch_ns: NDArray[np.int64]
    is_kernel: NDArray[np.bool_]

    @property
    def is_measured(self) -> bool:
        return bool((self.duration_ns >= 0).any())


def trace_columns(trace: TraceState) -> TraceColumns:
    """All launches of a whole trace, ordered by rank and seq."""
    task_ids = list(trace.tasks)
    index = {task_id: position for position, task_id in enumerate(task_ids)}
    table = pa.Table.from_batches(trace.launches, schema=LAUNCHES).unify_dictionaries().combine_chunks()
    if len(trace.next_seq) > 1:  # one rank's launches arrive in order, several ranks' interleaved
        table = table.sort_by([("rank", "ascending"), ("seq", "ascending")])
    ids = table.column("task_id").combine_chunks()
    codes = np.array([index[task_id] for task_id in ids.dictionary.to_pylist()] or [0], dtype=np.int64)

    def column(name: str, missing: int = -1) -> NDArray[np.int64]:
        return np.asarray(table.column(name).fill_null(missing), dtype=np.int64)

    return TraceColumns(
        task_ids=task_ids,
        task=codes[np.asarray(ids.indices, dtype=np.int64)] if len(ids) else np.empty(0, dtype=np.int64),
        rank=column("rank"),
        start_ns=column("start_ns"),
        duration_ns=column("duration_ns"),
        stream=column("stream"),
        step=column("step"),
        graph=column("graph"),
        host_launch_ns=column("host_launch_ns"),
        is_kernel=np.asarray(table.column("is_kernel"), dtype=np.bool_),
    )


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """Forward predictions of one config in the order of a trace's tasks; shape (tasks,)."""

    duration_ns: NDArray[np.int64]  # -1: failed
    sigma: NDArray[np.float64]
    family: NDArray[np.object_]
    reason: NDArray[np.object_]
    roofline_ns: NDArray[np.int64]  # -1: none


def result_columns(results: Results, task_ids: list[str]) -> ResultColumns:
    """Results in the order of a trace's tasks; a task without one has failed, with no reason and of no family."""
    table = pa.Table.from_batches(results.rows, schema=RESULTS)
    place = {task_id: row for row, task_id in enumerate(table.column("task_id").to_pylist())}
    table = table.take(pa.array([place.get(task_id) for task_id in task_ids], type=pa.int64()))

    def words(name: str) -> NDArray[np.object_]:
        return np.array(table.column(name).cast(pa.string()).fill_null("").to_pylist(), dtype=object)

    return ResultColumns(
        duration_ns=np.asarray(table.column("duration_ns").fill_null(-1), dtype=np.int64),
        sigma=np.asarray(table.column("sigma_ppm").fill_null(0), dtype=np.float64) / 1e6,
        family=words("family"),
        reason=words("reason"),
        roofline_ns=np.asarray(table.column("roofline_ns").fill_null(-1), dtype=np.int64),
    )
