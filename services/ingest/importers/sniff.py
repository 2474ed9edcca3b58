"""Which importer a file needs, told by its first bytes, never by its name."""

from __future__ import annotations

from enum import StrEnum

from cascade_schemas.recording import is_record_stream

from services.ingest.importers.ncu_csv import is_ncu
from services.ingest.importers.nsys_csv import is_gpu_trace, is_kernel_sum
from services.ingest.importers.rejection import TraceRejected
from services.ingest.importers.tables import read_row


class Format(StrEnum):
    """The formats Cascade imports."""

    KINETO = "kineto"
    NSYS_SQLITE = "nsys-sqlite"
    NSYS_GPU_TRACE = "nsys-gpu-trace-csv"
    NSYS_KERNEL_SUM = "nsys-kernel-sum-csv"
    NCU = "ncu-csv"
    SYNTHESIS = "synthesis"  # our own: a workload to make a trace of
    RECORD_STREAM = "cascade-trace"  # our own: what the profiler SDK wrote


_PREAMBLE_LINES_LIMIT = 200
_LINE_LIMIT = 100_000

_ACCEPTED = (
    "Cascade reads what its own profiler recorded, Kineto JSON of torch.profiler, Nsight Systems SQLite"
    " (`nsys export --type sqlite`), "
    "`nsys stats` CSV (cuda_gpu_trace, cuda_gpu_kern_sum) and `ncu --csv`"
)


def sniff(head: bytes) -> Format:
    """The format of a file by its first (unpacked) bytes."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n\0")
    if not text:
        raise TraceRejected("the file is empty: record again and wait until the profiler has written it")
    if is_record_stream(head):
        return Format.RECORD_STREAM
    if head.startswith(b"SQLite format 3\0"):
        return Format.NSYS_SQLITE
    if text[:64].replace(b" ", b"").startswith(b'{"cascade_synthesis":'):
        return Format.SYNTHESIS
    if text[:1] in b"{[":
        return Format.KINETO
    for line in text.split(b"\n")[:_PREAMBLE_LINES_LIMIT]:
        row = read_row(line[:_LINE_LIMIT].decode("utf-8", "replace")) or []
        if is_ncu(row):
            return Format.NCU
        if is_gpu_trace(row):
            return Format.NSYS_GPU_TRACE
        if is_kernel_sum(row):
            return Format.NSYS_KERNEL_SUM
    if head.startswith(b"PK\x03\x04"):
        raise TraceRejected(f"the file is a zip archive: unpack it first; {_ACCEPTED}")
    raise TraceRejected(f"the file begins with {_shown(head)}, which is no trace format known here: {_ACCEPTED}")


def _shown(head: bytes) -> str:
    return repr(head[:16].decode("ascii", "replace"))
