"""From the work of tasks to the rows that the forms read."""

from __future__ import annotations

import numpy as np

from services.kernels.work import Family, Floats, WorkTable
from services.simworker.simulators.analytic.attention import Decode, Prefill
from services.simworker.simulators.analytic.collective import Collective
from services.simworker.simulators.analytic.gemm import Gemm
from services.simworker.simulators.analytic.rowwise import RowWise
from services.simworker.simulators.quantities import busiest_rows, experts_hit, qk_pairs, quantities

# DeepSeek's latent attention: 512 compressed elements of a token's keys and values, 64 more that carry its position.
MLA_KEY_WIDTH, MLA_VALUE_WIDTH = 576.0, 512.0
_BY_ROW = [
    str(family)
    for family in (
        Family.NORM, Family.ACTIVATION, Family.ROPE, Family.QUANTISE, Family.KV_WRITE, Family.SOFTMAX, Family.SAMPLING,
        Family.ATTENTION_COMBINE, Family.MOE_ROUTING, Family.STATE_SPACE,
    )
]  # fmt: skip
# Kinds of Vidur's tables: framework ops as engines of 2024 ran them, some of several kernels. No trace has them: their
# constants serve to score pairs, and are kept apart from those of today's kernels.
OP_2024 = "op_2024"
_BYTES_OF_A_ROW = 64.0
# What a thread of an unknown kernel moves: one vectorised load and one store. A guess, and the interval says so.
GUESSED_BYTES_PER_THREAD = 32.0


def gemm_rows(work: WorkTable) -> Gemm:
    m, batch = _row(work, "m"), np.maximum(_row(work, "batch"), 1)
    return Gemm(
        m=m,
        n=_row(work, "n"),
        k=_row(work, "k"),
        matrices=batch,
        m_total=m * batch,
        a_bytes=_element_bytes(work, "a_bits"),
        w_bytes=_element_bytes(work, "w_bits"),
        out_bytes=_element_bytes(work, "out_bits"),
        weight_copies=_copies(work, "weight_copies"),
        uneven=np.zeros((1, work.count)),
    )


def moe_rows(work: WorkTable) -> Gemm:
    rows = _row(work, "m") * np.maximum(_row(work, "topk"), 1)
    hit = np.maximum(experts_hit(work)[None, :], 1e-3)
    return Gemm(
        m=rows / hit,
        n=_row(work, "n"),
        k=_row(work, "k"),
        matrices=hit,
        m_total=rows,
        a_bytes=_element_bytes(work, "a_bits"),
        w_bytes=_element_bytes(work, "w_bits"),
        out_bytes=_element_bytes(work, "out_bits"),
        weight_copies=_copies(work, "weight_copies"),
        uneven=np.clip(busiest_rows(work)[None, :] / np.maximum(rows / hit, 1e-9) - 1, 0, 1),
    )


def decode_rows(work: WorkTable) -> Decode:
    requests = np.maximum(_row(work, "sequences"), 1)
    kv_heads = np.maximum(_row(work, "kv_heads"), 1)
    heads = np.maximum(_row(work, "heads"), 1)
    queries = np.maximum(_row(work, "q_tokens"), requests)
    width = _row(work, "head_dim")
    keys = _row(work, "kv_tokens") / requests
    longest = _row(work, "kv_longest")
    window = _row(work, "window")
    longest = np.where(window > 0, np.minimum(longest, window), longest)
    return Decode(
        units=requests * kv_heads,
        heads_per_unit=heads / kv_heads,
        rows_per_unit=queries / requests * heads / kv_heads,
        keys=keys,
        keys_longest=np.maximum(longest, keys),
        key_bytes=2 * width * _element_bytes(work, "kv_bits"),
        key_flop=4 * width,
        width=width,
        io_bytes=4 * queries * heads * width,
        merge_bytes=8 * queries * heads * width,
        kv_copies=_copies(work, "kv_copies"),
        windowed=(window > 0).astype(np.float64),
    )


