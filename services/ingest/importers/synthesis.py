"""Cascade's own synthesis form (`cascade synth`): a workload as JSON, from which a trace is made without a recording.

Supported: dense and mixture-of-experts decoders. Refused: latent attention (DeepSeek), whose CPU ops are not known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from cascade_schemas.task import KernelTask
from pydantic import ValidationError

from services.ingest.derive import CannotDerive, derive_step, is_copy
from services.ingest.imported import ImportedLaunches, ImportedStep, ImportedTrace, QualityReport, TraceMetadata
from services.ingest.importers.rejection import TraceRejected
from services.ingest.synthesis import Workload, ops_of, steps_of

_BYTES_LIMIT = 1 << 20
_LAUNCHES_LIMIT = 5_000_000


def read_synthesis(path: Path) -> ImportedTrace:
    """The trace of a workload file. Raises TraceRejected."""
    if path.stat().st_size > _BYTES_LIMIT:
        raise TraceRejected(f"{path.name} is larger than a workload can be ({_BYTES_LIMIT} bytes)")
    try:
        workload = Workload.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise TraceRejected(f"the workload cannot be used: {where}: {first['msg']}") from error
    return synthesized(workload)


def synthesized(workload: Workload) -> ImportedTrace:
    """The workload's trace: derived kernels in order, no measured time, no GPU. Raises TraceRejected."""
    if workload.model.is_mla:
        raise TraceRejected(f"{workload.model.name} uses latent attention, which cannot be synthesized; record a trace")
    if workload.model.heads % workload.tensor_parallel:
        raise TraceRejected(
            f"{workload.model.heads} heads cannot be split over {workload.tensor_parallel} GPUs; choose a divisor"
        )
    steps = steps_of(workload)
    try:
        per_step = [_tasks_of(workload, step) for step in steps]
    except CannotDerive as reason:
        raise TraceRejected(f"the workload's kernels cannot be derived: {reason}") from reason
    count = sum(len(tasks) for tasks in per_step)
    if count > _LAUNCHES_LIMIT:
        raise TraceRejected(f"the workload would be {count} launches; at most {_LAUNCHES_LIMIT} can be synthesized")
    tasks, index = _distinct(task for tasks in per_step for task in tasks)
    of_step = np.repeat(np.arange(len(steps)), [len(tasks) for tasks in per_step])
    return ImportedTrace(
        metadata=TraceMetadata(
            tool="synthesis",
            provenance="synthesized",
            engine="vllm",
            model=workload.model.name,
            world_size=workload.tensor_parallel,
        ),
        tasks=tasks,
        launches=_launches(index, of_step.astype(np.int32), tasks),
        steps=[replace(step, start_ns=int(start)) for step, start in zip(steps, _starts(per_step), strict=True)],
        quality=QualityReport(notes=["No engine ran: steps and kernels are made from the model's architecture."]),
        prompts=workload.prompt_tokens,
    )


def _tasks_of(workload: Workload, step: ImportedStep) -> list[KernelTask]:
    sampled = step.generation_requests + sum(
        kv == workload.prompt_tokens[request]
        for request, kv, q in zip(step.request_indexes, step.kv_lengths, step.q_lengths, strict=True)
        if q > 1 or kv == workload.prompt_tokens[request]
    )
    ops = ops_of(workload, step, max(1, sampled))
    return derive_step(ops, step, workload.model, ranks=workload.tensor_parallel)


def _distinct(tasks: Iterable[KernelTask]) -> tuple[list[KernelTask], list[int]]:
    places: dict[str, int] = {}
    found: list[KernelTask] = []
    index = []
    for task in tasks:
        place = places.setdefault(task.task_id, len(found))
        if place == len(found):
            found.append(task)
        index.append(place)
    return found, index


def _starts(per_step: list[list[KernelTask]]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum([len(tasks) for tasks in per_step])[:-1]))


def _launches(index: list[int], of_step: np.ndarray, tasks: list[KernelTask]) -> ImportedLaunches:
    """`start_ns` is the launch's number: it orders, it is no time."""
    count = len(index)
    none = np.full(count, -1, dtype=np.int64)
    is_kernel = np.array([not is_copy(task) for task in tasks], dtype=np.bool_)
    task = np.array(index, dtype=np.int32)
    return ImportedLaunches(
        rank=np.zeros(count, dtype=np.int32),
        task=task,
        start_ns=np.arange(count, dtype=np.int64),
        duration_ns=none,
        stream=np.zeros(count, dtype=np.int32),
        step=of_step,
        graph=none,
        host_launch_ns=none,
        is_kernel=is_kernel[task],
    )
