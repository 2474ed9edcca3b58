"""Launches and ops as collectors deliver them, and as the record batches that travel.

A kernel's name, grid and op repeat thousands of times, so a launch names its configuration by a number and each
configuration is turned into Arrow once a batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from cascade_schemas.batches import CAPTURED_LAUNCHES, RECORDED_LAUNCHES, RECORDED_OPS
from cascade_schemas.events import AnyEvent, LaunchesRecorded, StepRecorded

ROWS_PER_EVENT = 4096

Dims = tuple[int, int, int]


class LaunchFacts(NamedTuple):
    """What many launches have in common."""

    name: str
    grid: Dims | None = None
    block: Dims | None = None
    cluster: Dims | None = None
    registers: int | None = None
    shared_memory_bytes: int | None = None
    op: str | None = None
    operand_dtypes: tuple[str, ...] | None = None  # the profiler's words
    operand_shapes: tuple[tuple[int, ...], ...] | None = None
    moved_bytes: int | None = None  # copies: one way
    is_kernel: bool = True
    collective: str | None = None
    collective_in: int | None = None
    collective_out: int | None = None
    collective_dtype: str | None = None
    group_size: int | None = None


class OpFacts(NamedTuple):
    """What many calls of an op have in common."""

    name: str
    operand_dtypes: tuple[str, ...]
    operand_shapes: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Launches:
    """Launches of one step in order of start; columns of one length. Times in ns from the trace's start."""

    facts: list[LaunchFacts] = field(default_factory=list)  # each once
    fact: list[int] = field(default_factory=list)  # index into `facts`
    start_ns: list[int] = field(default_factory=list)
    duration_ns: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    graph: list[int | None] = field(default_factory=list)  # correlation id of the graph launch
    graph_node: list[int | None] = field(default_factory=list)
    host_launch_ns: list[int | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.fact)


@dataclass(slots=True)
class Ops:
    """Framework ops of one step in order of start; columns of one length."""

    facts: list[OpFacts] = field(default_factory=list)
    fact: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    duration_ns: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.fact)


_LAUNCH_BYTES = 96  # of one row in a batch, and of its lists' slots before it is one
_OP_BYTES = 80


def size_bytes(rows: Launches | Ops) -> int:
    """About what the rows occupy while they wait."""
    each = _LAUNCH_BYTES if isinstance(rows, Launches) else _OP_BYTES
    return len(rows) * each + 512 * len(rows.facts)


_FACTS_REMEMBERED = 16


class FactColumns:
    """The columns that rows' facts make, each set once: a decode step launches what the step before it did, and to
    spread its facts over its rows takes three times as long as everything else about them.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, ...], dict[str, pa.Array]] = OrderedDict()

    def of(self, schema: pa.Schema, facts: Sequence[Any], fact: Sequence[int]) -> dict[str, pa.Array]:
        """By name, of as many rows as `fact` has, each a place in `facts`."""
        key = (tuple(fact), tuple(facts))
        columns = self._known.get(key)
        if columns is None:
            columns = self._known[key] = _fact_columns(schema, facts[0]._fields, *_used(facts, fact))
            if len(self._known) > _FACTS_REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return columns


def launch_batches(rows: Launches, first_seq: int, step: int | None, known: FactColumns) -> Iterator[pa.RecordBatch]:
    """The rows as batches of RECORDED_LAUNCHES; `first_seq` is the sequence number of the first."""
    own = {"stream": pa.int32(), "graph": pa.int64(), "graph_node": pa.int64(), "host_launch_ns": pa.int64()}
    return _batches(RECORDED_LAUNCHES, rows, own, first_seq, step, known)


def op_batches(rows: Ops, first_seq: int, step: int | None, known: FactColumns) -> Iterator[pa.RecordBatch]:
    """The rows as batches of RECORDED_OPS."""
    return _batches(RECORDED_OPS, rows, {"thread": pa.int64()}, first_seq, step, known)


def capture_batch(graphs: Sequence[Sequence[LaunchFacts]]) -> pa.RecordBatch:
    """The launches of one capture's graphs as a batch of CAPTURED_LAUNCHES."""
    places: dict[LaunchFacts, int] = {}
    indices = pa.array([places.setdefault(fact, len(places)) for graph in graphs for fact in graph], type=pa.int32())
    number = [place for place, graph in enumerate(graphs) for _ in graph]
    columns = {
        "graph": pa.array(number, type=pa.int32()),
    }
    columns |= _fact_columns(CAPTURED_LAUNCHES, LaunchFacts._fields[1:], list(places), indices)  # all but the name
    columns["name"] = _coded([fact.name or None for fact in places], indices)
    return pa.RecordBatch.from_arrays([columns[one.name] for one in CAPTURED_LAUNCHES], schema=CAPTURED_LAUNCHES)


