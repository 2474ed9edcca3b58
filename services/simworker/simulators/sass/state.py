"""What the compiled core works on: a machine as numbers, and the arrays of caches and queues."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.simworker.simulators.sass.lines import BARRIERS
from services.simworker.simulators.sass.machine import LINE_BYTES, PIPES, SECTOR_BYTES, Machine

PIPE_COUNT: Final = len(PIPES)
MEMORY_PIPE: Final = PIPE_COUNT

# A calendar is a resource's time in windows; requests are made out of time order, so a queue would serialise too much.
WINDOW_CYCLES: Final = 32
WINDOW_SHIFT: Final = 5
WINDOWS: Final = 256  # ahead of the oldest request: 8 k cycles, more backlog than queues let requests see
UNIT_SHIFT: Final = 10
UNIT: Final = 1 << UNIT_SHIFT  # parts of a cycle that costs are counted in
BANKS: Final = 16
BANK_GROUPS: Final = 4
BUS: Final = 0  # of a channel's calendars: its data bus, its activations, its bank groups, its slices, its banks
ACTIVATIONS: Final = 1
GROUPS: Final = 2
SLICES: Final = GROUPS + BANK_GROUPS
REGISTERS: Final = 258
DEPTH: Final = 64  # async-copy groups that a DEPBAR can name
CLUSTER_LIMIT: Final = 16  # CTAs of a cluster, as many as a multicast's mask has bits
WHEEL: Final = 4096  # cycles ahead that a scheduler's next look can lie; farther ones look once more in between
NEVER: Final = 1 << 62


class Numbers(NamedTuple):
    """A machine's, in cycles of the SM."""

    sm_count: int
    schedulers: int
    warps_per_sm: int
    is_greedy: int
    collectors: int  # per sub-core
    register_banks: int  # per sub-core
    has_int_pipe: int
    shared_latency: int
    l1_latency: int
    l1_banks: int
    l1_sets: int
    l1_ways: int
    l1_mshrs: int
    l1_miss_queue: int
    skips_l1: int
    flushes_l1: int
    l2_sets: int
    l2_set_bits: int  # where they are a power of two
    l2_ways: int
    l2_mshrs: int
    channels: int
    slices_per_channel: int
    slice_bit: int  # of the address below which DRAM ids do not reach
    hash_bits: int  # 0: no hashing; else log2 of the slices
    request_latency: int  # SM to slice
    reply_latency: int  # slice to the SM's L1
    slice_cost: int  # units per access
    reply_cost: int
    dram_cost: int  # of the channel's data bus, per sector
    group_cost: int  # of a bank group, whose columns follow each other more slowly
    bank_groups: int
    banks: int
    bank_bits: int  # positions of the address bits that choose a bank, six bits each; a group is given by the first
    row_bit: int
    row_cost: int  # of the channel, per activated row
    bank_cost: int  # of a bank, per activated row
    row_latency: int  # of a row that has to be opened first
    dram_latency: int
    sms_per_gpc: int
    slice_queue: int
    l2_miss_queue: int
    dram_credits: int
    l1_buckets: int
    calendar_width: int  # calendars of a channel, and room


WAYS_TOGETHER: Final = 4  # of a set in L2: a cache line of the processor's
SET_SIZE: Final = 4  # numbers of a set in L1
HASH_TABLES: Final = 4
USED: Final = 1  # slots of a way in L2 that are times: of its last use, of its newest sectors' arrival
FILL: Final = 2
L2_WAY: Final = 4


class L2(NamedTuple):
    """Kept from kernel to kernel, as time goes on; 0 = nothing there. Rows are slices or channels."""

    # (slice, (way / WAYS_TOGETHER, set, way, 4)): the slots of `core`.
    # Ways in the order in which they came into use, and as many as fill a cache line of the processor's side by side:
    # a kernel that leaves L2 half empty never touches what is for the later ways.
    ways: NDArray[np.int32]
    places: NDArray[np.int64]  # (slice, ring): the next place, in each of the first three of these
    # Rings of the last requests' times: a full queue holds up whoever comes, in order.
    accepted: NDArray[np.int32]  # (slice, place in the queues before it): when it was looked up
    missed: NDArray[np.int32]  # (slice, place between it and its channel): when it was sent on
    mshrs: NDArray[np.int32]  # (slice, entry): when it is free
    returned: NDArray[np.int32]  # (channel, credit): when its data was back
    next_returned: NDArray[np.int64]
    open_row: NDArray[np.int64]  # (channel, bank): row + 1


