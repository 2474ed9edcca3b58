"""When each launch of a trace would start on a config: the composed timeline that viewers draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.aggregator.compose import LaunchGaps
from services.aggregator.run_state import TraceColumns


@dataclass(frozen=True, slots=True)
class Timeline:
    """Simulated time from the start of the first step. Launches outside every step have start -1."""

    start_ns: NDArray[np.int64]  # (launches,)
    duration_ns: NDArray[np.int64]  # (launches,); -1 unknown
    step_start_ns: dict[tuple[int, int], int]  # (rank, step)
    step_end_ns: dict[tuple[int, int], int]


def timeline(trace: TraceColumns, task_duration_ns: NDArray[np.int64], gaps: LaunchGaps) -> Timeline:
    """Steps follow each other; within one, each stream runs its launches in order with the default gap between them.

    Streams start together: dependencies between them are not in a profile. task_duration_ns has shape (tasks,).
    """
    duration = np.where(trace.step >= 0, task_duration_ns[trace.task], -1)
    start = np.full(len(duration), -1, dtype=np.int64)
    step_start: dict[tuple[int, int], int] = {}
    step_end: dict[tuple[int, int], int] = {}
    length = np.maximum(duration, 0) + np.where(trace.graph >= 0, gaps.graph_gap_ns, gaps.eager_gap_ns)
    order = np.lexsort((np.arange(len(duration)), trace.stream, trace.step, trace.rank))
    inside = order[trace.step[order] >= 0]
    keys = np.stack((trace.rank[inside], trace.step[inside], trace.stream[inside]))
    clock: dict[int, int] = {}
    for first, last in _groups(keys[:2]):
        rank, step = int(keys[0, first]), int(keys[1, first])
        began = clock.get(rank, 0)
        end = began
        for stream_first, stream_last in _groups(keys[2:, first:last]):
            rows = inside[first + stream_first : first + stream_last]
            ends = began + np.cumsum(length[rows])
            start[rows] = ends - length[rows]
            end = max(end, int(ends[-1]))
        step_start[rank, step], step_end[rank, step] = began, end
        clock[rank] = end
    return Timeline(start, duration, step_start, step_end)


def _groups(keys: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(first, last + 1) of each run of equal columns; keys has shape (fields, rows)."""
    count = keys.shape[1]
    if not count:
        return []
    starts = np.flatnonzero(np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0))))
    return list(zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True))
