"""A folder of SASS traces on a machine: cycles and statistics of every kernel, in launch order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.kernels.sass_traces.header import KernelHeader
from services.kernels.sass_traces.kernelslist import BadTrace
from services.simworker.simulators.sass import core
from services.simworker.simulators.sass.lines import DST_SHIFT, REGISTER_BITS, REGISTER_MASK
from services.simworker.simulators.sass.machine import PIPES, Machine, machine_of
from services.simworker.simulators.sass.reading import RECORD_BYTES_LIMIT, KernelReader, KernelTrace, read_text
from services.simworker.simulators.sass.state import (
    CLUSTER_LIMIT,
    REGISTERS,
    Code,
    Numbers,
    Running,
    fixed_of,
    fresh_calendars,
    fresh_l1,
    fresh_l2,
    fresh_running,
    fresh_warps,
    numbers_of,
    rested,
    turned_back,
    with_registers,
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


PAUSE_WORK = 100_000
"""Instructions between two looks at whether anyone still wants the result: a sixth of a second where all wait for DRAM,
a fiftieth where all compute. Eight requests count as an instruction."""


TURN_BACK_CYCLES = 1 << 28
"""Twice as late, time is turned back by so much before a kernel begins: caches and queues have times of 32 bits."""
LAST_CYCLE: Final = (1 << 31) - (1 << 28)
"""What is left until they are full is more than passes between two pauses."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a kernel is."""

    file: str
    ctas_done: int
    cta_count: int
    cycles: int
    warp_instructions: int

    def line(self) -> str:
        """For whoever waits; nothing is done while a kernel is read."""
        if self.cta_count == 0:
            return f"{self.file}: is read"
        return (
            f"{self.file}: {self.ctas_done:,} of {self.cta_count:,} thread blocks, {self.cycles:,} cycles, "
            f"{self.warp_instructions:,} warp instructions"
        )


Watch = Callable[[Progress], None]
"""Called every `PAUSE_WORK`; what it raises ends the simulation, which can then not be used again."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was simulated of a kernel in place of all of it."""

    kind: str  # waves, sms, kernels
    cta_count: int  # simulated
    of_ctas: int
    change: float  # waves: |last wave's time ÷ the one before − 1|; else 0

    @property
    def share(self) -> float:
        return self.cta_count / self.of_ctas


@dataclass(frozen=True, slots=True)
class KernelResult:
    """What became of one launch; cycles are without launch latency, None where the kernel cannot end."""

    file: str
    header: KernelHeader
    cycles: int | None
    deadlock: str  # why it cannot end, or why Accel-Sim's 1.x cannot end it
    ctas_per_sm: int
    limited_by: str
    told: tuple[int, ...]  # of what was simulated
    thread_instructions: int  # of all
    sampled: Sampled | None

    def count(self, slot: int) -> int:
        """Of the whole kernel: what a sample counted is scaled by its share of the thread blocks."""
        return self.told[slot] if self.sampled is None else round(self.told[slot] / self.sampled.share)


