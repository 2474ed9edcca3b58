"""What steps have in common: what was found out about one is kept as a pattern, and is true of each that has it.

A decode step launches what the step before it launched, and works on the same shapes but for the lengths of attention.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from cascade_schemas.model import ModelSpec
from cascade_schemas.task import KernelTask, Lengths
from numpy.typing import NDArray

from services.ingest.assemble import (
    GpuColumns,
    Ints,
    Joined,
    LaunchColumns,
    LaunchConfig,
    OpColumns,
    OpFacts,
    RawTrace,
    TaskTable,
    combined,
    has_lengths,
)
from services.ingest.graphs import Capture, Replay, join_replays
from services.ingest.imported import ImportedStep, Phase, QualityReport
from services.ingest.recorded import Fact, FactTable, RecordedColumns
from services.kernels.recover import recover_step

_PATTERNS_REMEMBERED = 512  # 30 KB each; a job that batches continuously has a few for each number of tokens
_NO_LENGTHS: tuple[Lengths, Lengths] = ((), ())
_NO_GRAPHS = np.empty(0, dtype=np.int64)


class _Kind(NamedTuple):
    """What launches of one kind say; `has_lengths`: their work depends on those of the step's requests."""

    config: LaunchConfig
    op: OpFacts | None
    from_capture: bool
    captured_tokens: int
    has_lengths: bool

    @property
    def is_kernel(self) -> bool:
        return not self.config.is_copy


class _Moving(NamedTuple):
    """A task that is another one for other lengths: the kind it is made from, and what recovery adds to it."""

    place: int
    kind: _Kind
    recovered: dict[str, Any]


@dataclass(slots=True)
class _Solved:
    """The tasks of a pattern for a number of tokens."""

    numbers: NDArray[np.int32]  # per distinct task, in order of first launch; those of `moving` are of some lengths
    moving: list[_Moving]
    of_row: NDArray[np.intp]  # per launch its place in `numbers`
    rows: NDArray[np.int32]  # numbers[of_row]
    is_kernel: list[bool]  # per distinct task


class StepTasks(NamedTuple):
    """The tasks of a step's launches, by number in the trace's TaskTable."""

    rows: NDArray[np.int32]  # per launch
    distinct: list[int]  # in order of first launch; of different kinds they may be one
    is_kernel: list[bool]  # per distinct one


@dataclass(slots=True)
class Pattern:
    """What the launches of a step say beside their times, told apart by what fixes a kernel's work."""

    kinds: list[_Kind]  # in order of first launch
    of_row: NDArray[np.intp]
    is_kernel: NDArray[np.bool_]  # per launch
    kernel_count: int
    gridless_count: int
    capture_mismatch: str
    solved: dict[tuple[int, int], _Solved] = field(default_factory=dict)  # by tokens and sampled rows


