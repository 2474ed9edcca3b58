"""A machine for the SASS simulator: what of Accel-Sim's options decides cycles."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from services.kernels.sass_traces.header import KernelHeader
from services.simworker.simulators.sass.options import BadConfig

PIPES = ("int", "sp", "dp", "sfu", "spec_op_1", "spec_op_2", "spec_op_3", "spec_op_4", "spec_op_5")
"""In the order of the classes in `opcodes.py`. spec_op: branch, texture, tensor, uniform, GMMA."""

FALLBACK_LATENCY = (4, 1)
"""Of a special unit that a config lacks: Accel-Sim stops; we go on and say so."""

LINE_BYTES = 128
SECTOR_BYTES = 32
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cycles are the SM's. Latencies are Accel-Sim's options; what the pipeline adds to them is the simulator's."""

    sm_count: int
    schedulers: int  # sub-cores per SM
    threads_per_sm: int
    ctas_per_sm: int
    registers_per_sm: int
    shared_memory_bytes: int
    shared_memory_options_bytes: tuple[int, ...]  # carve-outs of the unified memory
    unified_l1_bytes: int  # 0: L1 keeps its size
    is_greedy: bool  # greedy-then-oldest, else loose round robin
    register_banks: int
    collectors: int
    latency: tuple[int, ...]  # per pipe
    initiation: tuple[int, ...]  # cycles a warp instruction holds the pipe of a sub-core
    absent: tuple[str, ...]  # special units that the config lacks
    shared_latency: int
    l1_latency: int
    l1_banks: int
    l1_sets: int
    l1_ways: int
    l1_mshrs: int
    l1_miss_queue: int
    skips_l1: bool
    flushes_l1: bool
    flushes_l2: bool
    l2_sets: int  # per slice
    l2_ways: int
    l2_mshrs: int
    l2_latency: int  # ROP
    slice_queue: int  # requests that wait before a slice, in the crossbar's output too
    l2_miss_queue: int  # misses that wait between a slice and its channel
    dram_credits: int  # requests that a channel has under way
    channels: int
    slices_per_channel: int
    partition_indexing: int
    address_map: str
    dram_latency: int
    core_hz: float
    icnt_hz: float
    l2_hz: float
    dram_hz: float
    dram_atom_bytes: int
    dram_atom_clocks: float  # of the DRAM's command clock, per atom
    dram_timing: dict[str, int] = field(hash=False)
    sms_per_gpc: int = 16  # whose CTAs can be one cluster: at least 16 in GH100, whose GPCs have up to 18
    launch_latency: int = 0  # Accel-Sim adds it to every kernel; never in our cycles

    def resident_ctas(self, header: KernelHeader) -> tuple[int, str]:
        """CTAs that fit on one SM, and what allows no more."""
        warps = header.warps_per_cta
        registers = -(-header.registers // 8) * 8 * 32 * warps
        limits = {
            "threads": self.threads_per_sm // (32 * warps),
            "cta_limit": self.ctas_per_sm,
            "regs": self.registers_per_sm // registers if registers else self.ctas_per_sm,
            "shmem": self.shared_memory_bytes // header.shared_memory_bytes
            if header.shared_memory_bytes
            else self.ctas_per_sm,
        }
        by = min(limits, key=lambda name: limits[name])
        return limits[by], by

    def l1_ways_beside(self, shared_bytes: int) -> int:
        """L1 takes what the smallest sufficient carve-out leaves."""
        if not self.unified_l1_bytes:
            return self.l1_ways
        for option in sorted(self.shared_memory_options_bytes):
            if option >= shared_bytes:
                left = self.unified_l1_bytes - option
                return max(1, left // (self.l1_sets * LINE_BYTES))
        return max(1, (self.unified_l1_bytes - self.shared_memory_bytes) // (self.l1_sets * LINE_BYTES))


def machine_of(options: dict[str, str]) -> Machine:
    """The machine that Accel-Sim would build from these options."""
    clocks = _floats(options, "gpgpu_clock_domains", ":", 4)
    if min(clocks) <= 0:
        raise BadConfig(f"-gpgpu_clock_domains {options['gpgpu_clock_domains']}: clocks must be above 0")
    schedulers = _positive(options, "gpgpu_num_sched_per_core", 1)
    l1 = _cache(options, "gpgpu_cache:dl1")
    l2 = _cache(options, "gpgpu_cache:dl2")
    timing = _timing(options)
    burst = _positive(options, "gpgpu_dram_burst_length", 4)
    ratio = _positive(options, "dram_data_command_freq_ratio", 2)
    bus_bytes = _positive(options, "gpgpu_dram_buswidth", 4) * _positive(options, "gpgpu_n_mem_per_ctrlr", 1)
    queues = (
        _integers(options, "gpgpu_dram_partition_queues", ":")
        if options.get("gpgpu_dram_partition_queues")
        else (8, 8, 8, 8)
    )
    banks = _positive(options, "gpgpu_l1_banks", 1)
    if banks & (banks - 1):
        raise BadConfig(f"-gpgpu_l1_banks {banks}: must be a power of two")
    latency, initiation, absent = _pipes(options, schedulers)
    adaptive = _integer(options, "gpgpu_adaptive_cache_config", 0)
    unified = _integer(options, "gpgpu_unified_l1d_size", 0) << 10 if adaptive else 0
    carve_outs = _integers(options, "gpgpu_shmem_option", ",") if options.get("gpgpu_shmem_option") else ()
    return Machine(
        sm_count=_positive(options, "gpgpu_n_clusters", None) * _positive(options, "gpgpu_n_cores_per_cluster", 1),
        schedulers=schedulers,
        threads_per_sm=_integers(options, "gpgpu_shader_core_pipeline", ":")[0],
        ctas_per_sm=_positive(options, "gpgpu_shader_cta", 32),
        registers_per_sm=_positive(options, "gpgpu_shader_registers", 65536),
        shared_memory_bytes=_positive(options, "gpgpu_shmem_size", 49152),
        shared_memory_options_bytes=tuple(value << 10 for value in carve_outs),
        unified_l1_bytes=unified,
        is_greedy=options.get("gpgpu_scheduler", "lrr").startswith("gto"),
        register_banks=_positive(options, "gpgpu_num_reg_banks", 8),
        collectors=_positive(options, "gpgpu_operand_collector_num_units_gen", 8),
        latency=latency,
        initiation=initiation,
        absent=absent,
        shared_latency=_positive(options, "gpgpu_smem_latency", 20),
        l1_latency=_positive(options, "gpgpu_l1_latency", 20),
        l1_banks=banks,
        l1_sets=l1[0],
        l1_ways=l1[1],
        l1_mshrs=l1[2],
        l1_miss_queue=l1[3],
        skips_l1=_integer(options, "gpgpu_gmem_skip_L1D", 0) != 0,
        flushes_l1=_integer(options, "gpgpu_flush_l1_cache", 0) != 0,
        flushes_l2=_integer(options, "gpgpu_flush_l2_cache", 0) != 0,
        l2_sets=l2[0],
        l2_ways=l2[1],
        l2_mshrs=l2[2],
        l2_latency=_integer(options, "gpgpu_l2_rop_latency", 85),
        slice_queue=queues[0] + _positive(options, "icnt_out_buffer_limit", 64),
        l2_miss_queue=queues[1] + l2[3],
        dram_credits=_positive(options, "gpgpu_frfcfs_dram_sched_queue_size", 64)
        + _positive(options, "gpgpu_dram_return_queue_size", 116),
        channels=_positive(options, "gpgpu_n_mem", None),
        slices_per_channel=_positive(options, "gpgpu_n_sub_partition_per_mchannel", 1),
        partition_indexing=_integer(options, "gpgpu_memory_partition_indexing", 0),
        address_map=options.get("gpgpu_mem_addr_mapping", ""),
        dram_latency=_integer(options, "dram_latency", 30),
        core_hz=clocks[0] * 1e6,
        icnt_hz=clocks[1] * 1e6,
        l2_hz=clocks[2] * 1e6,
        dram_hz=clocks[3] * 1e6,
        dram_atom_bytes=burst * bus_bytes,
        dram_atom_clocks=max(timing.get("CCD", 1), burst / ratio),
        dram_timing=timing,
        launch_latency=_integer(options, "gpgpu_kernel_launch_latency", 0),
    )


def _pipes(options: dict[str, str], schedulers: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    latencies: list[int] = []
    initiations: list[int] = []
    absent: list[str] = []
    for pipe in PIPES:
        latency, initiation = FALLBACK_LATENCY
        units = _positive(options, f"gpgpu_num_{pipe}_units", schedulers) if "spec" not in pipe else schedulers
        if pipe.startswith("spec_op_"):
            unit = options.get(f"specialized_unit_{pipe[8:]}", "0").split(",")
            if unit[0] != "1" or len(unit) < 2 or not unit[1].isdecimal() or int(unit[1]) == 0:
                absent.append(pipe)
                latencies.append(latency)
                initiations.append(initiation)
                continue
            units = int(unit[1])
        key = f"trace_opcode_latency_initiation_{pipe}"
        if options.get(key):
            latency, initiation = _integers(options, key, ",")[:2]
        latencies.append(latency)
        initiations.append(max(1, initiation * schedulers // units))
    return tuple(latencies), tuple(initiations), tuple(absent)


def _cache(options: dict[str, str], name: str) -> tuple[int, int, int, int]:
    """(sets, ways, MSHR entries, miss queue) of S:sets:line:ways,policies,A:entries:merge,queue:fifo,port."""
    text = options.get(name, "")
    found = re.match(r"[SN]:(\d+):(\d+):(\d+),[^,]*,[A-Z]:(\d+):(\d+),(\d+)", text)
    if not found:
        raise BadConfig(f"-{name} {text!r}: is not S:sets:line:ways,…,A:entries:merge,queue:…")
    sets, line, ways, entries, _, queue = map(int, found.groups())
    if name == "gpgpu_cache:dl1" and sets & (sets - 1):
        raise BadConfig(f"-{name} {text}: the number of sets must be a power of two")
    if line != LINE_BYTES or 0 in {sets, ways, entries, queue} or sets * ways > 1 << 24:
        raise BadConfig(f"-{name} {text}: sets, ways, entries and queue must be above 0, and lines of {LINE_BYTES} B")
    return sets, ways, entries, queue


def _timing(options: dict[str, str]) -> dict[str, int]:
    text = options.get("gpgpu_dram_timing_opt", "")
    parts = dict(part.split("=", 1) for part in text.split(":") if "=" in part)
    return {key: int(value) for key, value in parts.items() if value.isdecimal()}


def _value(options: dict[str, str], name: str, text: str, convert: Callable[[str], T]) -> T:
    try:
        return convert(text)
    except ValueError as error:
        raise BadConfig(f"-{name} {options.get(name, '')!r}: {text!r} is not a number") from error


def _integer(options: dict[str, str], name: str, default: int | None) -> int:
    text = options.get(name, "")
    if not text:
        if default is None:
            raise BadConfig(f"-{name} is missing")
        return default
    return _value(options, name, text, int)


def _positive(options: dict[str, str], name: str, default: int | None) -> int:
    value = _integer(options, name, default)
    if not 0 < value < 1 << 31:
        raise BadConfig(f"-{name} {value}: must be above 0")
    return value


def _integers(options: dict[str, str], name: str, separator: str) -> tuple[int, ...]:
    text = options.get(name, "")
    if not text:
        raise BadConfig(f"-{name} is missing")
    return tuple(_value(options, name, part, int) for part in text.split(separator))


def _floats(options: dict[str, str], name: str, separator: str, count: int) -> tuple[float, ...]:
    parts = options.get(name, "").split(separator)
    if len(parts) != count:
        raise BadConfig(f"-{name} {options.get(name, '')!r}: is not {count} numbers")
    return tuple(_value(options, name, part, float) for part in parts)
