"""What every importer produces: one trace, in memory, in columns, before it becomes events.

A launch points at a kernel task by index and at a step by index; -1 means none or unknown in every integer column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from cascade_schemas.gpu import load_gpu, match_device
from cascade_schemas.task import KernelTask, Lengths
from numpy.typing import NDArray

ROWS_PER_EVENT = 4096  # launches said together

Provenance = Literal["measured", "recorded-on-cpu", "synthesized"]


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    EMPTY = "empty"
    UNKNOWN = "unknown"  # no engine annotation: a training step, a whole file without steps


@dataclass(frozen=True, slots=True)
class ImportedStep:
    """One engine step. Times are offsets from the trace's start, on the host's clock."""

    phase: Phase
    start_ns: int
    duration_ns: int  # of the annotation on the host; not the GPU's time
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    q_lengths: Lengths = ()  # per request, decodes and prefills in the engine's order, where known
    kv_lengths: Lengths = ()
    request_indexes: Lengths = ()  # which request of the trace each entry of q_lengths is, where known
    annotation: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True)
class ImportedLaunches:
    """All launches and copies in order of start, per rank: arrays of shape (launches,)."""

    rank: NDArray[np.int32]
    task: NDArray[np.int32]  # index into ImportedTrace.tasks
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]  # -1: not measured (derived kernels)
    stream: NDArray[np.int32]
    step: NDArray[np.int32]
    graph: NDArray[np.int64]  # correlation id of the graph launch that ran it; -1: launched by itself
    host_launch_ns: NDArray[np.int64]  # when the host issued it; -1: unknown
    is_kernel: NDArray[np.bool_]  # False: memcpy or memset


@dataclass(frozen=True, slots=True)
class TraceMetadata:
    """Only what is on this whitelist survives an import."""

    tool: str  # kineto, nsys-sqlite, nsys-gpu-trace-csv, nsys-kernel-sum-csv, ncu-csv
    provenance: Provenance = "measured"
    gpu_name: str = ""  # as the profiler says it; "" when it does not
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    dram_bytes: int | None = None
    engine: str = ""  # vllm, sglang, transformers; "" unknown
    engine_version: str = ""
    model: str = ""
    rank_count: int = 1  # ranks present in the import
    world_size: int = 1  # ranks of the job
    started_at: str = ""  # RFC 3339, UTC; "" when the file has no wall clock
    graph_capture_joined: int = 0  # launches that took op and shapes from a capture trace


@dataclass(slots=True)
class QualityReport:
    """What was wrong with the file and what was done about it; every count that is not zero is shown to the user."""

    event_count: int = 0
    dropped_event_count: int = 0  # malformed events skipped
    is_truncated: bool = False
    non_finite_count: int = 0
    launchless_count: int = 0  # kernels whose launch lies outside the window
    gridless_count: int = 0
    overlap_count: int = 0  # kernels starting before their predecessor on the stream ended
    overrun_clipped_count: int = 0
    zero_duration_count: int = 0
    negative_duration_count: int = 0
    duplicate_count: int = 0
    opaque_graph_launch_count: int = 0  # graph launches without any kernel record
    before_launch_count: int = 0  # kernels that start before they were launched: a broken clock
    redacted_count: int = 0  # values withheld because they looked like a secret
    capture_mismatch: str = ""
    notes: list[str] = field(default_factory=list)  # one sentence each, with the way out


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    metadata: TraceMetadata
    tasks: list[KernelTask]
    launches: ImportedLaunches
    steps: list[ImportedStep]
    quality: QualityReport
    prompts: Lengths = ()  # prompt tokens per request, where known


def source_gpu_of(said: str | None, metadata: TraceMetadata) -> str | None:
    """The id of the GPU a trace was measured on: as the user said it, else as the device describes itself."""
    if metadata.provenance == "recorded-on-cpu":
        return None
    if said is not None:
        return load_gpu(said).gpu
    matched = match_device(
        metadata.gpu_name,
        sm_count=metadata.sm_count,
        dram_bytes=metadata.dram_bytes,
        compute_capability=metadata.compute_capability,
    )
    return None if matched is None else matched.gpu