def mla_rows(work: WorkTable) -> Decode:
    requests = np.maximum(_row(work, "sequences"), 1)
    heads = np.maximum(_row(work, "heads"), 1)
    queries = np.maximum(_row(work, "q_tokens"), requests)
    keys = _row(work, "kv_tokens") / requests
    return Decode(
        units=requests,
        heads_per_unit=heads,
        rows_per_unit=queries / requests * heads,
        keys=keys,
        keys_longest=np.maximum(_row(work, "kv_longest"), keys),
        key_bytes=MLA_KEY_WIDTH * _element_bytes(work, "kv_bits"),
        key_flop=np.full((1, work.count), 2 * (MLA_KEY_WIDTH + MLA_VALUE_WIDTH)),
        width=np.full((1, work.count), 128.0),
        io_bytes=2 * queries * heads * (MLA_KEY_WIDTH + MLA_VALUE_WIDTH),
        merge_bytes=8 * queries * heads * MLA_VALUE_WIDTH,
        kv_copies=_copies(work, "kv_copies"),
        windowed=np.zeros((1, work.count)),
    )


def prefill_rows(work: WorkTable) -> Prefill:
    requests = np.maximum(_row(work, "sequences"), 1)
    queries = np.maximum(_row(work, "q_tokens"), requests)
    longest = np.maximum(_row(work, "kv_longest"), _row(work, "kv_tokens") / requests)
    window = _row(work, "window")
    kv_bytes = _element_bytes(work, "kv_bits")
    return Prefill(
        pairs=qk_pairs(work)[None, :],
        queries=queries,
        queries_mean=queries / requests,
        keys_longest=np.where(window > 0, np.minimum(longest, window + 128), longest),
        keys=_row(work, "kv_tokens"),
        requests=requests,
        heads=np.maximum(_row(work, "heads"), 1),
        kv_heads=np.maximum(_row(work, "kv_heads"), 1),
        width=_row(work, "head_dim"),
        kv_bytes=kv_bytes,
        eight_bit=(kv_bytes < 2).astype(np.float64),
    )


def mixed_rows(work: WorkTable) -> tuple[Prefill, Decode]:
    """The chunks and the decodes of a mixed step, told apart by sums alone: chunks are taken to be as long as the
    longest.

    With c chunks of q queries over K keys and d decodes over D keys in all: Σq = c·q + d, Σkv = c·K + D and
    pairs = c·q·(K - (q - 1)/2) + D give c, K and D.
    """
    requests = np.maximum(_row(work, "sequences"), 1)
    queries = np.maximum(_row(work, "q_tokens"), requests)
    keys, pairs = _row(work, "kv_tokens"), qk_pairs(work)[None, :]
    longest = np.maximum(_row(work, "q_longest"), queries / requests)
    several = longest > 1
    chunks = np.where(several, np.clip((queries - requests) / np.where(several, longest - 1, 1), 0, requests), 0)
    some = chunks > 0
    chunk_keys = np.where(
        some, np.maximum((pairs - keys) / np.where(some, chunks * (longest - 1), 1) + longest / 2, longest), 0
    )
    decodes = requests - chunks
    decode_keys = np.where(decodes > 1e-9, np.maximum(keys - chunks * chunk_keys, decodes), 0)
    heads, kv_heads = np.maximum(_row(work, "heads"), 1), np.maximum(_row(work, "kv_heads"), 1)
    width, kv_bytes = _row(work, "head_dim"), _element_bytes(work, "kv_bits")
    window = _row(work, "window")
    chunk_pairs = np.maximum(pairs - decode_keys, chunks * longest)
    seen = np.where(window > 0, np.minimum(chunk_keys, window + 128), chunk_keys)
    one = np.maximum(decodes, 1e-9)
    return Prefill(
        pairs=chunk_pairs,
        queries=chunks * longest,
        queries_mean=longest,
        keys_longest=seen,
        keys=chunks * chunk_keys,
        requests=chunks,
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        kv_bytes=kv_bytes,
        eight_bit=(kv_bytes < 2).astype(np.float64),
    ), Decode(
        units=decodes * kv_heads,
        heads_per_unit=heads / kv_heads,
        rows_per_unit=heads / kv_heads,
        keys=decode_keys / one,
        keys_longest=decode_keys / one,
        key_bytes=2 * width * kv_bytes,
        key_flop=4 * width,
        width=width,
        io_bytes=4 * decodes * heads * width,
        merge_bytes=8 * decodes * heads * width,
        kv_copies=_copies(work, "kv_copies"),
        windowed=(window > 0).astype(np.float64),
    )


