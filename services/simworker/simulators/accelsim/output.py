"""What `accel-sim.out` prints, read line by line: progress while it runs, one block of statistics per kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

EXIT_MARK = "GPGPU-Sim: *** exit detected ***"

_LAUNCHING = re.compile(r"launching kernel name: (?P<name>.*) uid: (?P<uid>\d+) cuda_stream_id: (?P<stream>\d+)")
_STATISTIC = re.compile(r"\s*(?P<key>[A-Za-z][\w \[\]-]*?)\s*=\s*(?P<value>-?[\d.]+(?:e[+-]?\d+)?|-?nan|-?inf)\b")
_OPTION = re.compile(r"-(?P<name>[\w:]+)\s+(?P<value>.*?)\s+# ")
_CTA_LIMIT = re.compile(r"GPGPU-Sim uArch: CTA/core = (?P<count>\d+), limited by: (?P<by>[\w ]+)")
_GRID = re.compile(r"-grid dim = \((\d+),(\d+),(\d+)\)")
_HEARTBEAT = re.compile(r"GPGPU-Sim Cycle (?P<cycle>\d+): LIVENESS - uArch: inst\.: (?P<instructions>\d+) ")
_CLOCKS = re.compile(r"GPGPU-Sim uArch: clock freqs: (?P<core_hz>[\d.]+):")
_VERSION = re.compile(r"\*\*\* GPGPU-Sim Simulator Version (?P<version>\S+)")

PER_KERNEL = ("gpu_sim_cycle", "gpu_sim_insn", "gpu_ipc", "L2_BW", "partiton_level_parallism")
"""What the simulator prints for one kernel; it counts everything else since the process began."""

SINCE_START = (
    "gpgpu_n_tot_w_icount",
    "L1D_total_cache_accesses",
    "L1D_total_cache_misses",
    "L2_total_cache_accesses",
    "L2_total_cache_misses",
    "total dram reads",
    "total dram writes",
    "gpgpu_n_shmem_bkconflict",
    "gpgpu_n_l1cache_bkconflict",
    "gpgpu_stall_shd_mem",
    "L2_cache_stats_breakdown[GLOBAL_ACC_R][TOTAL_ACCESS]",
    "L2_cache_stats_breakdown[GLOBAL_ACC_R][HIT]",
    "L2_cache_stats_breakdown[GLOBAL_ACC_W][TOTAL_ACCESS]",
    "L2_cache_stats_breakdown[GLOBAL_ACC_W][HIT]",
    "Total_core_cache_stats_breakdown[GLOBAL_ACC_R][TOTAL_ACCESS]",
    "Total_core_cache_stats_breakdown[GLOBAL_ACC_R][HIT]",
    "Total_core_cache_stats_breakdown[GLOBAL_ACC_W][TOTAL_ACCESS]",
)
"""Counters that only grow: a kernel's own are what the previous block did not have yet."""


@dataclass(slots=True)
class KernelBlock:
    """One launch as the simulator tells it. `counters` are this kernel's own; sectors and requests are of 32 bytes."""

    uid: int
    name: str  # mangled
    cta_count: int = 0  # of the grid
    issued_cta_count: int = 0
    cycle: int = 0  # the last heartbeat's
    ctas_per_sm: int = 0
    limited_by: str = ""
    is_finished: bool = False
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def issued_ratio(self) -> float:
        """Thread blocks issued, which is ahead of those that have ended by up to a wave."""
        return self.issued_cta_count / self.cta_count if self.cta_count else 0.0


class Output:
    """Fed with standard output's lines as they come; never raises on what a simulator may print."""

    def __init__(self) -> None:
        self.kernels: list[KernelBlock] = []
        self.options: dict[str, str] = {}
        self.version = ""
        self.core_hz = 0.0
        self.has_exit_mark = False
        self.remarks: list[str] = []
        """Lines that say why a simulator stopped: errors, deadlocks, limits."""
        self._in_options = False
        self._grid_cta_count = 0
        self._counted: dict[str, float] = {}
        self._block: dict[str, float] = {}

    @property
    def running(self) -> KernelBlock | None:
        return self.kernels[-1] if self.kernels and not self.kernels[-1].is_finished else None

    @property
    def finished_count(self) -> int:
        return sum(kernel.is_finished for kernel in self.kernels)

    def feed(self, line: str) -> None:
        text = line.rstrip()
        if text.startswith("thread block = "):
            if self.kernels:
                self.kernels[-1].issued_cta_count += 1
        elif found := _LAUNCHING.match(text):
            self._close_block()
            self.kernels.append(KernelBlock(int(found["uid"]), found["name"], self._grid_cta_count))
        elif found := _GRID.match(text):
            x, y, z = map(int, found.groups())
            self._grid_cta_count = x * y * z
        elif text.startswith("kernel_launch_uid = "):
            self._finish(text)
        elif _is_remark(text):
            self.remarks.append(text)
        elif text == EXIT_MARK:
            self._close_block()
            self.has_exit_mark = True
        elif text.startswith("GPGPU-Sim"):
            self._uarch(text)
        elif found := _VERSION.search(text):
            self.version = found["version"]
        elif not self.kernels and (found := _OPTION.match(text)):
            self.options[found["name"]] = found["value"]
        elif self.kernels and self.kernels[-1].is_finished and (found := _STATISTIC.match(text)):
            self._statistic(found["key"], found["value"])

    def close(self) -> None:
        """No more lines will come."""
        self._close_block()

    def _uarch(self, text: str) -> None:
        if found := _HEARTBEAT.match(text):
            if self.kernels:
                self.kernels[-1].cycle = int(found["cycle"])
        elif found := _CTA_LIMIT.match(text):
            if self.kernels:
                self.kernels[-1].ctas_per_sm = int(found["count"])
                self.kernels[-1].limited_by = found["by"].strip()
        elif found := _CLOCKS.match(text):
            self.core_hz = float(found["core_hz"])

    def _finish(self, text: str) -> None:
        """A block of statistics begins; kernels of several streams may end in another order than they began."""
        self._close_block()
        number = text.partition("=")[2].strip()
        for index, kernel in enumerate(self.kernels):
            if number.isdecimal() and kernel.uid == int(number):
                kernel.is_finished = True
                self.kernels.append(self.kernels.pop(index))
                return

    def _statistic(self, key: str, value: str) -> None:
        if key in PER_KERNEL or key in SINCE_START:
            # A division by zero prints -nan: nothing to count.
            self._block.setdefault(key, float(value) if "n" not in value else 0.0)

    def _close_block(self) -> None:
        if not self._block:
            return
        kernel = self.kernels[-1]
        for key, value in self._block.items():
            kernel.counters[key] = value if key in PER_KERNEL else value - self._counted.get(key, 0.0)
            if key in SINCE_START:
                self._counted[key] = value
        self._block = {}


def _is_remark(text: str) -> bool:
    return (
        text.startswith(("unsupported binary version", "Unable to open file", "Error:", "ERROR:"))
        or "ERROR **" in text
        or "DEADLOCK" in text
        or "** break due to" in text
    )
