"""Instruction lines to records, compiled: the bytes of a trace in, flat arrays out, millions of lines a second.

An instruction is one 64-bit record, laid out by the shifts below. A memory instruction with active lanes also has words
in `memory`, in the warp's order: for shared memory the number of cycles its banks need; for global memory the number of
runs, then each run of neighbouring 32-byte sectors as sector << 8 | count, with bit 7 set where the lanes do not cover
the sectors whole; before them, for a multicast, the mask of CTAs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.simworker.simulators.sass.jit import are_equal, compiled, inner, merged, signed
from services.simworker.simulators.sass.opcodes import (
    BULK_LOAD,
    BULK_STORE,
    COMMITS_GROUP,
    EXIT,
    GENERIC_LOAD,
    GENERIC_STORE,
    GMMA,
    IS_BULK,
    IS_REMOTE,
    LOAD,
    MBARRIER_WAIT,
    REPLAY_BEGIN,
    REPLAY_END,
    SHARED_LOAD,
    SHARED_STORE,
    STORE,
)

# A record: class in bits 0-5, register numbers + 1 of the destination and of up to four sources (0 = none; RZ counts,
# as it does in Accel-Sim), an immediate up to 31, and flags.
CLASS_MASK: Final = 0x3F
DST_SHIFT: Final = 6
REGISTER_BITS: Final = 9
REGISTER_MASK: Final = 0x1FF
SRC_SHIFT: Final = 15
IMMEDIATE_SHIFT: Final = 51
IMMEDIATE_MAX: Final = 31
HAS_ACCESS: Final = 1 << 56
BYPASSES_L1: Final = 1 << 57
COMMITS: Final = 1 << 58
MULTICAST: Final = 1 << 59  # its words begin with the mask of CTAs of the cluster that get the data
DISTRIBUTED: Final = 1 << 60  # another CTA's shared memory
NAMES_BARRIER: Final = 1 << 61  # its immediate is which mbarrier a copy completes, or a wait is for: see BARRIERS
BARRIERS: Final = 32  # told apart within a CTA, by their address: 8 bytes each, and those 256 bytes apart are one

# Why `read_lines` returned.
DONE: Final = 0
NEEDS_OPCODE: Final = 1
NEEDS_SPACE: Final = 2
BAD_PC: Final = 10
BAD_MASK: Final = 11
BAD_COUNT: Final = 12
BAD_REGISTER: Final = 13
BAD_WIDTH: Final = 14
BAD_MODE: Final = 15
BAD_ADDRESS: Final = 16
BAD_STRUCTURE: Final = 17
WARP_TOO_SHORT: Final = 18
WARP_EMPTY: Final = 19
BAD_INSTS: Final = 20
BAD_CLUSTER_MASK: Final = 21

# Slots of `state`.
RECORD_COUNT: Final = 0
MEMORY_COUNT: Final = 1
WARP_COUNT: Final = 2
CTA_COUNT: Final = 3
INSTRUCTIONS_LEFT: Final = 4  # of the open warp
LINE: Final = 5
EXITED_LANES: Final = 6  # of the open warp, as its EXITs' masks say
THREAD_INSTRUCTIONS: Final = 7
IN_CTA: Final = 8
MENDED_LINE: Final = 9  # of the first instruction whose lanes had exited, 0 = none
MENDED_LANES: Final = 10
MENDED_COUNT: Final = 11  # warps
AWAITS_INSTS: Final = 12
AT: Final = 13  # byte that the return is about
TO: Final = 14
WARP_MENDED: Final = 15
GLOBAL_SECTORS: Final = 16
REPLAY: Final = 17  # 1 in a loop that polls, 2 once its wait has been seen
STATE_SIZE: Final = 18

SHARED_APERTURE_BITS: Final = 24  # of a CTA's own window: what lies beyond belongs to others of its cluster

SPARE_RECORDS: Final = 8
BULK_LIMIT: Final = 1 << 20  # bytes of one copy: more than any SM's shared memory
RUN_LIMIT: Final = 124  # sectors of a run: whole lines, in 7 bits
SPARE_MEMORY: Final = 66 + (BULK_LIMIT >> 5) // RUN_LIMIT  # words one line may need: its runs, one per lane or limit

SEEN: Final = 2048  # entries of `Known`
SEEN_BYTES: Final = 64
TAIL_BYTES: Final = 192  # of what follows an address: 31 distances and an immediate mostly
SEEN_WORDS: Final = 36  # of `Records.memory`: a run for each lane, and their number

# Slots of `Known.access`.
HEAD_LENGTH: Final = 0  # bytes before the address's digits; 0 = none
TAIL_LENGTH: Final = 1
MASK: Final = 2
BASE: Final = 3
ALIGNMENT: Final = 4  # bytes by whose multiples the address may move while the words stay, but for where they are
WORDS: Final = 5
SECTORS: Final = 6
ACCESS_SIZE: Final = 8

_NEWLINE: Final = 10
_SPACE: Final = 32
_LOCAL_BYTES: Final = 16384  # Accel-Sim's size of the local window


class Dialect(NamedTuple):
    """What a header says about the lines below it."""

    version: int
    has_line_numbers: int
    shared_base: int
    local_base: int


class Tables(NamedTuple):
    """Open-addressed: the hash of an opcode's text -> what `opcodes.describe` says of it. 0 = free."""

    hashes: NDArray[np.uint64]
    meanings: NDArray[np.int64]


