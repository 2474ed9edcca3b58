"""Kernels that pass over their bytes once: norms, activations, rope, quantisation, copies, sampling and their like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.kernels.work import Floats
from services.simworker.simulators.analytic.columns import GpuColumns, Limits, Parameters, cold_share, overlapped

PARAMETERS = ("floor", "dram", "l2", "l2bw", "row", "passes", "overlap", "place")
"""row: µs per row that an SM works on, one after the other · passes: how often the bytes move, beyond the compulsory
once · place: instructions for the address of one element where it is worked out,
none while fitting, as no measured row has any; the other words are those of gemm.py."""


@dataclass(frozen=True, slots=True)
class RowWise:
    """Rows of tasks, each (1, tasks)."""

    moved_bytes: Floats  # read and written
    rows: Floats
    flop: Floats
    placed_elements: Floats


def rowwise(p: Parameters, gpu: GpuColumns, work: RowWise) -> Limits:
    moved = work.moved_bytes * p["passes"]
    cold = cold_share(moved, gpu.l2_bytes * p["l2"])
    dram = moved * cold / (gpu.dram_bytes_per_us * p["dram"])
    l2 = moved / (gpu.l2_bytes_per_us_per_sm * p["l2bw"] * gpu.sm)
    issue = p["row"] * gpu.cycle * np.maximum(work.rows / gpu.sm, np.minimum(work.rows, 1))
    issue = issue + p.get("place", 0.0) * work.placed_elements / (gpu.fp32_flop_per_us / 2)
    tensor = np.broadcast_to(work.flop / gpu.fp32_flop_per_us, dram.shape)
    total = overlapped(p["overlap"], dram, l2, np.broadcast_to(issue, dram.shape), tensor)
    floor = np.broadcast_to(p["floor"], total.shape)
    return Limits(total + floor, tensor, dram, l2, np.broadcast_to(issue, total.shape), floor)
