"""Foreign traces in, `ImportedTrace` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cascade_schemas.model import ModelSpec

from services.ingest.assemble import RawTrace, assemble, joined
from services.ingest.derive import CannotDerive
from services.ingest.graphs import captures, is_capture, join_captures
from services.ingest.imported import ImportedTrace
from services.ingest.importers.kineto import read_kineto
from services.ingest.importers.ncu_csv import read_ncu
from services.ingest.importers.nsys import read_nsys
from services.ingest.importers.nsys_csv import read_gpu_trace, read_kernel_sum
from services.ingest.importers.rejection import TraceRejected
from services.ingest.importers.sniff import Format, sniff
from services.ingest.importers.synthesis import read_synthesis
from services.ingest.reading import ReadState, read_head

__all__ = ["ImportProgress", "TraceRejected", "import_trace"]


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import has come."""

    bytes_read: int  # of the files as stored, all together
    bytes_total: int
    event_count: int


def import_trace(
    paths: Sequence[Path],
    *,
    model: ModelSpec | None = None,
    source_gpu: str | None = None,
    prompts: tuple[int, ...] = (),
    progress: Callable[[ImportProgress], None] | None = None,
) -> ImportedTrace:
    """The files of one job as one trace: one per rank, and the traces of their graph captures if there are any.

    A file of framework ops without any GPU, as vLLM's CPU back end records it, becomes the kernels that a GPU would
    run for the same steps: `provenance` is then recorded-on-cpu, durations are -1, and `start_ns` only orders the
    launches of a step (0, 1, 2 … ns after the step's start on the host).
    """
    if not paths:
        raise TraceRejected("no file was given: name at least one trace file")
    try:
        formats = [sniff(read_head(path)) for path in paths]
        if Format.RECORD_STREAM in formats:
            raise TraceRejected("what Cascade's profiler recorded is imported without other files beside it")
        if Format.SYNTHESIS in formats:
            if len(paths) > 1:
                raise TraceRejected("a workload to synthesize stands alone: give it without other files")
            return read_synthesis(paths[0])
        raws = _read_all(paths, formats, progress)
    except OSError as reason:
        raise TraceRejected(f"a file cannot be read: {reason.strerror or reason}; name files that exist") from reason
    _reject_empty(raws)
    capturing = [raw for raw in raws if is_capture(raw)]
    serving = [raw for raw in raws if not is_capture(raw)]
    if not serving:
        serving, capturing = capturing, []
        serving[0].quality.notes.append(
            "This is the trace of a graph capture: import it together with the trace of the replay it belongs to."
        )
    joints = [joined(raw) for raw in serving]
    for joint in joints:
        of_rank = [raw for raw in capturing if len(serving) == 1 or raw.rank in (joint.raw.rank, None)]
        join_captures(joint, [capture for raw in of_rank for capture in captures(raw)])
    try:
        return assemble(joints, source_gpu=source_gpu, model=model, prompts=prompts)
    except CannotDerive as reason:
        raise TraceRejected(f"no GPU kernels are in the trace and none can be derived: {reason}") from reason


def _read_all(
    paths: Sequence[Path], formats: Sequence[Format], progress: Callable[[ImportProgress], None] | None
) -> list[RawTrace]:
    total = sum(path.stat().st_size for path in paths)
    raws: list[RawTrace] = []
    done_bytes = done_events = 0

    def report(state: ReadState, event_count: int) -> None:
        if progress:
            progress(ImportProgress(done_bytes + state.file_bytes_read, total, done_events + event_count))

    for path, kind in zip(paths, formats, strict=True):
        match kind:
            case Format.KINETO:
                raws.append(read_kineto(path, report))
            case Format.NSYS_SQLITE:
                raws.extend(read_nsys(path, report))
            case Format.NSYS_GPU_TRACE:
                raws.append(read_gpu_trace(path, report))
            case Format.NSYS_KERNEL_SUM:
                raws.append(read_kernel_sum(path, report))
            case Format.NCU:
                raws.append(read_ncu(path, report))
        done_bytes += path.stat().st_size
        done_events = sum(raw.quality.event_count for raw in raws)
    return raws


def _reject_empty(raws: Sequence[RawTrace]) -> None:
    """No kernels although there are launches: the profiler lost them. Neither kernels nor ops: nothing to simulate."""
    if any(raw.gpu.is_kernel.any() for raw in raws):
        return
    launches = sum(raw.launch_call_count() for raw in raws)
    if launches:
        raise TraceRejected(
            f"{launches} kernel launches are in the trace but not one kernel: the profiler lost its GPU records "
            "(a session before graph capture, a full buffer, a second profiler); record again in a fresh process"
        )
    if any(len(raw.gpu.start_ns) for raw in raws):
        return
    if not any(len(raw.op_rows.start_ns) for raw in raws):
        raise TraceRejected(
            f"none of the {sum(raw.quality.event_count for raw in raws)} events is GPU work or a framework op: "
            "record with torch.profiler activities CPU and CUDA while the model runs"
        )
