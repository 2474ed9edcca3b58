"""The event-driven simulator, compiled: issue slot by issue slot, with memory requests followed to their end at issue.

Cycle numbers below count from a kernel's first. What an instruction passes, as Accel-Sim has it: issue (t) → operand
collector (t+1) → register banks → dispatch (t+2) → pipe (t+3) → write back, so that a dependent one may issue at
t + latency + 5; two sources in one register bank cost a cycle more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.simworker.simulators.sass.jit import compiled, expect, inner, merged, signed
from services.simworker.simulators.sass.lines import (
    BARRIERS,
    BYPASSES_L1,
    CLASS_MASK,
    COMMITS,
    DISTRIBUTED,
    DST_SHIFT,
    HAS_ACCESS,
    IMMEDIATE_SHIFT,
    MULTICAST,
    NAMES_BARRIER,
    REGISTER_BITS,
    REGISTER_MASK,
    SRC_SHIFT,
)
from services.simworker.simulators.sass.opcodes import (
    ATOMIC,
    BAR,
    BULK_LOAD,
    BULK_STORE,
    DEPBAR,
    EXIT,
    GMMA,
    GMMA_WAIT,
    LDGDEPBAR,
    LDGSTS,
    LOAD,
    MBARRIER_WAIT,
    MEMBAR,
    SHARED_LOAD,
    SHARED_STORE,
    STORE,
)
from services.simworker.simulators.sass.state import (
    ACTIVATIONS,
    BUS,
    CLUSTER_LIMIT,
    DEPTH,
    FILL,
    GROUPS,
    HASH_TABLES,
    L1,
    L1_WAY,
    L2,
    L2_WAY,
    MEMORY_PIPE,
    NEVER,
    PIPE_COUNT,
    SET_SIZE,
    SLICES,
    UNIT,
    UNIT_SHIFT,
    USED,
    WAYS_TOGETHER,
    WHEEL,
    WINDOW_CYCLES,
    WINDOW_SHIFT,
    WINDOWS,
    Calendars,
    Code,
    Fixed,
    Numbers,
    Running,
    Warps,
)

# Slots of `told`.
CYCLES: Final = 0
INSTRUCTIONS: Final = 1
L1_READS: Final = 2
L1_READ_HITS: Final = 3
L1_WRITES: Final = 4
L2_READS: Final = 5
L2_READ_HITS: Final = 6
L2_WRITES: Final = 7
L2_WRITE_HITS: Final = 8
DRAM_READS: Final = 9
DRAM_WRITES: Final = 10
SHARED_ACCESSES: Final = 11
BANK_CONFLICTS: Final = 12  # cycles beyond one per access
WARP_CYCLES: Final = 13  # of resident warps
ACTIVE_CYCLES: Final = 14  # of SMs with a warp
STALL_MEMORY: Final = 15  # cycles of schedulers without an issue, by what the next warp waited for
STALL_DEPENDENCY: Final = 16
STALL_PIPE: Final = 17
STALL_BARRIER: Final = 18
PARKED_WARPS: Final = 19  # at a barrier when nothing could go on: a deadlock
LIVE_WARPS: Final = 20
DONE_CTAS: Final = 21
REQUESTS: Final = 22  # that left an SM
REQUEST_CYCLES: Final = 23  # until their answers were back
ROWS_OPENED: Final = 24  # in DRAM
L2_LINES: Final = 25  # that came into L2
PIPE_BUSY: Final = 26  # PIPE_COUNT + 1 entries: cycles that sub-cores' pipes were held
TOLD_SIZE: Final = PIPE_BUSY + PIPE_COUNT + 1

# Slots of `Running.clock`.
NOW: Final = 0
NEXT_CTA: Final = 1
CTA_TOTAL: Final = 2  # fewer than the kernel has once a sample is large enough
FIRST_CTA: Final = 3  # of those in `Code`
BASE: Final = 4
BIRTHS: Final = 5
WAITING: Final = 6  # schedulers in the wheel
LAST_END: Final = 7
LAUNCHES: Final = 8
LEAD: Final = 9  # place of the first CTA of the cluster that is being launched
CLUSTER: Final = 10  # CTAs
SAMPLED_WAVES: Final = 11  # at least so many before the rest may be taken for granted; 0: none
WAVE_BEGAN: Final = 12
WAVE_CYCLES: Final = 13  # between the last two waves' first CTAs
LAST_CHANGE: Final = 14  # of that since the wave before, in thousandths
WAVE_CHANGE: Final = 15  # the larger one of the last two
HAS_BEGUN: Final = 16
CLOCK_SIZE: Final = 17

# Why `simulate` returned.
ENDED: Final = 0
STUCK: Final = 1
NEEDS_CTAS: Final = 2  # a place is free, and the next CTA's records are not here
PAUSED: Final = 3  # so many instructions were issued

STEADY: Final = 30  # thousandths that a wave's time may differ from the one before
DISTRIBUTED_CYCLES: Final = 180  # to another SM's shared memory and back, beyond one's own
GMMA_COLUMNS: Final = 64  # N for which a config says how long GMMA holds its unit

IDLE: Final = 0
RUNNING: Final = 1
PARKED: Final = 2

WARPS_FETCHED_PER_CYCLE: Final = 4
FIRST_ISSUE: Final = 2  # cycles from a CTA's launch to its first instruction
WRITE_BACK: Final = 2  # cycles from a pipe's last stage to the scoreboard
L1_TO_REGISTER: Final = 2  # cycles from a line's fill to the scoreboard
LAST_CYCLES: Final = 2  # from the last warp's end to the kernel's
CTA_TO_CTA: Final = 1


@merged
def _take(windows: NDArray[np.int64], row: int, first: int, width: int, time: int, cost: int) -> int:
    """The first time from `time` on at which the resource is free for `cost`; it is taken.

    Its windows are those of a row from `first` on, `width` apart.
    """
    window = time >> WINDOW_SHIFT
    taken = signed(0)
    while True:
        taken = signed(windows[row, first + (window & (WINDOWS - 1)) * width])
        tag = taken >> TAG_SHIFT
        if tag > window:
            # So far behind the newest request that its window is forgotten: whatever it was, it is over.
            return time
        if tag < window:
            taken = window << TAG_SHIFT
            break
        onward = (taken >> ONWARD_SHIFT) & ONWARD_MASK
        if onward == 0:
            break
        window += onward
    # Shorten the way for whoever comes next; of a way longer than the ring only what is still there.
    before = time >> WINDOW_SHIFT
    while before != window:
        at = first + (before & (WINDOWS - 1)) * width
        entry = signed(windows[row, at])
        if entry >> TAG_SHIFT != before:
            break
        windows[row, at] = (entry & ~(ONWARD_MASK << ONWARD_SHIFT)) | ((window - before) << ONWARD_SHIFT)
        before += (entry >> ONWARD_SHIFT) & ONWARD_MASK
    fill = taken & FILL_MASK
    taken += cost
    beyond = fill + cost - WINDOW_CYCLES * UNIT
    if beyond >= 0:
        # What does not fit into this window is the next one's.
        taken += 1 << ONWARD_SHIFT
        after = window + 1
        at = first + (after & (WINDOWS - 1)) * width
        entry = signed(windows[row, at])
        if entry >> TAG_SHIFT < after:
            entry = after << TAG_SHIFT
        if entry >> TAG_SHIFT == after:
            windows[row, at] = entry + min(beyond, FILL_LIMIT - (entry & FILL_MASK))
    windows[row, first + (window & (WINDOWS - 1)) * width] = taken
    return signed(max(time, (window << WINDOW_SHIFT) + (fill >> UNIT_SHIFT)))


# A window's number: which one it is, how many on the next with room is, units taken.
TAG_SHIFT: Final = 34
ONWARD_SHIFT: Final = 24
ONWARD_MASK: Final = 2 * WINDOWS - 1
FILL_MASK: Final = (1 << ONWARD_SHIFT) - 1
FILL_LIMIT: Final = FILL_MASK >> 1  # leaves room for one request's cost


@merged
def _locate(n: Numbers, fixed: Fixed, sector: int, where: NDArray[np.int64], at: int) -> None:
    """Writes to where[at:] where the line of a sector lives beyond L1."""
    rest = sector >> 3  # 256 B, the stride of channels
    if rest != where[KNOWN]:
        # Once for both lines, since it takes divisions.
        where[KNOWN] = rest
        above = rest // n.channels
        where[KNOWN_ABOVE] = above
        index = (rest - above * n.channels) * n.slices_per_channel
        if n.slices_per_channel > 1 and n.slice_bit >= 8:
            index += (above >> (n.slice_bit - 8)) & (n.slices_per_channel - 1)
        where[KNOWN_INDEX] = index
        moved = signed(0)
        if n.hash_bits > 0:
            high = rest >> n.hash_bits
            for part in range(HASH_TABLES):
                moved ^= signed(fixed.hashes[part, (high >> (8 * part)) & 255])
        where[KNOWN_HASH] = moved
        where[KNOWN_ROW] = ((above << 3) >> (n.row_bit - 5)) + 1
    above = where[KNOWN_ABOVE]
    index = where[KNOWN_INDEX]
    half = (sector >> 2) & 1
    # The address without the channel's digits, in which bits of banks and rows are counted.
    within = (above << 3) | (sector & 7)
    if n.slices_per_channel == 1:
        line = above * 2 + half
    elif n.slice_bit < 8:
        index += (sector >> (n.slice_bit - 5)) & (n.slices_per_channel - 1)
        line = above
    else:
        line = (above >> 1) * 2 + half
    index ^= where[KNOWN_HASH]
    bank = 0
    weight = 1
    bits = n.bank_bits
    while weight < n.banks:
        bank += ((within >> ((bits & 63) - 5)) & 1) * weight
        bits >>= 6
        weight <<= 1
    where[at + SLICE] = index
    if n.l2_sets & (n.l2_sets - 1):
        where[at + SET] = (line ^ (line // n.l2_sets)) % n.l2_sets
    else:
        where[at + SET] = (line ^ (line >> n.l2_set_bits)) & (n.l2_sets - 1)
    where[at + CHANNEL] = index // n.slices_per_channel
    where[at + BANK] = bank
    where[at + ROW] = where[KNOWN_ROW]


# Of a way in L2, a place each; USED: when last, FILL: when the data of the sectors that came last is there.
TAG: Final = 0  # the line's lower bits
STATE: Final = 3  # 0: nothing was ever here; else four bits each, a sector each, and the line's upper bits
DIRTY: Final = 0
VALID: Final = 4
NEWEST: Final = 8  # sectors that FILL is the time of; others were there before
PRESENT: Final = 1 << 12
UPPER: Final = 13
UPPER_MASK: Final = (1 << 18) - 1
TAG_BITS: Final = 31
TAG_MASK: Final = (1 << TAG_BITS) - 1

# Of a way in L1, beside TAG.
CHAIN: Final = 1  # the next way of its bucket, + 1, and the line's upper bits
BEFORE: Final = 2  # the way of its set that was used before it, + 1
AFTER: Final = 3
FILLS: Final = 4  # when each sector's data is there
CHAIN_BITS: Final = 21
CHAIN_MASK: Final = (1 << CHAIN_BITS) - 1

# Of a set in L1.
OLDEST: Final = 0  # the ends of its order of use, + 1
LATEST: Final = 1
OCCUPIED: Final = 2  # ways in use

# Of an SM's load-store unit.
NEXT_ENTRY: Final = 0
PORT_FREE: Final = 1  # from L1 to the crossbar's input
CROSSBAR_FREE: Final = 2  # from there to a slice
STALLED_UNTIL: Final = 3

# Of a slice: places in its rings.
NEXT_ACCEPTED: Final = 0
NEXT_MISSED: Final = 1
NEXT_MSHR: Final = 2

# Of a line in `where`.
SLICE: Final = 0
SET: Final = 1
CHANNEL: Final = 2
BANK: Final = 3
ROW: Final = 4
LOW: Final = 5  # its first sector that is wanted
COUNT: Final = 6
IS_PARTIAL: Final = 7
WHERE_SIZE: Final = 8

LINES_AT_ONCE: Final = 32
HOME: Final = LINES_AT_ONCE * WHERE_SIZE  # of the line that leaves L2: the last one in `where`
# Of the 256 B that were asked about last: where they are, so that a line's other half need not be worked out.
KNOWN: Final = HOME + WHERE_SIZE
KNOWN_ABOVE: Final = KNOWN + 1
KNOWN_INDEX: Final = KNOWN + 2
KNOWN_ROW: Final = KNOWN + 3
KNOWN_HASH: Final = KNOWN + 4
WHERE_TOTAL: Final = KNOWN + 5


@merged
def _dram(
    n: Numbers,
    l2: L2,
    calendars: Calendars,
    told: NDArray[np.int64],
    where: NDArray[np.int64],
    at: int,
    time: int,
    count: int,
) -> int:
    """When the last of a line's sectors leaves DRAM; bus, bank group and, for another row, the bank are taken."""
    channel = where[at + CHANNEL]
    bank = where[at + BANK]
    windows = calendars.channels
    width = n.calendar_width
    if l2.open_row[channel, bank] != where[at + ROW]:
        l2.open_row[channel, bank] = where[at + ROW]
        told[ROWS_OPENED] += 1
        time = _take(windows, channel, SLICES + n.slices_per_channel + bank, width, time, n.bank_cost)
        time = _take(windows, channel, ACTIVATIONS, width, time, n.row_cost) + n.row_latency
    time = _take(windows, channel, GROUPS + (bank & (n.bank_groups - 1)), width, time, count * n.group_cost)
    ended = time + (((count - 1) * n.group_cost) >> UNIT_SHIFT)
    time = _take(windows, channel, BUS, width, time, count * n.dram_cost)
    return max(ended, time + (((count - 1) * n.dram_cost) >> UNIT_SHIFT)) + n.dram_latency


