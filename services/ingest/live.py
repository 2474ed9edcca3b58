"""Traces as they are recorded: what the SDK says in, catalog events out, each as soon as it is certain.

A step becomes part of the catalog when all of its launches are here, and all graph captures that its rank promised, so
nothing said is ever taken back; launches are said in the order of their sequence numbers. What is said is a function of
what was recorded alone: duplicates change nothing, a different order of arrival only when something is said. Importing
the recorded file afterwards is this fold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from cascade_schemas.events import (
    AnyEvent,
    GraphCaptured,
    HostProfileMeasured,
    HostProfileRecorded,
    KernelTaskTraced,
    LaunchesRecorded,
    LaunchesTraced,
    OpsRecorded,
    RecordingStarted,
    SignatureTraced,
    StepRecorded,
    StepTraced,
    TraceCompleted,
    TraceEnded,
    TraceHeartbeat,
    TraceRejected,
    TraceStarted,
)
from cascade_schemas.gpu import UnknownGpu
from cascade_schemas.model import ModelSpec
from cascade_schemas.routing import BadRouting
from cascade_schemas.task import KernelTask

from services.ingest.assemble import TaskTable, redacted
from services.ingest.derive import CannotDerive, derive_step, is_copy
from services.ingest.graphs import Capture
from services.ingest.imported import ROWS_PER_EVENT, ImportedStep, QualityReport, TraceMetadata, source_gpu_of
from services.ingest.launches import SaidColumns, joined_said, launch_rows, measure_launches
from services.ingest.patterns import Patterns, StepTasks
from services.ingest.recorded import (
    FactTable,
    RecordedColumns,
    capture_of,
    imported_step,
    joined_columns,
    traced_ops,
)
from services.ingest.routed import is_open, note, task_routed
from services.kernels.routing import Routing

SILENCE_LIMIT_MS = 60_000
"""A trace of which nothing was heard for so long is over: its job was killed, or cannot reach us."""
_ROWS_TOGETHER = 2 * ROWS_PER_EVENT  # followed at once: as many as a core keeps near it
_SILENT = (
    f"Nothing was heard of the job for {SILENCE_LIMIT_MS // 1000} s before it said that it had ended: it was killed, or"
    " lost its connection. The trace ends with the last whole step."
)

Recorded = (
    RecordingStarted
    | GraphCaptured
    | LaunchesRecorded
    | OpsRecorded
    | StepRecorded
    | HostProfileRecorded
    | TraceHeartbeat
    | TraceEnded
)
RECORDED_TYPES = ("RecordingStarted", "GraphCaptured", "LaunchesRecorded", "OpsRecorded", "StepRecorded",
                  "HostProfileRecorded", "TraceHeartbeat", "TraceEnded")  # fmt: skip


class LiveIngest:
    """Recorded events in, catalog out. A trace that has ended takes nothing more.

    Launches are said by `settle`, after as many events as came together: their price is that of a look at an array,
    not that of a launch.
    """

    def __init__(self) -> None:
        self._open: dict[str, LiveTrace] = {}
        self._ended: set[str] = set()
        self._heard: dict[str, None] = {}  # traces that may have something to say

    def react(self, event: AnyEvent) -> Iterator[AnyEvent]:
        if isinstance(event, TraceCompleted | TraceRejected):
            self._end(event.trace_id)
        elif isinstance(event, Recorded) and event.trace_id not in self._ended:
            trace = self._open.setdefault(event.trace_id, LiveTrace(event.trace_id))
            self._heard[event.trace_id] = None
            yield from self._watched(trace.take(event))

    def settle(self) -> Iterator[AnyEvent]:
        heard, self._heard = self._heard, {}
        for trace_id in heard:
            if trace_id in self._open:
                yield from self._watched(self._open[trace_id].settle())

    def restore(self, event: AnyEvent) -> None:
        for _ in chain(self.react(event), self.settle()):
            pass  # it was said before the restart

    def open_traces(self) -> list[str]:
        return list(self._open)

    def abandon(self, trace_id: str) -> Iterator[AnyEvent]:
        """End a trace that fell silent with what is known of it."""
        if trace_id in self._open:
            yield from self._watched(self._open[trace_id].abandon(_SILENT))
            self._end(trace_id)

    def _watched(self, said: Iterator[AnyEvent]) -> Iterator[AnyEvent]:
        for event in said:
            yield event
            if isinstance(event, TraceCompleted | TraceRejected):
                self._end(event.trace_id)

    def _end(self, trace_id: str) -> None:
        self._ended.add(trace_id)
        self._open.pop(trace_id, None)


@dataclass(frozen=True, slots=True)
class Overrides:
    """What whoever imports a recording knows better than the recording."""

    name: str = ""
    model: ModelSpec | None = None
    source_gpu: str | None = None
    routing: str = ""
    rank_count: int | None = None  # files that were given


@dataclass(slots=True)
class _Run:
    """Consecutive rows of one step."""

    step: int | None
    count: int


class _Part(Protocol):
    """Rows that came together, in whatever form they are kept."""

    @property
    def num_rows(self) -> int: ...

    def slice(self, first: int, count: int) -> Self: ...


_P = TypeVar("_P", bound=_Part)


class _Rows(Generic[_P]):
    """Launches or ops of one rank as they arrive: in order of sequence number, each once."""

    def __init__(self, kept: Callable[[pa.RecordBatch], _P]) -> None:
        self.next_seq = 0
        self.held: dict[int, pa.RecordBatch] = {}  # ahead of a gap, by first sequence number
        self.runs: deque[_Run] = deque()  # not said yet
        self._parts: deque[_P] = deque()  # the rows of the runs
        self._kept = kept

    def take(self, first_seq: int, rows: pa.RecordBatch) -> None:
        known = self.held.get(first_seq)
        if rows.num_rows and (known is None or known.num_rows < rows.num_rows):
            self.held[first_seq] = rows
        while self.held and (first := min(self.held)) <= self.next_seq:
            waiting = self.held.pop(first)
            new = waiting.slice(min(self.next_seq - first, waiting.num_rows))
            if new.num_rows:
                self.next_seq += new.num_rows
                self._append(new)

    def _append(self, rows: pa.RecordBatch) -> None:
        steps = np.asarray(rows.column("step").fill_null(-1), dtype=np.int64)
        edges = np.flatnonzero(np.diff(steps)) + 1
        for first, last in pairwise([0, *edges.tolist(), len(steps)]):
            step = int(steps[first]) if steps[first] >= 0 else None
            if self.runs and self.runs[-1].step == step:
                self.runs[-1].count += last - first
            else:
                self.runs.append(_Run(step, last - first))
        self._parts.append(self._kept(rows))

    def pop(self, count: int) -> list[_P]:
        """The first so many rows, which are kept no longer."""
        taken: list[_P] = []
        while count:
            part = self._parts.popleft()
            if part.num_rows > count:
                self._parts.appendleft(part.slice(count, part.num_rows - count))
                part = part.slice(0, count)
            count -= part.num_rows
            taken.append(part)
        return taken


@dataclass(slots=True)
class _Rank:
    launches: _Rows[RecordedColumns]
    ops: _Rows[pa.RecordBatch] = field(default_factory=lambda: _Rows(_as_it_is))
    steps: dict[int, StepRecorded] = field(default_factory=dict)  # heard, and waiting for their rows
    heard_steps: set[int] = field(default_factory=set)
    said_count: int = 0  # launches
    unsaid: list[SaidColumns] = field(default_factory=list)  # whose tasks have been said
    capture_count: int = 0  # as the rank promised
    captures: dict[int, Capture] = field(default_factory=dict)
    ended: TraceEnded | None = None

    @property
    def has_captures(self) -> bool:
        """No launch is said before: a replay's ops and shapes are in them."""
        return len(self.captures) >= self.capture_count

    @property
    def is_whole(self) -> bool:
        """All that the rank said it sent has arrived, in whatever order."""
        end = self.ended
        return (
            end is not None
            and self.has_captures
            and len(self.heard_steps) >= end.step_count
            and self.launches.next_seq >= end.launch_count
            and self.ops.next_seq >= end.op_count
        )


