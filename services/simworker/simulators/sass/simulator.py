"""A folder of SASS traces on a machine: cycles and statistics of every kernel, in launch order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from services.kernels.sass_traces.kernelslist import BadTrace
from services.simworker.simulators.sass import core
from services.simworker.simulators.sass.machine import PIPES, Machine, machine_of
from services.simworker.simulators.sass.reading import KernelTrace, read_text
from services.simworker.simulators.sass.state import (
    Code,
    fresh_calendars,
    fresh_l1,
    fresh_l2,
    fresh_warps,
    numbers_of,
    pipes_of,
)

SMALLEST = {
    "gpgpu_clock_domains": "1:1:1:1",
    "gpgpu_n_clusters": "1",
    "gpgpu_n_mem": "1",
    "gpgpu_shader_core_pipeline": "128:32",
    "gpgpu_cache:dl1": "S:4:128:4,L:T:m:L:L,A:8:8,8:0,32",
    "gpgpu_cache:dl2": "S:4:128:4,L:B:m:L:L,A:8:4,8:0,32",
}
"""Options of a machine that is only there to compile for."""


@dataclass(frozen=True, slots=True)
class KernelResult:
    """What became of one launch; cycles are without launch latency, None where the kernel cannot end."""

    trace: KernelTrace
    cycles: int | None
    deadlock: str  # why it cannot end, or why Accel-Sim's 1.x cannot end it
    ctas_per_sm: int
    limited_by: str
    told: tuple[int, ...]

    def count(self, slot: int) -> int:
        return self.told[slot]


class Simulation:
    """One machine, kernel after kernel: what the last one left in L2 is there for the next."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._pipes = pipes_of(machine)
        self._l1 = fresh_l1(machine)
        self._l2 = fresh_l2(machine)
        self._warps = fresh_warps(machine)
        self._calendars = fresh_calendars(machine)
        # Time goes on from kernel to kernel, so that whatever a fill waited for has arrived long before.
        self._base = 1 << 16

    def run(self, trace: KernelTrace) -> KernelResult:
        machine = self.machine
        header = trace.header
        resident, limited_by = machine.resident_ctas(header)
        if resident < 1:
            raise BadTrace(_too_large(trace, machine, limited_by))
        if machine.flushes_l2:
            self._l2 = fresh_l2(machine)
        ways = machine.l1_ways_beside(resident * header.shared_memory_bytes)
        code = Code(trace.instructions, trace.memory, trace.warp_start, trace.warp_memory, trace.cta_warp)
        width = int(np.diff(trace.cta_warp).max())
        told = np.zeros(core.TOLD_SIZE, np.int64)
        ended = core.simulate(
            numbers_of(machine, ways),
            self._pipes,
            code,
            self._l1,
            self._l2,
            self._calendars,
            self._warps,
            self._base,
            min(resident, max(1, machine.threads_per_sm // 32 // width)),
            width,
            told,
        )
        self._base += int(told[core.CYCLES]) + (1 << 16)
        return KernelResult(
            trace=trace,
            cycles=int(told[core.CYCLES]) if ended else None,
            deadlock=trace.exit_mask if ended else _stuck(trace, told.tolist()),
            ctas_per_sm=resident,
            limited_by=limited_by,
            told=tuple(told.tolist()),
        )


def _too_large(trace: KernelTrace, machine: Machine, by: str) -> str:
    header = trace.header
    need, have = {
        "threads": (f"{header.warps_per_cta * 32} threads", machine.threads_per_sm),
        "regs": (
            f"{header.registers} registers for each of {header.warps_per_cta * 32} threads",
            machine.registers_per_sm,
        ),
        "shmem": (f"{header.shared_memory_bytes} B of shared memory", machine.shared_memory_bytes),
    }[by]
    return f"{trace.file}: one thread block needs {need}, and an SM of this config has {have}"


def _stuck(trace: KernelTrace, told: list[int]) -> str:
    return (
        f"{trace.file}: {told[core.PARKED_WARPS]} of {told[core.LIVE_WARPS]} warps wait at a barrier that the others "
        "never reach"
    )


def report_of(result: KernelResult) -> dict[str, Any]:
    """One kernel for `--json`. Sectors are 32 bytes."""
    told = result.told
    machine_pipes = (*PIPES, "memory")
    cycles = result.cycles
    report: dict[str, Any] = {
        "name": result.trace.header.name,
        "file": result.trace.file,
        "cycles": cycles,
        "warp_instructions": told[core.INSTRUCTIONS],
        "thread_instructions": result.trace.thread_instructions,
        "ipc": round(result.trace.thread_instructions / cycles, 4) if cycles else None,
        "ctas_per_sm": result.ctas_per_sm,
        "limited_by": result.limited_by,
        "l1_read_sectors": told[core.L1_READS],
        "l1_read_hits": told[core.L1_READ_HITS],
        "l1_write_sectors": told[core.L1_WRITES],
        "l2_read_sectors": told[core.L2_READS],
        "l2_read_hits": told[core.L2_READ_HITS],
        "l2_write_sectors": told[core.L2_WRITES],
        "l2_write_hits": told[core.L2_WRITE_HITS],
        "dram_read_bytes": told[core.DRAM_READS] * 32,
        "dram_write_bytes": told[core.DRAM_WRITES] * 32,
        "shared_accesses": told[core.SHARED_ACCESSES],
        "bank_conflict_cycles": told[core.BANK_CONFLICTS],
        "stall_cycles": {
            "memory": told[core.STALL_MEMORY],
            "dependency": told[core.STALL_DEPENDENCY],
            "pipe": told[core.STALL_PIPE],
            "barrier": told[core.STALL_BARRIER],
        },
        "pipe_busy_cycles": {
            name: told[core.PIPE_BUSY + index]
            for index, name in enumerate(machine_pipes)
            if told[core.PIPE_BUSY + index]
        },
    }
    if result.deadlock:
        report["deadlock"] = result.deadlock
    return report


def compile_core() -> None:
    """Compiles, or loads from the cache, all that a simulation calls, so that it is not counted as simulating."""
    text = (
        "-grid dim = (1,1,1)\n-block dim = (32,1,1)\n-binary version = 80\n-accelsim tracer version = 5\n"
        "#BEGIN_TB\nwarp = 0\ninsts = 3\n"
        "0000 ffffffff 1 R1 MOV 0 0 0\n0010 ffffffff 1 R2 LDG.E 1 R1 4 1 0x7f0000000000 4 0\n"
        "0020 ffffffff 0 EXIT 0 0 0\n#END_TB\n"
    )
    Simulation(machine_of(SMALLEST)).run(read_text(text))
