"""Files as bounded chunks of plain bytes, whatever they are packed in.

The first bytes say how a file is packed, never its name. Whatever can be unpacked before a file breaks off or turns
bad is delivered; `ReadState.is_damaged` then says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

CHUNK_BYTES = 1 << 20
_PACKED_CHUNK_BYTES = 1 << 18
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(slots=True)
class ReadState:
    """How far a read has come."""

    file_bytes_read: int = 0  # as stored
    bytes_read: int = 0  # unpacked
    is_damaged: bool = False  # broke off inside a packed stream, or its checksum was wrong


def read_chunks(path: Path, state: ReadState) -> Iterator[bytes]:
    """Unpacked contents in pieces of at most CHUNK_BYTES, in order."""
    with path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic.startswith(_GZIP):
            chunks = _gunzip(_read_counted(file, state, _PACKED_CHUNK_BYTES), state)
        elif magic == _ZSTD:
            chunks = _unzstd(_read_counted(file, state, _PACKED_CHUNK_BYTES), state)
        else:
            chunks = _read_counted(file, state, CHUNK_BYTES)
        for chunk in chunks:
            state.bytes_read += len(chunk)
            yield chunk


def read_head(path: Path, limit: int = 1 << 16) -> bytes:
    """The first `limit` unpacked bytes."""
    head = b""
    for chunk in read_chunks(path, ReadState()):
        head += chunk
        if len(head) >= limit:
            break
    return head[:limit]


def _read_counted(file: BinaryIO, state: ReadState, size: int) -> Iterator[bytes]:
    while piece := file.read(size):
        state.file_bytes_read += len(piece)
        yield piece


def _gunzip(pieces: Iterator[bytes], state: ReadState) -> Iterator[bytes]:
    # zlib directly, not gzip.open: some writers append members, pad with zeros or leave a wrong checksum, and a
    # profiler that died while flushing leaves no end at all. What was unpacked until then is good.
    stream = zlib.decompressobj(wbits=31)
    started = False
    for fresh in pieces:
        piece = fresh
        while piece:
            if stream.eof:
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                if not piece.startswith(_GZIP[: len(piece)]):
                    state.is_damaged = True  # bytes behind the last member
                    return
                stream = zlib.decompressobj(wbits=31)
                started = False
            before = stream.copy()
            try:
                out = stream.decompress(piece, CHUNK_BYTES)
            except zlib.error:
                state.is_damaged = True
                yield _until_error(before, piece)
                return
            started = True
            if out:
                yield out
            piece = stream.unused_data if stream.eof else stream.unconsumed_tail
    if started and not stream.eof:
        state.is_damaged = True
        try:
            rest = stream.flush()
        except zlib.error:
            return
        if rest:
            yield rest


def _until_error(stream: zlib._Decompress, piece: bytes) -> bytes:
    """What a stream gives before its error: zlib keeps back the output of the call that fails."""
    out = b""
    try:
        for at in range(len(piece)):
            out += stream.decompress(piece[at : at + 1], CHUNK_BYTES)
            if len(out) > CHUNK_BYTES:
                break
    except zlib.error:
        pass
    return out


class _Pieces:
    """An iterator of bytes as the file object that zstandard reads from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces, self.left = pieces, b""

    def read(self, size: int = -1) -> bytes:
        if not self.left:
            self.left = next(self.pieces, b"")
        if size < 0:
            out, self.left = self.left, b""
        else:
            out, self.left = self.left[:size], self.left[size:]
        return out


def _unzstd(pieces: Iterator[bytes], state: ReadState) -> Iterator[bytes]:
    unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    reader = unpacker.stream_reader(_Pieces(pieces), read_across_frames=True)  # type: ignore[arg-type]
    try:
        while out := reader.read(CHUNK_BYTES):
            yield out
    except zstandard.ZstdError:
        state.is_damaged = True