def _as_it_is(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


class LiveTrace:
    """One trace while it is being recorded. Keeps no launch that has been said."""

    def __init__(self, trace_id: str, overrides: Overrides | None = None) -> None:
        self._trace_id = trace_id
        self._overrides = overrides or Overrides()
        self._started: RecordingStarted | None = None
        self._before: list[Recorded] = []  # arrived before all ranks had begun
        self._began_ns: dict[int, int] = {}  # per rank
        self._base_ns: int | None = None  # the trace's time 0
        self._ranks: dict[int, _Rank] = {}
        self._tasks = TaskTable()
        self._facts = FactTable()
        self._patterns = Patterns(self._facts, self._tasks)
        self._said_tasks: set[str] = set()
        self._said_indexes: set[int] = set()  # of those tasks: nearly all of a step's were said before
        self._said_signatures: set[str] = set()
        self._surveyed: set[tuple[object, ...]] = set()  # (name, grid, block) of kernels
        self._surveyed_indexes: set[int] = set()
        self._prompts: dict[int, int] = {}
        self._routing = Routing()
        self._has_experts = self._has_routed = False
        self._quality = QualityReport()
        self._kernel_count = self._step_count = 0
        self._has_profile = False
        self._is_over = False

    def take(self, event: Recorded) -> Iterator[AnyEvent]:
        if self._is_over:
            return
        if isinstance(event, RecordingStarted):
            yield from self._hear_start(event)
        elif self._base_ns is None:
            self._before.append(event)
        else:
            yield from self._hear(event)

    def settle(self) -> Iterator[AnyEvent]:
        """Say what has become certain since the last time."""
        if self._is_over or self._base_ns is None:
            return
        try:
            for number in sorted(self._ranks):
                yield from self._advance(number)
        except CannotDerive as reason:
            yield self._rejected(f"no GPU kernels were recorded and none can be derived: {reason}")

    def abandon(self, why: str) -> Iterator[AnyEvent]:
        """Nothing more will come; `why` is shown with the trace."""
        if self._is_over:
            return
        if self._started is None:
            yield self._rejected("the recording breaks off before it says what it is of; record again")
            return
        self._quality.notes.append(why)
        if self._base_ns is None:
            yield from self._begin()  # a rank died before it began
        if not self._is_over:
            yield from self._finish(is_truncated=True)

    def _hear_start(self, event: RecordingStarted) -> Iterator[AnyEvent]:
        """The first rank says what the trace is of; time 0 is when the first of all ranks began, so all are awaited."""
        if self._started is None:
            yield from self._start(event)
        rank = self._rank(event.rank)
        rank.capture_count = max(rank.capture_count, event.capture_count)
        self._began_ns.setdefault(event.rank, event.began_ns)
        if self._base_ns is None and len(self._began_ns) >= self._rank_count:
            yield from self._begin()

    def _begin(self) -> Iterator[AnyEvent]:
        self._base_ns = min(self._began_ns.values())
        waiting, self._before = self._before, []
        for earlier in waiting:
            yield from self.take(earlier)

    def _hear(self, event: Recorded) -> Iterator[AnyEvent]:
        if isinstance(event, HostProfileRecorded):
            yield from self._hear_profile(event)
            return
        rank = self._rank(event.rank)
        match event:
            case GraphCaptured():
                rank.captures.setdefault(event.capture, capture_of(event))
            case LaunchesRecorded():
                rank.launches.take(event.first_seq, event.rows)
            case OpsRecorded():
                rank.ops.take(event.first_seq, event.rows)
            case StepRecorded():
                yield from self._hear_step(rank, event)
            case TraceEnded():
                rank.ended = rank.ended or event
        if rank.ended is not None and self._is_whole:
            yield from self._finish(is_truncated=False)

    def _rank(self, number: int) -> _Rank:
        if number not in self._ranks:
            self._ranks[number] = _Rank(_Rows(self._facts.columns))
        return self._ranks[number]

    @property
    def _rank_count(self) -> int:
        assert self._started is not None
        return self._overrides.rank_count or self._started.rank_count

    @property
    def _is_whole(self) -> bool:
        return len(self._ranks) >= self._rank_count and all(rank.is_whole for rank in self._ranks.values())

    # --- what it is of ----------------------------------------------------------------------------------------

    def _start(self, event: RecordingStarted) -> Iterator[AnyEvent]:
        self._started = event
        metadata = TraceMetadata(
            tool=event.tool,
            provenance=event.provenance,
            gpu_name=event.gpu_name,
            compute_capability=event.compute_capability,
            sm_count=event.sm_count,
            dram_bytes=event.dram_bytes,
        )
        try:
            source_gpu = source_gpu_of(self._overrides.source_gpu or event.source_gpu, metadata)
        except UnknownGpu as error:
            source_gpu = None
            self._quality.notes.append(f"The recording names a GPU that is not known: {error}.")
        if source_gpu is None and event.provenance == "measured":
            said = f"calls its GPU {event.gpu_name!r}" if event.gpu_name else "does not name its GPU"
            self._quality.notes.append(f"The job {said}; pass source_gpu=ID so that measured times can be used.")
        try:
            self._routing = Routing.of(self._overrides.routing or event.routing)
        except BadRouting as error:
            self._quality.notes.append(f"The recording says no routing that is known ({error}): even is assumed.")
        self._quality.notes += [
            f"{one.name}: {one.said}" for one in event.collectors if one.state in ("used", "failed") and one.said
        ]
        yield TraceStarted(
            trace_id=self._trace_id,
            name=self._overrides.name or event.name,
            provenance=event.provenance,
            tool=event.tool,
            source_gpu=source_gpu,
            gpu_name=event.gpu_name,
            model=self._model,
            engine=event.engine,
            engine_version=event.engine_version,
            rank_count=self._rank_count,
            world_size=event.world_size,
            started_at=_rfc3339(event.origin_unix_ns),
        )

    @property
    def _model(self) -> ModelSpec | None:
        assert self._started is not None
        return self._overrides.model or self._started.model

    def _hear_profile(self, event: HostProfileRecorded) -> Iterator[AnyEvent]:
        if not self._has_profile:
            self._has_profile = True
            yield HostProfileMeasured(trace_id=self._trace_id, **event.model_dump(exclude={"type", "trace_id"}))

    # --- steps and launches -----------------------------------------------------------------------------------

    def _hear_step(self, rank: _Rank, event: StepRecorded) -> Iterator[AnyEvent]:
        if event.step in rank.heard_steps:
            return
        rank.heard_steps.add(event.step)
        for request, prompt in zip(event.request_ids, event.prompt_tokens, strict=False):
            self._prompts[request] = max(prompt, self._prompts.get(request, 0))
        if event.op_count if self._is_derived else event.launch_count:
            rank.steps[event.step] = event
            return
        seen = event.op_count if self._is_derived else event.launch_count
        yield self._step(imported_step(event), event, kernel_count=0, is_profiled=seen is not None)

    @property
    def _is_derived(self) -> bool:
        assert self._started is not None
        return self._started.provenance == "recorded-on-cpu"

    def _advance(self, number: int, *, is_last: bool = False) -> Iterator[AnyEvent]:
        """Say the runs at the head of a rank's rows that are whole; at the end, all that are left."""
        rank = self._ranks[number]
        if not (rank.has_captures or is_last):
            return
        waiting = rank.ops.runs if self._is_derived else rank.launches.runs
        while runs := list(self._whole_runs(rank, waiting, is_last=is_last)):
            if self._is_derived:
                for step, count in runs:
                    batches = rank.ops.pop(count)
                    if step is not None:
                        yield from self._say_derived(rank, step, pa.concat_batches(batches))
            else:
                parts = rank.launches.pop(sum(count for _, count in runs))
                yield from self._say_launches(rank, runs, joined_columns(parts))
            yield from self._said_launches(number, rank, is_rest_held=True)
        yield from self._said_launches(number, rank)

    def _whole_runs(
        self, rank: _Rank, runs: deque[_Run], *, is_last: bool
    ) -> Iterator[tuple[StepRecorded | None, int]]:
        """Take runs at the head that are whole: their step, None for rows outside of all, and number of rows."""
        row_count = 0
        while runs and row_count < _ROWS_TOGETHER:
            run = runs[0]
            step = rank.steps.get(run.step) if run.step is not None else None
            promised = (step.op_count if self._is_derived else step.launch_count) if step else None
            if run.step is not None and (promised is None or run.count < promised):
                if not is_last:
                    return
                step = None  # a step that is not whole is none
            runs.popleft()
            if run.step is not None:
                rank.steps.pop(run.step, None)
            row_count += run.count
            yield step, run.count

    def _say_launches(
        self, rank: _Rank, runs: Sequence[tuple[StepRecorded | None, int]], rows: RecordedColumns
    ) -> Iterator[AnyEvent]:
        """Steps and what they launched, one after the other; rows outside of all steps are runs without one."""
        assert self._started is not None
        captures = [rank.captures[key] for key in sorted(rank.captures)]
        task, is_kernel = np.empty(rows.num_rows, dtype=np.int32), np.empty(rows.num_rows, dtype=bool)
        first = 0
        for step, count in runs:
            part = slice(first, first + count)
            imported = imported_step(step) if step is not None else None
            tokens = sum(step.q_lengths) if step is not None else 0
            pattern = self._patterns.of(rows.slice(first, count), captures, tokens)
            tasks = self._patterns.tasks_of(pattern, imported, self._model, self._started.world_size)
            yield from self._say_tasks(tasks.distinct)
            self._survey(tasks)
            task[part], is_kernel[part] = tasks.rows, pattern.is_kernel
            self._kernel_count += pattern.kernel_count
            self._quality.gridless_count += pattern.gridless_count
            self._quality.capture_mismatch = self._quality.capture_mismatch or pattern.capture_mismatch
            if step is not None and imported is not None:
                yield self._step(imported, step, pattern.kernel_count)
            first += count
        counts = [count for _, count in runs]
        measure_launches(rows, is_kernel, np.repeat(np.arange(len(runs)), counts), self._quality)
        step_numbers = np.repeat([-1 if step is None else step.step for step, _ in runs], counts)
        rank.unsaid.append(
            SaidColumns(
                task,
                rows.start_ns,
                rows.duration_ns,
                rows.stream,
                step_numbers,
                rows.graph,
                rows.host_launch_ns,
                is_kernel,
            )
        )

    def _survey(self, tasks: StepTasks) -> None:
        for index, is_kernel in zip(tasks.distinct, tasks.is_kernel, strict=True):
            if is_kernel and index not in self._surveyed_indexes:
                self._surveyed_indexes.add(index)
                signature = self._tasks.tasks[index].signature
                self._surveyed.add((signature.name, signature.grid, signature.block))

    def _say_derived(self, rank: _Rank, step: StepRecorded, rows: pa.RecordBatch) -> Iterator[AnyEvent]:
        """The kernels a GPU would run for the ops of the step: an order, but no times."""
        assert self._started is not None
        imported = imported_step(step)
        derived = derive_step(traced_ops(rows), imported, self._model, self._started.world_size)
        task = [self._tasks.add(redacted(one, self._quality)) for one in derived]
        yield from self._say_tasks(task)
        is_kernel = np.array([not is_copy(one) for one in derived], dtype=bool)
        self._kernel_count += int(is_kernel.sum())
        for one in derived:
            if not is_copy(one):
                self._surveyed.add((one.signature.name, one.signature.grid, one.signature.block))
        yield self._step(imported, step, int(is_kernel.sum()))
        count = len(task)
        unknown = np.full(count, -1, dtype=np.int64)
        rank.unsaid.append(
            SaidColumns(
                np.array(task, dtype=np.int32),
                step.start_ns + np.arange(count, dtype=np.int64),
                unknown,
                np.zeros(count, dtype=np.int64),
                np.full(count, step.step, dtype=np.int64),
                unknown,
                unknown,
                is_kernel,
            )
        )

    def _say_tasks(self, indices: Sequence[int]) -> Iterator[AnyEvent]:
        for index in dict.fromkeys(indices):
            if index in self._said_indexes:
                continue
            self._said_indexes.add(index)
            task = self._tasks.tasks[index] = self._routed(redacted(self._tasks.tasks[index], self._quality))
            if task.task_id in self._said_tasks:
                continue
            self._said_tasks.add(task.task_id)
            signature_id = task.signature.signature_id
            if signature_id not in self._said_signatures:
                self._said_signatures.add(signature_id)
                yield SignatureTraced(trace_id=self._trace_id, signature_id=signature_id, signature=task.signature)
            yield KernelTaskTraced(trace_id=self._trace_id, task_id=task.task_id, signature_id=signature_id, task=task)

    def _routed(self, task: KernelTask) -> KernelTask:
        if is_open(task):
            self._has_experts = True
            task = task_routed(task, self._routing)
            self._has_routed = self._has_routed or bool(task.tokens_per_expert)
        return task

    def _step(
        self, step: ImportedStep, recorded: StepRecorded, kernel_count: int, *, is_profiled: bool = True
    ) -> StepTraced:
        self._step_count += 1
        base_ns = self._base_ns or 0
        return StepTraced(
            trace_id=self._trace_id,
            rank=recorded.rank,
            step=recorded.step,
            phase=step.phase.value,
            start_ns=step.start_ns - base_ns,
            duration_ns=step.duration_ns,
            context_requests=step.context_requests,
            context_tokens=step.context_tokens,
            generation_requests=step.generation_requests,
            generation_tokens=step.generation_tokens,
            kernel_count=kernel_count,
            q_lengths=step.q_lengths,
            kv_lengths=step.kv_lengths,
            request_indexes=step.request_indexes,
            is_profiled=is_profiled,
        )

    def _said_launches(self, number: int, rank: _Rank, *, is_rest_held: bool = False) -> Iterator[LaunchesTraced]:
        """Rows in events of thousands, whatever steps they are of; the rest for a while, to be said with more."""
        if not rank.unsaid:
            return
        columns, rank.unsaid = joined_said(rank.unsaid), []
        count = len(columns.task)
        for first in range(0, count, ROWS_PER_EVENT):
            if is_rest_held and count - first < ROWS_PER_EVENT:
                rank.unsaid = [columns.slice(first, ROWS_PER_EVENT)]
                return
            part = columns.slice(first, ROWS_PER_EVENT)
            rows = launch_rows(part, number, rank.said_count, self._base_ns or 0, self._task_id)
            yield LaunchesTraced(trace_id=self._trace_id, rank=number, first_seq=rank.said_count, rows=rows)
            rank.said_count += rows.num_rows

    def _task_id(self, index: int) -> str:
        return self._tasks.tasks[index].task_id

    # --- the end ----------------------------------------------------------------------------------------------

    def _finish(self, *, is_truncated: bool) -> Iterator[AnyEvent]:
        assert self._started is not None
        for number in sorted(self._ranks):
            rank = self._ranks[number]
            lost = sum(rows.num_rows for held in (rank.launches, rank.ops) for rows in held.held.values())
            self._quality.dropped_event_count += lost
            try:
                yield from self._advance(number, is_last=True)
            except CannotDerive as reason:
                yield self._rejected(f"no GPU kernels were recorded and none can be derived: {reason}")
                return
            self._quality.event_count += rank.launches.next_seq + rank.ops.next_seq + len(rank.heard_steps)
            if rank.ended is not None:
                self._quality.dropped_event_count += rank.ended.dropped_launch_count
                self._quality.notes += [note for note in rank.ended.notes if note not in self._quality.notes]
        self._quality.is_truncated = is_truncated
        if self._has_experts or self._routing.exponent:
            self._quality.notes.append(note(self._routing, any_routed=self._has_routed))
        launch_count = sum(rank.said_count for rank in self._ranks.values())
        if not launch_count:
            yield self._rejected(
                f"{self._step_count} engine steps were recorded but no kernel and no op: trace in mode 'kernels',"
                " with a profiler that works in the job's process"
            )
            return
        self._is_over = True
        highest = max(self._prompts, default=-1)
        yield TraceCompleted(
            trace_id=self._trace_id,
            is_truncated=is_truncated,
            launch_count=launch_count,
            kernel_count=self._kernel_count,
            signature_count=len(self._surveyed),
            task_count=len(self._said_tasks),
            step_count=self._step_count,
            launchless_count=self._quality.launchless_count,
            quality=asdict(self._quality),
            prompts=tuple(self._prompts.get(request, 0) for request in range(highest + 1)),
        )

    def _rejected(self, reason: str) -> TraceRejected:
        self._is_over = True
        name = self._overrides.name or (self._started.name if self._started else "")
        return TraceRejected(trace_id=self._trace_id, name=name, reason=reason)


def _rfc3339(unix_ns: int) -> str:
    seconds, ns = divmod(unix_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ns // 1000:06d}Z"
