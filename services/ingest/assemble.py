"""From a profiler's columns to kernel tasks, launches and steps: the part all importers share.

A kernel belongs to the step in whose annotation it was launched, on the launching thread, never to the step during
which the GPU ran it: with asynchronous scheduling that is the one before. What was launched between two annotations
(sampling, bookkeeping) belongs to the one before. Kernels whose launch lies outside the trace belong to none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
import orjson
from cascade_schemas.model import ModelSpec
from cascade_schemas.task import Dim3, KernelSignature, KernelTask, Lengths, Operand, OperandsFrom
from numpy.typing import NDArray

from services.ingest.annotations import StepWords, read_step
from services.ingest.derive import CannotDerive, TracedOp, derive_step, is_copy
from services.ingest.imported import (
    ImportedLaunches,
    ImportedStep,
    ImportedTrace,
    Phase,
    Provenance,
    QualityReport,
    TraceMetadata,
)
from services.ingest.names import canonical_name
from services.ingest.requests import reconstruct
from services.kernels.dtypes import canonical_dtype
from services.kernels.recognise import recognise
from services.kernels.recover import recover_step
from services.kernels.work import Family

Ints = NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)


class Collective(NamedTuple):
    """What the profiler says of a communication kernel."""

    name: str
    in_elements: int
    out_elements: int
    dtype: str
    group_size: int


class LaunchConfig(NamedTuple):
    """A launch configuration as written, each kept once."""

    name: str
    grid: Dim3 | None = None
    block: Dim3 | None = None
    cluster: Dim3 | None = None
    registers: int | None = None
    shared_memory_bytes: int | None = None
    moved_bytes: int | None = None  # copies: as the profiler says it, one way
    collective: Collective | None = None
    is_copy: bool = False


class OpFacts(NamedTuple):
    """A framework op with its arguments: `[shapes, types]` as JSON text, read only if needed."""

    name: str
    arguments: bytes = b""


@dataclass(frozen=True, slots=True)
class GpuColumns:
    """Kernels and copies; arrays of shape (rows,)."""

    start_ns: Ints
    duration_ns: Ints
    device: Ints
    stream: Ints
    correlation: Ints  # 0: none
    external: Ints  # -1: none
    config: Ints  # index into RawTrace.configs
    is_kernel: NDArray[np.bool_]
    graph_node: Ints  # 0: none

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> GpuColumns:
        """The rows of an index or a mask."""
        return GpuColumns(
            self.start_ns[index], self.duration_ns[index], self.device[index], self.stream[index],
            self.correlation[index], self.external[index], self.config[index], self.is_kernel[index],
            self.graph_node[index],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaunchColumns:
    """Host calls that may have put work on the GPU."""

    start_ns: Ints
    thread: Ints
    correlation: Ints
    external: Ints
    api: Ints  # index into RawTrace.apis
    config: Ints  # index into RawTrace.configs; -1: the call does not say


@dataclass(frozen=True, slots=True)
class OpColumns:
    """Framework ops on the host."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    external: Ints
    op: Ints  # index into RawTrace.ops


class Annotation(NamedTuple):
    """A named range on a host thread."""

    start_ns: int
    end_ns: int
    thread: int
    text: str


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    name: str = ""
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    dram_bytes: int | None = None


@dataclass(slots=True)
class RawTrace:
    """One process's recording; times in ns from `origin_unix_ns` or, where that is unknown, from its own start."""

    tool: str
    gpu: GpuColumns
    calls: LaunchColumns
    op_rows: OpColumns
    annotations: list[Annotation]
    configs: list[LaunchConfig]
    apis: list[str]
    ops: list[OpFacts]
    quality: QualityReport
    device: DeviceFacts = field(default_factory=DeviceFacts)
    origin_unix_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    engine: str = ""
    engine_version: str = ""
    has_host: bool = True  # whether the format records the calls that launch kernels
    has_timeline: bool = True  # whether starts were measured

    def launch_call_count(self) -> int:
        """Host calls that launch kernels or graphs."""
        launches = [index for index, api in enumerate(self.apis) if "Launch" in api]
        return int(np.isin(self.calls.api, launches).sum())


@dataclass(slots=True)
class Joined:
    """What is known of each GPU row of a RawTrace, once rows are sorted by start and their launches found."""

    raw: RawTrace
    gpu: GpuColumns
    call: Ints  # row of raw.calls; -1: its launch is not in the trace
    op: Ints  # index into raw.ops; -1: launched by none
    graph: Ints  # correlation of the graph launch that replayed it; -1: launched by itself
    from_capture: NDArray[np.bool_]
    captured_tokens: Ints  # tokens of the capture's batch size; 0: not from a capture