class Calendars(NamedTuple):
    """A window is one number: which one it is, how far the next with room is, the units of it that are taken.

    What a request needs of a channel in one window lies side by side.
    """

    channels: NDArray[np.int64]  # (channel, (window, BUS … banks))
    ports: NDArray[np.int64]  # (SM, window): replies


class L1(NamedTuple):
    """Of all SMs, a row each; emptied between kernels, where an SM has used it."""

    buckets: NDArray[np.int32]  # (SM, hash): way + 1
    ways: NDArray[np.int32]  # (SM, (way, L1_WAY)): the slots of `core`, half a cache line of the processor's for each
    ends: NDArray[np.int32]  # (SM, (set, SET_SIZE)): the slots of `core`
    mshrs: NDArray[np.int32]
    unit: NDArray[np.int64]  # (SM, slot of `core`)


class Warps(NamedTuple):
    """Of all SMs. Kept from kernel to kernel: time goes on, so what is left in them is long past."""

    # (warp, register + 1): twice the time when it is there, and 1 if from memory; rows as long as `with_registers` says
    registers: NDArray[np.int64]
    group_fill: NDArray[np.int64]  # (warp, copies or products, group): running maximum


class Fixed(NamedTuple):
    """Per pipe, and what is looked up of a machine."""

    latency: NDArray[np.int64]
    initiation: NDArray[np.int64]
    hashes: NDArray[np.uint16]  # (byte of an address above its channel's digits, its value): slices that it moves by


class Code(NamedTuple):
    """A kernel's records (`lines.Records`), or those of its CTAs from one on: see `core.FIRST_CTA`."""

    instructions: NDArray[np.uint64]
    memory: NDArray[np.uint64]
    warp_start: NDArray[np.int64]
    warp_memory: NDArray[np.int64]
    cta_warp: NDArray[np.int64]
    cta_rank: NDArray[np.int64]


class Running(NamedTuple):
    """A kernel under way: what `core.simulate` leaves when it returns and finds when it goes on."""

    clock: NDArray[np.int64]  # one number each: the first slots of `core`
    # per place of a warp
    status: NDArray[np.uint8]
    pc: NDArray[np.int64]  # record
    end: NDArray[np.int64]
    memory_at: NDArray[np.int64]  # word
    memory_end: NDArray[np.int64]
    ready: NDArray[np.int64]
    pipe_of: NDArray[np.int64]
    born: NDArray[np.int64]
    started: NDArray[np.int64]
    last_back: NDArray[np.int64]  # of stores and loads without a register
    memory_bound: NDArray[np.int64]
    group_open: NDArray[np.int64]  # (place, copies or products): when what came since the last commit is done
    group_count: NDArray[np.int64]
    cta_slot: NDArray[np.int64]
    # per place of a CTA
    cta_live: NDArray[np.int64]
    cta_arrived: NDArray[np.int64]
    cta_first: NDArray[np.int64]
    cta_warps: NDArray[np.int64]
    cta_bulk: NDArray[np.int64]  # (place of a CTA, mbarrier): when the copies that complete it are done
    cta_lead: NDArray[np.int64]  # the place of its cluster's first
    peers: NDArray[np.int64]  # (place of a cluster's first, rank): place
    launch_queue: NDArray[np.int64]
    launch_time: NDArray[np.int64]
    launched: NDArray[np.int64]  # (CTA modulo places): when
    # per GPC
    idle: NDArray[np.int64]  # (GPC, place in line): places of CTAs that wait for enough others
    idle_count: NDArray[np.int64]
    idle_since: NDArray[np.int64]
    # per SM
    sm_live: NDArray[np.int64]
    sm_since: NDArray[np.int64]
    highest: NDArray[np.int64]
    unit_of_memory: NDArray[np.int64]
    # per sub-core
    id_free: NDArray[np.int64]
    ex_free: NDArray[np.int64]
    unit_free: NDArray[np.int64]
    collector_free: NDArray[np.int64]
    bank_free: NDArray[np.int64]  # half cycles
    last_issued: NDArray[np.int64]
    look: NDArray[np.int64]
    wheel: NDArray[np.uint64]