class Patterns:
    """The patterns of one trace, the last few hundred of them."""

    def __init__(self, facts: FactTable, tasks: TaskTable) -> None:
        self._facts = facts
        self._tasks = tasks
        self._known: OrderedDict[tuple[object, ...], Pattern] = OrderedDict()

    def of(self, rows: RecordedColumns, captures: Sequence[Capture], tokens: int) -> Pattern:
        """The pattern of one step's launches; replays of graphs are told by the captures."""
        graphs = _replayed(rows, self._facts.is_kernel(rows.fact)) if captures else _NO_GRAPHS
        key = (rows.fact.tobytes(), graphs.tobytes(), *((len(captures), tokens) if len(graphs) else ()))
        pattern = self._known.get(key)
        if pattern is None:
            pattern = self._known[key] = self._read(rows, graphs, captures, tokens)
            if len(self._known) > _PATTERNS_REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return pattern

    def tasks_of(
        self, pattern: Pattern, step: ImportedStep | None, model: ModelSpec | None, world_size: int
    ) -> StepTasks:
        """The task of each launch, shapes that no profiler told solved where the launches are a step's."""
        tokens, lengths, sampled = 0, _NO_LENGTHS, -1
        if step is not None:
            tokens, lengths = step.context_tokens + step.generation_tokens, (step.q_lengths, step.kv_lengths)
            if step.phase is not Phase.EMPTY:
                sampled = step.context_requests + step.generation_requests
        solved = pattern.solved.get((tokens, sampled))
        if solved is None:
            solved = self._solved(pattern, tokens, lengths, sampled, model, world_size)
            pattern.solved[tokens, sampled] = solved
        if not solved.moving:
            return StepTasks(solved.rows, solved.numbers.tolist(), solved.is_kernel)
        numbers = solved.numbers.copy()
        for place, kind, recovered in solved.moving:
            number = self._number(kind, tokens, lengths, world_size)
            if recovered:
                number = self._tasks.add(self._tasks.tasks[number].model_copy(update=recovered))
            numbers[place] = number
        return StepTasks(numbers[solved.of_row], numbers.tolist(), solved.is_kernel)

    # --- a pattern that is new ----------------------------------------------------------------------------------

    def _read(self, rows: RecordedColumns, graphs: Ints, captures: Sequence[Capture], tokens: int) -> Pattern:
        used, own = np.unique(rows.fact, return_inverse=True)
        facts = [self._facts.facts[number] for number in used.tolist()]
        joint = _joint(facts, own.reshape(-1), graphs)
        mismatch = ""
        if len(graphs):
            join_replays(joint, captures, [Replay(tokens, range(int(graphs.max()) + 1))])
            mismatch = joint.raw.quality.capture_mismatch
        configs, ops = joint.raw.configs, joint.raw.ops
        columns = (joint.gpu.config, joint.op, joint.from_capture.astype(np.int64), joint.captured_tokens)
        _, first, inverse = np.unique(combined(columns), return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        place = np.empty(len(order), dtype=np.intp)
        place[order] = np.arange(len(order))
        kinds = []
        for row in first[order].tolist():
            config, op = configs[int(joint.gpu.config[row])], int(joint.op[row])
            facts_of_op = ops[op] if op >= 0 else None
            captured = int(joint.captured_tokens[row])
            kinds.append(_Kind(config, facts_of_op, bool(joint.from_capture[row]), captured, has_lengths(config)))
        of_row = place[inverse.reshape(-1)]
        is_kernel = np.array([kind.is_kernel for kind in kinds], dtype=bool)[of_row]
        is_gridless = np.array([kind.is_kernel and kind.config.grid is None for kind in kinds], dtype=bool)[of_row]
        return Pattern(kinds, of_row, is_kernel, int(is_kernel.sum()), int(is_gridless.sum()), mismatch)

    def _solved(
        self,
        pattern: Pattern,
        tokens: int,
        lengths: tuple[Lengths, Lengths],
        sampled: int,
        model: ModelSpec | None,
        world_size: int,
    ) -> _Solved:
        """sampled: rows of the lm_head, 0: as many as tokens; -1: nothing is recovered."""
        of_kind = np.array([self._number(kind, tokens, lengths, world_size) for kind in pattern.kinds], dtype=np.int32)
        before = of_kind[pattern.of_row]
        after = before
        told: dict[tuple[int, int], dict[str, Any]] = {}  # by kind and recovered task: what recovery added
        if sampled >= 0:
            tasks = [self._tasks.tasks[number] for number in before.tolist()]
            recovered = recover_step(tasks, model, world_size, sampled)
            numbers = []
            for kind, number, old, new in zip(pattern.of_row.tolist(), before.tolist(), tasks, recovered, strict=True):
                numbers.append(number if new is old else self._tasks.add(new))
                if new is not old and pattern.kinds[kind].has_lengths:
                    told[kind, numbers[-1]] = _told(old, new)
            after = np.array(numbers, dtype=np.int32)
        _, first, inverse = np.unique(
            combined((pattern.of_row, after.astype(np.int64))), return_index=True, return_inverse=True
        )
        order = np.argsort(first, kind="stable")
        place = np.empty(len(order), dtype=np.intp)
        place[order] = np.arange(len(order))
        distinct = after[first[order]]
        kinds = pattern.of_row[first[order]].tolist()
        moving = [
            _Moving(at, pattern.kinds[kind], told.get((kind, number), {}))
            for at, (kind, number) in enumerate(zip(kinds, distinct.tolist(), strict=True))
            if pattern.kinds[kind].has_lengths
        ]
        is_kernel = [pattern.kinds[kind].is_kernel for kind in kinds]
        return _Solved(distinct, moving, place[inverse.reshape(-1)], after, is_kernel)

    def _number(self, kind: _Kind, tokens: int, lengths: tuple[Lengths, Lengths], world_size: int) -> int:
        q, kv = lengths if kind.has_lengths else _NO_LENGTHS
        m = max(tokens, kind.captured_tokens) if kind.is_kernel else 0
        return self._tasks.of_launch(kind.config, kind.op, kind.from_capture, m, q, kv, kind.is_kernel, world_size)


def _told(old: KernelTask, new: KernelTask) -> dict[str, Any]:
    return {name: value for name in KernelTask.model_fields if (value := getattr(new, name)) != getattr(old, name)}


def _replayed(rows: RecordedColumns, is_kernel: NDArray[np.bool_]) -> Ints:
    """Per launch which of the step's graph replays it is of, counted as the host made them (-1: of none); empty where
    no graph was replayed.
    """
    inside = np.flatnonzero((rows.graph >= 0) & is_kernel)
    if not len(inside):
        return _NO_GRAPHS
    ids, first, own = np.unique(rows.graph[inside], return_index=True, return_inverse=True)
    began_ns = np.full(len(ids), np.iinfo(np.int64).max)
    np.minimum.at(began_ns, own, rows.host_launch_ns[inside])
    place = np.empty(len(ids), dtype=np.int64)
    place[np.lexsort((first, began_ns))] = np.arange(len(ids))
    graphs = np.full(rows.num_rows, -1, dtype=np.int64)
    graphs[inside] = place[own]
    return graphs


def _joint(facts: Sequence[Fact], fact: Ints, graphs: Ints) -> Joined:
    """Launches as importers join them, without times: the SDK found their calls and ops where they were recorded."""
    configs = list(dict.fromkeys(one.config for one in facts))
    ops = list(dict.fromkeys(one.op for one in facts if one.op is not None))
    of_config = {config: number for number, config in enumerate(configs)}
    of_op = {op: number for number, op in enumerate(ops)}
    config = np.array([of_config[one.config] for one in facts], dtype=np.int64)[fact]
    op = np.array([-1 if one.op is None else of_op[one.op] for one in facts], dtype=np.int64)[fact]
    is_kernel = np.array([not one.config.is_copy for one in facts], dtype=bool)[fact]
    zeros, none, empty = np.zeros(len(fact), dtype=np.int64), np.full(len(fact), -1), np.empty(0, dtype=np.int64)
    raw = RawTrace(
        tool="",
        gpu=GpuColumns(zeros, zeros, zeros, zeros, zeros, none, config, is_kernel, zeros),
        calls=LaunchColumns(empty, empty, empty, empty, empty, empty),
        op_rows=OpColumns(empty, empty, empty, empty, empty),
        annotations=[],
        configs=configs,
        apis=[],
        ops=ops,
        quality=QualityReport(),
    )
    return Joined(raw, raw.gpu, none, op, graphs if len(graphs) else none, zeros.astype(bool), zeros.copy())