@merged
def _count(parts: int) -> int:
    """Sectors in a mask of four."""
    return (SECTORS_IN >> (4 * parts)) & 7


SECTORS_IN: Final = 0x4332322132212110  # four bits for each mask


@merged
def _held(ring: NDArray[np.int32], row: int, size: int, place: int, count: int, time: int) -> int:
    """When so many places of a ring are free, at most four, from `time` on."""
    if place + count <= size:
        time = max(time, signed(ring[row, place]))
        if count > 1:
            time = max(time, signed(ring[row, place + 1]))
            if count > 2:
                time = max(time, signed(ring[row, place + 2]))
                if count > 3:
                    time = max(time, signed(ring[row, place + 3]))
        return signed(time)
    for _ in range(count):
        time = max(time, signed(ring[row, place]))
        place = place + 1 if place + 1 < size else 0
    return signed(time)


@merged
def _hold(ring: NDArray[np.int32], row: int, size: int, place: int, count: int, until: int) -> int:
    """Takes so many places of a ring until then; the next place."""
    if place + count < size:
        ring[row, place] = until
        if count > 1:
            ring[row, place + 1] = until
            if count > 2:
                ring[row, place + 2] = until
                if count > 3:
                    ring[row, place + 3] = until
        return place + count
    for _ in range(count):
        ring[row, place] = until
        place = place + 1 if place + 1 < size else 0
    return place


