"""Events as table rows, many at once. One event gives rows of one or two tables; nothing here decides anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from cascade_schemas.events import (
    AccuracyMeasured,
    AnyEvent,
    ArtifactStored,
    ColumnarEvent,
    Estimate,
    HostProfileMeasured,
    KernelsPredicted,
    KernelsSimulated,
    KernelTaskTraced,
    LaunchesTraced,
    RefinementChosen,
    RequestPredicted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    SignatureTraced,
    SimulatorStarted,
    StepsPredicted,
    StepTraced,
    TraceCompleted,
    TraceRejected,
    TraceStarted,
)
from cascade_schemas.task import Dim3

_COLUMNAR: dict[type[ColumnarEvent], tuple[str, tuple[str, ...]]] = {
    LaunchesTraced: ("launches", ("trace_id",)),
    KernelsSimulated: ("simulated_kernels", ("run_id", "config_id")),
    KernelsPredicted: ("predicted_kernels", ("run_id", "config_id", "refined")),
    StepsPredicted: ("predicted_steps", ("run_id", "config_id", "refined")),
}
"""Per type its table, and the fields of the event that stand before its rows."""

_REFINED_FIELDS = ("run_id", "config_id", "simulator")


def rows_of(events: Iterable[AnyEvent], refined: Sequence[KernelsSimulated] = ()) -> dict[str, pa.Table]:
    """Rows of events by table, in the order of the events; columnar ones must have been cut down to new rows before.

    refined: results of simulators that came after a run's own.
    """
    columnar: dict[type[ColumnarEvent], list[ColumnarEvent]] = {}
    plain: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if isinstance(event, ColumnarEvent) and type(event) in _COLUMNAR:  # a replay holds what was recorded, too
            columnar.setdefault(type(event), []).append(event)
        for table, rows in _plain_rows(event):
            plain.setdefault(table, []).extend(rows)
    found = {_COLUMNAR[kind][0]: _columns(kind, of, _COLUMNAR[kind][1]) for kind, of in columnar.items()}
    if refined:
        found["refined_kernels"] = _columns(KernelsSimulated, refined, _REFINED_FIELDS)
    return found | {table: _table(rows) for table, rows in plain.items()}


def taken_of(event: KernelsPredicted) -> set[str]:
    """Tasks whose refined result stands."""
    chosen = event.rows.filter(event.rows.column("refined_by").is_valid())
    return set(chosen.column("task_id").to_pylist())


def _columns(kind: type[ColumnarEvent], events: Sequence[ColumnarEvent], fields: Sequence[str]) -> pa.Table:
    """All rows of events of one type: a slow simulator says one row in each, and every look at a table costs."""
    batches = [event.rows.replace_schema_metadata() for event in events]
    table = pa.Table.from_batches([pa.concat_batches(batches)], schema=kind.row_schema)
    event_of_row = pa.array(np.repeat(np.arange(len(events)), [batch.num_rows for batch in batches]))
    for place, name in enumerate(fields):
        said = [getattr(event, name) for event in events]
        # A first answer has nothing there, so that it is the row it was before there were second ones.
        values = pa.array([one or None for one in said], type=pa.bool_() if name == "refined" else pa.string())
        table = table.add_column(place, name, values.take(event_of_row))
    plain = [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in table.columns]
    return pa.table(plain, names=table.column_names)


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Names that a row lacks are null in it. A column of only nulls has no type; left out, it is null all the same."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: pa.array([row.get(name) for row in rows]) for name in names}
    return pa.table({name: column for name, column in columns.items() if not pa.types.is_null(column.type)})


def _plain_rows(event: AnyEvent) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    match event:
        case StepsPredicted():
            place = {"run_id": event.run_id, "config_id": event.config_id}
            yield "assumptions", [place | {"assumption": assumption} for assumption in event.assumptions]
        case TraceStarted():
            keep = ("trace_id", "name", "provenance", "tool", "source_gpu", "gpu_name", "engine", "engine_version")
            row = {name: getattr(event, name) for name in (*keep, "rank_count", "world_size", "started_at")}
            row |= {"model_name": event.model.name if event.model else None, "prompts": json.dumps(event.prompts)}
            yield "trace_starts", [row | {"event": event.model_dump_json()}]
        case TraceCompleted():
            row = event.model_dump(exclude={"type", "quality", "prompts"}) | {"quality": json.dumps(event.quality)}
            yield "trace_ends", [row | {"status": "complete", "event": event.model_dump_json()}]
        case TraceRejected():
            row = event.model_dump(exclude={"type"})
            yield "trace_ends", [row | {"status": "rejected", "event": event.model_dump_json()}]
        case HostProfileMeasured():
            yield "host_profiles", [{"trace_id": event.trace_id, "event": event.model_dump_json()}]
        case ArtifactStored():
            yield "artifacts", [{"trace_id": event.trace_id, "kind": event.kind, **event.artifact.model_dump()}]
        case SignatureTraced():
            s = event.signature
            row = {"trace_id": event.trace_id, "signature_id": event.signature_id, "name": s.name}
            row |= _dim("grid", s.grid) | _dim("block", s.block)
            row |= {"registers": s.registers, "shared_memory_bytes": s.shared_memory_bytes}
            yield "signatures", [row]
        case KernelTaskTraced():
            task = event.task
            row = {"trace_id": event.trace_id, "task_id": event.task_id, "signature_id": event.signature_id}
            row |= {"name": task.signature.name, "op": task.op, "operands_from": task.operands_from}
            yield "tasks", [row | {"tokens": task.tokens, "task": task.model_dump_json()}]
        case StepTraced():
            lengths = ("q_lengths", "kv_lengths", "request_indexes")
            row = event.model_dump(exclude={"type", *lengths})
            yield "trace_steps", [row | {name: json.dumps(getattr(event, name)) for name in lengths}]
        case RunRequested():
            row = {"run_id": event.run_id, "trace_id": event.trace_id, "name": event.name}
            yield "run_requests", [row | {"simulator": event.simulator, "event": event.model_dump_json()}]
            yield (
                "run_configs",
                [
                    {
                        "run_id": event.run_id,
                        "config_id": config.config_id,
                        "ordinal": ordinal,
                        "label": config.label,
                        "gpu": config.gpu.gpu,
                        "gpu_name": config.gpu.name,
                        "replicas": config.replicas,
                        "is_requested": config.is_requested,
                        "spec": config.gpu.model_dump_json(),
                    }
                    for ordinal, config in enumerate(event.configs)
                ],
            )
        case RunCancelled():
            yield "run_cancellations", [{"run_id": event.run_id}]
        case SimulatorStarted():
            row = event.model_dump(exclude={"type", "worker"})
            yield "simulator_starts", [row]
            yield "simulator_versions", [row]
        case RequestPredicted():
            row = event.model_dump(exclude={"type", "ttft", "tpot"}) | {"refined": event.refined or None}
            yield "predicted_requests", [row | _estimate("ttft", event.ttft) | _estimate("tpot", event.tpot)]
        case AccuracyMeasured():
            yield "accuracy", [event.model_dump(exclude={"type"}) | {"refined": event.refined or None}]
        case RefinementChosen():
            row = {"run_id": event.run_id, "config_id": event.config_id, "simulator": event.simulator}
            row |= {"task_count": len(event.tasks), "sentence": event.sentence, "event": event.model_dump_json()}
            yield "refinements", [row]
        case RunCompleted():
            yield "run_ends", [event.model_dump(exclude={"type"})]
        case RunFailed():
            yield "run_ends", [{"run_id": event.run_id, "outcome": "failed", "reason": event.reason}]


def _dim(name: str, dim: Dim3 | None) -> dict[str, int | None]:
    return {f"{name}_{axis}": dim[place] if dim else None for place, axis in enumerate("xyz")}


def _estimate(name: str, estimate: Estimate | None) -> dict[str, int | None]:
    return {
        f"{name}_ns": estimate.value_ns if estimate else None,
        f"{name}_p10_ns": estimate.p10_ns if estimate else None,
        f"{name}_p90_ns": estimate.p90_ns if estimate else None,
    }
