"""kernelslist.g: which kernels a folder of SASS traces holds, in launch order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LIST_NAMES = ("kernelslist.g", "kernelslist")


class BadTrace(ValueError):
    """A trace that cannot be simulated; the message names the file, the line and the value."""


@dataclass(frozen=True, slots=True)
class KernelsList:
    """Launches in order. Copies to the GPU are known but change nothing: Accel-Sim 1.3 cuts their addresses to 32 bits,
    so that for real ones nothing of them is ever found in L2.
    """

    path: Path
    files: tuple[Path, ...]
    copy_count: int


def read_kernelslist(folder: Path) -> KernelsList:
    path = _list_in(folder)
    files: list[Path] = []
    copies = 0
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        text = line.strip()
        if text.startswith("MemcpyHtoD"):
            if len(text.split(",")) != 3:
                raise BadTrace(f"{path.name}, line {number}: {text!r} is not MemcpyHtoD,address,bytes")
            copies += 1
        elif text.startswith("kernel"):
            file = path.parent / text
            # A fifo is as good as a file: whoever writes it may be tracing still.
            if not file.exists():
                raise BadTrace(f"{path.name}, line {number}: {text!r} is not in {path.parent}")
            files.append(file)
    if not files:
        raise BadTrace(f"{path}: lists no kernel")
    return KernelsList(path, tuple(files), copies)


def _list_in(folder: Path) -> Path:
    if folder.exists() and not folder.is_dir():
        return folder
    for name in LIST_NAMES:
        if (folder / name).exists():
            return folder / name
    raise BadTrace(f"{folder}: has no {' or '.join(LIST_NAMES)}")
