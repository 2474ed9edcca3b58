"""Matrix multiplications: the fastest of a list of tiles and k splits, each limited by arithmetic, L2 and DRAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.kernels.work import Floats
from services.simworker.simulators.analytic.columns import GpuColumns, Limits, Parameters, cold_share, overlapped

PARAMETERS = (
    "floor", "eff", "k0", "step", "out", "quantised", "l2bw", "l2", "dram", "sat", "split", "split_l2", "restream",
    "overlap",
)  # fmt: skip
"""floor: µs of launch, prologue and epilogue · eff: share of the peak rate · k0: columns of k that filling the
pipeline costs · step: µs per column of k that one CTA needs at least, its loads waiting for L2 · out: bytes of L2
traffic per element of C · quantised: 1 = whole waves, 0 = persistent or stream-K · l2bw, dram: reached share of the
datasheet rate · l2: share of L2 that keeps operands · sat: DRAM rate of one CTA, in shares of the bandwidth per SM ·
split: µs of a second phase · split_l2: its traffic in units of C's fp32 round trip · restream: share of the re-reading
between waves that misses L2 · overlap: share of the shorter limits that is not hidden."""

# Outputs that all SMs work on at once: two CTAs of 128 x 128 on each. What lies beyond is read again.
_OUTPUTS_IN_FLIGHT_PER_SM = 2 * 128 * 128


@dataclass(frozen=True, slots=True)
class Gemm:
    """Rows of tasks, each (1, tasks). `matrices` weight matrices of n x k; `m` rows go to each on average."""

    m: Floats
    n: Floats
    k: Floats
    matrices: Floats
    m_total: Floats  # rows over all matrices
    a_bytes: Floats  # per element
    w_bytes: Floats
    out_bytes: Floats
    weight_copies: Floats  # sets of weights that pass through L2 between two uses of one; infinite: always cold
    partial_tiles: Floats  # tile rows that are partly empty because rows are spread unevenly: 0 for one matrix


@dataclass(frozen=True, slots=True)
class _Shared:
    """Terms that no tile changes."""

    cold: Floats
    activations_cold: Floats
    dram_us: Floats


def gemm(
    p: Parameters, gpu: GpuColumns, flop_per_us: Floats, work: Gemm, candidates: Sequence[Sequence[int]]
) -> Limits:
    """`flop_per_us` is the peak of the arithmetic used, of shape (configs, 1)."""
    shared = _shared(p, gpu, work)
    fastest: Floats | None = None
    chosen = np.zeros(shared.dram_us.shape, dtype=np.intp)
    for index, (tile_m, tile_n, splits) in enumerate(candidates):
        total = _limits(p, gpu, flop_per_us, work, shared, float(tile_m), float(tile_n), float(splits))[0]
        if fastest is None:
            fastest = total
        else:
            better = total < fastest
            np.copyto(fastest, total, where=better)
            chosen[better] = index
    picked = np.array(candidates, dtype=np.float64)[chosen]
    total, tensor, dram, l2, issue = _limits(
        p, gpu, flop_per_us, work, shared, picked[..., 0], picked[..., 1], picked[..., 2]
    )
    floor = np.broadcast_to(p["floor"], total.shape)
    return Limits(total + floor, tensor, dram, l2, issue, floor)


def _shared(p: Parameters, gpu: GpuColumns, work: Gemm) -> _Shared:
    weights = work.matrices * work.n * work.k * work.w_bytes
    a, c = work.m_total * work.k * work.a_bytes, work.m_total * work.n * work.out_bytes
    kept = gpu.l2_bytes * p["l2"]
    # Infinite copies: one pass over everything is enough to evict. 0 · inf would be nan for an empty matrix.
    between = np.where(
        np.isinf(work.weight_copies), np.inf, weights * np.where(np.isinf(work.weight_copies), 1, work.weight_copies)
    )
    cold = cold_share(between + a + c, kept)
    activations_cold = cold_share(weights + a + c, kept)
    # Rows and columns in flight: as square as the matrix allows. The other operand streams past once for each such
    # band.
    in_flight = gpu.sm * _OUTPUTS_IN_FLIGHT_PER_SM
    rows = np.minimum(np.maximum(work.m, 1), np.sqrt(in_flight))
    columns = np.minimum(np.maximum(work.n, 1), in_flight / rows)
    again = weights * np.maximum(1, work.m / rows) + a * np.maximum(1, work.n / columns)
    dram_bytes = np.maximum(
        weights * cold + (a + c) * activations_cold, p["restream"] * again * cold_share(weights + a, kept)
    )
    return _Shared(cold, activations_cold, dram_bytes / (gpu.dram_bytes_per_us * p["dram"]))


def _limits(
    p: Parameters,
    gpu: GpuColumns,
    flop_per_us: Floats,
    work: Gemm,
    shared: _Shared,
    tile_m: float | Floats,
    tile_n: float | Floats,
    splits: float | Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Without the floor: the time, arithmetic, DRAM, L2, and what is left of the time (fill, second phase)."""
    tiles = work.matrices * (np.ceil(work.m / tile_m) + work.partial_tiles) * np.ceil(work.n / tile_n)
    k = work.k / splits
    load = np.maximum(tiles * splits / gpu.sm, 1)  # CTAs per SM; one SM at least works
    waves = load + p["quantised"] * (np.ceil(load) - load)

    per_sm = flop_per_us / gpu.sm * p["eff"]
    flop_per_k = (2.0 * tile_m) * tile_n
    tensor = waves * np.maximum((k + p["k0"]) * flop_per_k / per_sm, k * (p["step"] * gpu.cycle))

    a_rows, w_rows = np.minimum(tile_m, work.m), np.minimum(tile_n, work.n)
    a, w = a_rows * k * work.a_bytes, w_rows * k * work.w_bytes
    l2_per_us = gpu.l2_bytes_per_us_per_sm * p["l2bw"]
    l2 = (a + w + p["out"] * (a_rows * w_rows)) * load / l2_per_us
    # One CTA's own stream from DRAM is slow: few CTAs do not saturate it.
    stream = (
        (w * shared.cold + a * shared.activations_cold)
        * load
        * (gpu.sm_calibrated / (p["sat"] * gpu.dram_bytes_per_us))
    )
    dram = np.maximum(shared.dram_us, stream)

    time = overlapped(p["overlap"], tensor, l2, dram)
    second = np.where(
        np.asarray(splits) > 1,
        p["split"] + p["split_l2"] * (8 * splits) * work.m_total * work.n / (l2_per_us * gpu.sm),
        0.0,
    )
    full = flop_per_k * k / per_sm * load
    return time + second, np.minimum(tensor, full), dram, l2, np.maximum(tensor - full, 0) + second