class Known(NamedTuple):
    """Instructions by their PC, as warps repeat each other: those without an address by the line after the mask."""

    length: NDArray[np.int64]  # 0 = none
    record: NDArray[np.uint64]
    text: NDArray[np.uint8]
    # Those with an address and what the lanes' distances to it make of it: another warp's is elsewhere and looks alike.
    access: NDArray[np.int64]
    access_record: NDArray[np.uint64]
    head: NDArray[np.uint8]
    tail: NDArray[np.uint8]
    words: NDArray[np.uint64]


class Records(NamedTuple):
    """Where lines go."""

    instructions: NDArray[np.uint64]
    memory: NDArray[np.uint64]
    warp_start: NDArray[np.int64]  # first instruction
    warp_memory: NDArray[np.int64]  # first word of memory
    warp_index: NDArray[np.int64]  # within its CTA
    cta_warp: NDArray[np.int64]  # first warp
    cta_rank: NDArray[np.int64]  # within its cluster


@merged
def _skip_spaces(text: NDArray[np.uint8], at: int) -> int:
    while text[at] == _SPACE:
        at += 1
    return at


@merged
def _token_end(text: NDArray[np.uint8], at: int) -> int:
    while text[at] > _SPACE:
        at += 1
    return at


@merged
def _hex_digit(byte: int) -> int:
    if byte < 58:
        return byte - 48 if byte >= 48 else -1
    lower = byte | 32
    return lower - 87 if 97 <= lower <= 102 else -1


