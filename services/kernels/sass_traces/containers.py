"""The bodies of trace files as blocks of text lines: plain, xz, `.tracez`, or the tracer's raw interleaved output."""

from __future__ import annotations

import io
import lzma
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from services.kernels.sass_traces.header import KernelHeader, read_header
from services.kernels.sass_traces.kernelslist import BadTrace

BLOCK_BYTES = 1 << 18  # per block: large beside a call, small beside a core's cache

KERNEL_SUFFIXES = (".traceg", ".traceg.xz", ".tracez", ".trace", ".trace.xz")
_XZ = b"\xfd7zXZ\0"
_SNIFFED_BYTES = 1 << 16

Opened = tuple[KernelHeader, int, Iterator[bytes]]
"""A header, how many lines it took, and the rest in blocks of any cut."""


WantedOf = Callable[[KernelHeader], Sequence[bool] | None]
"""Which thread blocks of a kernel are wanted, a flag for each in the order of the file; None: all of them."""


def open_kernel(path: Path) -> Opened:
    """What a file is, its name says, or, for one without a name of the tracer's (an artifact), its first bytes."""
    name = _kind(path)
    if name.endswith(".tracez"):
        return _open_tracez(path, name)
    stream = _open_text(path, name)
    try:
        header, line_count = read_header(_header_lines(stream, name), name)
    except BaseException:
        stream.close()
        raise
    blocks = _blocks(stream, name)
    return header, line_count, _regrouped(blocks, header, name) if ".traceg" not in name else blocks


def open_part(path: Path, wanted_of: WantedOf) -> Opened | None:
    """The same with some thread blocks' lines; None where all are wanted, or a file has no index to find them by."""
    name = _kind(path)
    return _open_tracez_part(path, name, wanted_of) if name.endswith(".tracez") else None


def read_header_of(path: Path, called: str) -> KernelHeader:
    """Only the header of a file that is called so, wherever it lies. Raises BadTrace."""
    if called.endswith(".tracez"):
        with path.open("rb") as file:
            return _tracez_header(file, called)[0]
    with _open_text(path, called) as stream:
        return read_header(_header_lines(stream, called), called)[0]


def _kind(path: Path) -> str:
    return path.name if path.name.endswith(KERNEL_SUFFIXES) else path.name[:12] + _suffix_by_content(path)


