"""FLOP and compulsory bytes of tasks, from their shapes wherever recognition left them out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.kernels.work import Family, Floats, WorkTable

_GEMMS = (Family.GEMM, Family.MOE_GEMM)
_ATTENTION = (Family.ATTENTION_PREFILL, Family.ATTENTION_DECODE, Family.ATTENTION_MIXED)


@dataclass(frozen=True, slots=True)
class Quantities:
    """Per task. Bytes are those of operands read and written once, as if nothing were cached."""

    flop: Floats
    read_bytes: Floats
    write_bytes: Floats
    link_bytes: Floats  # one GPU's, one direction, by the cheapest algorithm


def quantities(work: WorkTable) -> Quantities:
    family = work.text("family")
    gemm = np.isin(family, [str(f) for f in _GEMMS])
    attention = np.isin(family, [str(f) for f in _ATTENTION])
    mla = family == Family.MLA
    moe = family == Family.MOE_GEMM

    m, n, k, batch = work["m"], work["n"], work["k"], np.maximum(work["batch"], 1)
    a_bits, w_bits, out_bits = (np.where(work[b] > 0, work[b], 16.0) for b in ("a_bits", "w_bits", "out_bits"))
    rows = np.where(moe, m * np.maximum(work["topk"], 1), m)
    weights = np.where(moe, experts_hit(work), 1.0) * n * k

    pairs = qk_pairs(work)
    heads, head_dim = work["heads"], work["head_dim"]
    kv_bits = np.where(work["kv_bits"] > 0, work["kv_bits"], 16.0)

    flop = np.select(
        [gemm, attention, mla],
        [2 * batch * rows * n * k, 4 * heads * head_dim * pairs, 2 * heads * (576 + 512) * pairs],
        0.0,
    )
    read = np.select(
        [gemm, attention, mla],
        [
            batch * (rows * k * a_bits + weights * w_bits) / 8,
            2 * work["q_tokens"] * heads * head_dim + 2 * work["kv_tokens"] * work["kv_heads"] * head_dim * kv_bits / 8,
            576 * work["kv_tokens"] * kv_bits / 8 + 2 * work["q_tokens"] * heads * 576,
        ],
        0.0,
    )
    write = np.select(
        [gemm, attention, mla],
        [batch * rows * n * out_bits / 8, 2 * work["q_tokens"] * heads * head_dim, 2 * work["q_tokens"] * heads * 512],
        0.0,
    )
    ranks, message = np.maximum(work["ranks"], 1), work["message_bytes"]
    rounds = np.where(work.text("collective") == "all_reduce", 2.0, 1.0)
    known_bytes = (work["read_bytes"] > 0) | (work["write_bytes"] > 0)
    return Quantities(
        flop=np.where(work["flop"] > 0, work["flop"], flop),
        read_bytes=np.where(known_bytes, work["read_bytes"], read),
        write_bytes=np.where(known_bytes, work["write_bytes"], write),
        link_bytes=np.where(family == Family.COLLECTIVE, rounds * (ranks - 1) / ranks * message, 0.0),
    )


def experts_hit(work: WorkTable) -> Floats:
    """Experts with at least one row; those of balanced routing, where the trace does not tell."""
    experts, topk = np.maximum(work["experts"], 1), np.maximum(work["topk"], 1)
    # log1p: with 256 experts and 1 token the direct power loses nothing, with 10^5 tokens it underflows harmlessly.
    share = np.minimum(topk / experts, 1 - 1e-12)
    balanced = experts * -np.expm1(work["m"] * np.log1p(-share))
    return np.clip(np.where(work["experts_hit"] > 0, work["experts_hit"], balanced), 0, experts)


def busiest_rows(work: WorkTable) -> Floats:
    """Rows of the expert that has most; those of even routing, where nobody tells."""
    mean = work["m"] * np.maximum(work["topk"], 1) / np.maximum(experts_hit(work), 1e-3)
    return np.maximum(work["rows_busiest_expert"], mean)


def qk_pairs(work: WorkTable) -> Floats:
    """Query-key pairs; without them, those of equal causal requests."""
    sequences = np.maximum(work["sequences"], 1)
    q, kv = work["q_tokens"] / sequences, work["kv_tokens"] / sequences
    causal = sequences * np.maximum(q * (kv - (q - 1) / 2), q)
    return np.where(work["qk_pairs"] > 0, work["qk_pairs"], causal)
