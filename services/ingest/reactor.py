"""TraceUploaded in; the trace as catalog events out, or TraceRejected with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import LAUNCHES
from cascade_schemas.events import (
    AnyEvent,
    ArtifactRef,
    ArtifactStored,
    KernelTaskTraced,
    LaunchesTraced,
    SignatureTraced,
    StepTraced,
    TraceCompleted,
    TraceRejected,
    TraceStarted,
    TraceUploaded,
)
from numpy.typing import NDArray

from services.ingest.imported import ROWS_PER_EVENT, ImportedLaunches, ImportedTrace, source_gpu_of
from services.ingest.importers import TraceRejected as CannotImport
from services.ingest.importers import import_trace
from services.ingest.importers.accelsim import is_sass_file, read_sass, with_sass
from services.ingest.importers.record_stream import events_of_streams, is_recorded
from services.ingest.routed import routed
from services.kernels.routing import Routing

OpenArtifacts = Callable[[Sequence[ArtifactRef]], AbstractContextManager[list[Path]]]
"""Gives artifacts as files that bear their original names (ranks are told apart by them)."""


class Ingest:
    """Imports what is uploaded. A trace that is already whole is not imported again."""

    def __init__(self, open_artifacts: OpenArtifacts) -> None:
        self._open_artifacts = open_artifacts
        self._ended: set[str] = set()

    def react(self, event: AnyEvent) -> Iterator[AnyEvent]:
        self.restore(event)
        if not isinstance(event, TraceUploaded) or event.trace_id in self._ended:
            return
        for artifact in event.artifacts:
            kind: Literal["sass", "profile"] = "sass" if is_sass_file(artifact.name) else "profile"
            yield ArtifactStored(trace_id=event.trace_id, artifact=artifact, kind=kind)
        try:
            with self._open_artifacts(event.artifacts) as paths:
                if is_recorded(paths):
                    yield from events_of_streams(event, paths)
                    return
                imported = _imported(event, paths)
        except CannotImport as rejection:
            yield TraceRejected(trace_id=event.trace_id, name=event.name, reason=str(rejection))
            return
        yield from events_of(event, imported)

    def settle(self) -> Iterator[AnyEvent]:
        yield from ()

    def restore(self, event: AnyEvent) -> None:
        if isinstance(event, TraceCompleted | TraceRejected):
            self._ended.add(event.trace_id)


def _imported(upload: TraceUploaded, paths: Sequence[Path]) -> ImportedTrace:
    placed = list(zip(paths, upload.artifacts, strict=True))
    sass = [(path, artifact) for path, artifact in placed if is_sass_file(artifact.name)]
    profiles = [path for path, artifact in placed if not is_sass_file(artifact.name)]
    if sass and not profiles:
        return read_sass(sass)
    imported = import_trace(profiles, model=upload.model, source_gpu=upload.source_gpu, prompts=upload.prompts)
    imported = routed(imported, Routing.of(upload.routing))
    return with_sass(imported, sass) if sass else imported


def events_of(upload: TraceUploaded, imported: ImportedTrace) -> Iterator[AnyEvent]:
    """A trace as facts: what it is, distinct work first, then steps, then every launch."""
    trace_id, metadata = upload.trace_id, imported.metadata
    notes = list(imported.quality.notes)
    source_gpu = source_gpu_of(upload.source_gpu, metadata)
    if source_gpu is None and metadata.provenance == "measured":
        said = f"calls its GPU {metadata.gpu_name!r}" if metadata.gpu_name else "does not name its GPU"
        notes.append(f"The file {said}; pass --source-gpu ID so that measured times can be used.")
    yield TraceStarted(
        trace_id=trace_id,
        name=upload.name,
        provenance=metadata.provenance,
        tool=metadata.tool,
        source_gpu=source_gpu,
        gpu_name=metadata.gpu_name,
        model=upload.model,
        engine=metadata.engine,
        engine_version=metadata.engine_version,
        rank_count=metadata.rank_count,
        world_size=metadata.world_size,
        started_at=metadata.started_at,
        prompts=imported.prompts,
    )
    signature_ids: set[str] = set()
    for task in imported.tasks:
        signature_id = task.signature.signature_id
        if signature_id not in signature_ids:
            signature_ids.add(signature_id)
            yield SignatureTraced(trace_id=trace_id, signature_id=signature_id, signature=task.signature)
        yield KernelTaskTraced(trace_id=trace_id, task_id=task.task_id, signature_id=signature_id, task=task)
    kernel_counts = np.bincount(
        imported.launches.step[(imported.launches.step >= 0) & imported.launches.is_kernel],
        minlength=len(imported.steps),
    )
    for index, step in enumerate(imported.steps):
        yield StepTraced(
            trace_id=trace_id,
            rank=step.rank,
            step=index,
            phase=step.phase.value,
            start_ns=step.start_ns,
            duration_ns=step.duration_ns,
            context_requests=step.context_requests,
            context_tokens=step.context_tokens,
            generation_requests=step.generation_requests,
            generation_tokens=step.generation_tokens,
            kernel_count=int(kernel_counts[index]),
            q_lengths=step.q_lengths,
            kv_lengths=step.kv_lengths,
            request_indexes=step.request_indexes,
        )
    yield from _launch_events(trace_id, imported)
    quality = asdict(imported.quality) | {"notes": notes}
    yield TraceCompleted(
        trace_id=trace_id,
        is_truncated=imported.quality.is_truncated,
        launch_count=len(imported.launches.task),
        kernel_count=int(imported.launches.is_kernel.sum()),
        signature_count=signature_count(imported),
        task_count=len({task.task_id for task in imported.tasks}),
        step_count=len(imported.steps),
        launchless_count=imported.quality.launchless_count,
        quality=quality,
    )


def signature_count(imported: ImportedTrace) -> int:
    """Distinct (name, grid, block) of kernels: what surveys of traces count.

    Registers and shared memory tell apart one more in two of the known files and none in those of LLMs; they are part
    of a signature's identity all the same.
    """
    used = np.unique(imported.launches.task[imported.launches.is_kernel])
    signatures = (imported.tasks[index].signature for index in used)
    return len({(signature.name, signature.grid, signature.block) for signature in signatures})


def _launch_events(trace_id: str, imported: ImportedTrace) -> Iterator[LaunchesTraced]:
    launches = imported.launches
    task_ids = pa.array([task.task_id for task in imported.tasks], type=pa.string())
    for rank in np.unique(launches.rank):
        rows = np.flatnonzero(launches.rank == rank)
        for first in range(0, len(rows), ROWS_PER_EVENT):
            chosen = rows[first : first + ROWS_PER_EVENT]
            yield LaunchesTraced(
                trace_id=trace_id,
                rank=int(rank),
                first_seq=first,
                rows=_launch_rows(launches, chosen, first, task_ids),
            )


def _launch_rows(
    launches: ImportedLaunches, chosen: NDArray[np.intp], first_seq: int, task_ids: pa.Array
) -> pa.RecordBatch:
    def nullable(column: NDArray[np.int64] | NDArray[np.int32], arrow_type: pa.DataType) -> pa.Array:
        values = column[chosen]
        return pa.array(values, type=arrow_type, mask=values == -1)

    # Only the ids this batch uses, so that a batch is whole by itself and small.
    used, codes = np.unique(launches.task[chosen], return_inverse=True)
    ids = pa.DictionaryArray.from_arrays(pa.array(codes, type=pa.int32()), task_ids.take(pa.array(used)))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(launches.rank[chosen], type=pa.int32()),
            pa.array(np.arange(first_seq, first_seq + len(chosen)), type=pa.int64()),
            ids,
            pa.array(launches.start_ns[chosen], type=pa.int64()),
            nullable(launches.duration_ns, pa.int64()),
            pa.array(launches.stream[chosen], type=pa.int32()),
            nullable(launches.step, pa.int32()),
            nullable(launches.graph, pa.int64()),
            nullable(launches.host_launch_ns, pa.int64()),
            pa.array(launches.is_kernel[chosen], type=pa.bool_()),
        ],
        schema=LAUNCHES,
    )
