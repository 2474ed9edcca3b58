"""Which simulators there are, by name."""

from __future__ import annotations

from services.simworker.simulators.analytic.simulator import AnalyticSimulator
from services.simworker.simulators.base import KernelSimulator
from services.simworker.simulators.roofline import RooflineSimulator


def simulators(thread_count: int) -> dict[str, KernelSimulator]:
    """All simulators of this installation; each may use so many threads."""
    return {"analytic": AnalyticSimulator(thread_count), "roofline": RooflineSimulator()}
