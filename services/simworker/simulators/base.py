"""What every simulator is: a pure function from the work of tasks and from GPUs to times with intervals and reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from cascade_schemas.gpu import GpuSpec
from numpy.typing import NDArray

from services.kernels.work import WorkTable

Nanoseconds = NDArray[np.int64]
Codes = NDArray[np.int16]

BOUNDS = ("tensor", "dram", "l2", "issue", "launch", "link", "none")
"""What a kernel waits for longest. "none": nothing was predicted."""

FAILED_NS = -1
"""The duration of a task that a simulator refuses to predict; its reason says why."""

Z90 = 1.2815515655446004  # standard normal quantile of 0.9: p10 and p90 are value · exp(∓Z90 · sigma)


@dataclass(frozen=True, slots=True)
class Predictions:
    """Arrays of shape (configs, tasks). The breakdown is what each limit alone would take, so its sum is no time."""

    duration_ns: Nanoseconds  # FAILED_NS where refused
    p10_ns: Nanoseconds
    p90_ns: Nanoseconds
    tensor_ns: Nanoseconds  # arithmetic: tensor cores, or SIMT where the kernel uses those
    dram_ns: Nanoseconds  # bytes that leave the chip: DRAM's, or the link's for a collective
    l2_ns: Nanoseconds
    issue_ns: Nanoseconds  # exponentials, prologues, serial parts: what no rate of the others explains
    launch_ns: Nanoseconds  # the floor under any kernel of this family
    bound: NDArray[np.uint8]  # index into BOUNDS
    sigma: NDArray[np.float32]  # of ln(measured ÷ predicted)
    reason: Codes  # index into reasons
    reasons: tuple[str, ...]  # short codes joined by ";": "calibrated:a100_sxm_80gb", "class:wgmma;dtype_fallback"
    tier: str = "A"  # A: from metadata · B: the built-in SASS simulator · C: Accel-Sim
    sm_cycles: Nanoseconds | None = None  # cycles of an SM, -1 where refused; None: this simulator counts none
    log: tuple[tuple[str, ...], ...] = ()  # per config, lines for its log
    statistics: tuple[tuple[str, ...], ...] = ()  # per config and task JSON of what was counted, "" where nothing was

    def reasons_of(self, config: int) -> list[str]:
        """One config's reasons, per task."""
        return [self.reasons[code] for code in self.reason[config]]

    def bounds_of(self, config: int) -> list[str]:
        """One config's dominant limits, per task."""
        return [BOUNDS[code] for code in self.bound[config]]


def refused(config_count: int, task_count: int, reason: str) -> Predictions:
    """No task is predicted on any config, each for this reason."""
    shape = (config_count, task_count)
    nothing = np.full(shape, FAILED_NS, dtype=np.int64)
    return Predictions(
        duration_ns=nothing,
        p10_ns=nothing,
        p90_ns=nothing,
        tensor_ns=nothing,
        dram_ns=nothing,
        l2_ns=nothing,
        issue_ns=nothing,
        launch_ns=nothing,
        bound=np.full(shape, BOUNDS.index("none"), dtype=np.uint8),
        sigma=np.zeros(shape, dtype=np.float32),
        reason=np.zeros(shape, dtype=np.int16),
        reasons=(reason,),
    )


class KernelSimulator(Protocol):
    """(work, GPUs, name, version, calibration digest) fix the answer: nothing else may enter it."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def calibration_digest(self) -> str:
        """Of every constant that enters a prediction; "" where there are none."""

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions: ...


@runtime_checkable
class Interruptible(Protocol):
    """A simulator that can be ended in the middle; `simulate` then raises Cancelled."""

    def cancel(self) -> None: ...


@runtime_checkable
class Talking(Protocol):
    """A simulator that says something while it works, not only at its end."""

    def listen(self, hear: Callable[[int, str], None]) -> None:
        """From now on call with the index of a GPU and a line about it, from any thread."""


@runtime_checkable
class Selective(Protocol):
    """A simulator that cannot simulate every GPU."""

    def obstacle(self, gpu: GpuSpec) -> str:
        """Why not this one, in one sentence; "": it can."""
