"""Attention: one form for few queries over a long cache (decode, MLA), one for many queries (prefill, mixed steps)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.kernels.work import Floats
from services.simworker.simulators.analytic.columns import GpuColumns, Limits, Parameters, cold_share, overlapped
from services.simworker.simulators.base import Z90

DECODE_PARAMETERS = (
    "floor", "unit", "unit_wave", "quantised", "k0", "step", "rows", "wide", "l2bw", "l2", "dram", "sat", "merge",
    "merge_l2", "overlap", "grouped",
)  # fmt: skip
"""floor: µs of the launch and all that is paid once · unit: µs per CTA of an SM, while there are few · unit_wave: the
same, while there are many · k0: keys that starting a CTA costs · step: µs per key that a CTA needs at least · rows:
arithmetic per key and row of the tile, in units of the peak rate · wide: extra time of heads beyond 128, per 128 ·
merge: µs of joining splits · merge_l2: its traffic in units of the partial results' · grouped: 1 = the kernel only
splits keys, and only shares them between the heads of a group, where a group has several heads and no window
(FlashAttention 2); the other words are those of gemm.py."""

PREFILL_PARAMETERS = (
    "floor", "tensor", "exp", "padding", "k0", "tail", "packed", "wide", "l2bw", "l2", "dram", "rowcost", "tile", "mix",
    "overlap", "fp8",
)  # fmt: skip
"""tensor, exp: share of the peak rate of matrix products and of exponentials · padding: keys per query computed beyond
the mask, in blocks of 128 · k0: keys that starting a CTA costs · tail: share of the longest CTA that nothing hides ·
packed: 1 = heads of a group fill one tile of queries together · rowcost: µs per CTA of an SM · fp8: factor on
arithmetic where the cache has 8 bits; the other words are those of gemm.py."""

_ROWS_OF_A_TILE = 16.0  # the smallest tile of an mma instruction: a query alone costs as much


@dataclass(frozen=True, slots=True)
class Decode:
    """Rows of tasks, each (1, tasks). A unit is what shares keys: one KV head of one request."""

    units: Floats
    heads_per_unit: Floats
    rows_per_unit: Floats  # queries: heads that share the keys times new tokens
    keys: Floats  # per unit, mean
    keys_longest: Floats
    key_bytes: Floats  # one key and its value
    key_flop: Floats  # per query
    width: Floats  # elements of a head
    io_bytes: Floats  # queries and results
    merge_bytes: Floats  # partial results of one split
    kv_copies: Floats  # caches of layers that pass through L2 between two uses of one; infinite: always cold
    windowed: Floats  # 1 where a sliding window applies


def decode(p: Parameters, gpu: GpuColumns, flop_per_us: Floats, work: Decode, splits: Sequence[int]) -> Limits:
    alone = p["grouped"] * ((work.heads_per_unit <= 1) | (work.windowed > 0))  # (configs, tasks) of 0 or 1
    units = work.units * (1 + alone * (work.heads_per_unit - 1))
    kv_bytes = work.units * work.keys * work.key_bytes
    kept = gpu.l2_bytes * p["l2"]
    between = np.where(
        np.isinf(work.kv_copies), np.inf, kv_bytes * np.where(np.isinf(work.kv_copies), 1, work.kv_copies)
    )
    cold = cold_share(between, kept)
    wide = 1 + p["wide"] * np.maximum(work.width / 128 - 1, 0)
    dram_us = kv_bytes * cold * wide / (gpu.dram_bytes_per_us * p["dram"])

    l2_per_us = gpu.l2_bytes_per_us_per_sm * p["l2bw"]
    rows = np.maximum(work.rows_per_unit * (1 - alone) + alone, _ROWS_OF_A_TILE)
    key_us = wide * np.maximum(p["step"] * gpu.cycle, p["rows"] * rows * work.key_flop * gpu.sm / flop_per_us)
    l2_key_us = wide * work.key_bytes / l2_per_us
    dram_key_us = wide * work.key_bytes * cold * (gpu.sm_calibrated / (p["sat"] * gpu.dram_bytes_per_us))
    io_us = work.io_bytes / (l2_per_us * gpu.sm)
    merge_us = p["merge_l2"] * work.merge_bytes / (l2_per_us * gpu.sm)
    fixed = (p["unit"], p["unit_wave"] * gpu.cycle, p["quantised"], p["k0"], p["merge"], p["overlap"])

    def limits(count: float | Floats) -> tuple[Floats, Floats, Floats, Floats]:
        unit, unit_wave, quantised, k0, merge, overlap = fixed
        ctas = np.where(alone > 0, units, units * count)
        load = np.maximum(ctas / gpu.sm, 1)
        waves = load + quantised * (np.ceil(load) - load)
        parts = np.where(alone > 0, 1.0, count)
        mean, longest = work.keys / parts + k0, work.keys_longest / parts + k0
        tensor = np.maximum(waves * mean, longest) * key_us
        keys_per_sm = np.maximum(load * mean, longest)
        l2 = keys_per_sm * l2_key_us + io_us
        dram = np.maximum(dram_us, keys_per_sm * dram_key_us)
        joined = np.where(parts > 1, merge + parts * merge_us, 0.0)
        return (
            overlapped(overlap, tensor, l2, dram) + unit * np.sqrt(waves) + unit_wave * waves + joined,
            tensor,
            dram,
            l2,
        )

    fastest, chosen = limits(float(splits[0]))[0], None
    for index, count in enumerate(splits[1:], 1):
        total = limits(float(count))[0]
        better = total < fastest
        chosen = np.zeros(fastest.shape, dtype=np.intp) if chosen is None else chosen
        chosen[better] = index
        np.copyto(fastest, total, where=better)
    picked = np.array(splits, dtype=np.float64)[np.zeros(fastest.shape, dtype=np.intp) if chosen is None else chosen]
    total, tensor, dram, l2 = limits(picked)
    floor = np.broadcast_to(p["floor"], total.shape)
    issue = np.maximum(total - np.maximum(np.maximum(tensor, dram), l2), 0)
    return Limits(total + floor, tensor, dram, l2, issue, floor)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Rows of tasks, each (1, tasks)."""

    pairs: Floats  # query-key pairs of one head, mask and window applied
    queries: Floats  # of all requests
    queries_mean: Floats  # of one request
    keys_longest: Floats  # that one query tile of the longest request sees
    keys: Floats  # of all requests, read from the cache
    requests: Floats
    heads: Floats
    kv_heads: Floats
    width: Floats
    kv_bytes: Floats  # per element
    eight_bit: Floats  # 1 where the cache has 8 bits


