"""A kernel's trace file as arrays, read in one pass with a bounded buffer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.kernels.sass_traces.containers import WantedOf, open_kernel, open_part
from services.kernels.sass_traces.header import KernelHeader, read_header
from services.kernels.sass_traces.kernelslist import BadTrace
from services.simworker.simulators.sass import lines
from services.simworker.simulators.sass.opcodes import UnknownOpcode, describe
from services.simworker.simulators.sass.state import Code

RECORD_BYTES_LIMIT = 128 << 20
"""Of a kernel's records in memory; what is done of a larger one is let go, but for the warps that still run."""

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
    cta_rank: NDArray[np.int64]
    thread_instructions: int
    line_count: int
    exit_mask: str  # why Accel-Sim 1.x deadlocks on this file, "" where it does not; the masks are mended here
    warnings: tuple[str, ...]

    @property
    def cta_count(self) -> int:
        return len(self.cta_warp) - 1

    def only(self, ctas: NDArray[np.int64]) -> KernelTrace:
        """The kernel with some of its thread blocks, in the same order; its header stays as it is."""
        warps = _ranges(self.cta_warp[ctas], self.cta_warp[ctas + 1])
        return replace(
            self,
            instructions=self.instructions[_ranges(self.warp_start[warps], self.warp_start[warps + 1])],
            memory=self.memory[_ranges(self.warp_memory[warps], self.warp_memory[warps + 1])],
            warp_start=_starts(self.warp_start[warps + 1] - self.warp_start[warps]),
            warp_memory=_starts(self.warp_memory[warps + 1] - self.warp_memory[warps]),
            warp_index=self.warp_index[warps],
            cta_warp=_starts(self.cta_warp[ctas + 1] - self.cta_warp[ctas]),
            cta_rank=self.cta_rank[ctas],
        )

    @property
    def code(self) -> Code:
        return Code(self.instructions, self.memory, self.warp_start, self.warp_memory, self.cta_warp, self.cta_rank)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _ranges(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin, begin + 1, … of each range, one after the other."""
    lengths = ends - begins
    return np.repeat(begins - _starts(lengths)[:-1], lengths) + np.arange(int(lengths.sum()))


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
    """A whole kernel. Raises BadTrace."""
    reader = open_reader(path)
    reader.read()
    return reader.trace()


def open_reader(path: Path) -> KernelReader:
    """Only the header has been read. Raises BadTrace."""
    return KernelReader(path.name, *open_kernel(path))


def read_part(path: Path, wanted_of: WantedOf, check: Callable[[], None] | None = None) -> KernelTrace | None:
    """Some thread blocks of a kernel, as `KernelTrace.only` has them, where the file allows not to read the others.

    None where it does not, or where all are wanted. Raises BadTrace.
    """
    wanted: Sequence[bool] = ()

    def noted(header: KernelHeader) -> Sequence[bool] | None:
        nonlocal wanted
        wanted = wanted_of(header) or ()
        return wanted or None

    opened = open_part(path, noted)
    if opened is None:
        return None
    reader = KernelReader(path.name, *opened, cta_count=sum(wanted))
    reader.read(check=check)
    return reader.trace()


def read_text(text: str) -> KernelTrace:
    """A trace that is in memory already, header and all."""
    raw = text.encode()
    lines_ = raw.splitlines(keepends=True)
    header, header_lines = read_header(lines_, "text")
    # The first '#' line ends the header; where it begins a thread block, it counts as that too.
    skipped = header_lines - 1 if lines_[header_lines - 1].startswith(b"#BEGIN") else header_lines
    reader = KernelReader("text", header, skipped, iter([b"".join(lines_[skipped:])]))
    reader.read()
    return reader.trace()


class _Arrays:
    """Records that grow by doubling; what is in them stays where it was."""

    def __init__(self, cta_count: int) -> None:
        self.instructions = np.empty(1 << 16, np.uint64)
        self.memory = np.empty(1 << 15, np.uint64)
        self.warp_start = np.empty(1 << 10, np.int64)
        self.warp_memory = np.empty(1 << 10, np.int64)
        self.warp_index = np.empty(1 << 10, np.int64)
        self.cta_warp = np.empty(min(cta_count, 1 << 20) + 8, np.int64)
        self.cta_rank = np.empty(min(cta_count, 1 << 20) + 8, np.int64)

    def records(self) -> lines.Records:
        return lines.Records(
            self.instructions,
            self.memory,
            self.warp_start,
            self.warp_memory,
            self.warp_index,
            self.cta_warp,
            self.cta_rank,
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
            self.cta_rank = _doubled(self.cta_rank)


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    larger = np.empty(len(array) * 2, array.dtype)
    larger[: len(array)] = array
    return larger


Span = tuple[int, int, int, int]
"""What is left of a warp: its first record and the one after its last, its first word of memory and the one after."""


class KernelReader:
    """A kernel's file, read in its order and only as far as was asked: who simulates it may let go of what is done."""

    def __init__(
        self,
        file: str,
        header: KernelHeader,
        header_lines: int,
        blocks: Iterator[bytes],
        cta_count: int | None = None,
    ) -> None:
        """`cta_count`: thread blocks that the blocks have, where these are not all."""
        self.file = file
        self._expected_ctas = header.cta_count if cta_count is None else cta_count
        self.header = header
        self.first_cta = 0  # of those whose records are here; the ones before it were let go
        self.is_complete = False
        self._blocks = blocks
        self._dialect = lines.Dialect(
            header.tracer_version, int(header.has_line_numbers), header.shared_base, header.local_base
        )
        self._vocabulary = _vocabulary(header.binary_version)
        self._known = lines.Known(
            np.zeros(lines.SEEN, np.int64),
            np.empty(lines.SEEN, np.uint64),
            np.empty((lines.SEEN, lines.SEEN_BYTES), np.uint8),
            np.zeros((lines.SEEN, lines.ACCESS_SIZE), np.int64),
            np.empty(lines.SEEN, np.uint64),
            np.empty((lines.SEEN, lines.SEEN_BYTES), np.uint8),
            np.empty((lines.SEEN, lines.TAIL_BYTES), np.uint8),
            np.empty((lines.SEEN, lines.SEEN_WORDS), np.uint64),
        )
        self._arrays = _Arrays(header.cta_count)
        self._state = np.zeros(lines.STATE_SIZE, np.int64)
        self._state[lines.LINE] = header_lines + 1
        self._rest = b""

    @property
    def cta_count(self) -> int:
        """CTAs read whole, those that were let go included."""
        return self.first_cta + int(self._state[lines.CTA_COUNT] - self._state[lines.IN_CTA])

    @property
    def record_bytes(self) -> int:
        return 8 * int(self._state[lines.RECORD_COUNT] + self._state[lines.MEMORY_COUNT])

    @property
    def thread_instructions(self) -> int:
        return int(self._state[lines.THREAD_INSTRUCTIONS])

    @property
    def exit_mask(self) -> str:
        return _exit_mask(self.file, self._state)

    @property
    def warnings(self) -> tuple[str, ...]:
        return _warnings(self.header)

    def read(
        self, cta_count: int | None = None, byte_limit: int | None = None, check: Callable[[], None] | None = None
    ) -> None:
        """Until so many CTAs are whole, records take so many bytes, or the file ends.

        `check` is called between blocks and may raise. Raises BadTrace.
        """
        while not self.is_complete:
            if cta_count is not None and self.cta_count >= cta_count:
                return
            if byte_limit is not None and self.record_bytes > byte_limit:
                return
            if check is not None:
                check()
            block = next(self._blocks, None)
            if block is None:
                self._end()
                return
            self._take(block)

    def _take(self, block: bytes) -> None:
        # Only whole lines are parsed; the cut one waits for its other half.
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            self._rest += block
            if len(self._rest) > 1 << 26:
                raise BadTrace(f"{self.file}, line {self._state[lines.LINE]}: a line of more than 64 MiB is no trace's")
            return
        text = self._rest + block[:cut] if self._rest else block
        end = len(self._rest) + cut if self._rest else cut
        self._rest = block[cut:]
        self._parse(text, end)

    def _end(self) -> None:
        if self._rest.strip():
            raise BadTrace(
                f"{self.file}, line {self._state[lines.LINE]}: the file ends within {_shown(self._rest)} without a "
                "newline, so it was cut"
            )
        _check_whole(self.file, self.header, self._state, self.cta_count, self._expected_ctas)
        self.is_complete = True

    def code(self) -> Code:
        """Records of the whole CTAs from `first_cta` on; valid until the next read."""
        arrays, count = self._arrays, self.cta_count - self.first_cta
        warps = int(self._state[lines.WARP_COUNT])
        arrays.warp_start[warps] = self._state[lines.RECORD_COUNT]
        arrays.warp_memory[warps] = self._state[lines.MEMORY_COUNT]
        if not self._state[lines.IN_CTA]:
            arrays.cta_warp[count] = warps
        return Code(
            arrays.instructions[: self._state[lines.RECORD_COUNT]],
            arrays.memory[: self._state[lines.MEMORY_COUNT]],
            arrays.warp_start[: warps + 1],
            arrays.warp_memory[: warps + 1],
            arrays.cta_warp[: count + 1],
            arrays.cta_rank[:count],
        )

    def trace(self) -> KernelTrace:
        """All of it, once it is complete."""
        assert self.is_complete
        assert self.first_cta == 0
        code = self.code()
        return KernelTrace(
            file=self.file,
            header=self.header,
            **code._asdict(),
            warp_index=self._arrays.warp_index[: self._state[lines.WARP_COUNT]],
            thread_instructions=self.thread_instructions,
            line_count=int(self._state[lines.LINE]) - 1,
            exit_mask=self.exit_mask,
            warnings=self.warnings,
        )

    def let_go(self, next_cta: int, running: Sequence[Span]) -> list[Span]:
        """Forgets the CTAs before `next_cta` but for what is left of the warps that still run; where that is now."""
        old, state, code = self._arrays, self._state, self.code()
        first_warp = int(code.cta_warp[next_cta - self.first_cta])
        first_record, first_word = int(old.warp_start[first_warp]), int(old.warp_memory[first_warp])
        tail: Span = (first_record, int(state[lines.RECORD_COUNT]), first_word, int(state[lines.MEMORY_COUNT]))
        new = _Arrays(0)
        new.instructions = np.empty(len(old.instructions), np.uint64)
        new.memory = np.empty(len(old.memory), np.uint64)
        moved: list[Span] = []
        record = word = 0
        for begin, end, memory_begin, memory_end in (*running, tail):
            new.instructions[record : record + end - begin] = old.instructions[begin:end]
            new.memory[word : word + memory_end - memory_begin] = old.memory[memory_begin:memory_end]
            moved.append((record, record + end - begin, word, word + memory_end - memory_begin))
            record += end - begin
            word += memory_end - memory_begin
        by_record, by_word = moved[-1][0] - first_record, moved[-1][2] - first_word
        warps = int(state[lines.WARP_COUNT]) - first_warp
        ctas = int(state[lines.CTA_COUNT]) - (next_cta - self.first_cta)
        for name, shift, first, count in (
            ("warp_start", by_record, first_warp, warps),
            ("warp_memory", by_word, first_warp, warps),
            ("warp_index", 0, first_warp, warps),
            ("cta_warp", -first_warp, next_cta - self.first_cta, ctas),
            ("cta_rank", 0, next_cta - self.first_cta, ctas),
        ):
            column = np.empty(len(getattr(old, name)), np.int64)
            column[:count] = getattr(old, name)[first : first + count] + shift
            setattr(new, name, column)
        state[lines.RECORD_COUNT], state[lines.MEMORY_COUNT] = record, word
        state[lines.WARP_COUNT], state[lines.CTA_COUNT] = warps, ctas
        self._arrays = new
        self.first_cta = next_cta
        return moved[:-1]

    def _parse(self, text: bytes, end: int) -> None:
        view = np.frombuffer(text, np.uint8)
        at = 0
        state = self._state
        while True:
            why, at = lines.read_lines(
                view, at, end, self._dialect, self._vocabulary.tables, self._known, self._arrays.records(), state
            )
            if why == lines.DONE:
                return
            if why == lines.NEEDS_SPACE:
                self._arrays.grow(state)
                continue
            value = text[int(state[lines.AT]) : int(state[lines.TO])]
            if why == lines.NEEDS_OPCODE:
                _learn(
                    self.file, self.header, value.decode("utf-8", "replace"), self._vocabulary, int(state[lines.LINE])
                )
                continue
            raise BadTrace(f"{self.file}, line {state[lines.LINE]}: {_reason(why, text, state)}")


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
        lines.BAD_CLUSTER_MASK: f"{word} is no mask of a cluster's 16 thread blocks",
        lines.BAD_ADDRESS: f"{word} is no address where one must follow",
        lines.BAD_STRUCTURE: f"{_shown(line)} stands where a thread block or a warp must begin or end",
        lines.BAD_INSTS: f"{_shown(line)} is no number of instructions of an open warp",
        lines.WARP_EMPTY: f"warp {state[lines.WARP_COUNT] - 1} has no instruction, which Accel-Sim 1.x does not accept",
        lines.WARP_TOO_SHORT: f"{_shown(line)} stands where {state[lines.INSTRUCTIONS_LEFT]} more instructions of the "
        "warp were announced",
    }
    return reasons[why]


def _check_whole(file: str, header: KernelHeader, state: NDArray[np.int64], found: int, expected: int) -> None:
    line = state[lines.LINE] - 1
    if state[lines.INSTRUCTIONS_LEFT]:
        raise BadTrace(
            f"{file}, line {line}: the file ends where {state[lines.INSTRUCTIONS_LEFT]} more instructions of the warp "
            "were announced, so it was cut"
        )
    if state[lines.IN_CTA]:
        raise BadTrace(f"{file}, line {line}: the file ends without #END_TB, so it was cut")
    if found != expected:
        grid = "x".join(map(str, header.grid))
        of_these = "" if expected == header.cta_count else f" of the {expected} that were looked for"
        raise BadTrace(f"{file}: has {found} thread blocks{of_these} where its grid {grid} has {header.cta_count}")


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
