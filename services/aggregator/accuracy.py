"""How far forward predictions are from what was measured on the source GPU, per kernel and in total."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Ratios; see the glossary. `weighted_error` and `total_error` weigh each task by its launches."""

    kernel_count: int
    median_ape: float
    mape: float
    weighted_error: float
    total_error: float


def accuracy(
    simulated_ns: NDArray[np.int64], measured_ns: NDArray[np.int64], launch_count: NDArray[np.int64]
) -> Accuracy | None:
    """None where no task has both times. Forward predictions only: a corrected one knows the measured time."""
    both = (simulated_ns >= 0) & (measured_ns > 0)
    if not both.any():
        return None
    simulated, measured = simulated_ns[both].astype(np.float64), measured_ns[both].astype(np.float64)
    launches = launch_count[both]
    ape = np.abs(simulated - measured) / measured
    measured_sum = fsum(measured * launches)
    return Accuracy(
        kernel_count=int(both.sum()),
        median_ape=float(np.median(ape)),
        mape=fsum(ape) / len(ape),
        weighted_error=fsum(np.abs(simulated - measured) * launches) / measured_sum,
        total_error=fsum((simulated - measured) * launches) / measured_sum,
    )
