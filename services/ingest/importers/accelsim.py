"""A folder that the Accel-Sim tracer wrote: `kernelslist.g` and a file per kernel, each with every instruction it ran.

Read here: the list's order and each file's header (name, grid, block, registers, shared memory). Instructions stay in
the file, which is an artifact; a task names it by its digest, and the simulators that can read it do. There are no
times and no steps. Given together with a profile of the same job, the traces are matched to its kernels by name, grid
and block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cxxfilt
import numpy as np
from cascade_schemas.events import ArtifactRef
from cascade_schemas.task import Dim3, KernelSignature, KernelTask

from services.ingest.imported import ImportedLaunches, ImportedStep, ImportedTrace, Phase, QualityReport, TraceMetadata
from services.ingest.importers.rejection import TraceRejected
from services.ingest.names import canonical_name
from services.kernels.sass_traces.containers import KERNEL_SUFFIXES, read_header_of
from services.kernels.sass_traces.header import KernelHeader
from services.kernels.sass_traces.kernelslist import LIST_NAMES, BadTrace

Placed = tuple[Path, ArtifactRef]
Identity = tuple[str, Dim3 | None, Dim3 | None]


def is_sass_file(name: str) -> bool:
    """By the names the tracer gives, which its list refers to; what is in a file is looked at when it is read."""
    return name in LIST_NAMES or name.endswith(KERNEL_SUFFIXES)


def read_sass(files: Sequence[Placed]) -> ImportedTrace:
    """The kernels of a folder in launch order, one task each. Raises TraceRejected."""
    kernels, notes = _kernels(files)
    tasks: list[KernelTask] = []
    index_of: dict[str, int] = {}
    order = []
    for header, digest in kernels:
        task = KernelTask(signature=_signature(header), sass=digest, attributes={})
        if task.task_id not in index_of:
            index_of[task.task_id] = len(tasks)
            tasks.append(task)
        order.append(index_of[task.task_id])
    count = len(order)
    streams = {stream: index for index, stream in enumerate(dict.fromkeys(header.stream for header, _ in kernels))}
    unknown = np.full(count, -1, dtype=np.int64)
    launches = ImportedLaunches(
        rank=np.zeros(count, dtype=np.int32),
        task=np.array(order, dtype=np.int32),
        start_ns=np.arange(count, dtype=np.int64),
        duration_ns=unknown,
        stream=np.array([streams[header.stream] for header, _ in kernels], dtype=np.int32),
        step=np.zeros(count, dtype=np.int32),
        graph=unknown,
        host_launch_ns=unknown,
        is_kernel=np.ones(count, dtype=bool),
    )
    versions = sorted({header.binary_version for header, _ in kernels})
    notes.append(
        f"SASS traces of sm_{', sm_'.join(map(str, versions))} code hold instructions, no times: nothing is measured "
        "here. On a GPU of another class they say what that code would take there, not what its own library would run."
    )
    capability = (versions[-1] // 10, versions[-1] % 10)
    return ImportedTrace(
        metadata=TraceMetadata(tool="accelsim", compute_capability=capability),
        tasks=tasks,
        launches=launches,
        steps=[ImportedStep(Phase.UNKNOWN, 0, 0)],
        quality=QualityReport(event_count=count, notes=notes),
    )


def with_sass(trace: ImportedTrace, files: Sequence[Placed]) -> ImportedTrace:
    """A profile's trace whose tasks name the SASS trace of a launch like theirs, where there is one."""
    kernels, notes = _kernels(files)
    digests: dict[Identity, str] = {}
    for header, digest in kernels:
        digests.setdefault(_identity(_signature(header)), digest)
    wanted = {_identity(task.signature) for task in trace.tasks}
    tasks = [
        KernelTask(**dict(task) | {"sass": digests[_identity(task.signature)]})
        if _identity(task.signature) in digests
        else task
        for task in trace.tasks
    ]
    matched = sum(bool(task.sass) for task in tasks)
    lost = [name for name, grid, block in digests if (name, grid, block) not in wanted]
    notes.append(f"SASS traces were found for {matched} of {len(tasks)} kernel tasks, by name, grid and block.")
    if lost:
        notes.append(f"{len(lost)} SASS traces belong to no kernel of the profile, {lost[0]!r} among them.")
    return replace(trace, tasks=tasks, quality=replace(trace.quality, notes=[*trace.quality.notes, *notes]))


def _kernels(files: Sequence[Placed]) -> tuple[list[tuple[KernelHeader, str]], list[str]]:
    """(header, digest) in launch order, and notes."""
    placed = {artifact.name: (path, artifact) for path, artifact in files}
    listed = next((placed[name] for name in LIST_NAMES if name in placed), None)
    if listed is None:
        # A single kernel needs no list; of several, the order would be a guess.
        if len(files) > 1:
            raise TraceRejected(f"{len(files)} SASS traces without a {LIST_NAMES[0]}: give the list beside them")
        names = [artifact.name for _, artifact in files]
    else:
        text = listed[0].read_text(encoding="utf-8", errors="replace")
        names = [Path(line.strip()).name for line in text.splitlines() if line.startswith("kernel")]
        if not names:
            raise TraceRejected(f"{listed[1].name}: lists no kernel; the tracer was ended before any was traced")
    notes: list[str] = []
    kernels = []
    for name in names:
        if name not in placed:
            raise TraceRejected(f"{name} is listed and was not given: give the whole folder")
        path, artifact = placed[name]
        try:
            kernels.append((read_header_of(path, name), artifact.digest))
        except BadTrace as error:
            raise TraceRejected(str(error)) from error
    unlisted = len(placed) - len(set(names)) - (listed is not None)
    if unlisted > 0:
        notes.append(f"{unlisted} files of the folder are not in its list and were left out.")
    return kernels, notes


def _signature(header: KernelHeader) -> KernelSignature:
    return KernelSignature(
        name=canonical_name(_demangled(header.name)) or "(no name)",
        grid=header.grid,
        block=header.block,
        registers=header.registers,
        shared_memory_bytes=header.shared_memory_bytes,
    )


def _demangled(name: str) -> str:
    try:
        return str(cxxfilt.demangle(name))
    except cxxfilt.InvalidName:
        return name


def _identity(signature: KernelSignature) -> Identity:
    return signature.name, signature.grid, signature.block
