"""Traces as they are recorded: what the SDK says in, catalog events out, each as soon as it is certain.

A step becomes part of the catalog when all of its launches are here, and all graph captures that its rank promised, so
nothing said is ever taken back; launches are said in the order of their sequence numbers. What is said is a function of
what was recorded alone: duplicates change nothing, a different order of arrival only when something is said. Importing
the recorded file afterwards is this fold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import LAUNCHES
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

from services.ingest.assemble import TaskTable, measure_quality, redacted
from services.ingest.derive import CannotDerive, derive_step, is_copy
from services.ingest.graphs import Capture, join_replays
from services.ingest.imported import (
    ROWS_PER_EVENT,
    ImportedStep,
    Phase,
    QualityReport,
    TraceMetadata,
    source_gpu_of,
)
from services.ingest.recorded import capture_of, imported_step, joined_rows, replay_of, traced_ops
from services.kernels.recover import recover_step

SILENCE_LIMIT_MS = 60_000
"""A trace of which nothing was heard for so long is over: its job was killed, or cannot reach us."""
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
    """Recorded events in, catalog out. A trace that has ended takes nothing more."""

    def __init__(self) -> None:
        self._open: dict[str, LiveTrace] = {}
        self._ended: set[str] = set()

    def react(self, event: AnyEvent) -> Iterator[AnyEvent]:
        if isinstance(event, TraceCompleted | TraceRejected):
            self._end(event.trace_id)
        elif isinstance(event, Recorded) and event.trace_id not in self._ended:
            trace = self._open.setdefault(event.trace_id, LiveTrace(event.trace_id))
            yield from self._watched(trace.take(event))

    def settle(self) -> Iterator[AnyEvent]:
        yield from ()

    def restore(self, event: AnyEvent) -> None:
        for _ in self.react(event):
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
    rank_count: int | None = None  # files that were given


@dataclass(slots=True)
class _Run:
    """Consecutive rows of one step."""

    step: int | None
    batches: list[pa.RecordBatch]
    count: int


@dataclass(slots=True)
class _Rows:
    """Launches or ops of one rank as they arrive: in order of sequence number, each once."""

    next_seq: int = 0
    held: dict[int, pa.RecordBatch] = field(default_factory=dict)  # ahead of a gap, by first sequence number
    runs: deque[_Run] = field(default_factory=deque)  # not said yet

    def take(self, first_seq: int, rows: pa.RecordBatch) -> None:
        kept = self.held.get(first_seq)
        if rows.num_rows and (kept is None or kept.num_rows < rows.num_rows):
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
        for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(steps)], strict=True):
            step = int(steps[first]) if steps[first] >= 0 else None
            part = rows.slice(first, last - first)
            if self.runs and self.runs[-1].step == step:
                self.runs[-1].batches.append(part)
                self.runs[-1].count += part.num_rows
            else:
                self.runs.append(_Run(step, [part], part.num_rows))


@dataclass(slots=True)
class _Rank:
    launches: _Rows = field(default_factory=_Rows)
    ops: _Rows = field(default_factory=_Rows)
    steps: dict[int, StepRecorded] = field(default_factory=dict)  # heard, and waiting for their rows
    heard_steps: set[int] = field(default_factory=set)
    said_count: int = 0  # launches
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
        self._said_tasks: set[str] = set()
        self._said_indexes: set[int] = set()  # of those tasks: nearly all of a step's were said before
        self._said_signatures: set[str] = set()
        self._surveyed: set[tuple[object, ...]] = set()  # (name, grid, block) of kernels
        self._solved: dict[tuple[bytes, int], list[int]] = {}
        self._prompts: dict[int, int] = {}
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
        rank = self._ranks.setdefault(event.rank, _Rank())
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
        rank = self._ranks.setdefault(event.rank, _Rank())
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
        try:
            yield from self._advance(event.rank)
        except CannotDerive as reason:
            yield self._rejected(f"no GPU kernels were recorded and none can be derived: {reason}")
            return
        if self._is_whole:
            yield from self._finish(is_truncated=False)

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
        rows = rank.ops if self._is_derived else rank.launches
        while rows.runs:
            run = rows.runs[0]
            step = rank.steps.get(run.step) if run.step is not None else None
            promised = (step.op_count if self._is_derived else step.launch_count) if step else None
            if run.step is not None and (promised is None or run.count < promised):
                if not is_last:
                    return
                step = None  # a step that is not whole is none
            rows.runs.popleft()
            batch = pa.Table.from_batches(run.batches).unify_dictionaries().combine_chunks().to_batches()[0]
            if self._is_derived:
                if step is not None:
                    yield from self._say_derived(number, rank, step, batch)
            else:
                yield from self._say_launches(number, rank, step, batch)
            if run.step is not None:
                rank.steps.pop(run.step, None)

    def _say_launches(
        self, number: int, rank: _Rank, step: StepRecorded | None, rows: pa.RecordBatch
    ) -> Iterator[AnyEvent]:
        assert self._started is not None
        joint = joined_rows(rows)
        if rank.captures:
            tokens = sum(step.q_lengths) if step is not None else 0
            join_replays(joint, [rank.captures[key] for key in sorted(rank.captures)], [replay_of(joint, rows, tokens)])
            self._quality.capture_mismatch = self._quality.capture_mismatch or joint.raw.quality.capture_mismatch
        measure_quality(joint, self._quality)
        steps = [imported_step(step)] if step is not None else []
        inside = np.full(rows.num_rows, 0 if step is not None else -1, dtype=np.int64)
        task = self._tasks.of_rows(joint, inside, steps, self._started.world_size)
        if steps and steps[0].phase is not Phase.EMPTY:
            task = self._recovered(task, steps[0])
        yield from self._say_tasks(task.tolist())
        is_kernel = joint.gpu.is_kernel
        kernel_count = int(is_kernel.sum())
        self._kernel_count += kernel_count
        for index in np.unique(task[is_kernel]).tolist():
            signature = self._tasks.tasks[index].signature
            self._surveyed.add((signature.name, signature.grid, signature.block))
        if step is not None:
            yield self._step(steps[0], step, kernel_count)
        host_ns = np.asarray(rows.column("host_launch_ns").fill_null(-1), dtype=np.int64)
        yield from self._launch_events(
            number,
            rank,
            task,
            joint.gpu.start_ns,
            joint.gpu.duration_ns,
            stream=joint.gpu.stream,
            step=None if step is None else step.step,
            graph=joint.graph,
            host_ns=host_ns,
            is_kernel=is_kernel,
        )

    def _say_derived(self, number: int, rank: _Rank, step: StepRecorded, rows: pa.RecordBatch) -> Iterator[AnyEvent]:
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
        yield from self._launch_events(
            number,
            rank,
            np.array(task, dtype=np.int64),
            step.start_ns + np.arange(count, dtype=np.int64),
            unknown,
            stream=np.zeros(count, dtype=np.int64),
            step=step.step,
            graph=unknown,
            host_ns=unknown,
            is_kernel=is_kernel,
        )

    def _recovered(self, task: np.ndarray, step: ImportedStep) -> np.ndarray:
        """The tasks once shapes that no profiler told are solved; equal steps once."""
        assert self._started is not None
        key = (task.tobytes(), step.context_requests + step.generation_requests)
        if key not in self._solved:
            before = [self._tasks.tasks[number] for number in task]
            after = recover_step(before, self._model, self._started.world_size, key[1])
            self._solved[key] = [
                int(number) if new is old else self._tasks.add(new)
                for number, old, new in zip(task, before, after, strict=True)
            ]
        return np.array(self._solved[key], dtype=np.int32)

    def _say_tasks(self, indices: Sequence[int]) -> Iterator[AnyEvent]:
        for index in dict.fromkeys(indices):
            if index in self._said_indexes:
                continue
            self._said_indexes.add(index)
            task = self._tasks.tasks[index] = redacted(self._tasks.tasks[index], self._quality)
            if task.task_id in self._said_tasks:
                continue
            self._said_tasks.add(task.task_id)
            signature_id = task.signature.signature_id
            if signature_id not in self._said_signatures:
                self._said_signatures.add(signature_id)
                yield SignatureTraced(trace_id=self._trace_id, signature_id=signature_id, signature=task.signature)
            yield KernelTaskTraced(trace_id=self._trace_id, task_id=task.task_id, signature_id=signature_id, task=task)

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

    def _launch_events(
        self,
        number: int,
        rank: _Rank,
        task: np.ndarray,
        start_ns: np.ndarray,
        duration_ns: np.ndarray,
        *,
        stream: np.ndarray,
        step: int | None,
        graph: np.ndarray,
        host_ns: np.ndarray,
        is_kernel: np.ndarray,
    ) -> Iterator[LaunchesTraced]:
        base_ns = self._base_ns or 0
        for first in range(0, len(task), ROWS_PER_EVENT):
            part = slice(first, first + ROWS_PER_EVENT)
            used, codes = np.unique(task[part], return_inverse=True)
            ids = pa.array([self._tasks.tasks[index].task_id for index in used.tolist()], type=pa.string())
            count = len(codes)
            first_seq = rank.said_count
            rank.said_count += count
            rows = pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(number, type=pa.int32()), count),
                    pa.array(np.arange(first_seq, first_seq + count), type=pa.int64()),
                    pa.DictionaryArray.from_arrays(pa.array(codes, type=pa.int32()), ids),
                    pa.array(start_ns[part] - base_ns, type=pa.int64()),
                    pa.array(duration_ns[part], type=pa.int64(), mask=duration_ns[part] < 0),
                    pa.array(np.clip(stream[part], -1, 2**31 - 1), type=pa.int32()),
                    pa.repeat(pa.scalar(step, type=pa.int32()), count),
                    pa.array(graph[part], type=pa.int64(), mask=graph[part] < 0),
                    pa.array(host_ns[part] - base_ns, type=pa.int64(), mask=host_ns[part] < 0),
                    pa.array(is_kernel[part], type=pa.bool_()),
                ],
                schema=LAUNCHES,
            )
            yield LaunchesTraced(trace_id=self._trace_id, rank=number, first_seq=first_seq, rows=rows)

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
