"""How long a step kept the GPU: two CUDA events around it, read when they have happened and never waited for.

Not validated on hardware: see DEVIATIONS.md.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from cascade_profiler.saying import say

_READS_PER_STEP = 4  # at most, so that what a step pays does not depend on how far the GPU is behind
_OPEN_LIMIT = 4096


class _Span(NamedTuple):
    number: int
    start: Any
    end: Any


class GpuClock:
    """In the thread that runs the model, on the stream it launches on. An event that fails ends it, not the job."""

    def __init__(self, cuda: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        """cuda: the module torch.cuda, of a process that has a device."""
        self.times_ns: dict[int, int] = {}  # by number
        self.absent = ""  # why nothing is measured any more
        self._cuda = cuda
        self._now_s = now_s
        self._free: list[Any] = []
        self._open: deque[_Span] = deque()

    def mark(self) -> Any:
        """An event that happens when the GPU gets here; None where none can be recorded."""
        if self.absent:
            return None
        try:
            event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
            event.record()
        except Exception as error:  # noqa: BLE001 - the job comes first
            self._give_up(error)
            return None
        return event

    def end(self, number: int, start: Any) -> None:
        """What began at `start` has been launched; its time is under `number` once the GPU has run it."""
        end = self.mark() if start is not None else None
        if end is None:
            return
        self._open.append(_Span(number, start, end))
        self._read(_READS_PER_STEP)
        if len(self._open) > _OPEN_LIMIT:
            self._open.popleft()

    def finish(self, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Read what is left; at most so long, for a GPU that is still running."""
        deadline_s = self._now_s() + timeout_s
        self._read(len(self._open))
        while self._open and not self.absent and self._now_s() < deadline_s:
            sleep(0.005)
            self._read(len(self._open))

    def _read(self, count: int) -> None:
        try:
            while count > 0 and self._open and self._open[0].end.query():
                span = self._open.popleft()
                self.times_ns[span.number] = round(span.start.elapsed_time(span.end) * 1e6)
                self._free += span.start, span.end
                count -= 1
        except Exception as error:  # noqa: BLE001 - the job comes first
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.absent = f"an event on the GPU failed ({type(error).__name__}: {error})"
        self._open.clear()
        say(f"{self.absent}; GPU times of steps are not measured any more")


def why_no_gpu_clock(torch: Any) -> str:
    """Why this process cannot have one; "" where it can."""
    if torch is None:
        return "torch is not loaded in this process"
    return "" if torch.cuda.is_available() else "this process has no CUDA device"