@merged
def _hex(text: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """Value and end of hex digits; the end is the begin where there is none."""
    value = signed(0)
    while True:
        digit = _hex_digit(signed(text[at]))
        if digit < 0:
            return value, at
        value = (value << 4) | digit
        at += 1


@merged
def _are_all_lanes(text: NDArray[np.uint8], at: int) -> bool:
    """Whether ffffffff and a space begin there: nearly every mask, told without its digits."""
    differs = text[at + 8] ^ np.uint8(_SPACE)
    for place in range(at, at + 8):
        differs |= text[place] ^ np.uint8(102)
    return bool(differs == 0)


@inner
def _address(text: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """Value and end of 0x…; end -1 where it is none."""
    if text[at] != 48 or text[at + 1] | 32 != 120:
        return 0, -1
    begin = at + 2
    value, at = _hex(text, begin)
    if at == begin or at - begin > 16 or text[at] > _SPACE:
        return 0, -1
    return value, at


@inner
def _decimal(text: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """Value and end of a signed number; end -1 where it is none. Longer ones wrap: no field needs more than 63 bits."""
    negative = text[at] == 45
    if negative:
        at += 1
    begin = at
    value = signed(0)
    while 48 <= text[at] <= 57:
        value = value * 10 + (signed(text[at]) - 48)
        at += 1
    if at == begin or text[at] > _SPACE:
        return 0, -1
    return (-value if negative else value), at


@merged
def _lanes(mask: int) -> int:
    """Bits set in 32, added in pairs, fours, and bytes."""
    bits = mask - ((mask >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24) & 0xFF


@inner
def _exit(state: NDArray[np.int64], record: np.uint64, mask: int, exited: int, line: int) -> int:
    """The lanes that have exited after this instruction; lanes that had and go on are mended and told."""
    if mask & exited != 0:
        # NVBit names lanes in the EXIT's mask that go on: they have not exited.
        if state[MENDED_LINE] == 0:
            state[MENDED_LINE] = line
            state[MENDED_LANES] = mask & exited
        if state[WARP_MENDED] == 0:
            state[WARP_MENDED] = 1
            state[MENDED_COUNT] += 1
        exited &= ~mask
    if (record & np.uint64(CLASS_MASK)) == EXIT:
        exited |= mask
    return exited


@compiled
def read_lines(
    text: NDArray[np.uint8],
    at: int,
    end: int,
    dialect: Dialect,
    tables: Tables,
    known: Known,
    out: Records,
    state: NDArray[np.int64],
) -> tuple[int, int]:
    """(why it returned, first byte not read). `text[at:end]` holds whole lines; more follow in the next call."""
    lanes = np.empty(64, np.int64)
    used = np.empty(32, np.int64)
    words = np.empty((32, 32), np.int64)
    seen_length = known.length
    seen_record = known.record
    seen_text = known.text
    access_record = known.access_record
    access = known.access
    records = out.instructions
    memory = out.memory
    n_record = state[RECORD_COUNT]
    n_memory = state[MEMORY_COUNT]
    left = state[INSTRUCTIONS_LEFT]
    line = state[LINE]
    exited = state[EXITED_LANES]
    threads = state[THREAD_INSTRUCTIONS]
    sectors = state[GLOBAL_SECTORS]
    replay = state[REPLAY]
    slots = np.uint64(len(tables.hashes) - 1)
    why = DONE
    begin = at
    while at < end:
        begin = at
        if text[at] == _SPACE:
            at = _skip_spaces(text, at)
        if text[at] == _NEWLINE or (text[at] == 13 and text[at + 1] == _NEWLINE):
            at = _token_end(text, at) + 1 if text[at] == _NEWLINE else at + 2
            line += 1
            continue
        if left == 0:
            # --- structure: one line per thread block or warp
            state[AT] = at
            stop = at
            while text[stop] != _NEWLINE:
                stop += 1
            state[TO] = stop
            first = text[at]
            if first == 119 and text[at + 1] == 97:  # warp = n
                value = at + 4
                while text[value] == _SPACE or text[value] == 61:
                    value += 1
                number, after = _decimal(text, value)
                if after < 0 or state[IN_CTA] == 0 or state[AWAITS_INSTS] == 1:
                    why = BAD_STRUCTURE
                    break
                if state[WARP_COUNT] + 2 >= len(out.warp_start):
                    why = NEEDS_SPACE
                    break
                out.warp_start[state[WARP_COUNT]] = n_record
                out.warp_memory[state[WARP_COUNT]] = n_memory
                out.warp_index[state[WARP_COUNT]] = number
                state[WARP_COUNT] += 1
                state[AWAITS_INSTS] = 1
                state[WARP_MENDED] = 0
                exited = 0
                replay = signed(0)
            elif first == 105 and text[at + 1] == 110:  # insts = n
                value = at + 5
                while text[value] == _SPACE or text[value] == 61:
                    value += 1
                left, after = _decimal(text, value)
                if after < 0 or left < 0 or state[AWAITS_INSTS] == 0:
                    left = 0
                    why = BAD_INSTS
                    break
                if left == 0 and dialect.version < 6:
                    why = WARP_EMPTY
                    break
                state[AWAITS_INSTS] = 0
            elif first == 35 and text[at + 1] == 66:  # #BEGIN_TB
                if state[IN_CTA] == 1:
                    why = BAD_STRUCTURE
                    break
                if state[CTA_COUNT] + 2 >= len(out.cta_warp):
                    why = NEEDS_SPACE
                    break
                out.cta_warp[state[CTA_COUNT]] = state[WARP_COUNT]
                out.cta_rank[state[CTA_COUNT]] = 0
                state[CTA_COUNT] += 1
                state[IN_CTA] = 1
            elif first == 35 and text[at + 1] == 69:  # #END_TB
                if state[IN_CTA] == 0 or state[AWAITS_INSTS] == 1:
                    why = BAD_STRUCTURE
                    break
                state[IN_CTA] = 0
            elif first == 99 and stop - at > 14 and text[at + 8] == 114:  # cluster rank = n
                value = at + 12
                while text[value] == _SPACE or text[value] == 61:
                    value += 1
                number, after = _decimal(text, value)
                if after < 0 or number < 0 or state[IN_CTA] == 0:
                    why = BAD_STRUCTURE
                    break
                out.cta_rank[state[CTA_COUNT] - 1] = number
            elif (first == 116 and text[at + 1] == 104) or (first == 99 and text[at + 1] == 108):
                pass  # thread block = x,y,z · cluster …: CTAs are issued in the file's order whatever their names
            else:
                why = BAD_STRUCTURE
                break
            at = stop + 1
            line += 1
            continue

        # --- an instruction: [line] PC mask nd regs OPCODE ns regs [commit] width [mode addresses] imm …
        if n_record + SPARE_RECORDS > len(records) or n_memory + SPARE_MEMORY > len(memory):
            why = NEEDS_SPACE
            break
        state[AT] = at
        if dialect.has_line_numbers != 0:
            at = _skip_spaces(text, _token_end(text, at))
        if _hex_digit(signed(text[at])) < 0:
            why = WARP_TOO_SHORT
            state[TO] = _token_end(text, at)
            break
        pc, at = _hex(text, at)
        if text[at] != _SPACE:
            why = BAD_PC
            state[TO] = _token_end(text, at)
            break
        at = _skip_spaces(text, at)
        state[AT] = at
        if at + 9 < end and _are_all_lanes(text, at):
            mask = signed(0xFFFFFFFF)
            active = signed(32)
            at += 8
        else:
            mask_at = at
            mask, at = _hex(text, at)
            if at == mask_at or at - mask_at > 8 or text[at] != _SPACE:
                why = BAD_MASK
                state[TO] = _token_end(text, at)
                break
            active = _lanes(mask)
        at = _skip_spaces(text, at)
        # --- the same instruction, seen before: only its mask may differ
        seen = (pc >> 4) & (SEEN - 1)
        length = seen_length[seen]
        if length > 0 and at + length <= end and are_equal(text, at, seen_text, seen, length):
            record = seen_record[seen]
            if mask & exited != 0 or (record & np.uint64(CLASS_MASK)) == EXIT:
                exited = _exit(state, record, mask, exited, line)
            threads += active
            if replay == 0:
                records[n_record] = record
                n_record += 1
            elif replay == 1 and (record & np.uint64(CLASS_MASK)) == MBARRIER_WAIT:
                records[n_record] = record
                n_record += 1
                replay = signed(2)
            left -= 1
            at += length
            line += 1
            continue
        # --- the same access, seen before: only its address may differ, by whole sectors
        length = access[seen, HEAD_LENGTH]
        if (
            length > 0
            and mask == access[seen, MASK]
            and replay == 0
            and at + length + 17 + TAIL_BYTES <= end
            and are_equal(text, at, known.head, seen, length)
        ):
            base, stop = _hex(text, at + length)
            tail_length = access[seen, TAIL_LENGTH]
            moved = base - access[seen, BASE]
            if (
                moved & (access[seen, ALIGNMENT] - 1) == 0
                and 0 < stop - at - length <= 16
                and are_equal(text, stop, known.tail, seen, tail_length)
            ):
                record = access_record[seen]
                if mask & exited != 0:
                    exited = _exit(state, record, mask, exited, line)
                threads += active
                records[n_record] = record
                n_record += 1
                count = access[seen, WORDS]
                memory[n_memory] = known.words[seen, 0]
                by = np.uint64((moved >> 5) << 8)
                for word in range(1, count):
                    memory[n_memory + word] = known.words[seen, word] + by
                n_memory += count
                sectors += access[seen, SECTORS]
                left -= 1
                at = stop + tail_length
                line += 1
                continue
        tail_at = at
        state[AT] = at
        base_at = signed(0)  # of the only address
        base_end = signed(0)
        first_base = signed(0)
        sectors_before = sectors
        count, at = _decimal(text, at)
        if at < 0 or count < 0 or count > 1:
            why = BAD_COUNT
            break
        record = np.uint64(0)
        bad = False
        for _ in range(count):
            at = _skip_spaces(text, at)
            state[AT] = at
            number = 0
            if text[at] == 82:  # R; uniform and predicate registers are no hazard to Accel-Sim
                number, at = _decimal(text, at + 1)
                if at < 0 or number < 0 or number > 255:
                    bad = True
                    break
                number += 1
            elif text[at] == 85 or text[at] == 80:
                at = _token_end(text, at)
            else:
                bad = True
                break
            record |= np.uint64(number) << np.uint64(DST_SHIFT)
        if bad:
            why = BAD_REGISTER
            break
        at = _skip_spaces(text, at)
        opcode_at = at
        hashed = np.uint64(14695981039346656037)
        while text[at] > _SPACE:
            hashed = (hashed ^ np.uint64(text[at])) * np.uint64(1099511628211)
            at += 1
        slot = (hashed >> np.uint64(20)) & slots
        while tables.hashes[slot] != hashed and tables.hashes[slot] != 0:
            slot = (slot + np.uint64(1)) & slots
        if tables.hashes[slot] == 0:
            why = NEEDS_OPCODE
            state[AT] = opcode_at
            state[TO] = at
            break
        meaning = tables.meanings[slot]
        kind = meaning & 0xFF
        width = (meaning >> 8) & 0xFF
        flags = meaning >> 16
        at = _skip_spaces(text, at)
        state[AT] = at
        count, at = _decimal(text, at)
        if at < 0 or count < 0 or count > 5:
            why = BAD_COUNT
            break
        for source in range(count):
            at = _skip_spaces(text, at)
            state[AT] = at
            number = 0
            if text[at] == 82:
                number, at = _decimal(text, at + 1)
                if at < 0 or number < 0 or number > 255:
                    bad = True
                    break
                number += 1
            elif text[at] == 85 or text[at] == 80:
                at = _token_end(text, at)
            else:
                bad = True
                break
            if source < 4:
                record |= np.uint64(number) << np.uint64(SRC_SHIFT + source * REGISTER_BITS)
        if bad:
            why = BAD_REGISTER
            break
        at = _skip_spaces(text, at)
        if flags & COMMITS_GROUP and dialect.version >= 6:
            state[AT] = at
            commit, at = _decimal(text, at)
            if at < 0:
                why = BAD_WIDTH
                break
            if commit == 1:
                record |= np.uint64(COMMITS)
            at = _skip_spaces(text, at)
        state[AT] = at
        memory_before = n_memory
        accessed, at = _decimal(text, at)
        if at < 0 or accessed < 0:
            why = BAD_WIDTH
            break
        if flags & BYPASS_FLAG:
            record |= np.uint64(BYPASSES_L1)
        barrier = signed(-1)
        if accessed > 0:
            step = 1
            if flags & IS_BULK and dialect.version >= 6:
                # width mbarrier multicast [cta mask] bytes out-of-bounds-bytes mode …
                at = _skip_spaces(text, at)
                number, after = _address(text, at)
                if after >= 0 and kind == BULK_LOAD:
                    barrier = signed(number)
                at = _skip_spaces(text, _token_end(text, at))
                state[AT] = at
                multicast, at = _decimal(text, at)
                if at < 0:
                    why = BAD_MODE
                    break
                at = _skip_spaces(text, at)
                if multicast == 1:
                    state[AT] = at
                    if text[at] == 48 and text[at + 1] | 32 == 120:
                        at += 2
                    mask_at = at
                    receivers, at = _hex(text, at)
                    if at == mask_at or at - mask_at > 4 or text[at] != _SPACE:
                        why = BAD_CLUSTER_MASK
                        break
                    record |= np.uint64(MULTICAST)
                    memory[n_memory] = np.uint64(receivers)
                    n_memory += 1
                    at = _skip_spaces(text, at)
                state[AT] = at
                step, at = _decimal(text, at)
                if at < 0 or step < 0 or step > BULK_LIMIT:
                    why = BAD_WIDTH
                    break
                at = _skip_spaces(text, at)
                at = _token_end(text, at)
            at = _skip_spaces(text, at)
            state[AT] = at
            mode, at = _decimal(text, at)
            if at < 0 or mode < 0 or mode > 4:
                why = BAD_MODE
                break
            n_lane = active
            is_run = False
            stride = signed(0)
            base = signed(0)
            at = _skip_spaces(text, at)
            if mode >= 3:
                state[AT] = at
                n_lane, at = _decimal(text, at) if mode == 3 else (0, at)
                if at < 0 or n_lane < 0 or n_lane > 64:
                    why = BAD_COUNT
                    break
            if mode in (0, 3):
                for lane in range(n_lane):
                    at = _skip_spaces(text, at)
                    state[AT] = at
                    base, at = _address(text, at)
                    if at < 0:
                        bad = True
                        break
                    lanes[lane] = base
            else:
                at = _skip_spaces(text, at)
                state[AT] = at
                base_at = at + 2
                base, at = _address(text, at)
                if at < 0:
                    why = BAD_ADDRESS
                    break
                base_end = at
                first_base = base
                if mode == 4:
                    at = _skip_spaces(text, at)
                    state[AT] = at
                    n_lane, at = _decimal(text, at)
                    if at < 0 or n_lane < 0 or n_lane > 64:
                        why = BAD_COUNT
                        break
                if mode == 1:
                    at = _skip_spaces(text, at)
                    state[AT] = at
                    stride, at = _decimal(text, at)
                    if at < 0:
                        why = BAD_ADDRESS
                        break
                    # The addresses are those of the first run of active lanes; after a hole Accel-Sim has zeros, which
                    # no kernel means. They are left out.
                    n_lane = 32
                    if mask != 0xFFFFFFFF:
                        bits = mask
                        while bits != 0 and bits & 1 == 0:
                            bits >>= 1
                        n_lane = 0
                        while bits & 1:
                            bits >>= 1
                            n_lane += 1
                    is_run = 0 <= stride <= 32
                    if not is_run:
                        for lane in range(n_lane):
                            lanes[lane] = base + lane * stride
                else:
                    lanes[0] = base
                    for lane in range(1, n_lane):
                        at = _skip_spaces(text, at)
                        state[AT] = at
                        stride, at = _decimal(text, at)
                        if at < 0:
                            bad = True
                            break
                        base += stride
                        lanes[lane] = base
            if bad:
                why = BAD_ADDRESS
                break
            if n_lane > 0:
                if kind in (GENERIC_LOAD, GENERIC_STORE):
                    where = base
                    shared = (dialect.shared_base == 0 or dialect.local_base == 0) or (
                        dialect.shared_base <= where < dialect.local_base
                    )
                    if shared and (where - dialect.shared_base) >> SHARED_APERTURE_BITS > 0 and dialect.version >= 6:
                        record |= np.uint64(DISTRIBUTED)
                    if kind == GENERIC_LOAD:
                        kind = SHARED_LOAD if shared else LOAD
                    else:
                        kind = SHARED_STORE if shared else STORE
                record |= np.uint64(HAS_ACCESS)
                if kind in (SHARED_LOAD, SHARED_STORE):
                    if is_run:
                        for lane in range(n_lane):
                            lanes[lane] = base + lane * stride
                    memory[n_memory] = np.uint64(_bank_cycles(lanes, n_lane, used, words))
                    n_memory += 1
                elif is_run:
                    count = ((base + (n_lane - 1) * stride + width - 1) >> 5) - (base >> 5) + 1
                    n_memory += _run_with_ends(base, n_lane, stride, width, memory, n_memory)
                    sectors += count
                else:
                    touched = step // max(n_lane, 1) if flags & IS_BULK else width
                    runs, count = _runs(lanes, n_lane, touched, memory, n_memory)
                    n_memory += runs + 1
                    sectors += count
            if kind == MBARRIER_WAIT and n_lane > 0:
                barrier = base
            if n_lane == 0 or kind < LOAD or kind == MBARRIER_WAIT:
                # Nothing of it reaches memory: it has no words.
                n_memory = memory_before
                record &= ~np.uint64(HAS_ACCESS | MULTICAST)
            elif flags & IS_REMOTE:
                record |= np.uint64(DISTRIBUTED)
        elif kind == GENERIC_LOAD:
            kind = LOAD
        elif kind == GENERIC_STORE:
            kind = STORE
        at = _skip_spaces(text, at)
        immediate = signed(0)
        if text[at] != _NEWLINE:
            state[AT] = at
            immediate, after = _decimal(text, at)
            if after < 0:
                # An unsigned immediate in hex, or anything else that no field of ours needs.
                immediate = 0
            if immediate > IMMEDIATE_MAX or immediate < 0:
                immediate = signed(IMMEDIATE_MAX)
            while text[at] != _NEWLINE:
                at += 1
        if kind == GMMA:
            immediate = width - 1  # eighths of its columns but one
        if barrier >= 0:
            record |= np.uint64(NAMES_BARRIER)
            immediate = (barrier >> 3) & (BARRIERS - 1)
        record |= np.uint64(immediate) << np.uint64(IMMEDIATE_SHIFT)
        record |= np.uint64(kind)
        if mask & exited != 0 or kind == EXIT:
            exited = _exit(state, record, mask, exited, line)
        length = at + 1 - tail_at
        if accessed == 0 and length <= SEEN_BYTES and kind not in (REPLAY_BEGIN, REPLAY_END):
            seen_length[seen] = length
            seen_record[seen] = record
            for place in range(length):
                seen_text[seen, place] = text[tail_at + place]
        count = n_memory - memory_before
        if (
            base_end > 0
            and count in range(1, SEEN_WORDS + 1)
            and base_at - tail_at <= SEEN_BYTES
            and at + 1 - base_end <= TAIL_BYTES
            and kind == meaning & 0xFF
            and kind != MBARRIER_WAIT
            and not flags & IS_BULK
        ):
            access[seen, HEAD_LENGTH] = base_at - tail_at
            access[seen, TAIL_LENGTH] = at + 1 - base_end
            access[seen, MASK] = mask
            access[seen, BASE] = first_base
            access[seen, ALIGNMENT] = 4 if kind in (SHARED_LOAD, SHARED_STORE) else 32
            access[seen, WORDS] = count
            access[seen, SECTORS] = sectors - sectors_before
            access_record[seen] = record
            for place in range(base_at - tail_at):
                known.head[seen, place] = text[tail_at + place]
            for place in range(at + 1 - base_end):
                known.tail[seen, place] = text[base_end + place]
            for word in range(count):
                known.words[seen, word] = memory[memory_before + word]
        threads += active
        if kind == REPLAY_BEGIN:
            replay = signed(1)
        elif kind == REPLAY_END:
            replay = signed(0)
        elif replay == 0 or (replay == 1 and kind == MBARRIER_WAIT):
            # Of a loop that polls only the first wait is left: it holds the warp up as long as all polls did.
            records[n_record] = record
            n_record += 1
            if replay == 1:
                replay = signed(2)
        else:
            n_memory = memory_before
        left -= 1
        at += 1
        line += 1
    state[RECORD_COUNT] = n_record
    state[MEMORY_COUNT] = n_memory
    state[INSTRUCTIONS_LEFT] = left
    state[LINE] = line
    state[EXITED_LANES] = exited
    state[THREAD_INSTRUCTIONS] = threads
    state[GLOBAL_SECTORS] = sectors
    state[REPLAY] = replay
    if why in (NEEDS_OPCODE, NEEDS_SPACE):
        return why, begin
    return why, at


BYPASS_FLAG: Final = 1
assert BULK_LOAD < BULK_STORE < MBARRIER_WAIT


@inner
def _bank_cycles(lanes: NDArray[np.int64], count: int, used: NDArray[np.int64], words: NDArray[np.int64]) -> int:
    """Cycles of shared memory: the most different 4-byte words that one of 32 banks must give."""
    worst = 1
    for bank in range(32):
        used[bank] = 0
    for lane in range(min(count, 32)):
        word = lanes[lane] >> 2
        bank = word & 31
        n = used[bank]
        known = False
        for other in range(n):
            if words[bank, other] == word:
                known = True
                break
        if not known:
            words[bank, n] = word
            used[bank] = n + 1
            worst = max(worst, n + 1)
    return worst


PARTIAL: Final = 0x80


@inner
def _run_with_ends(base: int, count: int, stride: int, width: int, memory: NDArray[np.uint64], at: int) -> int:
    """Words written for lanes a small stride apart: between the ends, sectors are whole if the lanes leave no gap."""
    end = base + (count - 1) * stride + width  # first byte after
    first = base >> 5
    last = (end - 1) >> 5
    if stride > width or last == first:
        whole = stride <= width and base & 31 == 0 and end & 31 == 0
        memory[at] = np.uint64(1)
        memory[at + 1] = np.uint64((first << 8) | (0 if whole else PARTIAL) | (last - first + 1))
        return 2
    runs = 0
    if base & 31:
        runs += 1
        memory[at + runs] = np.uint64((first << 8) | PARTIAL | 1)
        first += 1
    tail = 1 if end & 31 else 0
    if last - tail >= first:
        runs += 1
        memory[at + runs] = np.uint64((first << 8) | (last - tail - first + 1))
    if tail:
        runs += 1
        memory[at + runs] = np.uint64((last << 8) | PARTIAL | 1)
    memory[at] = np.uint64(runs)
    return runs + 1


@inner
def _runs(lanes: NDArray[np.int64], count: int, width: int, memory: NDArray[np.uint64], at: int) -> tuple[int, int]:
    """(runs, sectors) written to memory[at:]: the different 32-byte sectors, ascending."""
    # Lanes mostly ascend already, so insertion from the end is nearly free.
    for lane in range(1, count):
        value = lanes[lane]
        place = lane
        while place > 0 and lanes[place - 1] > value:
            lanes[place] = lanes[place - 1]
            place -= 1
        lanes[place] = value
    size = max(width, 1)
    runs = 0
    sectors = 0
    begin = lanes[0]  # of the bytes of the open run
    end = begin + size
    covered = True
    for lane in range(1, count + 1):
        value = lanes[lane] if lane < count else signed(1) << 62
        if value <= end or (value >> 5) <= ((end - 1) >> 5) + 1:
            covered = covered and value <= end
            end = max(end, value + size)
            continue
        whole = covered and begin & 31 == 0 and end & 31 == 0
        first = begin >> 5
        length = ((end - 1) >> 5) - first + 1
        sectors += length
        while length > RUN_LIMIT:
            runs += 1
            memory[at + runs] = np.uint64((first << 8) | (0 if whole else PARTIAL) | RUN_LIMIT)
            first += RUN_LIMIT
            length -= RUN_LIMIT
        runs += 1
        memory[at + runs] = np.uint64((first << 8) | (0 if whole else PARTIAL) | length)
        begin = value
        end = value + size
        covered = True
    memory[at] = np.uint64(runs)
    return runs, sectors
