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
    open_ = {
        index
        for index, task in enumerate(trace.tasks)
        if not task.tokens_per_expert and recognise(task.signature.name).family == Family.MOE_GEMM
    }
    if not open_ and not routing.exponent:
        return trace
    tasks = [_routed(task, routing) if index in open_ else task for index, task in enumerate(trace.tasks)]
    return replace(
        trace, tasks=tasks, quality=replace(trace.quality, notes=[*trace.quality.notes, _note(routing, tasks)])
    )


def _routed(task: KernelTask, routing: Routing) -> KernelTask:
    work = work_of(task)
    rows = routing.tokens_per_expert(round(work.m), round(work.experts), round(work.topk))
    return task.model_copy(update={"tokens_per_expert": rows}) if rows else task


def _note(routing: Routing, tasks: list[KernelTask]) -> str:
    if not routing.exponent:
        return (
            "Assumed: tokens are spread evenly over the experts; where they are not, import with --routing "
            "zipf:1 or another exponent."
        )
    if any(task.tokens_per_expert for task in tasks):
        return f"Assumed as asked: the popularity of experts falls with their rank ({routing})."
    return f"No expert GEMM is in the trace: routing {routing} changes nothing."
