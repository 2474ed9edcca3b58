"""A kernel's trace file as arrays, read in one pass with a bounded buffer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.kernels.sass_traces.containers import open_kernel
from services.kernels.sass_traces.header import KernelHeader, read_header
from services.kernels.sass_traces.kernelslist import BadTrace
from services.simworker.simulators.sass import lines
from services.simworker.simulators.sass.opcodes import UnknownOpcode, describe

_SLOTS = 4096  # of the opcode table; an architecture has some hundred spellings


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """One launch: see `lines.Records` for the arrays, which are cut to what is used; starts have one entry more."""

    file: str
    header: KernelHeader
    instructions: NDArray[np.uint64]
    memory: NDArray[np.uint64]
    warp_start: NDArray[np.int64]
    warp_memory: NDArray[np.int64]
    warp_index: NDArray[np.int64]
    cta_warp: NDArray[np.int64]
    thread_instructions: int
    line_count: int
    exit_mask: str  # why Accel-Sim 1.x deadlocks on this file, "" where it does not; the masks are mended here
    warnings: tuple[str, ...]

    @property
    def cta_count(self) -> int:
        return len(self.cta_warp) - 1


class _Vocabulary:
    """The opcodes met so far of one architecture: kernels of one job share them, and learning one takes a call."""

    def __init__(self) -> None:
        self.tables = lines.Tables(np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.int64))
        self.count = 0
        self.lock = threading.Lock()


_VOCABULARIES: dict[int, _Vocabulary] = {}


def _vocabulary(binary_version: int) -> _Vocabulary:
    found = _VOCABULARIES.get(binary_version)
    if found is None or found.count >= _SLOTS // 4:  # a stranger's file filled it: the next one begins afresh
        found = _VOCABULARIES[binary_version] = _Vocabulary()
    return found


def read_kernel(path: Path) -> KernelTrace:
    header, header_lines, blocks = open_kernel(path)
    return _read(path.name, header, header_lines, blocks)


def read_text(text: str) -> KernelTrace:
    """A trace that is in memory already, header and all."""
    raw = text.encode()
    lines_ = raw.splitlines(keepends=True)
    header, header_lines = read_header(lines_, "text")
    # The first '#' line ends the header; where it begins a thread block, it counts as that too.
    skipped = header_lines - 1 if lines_[header_lines - 1].startswith(b"#BEGIN") else header_lines
    return _read("text", header, skipped, iter([b"".join(lines_[skipped:])]))


class _Arrays:
    """Records that grow by doubling; what is in them stays where it was."""

    def __init__(self, cta_count: int) -> None:
        self.instructions = np.empty(1 << 16, np.uint64)
        self.memory = np.empty(1 << 15, np.uint64)
        self.warp_start = np.empty(1 << 10, np.int64)
        self.warp_memory = np.empty(1 << 10, np.int64)
        self.warp_index = np.empty(1 << 10, np.int64)
        self.cta_warp = np.empty(min(cta_count, 1 << 20) + 8, np.int64)

    def records(self) -> lines.Records:
        return lines.Records(
            self.instructions, self.memory, self.warp_start, self.warp_memory, self.warp_index, self.cta_warp
        )

    def grow(self, state: NDArray[np.int64]) -> None:
        if state[lines.RECORD_COUNT] + lines.SPARE_RECORDS > len(self.instructions):
            self.instructions = _doubled(self.instructions)
        if state[lines.MEMORY_COUNT] + lines.SPARE_MEMORY > len(self.memory):
            self.memory = _doubled(self.memory)
        if state[lines.WARP_COUNT] + 2 >= len(self.warp_start):
            self.warp_start = _doubled(self.warp_start)
            self.warp_memory = _doubled(self.warp_memory)
            self.warp_index = _doubled(self.warp_index)
        if state[lines.CTA_COUNT] + 2 >= len(self.cta_warp):
            self.cta_warp = _doubled(self.cta_warp)


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    larger = np.empty(len(array) * 2, array.dtype)
    larger[: len(array)] = array
    return larger


def _read(file: str, header: KernelHeader, header_lines: int, blocks: Iterator[bytes]) -> KernelTrace:
    dialect = lines.Dialect(header.tracer_version, int(header.has_line_numbers), header.shared_base, header.local_base)
    vocabulary = _vocabulary(header.binary_version)
    known = lines.Known(
        np.zeros(lines.SEEN, np.int64),
        np.empty(lines.SEEN, np.uint64),
        np.empty((lines.SEEN, lines.SEEN_BYTES), np.uint8),
    )
    arrays = _Arrays(header.cta_count)
    state = np.zeros(lines.STATE_SIZE, np.int64)
    state[lines.LINE] = header_lines + 1
    rest = b""
    for block in blocks:
        # Only whole lines are parsed; the cut one waits for its other half.
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            rest += block
            if len(rest) > 1 << 26:
                raise BadTrace(f"{file}, line {state[lines.LINE]}: a line of more than 64 MiB is no trace's")
            continue
        text = rest + block[:cut] if rest else block
        end = len(rest) + cut if rest else cut
        rest = block[cut:]
        _parse(file, header, text, end, dialect, vocabulary, known, arrays, state)
    if rest.strip():
        raise BadTrace(
            f"{file}, line {state[lines.LINE]}: the file ends within {_shown(rest)} without a newline, so it was cut"
        )
    _check_whole(file, header, state)
    n_record, n_memory = int(state[lines.RECORD_COUNT]), int(state[lines.MEMORY_COUNT])
    n_warp, n_cta = int(state[lines.WARP_COUNT]), int(state[lines.CTA_COUNT])
    arrays.warp_start[n_warp] = n_record
    arrays.warp_memory[n_warp] = n_memory
    arrays.cta_warp[n_cta] = n_warp
    return KernelTrace(
        file=file,
        header=header,
        instructions=arrays.instructions[:n_record],
        memory=arrays.memory[:n_memory],
        warp_start=arrays.warp_start[: n_warp + 1],
        warp_memory=arrays.warp_memory[: n_warp + 1],
        warp_index=arrays.warp_index[:n_warp],
        cta_warp=arrays.cta_warp[: n_cta + 1],
        thread_instructions=int(state[lines.THREAD_INSTRUCTIONS]),
        line_count=int(state[lines.LINE]) - 1,
        exit_mask=_exit_mask(file, state),
        warnings=_warnings(header),
    )


def _parse(
    file: str,
    header: KernelHeader,
    text: bytes,
    end: int,
    dialect: lines.Dialect,
    vocabulary: _Vocabulary,
    known: lines.Known,
    arrays: _Arrays,
    state: NDArray[np.int64],
) -> None:
    view = np.frombuffer(text, np.uint8)
    at = 0
    while True:
        why, at = lines.read_lines(view, at, end, dialect, vocabulary.tables, known, arrays.records(), state)
        if why == lines.DONE:
            return
        if why == lines.NEEDS_SPACE:
            arrays.grow(state)
            continue
        value = text[int(state[lines.AT]) : int(state[lines.TO])]
        if why == lines.NEEDS_OPCODE:
            _learn(file, header, value.decode("utf-8", "replace"), vocabulary, int(state[lines.LINE]))
            continue
        raise BadTrace(f"{file}, line {state[lines.LINE]}: {_reason(why, text, state)}")


def _learn(file: str, header: KernelHeader, opcode: str, vocabulary: _Vocabulary, line: int) -> None:
    try:
        meaning = describe(opcode, header.binary_version)
    except UnknownOpcode as error:
        raise BadTrace(f"{file}, line {line}: {error}") from error
    hashed = 14695981039346656037
    for byte in opcode.encode():
        hashed = ((hashed ^ byte) * 1099511628211) % 2**64
    tables = vocabulary.tables
    with vocabulary.lock:
        if vocabulary.count >= _SLOTS // 2:
            raise BadTrace(
                f"{file}, line {line}: has more than {_SLOTS // 2} different opcodes, which no architecture has"
            )
        slot = (hashed >> 20) % _SLOTS
        while tables.hashes[slot] not in {0, hashed}:
            slot = (slot + 1) % _SLOTS
        vocabulary.count += int(tables.hashes[slot] == 0)
        tables.meanings[slot] = meaning  # first: who reads at the same time finds an opcode by its hash
        tables.hashes[slot] = hashed


def _shown(text: bytes) -> str:
    shown = text.strip()[:60].decode("utf-8", "replace")
    return repr(shown)


def _reason(why: int, text: bytes, state: NDArray[np.int64]) -> str:
    at = int(state[lines.AT])
    begin = text.rfind(b"\n", 0, at) + 1
    end = text.find(b"\n", at)
    line = text[begin:end]
    word = _shown(text[at:end].split(maxsplit=1)[0] if text[at:end].strip() else b"")
    reasons = {
        lines.BAD_PC: f"{word} is no program counter",
        lines.BAD_MASK: f"{word} is no mask of 32 lanes",
        lines.BAD_COUNT: f"{word} is no count that an instruction can have",
        lines.BAD_REGISTER: f"{word} is no register",
        lines.BAD_WIDTH: f"{word} is no number of bytes",
        lines.BAD_MODE: f"{word} is no address mode from 0 to 4",
        lines.BAD_ADDRESS: f"{word} is no address where one must follow",
        lines.BAD_STRUCTURE: f"{_shown(line)} stands where a thread block or a warp must begin or end",
        lines.BAD_INSTS: f"{_shown(line)} is no number of instructions of an open warp",
        lines.WARP_EMPTY: f"warp {state[lines.WARP_COUNT] - 1} has no instruction, which Accel-Sim 1.x does not accept",
        lines.WARP_TOO_SHORT: f"{_shown(line)} stands where {state[lines.INSTRUCTIONS_LEFT]} more instructions of the "
        "warp were announced",
    }
    return reasons[why]


def _check_whole(file: str, header: KernelHeader, state: NDArray[np.int64]) -> None:
    line = state[lines.LINE] - 1
    if state[lines.INSTRUCTIONS_LEFT]:
        raise BadTrace(
            f"{file}, line {line}: the file ends where {state[lines.INSTRUCTIONS_LEFT]} more instructions of the warp "
            "were announced, so it was cut"
        )
    if state[lines.IN_CTA]:
        raise BadTrace(f"{file}, line {line}: the file ends without #END_TB, so it was cut")
    found = int(state[lines.CTA_COUNT])
    if found != header.cta_count:
        grid = "x".join(map(str, header.grid))
        raise BadTrace(f"{file}: has {found} thread blocks where its grid {grid} has {header.cta_count}")


def _exit_mask(file: str, state: NDArray[np.int64]) -> str:
    if not state[lines.MENDED_LINE]:
        return ""
    lanes = int(state[lines.MENDED_LANES])
    shown = ", ".join(str(lane) for lane in range(32) if lanes >> lane & 1)
    return (
        f"{file}, line {state[lines.MENDED_LINE]}: lanes {shown} go on after an EXIT whose mask named them "
        f"({state[lines.MENDED_COUNT]} warps of the kernel have such masks), so that Accel-Sim 1.x deadlocks here"
    )


def _warnings(header: KernelHeader) -> tuple[str, ...]:
    if header.binary_version >= 90:
        return ("Hopper instructions (WGMMA, TMA, mbarrier, clusters) are not validated against any real trace",)
    if header.binary_version in {87, 89}:
        return (f"binary version {header.binary_version} is executed as its sibling 86, which Accel-Sim refuses",)
    return ()