def joined(raw: RawTrace) -> Joined:
    """Find each row's launch and the op that made it."""
    gpu = _sane_rows(raw)
    order = np.argsort(gpu.start_ns, kind="stable")
    gpu = gpu.take(order)
    call = _first_match(raw.calls.correlation, gpu.correlation)
    op_row_of_call = ops_of_calls(raw)
    rows = np.where(call >= 0, _at(op_row_of_call, call), -1)
    is_graph_api = np.array(["GraphLaunch" in api for api in raw.apis], dtype=bool)
    launched_by_graph = (call >= 0) & _at(_at(is_graph_api, raw.calls.api), call, fill=False)
    rows[launched_by_graph] = -1  # the op around a graph launch is not the op of each of its kernels
    by_link = _first_match(raw.op_rows.external, gpu.external, missing=-1)
    by_link[(gpu.external == gpu.correlation) | launched_by_graph] = -1
    rows = np.where(rows >= 0, rows, by_link)
    # ROCm says shared memory on the launch only, and until 6.3 the grid too.
    gpu = _with_configs_of_calls(raw, gpu, call, launched_by_graph)
    zeros = np.zeros(len(rows), dtype=np.int64)
    return Joined(
        raw,
        gpu,
        call,
        _at(raw.op_rows.op, rows),
        np.where(launched_by_graph, gpu.correlation, -1),
        zeros.astype(bool),
        zeros,
    )


def ops_of_calls(raw: RawTrace) -> Ints:
    """Per host call, the row of the innermost op around it; -1 where there is none."""
    ops, calls = raw.op_rows, raw.calls
    around = innermost(ops.start_ns, ops.end_ns, ops.thread, calls.start_ns, calls.thread)
    # Where containment finds nothing, the profiler's own link may; older files put the correlation id there, though.
    linked = _first_match(ops.external, calls.external, missing=-1)
    linked[calls.external == calls.correlation] = -1
    return np.where(around >= 0, around, linked)


def innermost(starts: Ints, ends: Ints, threads: Ints, times: Ints, time_threads: Ints) -> Ints:
    """Per (time, thread), the row of the shortest range of that thread around it; -1 where there is none.

    Ranges of one thread nest; a child may end a little after its parent.
    """
    found = np.full(len(times), -1, dtype=np.int64)
    if not len(starts) or not len(times):
        return found
    for thread in np.unique(time_threads):
        of_thread = np.flatnonzero(threads == thread)
        if not len(of_thread):
            continue
        of_thread = of_thread[np.lexsort((-ends[of_thread], starts[of_thread]))]
        asked = np.flatnonzero(time_threads == thread)
        asked = asked[np.argsort(times[asked], kind="stable")]
        begin, end = starts[of_thread].tolist(), ends[of_thread].tolist()
        stack: list[int] = []
        at, count = 0, len(begin)
        answers = []
        for time in times[asked].tolist():
            while at < count and begin[at] <= time:
                opened = begin[at]
                while stack and end[stack[-1]] < opened:
                    stack.pop()
                stack.append(at)
                at += 1
            while stack and end[stack[-1]] < time:
                stack.pop()
            answers.append(stack[-1] if stack else -1)
        rows = np.array(answers, dtype=np.int64)
        found[asked] = np.where(rows >= 0, of_thread[rows], -1)
    return found


# Steps


@dataclass(slots=True)
class _Step:
    start_ns: int
    end_ns: int
    thread: int
    text: str
    words: StepWords


def find_steps(annotations: Sequence[Annotation]) -> list[_Step]:
    """Engine steps by start; nested annotations are one step: the outer's span, and the facts of the fuller."""
    read = [(a, words) for a in annotations if (words := read_step(a.text)) is not None]
    if any(words.engine for _, words in read):
        read = [(a, words) for a, words in read if words.engine]
    steps: list[_Step] = []
    open_step: dict[int, _Step] = {}
    for annotation, words in sorted(read, key=lambda pair: (pair[0].start_ns, -pair[0].end_ns)):
        outer = open_step.get(annotation.thread)
        if outer is not None and annotation.start_ns < outer.end_ns and words.engine:
            if not outer.words.q_lengths and (words.q_lengths or not outer.words.engine):
                outer.words, outer.text = words, annotation.text
            if words.engine == "sglang":
                outer.words = replace(outer.words, engine="sglang")
            continue
        step = _Step(annotation.start_ns, annotation.end_ns, annotation.thread, annotation.text, words)
        steps.append(step)
        open_step[annotation.thread] = step
    return steps


def step_of_times(steps: Sequence[_Step], times: Ints, threads: Ints) -> Ints:
    """Per host time, its step: the one around it on its thread, else the last one begun before it; -1 before all."""
    if not steps:
        return np.full(len(times), -1, dtype=np.int64)
    starts = np.array([s.start_ns for s in steps], dtype=np.int64)
    ends = np.array([s.end_ns for s in steps], dtype=np.int64)
    on = np.array([s.thread for s in steps], dtype=np.int64)
    around = innermost(starts, ends, on, times, threads)
    return np.where(around >= 0, around, np.searchsorted(starts, times, side="right") - 1)


# The whole


