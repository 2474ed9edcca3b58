"""What the profiler SDK sent, as the columns that importers work on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from cascade_schemas.events import GraphCaptured, StepRecorded

from services.ingest.assemble import (
    Collective,
    GpuColumns,
    Ints,
    Joined,
    LaunchColumns,
    LaunchConfig,
    OpColumns,
    OpFacts,
    RawTrace,
)
from services.ingest.derive import TracedOp
from services.ingest.graphs import Capture, CapturedLaunch, Replay
from services.ingest.imported import ImportedStep, Phase, QualityReport

_CONFIG = ("name", "grid", "block", "cluster", "registers", "shared_memory_bytes", "moved_bytes", "is_kernel",
           "collective", "collective_in", "collective_out", "collective_dtype", "group_size")  # fmt: skip
_OP = ("op", "operand_dtypes", "operand_shapes")


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


def joined_rows(rows: pa.RecordBatch) -> Joined:
    """RECORDED_LAUNCHES as rows whose launches and ops have been found: the SDK did so where they were recorded."""
    said = _said_of(_stream(rows.select([*_CONFIG, *_OP]).replace_schema_metadata()))
    is_kernel = np.asarray(rows.column("is_kernel"), dtype=np.bool_)
    count = rows.num_rows
    host_ns = _integers(rows, "host_launch_ns")
    has_host = host_ns >= 0
    empty = np.empty(0, dtype=np.int64)
    raw = RawTrace(
        tool="",
        gpu=GpuColumns(
            start_ns=_integers(rows, "start_ns"),
            duration_ns=_integers(rows, "duration_ns"),
            device=np.zeros(count, dtype=np.int64),
            stream=_integers(rows, "stream"),
            correlation=np.zeros(count, dtype=np.int64),
            external=np.full(count, -1, dtype=np.int64),
            config=said.config.copy(),  # a capture's facts are written over it
            is_kernel=is_kernel,
            graph_node=np.maximum(_integers(rows, "graph_node"), 0),
        ),
        calls=LaunchColumns(host_ns[has_host], *[np.zeros(int(has_host.sum()), dtype=np.int64)] * 5),
        op_rows=OpColumns(empty, empty, empty, empty, empty),
        annotations=[],
        configs=list(said.configs),
        apis=["recorded"],
        ops=list(said.ops),
        quality=QualityReport(),
    )
    return Joined(
        raw,
        raw.gpu,
        np.where(has_host, np.cumsum(has_host) - 1, -1),
        said.op.copy(),
        _integers(rows, "graph"),
        np.zeros(count, dtype=bool),
        np.zeros(count, dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What rows say beside their times: per row a number, and what the numbers stand for."""

    config: Ints
    configs: tuple[LaunchConfig, ...]
    op: Ints  # -1: none
    ops: tuple[OpFacts, ...]


# Decode steps repeat each other but for their times: what was found out about one is true of the next. A megabyte each.
@lru_cache(maxsize=16)
def _said_of(stream: bytes) -> _Said:
    rows = pa.ipc.open_stream(stream).read_next_batch()
    config, configs = _distinct(rows, _CONFIG)
    op, ops = _distinct(rows, _OP)
    has_op = np.array([bool(row["op"]) for row in ops], dtype=bool)
    op = np.where(has_op[op], op, -1) if rows.num_rows else op
    config.flags.writeable = op.flags.writeable = False  # shared by all steps like it
    return _Said(config, tuple(_config(row) for row in configs), op, tuple(_op_facts(row) for row in ops))


def _stream(rows: pa.RecordBatch) -> bytes:
    """The rows with their dictionaries as bytes: equal where the rows are, and made the same way."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


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


def replay_of(joint: Joined, rows: pa.RecordBatch, tokens: int) -> Replay:
    """The graph launches among a step's rows, in the order in which the host made them."""
    host_ns = _integers(rows, "host_launch_ns")
    replayed = np.flatnonzero((joint.graph >= 0) & joint.gpu.is_kernel)
    began_ns: dict[int, int] = {}
    for row in replayed.tolist():
        graph = int(joint.graph[row])
        began_ns[graph] = min(int(host_ns[row]), began_ns.get(graph, int(host_ns[row])))
    return Replay(tokens, sorted(began_ns, key=lambda graph: began_ns[graph]))


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
    column = rows.column(name)
    return np.array(column.fill_null(-1) if column.null_count else column, dtype=np.int64)


def _distinct(rows: pa.RecordBatch, names: tuple[str, ...]) -> tuple[Ints, list[dict[str, Any]]]:
    """(per row its number, the distinct rows of these columns in order of first appearance).

    Rows are compared by column first, as numbers: a kernel's name is text of up to 2,000 characters.
    """
    codes = [_numbers(rows.column(name)) for name in names]
    stacked = np.stack(codes, axis=1) if rows.num_rows else np.empty((0, len(names)), dtype=np.int64)
    _, first, inverse = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
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
        lengths = np.asarray(column.value_lengths().fill_null(-1), dtype=np.int64)
        ends = np.cumsum(np.maximum(lengths, 0)).tolist()
        values = _numbers(column.flatten())
        lists = (values[first:last].tobytes() for first, last in zip([0, *ends], ends, strict=False))
        return np.where(lengths < 0, -1, _places(lists))
    plain = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    return np.asarray(plain.cast(pa.int64()).fill_null(-1), dtype=np.int64)


def _places(values: Iterable[bytes]) -> Ints:
    """Per value, how many different ones came before its first like."""
    known: dict[bytes, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


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
