"""What the profiler SDK sent, as the columns that importers work on."""

from __future__ import annotations

import builtins
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from cascade_schemas.events import GraphCaptured, StepRecorded
from numpy.typing import NDArray

from services.ingest.assemble import Collective, Ints, LaunchConfig, OpFacts, combined
from services.ingest.derive import TracedOp
from services.ingest.graphs import Capture, CapturedLaunch
from services.ingest.imported import ImportedStep, Phase

_CONFIG = ("name", "grid", "block", "cluster", "registers", "shared_memory_bytes", "moved_bytes", "is_kernel",
           "collective", "collective_in", "collective_out", "collective_dtype", "group_size")  # fmt: skip
_OP = ("op", "operand_dtypes", "operand_shapes")
_FACT = (*_CONFIG, *_OP)


def imported_step(step: StepRecorded) -> ImportedStep:
    """The step with its requests told apart: those whose prompt was not done yet are its context.

    A request that began before the trace has an unknown prompt: more than one new token means it is still in it.
    """
    prompts = step.prompt_tokens or (0,) * len(step.request_ids)
    context = [
        kv - q < prompt if prompt else q > 1
        for q, kv, prompt in zip(step.q_lengths, step.kv_lengths, prompts, strict=True)
    ]
    context_tokens = sum(q for q, is_context in zip(step.q_lengths, context, strict=True) if is_context)
    context_requests = sum(context)
    generation_requests = len(context) - context_requests
    if context_requests and generation_requests:
        phase = Phase.MIXED
    elif context_requests:
        phase = Phase.PREFILL
    else:
        phase = Phase.DECODE if generation_requests else Phase.EMPTY
    return ImportedStep(
        phase=phase,
        start_ns=step.start_ns,
        duration_ns=step.duration_ns,
        context_requests=context_requests,
        context_tokens=context_tokens,
        generation_requests=generation_requests,
        generation_tokens=sum(step.q_lengths) - context_tokens,
        q_lengths=step.q_lengths,
        kv_lengths=step.kv_lengths,
        request_indexes=step.request_ids,
        rank=step.rank,
    )


@dataclass(frozen=True, slots=True)
class RecordedColumns:
    """Launches as arrays of shape (rows,); -1: not said."""

    start_ns: Ints
    duration_ns: Ints
    stream: Ints
    graph: Ints
    host_launch_ns: Ints
    fact: NDArray[np.int32]  # number in the trace's FactTable

    @property
    def num_rows(self) -> int:
        return len(self.fact)

    def slice(self, first: int, count: int) -> RecordedColumns:
        part = builtins.slice(first, first + count)
        return RecordedColumns(*(getattr(self, name)[part] for name in self.__slots__))


def joined_columns(parts: Sequence[RecordedColumns]) -> RecordedColumns:
    """Parts one after another."""
    return RecordedColumns(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in RecordedColumns.__slots__)
    )


class Fact(NamedTuple):
    """What a launch says beside its times, as it was recorded."""

    config: LaunchConfig
    op: OpFacts | None


_ROWS_REMEMBERED = 16


