"""An upload read as it arrives: files go straight to the artifact store, never into memory nor to a second file."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import BinaryIO, cast

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from services.runtime.engine import Refused

FIELD_BYTES_LIMIT = 1 << 20  # a config.json has a few KiB
PARTS_LIMIT = 300  # ranks of one job, and the fields

ReadChunk = Callable[[], bytes]
"""The next bytes of the body, waiting for them; b"" at its end."""


async def next_chunk(chunks: AsyncIterator[bytes]) -> bytes:
    """The next bytes of a request's stream; b"" at its end. Raises Refused where whoever sends is gone."""
    try:
        async for chunk in chunks:
            if chunk:
                return chunk
    except ClientDisconnect as error:
        raise Refused("the upload was cut off; send it again") from error
    return b""


def raw_body(read_chunk: ReadChunk) -> BinaryIO:
    """A body that is one file and nothing else."""
    return cast("BinaryIO", io.BufferedReader(_Chunks(iter(read_chunk, b"")), buffer_size=1 << 20))


class Part:
    """A field (`file_name` None) or a file of the form; to be read before the next part is asked for."""

    def __init__(self, name: str, file_name: str | None, chunks: Iterator[bytes]) -> None:
        self.name = name
        self.file_name = file_name
        self._chunks = chunks

    def body(self) -> BinaryIO:
        return cast("BinaryIO", io.BufferedReader(_Chunks(self._chunks), buffer_size=1 << 20))

    def text(self) -> str:
        whole = b""
        for chunk in self._chunks:
            whole += chunk
            if len(whole) > FIELD_BYTES_LIMIT:
                raise Refused(f"field {self.name!r} is longer than {FIELD_BYTES_LIMIT} bytes; send it as a file")
        try:
            return whole.decode()
        except UnicodeDecodeError as error:
            raise Refused(f"field {self.name!r} is not UTF-8 text") from error


def read_parts(content_type: str, read_chunk: ReadChunk) -> Iterator[Part]:
    """The parts of a multipart/form-data body, in order. Raises Refused where it is none or is cut off."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise Refused("an upload is multipart/form-data with one or more files")
    reader = _Reader(boundary, read_chunk)
    for count, (name, file_name) in enumerate(reader.headers()):
        if count == PARTS_LIMIT:
            raise Refused(f"an upload has at most {PARTS_LIMIT} parts")
        chunks = reader.chunks()
        yield Part(name, file_name, chunks)
        for _ in chunks:
            pass  # what nobody read is passed over


class _Reader:
    """The parser pushes; readers pull. Between them stands a queue that never holds more than one chunk's parts."""

    def __init__(self, boundary: bytes, read_chunk: ReadChunk) -> None:
        self._read_chunk = read_chunk
        self._found: deque[tuple[str, bytes]] = deque()
        self._headers: list[list[bytes]] = []
        self._is_over = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._headers.clear,
                    "on_header_begin": lambda: self._headers.append([b"", b""]),
                    "on_header_field": lambda data, start, end: self._add(0, data[start:end]),
                    "on_header_value": lambda data, start, end: self._add(1, data[start:end]),
                    "on_headers_finished": lambda: self._found.append(("part", self._disposition())),
                    "on_part_data": lambda data, start, end: self._found.append(("data", data[start:end])),
                    "on_part_end": lambda: self._found.append(("end", b"")),
                    "on_end": lambda: self._found.append(("over", b"")),
                },
            )
        except FormParserError as error:
            raise Refused(f"the upload's boundary cannot be used ({error})") from error

    def headers(self) -> Iterator[tuple[str, str | None]]:
        while (found := self._next())[0] != "over":
            assert found[0] == "part", "parts are read to their end before the next"
            _, options = parse_options_header(found[1])
            if b"name" not in options:
                raise Refused("a part of the upload has no name")
            file_name = options.get(b"filename")
            yield (
                options[b"name"].decode(errors="replace"),
                None if file_name is None else file_name.decode(errors="replace"),
            )

    def chunks(self) -> Iterator[bytes]:
        while (found := self._next())[0] == "data":
            if found[1]:
                yield found[1]

    def _next(self) -> tuple[str, bytes]:
        while not self._found:
            chunk = self._read_chunk()
            if not chunk:
                raise Refused("the upload was cut off; send it again")
            try:
                self._parser.write(chunk)
            except FormParserError as error:
                raise Refused(f"the upload is not well-formed multipart ({error})") from error
        return self._found.popleft()

    def _add(self, place: int, data: bytes) -> None:
        self._headers[-1][place] += data

    def _disposition(self) -> bytes:
        return next((value for name, value in self._headers if name.lower() == b"content-disposition"), b"")


class _Chunks(io.RawIOBase):
    """Bytes of an iterator as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if not self._left:
            self._left = next(self._chunks, b"")
        count = min(len(self._left), len(buffer))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
