"""One process of Accel-Sim in a folder of its own: its lines as they come, its limits, its end."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import select
import signal
import subprocess
import tty
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.simworker.simulators.accelsim.failures import Ended, EndedBy

STDERR_KEPT_BYTES = 64 << 10
_POLL_S = 0.1
_SECRETS = ("CASCADE_TOKEN",)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one process. Memory is address space: what it may ask for, not what it uses."""

    time_s: float = 3600.0
    memory_bytes: int = 8 << 30


@dataclass(frozen=True, slots=True)
class Ran:
    """How it ended, and what it used."""

    ended: Ended
    cpu_seconds: float
    peak_rss_bytes: int


def run(
    command: Sequence[str],
    folder: Path,
    limits: Limits,
    *,
    environ: Mapping[str, str],
    now_s: Callable[[], float],
    on_line: Callable[[str], None],
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Ran:
    """Run to the end or to a limit; `folder` keeps stdout.log and stderr.log. Raises OSError where it cannot start.

    Standard output is a terminal's: over a pipe the last words before an abort are lost in the simulator's buffer.
    """
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    try:
        with (folder / "stderr.log").open("wb") as stderr:
            process = subprocess.Popen(  # noqa: S603 - the user's own program, without a shell
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=stderr,
                env={name: value for name, value in environ.items() if name not in _SECRETS},
                start_new_session=True,
            )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    with contextlib.suppress(ProcessLookupError):
        cpu_s = int(limits.time_s) + 1
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
    by: EndedBy = "itself"
    try:
        by = _read(ours, folder / "stdout.log", now_s() + limits.time_s, now_s, on_line, is_cancelled)
    finally:
        # Its helpers (cat, xz) are in its group: nothing of a run outlives it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if by != "itself":
                os.killpg(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)
    code = process.returncode
    text = _tail(folder / "stderr.log")
    return Ran(
        Ended(128 - code if code < 0 else code, by, text, limits.time_s, limits.memory_bytes),
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_rss_bytes=usage.ru_maxrss << 10,
    )


def _read(
    ours: int,
    log: Path,
    deadline_s: float,
    now_s: Callable[[], float],
    on_line: Callable[[str], None],
    is_cancelled: Callable[[], bool],
) -> EndedBy:
    """Until the last writer has closed its end."""
    rest = b""
    with log.open("wb") as out:
        while True:
            if is_cancelled():
                return "cancelled"
            if now_s() > deadline_s:
                return "time limit"
            if not select.select([ours], [], [], _POLL_S)[0]:
                continue
            try:
                block = os.read(ours, 1 << 16)
            except OSError:  # EIO: how a terminal says that nobody writes any more
                block = b""
            if not block:
                break
            out.write(block)
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                on_line(line.decode("utf-8", "replace").rstrip("\r"))
    if rest:
        on_line(rest.decode("utf-8", "replace"))
    return "itself"


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - STDERR_KEPT_BYTES))
        return file.read().decode("utf-8", "replace")