def prefill(p: Parameters, gpu: GpuColumns, flop_per_us: Floats, work: Prefill) -> Limits:
    group = work.heads / np.maximum(work.kv_heads, 1)
    # Tiles of queries: of each head by itself, or of all heads of a group together, which wastes less when queries are
    # few.
    alone = work.requests * np.ceil(work.queries_mean / p["tile"]) * work.heads
    together = work.requests * np.ceil(work.queries_mean * group / p["tile"]) * work.kv_heads
    tiles = alone + p["packed"] * (together - alone)
    filled = work.queries * work.heads / p["tile"]
    empty = np.maximum(tiles / np.maximum(filled, 1e-9), 1)  # tiles that are paid for, per tile of real queries
    pairs = work.heads * (work.pairs * empty + work.queries * p["padding"] * 128) + tiles * p["k0"] * p["tile"]

    wide = 1 + p["wide"] * np.maximum(work.width / 128 - 1, 0)
    eight = 1 + (p["fp8"] - 1) * work.eight_bit
    pair_tensor = eight * wide * 4 * work.width * gpu.sm / (flop_per_us * p["tensor"])  # µs on one SM
    pair_exp = 1 / (gpu.mufu_per_us_per_sm * p["exp"])
    pair = overlapped(p["mix"], pair_tensor, np.broadcast_to(pair_exp, pair_tensor.shape))
    load = np.maximum(tiles / gpu.sm, 1)
    mean = pairs / gpu.sm * pair + p["rowcost"] * gpu.cycle * load
    longest = p["tile"] * (work.keys_longest + p["k0"]) * pair + p["rowcost"] * gpu.cycle
    compute = np.maximum(mean, longest) + p["tail"] * np.minimum(mean, longest)

    q_and_out = 4 * work.queries * work.heads * work.width
    kv = 2 * work.keys * work.kv_heads * work.width * work.kv_bytes
    cold = cold_share(q_and_out + kv, gpu.l2_bytes * p["l2"])
    dram = (q_and_out + kv) * cold / (gpu.dram_bytes_per_us * p["dram"])
    # Each tile of queries reads the keys it sees from L2.
    seen = pairs / p["tile"] * 2 * work.width * work.kv_bytes
    l2 = (seen + q_and_out) / (gpu.l2_bytes_per_us_per_sm * p["l2bw"] * gpu.sm)
    total = overlapped(p["overlap"], compute, dram, l2)
    floor = np.broadcast_to(p["floor"], total.shape)
    tensor = np.broadcast_to(pairs / gpu.sm * pair_tensor, total.shape)
    issue = np.broadcast_to(pairs / gpu.sm * pair_exp + np.maximum(compute - mean, 0), total.shape)
    return Limits(total + floor, tensor, dram, l2, issue, floor)


# How much of the shorter part of a mixed step the longer one does not hide: prefill computes while decode streams
# keys, but one launch gives each SM to one of them at a time. Not measured; it hurts where both parts take alike. Any
# share from none to all of it is as likely: p10 to p90 are four fifths of that range.
_MIXED_EXPOSED, _MIXED_RANGE = 0.7, 0.4


def mixed(
    p: Parameters, gpu: GpuColumns, flop_per_us: Floats, chunks: Prefill, decodes: Decode, splits: Sequence[int]
) -> Limits:
    """Prefill chunks and decodes in one launch; `p` has both forms' constants, as "prefill.…" and "decode.…"."""
    first = prefill(
        {n.removeprefix("prefill."): v for n, v in p.items() if n.startswith("prefill.")}, gpu, flop_per_us, chunks
    )
    second = decode(
        {n.removeprefix("decode."): v for n, v in p.items() if n.startswith("decode.")},
        gpu,
        flop_per_us,
        decodes,
        splits,
    )
    here = chunks.queries > 0
    one = np.where(here, first.total - first.launch, 0)
    other = np.where(decodes.units > 0, second.total - second.launch, 0)
    floor = np.maximum(first.launch, second.launch)
    total, unsure = together(one, other, floor)

    def both(name: str) -> Floats:
        return np.where(here, getattr(first, name), 0) + np.where(decodes.units > 0, getattr(second, name), 0)

    return Limits(total, both("tensor"), both("dram"), both("l2"), both("issue"), floor, unsure)


def together(one: Floats, other: Floats, floor: Floats) -> tuple[Floats, Floats]:
    """Two parts in one launch, without their floors: the time of both, and sigma of its ln for what nobody measured."""
    longer, shorter = np.maximum(one, other), np.minimum(one, other)
    range_ln = np.log((longer + shorter + floor) / (longer + floor))
    return longer + _MIXED_EXPOSED * shorter + floor, _MIXED_RANGE * range_ln / Z90