def packed(events: Iterable[AnyEvent]) -> Iterator[AnyEvent]:
    """The same events with launches of consecutive steps in one, up to ROWS_PER_EVENT: each record has its price.

    A step is said after the launches that were packed with its own.
    """
    launches: list[LaunchesRecorded] = []
    steps: list[AnyEvent] = []
    for event in events:
        if isinstance(event, StepRecorded) and launches:
            steps.append(event)
            continue
        if launches and not (isinstance(event, LaunchesRecorded) and _continues(launches, event)):
            yield _joined(launches)
            yield from steps
            launches, steps = [], []
        if isinstance(event, LaunchesRecorded):
            launches.append(event)
        else:
            yield event
    if launches:
        yield _joined(launches)
        yield from steps


def _continues(before: Sequence[LaunchesRecorded], event: LaunchesRecorded) -> bool:
    count = sum(one.rows.num_rows for one in before)
    return (
        (event.trace_id, event.rank) == (before[0].trace_id, before[0].rank)
        and event.first_seq == before[0].first_seq + count
        and count + event.rows.num_rows <= ROWS_PER_EVENT
    )


def _joined(parts: Sequence[LaunchesRecorded]) -> LaunchesRecorded:
    if len(parts) == 1:
        return parts[0]
    return parts[0].model_copy(update={"rows": pa.concat_batches([part.rows for part in parts])})


def _batches(
    schema: pa.Schema,
    rows: Launches | Ops,
    own: dict[str, pa.DataType],
    first_seq: int,
    step: int | None,
    known: FactColumns,
) -> Iterator[pa.RecordBatch]:
    """`own`: the columns of these rows beside those that both kinds have."""
    for first in range(0, len(rows), ROWS_PER_EVENT):
        part = slice(first, first + ROWS_PER_EVENT)
        facts = known.of(schema, rows.facts, rows.fact[part])
        count = len(rows.fact[part])
        columns = facts | {
            "seq": pc.add(_counted().slice(0, count), first_seq + first),
            "start_ns": pa.array(rows.start_ns[part], type=pa.int64()),
            "duration_ns": pa.array(rows.duration_ns[part], type=pa.int64()),
            "step": pa.repeat(pa.scalar(step, type=pa.int32()), count),
        }
        columns |= {name: pa.array(getattr(rows, name)[part], type=kind) for name, kind in own.items()}
        yield pa.RecordBatch.from_arrays([columns[one.name] for one in schema], schema=schema)


@cache
def _counted() -> pa.Array:
    return pa.array(range(ROWS_PER_EVENT), type=pa.int64())


def _fact_columns(
    schema: pa.Schema, names: Sequence[str], facts: Sequence[Any], indices: pa.Array
) -> dict[str, pa.Array]:
    """Those columns of the schema that facts have, by name."""
    columns = {}
    for one in schema:
        if one.name not in names:
            continue
        values = [getattr(fact, one.name) for fact in facts]
        if pa.types.is_dictionary(one.type):
            columns[one.name] = _coded(values, indices)
        else:
            columns[one.name] = pa.array(values, type=one.type).take(indices)
    return columns


def _coded(values: Sequence[str | None], indices: pa.Array) -> pa.DictionaryArray:
    words = {value: place for place, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
    codes = pa.array([None if value is None else words[value] for value in values], type=pa.int32())
    return pa.DictionaryArray.from_arrays(codes.take(indices), pa.array(list(words), type=pa.string()))


def _used(facts: Sequence[Any], fact: Iterable[int]) -> tuple[list[Any], pa.Array]:
    """Only the facts that these rows use, and the rows' places among them."""
    places: dict[int, int] = {}
    indices = [places.setdefault(index, len(places)) for index in fact]
    return [facts[index] for index in places], pa.array(indices, type=pa.int32())