def _suffix_by_content(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(_SNIFFED_BYTES)
    packed = ""
    if start.startswith(_XZ):
        packed = ".xz"
        try:
            start = lzma.LZMADecompressor().decompress(start, _SNIFFED_BYTES)
        except lzma.LZMAError as error:
            raise BadTrace(f"{path.name[:12]}: its compressed data is broken or cut ({error})") from error
    if not start.startswith(b"-"):
        raise BadTrace(f"{path.name}: is neither .traceg, .traceg.xz, .tracez nor a raw .trace")
    if b"\0" in start:
        return ".tracez"
    return (".traceg" if b"#BEGIN_TB" in start else ".trace") + packed


def _open_text(path: Path, name: str) -> BinaryIO:
    if name.endswith(".xz"):
        return cast("BinaryIO", lzma.open(path))
    return path.open("rb")


def _header_lines(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Lines as they are asked for; a name of a megabyte is none."""
    while True:
        try:
            line = stream.readline(1 << 20)
        except (lzma.LZMAError, EOFError) as error:
            raise BadTrace(f"{name}: its compressed data is broken or cut ({error})") from error
        if not line:
            return
        yield line


def _blocks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """What is left of a text; a long packed one is unpacked ahead by a thread of its own."""
    with stream:
        block = _next_block(stream, name)
        if len(block) < BLOCK_BYTES or not isinstance(stream, lzma.LZMAFile):
            while block:
                yield block
                block = _next_block(stream, name)
            return
        with ThreadPoolExecutor(1) as ahead:
            while block:
                following = ahead.submit(_next_block, stream, name)
                yield block
                block = following.result()


def _next_block(stream: BinaryIO, name: str) -> bytes:
    try:
        return stream.read(BLOCK_BYTES)
    except (lzma.LZMAError, EOFError) as error:
        raise BadTrace(f"{name}: its compressed data is broken or cut ({error})") from error


# --- raw ----------------------------------------------------------------------------------------------------------


def _regrouped(blocks: Iterator[bytes], header: KernelHeader, name: str) -> Iterator[bytes]:
    """Lines of all warps in arrival order -> by thread block and warp, as the post-processor writes them.

    The whole kernel has to be in memory, as it has for Accel-Sim's own tool: only its last line completes a warp.
    """
    prefix_count = 11 if header.tracer_version >= 6 else 4
    warps: dict[tuple[int, ...], list[bytes]] = {}
    places: dict[tuple[int, ...], bytes] = {}
    lines = io.BytesIO(b"".join(blocks)).readlines()
    for offset, line in enumerate(lines):
        if not line.strip() or line.startswith((b"#", b"-")):
            continue
        words = line.split(maxsplit=prefix_count)
        if len(words) <= prefix_count or not all(word.isdigit() for word in words[:prefix_count]):
            raise BadTrace(f"{name}: line {offset + 1} of its body does not begin with {prefix_count} numbers")
        x, y, z, warp, *cluster = map(int, words[:prefix_count])
        warps.setdefault((z, y, x, warp), []).append(words[prefix_count])
        if cluster:
            cx, cy, cz, ax, ay, az, rank = cluster
            places[z, y, x] = (
                f"cluster id = {cx},{cy},{cz}\ncluster cta = {ax},{ay},{az}\ncluster rank = {rank}\n".encode()
            )
    open_cta: tuple[int, ...] | None = None
    for key in sorted(warps):
        z, y, x, warp = key
        if open_cta != key[:3]:
            if open_cta is not None:
                yield b"#END_TB\n"
            open_cta = key[:3]
            yield b"#BEGIN_TB\nthread block = %d,%d,%d\n" % (x, y, z) + places.get(open_cta, b"")
        body = warps.pop(key)
        yield b"warp = %d\ninsts = %d\n" % (warp, len(body)) + b"".join(body)
    if open_cta is not None:
        yield b"#END_TB\n"


# --- tracez -------------------------------------------------------------------------------------------------------

_CTA = struct.Struct("<11I")
_COUNT = struct.Struct("<II")
_WARP = struct.Struct("<IIQ")


def _open_tracez(path: Path, name: str) -> Opened:
    header, line_count, begin = _tracez_start(path, name)
    return header, line_count, _tracez_blocks(path, begin, name, None)


def _open_tracez_part(path: Path, name: str, wanted_of: WantedOf) -> Opened | None:
    header, line_count, begin = _tracez_start(path, name)
    wanted = wanted_of(header)
    return None if wanted is None else (header, line_count, _tracez_blocks(path, begin, name, wanted))


def _tracez_start(path: Path, name: str) -> tuple[KernelHeader, int, int]:
    if not path.is_file():
        raise BadTrace(f"{name}: a .tracez needs seeks, which only a file allows")
    with path.open("rb") as stream:
        return _tracez_header(stream, name)


def _tracez_header(stream: BinaryIO, name: str) -> tuple[KernelHeader, int, int]:
    """The header, its lines, and where the container begins behind it."""
    start = stream.read(1 << 20)
    end = start.find(b"\0")
    if end < 0:
        raise BadTrace(f"{name}: has no NUL after its header; it was cut or is no .tracez")
    header, line_count = read_header([*start[:end].splitlines(), b"#"], name)
    return header, line_count, end + 1


def _tracez_blocks(path: Path, at: int, name: str, wanted: Sequence[bool] | None) -> Iterator[bytes]:
    """The wanted thread blocks' lines, as the text format has them. The index says where each warp lies."""
    block = bytearray()
    # Two handles: the index is read on from where it was, however far apart the warps are that it names.
    with path.open("rb") as stream, path.open("rb", buffering=BLOCK_BYTES) as index:
        try:
            stream.seek(at)
            dictionary_bytes, _ = _COUNT.unpack(stream.read(8))
            dictionary = stream.read(dictionary_bytes)
            unpack = zstandard.ZstdDecompressor(
                dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None,
                max_window_size=1 << 27,
            )
            file_bytes = index.seek(0, 2)
            index.seek(file_bytes - 8)
            (index_at,) = struct.unpack("<Q", index.read(8))
            if index_at > file_bytes - 12:
                raise BadTrace(f"{name}: its index is said to be at byte {index_at} of {file_bytes}; the file was cut")
            index.seek(index_at)
            (cta_count,) = struct.unpack("<I", index.read(4))
            for number in range(cta_count):
                x, y, z, cx, cy, cz, ax, ay, az, rank, warp_count = _CTA.unpack(index.read(_CTA.size))
                warps = []
                for _ in range(warp_count):
                    count, parts, offset = _WARP.unpack(index.read(_WARP.size))
                    index.seek(4 * parts, 1)
                    warps.append((count, parts, offset))
                if wanted is not None and not (number < len(wanted) and wanted[number]):
                    continue
                block += (
                    f"#BEGIN_TB\nthread block = {x},{y},{z}\ncluster id = {cx},{cy},{cz}\n"
                    f"cluster cta = {ax},{ay},{az}\ncluster rank = {rank}\n"
                ).encode()
                for warp, (count, parts, offset) in enumerate(warps):
                    block += b"warp = %d\ninsts = %d\n" % (warp, count)
                    stream.seek(offset + 8)
                    for _ in range(parts):
                        (size,) = struct.unpack("<I", stream.read(4))
                        block += unpack.decompress(stream.read(size), max_output_size=1 << 28) + b"\n"
                        if len(block) >= BLOCK_BYTES:
                            yield bytes(block)
                            block.clear()
                block += b"#END_TB\n"
            if block:
                yield bytes(block)
        except (struct.error, zstandard.ZstdError) as error:
            raise BadTrace(f"{name}: its container is broken or cut ({error})") from error
