"""A file that its profiler is still writing: when is it whole?

A profiler writes its JSON once, at the end, and events in no order of time, so a prefix is no shorter trace: it is an
unknown part of one. Following therefore waits for the end of the file rather than importing beginnings.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

QUIET_S = 60.0
"""A file that has not grown for so long is taken as it is: the importer salvages it and marks it truncated."""

_LOOK_S = 0.2
_CHUNK_BYTES = 1 << 20
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SQLITE_HEADER_BYTES = 100


@dataclass(frozen=True, slots=True)
class Growth:
    """What following has seen last."""

    size_bytes: int
    is_whole: bool  # False at the end: it stopped growing without being whole


def follow(
    path: Path, now_s: Callable[[], float], sleep: Callable[[float], None], seen: Callable[[Growth], None]
) -> Growth:
    """Wait until a file is whole, or until it has not grown for QUIET_S. `seen` is told of every look.

    Raises FileNotFoundError where it does not appear within QUIET_S.
    """
    end = FileEnd(path)
    size_bytes, grew_at = -1, now_s()
    while True:
        if path.exists() and (size := path.stat().st_size) != size_bytes:
            size_bytes, grew_at = size, now_s()
        growth = Growth(max(size_bytes, 0), size_bytes > 0 and end.is_reached())
        seen(growth)
        if growth.is_whole or now_s() - grew_at >= QUIET_S:
            if size_bytes < 0:
                raise FileNotFoundError(f"{path} has not appeared for {QUIET_S:.0f} s")
            return growth
        sleep(_LOOK_S)


class FileEnd:
    """Whether a file ends as its format ends: gzip's trailer, SQLite's page count, a closed JSON value.

    Only what is new since the last look is read. CSV has no end of its own: only quiet tells.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._unpacker = zlib.decompressobj(wbits=31)
        self._json = _JsonEnd()
        self._head = b""

    def is_reached(self) -> bool:
        with self._path.open("rb") as file:
            if len(self._head) < _SQLITE_HEADER_BYTES:
                self._head = file.read(_SQLITE_HEADER_BYTES)
            if self._head.startswith(b"SQLite format 3\0"):
                return self._sqlite_ends()
            is_gzip = self._head.startswith(b"\x1f\x8b")
            if not is_gzip and self._head.lstrip()[:1] not in (b"{", b"["):
                return False
            file.seek(self._read_bytes)
            while chunk := file.read(_CHUNK_BYTES):
                self._read_bytes += len(chunk)
                if is_gzip:
                    self._unpack(chunk)
                else:
                    self._json.feed(chunk)
        return self._unpacker.eof if is_gzip else self._json.is_closed

    def _unpack(self, chunk: bytes) -> None:
        try:
            while chunk:
                if self._unpacker.eof:  # another member follows
                    self._unpacker = zlib.decompressobj(wbits=31)
                self._unpacker.decompress(chunk)
                chunk = self._unpacker.unused_data.lstrip(b"\0")
        except zlib.error:
            self._unpacker = zlib.decompressobj(wbits=31)  # damaged: quiet will tell

    def _sqlite_ends(self) -> bool:
        page_bytes = int.from_bytes(self._head[16:18], "big")
        page_count = int.from_bytes(self._head[28:32], "big")
        return 0 < self._path.stat().st_size == page_count * (65536 if page_bytes == 1 else page_bytes)


class _JsonEnd:
    """Depth of brackets outside strings; a value that opened and closed is whole."""

    def __init__(self) -> None:
        self._rest = b""  # from the start of a string whose end is not here yet
        self._depth = 0
        self._has_opened = False

    @property
    def is_closed(self) -> bool:
        return self._has_opened and self._depth == 0 and not self._rest

    def feed(self, chunk: bytes) -> None:
        plain = _STRING.sub(b"", self._rest + chunk)
        quote = plain.find(b'"')
        self._rest, plain = (plain[quote:], plain[:quote]) if quote >= 0 else (b"", plain)
        opened = plain.count(b"{") + plain.count(b"[")
        self._has_opened |= opened > 0
        self._depth += opened - plain.count(b"}") - plain.count(b"]")
