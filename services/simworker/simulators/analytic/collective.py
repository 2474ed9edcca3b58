"""Collectives: the fastest of three protocols, each a fixed cost, a cost per rank and a rate of the link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.kernels.work import Floats
from services.simworker.simulators.analytic.columns import Limits, Parameters

PROTOCOLS = ("small", "medium", "large")
PARAMETERS = tuple(f"{word}_{name}" for name in PROTOCOLS for word in ("fixed", "rank", "rate", "share"))
"""fixed: µs · rank: µs per rank beyond two, on a scale of log2 · rate: share of the link's datasheet rate · share: 0 =
every rank moves the algorithm's minimum, 1 = every rank sends its whole message to every other, more = they get in
each other's way on top (PCIe)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Rows of tasks, each (1, tasks)."""

    ranks: Floats
    message_bytes: Floats
    rounds: Floats  # passes over the message of the cheapest algorithm: 2 for all-reduce


def collective(p: Parameters, link_bytes_per_us: Floats, work: Collective) -> Limits:
    """`link_bytes_per_us` of shape (configs, tasks) or (configs, 1): that of the link the ranks share."""
    least = work.rounds * (work.ranks - 1) / np.maximum(work.ranks, 1) * work.message_bytes
    most = np.maximum(work.ranks - 1, 0) * work.message_bytes
    best: Floats | None = None
    best_fixed, best_moving = np.zeros(()), np.zeros(())
    for name in PROTOCOLS:
        moved = least + p[f"share_{name}"] * np.maximum(most - least, 0)
        fixed = p[f"fixed_{name}"] + p[f"rank_{name}"] * np.log2(np.maximum(work.ranks / 2, 1))
        moving = moved / (link_bytes_per_us * p[f"rate_{name}"])
        total = fixed + moving
        if best is None:
            best, best_fixed, best_moving = total, np.broadcast_to(fixed, total.shape), moving
        else:
            better = total < best
            best = np.where(better, total, best)
            best_fixed, best_moving = np.where(better, fixed, best_fixed), np.where(better, moving, best_moving)
    assert best is not None
    nothing = np.zeros(best.shape)
    return Limits(best, nothing, best_moving, nothing, nothing, best_fixed)
