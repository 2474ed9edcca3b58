"""Kernels from CUPTI's activity records, by NVIDIA's cupti-python. Not validated on hardware: see DEVIATIONS.md.

It records every kernel of the process with its cluster and graph node, and no framework op. Only one of CUPTI's users
may be active in a process: torch's profiler must not run beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from cascade_profiler.collect import Unusable
from cascade_profiler.kineto import Seen

_BUFFER_BYTES = 8 << 20


class CuptiCollector:
    """Enabled for the length of a window; buffers that CUPTI fills are read after it."""

    name = "cupti"
    has_gpu = True

    def __init__(self, cupti: Any) -> None:
        """Tries itself out. Raises Unusable."""
        self._cupti = cupti
        kinds = cupti.ActivityKind
        self._kinds = [kinds.CONCURRENT_KERNEL, kinds.RUNTIME, kinds.DRIVER, kinds.MEMCPY, kinds.MEMSET]
        self._records: list[Any] = []
        self._offset_ns = 0
        try:
            cupti.activity_register_callbacks(self._asked, self._filled)
            self._offset_ns = self._offset()
            for kind in self._kinds:
                cupti.activity_enable(kind)
                cupti.activity_disable(kind)
        except Exception as error:
            raise Unusable(f"CUPTI cannot be used ({type(error).__name__}: {error})") from error

    def start(self) -> None:
        self._records = []
        self._offset_ns = self._offset()
        for kind in self._kinds:
            self._cupti.activity_enable(kind)

    def stop(self) -> Callable[[], Iterable[Seen]]:
        for kind in self._kinds:
            self._cupti.activity_disable(kind)
        self._cupti.activity_flush_all(1)
        records, self._records = self._records, []
        offset_ns = self._offset_ns
        kinds = self._cupti.ActivityKind
        return lambda: (seen for record in records if (seen := _seen(record, kinds, offset_ns)) is not None)

    def _asked(self) -> tuple[int, int]:
        return _BUFFER_BYTES, 0

    def _filled(self, records: list[Any]) -> None:
        self._records.extend(records)

    def _offset(self) -> int:
        """Unix time - CUPTI's time."""
        before = time.time_ns()
        stamp = int(self._cupti.get_timestamp())
        return (before + time.time_ns()) // 2 - stamp


def _seen(record: Any, kinds: Any, offset_ns: int) -> Seen | None:
    start_ns, duration_ns = record.start + offset_ns, record.end - record.start
    kind = record.kind
    if kind == kinds.CONCURRENT_KERNEL:
        args = {
            "stream": record.stream_id,
            "grid": [record.grid_x, record.grid_y, record.grid_z],
            "block": [record.block_x, record.block_y, record.block_z],
            "registers per thread": record.registers_per_thread,
            "shared memory": record.static_shared_memory + record.dynamic_shared_memory,
            "graph node id": getattr(record, "graph_node_id", 0),
        }
        if getattr(record, "cluster_x", 0):
            args["cluster"] = [record.cluster_x, record.cluster_y, record.cluster_z]
        return Seen("kernel", record.name, start_ns, duration_ns, record.stream_id, record.correlation_id, args)
    if kind in (kinds.MEMCPY, kinds.MEMSET):
        name, what = ("Memcpy", "gpu_memcpy") if kind == kinds.MEMCPY else ("Memset", "gpu_memset")
        args = {"stream": record.stream_id, "bytes": record.bytes}
        return Seen(what, name, start_ns, duration_ns, record.stream_id, record.correlation_id, args)
    if kind in (kinds.RUNTIME, kinds.DRIVER):
        # The name is a callback id; graph launches are told by their having many kernels, which nothing here needs.
        what = "cuda_runtime" if kind == kinds.RUNTIME else "cuda_driver"
        name = str(getattr(record, "name", "") or f"cbid {record.cbid}")
        return Seen(what, name, start_ns, duration_ns, record.thread_id, record.correlation_id, {})
    return None