class FactTable:
    """What the launches of one trace say beside their times, each once.

    Decode steps repeat each other, and so do the records they came in: whoever is like one of the last few has its
    numbers without being read.
    """

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._numbers: dict[Fact, int] = {}
        self._is_kernel: list[bool] = []
        self._recent: deque[tuple[pa.RecordBatch, NDArray[np.int32]]] = deque(maxlen=_ROWS_REMEMBERED)

    def columns(self, rows: pa.RecordBatch) -> RecordedColumns:
        """RECORDED_LAUNCHES with a number for what each says."""
        return RecordedColumns(
            _integers(rows, "start_ns"),
            _integers(rows, "duration_ns"),
            _integers(rows, "stream"),
            _integers(rows, "graph"),
            _integers(rows, "host_launch_ns"),
            self._of(rows.select(_FACT)),
        )

    def is_kernel(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        return np.array(self._is_kernel, dtype=bool)[numbers]

    def _of(self, rows: pa.RecordBatch) -> NDArray[np.int32]:
        for place, (known, numbers) in enumerate(self._recent):
            if known.equals(rows):
                if place:
                    del self._recent[place]
                    self._recent.appendleft((known, numbers))
                return numbers
        which, found = _distinct(rows, _FACT)
        own = np.array([self._number(row) for row in found], dtype=np.int32)
        numbers = own[which] if rows.num_rows else np.empty(0, dtype=np.int32)
        self._recent.appendleft((rows, numbers))
        return numbers

    def _number(self, row: dict[str, Any]) -> int:
        fact = Fact(_config(row), _op_facts(row) if row["op"] else None)
        number = self._numbers.setdefault(fact, len(self.facts))
        if number == len(self.facts):
            self.facts.append(fact)
            self._is_kernel.append(not fact.config.is_copy)
        return number


_GRAPHS_LIMIT = 65_536  # of one capture; whoever says more fits no replay


def capture_of(event: GraphCaptured) -> Capture:
    """What the engine captured for one batch size, as the capture's trace would have told it."""
    graphs: list[list[CapturedLaunch]] = [[] for _ in range(min(event.graph_count, _GRAPHS_LIMIT))]
    for row in event.rows.to_pylist():
        config = None
        if row["name"]:
            grid, block = (tuple(row[name]) if row[name] else None for name in ("grid", "block"))
            config = LaunchConfig(row["name"], grid, block, shared_memory_bytes=row["shared_memory_bytes"])
        op = _op_facts(row) if row["op"] else None
        if 0 <= row["graph"] < len(graphs):
            graphs[row["graph"]].append(CapturedLaunch(config, op))
    return Capture(event.text[:80], event.batch_size, tuple(tuple(graph) for graph in graphs))


def traced_ops(rows: pa.RecordBatch) -> list[TracedOp]:
    """RECORDED_OPS in the order derivation wants: by start, parents before their children."""
    which, found = _distinct(rows, ("name", "operand_dtypes", "operand_shapes"))
    ops = [
        TracedOp(
            row["name"],
            tuple(tuple(shape) for shape in row["operand_shapes"] or ()),
            tuple(row["operand_dtypes"] or ()),
        )
        for row in found
    ]
    start_ns, duration_ns = _integers(rows, "start_ns"), _integers(rows, "duration_ns")
    order = np.lexsort((-(start_ns + duration_ns), start_ns))
    return [ops[index] for index in which[order].tolist()]


def _integers(rows: pa.RecordBatch, name: str) -> Ints:
    """A column of its own, -1 for null."""
    column = rows.column(name)
    if column.null_count == len(column):
        return np.full(len(column), -1, dtype=np.int64)
    known = column.fill_null(-1) if column.null_count else column
    return np.array(known.to_numpy(), dtype=np.int64)


def _distinct(rows: pa.RecordBatch, names: Sequence[str]) -> tuple[Ints, list[dict[str, Any]]]:
    """(per row its number, the distinct rows of these columns in order of first appearance).

    Rows are compared by column first, as numbers: a kernel's name is text of up to 2,000 characters.
    """
    if not rows.num_rows:
        return np.empty(0, dtype=np.int64), []
    key = combined([_numbers(rows.column(name)) for name in names])
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    chosen = rows.select(list(names)).take(pa.array(first[order], type=pa.int64()))
    return place[inverse.reshape(-1)], chosen.to_pylist()


def _numbers(column: pa.Array) -> Ints:
    """One number per value, equal where the values are; -1: null."""
    if pa.types.is_dictionary(column.type):
        return np.asarray(column.indices.fill_null(-1), dtype=np.int64)
    if pa.types.is_string(column.type):
        return _numbers(column.dictionary_encode())
    if pa.types.is_list(column.type):
        return _list_numbers(np.asarray(column.value_lengths().fill_null(-1), dtype=np.int64), column.flatten())
    plain = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    return np.asarray(plain.cast(pa.int64()).fill_null(-1), dtype=np.int64)


def _list_numbers(lengths: Ints, flat: pa.Array) -> Ints:
    """As `_numbers`, of lists by their lengths (-1: null) and their values: those of a length are rows of a table."""
    values = _numbers(flat)
    begins = np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
    numbers = np.full(len(lengths), -1, dtype=np.int64)
    count = 0
    for length in np.unique(lengths[lengths >= 0]).tolist():
        rows = np.flatnonzero(lengths == length)
        key = combined([values[begins[rows] + place] for place in range(length)]) if length else rows * 0
        found, own = np.unique(key, return_inverse=True)
        numbers[rows] = own.reshape(-1) + count
        count += len(found)
    return numbers


def _config(row: dict[str, Any]) -> LaunchConfig:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value := row[name], list) else value for name in _CONFIG}
    collective = None
    if values["collective"]:
        collective = Collective(
            values["collective"],
            values["collective_in"] or 0,
            values["collective_out"] or 0,
            values["collective_dtype"] or "",
            values["group_size"] or 0,
        )
    return LaunchConfig(
        name=values["name"],
        grid=values["grid"],
        block=values["block"],
        cluster=values["cluster"],
        registers=values["registers"],
        shared_memory_bytes=values["shared_memory_bytes"],
        moved_bytes=values["moved_bytes"],
        collective=collective,
        is_copy=not values["is_kernel"],
    )


def _op_facts(row: dict[str, Any]) -> OpFacts:
    if not row["op"]:
        return OpFacts("")
    return OpFacts(row["op"], orjson.dumps([row["operand_shapes"] or [], row["operand_dtypes"] or []]))
