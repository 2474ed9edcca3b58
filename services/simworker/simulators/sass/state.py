"""What the compiled core works on: a machine as numbers, and the arrays of caches and queues."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.simworker.simulators.sass.machine import LINE_BYTES, PIPES, SECTOR_BYTES, Machine

PIPE_COUNT: Final = len(PIPES)
MEMORY_PIPE: Final = PIPE_COUNT

# A calendar is a resource's time in windows; requests are made out of time order, so a queue would serialise too much.
WINDOW_CYCLES: Final = 32
WINDOW_SHIFT: Final = 5
WINDOWS: Final = 2048  # ahead of the oldest request: 65 k cycles of backlog, more than any machine's requests in flight
UNIT: Final = 1024  # parts of a cycle that costs are counted in
DEPTH: Final = 64  # async-copy groups that a DEPBAR can name


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
    l2_sets: int
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
    dram_cost: int
    dram_latency: int
    row_miss_latency: int
    row_cycle: int
    write_turnaround: int


class L2(NamedTuple):
    """Kept from kernel to kernel, as time goes on; 0 = nothing there."""

    tags: NDArray[np.int64]  # (slice, set, way): line + 1
    used: NDArray[np.int64]  # time of the last use
    fills: NDArray[np.int64]  # (…, sector): when its data is there
    dirty: NDArray[np.uint8]  # a bit per sector
    mshrs: NDArray[np.int64]  # (slice, entry): when it is free
    next_mshr: NDArray[np.int64]
    open_row: NDArray[np.int64]  # (channel, bank): row + 1
    bank_free: NDArray[np.int64]


class Calendars(NamedTuple):
    """Rows: slices, then channels, then the reply ports of the SMs."""

    window: NDArray[np.int64]
    fill: NDArray[np.int64]
    skip: NDArray[np.int64]


class L1(NamedTuple):
    """Of all SMs; emptied between kernels."""

    buckets: NDArray[np.int32]  # (SM, hash): way + 1
    chain: NDArray[np.int32]  # (SM, way): next way + 1
    tags: NDArray[np.int64]
    used: NDArray[np.int64]
    fills: NDArray[np.int64]  # (SM, way, sector)
    occupied: NDArray[np.int32]  # (SM, set): ways in use
    mshrs: NDArray[np.int64]
    next_mshr: NDArray[np.int64]
    port_free: NDArray[np.int64]  # request port
    stalled_until: NDArray[np.int64]


class Fixed(NamedTuple):
    """Per pipe."""

    latency: NDArray[np.int64]
    initiation: NDArray[np.int64]


class Code(NamedTuple):
    """A kernel's records (`lines.Records`)."""

    instructions: NDArray[np.uint64]
    memory: NDArray[np.uint64]
    warp_start: NDArray[np.int64]
    warp_memory: NDArray[np.int64]
    cta_warp: NDArray[np.int64]


def numbers_of(machine: Machine, l1_ways: int) -> Numbers:
    slices = machine.channels * machine.slices_per_channel
    icnt = machine.core_hz / machine.icnt_hz
    l2 = machine.core_hz / machine.l2_hz
    dram = machine.core_hz / machine.dram_hz
    atoms = max(1, math.ceil(SECTOR_BYTES / machine.dram_atom_bytes))
    timing = machine.dram_timing
    read_latency = (timing.get("RCD", 12) + timing.get("CL", 12) + machine.dram_atom_clocks * atoms) * dram
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
        l2_sets=machine.l2_sets,
        l2_ways=machine.l2_ways,
        l2_mshrs=machine.l2_mshrs,
        channels=machine.channels,
        slices_per_channel=machine.slices_per_channel,
        slice_bit=slice_bit_of(machine.address_map),
        hash_bits=int(math.log2(slices)) if machine.partition_indexing and slices & (slices - 1) == 0 else 0,
        # Into the crossbar, through it, out of it; then the ROP queue; then the slice.
        request_latency=math.ceil(2 * icnt + l2) + machine.l2_latency,
        reply_latency=math.ceil(2 * icnt) + 1,
        slice_cost=max(1, round(UNIT * l2)),
        reply_cost=max(1, round(UNIT * icnt)),
        dram_cost=max(1, round(UNIT * atoms * machine.dram_atom_clocks * dram / DRAM_EFFICIENCY)),
        dram_latency=machine.dram_latency + round(read_latency) + DRAM_HOPS,
        row_miss_latency=round((timing.get("RP", 12) + timing.get("RCD", 12)) * dram),
        row_cycle=round(timing.get("RC", 40) * dram),
        write_turnaround=0,
    )


DRAM_EFFICIENCY: Final = 0.86
"""Of the data bus under FR-FCFS, row changes and turnarounds included: 0.88 in the 32 MB copy recorded on RTX3070."""

DRAM_HOPS: Final = 8
"""Cycles through the queues between a slice and its channel, both ways."""


def slice_bit_of(address_map: str) -> int:
    """The lowest bank bit, which tells the two slices of a channel apart."""
    bits = address_map.partition(";")[2].replace(".", "")[::-1]
    return bits.find("B") if "B" in bits else 7


def fresh_l2(machine: Machine) -> L2:
    slices = machine.channels * machine.slices_per_channel
    shape = (slices, machine.l2_sets, machine.l2_ways)
    banks = max(1, machine.dram_timing.get("nbk", 16))
    return L2(
        tags=np.zeros(shape, np.int64),
        used=np.zeros(shape, np.int64),
        fills=np.zeros((*shape, LINE_BYTES // SECTOR_BYTES), np.int64),
        dirty=np.zeros(shape, np.uint8),
        mshrs=np.zeros((slices, machine.l2_mshrs), np.int64),
        next_mshr=np.zeros(slices, np.int64),
        open_row=np.zeros((machine.channels, banks), np.int64),
        bank_free=np.zeros((machine.channels, banks), np.int64),
    )


def fresh_calendars(machine: Machine) -> Calendars:
    rows = machine.channels * (machine.slices_per_channel + 1) + machine.sm_count
    shape = (rows, WINDOWS)
    return Calendars(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64))


def fresh_l1(machine: Machine, ways: int) -> L1:
    n, sets = machine.sm_count, machine.l1_sets
    buckets = 1 << max(6, (sets * ways).bit_length())
    return L1(
        buckets=np.zeros((n, buckets), np.int32),
        chain=np.zeros((n, sets * ways), np.int32),
        tags=np.zeros((n, sets * ways), np.int64),
        used=np.zeros((n, sets * ways), np.int64),
        fills=np.zeros((n, sets * ways, LINE_BYTES // SECTOR_BYTES), np.int64),
        occupied=np.zeros((n, sets), np.int32),
        mshrs=np.zeros((n, machine.l1_mshrs), np.int64),
        next_mshr=np.zeros(n, np.int64),
        port_free=np.zeros(n, np.int64),
        stalled_until=np.zeros(n, np.int64),
    )


def pipes_of(machine: Machine) -> Fixed:
    return Fixed(np.array(machine.latency, np.int64), np.array(machine.initiation, np.int64))
