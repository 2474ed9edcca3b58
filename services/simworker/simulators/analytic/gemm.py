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
    uneven: Floats  # 0 where all matrices have as many rows, up to 1 where some have twice the mean and more


@dataclass(frozen=True, slots=True)
class _Shared:
    """Terms that no tile changes. A CTA's stream from DRAM is in µs per byte: cold bytes come slowly, hot ones free."""

    dram_us: Floats
    stream_w: Floats
    stream_a: Floats
    l2_us_per_byte: Floats  # of one SM
    tensor_us_per_flop: Floats  # of one SM
    step_us: Floats
    merge_us_per_split: Floats  # the second phase, which adds the splits' results


def gemm(
    p: Parameters, gpu: GpuColumns, flop_per_us: Floats, work: Gemm, candidates: Sequence[Sequence[int]]
) -> Limits:
    """`flop_per_us` is the peak of the arithmetic used, of shape (configs, 1)."""
    shared = _shared(p, gpu, flop_per_us, work)
    fastest: Floats | None = None
    chosen = np.zeros(shared.dram_us.shape, dtype=np.intp)
    for index, (tile_m, tile_n, splits) in enumerate(candidates):
        tensor, l2, dram = _limits(p, gpu, work, shared, float(tile_m), float(tile_n), float(splits))
        total = overlapped(p["overlap"], tensor, l2, dram)
        if splits > 1:
            total += p["split"] + splits * shared.merge_us_per_split
        if fastest is None:
            fastest = total
        else:
            better = total < fastest
            np.copyto(fastest, total, where=better)
            chosen[better] = index
    assert fastest is not None, "no candidates"
    picked = np.array(candidates, dtype=np.float64)[chosen]
    tensor, l2, dram = _limits(p, gpu, work, shared, picked[..., 0], picked[..., 1], picked[..., 2])
    flop = 2 * work.m_total * work.n * work.k
    ideal = np.minimum(tensor, flop * shared.tensor_us_per_flop / gpu.sm)
    floor = np.broadcast_to(p["floor"], fastest.shape)
    issue = np.maximum(fastest - np.maximum(np.maximum(ideal, l2), dram), 0)
    return Limits(fastest + floor, ideal, dram, l2, issue, floor)


def _shared(p: Parameters, gpu: GpuColumns, flop_per_us: Floats, work: Gemm) -> _Shared:
    weights = work.matrices * work.n * work.k * work.w_bytes
    a, c = work.m_total * work.k * work.a_bytes, work.m_total * work.n * work.out_bytes
    kept = gpu.l2_bytes * p["l2"]
    # Infinite copies: one pass over everything is enough to evict. 0 · inf would be nan for an empty matrix.
    always = np.isinf(work.weight_copies)
    between = np.where(always, np.inf, weights * np.where(always, 1, work.weight_copies))
    cold = cold_share(between + a + c, kept)
    activations_cold = cold_share(weights + a + c, kept)
    # Rows and columns in flight, as square as the matrix allows: past each such band the other operand streams again.
    in_flight = gpu.sm * _OUTPUTS_IN_FLIGHT_PER_SM
    rows = np.minimum(np.maximum(work.m, 1), np.sqrt(in_flight))
    columns = np.minimum(np.maximum(work.n, 1), in_flight / rows)
    again = weights * np.maximum(1, work.m / rows) + a * np.maximum(1, work.n / columns)
    once = weights * cold + (a + c) * activations_cold
    dram_bytes = np.maximum(once, p["restream"] * again * cold_share(weights + a, kept))
    # One CTA's own stream from DRAM is slow: few CTAs do not saturate it.
    stream = gpu.sm_calibrated / (p["sat"] * gpu.dram_bytes_per_us)
    l2_us_per_byte = 1 / (gpu.l2_bytes_per_us_per_sm * p["l2bw"])
    return _Shared(
        dram_us=dram_bytes / (gpu.dram_bytes_per_us * p["dram"]),
        stream_w=cold * (stream * work.w_bytes),
        stream_a=activations_cold * (stream * work.a_bytes),
        l2_us_per_byte=l2_us_per_byte,
        tensor_us_per_flop=gpu.sm / (flop_per_us * p["eff"]),
        step_us=p["step"] * gpu.cycle,
        merge_us_per_split=p["split_l2"] * l2_us_per_byte / gpu.sm * (8 * work.m_total * work.n),
    )


def _limits(
    p: Parameters,
    gpu: GpuColumns,
    work: Gemm,
    shared: _Shared,
    tile_m: float | Floats,
    tile_n: float | Floats,
    splits: float | Floats,
) -> tuple[Floats, Floats, Floats]:
    """µs of arithmetic, L2 and DRAM with one tile and split. Operations on tasks alone come before those on configs."""
    whole = work.m / tile_m
    tile_rows = np.ceil(whole)
    # Unevenly spread rows leave half a tile of each matrix empty.
    tile_rows = tile_rows + work.uneven * np.maximum(whole + 0.5 - tile_rows, 0)
    tiles = work.matrices * tile_rows * np.ceil(work.n / tile_n)
    load = np.maximum((tiles * splits) / gpu.sm, 1)  # CTAs per SM; one SM at least works
    waves = load + p["quantised"] * (np.ceil(load) - load)
    k = work.k / splits
    k_us = (2.0 * tile_m) * tile_n * shared.tensor_us_per_flop
    tensor = waves * np.maximum(k * k_us + p["k0"] * k_us, k * shared.step_us)
    a_rows, w_rows = np.minimum(tile_m, work.m), np.minimum(tile_n, work.n)
    a, w = a_rows * k, w_rows * k
    out_us = p["out"] * shared.l2_us_per_byte
    l2 = load * ((a * work.a_bytes + w * work.w_bytes) * shared.l2_us_per_byte + (a_rows * w_rows) * out_us)
    dram = np.maximum(shared.dram_us, load * (w * shared.stream_w + a * shared.stream_a))
    return tensor, l2, dram