@merged
def _l2(
    n: Numbers,
    fixed: Fixed,
    l2: L2,
    calendars: Calendars,
    told: NDArray[np.int64],
    where: NDArray[np.int64],
    at: int,
    line: int,
    parts: int,
    time: int,
    is_write: bool,
    is_partial: bool,
) -> tuple[int, int]:
    """When a slice has a line's sectors, or has taken the write; and when the first of them has left its SM."""
    index = where[at + SLICE]
    channel = where[at + CHANNEL]
    count = _count(parts)
    # The crossbar gives a slice one request a cycle, and none while the queue before the slice is full.
    place = l2.places[index, NEXT_ACCEPTED]
    time = max(time, _held(l2.accepted, index, n.slice_queue, place, count, signed(0)) - n.request_latency)
    own = SLICES + index - channel * n.slices_per_channel
    crossed = _take(calendars.channels, channel, own, n.calendar_width, time, count * n.slice_cost)
    miss_place = l2.places[index, NEXT_MISSED]
    time = crossed + n.request_latency + (((count - 1) * n.slice_cost) >> UNIT_SHIFT)
    time = max(time, signed(l2.missed[index, miss_place]))
    l2.places[index, NEXT_ACCEPTED] = _hold(l2.accepted, index, n.slice_queue, place, count, time)
    low = line & TAG_MASK
    high = (line >> TAG_BITS) & UPPER_MASK
    ways = l2.ways
    # Ways that come into use together lie together; the next ones of the set are a row of sets further.
    spot = where[at + SET] * (WAYS_TOGETHER * L2_WAY)
    victim = spot
    oldest = NEVER
    state = signed(0)
    is_new = True
    for candidate in range(n.l2_ways):
        state = signed(ways[index, spot + STATE])
        if state == 0:
            victim = spot  # and none behind it was ever used
            break
        if signed(ways[index, spot + TAG]) == low and state >> UPPER == high:
            is_new = False
            break
        if signed(ways[index, spot + USED]) < oldest:
            oldest = signed(ways[index, spot + USED])
            victim = spot
        spot += L2_WAY
        if candidate & (WAYS_TOGETHER - 1) == WAYS_TOGETHER - 1:
            spot += (n.l2_sets - 1) * (WAYS_TOGETHER * L2_WAY)
    if is_new:
        spot = victim
        state = signed(ways[index, spot + STATE])
        stale = state & 15
        if stale != 0:
            old = ((state >> UPPER) << TAG_BITS) | signed(ways[index, spot + TAG])
            _locate(n, fixed, old << 2, where, HOME)
            told[DRAM_WRITES] += _count(stale)
            _dram(n, l2, calendars, told, where, HOME, time, _count(stale))
        told[L2_LINES] += 1
        ways[index, spot + TAG] = low
        state = (high << UPPER) | PRESENT
        ways[index, spot + FILL] = 0
    ways[index, spot + USED] = time
    valid = (state >> VALID) & 15
    if is_write:
        # A written sector is not fetched first, and one written in part is not yet to be read.
        told[L2_WRITES] += count
        told[L2_WRITE_HITS] += _count(valid & parts)
        ways[index, spot + STATE] = state | parts | (0 if is_partial else parts << VALID)
        return time, crossed
    told[L2_READS] += count
    missing = parts & ~valid
    fill = signed(ways[index, spot + FILL])
    ready = time
    if (state >> NEWEST) & parts:
        ready = max(ready, fill)
    if missing == 0:
        told[L2_READ_HITS] += count
        return signed(ready), crossed
    told[L2_READ_HITS] += _count(valid & parts)
    count = _count(missing)
    told[DRAM_READS] += count
    entry = l2.places[index, NEXT_MSHR]
    credit = l2.next_returned[channel]
    asked = time
    time = _held(l2.mshrs, index, n.l2_mshrs, entry, count, time)
    time = _held(l2.returned, channel, n.dram_credits, credit, count, time)
    l2.places[index, NEXT_MISSED] = _hold(l2.missed, index, n.l2_miss_queue, miss_place, count, time)
    filled = _dram(n, l2, calendars, told, where, at, time, count)
    l2.places[index, NEXT_MSHR] = _hold(l2.mshrs, index, n.l2_mshrs, entry, count, filled)
    l2.next_returned[channel] = _hold(l2.returned, channel, n.dram_credits, credit, count, filled)
    state |= missing << VALID
    if fill <= asked:
        state &= ~(15 << NEWEST)
    ways[index, spot + STATE] = state | (missing << NEWEST)
    ways[index, spot + FILL] = max(fill, filled) if fill > asked else filled
    return signed(max(ready, filled)), crossed


@merged
def _bucket(n: Numbers, line: int) -> int:
    return (line ^ (line >> 9)) & (n.l1_buckets - 1)


