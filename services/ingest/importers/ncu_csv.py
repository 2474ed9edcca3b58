"""Nsight Compute tables: `ncu --csv --page details` (one row per metric) and `--page raw` (one row per kernel).

Read: kernel name, grid, block, stream, compute capability, duration, registers per thread, shared memory, cluster.
Other metrics, rules, process, host and device names are ignored. ncu runs each kernel alone, with cold caches and, by
default, with clocks locked to base, so its durations are not those of a running model; a note says so. There are no
host calls and no steps; launches stand one after another in the order of their ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from services.ingest.assemble import DeviceFacts, GpuColumns, LaunchColumns, LaunchConfig, OpColumns, RawTrace
from services.ingest.imported import QualityReport
from services.ingest.importers.rejection import TraceRejected
from services.ingest.importers.tables import column, find_header, number, table_rows
from services.ingest.reading import ReadState

_TIME_NS = {
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9,
}  # fmt: skip
_BYTES = {"byte": 1, "kbyte": 1000, "mbyte": 10**6, "gbyte": 10**9, "byte/block": 1, "kbyte/block": 1000}
_KEPT = {
    "duration": "duration", "gpu__time_duration.sum": "duration",
    "registers per thread": "registers", "launch__registers_per_thread": "registers",
    "static shared memory per block": "static", "launch__shared_mem_per_block_static": "static",
    "dynamic shared memory per block": "dynamic", "launch__shared_mem_per_block_dynamic": "dynamic",
    "cluster size": "cluster", "launch__cluster_size": "cluster",
}  # fmt: skip
_KERNEL_LIMIT = 1_000_000


@dataclass(slots=True)
class _Kernel:
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    stream: int
    metrics: dict[str, float] = field(default_factory=dict)


def read_ncu(path: Path, on_progress: Callable[[ReadState, int], None] | None = None) -> RawTrace:
    """All kernels of a table."""
    state, quality = ReadState(), QualityReport()
    rows = table_rows(path, state, quality)
    header = find_header(rows, is_ncu)
    place = {
        key: column(header, key)[0]
        for key in ("id", "kernel name", "grid size", "block size", "stream", "cc", "device", "metric name",
                    "metric unit", "metric value", "process id")
    }  # fmt: skip
    is_long = place["metric name"] >= 0
    # The wide page has one column per metric and its units in the row below the header.
    wide = [(at, _KEPT[title.lower()]) for at, title in enumerate(header) if title.lower() in _KEPT]
    units: list[str] = []
    kernels: dict[tuple[str, str], _Kernel] = {}
    capability: tuple[int, int] | None = None
    for short in rows:
        row = short + [""] * (len(header) - len(short))  # empty columns at the end are left out
        if len(row) > len(header) or not (row[place["id"]].isdigit() or not (is_long or units)):
            quality.dropped_event_count += 1
            continue
        if not is_long and not units and not row[place["id"]]:
            units = row
            continue
        quality.event_count += 1
        key = (row[place["process id"]] if place["process id"] >= 0 else "", row[place["id"]])
        kernel = kernels.get(key)
        if kernel is None:
            if len(kernels) >= _KERNEL_LIMIT:
                break
            stream = number(row[place["stream"]]) if place["stream"] >= 0 else None
            kernel = kernels[key] = _Kernel(
                row[place["kernel name"]],
                _dim3(row, place["grid size"]),
                _dim3(row, place["block size"]),
                int(stream) if stream is not None and 0 <= stream < 2**31 else -1,
            )
        capability = capability or _capability(row, place["cc"])
        if is_long:
            kept = _KEPT.get(row[place["metric name"]].lower())
            if kept:
                _keep(kernel, kept, row[place["metric value"]], row[place["metric unit"]])
        else:
            for at, kept in wide:
                _keep(kernel, kept, row[at], units[at] if units else "")
        if on_progress and quality.event_count % 10_000 == 0:
            on_progress(state, quality.event_count)
    timed = [kernel for kernel in kernels.values() if kernel.name and "duration" in kernel.metrics]
    quality.dropped_event_count += len(kernels) - len(timed)
    if not timed:
        raise TraceRejected(
            f"none of the {len(kernels)} kernels of the table has a name and a duration: profile with "
            "`ncu --csv --page details --section SpeedOfLight --section LaunchStats` or with `--page raw`"
        )
    quality.notes.append(
        "Nsight Compute measures each kernel alone, with cold caches and base clocks unless told otherwise: its "
        "durations are not those of the running model, and there are no steps."
    )
    quality.is_truncated = quality.is_truncated or state.is_damaged
    return _raw(timed, capability, quality)


def is_ncu(header: list[str]) -> bool:
    """Whether a row is the header of an ncu table."""
    names = {title.lower() for title in header}
    return {"id", "kernel name"} <= names and bool(
        {"metric name", "metric value"} <= names or names & {"gpu__time_duration.sum", "grid size"}
    )


def _raw(timed: list[_Kernel], capability: tuple[int, int] | None, quality: QualityReport) -> RawTrace:
    configs: dict[LaunchConfig, int] = {}
    config_of = []
    for kernel in timed:
        metrics = kernel.metrics
        shared = [metrics[name] for name in ("static", "dynamic") if name in metrics]
        cluster = int(metrics.get("cluster", 0))
        config = LaunchConfig(
            kernel.name,
            kernel.grid,
            kernel.block,
            (cluster, 1, 1) if cluster > 1 else None,
            int(metrics["registers"]) if "registers" in metrics else None,
            round(sum(shared)) if shared else None,
        )
        config_of.append(configs.setdefault(config, len(configs)))
    duration = np.array([round(kernel.metrics["duration"]) for kernel in timed], dtype=np.int64)
    count = len(timed)
    none, zeros = np.empty(0, dtype=np.int64), np.zeros(count, dtype=np.int64)
    return RawTrace(
        tool="ncu-csv",
        gpu=GpuColumns(
            start_ns=np.concatenate([[0], np.cumsum(duration)[:-1]]).astype(np.int64), duration_ns=duration,
            device=zeros, stream=np.array([kernel.stream for kernel in timed], dtype=np.int64), correlation=zeros,
            external=np.full(count, -1, dtype=np.int64), config=np.array(config_of, dtype=np.int64),
            is_kernel=np.ones(count, dtype=bool), graph_node=zeros,
        ),
        calls=LaunchColumns(none, none, none, none, none, none),
        op_rows=OpColumns(none, none, none, none, none),
        annotations=[], configs=list(configs), apis=[], ops=[], quality=quality,
        device=DeviceFacts(compute_capability=capability), has_host=False, has_timeline=False,
    )  # fmt: skip


def _keep(kernel: _Kernel, kept: str, text: str, unit: str) -> None:
    value = number(text)
    if value is None or not 0 <= value < 2**53:
        return
    scale = _TIME_NS if kept == "duration" else _BYTES if kept in ("static", "dynamic") else {}
    kernel.metrics.setdefault(kept, value * scale.get(unit.lower(), 1))


def _dim3(row: list[str], at: int) -> tuple[int, int, int] | None:
    sizes = [int(size) for size in re.findall(r"\d{1,10}", row[at])] if at >= 0 else []
    if len(sizes) != 3 or min(sizes) < 1:
        return None
    return sizes[0], sizes[1], sizes[2]


def _capability(row: list[str], at: int) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", row[at]) if at >= 0 else None
    return (int(match[1]), int(match[2])) if match else None
