"""Arrow schemas of the events that carry volume: one record batch per event, one row per launch, task or result.

Schemas only grow, by nullable columns at the end; a reader casts what it gets to its own schema (`conform`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from cascade_schemas.task import KernelSignature, KernelTask, Operand

_dictionary = pa.dictionary(pa.int32(), pa.string())
_lengths = pa.list_(pa.int64())
_required = {"nullable": False}

TASKS = pa.schema(
    [
        pa.field("task_id", pa.string(), **_required),
        pa.field("name", _dictionary, **_required),
        pa.field("grid", pa.list_(pa.int64())),
        pa.field("block", pa.list_(pa.int64())),
        pa.field("cluster", pa.list_(pa.int64())),
        pa.field("registers", pa.int32()),
        pa.field("shared_memory_bytes", pa.int64()),
        pa.field("op", _dictionary, **_required),
        pa.field("operand_dtypes", pa.list_(pa.string()), **_required),
        pa.field("operand_shapes", pa.list_(pa.list_(pa.int64())), **_required),
        pa.field("operands_from", _dictionary, **_required),
        pa.field("tokens", pa.int64()),
        pa.field("q_lengths", _lengths, **_required),
        pa.field("kv_lengths", _lengths, **_required),
        pa.field("tokens_per_expert", _lengths, **_required),
        pa.field("ranks", pa.int32(), **_required),
        pa.field("moved_bytes", pa.int64()),
        pa.field("attributes", pa.map_(pa.string(), pa.int64()), **_required),
        pa.field("sass", pa.string()),  # SHA-256 of the SASS trace's artifact; null: none
    ]
)

LAUNCHES = pa.schema(
    [
        pa.field("rank", pa.int32(), **_required),
        pa.field("seq", pa.int64(), **_required),  # position in the rank's launches, from 0
        pa.field("task_id", _dictionary, **_required),
        pa.field("start_ns", pa.int64(), **_required),  # from the trace's start
        pa.field("duration_ns", pa.int64()),  # null: not measured
        pa.field("stream", pa.int32(), **_required),
        pa.field("step", pa.int32()),  # null: outside every step
        pa.field("graph", pa.int64()),  # correlation id of the graph launch; null: launched by itself
        pa.field("host_launch_ns", pa.int64()),
        pa.field("is_kernel", pa.bool_(), **_required),  # false: memcpy or memset
    ]
)

RECORDED_LAUNCHES = pa.schema(
    [
        pa.field("seq", pa.int64(), **_required),
        pa.field("name", _dictionary, **_required),
        pa.field("grid", pa.list_(pa.int64())),
        pa.field("block", pa.list_(pa.int64())),
        pa.field("cluster", pa.list_(pa.int64())),
        pa.field("registers", pa.int32()),
        pa.field("shared_memory_bytes", pa.int64()),
        pa.field("op", _dictionary),
        pa.field("operand_dtypes", pa.list_(pa.string())),
        pa.field("operand_shapes", pa.list_(pa.list_(pa.int64()))),
        pa.field("start_ns", pa.int64(), **_required),
        pa.field("duration_ns", pa.int64()),
        pa.field("stream", pa.int32(), **_required),
        pa.field("step", pa.int32()),
        pa.field("graph", pa.int64()),
        pa.field("graph_node", pa.int64()),
        pa.field("host_launch_ns", pa.int64()),
        pa.field("moved_bytes", pa.int64()),
        pa.field("is_kernel", pa.bool_(), **_required),
        pa.field("collective", _dictionary),  # of a communication kernel; null: none, or not told
        pa.field("collective_in", pa.int64()),  # elements
        pa.field("collective_out", pa.int64()),
        pa.field("collective_dtype", _dictionary),
        pa.field("group_size", pa.int32()),
    ]
)

CAPTURED_LAUNCHES = pa.schema(
    [
        pa.field("graph", pa.int32(), **_required),  # which of the capture's graphs, from 0
        pa.field("name", _dictionary),  # null: the call does not say (CUDA)
        pa.field("grid", pa.list_(pa.int64())),
        pa.field("block", pa.list_(pa.int64())),
        pa.field("shared_memory_bytes", pa.int64()),
        pa.field("op", _dictionary),
        pa.field("operand_dtypes", pa.list_(pa.string())),
        pa.field("operand_shapes", pa.list_(pa.list_(pa.int64()))),
    ]
)

RECORDED_OPS = pa.schema(
    [
        pa.field("seq", pa.int64(), **_required),
        pa.field("name", _dictionary, **_required),
        pa.field("operand_dtypes", pa.list_(pa.string())),  # the profiler's words; "" and scalars included
        pa.field("operand_shapes", pa.list_(pa.list_(pa.int64()))),
        pa.field("start_ns", pa.int64(), **_required),
        pa.field("duration_ns", pa.int64(), **_required),
        pa.field("thread", pa.int64(), **_required),
        pa.field("step", pa.int32()),
    ]
)

RESULTS = pa.schema(
    [
        pa.field("task_id", pa.string(), **_required),
        pa.field("duration_ns", pa.int64()),  # null: failed, see reason
        pa.field("p10_ns", pa.int64()),
        pa.field("p90_ns", pa.int64()),
        pa.field("sigma_ppm", pa.int64()),  # standard deviation of ln(duration), parts per million
        pa.field("family", _dictionary, **_required),
        pa.field("tier", _dictionary, **_required),  # A metadata model, B built-in SASS, C Accel-Sim
        pa.field("reason", _dictionary, **_required),
        pa.field("bound", _dictionary, **_required),  # tensor, dram, l2, issue, launch, link
        pa.field("tensor_ns", pa.int64()),
        pa.field("dram_ns", pa.int64()),
        pa.field("l2_ns", pa.int64()),
        pa.field("issue_ns", pa.int64()),
        pa.field("launch_ns", pa.int64()),
        pa.field("sm_cycles", pa.int64()),
        pa.field("is_cached", pa.bool_(), **_required),
        pa.field("roofline_ns", pa.int64()),  # the datasheet baseline for the same task, to be shown beside
        pa.field("statistics", pa.string()),  # JSON of what a simulator of instructions counted; null: nothing
    ]
)

KERNEL_PREDICTIONS = pa.schema(
    [
        pa.field("task_id", pa.string(), **_required),
        pa.field("launch_count", pa.int64(), **_required),
        pa.field("duration_ns", pa.int64()),  # of one launch, source correction applied; null: failed
        pa.field("p10_ns", pa.int64()),
        pa.field("p90_ns", pa.int64()),
        pa.field("correction_ppm", pa.int64()),  # factor applied to the forward prediction; null: none
        pa.field("measured_ns", pa.int64()),  # median over the task's launches, on the source GPU
        pa.field("error_ppm", pa.int64()),  # of the forward prediction, source GPU only
        pa.field("refined_by", pa.string()),  # the simulator whose result stands; null: the run's own
        pa.field("refinement", pa.string()),  # why it stands or does not; null: simulated once
    ]
)

STEP_PREDICTIONS = pa.schema(
    [
        pa.field("step", pa.int32(), **_required),
        pa.field("phase", _dictionary, **_required),
        pa.field("gpu_ns", pa.int64(), **_required),  # GPU busy
        pa.field("duration_ns", pa.int64(), **_required),  # with launch gaps and host time
        pa.field("p10_ns", pa.int64(), **_required),
        pa.field("p90_ns", pa.int64(), **_required),
        pa.field("measured_gpu_ns", pa.int64()),
        pa.field("coverage_ppm", pa.int64(), **_required),
        pa.field("launch_count", pa.int64(), **_required),
    ]
)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the reader's schema: unknown columns dropped, missing nullable ones null.

    Raises ValueError where a column the schema requires is missing.
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index >= 0:
            columns.append(batch.column(index).cast(field.type))
        elif field.nullable:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            raise ValueError(f"column {field.name!r} is missing; present: {', '.join(batch.schema.names)}")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def tasks_batch(tasks: Sequence[KernelTask]) -> pa.RecordBatch:
    """Kernel tasks as one batch of TASKS."""

    def column(values: Iterable[Any], name: str) -> pa.Array:
        return pa.array(list(values), type=TASKS.field(name).type)

    s = [task.signature for task in tasks]
    return pa.RecordBatch.from_arrays(
        [
            column((t.task_id for t in tasks), "task_id"),
            column((x.name for x in s), "name"),
            column((x.grid for x in s), "grid"),
            column((x.block for x in s), "block"),
            column((x.cluster for x in s), "cluster"),
            column((x.registers for x in s), "registers"),
            column((x.shared_memory_bytes for x in s), "shared_memory_bytes"),
            column((t.op for t in tasks), "op"),
            column(([o.dtype for o in t.operands] for t in tasks), "operand_dtypes"),
            column(([o.shape for o in t.operands] for t in tasks), "operand_shapes"),
            column((t.operands_from for t in tasks), "operands_from"),
            column((t.tokens for t in tasks), "tokens"),
            column((t.q_lengths for t in tasks), "q_lengths"),
            column((t.kv_lengths for t in tasks), "kv_lengths"),
            column((t.tokens_per_expert for t in tasks), "tokens_per_expert"),
            column((t.ranks for t in tasks), "ranks"),
            column((t.moved_bytes for t in tasks), "moved_bytes"),
            column((sorted(t.attributes.items()) for t in tasks), "attributes"),
            column((t.sass or None for t in tasks), "sass"),
        ],
        schema=TASKS,
    )


def tasks_of(batch: pa.RecordBatch) -> list[KernelTask]:
    """The kernel tasks of a batch of TASKS."""
    return [
        KernelTask(
            signature=KernelSignature(
                name=row["name"],
                grid=row["grid"] and tuple(row["grid"]),
                block=row["block"] and tuple(row["block"]),
                cluster=row["cluster"] and tuple(row["cluster"]),
                registers=row["registers"],
                shared_memory_bytes=row["shared_memory_bytes"],
            ),
            op=row["op"],
            operands=tuple(
                Operand(dtype=dtype, shape=tuple(shape))
                for dtype, shape in zip(row["operand_dtypes"], row["operand_shapes"], strict=True)
            ),
            operands_from=row["operands_from"],
            tokens=row["tokens"],
            q_lengths=tuple(row["q_lengths"]),
            kv_lengths=tuple(row["kv_lengths"]),
            tokens_per_expert=tuple(row["tokens_per_expert"]),
            ranks=row["ranks"],
            moved_bytes=row["moved_bytes"],
            attributes=dict(row["attributes"]),
            sass=row["sass"] or "",
        )
        for row in batch.to_pylist()
    ]