class Simulation:
    """One machine, kernel after kernel: what the last one left in L2 is there for the next."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._fixed = fixed_of(machine)
        self._l1 = fresh_l1(machine)
        self._l2 = fresh_l2(machine)
        self._warps = fresh_warps(machine)
        self._calendars = fresh_calendars(machine)
        self._numbers: dict[int, Numbers] = {}  # by L1's ways
        self._idle: dict[int, Running] = {}  # by CTAs per SM: what a kernel has left, for the next one
        # Time goes on from kernel to kernel, so that whatever a fill waited for has arrived long before.
        self._base = 1 << 16

    def run(
        self, source: KernelTrace | KernelReader, watch: Watch | None = None, *, sampled_waves: int = 0
    ) -> KernelResult:
        """A kernel in memory, or one that is read as it goes on. Raises BadTrace, and whatever `watch` raises.

        `sampled_waves`: 0, or how many waves of CTAs at least are simulated before a steady rest is taken for granted.
        """
        machine = self.machine
        header = source.header
        resident, limited_by = machine.resident_ctas(header)
        if resident < 1:
            raise BadTrace(_too_large(source.file, header, machine, limited_by))
        if machine.flushes_l2:
            self._l2 = fresh_l2(machine)
        if self._base >= 2 * TURN_BACK_CYCLES:
            self._turn_back()
        places = machine.sm_count * resident
        if isinstance(source, KernelReader):
            source.read(places + 2 * CLUSTER_LIMIT, check=reading_check(watch, source.file))
        code, cta_count, first_cta = _code_of(source)
        ways = machine.l1_ways_beside(resident * header.shared_memory_bytes)
        numbers = self._numbers.get(ways) or self._numbers.setdefault(ways, numbers_of(machine, ways))
        width = max(int(np.diff(code.cta_warp).max()), header.warps_per_cta if cta_count > len(code.cta_rank) else 0)
        fitting = min(resident, max(1, machine.threads_per_sm // 32 // width))
        cluster = _cluster_size(source.file, code, cta_count, fitting, machine)
        places = machine.sm_count * fitting
        run = self._idle.pop(fitting, None) or fresh_running(machine, fitting, core.CLOCK_SIZE)
        run.clock[:] = 0
        run.clock[core.BASE] = self._base
        run.clock[core.CTA_TOTAL] = cta_count
        run.clock[core.CLUSTER] = cluster
        run.clock[core.SAMPLED_WAVES] = 0 if places % cluster else sampled_waves
        told = np.zeros(core.TOLD_SIZE, np.int64)
        # What other kernels left where these rows lie is as long past as what they left in rows of their own.
        warps = with_registers(self._warps, REGISTERS if isinstance(source, KernelReader) else _registers_of(code))
        while True:
            run.clock[core.FIRST_CTA] = first_cta
            limit = int(told[core.INSTRUCTIONS]) + (int(told[core.REQUESTS]) >> 3) + PAUSE_WORK
            why = core.simulate(
                numbers,
                self._fixed,
                code,
                self._l1,
                self._l2,
                self._calendars,
                warps,
                run,
                fitting,
                width,
                limit,
                told,
            )
            if why == core.PAUSED:
                if run.clock[core.NOW] > LAST_CYCLE:
                    cycles = int(told[core.CYCLES])
                    raise BadTrace(f"{source.file}: takes more than {cycles:,} cycles, which is a second of a GPU's")
                if watch is not None:
                    watch(_progress(source.file, told, cta_count))
                continue
            if why != core.NEEDS_CTAS:
                break
            assert isinstance(source, KernelReader)
            _read_on(source, run, places, watch)
            code, cta_count, first_cta = _code_of(source)
            if int(np.diff(code.cta_warp).max()) > width:
                raise BadTrace(f"{source.file}: a thread block has more than the {width} warps that its header says")
        self._base += int(told[core.CYCLES]) + (1 << 16)
        ended = why == core.ENDED
        if ended:
            self._idle[fitting] = rested(run)
        sampled = _sampled(run, cta_count) if ended else None
        cycles = int(told[core.CYCLES]) + (_cycles_beyond(run, cta_count, places) if sampled else 0)
        read = source.cta_count if isinstance(source, KernelReader) else cta_count
        return KernelResult(
            file=source.file,
            header=header,
            cycles=cycles if ended else None,
            deadlock=source.exit_mask if ended else _stuck(source.file, told.tolist()),
            ctas_per_sm=resident,
            limited_by=limited_by,
            told=tuple(told.tolist()),
            thread_instructions=round(source.thread_instructions * cta_count / read),
            sampled=sampled,
        )

    def _turn_back(self) -> None:
        """L2 keeps its contents; all else is past, but that an L1 that is not emptied between kernels is so once."""
        self._base -= TURN_BACK_CYCLES
        self._l2 = turned_back(self._l2, self.machine, TURN_BACK_CYCLES)
        self._l1, self._warps = fresh_l1(self.machine), fresh_warps(self.machine)
        self._calendars = fresh_calendars(self.machine)
        self._idle.clear()


def _code_of(source: KernelTrace | KernelReader) -> tuple[Code, int, int]:
    """What is there of a kernel's records, how many CTAs it has, and which is the first of which records are there."""
    if isinstance(source, KernelReader):
        return source.code(), source.header.cta_count, source.first_cta
    return source.code, source.cta_count, 0


def reading_check(watch: Watch | None, file: str) -> Callable[[], None] | None:
    """For a reader: nothing has been simulated yet, and nobody may want it any more."""
    return None if watch is None else lambda: watch(Progress(file, 0, 0, 0, 0))


def _registers_of(code: Code) -> int:
    """Registers that instructions may name: at most twice as many as they do, in one look at each."""
    if len(code.instructions) > _RECORDS_LOOKED_AT:
        return REGISTERS
    fields = int(np.bitwise_or.reduce(code.instructions)) >> DST_SHIFT
    return max((fields >> REGISTER_BITS * field) & REGISTER_MASK for field in range(_REGISTER_FIELDS))


_RECORDS_LOOKED_AT: Final = 1 << 22  # of more it is not worth it, and a trace kept as a file is not to be read whole
_REGISTER_FIELDS: Final = 5  # a destination and four sources


def _progress(file: str, told: NDArray[np.int64], cta_count: int) -> Progress:
    return Progress(file, int(told[core.DONE_CTAS]), cta_count, int(told[core.CYCLES]), int(told[core.INSTRUCTIONS]))


