"""The experts' rows of a trace that does not tell them, as its user says that tokens are routed."""

from __future__ import annotations

from dataclasses import replace

from cascade_schemas.task import KernelTask

from services.ingest.imported import ImportedTrace
from services.kernels.recognise import recognise
from services.kernels.routing import Routing
from services.kernels.work import Family
from services.kernels.work_of import work_of


def routed(trace: ImportedTrace, routing: Routing) -> ImportedTrace:
    """With the rows of each expert in the tasks of expert GEMMs, and a note of what was assumed."""
    open_ = {index for index, task in enumerate(trace.tasks) if is_open(task)}
    if not open_ and not routing.exponent:
        return trace
    tasks = [task_routed(task, routing) if index in open_ else task for index, task in enumerate(trace.tasks)]
    return replace(
        trace,
        tasks=tasks,
        quality=replace(
            trace.quality,
            notes=[*trace.quality.notes, note(routing, any_routed=any(task.tokens_per_expert for task in tasks))],
        ),
    )


def is_open(task: KernelTask) -> bool:
    """Whether it is an expert GEMM that does not tell its rows."""
    return not task.tokens_per_expert and recognise(task.signature.name).family == Family.MOE_GEMM


def task_routed(task: KernelTask, routing: Routing) -> KernelTask:
    """An expert GEMM with the rows of each expert; as it was where its sizes are not known."""
    work = work_of(task)
    rows = routing.tokens_per_expert(round(work.m), round(work.experts), round(work.topk))
    return task.model_copy(update={"tokens_per_expert": rows}) if rows else task


def note(routing: Routing, *, any_routed: bool) -> str:
    """What the trace says of it."""
    if not routing.exponent:
        return (
            "Assumed: tokens are spread evenly over the experts; where they are not, record or import with --routing "
            "zipf:1 or another exponent."
        )
    if any_routed:
        return f"Assumed as asked: the popularity of experts falls with their rank ({routing})."
    return f"No expert GEMM is in the trace: routing {routing} changes nothing."
