"""A kernel's header: the lines that begin with '-', up to the first '#'."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from services.kernels.sass_traces.kernelslist import BadTrace

SUPPORTED = (70, 72, 75, 80, 86, 87, 89, 90)
"""Binary versions whose instructions `opcodes.py` knows. 89 and 87 are executed as their sibling 86."""

TRACER_VERSIONS = range(3, 7)


@dataclass(frozen=True, slots=True)
class KernelHeader:
    """What the tracer wrote before the instructions."""

    name: str  # mangled
    kernel_id: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory_bytes: int
    registers: int  # per thread
    binary_version: int
    stream: int
    shared_base: int
    local_base: int
    tracer_version: int
    has_line_numbers: bool

    @property
    def cta_count(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def warps_per_cta(self) -> int:
        return -(-self.block[0] * self.block[1] * self.block[2] // 32)


def read_header(lines: Iterable[bytes], file: str) -> tuple[KernelHeader, int]:
    """The header and how many lines it took, the first '#' line among them."""
    said: dict[str, tuple[str, int]] = {}
    number = 0
    ended = False
    for number, raw in enumerate(lines, 1):
        line = raw.decode("utf-8", errors="replace").strip()
        if line.startswith("#"):
            ended = True
            break
        if line.startswith("-") and "=" in line:
            key, _, value = line[1:].partition("=")
            said[key.strip()] = value.strip(), number
        elif line and not line.startswith("-"):
            raise BadTrace(f"{file}, line {number}: {line[:40]!r} stands where the header's lines begin with '-'")
        if number > 1000:
            break
    if not ended:
        raise BadTrace(f"{file}: ends within its header, after line {number}; it was cut or is no SASS trace")
    header = KernelHeader(
        name=said.get("kernel name", ("", 0))[0],
        kernel_id=_integer(said, "kernel id", file, default=0),
        grid=_triple(said, "grid dim", file),
        block=_triple(said, "block dim", file),
        shared_memory_bytes=_integer(said, "shmem", file, default=0),
        registers=_integer(said, "nregs", file, default=32),
        binary_version=_integer(said, "binary version", file),
        stream=_integer(said, "cuda stream id", file, default=0),
        shared_base=_integer(said, "shmem base_addr", file, default=0),
        local_base=_integer(said, "local mem base_addr", file, default=0),
        tracer_version=_integer(said, "accelsim tracer version", file),
        has_line_numbers=_integer(said, "enable lineinfo", file, default=0) == 1,
    )
    _check(header, said, file)
    return header, number


def _check(header: KernelHeader, said: dict[str, tuple[str, int]], file: str) -> None:
    line = said["binary version"][1]
    if header.binary_version not in SUPPORTED:
        known = ", ".join(map(str, SUPPORTED))
        raise BadTrace(f"{file}, line {line}: binary version {header.binary_version} is none of {known}")
    if header.tracer_version not in TRACER_VERSIONS:
        at = said["accelsim tracer version"][1]
        raise BadTrace(f"{file}, line {at}: accelsim tracer version {header.tracer_version} is none of 3, 4, 5, 6")
    if header.binary_version >= 90 and header.tracer_version < 6:
        raise BadTrace(
            f"{file}, line {line}: binary version {header.binary_version} needs tracer version 6, which records what "
            f"Hopper's barriers need; this trace has version {header.tracer_version}"
        )


def _integer(said: dict[str, tuple[str, int]], key: str, file: str, default: int | None = None) -> int:
    if key not in said:
        if default is None:
            raise BadTrace(f"{file}: its header has no line '-{key} = …'")
        return default
    text, line = said[key]
    if not re.fullmatch(r"\d{1,20}|0x[0-9a-fA-F]{1,16}", text):
        raise BadTrace(f"{file}, line {line}: {key} = {text[:40]!r} is no whole number")
    return int(text, 0) if text.startswith("0x") else int(text)


def _triple(said: dict[str, tuple[str, int]], key: str, file: str) -> tuple[int, int, int]:
    if key not in said:
        raise BadTrace(f"{file}: its header has no line '-{key} = (x,y,z)'")
    text, line = said[key]
    found = re.fullmatch(r"\(\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)", text)
    values = tuple(map(int, found.groups())) if found else ()
    if len(values) != 3 or 0 in values:
        raise BadTrace(f"{file}, line {line}: {key} = {text[:40]!r} is not (x,y,z) with sizes above 0")
    return values[0], values[1], values[2]