def numbers_of(machine: Machine, l1_ways: int) -> Numbers:
    icnt = machine.core_hz / machine.icnt_hz
    l2 = machine.core_hz / machine.l2_hz
    dram = machine.core_hz / machine.dram_hz
    atoms = max(1, math.ceil(SECTOR_BYTES / machine.dram_atom_bytes))
    timing = machine.dram_timing
    read_latency = (timing.get("CL", 12) + machine.dram_atom_clocks * atoms) * dram
    bank_bits = bank_bits_of(machine.address_map)[: min(timing.get("nbk", 16), BANKS).bit_length() - 1]
    return Numbers(
        sm_count=machine.sm_count,
        schedulers=machine.schedulers,
        warps_per_sm=machine.threads_per_sm // 32,
        is_greedy=int(machine.is_greedy),
        collectors=max(1, machine.collectors // machine.schedulers),
        register_banks=max(1, machine.register_banks // machine.schedulers),
        has_int_pipe=1,
        shared_latency=machine.shared_latency,
        l1_latency=machine.l1_latency,
        l1_banks=machine.l1_banks,
        l1_sets=machine.l1_sets,
        l1_ways=l1_ways,
        l1_mshrs=machine.l1_mshrs,
        l1_miss_queue=machine.l1_miss_queue,
        skips_l1=int(machine.skips_l1),
        flushes_l1=int(machine.flushes_l1),
        l2_sets=machine.l2_sets,
        l2_set_bits=machine.l2_sets.bit_length() - 1,
        l2_ways=machine.l2_ways,
        l2_mshrs=machine.l2_mshrs,
        channels=machine.channels,
        slices_per_channel=machine.slices_per_channel,
        slice_bit=bank_bits_of(machine.address_map)[0],
        hash_bits=_hash_bits(machine),
        # Into the crossbar, through it, out of it; then the ROP queue; then the slice.
        request_latency=math.ceil(2 * icnt + l2) + machine.l2_latency,
        reply_latency=math.ceil(2 * icnt) + 1,
        slice_cost=max(1, round(UNIT * l2)),
        reply_cost=max(1, round(UNIT * icnt)),
        dram_cost=max(1, round(UNIT * atoms * machine.dram_atom_clocks * dram)),
        group_cost=max(1, round(UNIT * atoms * max(timing.get("CCDL", 0), machine.dram_atom_clocks) * dram)),
        bank_groups=1 << (min(timing.get("nbkgrp", 1), BANK_GROUPS).bit_length() - 1),
        banks=1 << len(bank_bits),
        bank_bits=sum(bit << (6 * index) for index, bit in enumerate(bank_bits)),
        row_bit=row_bit_of(machine.address_map),
        row_cost=round(UNIT * timing.get("RRD", 0) * dram),
        bank_cost=round(UNIT * timing.get("RC", 0) * dram),
        row_latency=round(timing.get("RCD", 0) * dram),
        dram_latency=machine.dram_latency + round(read_latency) + DRAM_HOPS,
        sms_per_gpc=machine.sms_per_gpc,
        slice_queue=machine.slice_queue,
        l2_miss_queue=machine.l2_miss_queue,
        dram_credits=machine.dram_credits,
        l1_buckets=_l1_buckets(machine),
        calendar_width=_calendar_width(machine),
    )


DRAM_HOPS: Final = 8
"""Cycles through the queues between a slice and its channel, both ways."""


def bank_bits_of(address_map: str) -> list[int]:
    """Address bits that choose a bank, the lowest first; it also tells the two slices of a channel apart."""
    bits = address_map.partition(";")[2].replace(".", "")[::-1]
    return [position for position, letter in enumerate(bits) if letter == "B"] or [7]


def row_bit_of(address_map: str) -> int:
    bits = address_map.partition(";")[2].replace(".", "")[::-1]
    return bits.find("R") if "R" in bits else 15


def _rows(count: int, numbers: int, dtype: type[np.int32 | np.int64] = np.int64) -> NDArray[Any]:
    """Zeros in rows that begin at cache lines of the processor.

    Each row is an odd number of lines long: rows of a power of two would all lie in the same few sets of its caches.
    """
    size = np.dtype(dtype).itemsize
    row_bytes = _odd_lines(numbers * size) * _LINE_BYTES
    flat = np.zeros(count * row_bytes + _LINE_BYTES, np.uint8)
    skipped = -flat.ctypes.data % _LINE_BYTES
    return flat[skipped : skipped + count * row_bytes].view(dtype).reshape(count, -1)


def _odd_lines(size: int) -> int:
    """Of the processor's cache lines: as many as so many bytes fill, or one more."""
    return -(-size // _LINE_BYTES) | 1


_LINE_BYTES: Final = 64


def fresh_l2(machine: Machine) -> L2:
    slices = machine.channels * machine.slices_per_channel
    ways = machine.l2_sets * (-(-machine.l2_ways // WAYS_TOGETHER) * WAYS_TOGETHER)
    return L2(
        ways=_rows(slices, ways * 4, np.int32),
        places=_rows(slices, 3),
        accepted=_rows(slices, machine.slice_queue, np.int32),
        missed=_rows(slices, machine.l2_miss_queue, np.int32),
        mshrs=_rows(slices, machine.l2_mshrs, np.int32),
        returned=_rows(machine.channels, machine.dram_credits, np.int32),
        next_returned=np.zeros(machine.channels, np.int64),
        open_row=np.zeros((machine.channels, BANKS), np.int64),
    )


def turned_back(l2: L2, machine: Machine, cycles: int) -> L2:
    """The same contents, so many cycles earlier: caches have times of 32 bits. Nothing may be under way."""
    for slot in (USED, FILL):
        times = l2.ways[:, slot::L2_WAY]
        np.maximum(times - cycles, 0, out=times)
    return fresh_l2(machine)._replace(ways=l2.ways, open_row=l2.open_row)


def _calendar_width(machine: Machine) -> int:
    return -(-(SLICES + machine.slices_per_channel + BANKS) // 8) * 8


def fresh_calendars(machine: Machine) -> Calendars:
    return Calendars(
        channels=_rows(machine.channels, WINDOWS * _calendar_width(machine)), ports=_rows(machine.sm_count, WINDOWS)
    )


L1_WAY: Final = 8


def _l1_ways(machine: Machine) -> int:
    """Of a set, however little shared memory leaves of it."""
    return max(machine.l1_ways, machine.unified_l1_bytes // (machine.l1_sets * LINE_BYTES))


def _l1_buckets(machine: Machine) -> int:
    return 1 << max(6, (machine.l1_sets * _l1_ways(machine)).bit_length())


def fresh_l1(machine: Machine) -> L1:
    """Large enough for whatever shared memory leaves of it."""
    n, sets = machine.sm_count, machine.l1_sets
    return L1(
        buckets=_rows(n, _l1_buckets(machine), np.int32),
        ways=_rows(n, sets * _l1_ways(machine) * L1_WAY, np.int32),
        ends=_rows(n, sets * SET_SIZE, np.int32),
        mshrs=_rows(n, machine.l1_mshrs, np.int32),
        unit=_rows(n, 4),
    )


def fresh_warps(machine: Machine) -> Warps:
    count = machine.sm_count * (machine.threads_per_sm // 32)
    return Warps(
        _rows(count, REGISTERS),
        np.zeros((count, 2, DEPTH), np.int64),
    )


def with_registers(warps: Warps, count: int) -> Warps:
    """The same, for a kernel that names registers below `count`: warps that need few lie close together."""
    words = min(len(warps.registers[0]), _odd_lines((count + 1) * 8) * (_LINE_BYTES // 8))
    rows = len(warps.registers)
    return warps._replace(registers=warps.registers.reshape(-1)[: rows * words].reshape(rows, words))


def fresh_running(machine: Machine, resident: int, scalars: int) -> Running:
    """Nothing runs yet; `resident` CTAs fit on an SM."""
    warps = machine.sm_count * (machine.threads_per_sm // 32)
    places = machine.sm_count * resident
    sub_cores = machine.sm_count * machine.schedulers
    gpcs = -(-machine.sm_count // machine.sms_per_gpc)

    def zeros(*shape: int) -> NDArray[np.int64]:
        return np.zeros(shape, np.int64)

    return Running(
        clock=zeros(scalars),
        status=np.zeros(warps, np.uint8),
        pc=zeros(warps),
        end=zeros(warps),
        memory_at=zeros(warps),
        memory_end=zeros(warps),
        ready=zeros(warps),
        pipe_of=zeros(warps),
        born=zeros(warps),
        started=zeros(warps),
        last_back=zeros(warps),
        memory_bound=zeros(warps),
        group_open=zeros(warps, 2),
        group_count=zeros(warps, 2),
        cta_slot=zeros(warps),
        cta_live=zeros(places),
        cta_arrived=zeros(places),
        cta_first=zeros(places),
        cta_warps=zeros(places),
        cta_bulk=zeros(places, BARRIERS),
        cta_lead=zeros(places),
        peers=np.full((places, CLUSTER_LIMIT), -1, np.int64),
        launch_queue=zeros(places),
        launch_time=zeros(places),
        launched=zeros(places),
        idle=zeros(gpcs, machine.sms_per_gpc * resident),
        idle_count=zeros(gpcs),
        idle_since=zeros(gpcs),
        sm_live=zeros(machine.sm_count),
        sm_since=zeros(machine.sm_count),
        highest=zeros(machine.sm_count),
        unit_of_memory=zeros(machine.sm_count),
        id_free=zeros(sub_cores, PIPE_COUNT + 1),
        ex_free=zeros(sub_cores, PIPE_COUNT + 1),
        unit_free=zeros(sub_cores, PIPE_COUNT + 1),
        collector_free=zeros(sub_cores, max(1, machine.collectors // machine.schedulers)),
        bank_free=zeros(sub_cores, max(1, machine.register_banks // machine.schedulers)),
        last_issued=np.full(sub_cores, -1, np.int64),
        look=np.full(sub_cores, NEVER, np.int64),
        wheel=np.zeros((WHEEL, (sub_cores + 63) >> 6), np.uint64),
    )


def rested(run: Running) -> Running:
    """After a kernel that ended, ready for the next: nobody runs any more, and all times in it are past."""
    run.highest[:] = 0
    run.last_issued[:] = -1
    run.idle_count[:] = 0
    run.idle_since[:] = 0
    return run


def fixed_of(machine: Machine) -> Fixed:
    return Fixed(np.array(machine.latency, np.int64), np.array(machine.initiation, np.int64), _hashes(machine))


def _hashes(machine: Machine) -> NDArray[np.uint16]:
    """What each byte of an address's upper bits changes of the slice, where slices are hashed.

    The bits, as a polynomial modulo a primitive one, spread strides over all slices (Rau 1991).
    """
    bits = _hash_bits(machine)
    tables = np.zeros((HASH_TABLES, 256), np.uint16)
    if bits == 0:
        return tables
    polynomial = {4: 0b10011, 5: 0b100101, 6: 0b1000011}.get(bits, (1 << bits) | 3)
    remainder = 1
    for bit in range(31):
        values = np.arange(256)
        tables[bit // 8, (values >> (bit % 8)) & 1 == 1] ^= remainder
        remainder <<= 1
        if remainder >> bits:
            remainder ^= polynomial
    return tables


def _hash_bits(machine: Machine) -> int:
    slices = machine.channels * machine.slices_per_channel
    return int(math.log2(slices)) if machine.partition_indexing and slices & (slices - 1) == 0 else 0