def mixed_parts(work: WorkTable) -> tuple[WorkTable, WorkTable]:
    """The chunks and the decodes of mixed steps as tasks of their own."""
    chunks, decodes = mixed_rows(work)
    count = np.maximum(chunks.requests, 1e-9)
    units = decodes.units / np.maximum(_row(work, "kv_heads"), 1)
    first = {
        "sequences": chunks.requests, "q_tokens": chunks.queries, "kv_tokens": chunks.keys, "qk_pairs": chunks.pairs,
        "q_longest": chunks.queries_mean, "kv_longest": chunks.keys / count,
    }  # fmt: skip
    second = {
        "sequences": units, "q_tokens": units, "kv_tokens": units * decodes.keys, "qk_pairs": units * decodes.keys,
        "q_longest": np.ones(units.shape), "kv_longest": decodes.keys,
    }  # fmt: skip
    one, other = ({name: column[0] for name, column in part.items()} for part in (first, second))
    return work.replaced(one), work.replaced(other)


def rowwise_rows(work: WorkTable) -> tuple[RowWise, Floats]:
    """And which tasks say neither bytes nor FLOP: those are guessed from their threads (1, tasks)."""
    amount = quantities(work)
    moved = (amount.read_bytes + amount.write_bytes)[None, :]
    guessed = ((moved <= 0) & (amount.flop[None, :] <= 0)).astype(np.float64)
    threads = np.maximum(_row(work, "ctas"), 1) * np.where(
        _row(work, "threads_per_cta") > 0, _row(work, "threads_per_cta"), 128
    )
    moved = np.where(guessed > 0, threads * GUESSED_BYTES_PER_THREAD, moved)
    # Kernels that give each row to a CTA pay for rows; the others run over all elements alike. Narrow
    # rows share CTAs: none is charged for less than it moves in the time of a launch.
    measured_so = np.array([str(kind).startswith(OP_2024) for kind in work.text("kind")], dtype=np.bool_)
    by_row = (np.isin(work.text("family"), _BY_ROW) | measured_so)[None, :]
    rows = np.where(by_row, np.minimum(np.maximum(_row(work, "rows"), 1), np.maximum(moved / _BYTES_OF_A_ROW, 1)), 0)
    return RowWise(
        moved_bytes=moved, rows=rows, flop=amount.flop[None, :], placed_elements=_row(work, "placed_elements")
    ), guessed


def collective_rows(work: WorkTable) -> Collective:
    return Collective(
        ranks=np.maximum(_row(work, "ranks"), 1),
        message_bytes=_row(work, "message_bytes"),
        rounds=np.where(work.text("collective") == "all_reduce", 2.0, 1.0)[None, :],
    )


def _row(work: WorkTable, name: str) -> Floats:
    return work[name][None, :]


def _element_bytes(work: WorkTable, bits: str) -> Floats:
    return np.where(_row(work, bits) > 0, _row(work, bits), 16.0) / 8


def _copies(work: WorkTable, name: str) -> Floats:
    return np.where(_row(work, name) > 0, _row(work, name), np.inf)
