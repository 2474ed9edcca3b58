"""CSV as profilers print it: a preamble, a header with units, numbers with separators, text in any encoding."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from services.ingest.imported import QualityReport
from services.ingest.importers.rejection import TraceRejected
from services.ingest.reading import ReadState, read_chunks

_PREAMBLE_LINES_LIMIT = 1000
_LINE_BYTES_LIMIT = 1 << 20
_UNIT = re.compile(r"\s*\(([^()]*)\)\s*\Z")


def table_rows(path: Path, state: ReadState, quality: QualityReport) -> Iterator[list[str]]:
    """Rows of fields; a line that is no CSV is dropped and counted."""
    for line in _lines(path, state):
        row = read_row(line)
        if row is None:
            quality.dropped_event_count += 1
        elif row:
            yield row


def read_row(line: str) -> list[str] | None:
    """The fields of one line; None where it is no CSV."""
    try:
        return [field.strip() for field in next(csv.reader([line]), [])]
    except csv.Error:
        return None


def find_header(rows: Iterator[list[str]], is_header: Callable[[list[str]], bool]) -> list[str]:
    """The first row that is the header looked for; what stood before it is skipped."""
    for _, row in zip(range(_PREAMBLE_LINES_LIMIT), rows, strict=False):
        if is_header(row):
            return row
    raise TraceRejected("the table has no header row that names its columns: export it again with its header")


def column(header: list[str], name: str) -> tuple[int, str]:
    """(place, unit in small letters) of the column whose header begins with the name; place -1 where there is none."""
    for place, title in enumerate(header):
        unit = _UNIT.search(title)
        bare = (title[: unit.start()] if unit else title).strip().lower()
        if bare == name:
            return place, unit[1].strip().lower() if unit else ""
    return -1, ""


def number(text: str) -> float | None:
    """`9,357`, `1.5e3`; None for `n/a`, `-`, an empty field or what is not finite."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _lines(path: Path, state: ReadState) -> Iterator[str]:
    """Lines of text. Field breaks inside quotes do not occur in these tables, so a broken quote costs one line."""
    rest = b""
    for chunk in read_chunks(path, state):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _decoded(line)
        if len(rest) > _LINE_BYTES_LIMIT:
            rest = b""
    if rest:
        yield _decoded(rest)


def _decoded(line: bytes) -> str:
    return line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\0", "").rstrip("\r")
