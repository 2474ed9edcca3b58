"""When a tracer of instructions runs: one step of each kind, switched on and off in the job's own process.

Not validated on hardware: see DEVIATIONS.md.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

from cascade_profiler.outbox import Delivery
from cascade_profiler.plan import Kind, kind_of
from cascade_profiler.recorder import Batch
from cascade_profiler.saying import say

_ON, _OFF = "enable_nvbit_instrumentation", "disable_nvbit_instrumentation"


class Switch:
    """Tracer 2.0 exports functions; every version follows cudaProfilerStart and Stop."""

    def __init__(
        self,
        torch: Any,
        environ: Mapping[str, str] | None = None,
        load: Callable[[str], Any] = ctypes.CDLL,
    ) -> None:
        """Call it once CUDA runs in the process: before, a second copy of the library would be loaded."""
        self._on, self._off = torch.cuda.profiler.start, torch.cuda.profiler.stop
        try:
            library = load((os.environ if environ is None else environ)["CUDA_INJECTION64_PATH"])
            self._on, self._off = getattr(library, _ON), getattr(library, _OFF)
        except (KeyError, OSError, AttributeError):
            return  # an older tracer

    def turn(self, *, is_on: bool) -> None:
        (self._on if is_on else self._off)()


class SassWindows:
    """Stands where a Tracer does: the first step of every kind is traced, no other."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._seen: set[Kind] = set()
        self._is_on = False

    def before_execute(self, batch: Batch) -> int:
        kind = kind_of(batch)
        if kind.phase != "empty" and kind not in self._seen:
            self._seen.add(kind)
            self._is_on = True
            self._switch.turn(is_on=True)
        return 0

    def after_execute(self, batch: Batch, began_ns: int, *, is_over: bool) -> None:  # noqa: ARG002 - a Tracer's
        if is_over:
            self._turn_off()

    def after_sample(self) -> None:
        self._turn_off()

    def stop(self, timeout_s: float) -> Delivery:  # noqa: ARG002 - a Tracer's
        self._turn_off()
        say(f"instructions of {len(self._seen)} steps were traced, one of each kind")
        return Delivery()

    def _turn_off(self) -> None:
        if self._is_on:
            self._is_on = False
            self._switch.turn(is_on=False)
