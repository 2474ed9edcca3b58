"""Times for tasks without a result: from the ratio that the same family shows where it was simulated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def filled(
    duration_ns: NDArray[np.int64], measured_ns: NDArray[np.int64], family: NDArray[np.object_]
) -> NDArray[np.int64]:
    """Durations with failures (-1) replaced by measured time × the median simulated-to-measured ratio.

    The ratio is the family's, else all tasks'. Where nothing was measured a failure stays -1: there is no honest guess.
    All arrays have shape (tasks,); -1 means none.
    """
    missing = (duration_ns < 0) & (measured_ns > 0)
    known = (duration_ns >= 0) & (measured_ns > 0)
    if not missing.any() or not known.any():
        return duration_ns
    result = duration_ns.copy()
    ratios = np.divide(duration_ns, measured_ns, out=np.zeros(len(duration_ns)), where=known)
    overall = float(np.median(ratios[known]))
    for name in sorted(set(family[missing])):
        members = known & (family == name)
        ratio = float(np.median(ratios[members])) if members.any() else overall
        chosen = missing & (family == name)
        result[chosen] = np.rint(measured_ns[chosen] * ratio).astype(np.int64)
    return result