@merged
def _l1_way(n: Numbers, l1: L1, sm: int, line: int) -> tuple[int, bool]:
    """Where in its SM's ways the one is that holds a line, allocated where none does, and whether it was."""
    buckets = l1.buckets
    ways = l1.ways
    ends = l1.ends
    low = line & TAG_MASK
    high = (line >> TAG_BITS) & ((1 << (TAG_BITS - CHAIN_BITS)) - 1)
    bucket = _bucket(n, line)
    set_at = (line & (n.l1_sets - 1)) * SET_SIZE
    way = signed(buckets[sm, bucket])
    at = (way - 1) * L1_WAY
    while way != 0:
        chain = signed(ways[sm, at + CHAIN])
        if signed(ways[sm, at + TAG]) == low and chain >> CHAIN_BITS == high:
            if signed(ends[sm, set_at + LATEST]) == way:
                return signed(at), False
            _leave(ways, ends, sm, set_at, at)
            _follow(ways, ends, sm, set_at, at)
            return signed(at), False
        way = chain & CHAIN_MASK
        at = (way - 1) * L1_WAY
    if signed(ends[sm, set_at + OCCUPIED]) < n.l1_ways:
        way = (line & (n.l1_sets - 1)) * n.l1_ways + signed(ends[sm, set_at + OCCUPIED]) + 1
        ends[sm, set_at + OCCUPIED] += 1
        at = (way - 1) * L1_WAY
    else:
        way = signed(ends[sm, set_at + OLDEST])
        at = (way - 1) * L1_WAY
        chain = signed(ways[sm, at + CHAIN])
        old = _bucket(n, ((chain >> CHAIN_BITS) << TAG_BITS) | signed(ways[sm, at + TAG]))
        chain &= CHAIN_MASK
        other = signed(buckets[sm, old])
        if other == way:
            buckets[sm, old] = chain
        else:
            link = signed(0)
            while other != way:
                link = (other - 1) * L1_WAY + CHAIN
                other = signed(ways[sm, link]) & CHAIN_MASK
            ways[sm, link] = (signed(ways[sm, link]) & ~CHAIN_MASK) | chain
        _leave(ways, ends, sm, set_at, at)
    ways[sm, at + TAG] = low
    ways[sm, at + CHAIN] = (high << CHAIN_BITS) | signed(buckets[sm, bucket])
    buckets[sm, bucket] = way
    _follow(ways, ends, sm, set_at, at)
    return signed(at), True


@merged
def _leave(ways: NDArray[np.int32], ends: NDArray[np.int32], sm: int, set_at: int, at: int) -> None:
    """Takes a way out of its set's order of use."""
    before = signed(ways[sm, at + BEFORE])
    after = signed(ways[sm, at + AFTER])
    if before == 0:
        ends[sm, set_at + OLDEST] = after
    else:
        ways[sm, (before - 1) * L1_WAY + AFTER] = after
    if after == 0:
        ends[sm, set_at + LATEST] = before
    else:
        ways[sm, (after - 1) * L1_WAY + BEFORE] = before


@merged
def _follow(ways: NDArray[np.int32], ends: NDArray[np.int32], sm: int, set_at: int, at: int) -> None:
    """Makes a way the one of its set that was used last."""
    latest = signed(ends[sm, set_at + LATEST])
    way = at // L1_WAY + 1
    ways[sm, at + BEFORE] = latest
    ways[sm, at + AFTER] = 0
    ends[sm, set_at + LATEST] = way
    if latest == 0:
        ends[sm, set_at + OLDEST] = way
    else:
        ways[sm, (latest - 1) * L1_WAY + AFTER] = way


