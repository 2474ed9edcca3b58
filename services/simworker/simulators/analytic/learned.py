"""What was learned beyond a form, in whichever of its two shapes: a table on a grid, or a forest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.kernels.work import Floats, WorkTable
from services.simworker.simulators.analytic import forest, residual
from services.simworker.simulators.analytic.forest import Forest, FormUs
from services.simworker.simulators.analytic.residual import Residual

Learned = Residual | Forest


def evaluate(learned: Learned, form: str, work: WorkTable, form_us: FormUs) -> tuple[Floats, Floats, Floats]:
    """The factor's ln, how much of it is the measured table's, from 0 to 1, and ln of what sigma is to the table's: per
    task.
    """
    if isinstance(learned, Forest):
        return learned.evaluate(work, form_us)
    return residual.evaluate(learned, form, work)


def from_json(stored: Mapping[str, Any]) -> Learned:
    return forest.from_json(stored) if stored.get("kind") == "forest" else residual.from_json(stored)


def to_json(learned: Learned) -> dict[str, Any]:
    return forest.to_json(learned) if isinstance(learned, Forest) else residual.to_json(learned)
