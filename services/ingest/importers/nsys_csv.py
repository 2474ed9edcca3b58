"""Tables of `nsys stats --format csv`: cuda_gpu_trace (one row per launch) and cuda_gpu_kern_sum (one per kernel name).

cuda_gpu_trace: start, duration, grid, block, registers, shared memory, bytes, stream, device and name are read;
throughput, memory kinds and contexts are not. There are no host calls, hence no steps.
cuda_gpu_kern_sum (also as other tools write it: kernel_name, call_count, total_time_ns): total time and instances per
name. Each name becomes one task with as many launches, each of the mean duration, one after another; neither their
order nor their starts are measured, and there is no grid and no step.
Columns are found by name; units stand in their headers, as in `Duration (ns)`; text before the header is skipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.ingest.assemble import GpuColumns, LaunchColumns, LaunchConfig, OpColumns, RawTrace
from services.ingest.imported import QualityReport
from services.ingest.importers.rejection import TraceRejected
from services.ingest.importers.tables import column, find_header, number, table_rows
from services.ingest.reading import ReadState

INSTANCE_LIMIT = 200_000

_TIME_NS = {"ns": 1.0, "us": 1e3, "μs": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_BYTES = {"b": 1, "bytes": 1, "byte": 1, "kb": 1000, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20}
_NAME = ("name", "kernel name", "kernel_name", "kernel")
_TOTAL = ("total time", "total_time_ns", "total_time")
_COUNT = ("instances", "call_count", "calls", "count")


def read_gpu_trace(path: Path, on_progress: Callable[[ReadState, int], None] | None = None) -> RawTrace:
    """A cuda_gpu_trace table."""
    state, quality = ReadState(), QualityReport()
    rows = table_rows(path, state, quality)
    header = find_header(rows, is_gpu_trace)
    starts, durations = column(header, "start"), column(header, "duration")
    name_at, _ = _needed(header, "name", *_NAME)
    places = {key: column(header, key)[0] for key in ("corrid", "device", "strm", "reg/trd", "bytes")}
    grid = [column(header, key)[0] for key in ("grdx", "grdy", "grdz")]
    block = [column(header, key)[0] for key in ("blkx", "blky", "blkz")]
    static, dynamic = column(header, "stcsmem"), column(header, "dymsmem")
    start_ns, duration_ns = _TIME_NS.get(starts[1], 1.0), _TIME_NS.get(durations[1], 1.0)
    moved_unit = _BYTES.get(column(header, "bytes")[1], 1)
    configs: dict[LaunchConfig, int] = {}
    devices: dict[str, int] = {}
    table = array("d")
    for row in rows:
        quality.event_count += 1
        if len(row) != len(header):
            quality.dropped_event_count += 1
            continue
        start, duration = number(row[starts[0]]), number(row[durations[0]])
        if start is None or duration is None:
            quality.dropped_event_count += 1
            continue
        name = row[name_at]
        is_copy = name.startswith("[CUDA mem")
        moved = number(row[places["bytes"]]) if places["bytes"] >= 0 else None
        config = LaunchConfig(
            name[1:-1].replace("CUDA ", "") if is_copy else name,
            None if is_copy else _dim3(row, grid),
            None if is_copy else _dim3(row, block),
            None,
            _whole(row, places["reg/trd"]),
            None if is_copy else _shared(row, static, dynamic),
            round(moved * moved_unit) if is_copy and moved is not None else None,
            is_copy=is_copy,
        )
        device = devices.setdefault(row[places["device"]] if places["device"] >= 0 else "", len(devices))
        stream, correlation = _whole(row, places["strm"]), _whole(row, places["corrid"])
        table.extend(
            (
                start * start_ns,
                duration * duration_ns,
                device,
                -1 if stream is None else stream,
                correlation or 0,
                configs.setdefault(config, len(configs)),
                not is_copy,
            )
        )
        if on_progress and quality.event_count % 10_000 == 0:
            on_progress(state, quality.event_count)
    if not table:
        raise TraceRejected(
            "the cuda_gpu_trace table has no row that can be read: export it again with "
            "`nsys stats --report cuda_gpu_trace --format csv`"
        )
    columns = np.frombuffer(table, dtype=np.float64).reshape(-1, 7)
    columns = columns[(np.abs(columns) < 2**62).all(axis=1)]
    quality.notes.append("The table has no host calls, so there are no steps; import the SQLite export to have them.")
    quality.is_truncated = quality.is_truncated or state.is_damaged
    return _raw("nsys-gpu-trace-csv", columns, list(configs), quality, has_timeline=True)


def read_kernel_sum(path: Path, on_progress: Callable[[ReadState, int], None] | None = None) -> RawTrace:
    """A cuda_gpu_kern_sum table."""
    state, quality = ReadState(), QualityReport()
    rows = table_rows(path, state, quality)
    header = find_header(rows, is_kernel_sum)
    name_at, _ = _needed(header, "name", *_NAME)
    total_at, unit = _needed(header, "total time", *_TOTAL)
    count_at, _ = _needed(header, "instances", *_COUNT)
    configs: dict[LaunchConfig, int] = {}
    sums: list[tuple[int, int, int]] = []
    for row in rows:
        quality.event_count += 1
        total, count = (number(row[at]) if len(row) == len(header) else None for at in (total_at, count_at))
        if total is None or count is None or not row[name_at] or not 0 < count < 2**53 or not 0 <= total < 2**53:
            quality.dropped_event_count += 1
            continue
        config = configs.setdefault(LaunchConfig(row[name_at]), len(configs))
        sums.append((config, round(count), round(total * _TIME_NS.get(unit, 1.0))))
    instances = sum(count for _, count, _ in sums)
    if not instances:
        raise TraceRejected(
            "the kernel summary has no row with a name, instances and a total time: export it again with "
            "`nsys stats --report cuda_gpu_kern_sum --format csv`"
        )
    if instances > INSTANCE_LIMIT:
        raise TraceRejected(
            f"the kernel summary stands for {instances} launches, more than the {INSTANCE_LIMIT} that are taken from a "
            "table without starts and grids: summarise a shorter range, or import the SQLite export of the recording"
        )
    config_of = np.repeat([config for config, _, _ in sums], [count for _, count, _ in sums])
    # The mean, with the remainder spread, so that durations sum to the table's total.
    duration = np.concatenate([total // count + (np.arange(count) < total % count) for _, count, total in sums]).astype(
        np.float64
    )
    columns = np.zeros((instances, 7))
    columns[:, 0] = np.concatenate([[0.0], np.cumsum(duration)[:-1]])
    columns[:, 1], columns[:, 5], columns[:, 6] = duration, config_of, 1
    quality.notes.append(
        "A kernel summary has no step structure, no launch order and no grids: each name's launches have its mean "
        "duration, one after another; import the SQLite export to have them as they ran."
    )
    quality.is_truncated = quality.is_truncated or state.is_damaged
    if on_progress:
        on_progress(state, quality.event_count)
    return _raw("nsys-kernel-sum-csv", columns, list(configs), quality, has_timeline=False)


def is_gpu_trace(header: list[str]) -> bool:
    """Whether a row is the header of cuda_gpu_trace."""
    return column(header, "start")[0] >= 0 and column(header, "duration")[0] >= 0 and column(header, "name")[0] >= 0


def is_kernel_sum(header: list[str]) -> bool:
    """Whether a row is the header of a kernel summary."""
    return all(any(column(header, name)[0] >= 0 for name in names) for names in (_NAME, _TOTAL, _COUNT))


def _raw(
    tool: str, columns: NDArray[np.float64], configs: list[LaunchConfig], quality: QualityReport, *, has_timeline: bool
) -> RawTrace:
    whole = np.rint(columns).astype(np.int64)
    none = np.empty(0, dtype=np.int64)
    missing = np.full(len(whole), -1, dtype=np.int64)
    return RawTrace(
        tool=tool,
        gpu=GpuColumns(
            start_ns=whole[:, 0], duration_ns=whole[:, 1], device=whole[:, 2], stream=whole[:, 3],
            correlation=whole[:, 4], external=missing, config=whole[:, 5], is_kernel=columns[:, 6] > 0,
            graph_node=np.zeros(len(whole), dtype=np.int64),
        ),
        calls=LaunchColumns(none, none, none, none, none, none),
        op_rows=OpColumns(none, none, none, none, none),
        annotations=[], configs=configs, apis=[], ops=[], quality=quality,
        has_host=False, has_timeline=has_timeline,
    )  # fmt: skip


def _needed(header: list[str], what: str, *names: str) -> tuple[int, str]:
    for name in names:
        found = column(header, name)
        if found[0] >= 0:
            return found
    raise TraceRejected(f"the table has no column {what!r}; its columns are {', '.join(header)[:200]}")


def _whole(row: list[str], at: int) -> int | None:
    value = number(row[at]) if at >= 0 else None
    return round(value) if value is not None and 0 <= value < 2**53 else None


def _dim3(row: list[str], places: list[int]) -> tuple[int, int, int] | None:
    x, y, z = (_whole(row, at) for at in places)
    return None if not x or not y or not z else (x, y, z)


def _shared(row: list[str], static: tuple[int, str], dynamic: tuple[int, str]) -> int | None:
    sizes = [
        value * _BYTES.get(unit, 1)
        for at, unit in (static, dynamic)
        if at >= 0 and (value := number(row[at])) is not None
    ]
    return round(sum(sizes)) if sizes else None