@inner
def access_global(
    n: Numbers,
    fixed: Fixed,
    l1: L1,
    l2: L2,
    calendars: Calendars,
    memory: NDArray[np.uint64],
    at: int,
    sm: int,
    start: int,
    kind: int,
    bypasses: bool,
    told: NDArray[np.int64],
    where: NDArray[np.int64],
    peers: NDArray[np.int64],
    lead: int,
    receivers: int,
    resident: int,
) -> tuple[int, int, int]:
    """A warp's access: (when all data or acknowledgements are back, last cycle in the load-store unit, next word).

    `receivers` are the ranks of the cluster of `lead` that a multicast's data goes to, a bit each; 0: the SM itself.
    """
    runs = signed(memory[at])
    cycle = start
    done = start
    banks_used = signed(0)
    entry = signed(0)
    way = signed(0)
    ways = l1.ways
    unit = l1.unit
    arrival = start if bypasses else start + n.l1_latency  # at the crossbar, if nothing is in the way
    is_write = kind in (STORE, BULK_STORE)
    run = runs
    first = signed(0)
    high = signed(-1)
    is_partial = signed(0)
    while run > 0 or high >= first:
        # Where lines live is worked out ahead, for what is known of them takes long to come from memory.
        lines = 0
        while lines < LINES_AT_ONCE:
            if high < first:
                if run == 0:
                    break
                word = memory[at + run]
                run -= 1
                first = signed(word >> np.uint64(8))
                high = first + signed(word & np.uint64(0x7F)) - 1
                is_partial = signed(word >> np.uint64(7)) & 1
            # One line's sectors at once, from the highest down, as Accel-Sim takes them.
            low = max(first, high & ~3)
            own = lines * WHERE_SIZE
            _locate(n, fixed, low, where, own)
            where[own + LOW] = low
            where[own + COUNT] = high - low + 1
            where[own + IS_PARTIAL] = is_partial
            expect(l2.ways, where[own + SLICE], where[own + SET] * (WAYS_TOGETHER * L2_WAY))
            expect(l2.places, where[own + SLICE], 0)
            for due in (arrival >> WINDOW_SHIFT, (arrival + n.request_latency) >> WINDOW_SHIFT):
                expect(calendars.channels, where[own + CHANNEL], (due & (WINDOWS - 1)) * n.calendar_width)
            if not bypasses:
                expect(l1.buckets, sm, _bucket(n, low >> 2))
            high = low - 1
            lines += 1
        for own in range(0, lines * WHERE_SIZE, WHERE_SIZE):
            low = where[own + LOW]
            count = where[own + COUNT]
            line = low >> 2
            parts = ((1 << count) - 1) << (low & 3)
            if bypasses:
                if banks_used != 0:
                    cycle += 1
                banks_used = 1
                sent = max(cycle, unit[sm, PORT_FREE])
                unit[sm, PORT_FREE] = sent + count
                cycle += count - 1
            else:
                if n.l1_banks < 4:
                    cycle += count // n.l1_banks if banks_used else (count - 1) // n.l1_banks
                    banks_used = 1
                else:
                    wanted = ((1 << count) - 1) << (low & (n.l1_banks - 1))
                    if banks_used & wanted:
                        cycle += 1
                        banks_used = 0
                    banks_used |= wanted
                tag_time = max(cycle + n.l1_latency, unit[sm, STALLED_UNTIL])
                way, is_new = _l1_way(n, l1, sm, line)
                way += FILLS
                if is_new:
                    for part in range(4):
                        ways[sm, way + part] = 0
                if is_write:
                    told[L1_WRITES] += count
                    if where[own + IS_PARTIAL] == 0:
                        for part in range(4):
                            if (parts >> part) & 1 and ways[sm, way + part] == 0:
                                ways[sm, way + part] = tag_time
                else:
                    told[L1_READS] += count
                    if not is_new:
                        for part in range(4):
                            if (parts >> part) & 1:
                                fill = signed(ways[sm, way + part])
                                if fill != 0:
                                    parts ^= 1 << part
                                    told[L1_READ_HITS] += 1
                                    done = max(done, tag_time if fill <= tag_time else fill + L1_TO_REGISTER)
                        if parts == 0:
                            continue
                        count = _count(parts)
                    entry = unit[sm, NEXT_ENTRY]
                    tag_time = _held(l1.mshrs, sm, n.l1_mshrs, entry, count, tag_time)
                sent = max(tag_time + 1, unit[sm, PORT_FREE])
                unit[sm, PORT_FREE] = sent + count
                unit[sm, STALLED_UNTIL] = max(unit[sm, STALLED_UNTIL], sent + count - 1 - n.l1_miss_queue)
                # The queue in front of L1 holds a cycle's accesses per stage; when it is full, the unit waits.
                cycle = max(cycle, unit[sm, STALLED_UNTIL] - n.l1_latency * n.l1_banks)
            # The SM's requests enter the crossbar in order: one for a busy slice holds up all behind it. Half of its
            # wait stands for Accel-Sim's round robin, which lets the SMs that want a slice finish together: one round
            # of all SMs at most, or waits would feed on each other.
            crossing = max(sent, unit[sm, CROSSBAR_FREE])
            ready, crossed = _l2(
                n,
                fixed,
                l2,
                calendars,
                told,
                where,
                own,
                line,
                parts,
                crossing,
                is_write,
                where[own + IS_PARTIAL] != 0,
            )
            unit[sm, CROSSBAR_FREE] = crossed + count + min((crossed - crossing) >> 1, n.sm_count * 4)
            if receivers == 0:
                back = _take(calendars.ports, sm, 0, 1, ready + 1, count * n.reply_cost)
            else:
                back = ready + 1
                for rank in range(CLUSTER_LIMIT):
                    if (receivers >> rank) & 1 and peers[lead, rank] >= 0:
                        peer = peers[lead, rank] // resident
                        back = max(back, _take(calendars.ports, peer, 0, 1, ready + 1, count * n.reply_cost))
            back += (((count - 1) * n.reply_cost) >> UNIT_SHIFT) + n.reply_latency - 1
            told[REQUESTS] += count
            told[REQUEST_CYCLES] += (back - cycle) * count
            if is_write:
                done = max(done, back)
            else:
                if not bypasses:
                    unit[sm, NEXT_ENTRY] = _hold(l1.mshrs, sm, n.l1_mshrs, entry, count, back)
                    if parts == 15:
                        for part in range(4):
                            ways[sm, way + part] = back
                    else:
                        for part in range(4):
                            if (parts >> part) & 1:
                                ways[sm, way + part] = back
                done = max(done, back + L1_TO_REGISTER)
    return done, cycle, at + runs + 1


@inner
def _begin(n: Numbers, l1: L1, run: Running, resident: int) -> None:
    """Puts the first CTAs in line, in the cycle BASE: one per SM and cycle, SM by SM, until all are full."""
    clock = run.clock
    clock[NOW] = clock[BASE]
    clock[LAST_END] = clock[BASE]
    clock[WAVE_BEGAN] = clock[BASE]
    for round_ in range(resident):
        for sm in range(n.sm_count):
            _vacate(n, run, sm * resident + round_, resident, clock[BASE] + round_)
    if n.flushes_l1 == 0:
        return
    for sm in range(n.sm_count):
        is_used = False
        for at in range(0, n.l1_sets * SET_SIZE, SET_SIZE):
            is_used = is_used or l1.ends[sm, at + OCCUPIED] != 0
            for end in range(SET_SIZE):
                l1.ends[sm, at + end] = 0
        if is_used:
            for bucket in range(n.l1_buckets):
                l1.buckets[sm, bucket] = 0


@inner
def _vacate(n: Numbers, run: Running, slot: int, resident: int, time: int) -> None:
    """A place for a CTA is free from then on: the next one in line gets it, or the next cluster all of a GPC's."""
    clock = run.clock
    left = clock[CTA_TOTAL] - clock[NEXT_CTA] - clock[LAUNCHES]
    if left <= 0:
        return
    if clock[CLUSTER] <= 1:
        run.launch_queue[clock[LAUNCHES]] = slot
        run.launch_time[clock[LAUNCHES]] = time
        clock[LAUNCHES] += 1
        return
    gpc = slot // resident // n.sms_per_gpc
    count = run.idle_count[gpc]
    run.idle[gpc, count] = slot
    run.idle_since[gpc] = max(run.idle_since[gpc], time)
    count += 1
    if count >= min(clock[CLUSTER], left):
        for place in range(count):
            run.launch_queue[clock[LAUNCHES]] = run.idle[gpc, place]
            run.launch_time[clock[LAUNCHES]] = run.idle_since[gpc]
            clock[LAUNCHES] += 1
        count = 0
    run.idle_count[gpc] = count


@inner
def _wave_is_steady(n: Numbers, clock: NDArray[np.int64], told: NDArray[np.int64], time: int, places: int) -> bool:
    """Whether the CTAs from the next one on may be taken for granted; asked where a wave begins."""
    cycles = time - clock[WAVE_BEGAN]
    change = abs(cycles - clock[WAVE_CYCLES]) * 1000 // max(cycles, 1)
    clock[WAVE_BEGAN] = time
    clock[WAVE_CYCLES] = cycles
    clock[WAVE_CHANGE] = max(change, clock[LAST_CHANGE])
    clock[LAST_CHANGE] = change
    if clock[SAMPLED_WAVES] == 0 or clock[NEXT_CTA] < clock[SAMPLED_WAVES] * places or clock[WAVE_CHANGE] >= STEADY:
        return False
    # A stream that will fill L2 and has not yet goes on faster than it will once lines have to be written back.
    room = n.channels * n.slices_per_channel * n.l2_sets * n.l2_ways
    lines = told[L2_LINES]
    return bool(lines >= 2 * room or 2 * lines * clock[CTA_TOTAL] <= room * clock[NEXT_CTA])