def _read_on(reader: KernelReader, run: Running, places: int, watch: Watch | None) -> None:
    """The next CTAs' records; where those that are here take too much memory, what is done goes first."""
    if reader.record_bytes > RECORD_BYTES_LIMIT:
        live = np.flatnonzero(run.status).tolist()
        spans = [
            (int(run.pc[warp]), int(run.end[warp]), int(run.memory_at[warp]), int(run.memory_end[warp]))
            for warp in live
        ]
        for warp, span in zip(live, reader.let_go(int(run.clock[core.NEXT_CTA]), spans), strict=True):
            run.pc[warp], run.end[warp], run.memory_at[warp], run.memory_end[warp] = span
    wanted = int(run.clock[core.NEXT_CTA]) + max(int(run.clock[core.LAUNCHES]), places)
    reader.read(wanted, check=reading_check(watch, reader.file))


def _cluster_size(file: str, code: Code, cta_count: int, resident: int, machine: Machine) -> int:
    """CTAs that are placed together: those up to the next one that is its cluster's first."""
    ranks = code.cta_rank
    if not ranks[: CLUSTER_LIMIT + 1].any():
        return 1
    following = np.flatnonzero(ranks[1 : CLUSTER_LIMIT + 1] == 0)
    size = int(following[0]) + 1 if len(following) else min(len(ranks), CLUSTER_LIMIT)
    room = resident * min(machine.sms_per_gpc, machine.sm_count)
    if size > room:
        raise BadTrace(f"{file}: a cluster has {size} thread blocks, and a GPC of this config has room for {room}")
    return size if cta_count % size == 0 else 1


def _sampled(run: Running, cta_count: int) -> Sampled | None:
    simulated = int(run.clock[core.CTA_TOTAL])
    if simulated == cta_count:
        return None
    return Sampled("waves", simulated, cta_count, int(run.clock[core.WAVE_CHANGE]) / 1000)


def _cycles_beyond(run: Running, cta_count: int, places: int) -> int:
    """Cycles that the CTAs would take which a sample of waves leaves out, as its last wave went on."""
    wave = int(run.clock[core.WAVE_CYCLES])
    whole, rest = divmod(cta_count - int(run.clock[core.CTA_TOTAL]), places)
    if rest == 0:
        return whole * wave
    # The last CTA begins as late in its wave as the one in its place did in the last wave that was simulated.
    return (whole + 1) * wave + int(run.launched[rest - 1] - run.launched[places - 1])


def _too_large(file: str, header: KernelHeader, machine: Machine, by: str) -> str:
    need, have = {
        "threads": (f"{header.warps_per_cta * 32} threads", machine.threads_per_sm),
        "regs": (
            f"{header.registers} registers for each of {header.warps_per_cta * 32} threads",
            machine.registers_per_sm,
        ),
        "shmem": (f"{header.shared_memory_bytes} B of shared memory", machine.shared_memory_bytes),
    }[by]
    return f"{file}: one thread block needs {need}, and an SM of this config has {have}"


def _stuck(file: str, told: list[int]) -> str:
    return (
        f"{file}: {told[core.PARKED_WARPS]} of {told[core.LIVE_WARPS]} warps wait at a barrier that the others "
        "never reach"
    )


def report_of(result: KernelResult) -> dict[str, Any]:
    """One kernel for `--json`. Sectors are 32 bytes."""
    count = result.count
    machine_pipes = (*PIPES, "memory")
    cycles = result.cycles
    report: dict[str, Any] = {
        "name": result.header.name,
        "file": result.file,
        "cycles": cycles,
        "warp_instructions": count(core.INSTRUCTIONS),
        "thread_instructions": result.thread_instructions,
        "ipc": round(result.thread_instructions / cycles, 4) if cycles else None,
        "ctas_per_sm": result.ctas_per_sm,
        "limited_by": result.limited_by,
        "l1_read_sectors": count(core.L1_READS),
        "l1_read_hits": count(core.L1_READ_HITS),
        "l1_write_sectors": count(core.L1_WRITES),
        "l2_read_sectors": count(core.L2_READS),
        "l2_read_hits": count(core.L2_READ_HITS),
        "l2_write_sectors": count(core.L2_WRITES),
        "l2_write_hits": count(core.L2_WRITE_HITS),
        "dram_read_bytes": count(core.DRAM_READS) * 32,
        "dram_write_bytes": count(core.DRAM_WRITES) * 32,
        "shared_accesses": count(core.SHARED_ACCESSES),
        "bank_conflict_cycles": count(core.BANK_CONFLICTS),
        "stall_cycles": {
            "memory": count(core.STALL_MEMORY),
            "dependency": count(core.STALL_DEPENDENCY),
            "pipe": count(core.STALL_PIPE),
            "barrier": count(core.STALL_BARRIER),
        },
        "pipe_busy_cycles": {
            name: count(core.PIPE_BUSY + index)
            for index, name in enumerate(machine_pipes)
            if count(core.PIPE_BUSY + index)
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
