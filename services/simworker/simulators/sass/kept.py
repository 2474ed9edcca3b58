"""Traces that were read once, kept as arrays: the next simulation of a file takes them from there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from services.kernels.sass_traces.header import KernelHeader
from services.simworker.simulators.sass.reading import RECORD_BYTES_LIMIT, KernelReader, KernelTrace, open_reader

READER_VERSION = 3  # of what a record means; one more makes all that is kept unused
KEPT_BYTES_LIMIT = 4 << 30
MAPPED_BYTES = 1 << 20  # a file of more is mapped, not read

_ARRAYS = (
    ("instructions", np.uint64),
    ("memory", np.uint64),
    ("warp_start", np.int64),
    ("warp_memory", np.int64),
    ("warp_index", np.int64),
    ("cta_warp", np.int64),
    ("cta_rank", np.int64),
)


def read_or_recall(path: Path, folder: Path | None) -> KernelTrace:
    """A kernel's trace, from `folder` where it was kept there; a fifo cannot be. Raises BadTrace."""
    kept = _place(path, folder)
    if kept is not None and kept.is_file():
        return _recall(kept)
    return _read_and_keep(open_reader(path), kept, None)


def recall(path: Path, folder: Path | None) -> KernelTrace | None:
    """A kernel's trace where it was kept, None where it was not."""
    kept = _place(path, folder)
    return _recall(kept) if kept is not None and kept.is_file() else None


def recall_or_open(
    path: Path,
    folder: Path | None,
    is_read_in_parts: Callable[[KernelHeader], bool] = lambda _: False,
    check: Callable[[], None] | None = None,
) -> KernelTrace | KernelReader:
    """A kernel's trace, but one that takes too much memory, or that nobody needs whole, is left to its reader."""
    kept = _place(path, folder)
    if kept is not None and kept.is_file():
        return _recall(kept)
    reader = open_reader(path)
    if is_read_in_parts(reader.header):
        return reader
    reader.read(byte_limit=RECORD_BYTES_LIMIT, check=check)
    return _read_and_keep(reader, kept, check) if reader.is_complete else reader


def _place(path: Path, folder: Path | None) -> Path | None:
    if folder is None or not path.is_file():
        return None
    status = path.stat()
    said = f"{READER_VERSION} {path.absolute()} {status.st_size} {status.st_mtime_ns}"
    return folder / hashlib.sha256(said.encode()).hexdigest()[:32]


def _read_and_keep(reader: KernelReader, kept: Path | None, check: Callable[[], None] | None) -> KernelTrace:
    reader.read(check=check)
    trace = reader.trace()
    if kept is not None and trace.instructions.nbytes + trace.memory.nbytes < KEPT_BYTES_LIMIT // 8:
        _keep(trace, kept)
    return trace


def _keep(trace: KernelTrace, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        "file": trace.file,
        "header": asdict(trace.header),
        "lengths": [len(getattr(trace, name)) for name, _ in _ARRAYS],
        "thread_instructions": trace.thread_instructions,
        "line_count": trace.line_count,
        "exit_mask": trace.exit_mask,
        "warnings": trace.warnings,
    }
    text = json.dumps(facts).encode()
    text += b" " * (-(len(text) + 8) % 8)  # the arrays begin at a multiple of their size
    partial = kept.with_suffix(".partial")
    with partial.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.flush()  # what follows goes past the buffer, since large arrays should not be copied
        for name, _ in _ARRAYS:
            getattr(trace, name).tofile(out)
    partial.replace(kept)


def _recall(kept: Path) -> KernelTrace:
    # A writable array, as a fresh trace's are: read-only ones would be another type, compiled for anew. Of a large file
    # only what is asked for is read: a sample's thread blocks.
    is_large = kept.stat().st_size > MAPPED_BYTES
    raw = np.asarray(np.memmap(kept, np.uint8, "c")) if is_large else np.fromfile(kept, np.uint8)
    size = int.from_bytes(raw[:8].tobytes(), "little")
    facts = json.loads(raw[8 : 8 + size].tobytes())
    at = 8 + size
    arrays: dict[str, Any] = {}
    for (name, dtype), length in zip(_ARRAYS, facts["lengths"], strict=True):
        arrays[name] = raw[at : at + 8 * length].view(dtype)
        at += 8 * length
    said: dict[str, Any] = facts["header"]
    header = KernelHeader(**said | {"grid": tuple(said["grid"]), "block": tuple(said["block"])})
    return KernelTrace(
        file=facts["file"],
        header=header,
        thread_instructions=facts["thread_instructions"],
        line_count=facts["line_count"],
        exit_mask=facts["exit_mask"],
        warnings=tuple(facts["warnings"]),
        **arrays,
    )


def sweep(folder: Path) -> None:
    """Once all of a command's traces are kept: the oldest go where all together are too large."""
    try:
        with os.scandir(folder) as entries:
            kept = [
                (entry.stat().st_mtime_ns, entry.stat().st_size, entry.path)
                for entry in entries
                if "." not in entry.name
            ]
    except FileNotFoundError:
        return
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= KEPT_BYTES_LIMIT:
            break
        Path(path).unlink(missing_ok=True)
        total -= size
