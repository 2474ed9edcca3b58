"""Nsight Systems around a job: its command line, its export, and what must not leave the machine.

Not validated on hardware: see DEVIATIONS.md.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

# nsys writes the machine's whole environment into every export (TRACES 0, fact 10).
_PRIVATE_TABLES = ("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "PROCESSES", "ThreadNames",
                   "DIAGNOSTIC_EVENT", "PROFILER_OVERHEAD", "META_DATA_CAPTURE_ENV")  # fmt: skip


class NsysUnusable(RuntimeError):
    """nsys is not there, or did not do what was asked; the sentence says what helps."""


def find_nsys(path: str | None = None) -> str:
    """The program. Raises NsysUnusable."""
    found = shutil.which("nsys", path=path)
    if found is None:
        raise NsysUnusable(
            "nsys is not on the PATH; install NVIDIA Nsight Systems, or leave --collector away to use torch's profiler"
        )
    return found


def version_command(nsys: str) -> list[str]:
    return [nsys, "--version"]


def profile_command(nsys: str, output: Path, command: Sequence[str]) -> list[str]:
    """`command` under nsys, its forked workers and every kernel inside CUDA graphs included."""
    return [
        nsys, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--trace-fork-before-exec=true",
        "--cuda-graph-trace=node", "--force-overwrite=true", f"--output={output}", *command,
    ]  # fmt: skip


def job_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Workers are spawned, so that nsys follows them, and the engine marks its steps."""
    return {**environ, "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NVTX_SCOPES_FOR_PROFILING": "1"}


def export_command(nsys: str, report: Path, sqlite: Path) -> list[str]:
    return [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={sqlite}", str(report)]


def strip_private(path: Path) -> list[str]:
    """Drop the tables that describe the machine rather than the job; which ones were there.

    Raises NsysUnusable where the file is no SQLite export.
    """
    try:
        with sqlite3.connect(path) as db:
            present = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
            dropped = [name for name in _PRIVATE_TABLES if name in present]
            for name in dropped:
                db.execute(f"drop table {name}")
        with sqlite3.connect(path) as db:
            db.execute("vacuum")  # what is dropped must not be found in free pages
    except sqlite3.DatabaseError as error:
        raise NsysUnusable(f"{path.name} is no export of nsys ({error}); export again with --type sqlite") from error
    return dropped
