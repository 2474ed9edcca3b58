"""Times of one process on one scale: nanoseconds of unix time, as steady as the monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_LOOKS = 16


@dataclass(frozen=True, slots=True)
class Clock:
    """unix = monotonic + offset, taken once: a step of the system's clock during a trace moves nothing."""

    offset_ns: int
    error_ns: int  # half of the shortest time that a look at both clocks took

    def unix_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns + self.offset_ns


def aligned_clock(
    unix_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.perf_counter_ns
) -> Clock:
    """Of several looks at both clocks the one that took least time says how far they are apart."""
    best: tuple[int, int] | None = None
    for _ in range(_LOOKS):
        before = monotonic_ns()
        unix = unix_ns()
        after = monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, unix - (before + after) // 2)
    assert best is not None
    return Clock(best[1], (best[0] + 1) // 2)
