"""Accel-Sim's NVBit tracer around a job: environment, selection of kernels, and finished files as they close.

Not validated on hardware: see DEVIATIONS.md.
"""

from __future__ import annotations

import lzma
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_KERNEL_FILE = re.compile(r"kernel-(\d+)(?:-[\w.-]+?)?\.(?:trace|tracez|trace\.xz)")
_QUIET_S = 2.0  # where no list says more: a file that has not grown for so long, and is not the newest, is finished
_STATS_COLUMNS = 12  # of a kernel that has ended; the last two are written then
_HEADER_LINES_LIMIT = 100
_SIGNATURE = ("kernel name", "grid dim", "block dim", "shmem", "nregs")


class TracerUnusable(RuntimeError):
    """The tracer library cannot be used; the sentence says why."""


def job_environ(environ: Mapping[str, str], tracer: Path, folder: Path, kernels: Iterable[str] = ()) -> dict[str, str]:
    """The job's environment with the tracer in it. Raises TracerUnusable.

    kernels: mangled names, or parts of them; none: whatever runs while cudaProfilerStart … Stop is in effect.
    """
    checked(tracer)
    added = {
        # Frameworks and launchers drop LD_PRELOAD.
        "CUDA_INJECTION64_PATH": str(tracer.absolute()),
        "TRACES_FOLDER": str(folder.absolute()),
        "USER_DEFINED_FOLDERS": "1",
        "ACTIVE_FROM_START": "0",
        "NOBANNER": "1",
        # Instrumented code must run where the tracer is: one process, no graphs that hide launches.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    chosen = [f".*{re.escape(name)}.*" for name in kernels]
    if chosen:
        added |= {"ACTIVE_FROM_START": "1", "DYNAMIC_KERNEL_RANGE": "1-@" + ",".join(chosen)}
    return {**environ, **added}


def checked(tracer: Path) -> str:
    """The name of a tracer that can be loaded. Raises TracerUnusable."""
    if not tracer.is_file():
        found = f"{tracer.name} is not there" if tracer.name else "no tracer is named"
        raise TracerUnusable(f"{found}; build Accel-Sim's tracer_tool.so and name it with --tracer")
    with tracer.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise TracerUnusable(f"{tracer.name} is no shared library; name Accel-Sim's tracer_tool.so with --tracer")
    return tracer.name


@dataclass
class Finished:
    """Watches a folder of traces; gives each kernel's file once it will not grow any more.

    The tracer names a kernel in its list when it opens the file, and completes the kernel's row of statistics when it
    closes it: every name but a list's last, and every whole row, is of a finished file.
    """

    folder: Path
    now_s: Callable[[], float] = time.monotonic
    _sizes: dict[Path, tuple[int, float]] = field(default_factory=dict)  # size, when it was first seen so
    _given: set[Path] = field(default_factory=set)

    def look(self, *, is_over: bool = False) -> Iterator[Path]:
        """Files finished since the last look, in order of kernels. `is_over`: the job ended well, all of them are."""
        found = sorted(
            (int(match[1]), path)
            for path in self.folder.rglob("kernel-*")
            if (match := _KERNEL_FILE.fullmatch(path.name)) and path not in self._given
        )
        closed, has_list = self._closed()
        for place, (_, path) in enumerate(found):
            is_newest = place == len(found) - 1
            if is_over or path.name in closed or (not has_list and not is_newest and self._is_quiet(path)):
                self._given.add(path)
                yield path

    def unfinished(self) -> list[Path]:
        """Files of kernels that were never given: they were being written when the job was killed."""
        return sorted(
            path
            for path in self.folder.rglob("kernel-*")
            if _KERNEL_FILE.fullmatch(path.name) and path not in self._given
        )

    def _closed(self) -> tuple[set[str], bool]:
        """Names of files that are closed for sure, and whether the tracer keeps a list at all."""
        closed: set[str] = set()
        has_list = False
        for path in self.folder.rglob("kernelslist*"):
            names = [line for line in _whole_lines(path) if line.startswith("kernel-")]
            has_list = has_list or bool(names)
            closed.update(names[:-1])
        for path in self.folder.rglob("stats*"):
            rows = (line.split(",") for line in _whole_lines(path))
            closed.update(row[0].strip() for row in rows if len(row) >= _STATS_COLUMNS and row[-1].strip().isdigit())
        return closed, has_list

    def _is_quiet(self, path: Path) -> bool:
        size = path.stat().st_size
        seen = self._sizes.get(path)
        if seen is None or seen[0] != size:
            self._sizes[path] = seen = (size, self.now_s())
        return self.now_s() - seen[1] >= _QUIET_S


def signature_of(path: Path) -> tuple[str, ...]:
    """What the launch was, by the header of its file: two files of one signature hold the same work.

    Its own name where the header cannot be read here (`.tracez`, or cut off).
    """
    said: dict[str, str] = {}
    try:
        with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as stream:
            for _ in range(_HEADER_LINES_LIMIT):
                line = stream.readline(1 << 16).decode(errors="replace").strip()
                if line.startswith("#"):
                    break
                key, _, value = line.removeprefix("-").partition("=")
                said[key.strip()] = value.strip()
    except (OSError, EOFError, lzma.LZMAError):
        return (path.name,)
    found = tuple(said.get(name, "") for name in _SIGNATURE)
    return found if all(found[:3]) else (path.name,)


def folder_bytes(folder: Path) -> int:
    """What the folder holds."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _whole_lines(path: Path) -> list[str]:
    """Lines that end: the last may be half written."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines(keepends=True) if line.endswith("\n")]
