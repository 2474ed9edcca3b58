"""Launches on their way into the catalog, as columns of many steps at once."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import LAUNCHES
from numpy.typing import NDArray

from services.ingest.assemble import CLOCK_TOLERANCE_NS, Ints, clip_overruns
from services.ingest.imported import QualityReport
from services.ingest.recorded import RecordedColumns

_STREAM_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SaidColumns:
    """Launches in the order in which they are said: arrays of shape (rows,); -1: none, or not known."""

    task: NDArray[np.int32]  # by number
    start_ns: Ints
    duration_ns: Ints
    stream: Ints
    step: Ints
    graph: Ints
    host_launch_ns: Ints
    is_kernel: NDArray[np.bool_]

    def slice(self, first: int, count: int) -> SaidColumns:
        part = builtins.slice(first, first + count)
        return SaidColumns(*(getattr(self, name)[part] for name in self.__slots__))


def joined_said(parts: Sequence[SaidColumns]) -> SaidColumns:
    """Parts one after another."""
    if len(parts) == 1:
        return parts[0]
    return SaidColumns(*(np.concatenate([getattr(part, name) for part in parts]) for name in SaidColumns.__slots__))


def launch_rows(
    columns: SaidColumns, rank: int, first_seq: int, base_ns: int, task_id: Callable[[int], str]
) -> pa.RecordBatch:
    """Columns as a batch of LAUNCHES; `base_ns`: the trace's time 0, by the clock of the columns."""
    count = len(columns.task)
    lowest = int(columns.task.min())
    used = np.flatnonzero(np.bincount(columns.task - lowest))
    code = np.empty(int(used[-1]) + 1, dtype=np.int32)
    code[used] = np.arange(len(used), dtype=np.int32)
    ids = pa.array([task_id(number + lowest) for number in used.tolist()], type=pa.string())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(count, rank, dtype=np.int32)),
            pa.array(np.arange(first_seq, first_seq + count, dtype=np.int64)),
            pa.DictionaryArray.from_arrays(pa.array(code[columns.task - lowest]), ids),
            pa.array(columns.start_ns - base_ns),
            _known(columns.duration_ns, 0),
            pa.array(np.clip(columns.stream, -1, _STREAM_LIMIT).astype(np.int32)),
            _known(columns.step.astype(np.int32), 0),
            _known(columns.graph, 0),
            _known(columns.host_launch_ns, base_ns),
            pa.array(columns.is_kernel),
        ],
        schema=LAUNCHES,
    )


def _known(values: Ints | NDArray[np.int32], base_ns: int) -> pa.Array:
    """The values counted from `base_ns`, null where there is none."""
    is_unknown = values < 0
    return pa.array(values - base_ns if base_ns else values, mask=is_unknown if is_unknown.any() else None)


def measure_launches(rows: RecordedColumns, is_kernel: NDArray[np.bool_], run: Ints, quality: QualityReport) -> None:
    """Count what is odd about the kernels of several steps, and cut durations that cannot be. run: which, per row."""
    kernels = np.flatnonzero(is_kernel)
    start_ns, host_ns = rows.start_ns[kernels], rows.host_launch_ns[kernels]
    has_host = host_ns >= 0
    quality.launchless_count += len(kernels) - int(np.count_nonzero(has_host))
    quality.zero_duration_count += int(np.count_nonzero(rows.duration_ns[kernels] == 0))
    quality.before_launch_count += int(np.count_nonzero(has_host & (start_ns < host_ns - CLOCK_TOLERANCE_NS)))
    stream, of = rows.stream[kernels], run[kernels]
    is_later = (stream[:-1] < stream[1:]) | ((stream[:-1] == stream[1:]) & (start_ns[:-1] <= start_ns[1:]))
    if not (is_later | (of[:-1] != of[1:])).all():
        kernels = kernels[np.lexsort((start_ns, stream, of))]
        stream, of = rows.stream[kernels], run[kernels]
    are_neighbours = (of[:-1] == of[1:]) & (stream[:-1] == stream[1:])
    clip_overruns(rows.start_ns, rows.duration_ns, kernels, are_neighbours, quality)