def assemble(
    joints: Sequence[Joined],
    *,
    source_gpu: str | None = None,
    model: ModelSpec | None = None,
    prompts: Lengths = (),
) -> ImportedTrace:
    """All ranks of one job as one trace."""
    raws = [joint.raw for joint in joints]
    ranks = _ranks(raws)
    offsets, origin_unix_ns = _offsets(joints)
    quality = _merged_quality([raw.quality for raw in raws])
    tasks = TaskTable()
    steps: list[ImportedStep] = []
    parts: list[ImportedLaunches] = []
    world_size = max([raw.world_size or 1 for raw in raws] + [len(raws)])
    engine = ""
    provenance: Provenance = "measured" if any(len(joint.gpu.start_ns) for joint in joints) else "recorded-on-cpu"
    for joint, rank, offset in sorted(zip(joints, ranks, offsets, strict=True), key=lambda triple: triple[1]):
        if provenance == "measured":
            own, rank_steps, launches = _assembled_rank(
                joint, rank, offset, len(steps), tasks, prompts, world_size, quality
            )
        else:
            own, rank_steps, launches = _derived_rank(
                joint, rank, offset, len(steps), tasks, prompts, world_size, model
            )
        engine = engine or joint.raw.engine or own
        steps.extend(rank_steps)
        parts.append(launches)
    launches = _concatenated(parts)
    if provenance == "measured":
        task = _recovered(launches, steps, tasks, model, world_size)
        launches = replace(launches, task=_compacted(_adopted(launches, task, tasks), tasks))
    device = next((raw.device for raw in raws if raw.device.name), raws[0].device)
    metadata = TraceMetadata(
        tool=raws[0].tool,
        provenance=provenance,
        gpu_name=device.name,
        compute_capability=device.compute_capability,
        sm_count=device.sm_count,
        dram_bytes=device.dram_bytes,
        engine=engine,
        engine_version=next((raw.engine_version for raw in raws if raw.engine_version), ""),
        model=model.name if model else "",
        rank_count=len(raws),
        world_size=world_size,
        started_at=_rfc3339(origin_unix_ns),
        graph_capture_joined=int(sum(int(joint.from_capture.sum()) for joint in joints)),
    )
    if not len(launches.task):
        raise CannotDerive("no engine step is annotated; record vLLM with its profiler, which annotates steps")
    if source_gpu and provenance == "measured" and not metadata.gpu_name:
        metadata = replace(metadata, gpu_name=source_gpu)
    _redact(tasks, steps, quality)
    return ImportedTrace(metadata, tasks.tasks, launches, steps, quality, prompts)


def _assembled_rank(
    joint: Joined,
    rank: int,
    offset_ns: int,
    first_step: int,
    tasks: TaskTable,
    prompts: Lengths,
    world_size: int,
    quality: QualityReport,
) -> tuple[str, list[ImportedStep], ImportedLaunches]:
    raw, gpu = joint.raw, joint.gpu
    measure_quality(joint, quality)
    found = find_steps(raw.annotations)
    has_call = joint.call >= 0
    host_ns = _at(raw.calls.start_ns, joint.call)
    if found:
        step = np.where(has_call, _at(step_of_times(found, raw.calls.start_ns, raw.calls.thread), joint.call), -1)
        steps = [_imported_step(s, rank, offset_ns) for s in found]
        for index, imported in enumerate(steps):
            if imported.phase is Phase.UNKNOWN:
                ops = raw.op_rows
                inside = (ops.start_ns >= found[index].start_ns) & (ops.start_ns <= found[index].end_ns)
                steps[index] = _phase_from_shapes(imported, [raw.ops[op] for op in np.unique(ops.op[inside])])
    elif len(gpu.start_ns) and raw.has_timeline:
        # No engine step at all: one step of unknown kind, around everything that was launched in the window.
        inside = has_call if has_call.any() else np.ones(len(has_call), dtype=bool)
        step = np.where(inside, 0, -1)
        begin = int(host_ns[has_call].min()) if has_call.any() else int(gpu.start_ns.min())
        end = int((gpu.start_ns + gpu.duration_ns)[inside].max())
        whole = ImportedStep(Phase.UNKNOWN, begin + offset_ns, max(end - begin, 0), rank=rank)
        steps = [_phase_from_shapes(whole, raw.ops)]
    else:
        step, steps = np.full(len(gpu.start_ns), -1, dtype=np.int64), []
    steps = reconstruct(steps, prompts)
    launches = ImportedLaunches(
        rank=np.full(len(step), rank, dtype=np.int32),
        task=tasks.of_rows(joint, step, steps, world_size),
        start_ns=gpu.start_ns + offset_ns,
        duration_ns=gpu.duration_ns,
        stream=np.clip(gpu.stream, -1, 2**31 - 1).astype(np.int32),
        step=np.where(step >= 0, step + first_step, -1).astype(np.int32),
        graph=joint.graph,
        host_launch_ns=np.where(has_call, host_ns + offset_ns, -1),
        is_kernel=gpu.is_kernel,
    )
    engine = next((s.words.engine for s in found if s.words.engine), "")
    return engine, steps, launches