@compiled
def simulate(
    n: Numbers,
    fixed: Fixed,
    code: Code,
    l1: L1,
    l2: L2,
    calendars: Calendars,
    warps: Warps,
    run: Running,
    resident: int,
    width: int,
    work_limit: int,
    told: NDArray[np.int64],
) -> int:
    """Goes on with a kernel from where `run` is, or begins it; why it returned. `told` gets the statistics.

    It pauses where the instructions and an eighth of the requests in `told` come to `work_limit`.
    """
    schedulers = n.schedulers
    warps_per_sm = n.warps_per_sm
    warp_count = n.sm_count * warps_per_sm
    instructions = code.instructions
    registers = warps.registers
    group_fill = warps.group_fill
    clock = run.clock
    if clock[HAS_BEGUN] == 0:
        clock[HAS_BEGUN] = 1
        _begin(n, l1, run, resident)
    known_ctas = clock[FIRST_CTA] + len(code.cta_warp) - 1
    base = clock[BASE]

    status = run.status
    pc = run.pc
    end = run.end
    memory_at = run.memory_at
    ready = run.ready
    pipe_of = run.pipe_of
    born = run.born
    started = run.started
    last_back = run.last_back
    memory_bound = run.memory_bound
    group_open = run.group_open
    group_count = run.group_count
    cta_slot = run.cta_slot
    cta_live = run.cta_live
    cta_arrived = run.cta_arrived
    cta_first = run.cta_first
    cta_warps = run.cta_warps
    cta_bulk = run.cta_bulk
    sm_live = run.sm_live
    sm_since = run.sm_since
    highest = run.highest
    id_free = run.id_free
    ex_free = run.ex_free
    unit_free = run.unit_free
    collector_free = run.collector_free
    bank_free = run.bank_free
    unit_of_memory = run.unit_of_memory
    last_issued = run.last_issued
    look = run.look
    wheel = run.wheel
    places = n.sm_count * resident
    words = wheel.shape[1]
    where = np.empty(WHERE_TOTAL, np.int64)
    where[KNOWN] = -1
    waiting = clock[WAITING]
    now = clock[NOW]
    last_end = clock[LAST_END]

    while True:
        # --- CTAs that have a place
        launches = clock[LAUNCHES]
        if launches > 0 and clock[NEXT_CTA] + launches > known_ctas and known_ctas < clock[CTA_TOTAL]:
            why = NEEDS_CTAS
            break
        if told[INSTRUCTIONS] + (told[REQUESTS] >> 3) >= work_limit:
            why = PAUSED
            break
        for launch in range(launches):
            slot = run.launch_queue[launch]
            time = run.launch_time[launch]
            next_cta = clock[NEXT_CTA]
            if next_cta > 0 and next_cta % places == 0 and _wave_is_steady(n, clock, told, time, places):
                clock[CTA_TOTAL] = next_cta
                break
            sm = slot // resident
            run.launched[next_cta % places] = time
            rank = min(code.cta_rank[next_cta - clock[FIRST_CTA]], CLUSTER_LIMIT - 1)
            if rank == 0:
                clock[LEAD] = slot
                run.peers[slot, :] = -1
            run.cta_lead[slot] = clock[LEAD]
            run.peers[clock[LEAD], rank] = slot
            first_warp = code.cta_warp[next_cta - clock[FIRST_CTA]]
            count = code.cta_warp[next_cta - clock[FIRST_CTA] + 1] - first_warp
            clock[NEXT_CTA] = next_cta + 1
            first = sm * warps_per_sm + (slot % resident) * width
            cta_first[slot] = first
            cta_warps[slot] = count
            cta_live[slot] = count
            cta_arrived[slot] = 0
            cta_bulk[slot, :] = 0
            if sm_live[sm] == 0:
                sm_since[sm] = time
            sm_live[sm] += count
            highest[sm] = max(highest[sm], (slot % resident) * width + count)
            for offset in range(count):
                warp = first + offset
                begin = code.warp_start[first_warp + offset]
                pc[warp] = begin
                end[warp] = code.warp_start[first_warp + offset + 1]
                memory_at[warp] = code.warp_memory[first_warp + offset]
                run.memory_end[warp] = code.warp_memory[first_warp + offset + 1]
                status[warp] = RUNNING
                cta_slot[warp] = slot
                ready[warp] = time + FIRST_ISSUE + offset // WARPS_FETCHED_PER_CYCLE
                started[warp] = time
                last_back[warp] = 0
                for what in (COPIES, PRODUCTS):
                    group_open[warp, what] = 0
                    group_count[warp, what] = 0
                memory_bound[warp] = 0
                born[warp] = clock[BIRTHS]
                clock[BIRTHS] += 1
                kind = signed(instructions[begin] & np.uint64(CLASS_MASK)) if begin < end[warp] else EXIT
                pipe_of[warp] = _pipe(kind)
                scheduler = sm * schedulers + (warp - sm * warps_per_sm) % schedulers
                waiting += _look_at(look, wheel, scheduler, ready[warp], now)
        clock[LAUNCHES] = 0
        if waiting == 0:
            why = ENDED
            break

        # --- the next cycle that anyone looks at
        position = now & (WHEEL - 1)
        for word in range(words):
            while wheel[position, word] != 0:
                bits = wheel[position, word]
                low = bits & (~bits + np.uint64(1))
                wheel[position, word] = bits ^ low
                scheduler = (word << 6) + _bit_index(low)
                look[scheduler] = NEVER
                waiting -= 1
                sm = scheduler // schedulers
                first = sm * warps_per_sm
                # --- choose a warp
                chosen = -1
                best = NEVER
                later = NEVER
                blocked = -1
                parked = False
                span = highest[sm]
                last = last_issued[scheduler]
                for local in range(scheduler % schedulers, span, schedulers):
                    warp = first + local
                    if status[warp] != RUNNING:
                        parked = parked or status[warp] == PARKED
                        continue
                    time = max(ready[warp], id_free[scheduler, pipe_of[warp]])
                    if time > now:
                        if time < later:
                            later = time
                            blocked = warp
                        continue
                    if n.is_greedy:
                        key = signed(-1) if local == last else born[warp]
                    else:
                        key = local - last - 1
                        if key < 0:
                            key += warps_per_sm
                    if key < best:
                        if chosen >= 0:
                            later = now + 1
                        best = key
                        chosen = warp
                    else:
                        later = now + 1
                if chosen < 0:
                    if later == NEVER:
                        continue
                    _tell_stall(told, ready[blocked], memory_bound[blocked], now, later)
                    waiting += _look_at(look, wheel, scheduler, later, now)
                    continue

                # --- issue
                warp = chosen
                slot = cta_slot[warp]
                last_issued[scheduler] = warp - first
                ended = pc[warp] >= end[warp]
                done = now + 1
                next_ready = now + 1
                if not ended:
                    record = instructions[pc[warp]]
                    pc[warp] += 1
                    told[INSTRUCTIONS] += 1
                    kind = signed(record & np.uint64(CLASS_MASK))
                    pipe = _pipe(kind)
                    destination = signed(record >> np.uint64(DST_SHIFT)) & REGISTER_MASK
                    # operand collector
                    unit = 0
                    for other in range(1, n.collectors):
                        if collector_free[scheduler, other] < collector_free[scheduler, unit]:
                            unit = other
                    collected = max(now + 1, collector_free[scheduler, unit])
                    half = 2 * collected + 1
                    sources = signed(record >> np.uint64(SRC_SHIFT))
                    s0 = sources & REGISTER_MASK
                    s1 = (sources >> REGISTER_BITS) & REGISTER_MASK
                    s2 = (sources >> (2 * REGISTER_BITS)) & REGISTER_MASK
                    s3 = (sources >> (3 * REGISTER_BITS)) & REGISTER_MASK
                    if s0 != 0:
                        half = max(half, _read(bank_free, scheduler, s0 % n.register_banks, collected))
                    if s1 not in (0, s0):
                        half = max(half, _read(bank_free, scheduler, s1 % n.register_banks, collected))
                    if s2 not in (0, s0, s1):
                        half = max(half, _read(bank_free, scheduler, s2 % n.register_banks, collected))
                    if s3 not in (0, s0, s1, s2):
                        half = max(half, _read(bank_free, scheduler, s3 % n.register_banks, collected))
                    dispatched = max((half + 1) >> 1, ex_free[scheduler, pipe])
                    collector_free[scheduler, unit] = dispatched
                    id_free[scheduler, pipe] = collected
                    is_memory = False
                    if pipe != MEMORY_PIPE:
                        entered = max(dispatched + 1, unit_free[scheduler, pipe])
                        latency = fixed.latency[pipe]
                        initiation = fixed.initiation[pipe]
                        if kind in (EXIT, BAR):
                            latency = 1
                            initiation = 1
                        elif kind == GMMA:
                            eighths = (signed(record >> np.uint64(IMMEDIATE_SHIFT)) & 31) + 1
                            initiation = max(1, initiation * eighths * 8 // GMMA_COLUMNS)
                            latency = max(latency, initiation)
                        unit_free[scheduler, pipe] = entered + initiation
                        ex_free[scheduler, pipe] = entered
                        told[PIPE_BUSY + pipe] += initiation
                        done = entered + latency + WRITE_BACK
                    else:
                        is_memory = True
                        begun = max(dispatched + 1, unit_of_memory[sm])
                        ex_free[scheduler, pipe] = begun
                        last_cycle = begun
                        done = begun
                        if signed(record >> np.uint64(56)) & 1:
                            at = memory_at[warp]
                            if kind in (SHARED_LOAD, SHARED_STORE):
                                conflict = signed(code.memory[at])
                                memory_at[warp] = at + 1
                                told[SHARED_ACCESSES] += 1
                                told[BANK_CONFLICTS] += conflict - 1
                                last_cycle = begun + conflict - 1
                                done = last_cycle + n.shared_latency + 1 if kind == SHARED_LOAD else last_cycle
                                if record & np.uint64(DISTRIBUTED) != 0:
                                    done = last_cycle + n.shared_latency + 1 + DISTRIBUTED_CYCLES
                            else:
                                bypasses = (signed(record >> np.uint64(57)) & 1) == 1 or n.skips_l1 == 1
                                receivers = signed(0)
                                if record & np.uint64(MULTICAST) != 0:
                                    receivers = signed(code.memory[at])
                                    at += 1
                                done, last_cycle, memory_at[warp] = access_global(
                                    n,
                                    fixed,
                                    l1,
                                    l2,
                                    calendars,
                                    code.memory,
                                    at,
                                    sm,
                                    begun,
                                    kind,
                                    bypasses,
                                    told,
                                    where,
                                    run.peers,
                                    run.cta_lead[slot],
                                    receivers,
                                    resident,
                                )
                                if kind in (BULK_LOAD, BULK_STORE):
                                    last_cycle = begun  # the copy engine makes its requests, not the warp
                                    barrier = signed(record >> np.uint64(IMMEDIATE_SHIFT)) & (BARRIERS - 1)
                                    if receivers != 0:
                                        for rank in range(CLUSTER_LIMIT):
                                            peer = run.peers[run.cta_lead[slot], rank]
                                            if (receivers >> rank) & 1 and peer >= 0:
                                                cta_bulk[peer, barrier] = max(cta_bulk[peer, barrier], done)
                        unit_of_memory[sm] = last_cycle + 1
                        told[PIPE_BUSY + pipe] += last_cycle - begun + 1
                    # A product is there when its group is, and the next one may add to it before.
                    if destination != 0 and kind != GMMA:
                        registers[warp, destination] = 2 * done + is_memory
                    last_back[warp] = max(last_back[warp], done)
                    if kind == LDGSTS:
                        group_open[warp, COPIES] = max(group_open[warp, COPIES], done)
                    elif kind == LDGDEPBAR:
                        _commit(group_fill, group_open, group_count, warp, COPIES)
                    elif kind == DEPBAR:
                        newest = signed(record >> np.uint64(IMMEDIATE_SHIFT)) & 31
                        next_ready = max(next_ready, _committed(group_fill, group_count, warp, COPIES, newest))
                    elif kind == GMMA:
                        group_open[warp, PRODUCTS] = max(group_open[warp, PRODUCTS], done)
                        if record & np.uint64(COMMITS) != 0:
                            _commit(group_fill, group_open, group_count, warp, PRODUCTS)
                    elif kind == GMMA_WAIT:
                        newest = signed(record >> np.uint64(IMMEDIATE_SHIFT)) & 31
                        next_ready = max(next_ready, _committed(group_fill, group_count, warp, PRODUCTS, newest))
                    elif kind == MEMBAR:
                        next_ready = max(next_ready, last_back[warp])
                    elif kind == ATOMIC:
                        next_ready = max(next_ready, done)
                    elif kind == BULK_LOAD:
                        barrier = signed(record >> np.uint64(IMMEDIATE_SHIFT)) & (BARRIERS - 1)
                        if record & np.uint64(MULTICAST) == 0:
                            cta_bulk[slot, barrier] = max(cta_bulk[slot, barrier], done)
                    elif kind == MBARRIER_WAIT:
                        # One whose address the trace does not say waits for all copies.
                        named = signed(record >> np.uint64(IMMEDIATE_SHIFT)) & (BARRIERS - 1)
                        for barrier in range(BARRIERS):
                            if barrier == named or record & np.uint64(NAMES_BARRIER) == 0:
                                next_ready = max(next_ready, cta_bulk[slot, barrier])
                    elif kind == BAR:
                        status[warp] = PARKED
                        cta_arrived[slot] += 1
                    ended = pc[warp] >= end[warp]
                    if not ended:
                        record = instructions[pc[warp]]
                        kind = signed(record & np.uint64(CLASS_MASK))
                        pipe_of[warp] = _pipe(kind)
                        bound = signed(0)
                        fields = signed(record >> np.uint64(DST_SHIFT))
                        for _ in range(5):
                            register = fields & REGISTER_MASK
                            fields >>= REGISTER_BITS
                            if register != 0 and registers[warp, register] >> 1 > next_ready:
                                next_ready = registers[warp, register] >> 1
                                bound = registers[warp, register] & 1
                        memory_bound[warp] = bound
                        ready[warp] = next_ready
                        if status[warp] == RUNNING:
                            time = max(next_ready, id_free[scheduler, pipe_of[warp]])
                            if time < later:
                                later = time
                                blocked = warp

                wake = False
                if ended:
                    finish = max(done, last_back[warp])
                    status[warp] = IDLE
                    told[WARP_CYCLES] += finish - started[warp]
                    cta_live[slot] -= 1
                    sm_live[sm] -= 1
                    last_end = max(last_end, finish)
                    ready[warp] = finish
                    if cta_live[slot] == 0:
                        # Its place is free when all its warps are through: they may end in any order.
                        freed = finish
                        for offset in range(cta_warps[slot]):
                            freed = max(freed, ready[cta_first[slot] + offset])
                        told[DONE_CTAS] += 1
                        if sm_live[sm] == 0:
                            told[ACTIVE_CYCLES] += freed - sm_since[sm]
                        _vacate(n, run, slot, resident, freed + CTA_TO_CTA)
                    else:
                        wake = True
                if (wake or status[warp] == PARKED) and cta_live[slot] > 0 and cta_arrived[slot] >= cta_live[slot]:
                    # All that live have arrived: they go on.
                    cta_arrived[slot] = 0
                    for offset in range(cta_warps[slot]):
                        other = cta_first[slot] + offset
                        if status[other] != PARKED:
                            continue
                        status[other] = RUNNING
                        ready[other] = max(ready[other], now + BARRIER_RELEASE)
                        home = sm * schedulers + (other - first) % schedulers
                        if home == scheduler:
                            later = min(later, ready[other])
                        else:
                            waiting += _look_at(look, wheel, home, ready[other], now)
                if later != NEVER:
                    if blocked >= 0 and later > now + 1:
                        _tell_stall(told, ready[blocked], memory_bound[blocked], now + 1, later)
                    waiting += _look_at(look, wheel, scheduler, later, now)
                elif parked or status[warp] == PARKED:
                    told[STALL_BARRIER] += 1
        now += 1

    clock[WAITING] = waiting
    clock[NOW] = now
    clock[LAST_END] = last_end
    if why in (PAUSED, NEEDS_CTAS):
        told[CYCLES] = now - base
        return why
    told[CYCLES] = last_end - base + LAST_CYCLES
    live = 0
    at_barrier = 0
    for warp in range(warp_count):
        if status[warp] != IDLE:
            live += 1
            if status[warp] == PARKED:
                at_barrier += 1
    told[LIVE_WARPS] = live
    told[PARKED_WARPS] = at_barrier
    return ENDED if live == 0 and clock[NEXT_CTA] == clock[CTA_TOTAL] else STUCK


BARRIER_RELEASE: Final = 1

# What a warp commits in groups.
COPIES: Final = 0
PRODUCTS: Final = 1


@inner
def _commit(
    group_fill: NDArray[np.int64], group_open: NDArray[np.int64], group_count: NDArray[np.int64], warp: int, what: int
) -> None:
    """Closes the open group."""
    count = group_count[warp, what]
    before = group_fill[warp, what, (count - 1) & (DEPTH - 1)] if count > 0 else 0
    group_fill[warp, what, count & (DEPTH - 1)] = max(before, group_open[warp, what])
    group_count[warp, what] = count + 1
    group_open[warp, what] = 0


@inner
def _committed(group_fill: NDArray[np.int64], group_count: NDArray[np.int64], warp: int, what: int, newest: int) -> int:
    """When all groups but the newest so many are done."""
    count = group_count[warp, what]
    return signed(group_fill[warp, what, (count - newest - 1) & (DEPTH - 1)]) if count > newest else signed(0)


@inner
def _look_at(look: NDArray[np.int64], wheel: NDArray[np.uint64], scheduler: int, time: int, now: int) -> int:
    """Has a scheduler look at its warps at that cycle if not before; 1 if it was not to look at all."""
    time = min(max(time, now + 1), now + WHEEL - 1)
    before = look[scheduler]
    if time >= before:
        return 0
    bit = np.uint64(1) << np.uint64(scheduler & 63)
    if before != NEVER:
        wheel[before & (WHEEL - 1), scheduler >> 6] &= ~bit
    look[scheduler] = time
    wheel[time & (WHEEL - 1), scheduler >> 6] |= bit
    return 1 if before == NEVER else 0


@inner
def _tell_stall(told: NDArray[np.int64], ready: int, memory_bound: int, since: int, until: int) -> None:
    """What the first warp to go on waits for; cycles in which all wait at barriers are not seen from here."""
    if ready <= since:
        told[STALL_PIPE] += until - since
    elif memory_bound:
        told[STALL_MEMORY] += until - since
    else:
        told[STALL_DEPENDENCY] += until - since


@inner
def _pipe(kind: int) -> int:
    if kind < PIPE_COUNT:
        return kind
    if kind in (EXIT, BAR, DEPBAR, GMMA_WAIT, LDGDEPBAR, MBARRIER_WAIT):
        return 0
    return MEMORY_PIPE


@inner
def _read(bank_free: NDArray[np.int64], scheduler: int, bank: int, collected: int) -> int:
    """The half cycle in which a register bank gives an operand."""
    half = max(2 * collected + 2, bank_free[scheduler, bank])
    bank_free[scheduler, bank] = half + 1
    return signed(half)


@inner
def _bit_index(low: np.uint64) -> int:
    index = 0
    bits = low
    if bits >> np.uint64(32) != 0:
        index += 32
        bits >>= np.uint64(32)
    if bits >> np.uint64(16) != 0:
        index += 16
        bits >>= np.uint64(16)
    if bits >> np.uint64(8) != 0:
        index += 8
        bits >>= np.uint64(8)
    if bits >> np.uint64(4) != 0:
        index += 4
        bits >>= np.uint64(4)
    if bits >> np.uint64(2) != 0:
        index += 2
        bits >>= np.uint64(2)
    return index + (1 if bits >> np.uint64(1) != 0 else 0)


assert HAS_ACCESS == 1 << 56 and BYPASSES_L1 == 1 << 57  # noqa: PT018 - the shifts above
assert LOAD < SHARED_LOAD
