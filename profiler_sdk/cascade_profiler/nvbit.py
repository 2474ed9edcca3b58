"""Accel-Sim's NVBit tracer around a job: environment, selection of kernels, and finished files as they close.

Not validated on hardware: see DEVIATIONS.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_KERNEL_FILE = re.compile(r"kernel-(\d+)(?:-ctx_0x[0-9a-f]+)?\.(?:trace|tracez|trace\.xz)")
_QUIET_S = 2.0  # a file that has not grown for so long, and is not the newest, is finished


class TracerUnusable(RuntimeError):
    """The tracer library cannot be used; the sentence says why."""


def job_environ(environ: Mapping[str, str], tracer: Path, folder: Path, kernels: Iterable[str] = ()) -> dict[str, str]:
    """The job's environment with the tracer in it. Raises TracerUnusable.

    kernels: mangled names, or parts of them; none: whatever runs while cudaProfilerStart … Stop is in effect.
    """
    if not tracer.is_file():
        raise TracerUnusable(f"{tracer.name} is not there; build Accel-Sim's tracer_tool.so and name it with --tracer")
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


@dataclass
class Finished:
    """Watches a folder of traces; gives each kernel's file once it will not grow any more, and stops at a disk cap."""

    folder: Path
    bytes_limit: int
    now_s: Callable[[], float] = time.monotonic
    _sizes: dict[Path, tuple[int, float]] = field(default_factory=dict)  # size, when it was first seen so
    _given: set[Path] = field(default_factory=set)

    def look(self, *, is_over: bool = False) -> Iterator[Path]:
        """Files finished since the last look, in order of kernels. `is_over`: the job has ended, all of them are."""
        found = sorted(
            (int(match[1]), path)
            for path in self.folder.rglob("kernel-*")
            if (match := _KERNEL_FILE.fullmatch(path.name)) and path not in self._given
        )
        for place, (_, path) in enumerate(found):
            size = path.stat().st_size
            seen = self._sizes.get(path)
            if seen is None or seen[0] != size:
                self._sizes[path] = seen = (size, self.now_s())
            is_newest = place == len(found) - 1
            if is_over or (not is_newest and self.now_s() - seen[1] >= _QUIET_S):
                self._given.add(path)
                yield path

    @property
    def is_full(self) -> bool:
        """Whether the folder holds more than it may: the tracer is to be stopped."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) > self.bytes_limit


def first_of_each(names: Iterable[tuple[str, str]]) -> list[str]:
    """Of (signature, mangled name) in order of launch the names to trace: each distinct kernel once."""
    chosen: dict[str, str] = {}
    for signature, name in names:
        chosen.setdefault(signature, name)
    return list(dict.fromkeys(chosen.values()))