def _recovered(
    launches: ImportedLaunches,
    steps: Sequence[ImportedStep],
    tasks: TaskTable,
    model: ModelSpec | None,
    world_size: int,
) -> NDArray[np.int32]:
    """The task of each launch once shapes that the trace left out are solved, step by step; equal steps once."""
    task = launches.task.copy()
    order = np.argsort(launches.step, kind="stable")
    bounds = np.searchsorted(launches.step[order], np.arange(len(steps) + 1))
    solved: dict[tuple[bytes, int], list[int]] = {}
    for index, step in enumerate(steps):
        if step.phase is Phase.EMPTY or (step.phase is Phase.UNKNOWN and model is None):
            continue
        rows = order[bounds[index] : bounds[index + 1]]
        sampled = step.context_requests + step.generation_requests if step.annotation else 0
        key = (task[rows].tobytes(), sampled)
        if key not in solved:
            before = [tasks.tasks[number] for number in task[rows]]
            after = recover_step(before, model, world_size, sampled)
            solved[key] = [
                int(number) if new is old else tasks.add(new)
                for number, old, new in zip(task[rows], before, after, strict=True)
            ]
        task[rows] = solved[key]
    return task


def _adopted(launches: ImportedLaunches, task: NDArray[np.int32], tasks: TaskTable) -> NDArray[np.int32]:
    """Kernels launched before the window have no op. Where every launch of the same configuration inside the window is
    one task, they are that task too; not so for attention, whose work depends on the step.
    """
    outside = launches.is_kernel & (launches.step < 0)
    if not outside.any():
        return task
    inside_tasks: dict[KernelSignature, set[int]] = {}
    for number in np.unique(task[launches.is_kernel & (launches.step >= 0)]).tolist():
        inside_tasks.setdefault(tasks.tasks[number].signature, set()).add(number)
    adopted = task.copy()
    for number in np.unique(task[outside]).tolist():
        twins = inside_tasks.get(tasks.tasks[number].signature, set())
        if len(twins) == 1 and not (tasks.tasks[twin := next(iter(twins))].q_lengths):
            adopted[outside & (task == number)] = twin
    return adopted


def _compacted(task: NDArray[np.int32], tasks: TaskTable) -> NDArray[np.int32]:
    """Drop tasks that no launch has any more; the others keep their order of first launch."""
    used, first, inverse = np.unique(task, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    tasks.tasks = [tasks.tasks[number] for number in used[order]]
    place = np.empty(len(used), dtype=np.int32)
    place[order] = np.arange(len(used), dtype=np.int32)
    return place[inverse.reshape(-1)]


def _derived_rank(
    joint: Joined,
    rank: int,
    offset_ns: int,
    first_step: int,
    tasks: TaskTable,
    prompts: Lengths,
    world_size: int,
    model: ModelSpec | None,
) -> tuple[str, list[ImportedStep], ImportedLaunches]:
    """The kernels a GPU would run for the ops recorded in each step. They have an order but no times."""
    raw = joint.raw
    found = find_steps(raw.annotations)
    steps = reconstruct([_imported_step(s, rank, offset_ns) for s in found], prompts)
    step_of_op = step_of_times(found, raw.op_rows.start_ns, raw.op_rows.thread)
    order = np.lexsort((-raw.op_rows.end_ns, raw.op_rows.start_ns))  # parents before their children
    traced = [TracedOp(facts.name, *_columns(read_arguments(facts))) for facts in raw.ops]
    task: list[int] = []
    step: list[int] = []
    start_ns: list[int] = []
    is_kernel: list[bool] = []
    for index, imported in enumerate(steps):
        rows = order[step_of_op[order] == index]
        derived = derive_step([traced[op] for op in raw.op_rows.op[rows]], imported, model, world_size)
        for place, derived_task in enumerate(derived):
            task.append(tasks.add(derived_task))
            step.append(first_step + index)
            start_ns.append(imported.start_ns + place)
            is_kernel.append(not is_copy(derived_task))
    count = len(task)
    launches = ImportedLaunches(
        rank=np.full(count, rank, dtype=np.int32),
        task=np.array(task, dtype=np.int32),
        start_ns=np.array(start_ns, dtype=np.int64),
        duration_ns=np.full(count, -1, dtype=np.int64),
        stream=np.zeros(count, dtype=np.int32),
        step=np.array(step, dtype=np.int32),
        graph=np.full(count, -1, dtype=np.int64),
        host_launch_ns=np.full(count, -1, dtype=np.int64),
        is_kernel=np.array(is_kernel, dtype=bool),
    )
    engine = next((s.words.engine for s in found if s.words.engine), "")
    return engine, steps, launches


def _columns(arguments: list[tuple[tuple[int, ...], str]]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    return tuple(shape for shape, _ in arguments), tuple(word for _, word in arguments)


def _imported_step(step: _Step, rank: int, offset_ns: int) -> ImportedStep:
    words = step.words
    return ImportedStep(
        phase=words.phase,
        start_ns=step.start_ns + offset_ns,
        duration_ns=step.end_ns - step.start_ns,
        context_requests=words.context_requests,
        context_tokens=words.context_tokens,
        generation_requests=words.generation_requests,
        generation_tokens=words.generation_tokens,
        q_lengths=words.q_lengths,
        kv_lengths=words.kv_lengths,
        annotation=step.text[:200],
        rank=rank,
    )


_MATMULS = ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul")


def _phase_from_shapes(step: ImportedStep, ops: Sequence[OpFacts]) -> ImportedStep:
    """A forward pass without an engine's annotation: token ids of shape (requests, tokens) into the embedding, and
    matrix products with as many rows, tell prefill (tokens > 1) from decode. Backward passes stay unknown.
    """
    if any("backward" in facts.name.lower() or "Optimizer" in facts.name for facts in ops):
        return step
    ids = [shapes for facts in ops if facts.name == "aten::embedding" and (shapes := read_shapes(facts))]
    rows_of = {shape[0] for facts in ops if facts.name in _MATMULS for shape in read_shapes(facts) if len(shape) == 2}
    for shapes in ids:
        if len(shapes) > 1 and len(shapes[1]) == 2:
            requests, tokens = shapes[1]
            if 0 < requests <= 65_536 and tokens > 0 and requests * tokens in rows_of:
                lengths = (tokens,) * requests
                if tokens > 1:
                    return replace(step, phase=Phase.PREFILL, context_requests=requests,
                                   context_tokens=requests * tokens, q_lengths=lengths, kv_lengths=lengths)  # fmt: skip
                return replace(step, phase=Phase.DECODE, generation_requests=requests, generation_tokens=requests)
    return step


# Tasks

_ATTENTION = frozenset(
    (
        Family.ATTENTION_PREFILL, Family.ATTENTION_DECODE, Family.ATTENTION_MIXED, Family.ATTENTION_COMBINE, Family.MLA,
    )
)  # fmt: skip


def has_lengths(config: LaunchConfig) -> bool:
    """Whether the work of such a launch depends on the lengths of the step's requests: attention's does."""
    return not config.is_copy and recognise(canonical_name(config.name)).family in _ATTENTION


class TaskTable:
    """Tasks of all ranks, each once."""

    def __init__(self) -> None:
        self.tasks: list[KernelTask] = []
        self.index: dict[tuple[object, ...], int] = {}
        self.signatures: dict[LaunchConfig, KernelSignature] = {}
        self.operands: dict[OpFacts, tuple[Operand, ...]] = {}
        self.seen: dict[tuple[object, ...], int] = {}  # by what a row says: words are hashed faster than tasks

    def add(self, task: KernelTask) -> int:
        """The index of a task made elsewhere."""
        return self._numbered((task.task_id,), task)

    def of_rows(self, joint: Joined, step: Ints, steps: Sequence[ImportedStep], world_size: int) -> NDArray[np.int32]:
        """The task of each GPU row. Only what fixes a kernel's work tells tasks apart, so that layers and equal steps
        share theirs: tokens for kernels, lengths for attention, neither for copies.
        """
        raw, gpu = joint.raw, joint.gpu
        is_attention = np.zeros(len(raw.configs), dtype=bool)
        for config in np.unique(gpu.config):
            is_attention[config] = has_lengths(raw.configs[config])
        tokens_of = np.array([s.context_tokens + s.generation_tokens for s in steps] + [0], dtype=np.int64)
        lengths: dict[tuple[Lengths, Lengths], int] = {((), ()): 0}
        lengths_of = np.array(
            [lengths.setdefault((s.q_lengths, s.kv_lengths), len(lengths)) for s in steps] + [0], dtype=np.int64
        )
        tokens = np.where(gpu.is_kernel, np.maximum(tokens_of[step], joint.captured_tokens), 0)
        length = np.where(is_attention[gpu.config] & gpu.is_kernel, lengths_of[step], 0)
        columns = (gpu.config, joint.op, joint.from_capture.astype(np.int64), tokens, length,
                   gpu.is_kernel.astype(np.int64))  # fmt: skip
        _, first, inverse = np.unique(combined(columns), return_index=True, return_inverse=True)
        distinct = np.stack([column[first] for column in columns], axis=1)
        by_length = list(lengths)
        numbers = np.empty(len(distinct), dtype=np.int32)
        for at in np.argsort(first, kind="stable"):  # tasks in order of first launch
            config, op, from_capture, m, which, is_kernel = (int(value) for value in distinct[at])
            q, kv = by_length[which]
            facts = raw.ops[op] if op >= 0 else None
            numbers[at] = self.of_launch(
                raw.configs[config], facts, bool(from_capture), m, q, kv, bool(is_kernel), world_size
            )
        return numbers[inverse.reshape(-1)]

    def of_launch(
        self,
        config: LaunchConfig,
        facts: OpFacts | None,
        from_capture: bool,
        tokens: int,
        q: Lengths,
        kv: Lengths,
        is_kernel: bool,
        world_size: int,
    ) -> int:
        """The task of a launch that says this; tokens, q, kv: only as far as they fix its work."""
        said = (config, facts, from_capture, tokens, q, kv, is_kernel, world_size)
        if (number := self.seen.get(said)) is None:
            number = self.seen[said] = self._row(*said)
        return number

    def _row(
        self,
        config: LaunchConfig,
        facts: OpFacts | None,
        from_capture: bool,
        tokens: int,
        q: Lengths,
        kv: Lengths,
        is_kernel: bool,
        world_size: int,
    ) -> int:
        signature = self._signature(config)
        op = facts.name if facts else ""
        operands = self._operands(facts) if facts and is_kernel else ()
        collective = config.collective
        ranks = 1
        if is_kernel and (collective or recognise(signature.name).family is Family.COLLECTIVE):
            ranks = (collective.group_size if collective else 0) or world_size
            if collective:
                dtype = canonical_dtype(collective.dtype)
                sizes = (collective.in_elements, collective.out_elements)
                operands = tuple(Operand(dtype=dtype, shape=(size,)) for size in dict.fromkeys(sizes))
                op = op or collective.name
        moved = None
        if not is_kernel:
            # Copies read and write; a memset only writes. The op around a copy does not change it.
            one_way = config.moved_bytes
            moved = None if one_way is None else one_way if "memset" in config.name.lower() else 2 * one_way
            op = ""
        origin: OperandsFrom = "none" if not operands else "capture" if from_capture else "traced"
        key = (signature, op, operands, origin, tokens, q, kv, ranks, moved)
        known = self.index.get(key)
        if known is not None:
            return known
        task = KernelTask(
            signature=signature, op=op, operands=operands, operands_from=origin, tokens=tokens or None,
            q_lengths=q, kv_lengths=kv, ranks=ranks, moved_bytes=moved, attributes={},
        )  # fmt: skip
        return self._numbered(key, task)

    def _numbered(self, key: tuple[object, ...], task: KernelTask) -> int:
        known = self.index.get(key)
        if known is None:
            known = self.index[key] = len(self.tasks)
            self.tasks.append(task)
        return known

    def _signature(self, config: LaunchConfig) -> KernelSignature:
        bare = config._replace(
            name=config.name if config.is_copy else canonical_name(config.name), moved_bytes=None, collective=None
        )
        signature = self.signatures.get(bare)
        if signature is None:
            signature = self.signatures[bare] = KernelSignature(
                name=bare.name, grid=bare.grid, block=bare.block, cluster=bare.cluster,
                registers=bare.registers, shared_memory_bytes=bare.shared_memory_bytes,
            )  # fmt: skip
        return signature

    def _operands(self, facts: OpFacts) -> tuple[Operand, ...]:
        operands = self.operands.get(facts)
        if operands is None:
            operands = self.operands[facts] = read_operands(facts)
        return operands


_NO_TENSOR = frozenset(
    ("", "Scalar", "ScalarList", "GenericList", "None", "String", "Device", "Bool", "Int", "Double", "IntList")
)


def read_arguments(facts: OpFacts) -> list[tuple[tuple[int, ...], str]]:
    """(shape, type as the profiler says it) of every argument in order; a list of tensors gives one each."""
    if not facts.arguments:
        return []
    shapes, types = (value if isinstance(value, list) else [] for value in orjson.loads(facts.arguments))
    arguments: list[tuple[tuple[int, ...], str]] = []
    for index, shape in enumerate(shapes):
        kind = types[index] if index < len(types) else ""
        if isinstance(shape, list) and shape and all(isinstance(part, list) for part in shape):
            for part, words in zip(shape, kind if isinstance(kind, list) else [kind] * len(shape), strict=False):
                arguments.append((_dims(part), words if isinstance(words, str) else ""))
        else:
            arguments.append((_dims(shape), kind if isinstance(kind, str) else ""))
    return arguments


def read_shapes(facts: OpFacts) -> list[tuple[int, ...]]:
    return [shape for shape, _ in read_arguments(facts)]


def read_operands(facts: OpFacts) -> tuple[Operand, ...]:
    """The tensors among an op's arguments; scalars are none."""
    return tuple(
        Operand(dtype=canonical_dtype(word), shape=shape)
        for shape, word in read_arguments(facts)
        if shape or word not in _NO_TENSOR
    )


def _dims(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(int(size) for size in value if isinstance(size, int | float) and 0 <= size < 2**62)


# Quality


def _sane_rows(raw: RawTrace) -> GpuColumns:
    """Rows that can have happened: not ending before they start, not recorded twice."""
    gpu, quality = raw.gpu, raw.quality
    backwards = gpu.duration_ns < 0
    quality.negative_duration_count += int(backwards.sum())
    # A re-registered timestamp callback puts the first kernels of a session about a day (1e14 ns) away.
    call = _first_match(raw.calls.correlation, gpu.correlation)
    astray = (call >= 0) & (gpu.start_ns < _at(raw.calls.start_ns, call) - _ASTRAY_NS)
    quality.before_launch_count += int(astray.sum())
    gpu = gpu.take(~(backwards | astray))
    parts = (gpu.correlation, gpu.start_ns, gpu.duration_ns, gpu.device, gpu.stream, gpu.config)
    order = np.lexsort(parts[::-1])
    repeats = np.logical_and.reduce([part[order][1:] == part[order][:-1] for part in parts])
    is_first = np.ones(len(order), dtype=bool)
    is_first[order[1:][repeats]] = False
    is_first |= gpu.correlation <= 0  # without an id, equal rows may be different launches in one microsecond
    quality.duplicate_count += int((~is_first).sum())
    return gpu.take(is_first)


_ASTRAY_NS = 3_600_000_000_000
CLOCK_TOLERANCE_NS = 1_000_000  # host and device clocks are aligned by interpolation
_LONG_OVERRUN_NS = 100_000  # programmatic dependent launch overlaps by microseconds


def measure_quality(joint: Joined, quality: QualityReport) -> None:
    """Count what is odd about the rows, and cut durations that cannot be."""
    raw, gpu = joint.raw, joint.gpu
    kernels = np.flatnonzero(gpu.is_kernel)
    call = joint.call[kernels]
    quality.launchless_count += int((call < 0).sum()) if raw.has_host else 0
    has_no_grid = np.array([config.grid is None for config in raw.configs] or [False])
    quality.gridless_count += int(has_no_grid[gpu.config[kernels]].sum())
    quality.zero_duration_count += int((gpu.duration_ns[kernels] == 0).sum())
    early = (call >= 0) & (gpu.start_ns[kernels] < _at(raw.calls.start_ns, call) - CLOCK_TOLERANCE_NS)
    quality.before_launch_count += int(early.sum())
    # Kernels one after another on a stream
    order = kernels[np.lexsort((gpu.start_ns[kernels], gpu.stream[kernels], gpu.device[kernels]))]
    before, after = order[:-1], order[1:]
    same = (gpu.device[before] == gpu.device[after]) & (gpu.stream[before] == gpu.stream[after])
    clip_overruns(gpu.start_ns, gpu.duration_ns, order, same, quality)
    # Graph launches that left no kernel record
    is_graph_api = np.array(["GraphLaunch" in api for api in raw.apis], dtype=bool)
    graph_calls = np.flatnonzero(_at(is_graph_api, raw.calls.api, fill=False))
    with_kernels = np.unique(joint.graph[joint.graph >= 0])
    opaque = ~np.isin(raw.calls.correlation[graph_calls], with_kernels)
    quality.opaque_graph_launch_count = max(quality.opaque_graph_launch_count, int(opaque.sum()))


def clip_overruns(
    start_ns: Ints, duration_ns: Ints, order: NDArray[np.intp], same: NDArray[np.bool_], quality: QualityReport
) -> None:
    """Count kernels that overlap the next of their stream, and cut those that cannot.

    order: rows of kernels, by stream and start; same: whether each is followed by one of its stream.
    """
    before, after = order[:-1], order[1:]
    overrun = start_ns[before] + duration_ns[before] - start_ns[after]
    quality.overlap_count += int((same & (overrun > 1)).sum())
    room = start_ns[after] - start_ns[before]
    is_false = same & (overrun > _LONG_OVERRUN_NS) & (duration_ns[before] > 4 * np.maximum(room, 1)) & (room > 0)
    duration_ns[before[is_false]] = room[is_false]
    quality.overrun_clipped_count += int(is_false.sum())


def _merged_quality(reports: Sequence[QualityReport]) -> QualityReport:
    merged = QualityReport()
    for report in reports:
        for name in QualityReport.__slots__:
            own, more = getattr(merged, name), getattr(report, name)
            if isinstance(own, bool):
                setattr(merged, name, own or more)
            elif isinstance(own, list):
                own.extend(note for note in more if note not in own)
            elif isinstance(own, str):
                setattr(merged, name, own or more)
            else:
                setattr(merged, name, own + more)
    return merged


_SECRET = re.compile(
    r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{12,}|xox[abp]-[\w-]{10,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}|://[^/\s:@]+:[^/\s@]+@|(?i:(?:password|passwd|secret|api_?key|access_?token)\s*[=:]\s*\S+)"
)


def _redact(tasks: TaskTable, steps: list[ImportedStep], quality: QualityReport) -> None:
    """Names are the only free text kept; one that carries a secret is withheld."""
    tasks.tasks = [redacted(task, quality) for task in tasks.tasks]
    for index, step in enumerate(steps):
        if _SECRET.search(step.annotation):
            quality.redacted_count += 1
            steps[index] = replace(step, annotation=_SECRET.sub("(withheld)", step.annotation))


def redacted(task: KernelTask, quality: QualityReport) -> KernelTask:
    """The task without what looks like a secret in its names."""
    found = sum(_looks_secret(text) for text in (task.op, task.signature.name))
    if not found:
        return task
    quality.redacted_count += found
    clean = task.signature.model_copy(update={"name": _SECRET.sub("(withheld)", task.signature.name)})
    return task.model_copy(update={"op": _SECRET.sub("(withheld)", task.op), "signature": clean})


@lru_cache(maxsize=65_536)  # a recording says the same few names with every step
def _looks_secret(text: str) -> bool:
    return _SECRET.search(text) is not None


# Ranks and clocks


def _ranks(raws: Sequence[RawTrace]) -> list[int]:
    """Each file's rank as it says; in order of the files where they do not say, or say the same twice."""
    said = [raw.rank for raw in raws]
    known = [rank for rank in said if rank is not None]
    if len(known) == len(said) and len(set(known)) == len(known):
        return known
    return list(range(len(raws)))


def _offsets(joints: Sequence[Joined]) -> tuple[list[int], int | None]:
    """(ns to add to each file's times, unix time of the trace's start): the earliest event of all files is at 0."""
    firsts = [_first_ns(joint) for joint in joints]
    origins = [joint.raw.origin_unix_ns for joint in joints]
    known = [origin + first for origin, first in zip(origins, firsts, strict=True) if origin is not None]
    if len(known) < len(joints):
        return [-first for first in firsts], (known[0] if known else None)
    start = min(known)
    return [origin - start for origin in origins if origin is not None], start


def _first_ns(joint: Joined) -> int:
    raw = joint.raw
    columns = (joint.gpu.start_ns, raw.calls.start_ns, raw.op_rows.start_ns)
    firsts = [int(column.min()) for column in columns if len(column)]
    return min(firsts + [a.start_ns for a in raw.annotations], default=0)


def _rfc3339(unix_ns: int | None) -> str:
    if unix_ns is None or not 0 < unix_ns < 1 << 62:
        return ""
    seconds, ns = divmod(unix_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ns // 1000:06d}Z"


# Columns


def _concatenated(parts: Sequence[ImportedLaunches]) -> ImportedLaunches:
    columns = {name: [getattr(part, name) for part in parts] for name in ImportedLaunches.__slots__}
    return ImportedLaunches(**{name: np.concatenate(column) for name, column in columns.items()})


def combined(columns: Sequence[Ints]) -> Ints:
    """One integer per row, equal where all columns are: sorting rows of several columns is ten times as slow."""
    key, size = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if len(column) and column.min() == column.max():
            continue  # tells nothing apart: most columns of a single step
        values, code = np.unique(column, return_inverse=True)
        if size * len(values) >= 1 << 62:
            held, key = np.unique(key, return_inverse=True)
            size = len(held)
        key = key.reshape(-1) * len(values) + code.reshape(-1)
        size *= len(values)
    return key


def _first_match(keys: Ints, asked: Ints, missing: int = 0) -> Ints:
    """Per asked key, the first row that has it; -1 for none and for the key that means "none"."""
    if not len(keys):
        return np.full(len(asked), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.minimum(np.searchsorted(ordered, asked), len(ordered) - 1)
    return np.where((ordered[at] == asked) & (asked != missing) & (asked >= 0), order[at], -1)


def _at(column: NDArray[_T], index: Ints, fill: int | bool = -1) -> NDArray[_T]:
    """column[index], with `fill` where the index is -1."""
    if not len(column):
        return np.full(len(index), fill, dtype=column.dtype)
    picked = column[np.maximum(index, 0)]
    picked[index < 0] = fill
    return picked


def _with_configs_of_calls(raw: RawTrace, gpu: GpuColumns, call: Ints, by_graph: NDArray[np.bool_]) -> GpuColumns:
    """Where a call tells more of its launch than the GPU's record (ROCm), the record takes it."""
    said_by_call = _at(raw.calls.config, call)
    said_by_call[by_graph] = -1
    if not (said_by_call >= 0).any():
        return gpu
    _, first, inverse = np.unique(combined((gpu.config, said_by_call)), return_index=True, return_inverse=True)
    distinct = np.stack([gpu.config[first], said_by_call[first]], axis=1)
    known = {config: index for index, config in enumerate(raw.configs)}
    merged = np.empty(len(distinct), dtype=np.int64)
    for index, (own, theirs) in enumerate(distinct.tolist()):
        merged[index] = own
        if theirs >= 0:
            config, said = raw.configs[own], raw.configs[theirs]
            config = config._replace(
                grid=config.grid or said.grid,
                block=config.block or said.block,
                shared_memory_bytes=(
                    said.shared_memory_bytes if config.shared_memory_bytes is None else config.shared_memory_bytes
                ),
                moved_bytes=said.moved_bytes if config.moved_bytes is None else config.moved_bytes,
            )
            at = known.setdefault(config, len(raw.configs))
            if at == len(raw.configs):
                raw.configs.append(config)
            merged[index] = at
    return replace(gpu, config=merged[inverse.reshape(-1)])
