"""A kernel task's work: what its name says it is, and what its operands, lengths and attributes say it does.

In order of trust: attributes (solved from the model's configuration), operands of the framework op, tokens and lengths
of the engine step, the launch configuration, a bounded guess. `work_from` says how far down that went.

Operands stand in the op's order, tensors only, as Kineto's "Input Dims" has them: aten::mm [m, k] [k, n]; aten::addmm
[n] [m, k] [k, n]; aten::linear [m, k] [n, k] [n]; _C::onednn_mm [m, n] [m, k] [n]; vllm::unified_attention_with_output
q [M, heads, d], k and v [M, KV heads, d], out; _C::rms_norm out, in, weight; _C::rotary_embedding positions, q, k,
table; _C::silu_and_mul out, in; reshape_and_cache k, v, K cache, V cache,
slots. An op that launched several kernels (vllm::
moe_forward) has operands that are not the kernel's own; where the grid contradicts them, the grid wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, expm1, log1p, prod

from cascade_schemas.task import KernelTask

from services.kernels.dtypes import bits_of
from services.kernels.recognise import Recognised, recognise
from services.kernels.work import Family, Library, Math, Work, WorkFrom

# Guesses, where nothing says better. They set p50; WorkFrom.NOTHING and GRID widen the interval.
GUESSED_WIDTH = 4096  # hidden size; k of a GEMM
GUESSED_KV_TOKENS = 1024  # context of a request
GUESSED_PROMPT_TOKENS = 512
GUESSED_TOPK = 4  # experts per token: gpt-oss 4, Mixtral 2, Qwen3 and DeepSeek 8
GUESSED_SPLITS = 8  # of split-KV attention
# gpt-oss (heads of 64) slides over 128 tokens, Gemma 3 over 1,024.
GUESSED_WINDOWS = {64: 128}
GUESSED_WINDOW = 1024
SPECULATED_TOKENS = 8  # a request with at most so many new tokens is decoding
MLA_LATENT, MLA_VALUE = 576, 512  # elements per token: latent + rotary key; latent alone


def work_of(task: KernelTask) -> Work:
    """The same task always has the same work."""
    seen = recognise(task.signature.name)
    if seen.family == Family.UNKNOWN:
        seen = _by_op(task.op) or seen
    launch = _Launch(task, seen)
    work = _OF_FAMILY[seen.family](launch)
    return replace(work, sass=task.sass) if task.sass else work


Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Launch:
    """A task, and what is asked of it again and again."""

    task: KernelTask
    seen: Recognised

    @cached_property
    def tensors(self) -> list[tuple[Shape, int]]:
        """(shape, bits) of each operand with a shape; 0 bits where the dtype is none we know."""
        return [(operand.shape, bits_of(operand.dtype)) for operand in self.task.operands if operand.shape]

    @cached_property
    def attributes(self) -> dict[str, int]:
        return self.task.attributes

    @cached_property
    def tokens(self) -> int:
        return self.task.tokens or self.attributes.get("tokens", 0)

    @cached_property
    def ctas(self) -> int:
        grid, block = self.task.signature.grid, self.task.signature.block
        if grid is None:
            return 0
        count = prod(grid)
        if block and self.task.signature.name.startswith("Cijk_") and grid[0] % block[0] == 0:
            # hipExtModuleLaunchKernel counts threads, not CTAs; only Tensile is launched so.
            return count // prod(block)
        return count

    @cached_property
    def threads(self) -> int:
        return prod(self.task.signature.block) if self.task.signature.block else 0

    def work(self, work_from: WorkFrom, math: Math | None = None, **facts: float | str) -> Work:
        return Work(
            family=self.seen.family,
            library=self.seen.library,
            kind=self.seen.kind,
            math=self.seen.math if math is None else math,
            work_from=work_from,
            ctas=self.ctas,
            threads_per_cta=self.threads,
            **facts,  # type: ignore[arg-type]
        )

    @property
    def known(self) -> WorkFrom:
        """How far operands can be trusted."""
        return WorkFrom.SOLVED if self.task.operands_from == "solved" else WorkFrom.SHAPES

    def bits(self, index: int = 0) -> int:
        """Of an operand; else of the name's element; else 16."""
        bits = self.tensors[index][1] if index < len(self.tensors) else 0
        return bits or self.seen.a_bits or 16

    def wide(self) -> list[tuple[Shape, int]]:
        """Operands with at least two dimensions."""
        return [tensor for tensor in self.tensors if len(tensor[0]) > 1]

    @cached_property
    def elements_of_grid(self) -> int:
        return self.ctas * self.threads * self.seen.elements_per_thread

    def grid_contradicts(self, elements: int) -> bool:
        """Whether an elementwise kernel was launched for another number of elements."""
        covered = self.elements_of_grid
        if not covered:
            return False
        per_cta = covered // self.ctas
        return not covered - per_cta < elements <= covered


# --- GEMM --------------------------------------------------------------------------------------------------------


def _gemm(launch: _Launch) -> Work:
    task, seen, attributes = launch.task, launch.seen, launch.attributes
    batch, m, n, k = 1, 0, 0, 0
    work_from, operand_bits = launch.known, [0, 0]
    if seen.kind == "conv":
        m, n, k = _convolution(launch)
    if not m:
        batch, m, n, k, operand_bits = _matmul_dims(task.op, launch.tensors)
    if {"n", "k"} <= attributes.keys():
        batch, m = attributes.get("batch", 1), attributes.get("m", m or launch.tokens)
        n, k = attributes["n"], attributes["k"]
        work_from = WorkFrom.SOLVED if task.operands_from in {"solved", "none"} else work_from
    if seen.n and seen.k:
        n, k, m = seen.n, seen.k, m or launch.tokens
    if not (m and n and k):
        batch = 1
        m, n, k, work_from = _gemm_by_grid(launch)
    a_bits = seen.a_bits or operand_bits[0] or 16
    w_bits = seen.w_bits or operand_bits[1] or a_bits
    out_bits = seen.out_bits or operand_bits[0] or 16
    if operand_bits[0] in {16, 32, 64} and not seen.w_bits:
        a_bits = w_bits = operand_bits[0]
    tile_m, tile_n = _tile(launch, batch * m, n)
    return launch.work(
        work_from,
        math=seen.math if seen.math != Math.NONE else _math_of_bits(max(a_bits, w_bits)),
        flop=2.0 * batch * m * n * k,
        read_bytes=batch * (m * k * a_bits + n * k * w_bits) / 8,
        write_bytes=batch * m * n * out_bits / 8,
        m=m, n=n, k=k, batch=batch, rows=batch * m,
        a_bits=a_bits, w_bits=w_bits, out_bits=out_bits,
        tile_m=tile_m, tile_n=tile_n, split_k=_splits(launch, batch * m, n, tile_m, tile_n),
        weight_copies=attributes.get("layers", 0),
    )  # fmt: skip


def _matmul_dims(op: str, tensors: Sequence[tuple[Shape, int]]) -> tuple[int, int, int, int, list[int]]:
    """(batch, m, n, k, [bits of activations, of weights]) of an op's operands; zeros where they are no product."""
    if op == "_C::onednn_mm" and len(tensors) > 1:
        (out, _), (rows, bits) = tensors[:2]
        return 1, prod(rows[:-1]), out[-1], rows[-1], [bits, bits]
    wide = [tensor for tensor in tensors if len(tensor[0]) > 1]
    if "scaled_mm" in op and op.startswith("_C") and len(wide) > 2:
        wide = wide[1:]  # the output comes first
    if "moe" in op and len(wide) > 1:  # the router, inside the op: hidden states and its logits
        (hidden, bits), (scores, _) = wide[:2]
        return (1, hidden[0], scores[-1], hidden[-1], [bits, bits]) if hidden[0] == scores[0] else _NO_PRODUCT
    for first in range(len(wide) - 1):
        (a, a_bits), (b, b_bits) = wide[first], wide[first + 1]
        if len(a) == len(b) == 3:  # bmm
            if a[0] == b[0] and a[2] == b[1]:
                return a[0], a[1], b[2], a[2], [a_bits, b_bits]
            if a[0] == b[0] and a[2] == b[2]:
                return a[0], a[1], b[1], a[2], [a_bits, b_bits]
        elif len(b) == 2:
            # A linear layer's weight is [n, k]; mm's right operand is [k, n]. A square one is either.
            is_linear = a[-1] == b[1] and (op.endswith("linear") or a[-1] != b[0])
            if is_linear:
                return 1, prod(a[:-1]), b[0], a[-1], [a_bits, b_bits]
            if a[-1] == b[0]:
                return 1, prod(a[:-1]), b[1], a[-1], [a_bits, b_bits]
            packed = _packed(a, b)
            if packed:
                return 1, prod(a[:-1]), packed, a[-1], [a_bits, 4]
    return _NO_PRODUCT


_NO_PRODUCT: tuple[int, int, int, int, list[int]] = (0, 0, 0, 0, [0, 0])


def _packed(a: Shape, b: Shape) -> int:
    """Out features of 4-bit weights packed into int32: Marlin [k/16, 2n], AWQ [k, n/8], GPTQ [k/8, n]."""
    k = a[-1]
    if b[0] * 16 == k:
        return b[1] // 2
    if b[0] == k:
        return b[1] * 8
    return b[1] if b[0] * 8 == k else 0


def _convolution(launch: _Launch) -> tuple[int, int, int]:
    """An implicit GEMM: (pictures · pixels, filters, taps). Forward, by data and by filters multiply equally often.

    Strides are not among the operands: a forward convolution is counted as if it had a stride of 1.
    """
    pictures = [shape for shape, _ in launch.tensors if len(shape) == 4]
    if len(pictures) < 2:
        return 0, 0, 0
    filters = min(pictures, key=lambda shape: shape[2] * shape[3])
    pictures.remove(filters)
    x = min(pictures, key=lambda shape: shape[2] * shape[3])  # backward, the smaller one is the gradient's
    return x[0] * x[2] * x[3], filters[0], prod(filters[1:])


def _gemm_by_grid(launch: _Launch) -> tuple[int, int, int, WorkFrom]:
    """Tiles cover the output; k is a guess. A persistent kernel's grid says nothing."""
    seen = launch.seen
    m = launch.tokens or next((shape[0] for shape, _ in launch.wide()), 0)
    if seen.tile_m and seen.tile_n and launch.ctas and not seen.is_persistent:
        tiles = launch.ctas // max(seen.split_k, 1)
        m = m or seen.tile_m
        n = max(tiles // ceil(m / seen.tile_m), 1) * seen.tile_n
        return m, n, GUESSED_WIDTH, WorkFrom.GRID
    return m or max(seen.tile_m, 1), GUESSED_WIDTH, GUESSED_WIDTH, WorkFrom.NOTHING


def _tile(launch: _Launch, m: int, n: int) -> tuple[int, int]:
    """(tokens, out features) of the traced tile, turned round where only that fits the grid."""
    seen = launch.seen
    tile_m, tile_n = seen.tile_m, seen.tile_n
    if not (tile_m and tile_n) or tile_m == tile_n or seen.is_persistent or not launch.ctas:
        return tile_m, tile_n
    as_named = ceil(m / tile_m) * ceil(n / tile_n)
    turned = ceil(m / tile_n) * ceil(n / tile_m)
    if _is_tiled(launch.ctas, turned) and not _is_tiled(launch.ctas, as_named):
        return tile_n, tile_m
    return tile_m, tile_n


def _is_tiled(ctas: int, tiles: int) -> bool:
    """Rasters are padded to a multiple of at most 8 tiles."""
    return tiles <= ctas <= tiles + 8 or ctas % tiles == 0


def _splits(launch: _Launch, m: int, n: int, tile_m: int, tile_n: int) -> int:
    seen = launch.seen
    if seen.is_persistent or not (launch.ctas and tile_m and tile_n):
        return seen.split_k
    tiles = ceil(m / tile_m) * ceil(n / tile_n)
    splits = round(launch.ctas / tiles)
    return splits if 1 < splits <= 64 else seen.split_k


def _math_of_bits(bits: int) -> Math:
    return {4: Math.FP4, 8: Math.FP8, 16: Math.BF16, 32: Math.FP32, 64: Math.FP64}.get(bits, Math.BF16)


def _splitk_reduce(launch: _Launch) -> Work:
    _, m, n, _, bits = _matmul_dims(launch.task.op, launch.tensors)
    work_from = launch.known
    if not m:
        m, n, work_from = launch.tokens or 1, launch.attributes.get("n", GUESSED_WIDTH), WorkFrom.NOTHING
    splits = launch.attributes.get("split_k", 4)
    out_bits = launch.seen.out_bits or bits[0] or 16
    return launch.work(
        work_from, flop=float(splits * m * n), read_bytes=4.0 * splits * m * n, write_bytes=m * n * out_bits / 8,
        rows=m, m=m, n=n, split_k=splits, out_bits=out_bits,
    )  # fmt: skip


# --- mixture of experts ------------------------------------------------------------------------------------------


def experts_hit(experts: float, topk: float, tokens: float) -> float:
    """Experts with at least one token, routing balanced and independent: E (1 - (1 - topk/E)^M)."""
    if experts <= topk:
        return experts
    return -experts * expm1(tokens * log1p(-topk / experts))


def _moe_gemm(launch: _Launch) -> Work:
    task, seen, attributes = launch.task, launch.seen, launch.attributes
    hidden, scores, gate_up, down = _moe_operands(launch)
    m = attributes.get("m") or (hidden[0] if hidden else 0) or launch.tokens or 1
    experts = attributes.get("experts") or (gate_up[0] if gate_up else scores[-1] if scores else 0) or 1
    topk = attributes.get("topk") or _topk_by_grid(launch, m, experts) or min(GUESSED_TOPK, experts)
    n, k, work_from = _moe_dims(launch, hidden, gate_up, down, m, topk, experts)
    a_bits, w_bits, out_bits = seen.a_bits or launch.bits(), seen.w_bits or launch.bits(), seen.out_bits or 16
    per_expert = task.tokens_per_expert
    hit = float(sum(count > 0 for count in per_expert)) if per_expert else experts_hit(experts, topk, m)
    rows = float(sum(per_expert)) if per_expert else float(m * topk)
    busiest = float(max(per_expert)) if per_expert else rows / max(hit, 1.0)
    # A gate is multiplied in the epilogue: half as much is written.
    written = rows * n * out_bits / 8 / (2 if seen.is_gated else 1)
    return launch.work(
        work_from,
        flop=2.0 * rows * n * k,
        read_bytes=(rows * k * a_bits + hit * n * k * w_bits) / 8,
        write_bytes=written,
        rows=rows, m=rows / topk, n=n, k=k, batch=1,
        a_bits=a_bits, w_bits=w_bits, out_bits=out_bits, tile_m=seen.tile_m, tile_n=seen.tile_n,
        split_k=seen.split_k, weight_copies=attributes.get("layers", 0),
        experts=experts, experts_hit=hit, topk=topk, rows_busiest_expert=busiest,
    )  # fmt: skip


def _moe_operands(launch: _Launch) -> tuple[Shape, Shape, Shape, Shape]:
    """(hidden [M, H], router scores [M, E], gate_up [E, 2I, H], down [E, H, I]); () where the op lacks them."""
    flat = [shape for shape, _ in launch.tensors if len(shape) == 2]
    weights = [shape for shape, _ in launch.tensors if len(shape) == 3]
    hidden = flat[0] if flat else ()
    scores = next((shape for shape in flat[1:] if hidden and shape[0] == hidden[0]), ())
    return hidden, scores, weights[0] if weights else (), weights[1] if len(weights) > 1 else ()


def _moe_dims(
    launch: _Launch, hidden: Shape, gate_up: Shape, down: Shape, m: int, topk: int, experts: int
) -> tuple[int, int, WorkFrom]:
    """(n, k) of one expert's GEMM."""
    attributes, seen = launch.attributes, launch.seen
    is_derived = launch.task.operands_from == "derived"
    if {"n", "k"} <= attributes.keys():
        return attributes["n"], attributes["k"], WorkFrom.SHAPES if is_derived else WorkFrom.SOLVED
    if gate_up and down:  # the op runs both GEMMs and does not say which this is; they take turns
        if seen.is_gated:
            return gate_up[1], gate_up[2], launch.known
        return (gate_up[1] + down[2]) // 2, gate_up[2], launch.known
    width = hidden[-1] if hidden else attributes.get("hidden", GUESSED_WIDTH)
    inner = attributes.get("intermediate", 0)
    if inner:
        return (2 * inner, width, WorkFrom.SOLVED) if seen.is_gated else (width, inner, WorkFrom.SOLVED)
    n = _out_features_by_grid(launch, m * topk, experts)
    if seen.is_gated:
        return (n or 2 * width), width, WorkFrom.GRID if n else WorkFrom.NOTHING
    # Down: n is the hidden size, k the experts' own width, which only the other GEMM's grid tells (recover.py): from
    # 0.29 (DeepSeek) to 3.5 (Mixtral) times the hidden size, and split among GPUs.
    return (n or width), width // (2 * max(launch.task.ranks, 1)), WorkFrom.NOTHING


def _out_features_by_grid(launch: _Launch, rows: int, experts: int) -> int:
    """Tiles along n: TensorRT-LLM's gridDim.x; of OpenAI's Triton kernels the grid over the row tiles."""
    grid, seen = launch.task.signature.grid, launch.seen
    if grid is None or not seen.tile_n:
        return 0
    if seen.library == Library.TRTLLM:
        return int(grid[0]) * seen.tile_n
    tiles_m = _row_tiles(rows, experts, seen.tile_m)
    return launch.ctas // tiles_m * seen.tile_n if tiles_m and launch.ctas % tiles_m == 0 else 0


def _row_tiles(rows: int, experts: int, tile_m: int) -> int:
    """Row tiles launched for the worst routing: every expert may start one more tile (triton_kernels' grid bound)."""
    if not tile_m:
        return 0
    return rows if rows <= experts else experts - 1 - (experts - rows - 1) // tile_m


def _topk_by_grid(launch: _Launch, m: int, experts: int) -> int:
    """Experts per token such that the worst routing needs the tiles that were launched."""
    grid, seen = launch.task.signature.grid, launch.seen
    if grid is None or not seen.tile_m or experts <= 1:
        return 0
    for topk in (4, 8, 2, 1, 6, 10, 12, 16):
        if topk > experts:
            continue
        tiles = _row_tiles(m * topk, experts, seen.tile_m)
        if seen.library == Library.TRTLLM and grid[1] == tiles:
            return topk
        if seen.library == Library.TRITON and launch.ctas % tiles == 0:
            return topk
    return 0


def _moe_routing(launch: _Launch) -> Work:
    attributes, kind = launch.attributes, launch.seen.kind
    wide = launch.wide()
    m = attributes.get("m") or launch.tokens or (wide[0][0][0] if wide else 0) or 1
    hidden = attributes.get("hidden") or max((shape[-1] for shape, _ in wide), default=GUESSED_WIDTH)
    narrowest = min((shape[-1] for shape, _ in wide), default=0)
    sorts_choices = narrowest == wide[0][0][-1] <= 16 if wide else False  # [M, topk]: the choices, not the scores
    topk = attributes.get("topk") or (narrowest if sorts_choices else GUESSED_TOPK)
    experts = attributes.get("experts") or (0 if sorts_choices else narrowest) or 64
    rows = m * topk
    if kind == "finalize":
        read, write = 2.0 * rows * hidden, 2.0 * m * hidden
    elif kind == "permute":
        read, write = 2.0 * m * hidden, 2.0 * rows * hidden
    elif kind == "topk":
        read, write = 2.0 * m * experts, 8.0 * rows
    else:  # indexes of rows and counts per expert
        read, write = 8.0 * rows, 4.0 * (rows + experts)
    work_from = launch.known if wide else WorkFrom.GRID if m > 1 else WorkFrom.NOTHING
    return launch.work(
        work_from, flop=float(rows * hidden if kind == "finalize" else m * experts), read_bytes=read, write_bytes=write,
        rows=m, m=m, experts=experts, topk=topk, experts_hit=experts_hit(experts, topk, m),
    )  # fmt: skip


# --- attention ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heads:
    heads: int
    kv_heads: int
    head_dim: int
    kv_bits: int
    sequences: int  # as the operands have them; 0 unknown
    q_each: int
    kv_each: int
    tokens: int


def _attention(launch: _Launch) -> Work:
    task, seen = launch.task, launch.seen
    of = _heads(launch)
    q, kv, work_from = _lengths(launch, of)
    window, is_guessed = _window(launch, of.head_dim)
    if is_guessed and work_from == WorkFrom.SHAPES:
        work_from = WorkFrom.GRID
    family = _attention_family(launch, q, kv)
    pairs = sum(qk_pairs(new, length, window) for new, length in zip(q, kv, strict=True))
    read_tokens = sum(min(length, window + new - 1) if window else length for new, length in zip(q, kv, strict=True))
    q_tokens = sum(q)
    is_mla = family == Family.MLA
    if is_mla:
        flop = 2.0 * of.heads * pairs * (MLA_LATENT + MLA_VALUE)
        read = (MLA_LATENT * read_tokens * of.kv_bits + q_tokens * of.heads * MLA_LATENT * 16) / 8
        write = q_tokens * of.heads * MLA_VALUE * 2.0
    else:
        flop = 4.0 * of.heads * of.head_dim * pairs
        a_bits = seen.a_bits or launch.bits()
        read = (
            q_tokens * of.heads * of.head_dim * a_bits + 2 * read_tokens * of.kv_heads * of.head_dim * of.kv_bits
        ) / 8
        write = q_tokens * of.heads * of.head_dim * (seen.out_bits or 16) / 8
    work = launch.work(
        work_from,
        flop=flop, read_bytes=read, write_bytes=write, rows=q_tokens,
        a_bits=seen.a_bits or 16, out_bits=seen.out_bits or 16,
        tile_m=seen.tile_m, tile_n=seen.tile_n,
        sequences=len(q), q_tokens=q_tokens, kv_tokens=read_tokens, qk_pairs=pairs,
        q_longest=max(q, default=0), kv_longest=max(kv, default=0),
        heads=of.heads, kv_heads=of.kv_heads, head_dim=of.head_dim, kv_bits=of.kv_bits, window=window,
        kv_copies=task.attributes.get("layers", 0),
    )  # fmt: skip
    return work if family == work.family else replace(work, family=family)


def qk_pairs(q: int, kv: int, window: int = 0) -> float:
    """Pairs of one causal request: its q last tokens, each with itself and all before it, or with the last `window`."""
    if not window or kv <= window:
        return q * (kv - q) + q * (q + 1) / 2
    short = max(min(window - (kv - q), q), 0)  # queries that see fewer than a window
    return short * (kv - q) + short * (short + 1) / 2 + (q - short) * window


def _heads(launch: _Launch) -> _Heads:
    attributes, seen = launch.attributes, launch.seen
    heads = kv_heads = head_dim = sequences = q_each = kv_each = tokens = 0
    kv_bits = 0
    shapes = [shape for shape, _ in launch.tensors]
    four = [shape for shape in shapes if len(shape) == 4]
    three = [index for index, shape in enumerate(shapes) if len(shape) == 3]
    if three and "_flash_attention" not in launch.task.op:
        query = shapes[three[0]]
        tokens, heads, head_dim = query
        cache = next((tensor for tensor in launch.tensors if len(tensor[0]) == 4), None)
        other = next((shapes[index] for index in three[1:] if shapes[index][2] == head_dim), query)
        kv_heads = other[1]
        if cache is not None and cache[0][-1] == head_dim and other == query:  # K cache [blocks, block, KV heads, d]
            kv_heads = cache[0][2]
            kv_bits = cache[1]
        # vLLM's op has no cache among its operands; K and V are as yet unquantised.
        sequences = next((shape[0] - 1 for shape in shapes if len(shape) == 1 and 1 < shape[0] <= tokens + 1), 0)
    elif len(four) >= 2:
        query, key = four[:2]
        if "scaled_dot_product" in launch.task.op:  # [batch, heads, tokens, d]; the others [batch, tokens, heads, d]
            query, key = (query[0], query[2], query[1], query[3]), (key[0], key[2], key[1], key[3])
        sequences, q_each, heads, head_dim = query
        kv_each, kv_heads, tokens = key[1], key[2], sequences * q_each
    grid = launch.task.signature.grid
    if grid is not None and seen.library == Library.FA2 and not heads:
        heads = grid[2]  # flash_fwd_kernel's third dimension; of the split kernel heads, or heads of all requests
    heads = attributes.get("heads") or heads or 32
    head_dim = attributes.get("head_dim") or head_dim or seen.head_dim or 128
    return _Heads(
        heads=heads,
        kv_heads=attributes.get("kv_heads") or kv_heads or heads,
        head_dim=head_dim,
        kv_bits=attributes.get("kv_bits")
        or kv_bits
        or (seen.w_bits if seen.family.startswith("attention") else 0)
        or 16,
        sequences=sequences,
        q_each=q_each,
        kv_each=kv_each,
        tokens=tokens or launch.tokens,
    )


def _lengths(launch: _Launch, of: _Heads) -> tuple[Sequence[int], Sequence[int], WorkFrom]:
    """(q, KV) per request."""
    task, grid = launch.task, launch.task.signature.grid
    has_shape = bool(launch.tensors or {"heads", "kv_heads"} <= launch.attributes.keys())
    known = launch.known if launch.tensors else WorkFrom.SOLVED
    if task.q_lengths and len(task.q_lengths) == len(task.kv_lengths):
        return task.q_lengths, task.kv_lengths, known if has_shape else WorkFrom.GRID
    if of.q_each:  # a batch of equal requests: all of it is in the operands
        return [of.q_each] * of.sequences, [max(of.kv_each, of.q_each)] * of.sequences, known
    tokens = max(of.tokens, 1)
    if launch.seen.family == Family.ATTENTION_PREFILL:
        if task.q_lengths:
            return task.q_lengths, task.q_lengths, WorkFrom.GRID
        if grid is not None and launch.seen.library == Library.FA2 and not launch.tensors:
            longest = grid[0] * (launch.seen.tile_m or 128)  # (blocks of queries, requests, heads)
            return [longest] * grid[1], [longest] * grid[1], WorkFrom.GRID
        if tokens == 1:
            return [GUESSED_PROMPT_TOKENS], [GUESSED_PROMPT_TOKENS], WorkFrom.NOTHING
        return [tokens], [tokens], WorkFrom.GRID  # one request, without history
    # Nothing names the context of a decode: not the kernel, not the op. A step's schedule does, where it is known.
    sequences = len(task.q_lengths) or tokens
    return [1] * sequences, [GUESSED_KV_TOKENS] * sequences, WorkFrom.NOTHING


def _window(launch: _Launch, head_dim: int) -> tuple[int, bool]:
    window = launch.attributes.get("window", 0)
    if window or not launch.seen.is_windowed:
        return window, False
    return GUESSED_WINDOWS.get(head_dim, GUESSED_WINDOW), True


def _attention_family(launch: _Launch, q: Sequence[int], kv: Sequence[int]) -> Family:
    """What the kernel did, where the lengths say: one kernel may do prefill, decode or both."""
    named = launch.seen.family
    if named == Family.MLA or not q or not launch.task.q_lengths:
        return named
    decoding = sum(new <= SPECULATED_TOKENS and length > new for new, length in zip(q, kv, strict=True))
    if decoding == len(q):
        return Family.ATTENTION_DECODE
    return Family.ATTENTION_MIXED if decoding else Family.ATTENTION_PREFILL


def _attention_combine(launch: _Launch) -> Work:
    of = _heads(launch)
    tokens = max(of.tokens, 1)
    work_from = launch.known if launch.tensors else WorkFrom.GRID if launch.tokens else WorkFrom.NOTHING
    if launch.seen.kind == "helper" and not any(
        word in launch.task.signature.name for word in ("reduce", "merge", "Merge")
    ):
        return launch.work(work_from, read_bytes=64.0 * tokens, write_bytes=64.0 * tokens, rows=tokens)
    partial = tokens * of.heads * of.head_dim
    splits = launch.attributes.get("splits", GUESSED_SPLITS)
    return launch.work(
        work_from, flop=2.0 * splits * partial, read_bytes=4.0 * splits * partial, write_bytes=2.0 * partial,
        rows=tokens,
        sequences=of.sequences or tokens, q_tokens=tokens, heads=of.heads, kv_heads=of.kv_heads, head_dim=of.head_dim,
    )  # fmt: skip


def _kv_write(launch: _Launch) -> Work:
    attributes, tensors = launch.attributes, launch.wide()
    if len(tensors) >= 2:
        (key, bits), (value, _) = tensors[:2]
        m, elements = key[0], prod(key) + prod(value)
        work_from = launch.known
        cache_bits = next((b for shape, b in tensors[2:] if len(shape) >= 2), 0)
    else:
        m = _rows_by_grid(launch)
        width = attributes.get("kv_heads", 8) * attributes.get("head_dim", 128)
        bits, cache_bits, elements = 16, 0, 2 * m * width
        work_from = WorkFrom.SOLVED if "kv_heads" in attributes else WorkFrom.GRID
    bits = bits or 16
    kv_bits = attributes.get("kv_bits") or cache_bits or (8 if launch.seen.out_bits == 8 else bits)
    return launch.work(
        work_from, read_bytes=elements * bits / 8 + 8 * m, write_bytes=elements * kv_bits / 8, rows=m, kv_bits=kv_bits,
        a_bits=bits, out_bits=kv_bits,
    )  # fmt: skip


# --- row-wise kernels --------------------------------------------------------------------------------------------


def _rows_by_grid(launch: _Launch) -> int:
    """Tokens: one CTA each in vLLM's row-wise kernels (SIMULATION 2.2)."""
    grid = launch.task.signature.grid
    return launch.tokens or (grid[0] if grid else 0) or 1


def _rope(launch: _Launch) -> Work:
    attributes = launch.attributes
    rows = [shape for shape, _ in launch.tensors if len(shape) > 1]
    positions = next((shape[-1] for shape, _ in launch.tensors if len(shape) == 1), 0)
    if rows:
        m = positions or launch.tokens or rows[0][0]
        turned = [prod(shape) for shape in rows if shape[0] == m or prod(shape[:-1]) == m][:2] or [prod(rows[0])]
        elements, work_from = sum(turned), launch.known
        table = next((shape[-1] for shape in rows[2:] if shape[0] != m), attributes.get("head_dim", 128))
    else:
        m = _rows_by_grid(launch)
        table = attributes.get("head_dim", 128)
        elements = m * (attributes.get("heads", 32) + attributes.get("kv_heads", 8)) * table
        work_from = WorkFrom.SOLVED if "heads" in attributes else WorkFrom.GRID
    bits = next((b for shape, b in launch.tensors if len(shape) > 1 and b), 0) or launch.seen.a_bits or 16
    return launch.work(
        work_from, flop=3.0 * elements, read_bytes=(elements + m * table) * bits / 8 + 8 * m,
        write_bytes=elements * bits / 8, rows=m, a_bits=bits, out_bits=bits,
    )  # fmt: skip


def _norm(launch: _Launch) -> Work:
    seen = launch.seen
    wide = launch.wide()
    if wide:
        shape, bits = wide[0]
        bits = bits or seen.a_bits or 16
        if bits < 16 and len(wide) > 1:  # a quantising norm: the output comes first
            bits = wide[1][1] or 16
        width, work_from = shape[-1], launch.known
        m = prod(shape) // max(width, 1)  # a tensor may be empty
    else:
        m, bits = _rows_by_grid(launch), seen.a_bits or 16
        width = launch.attributes.get("hidden", GUESSED_WIDTH)
        work_from = WorkFrom.SOLVED if "hidden" in launch.attributes else WorkFrom.GRID
    weights = 2 * width if seen.kind == "layer_norm" else width
    out_bits = seen.out_bits if seen.out_bits in {4, 8} else bits
    fused = 2 if seen.kind.startswith("fused_add") else 1  # the sum is read from two and stored beside the result
    elements = m * width
    return launch.work(
        work_from, flop=(4.0 if fused == 1 else 5.0) * elements, read_bytes=(fused * elements + weights) * bits / 8,
        write_bytes=(elements * out_bits + (fused - 1) * elements * bits) / 8, rows=m, n=width, a_bits=bits,
        out_bits=out_bits,
    )  # fmt: skip


def _activation(launch: _Launch) -> Work:
    seen, wide = launch.seen, launch.wide()
    if "_mul" not in seen.kind:
        return _elementwise(launch)
    if wide:
        sizes = sorted({prod(shape) for shape, _ in wide})
        elements = sizes[0] if len(sizes) > 1 else sizes[0] // 2
        bits = max((b for _, b in wide), default=16) or 16
        m, work_from = prod(wide[0][0][:-1]), launch.known
    else:
        m, bits = _rows_by_grid(launch), seen.a_bits or 16
        width = launch.attributes.get("intermediate", GUESSED_WIDTH)
        elements = m * width
        work_from = WorkFrom.SOLVED if "intermediate" in launch.attributes else WorkFrom.GRID
    out_bits = seen.out_bits if seen.out_bits == 8 else bits
    return launch.work(
        work_from, flop=5.0 * elements, read_bytes=2 * elements * bits / 8, write_bytes=elements * out_bits / 8,
        rows=m, n=elements / max(m, 1), a_bits=bits, out_bits=out_bits,
    )  # fmt: skip


def _quantise(launch: _Launch) -> Work:
    seen, wide = launch.seen, launch.wide()
    if wide:
        elements = max(prod(shape) for shape, _ in wide[:2]) if "quant" in launch.task.op else prod(wide[0][0])
        m, work_from = prod(wide[0][0][:-1]), launch.known
    else:
        m = _rows_by_grid(launch)
        elements = m * launch.attributes.get("hidden", GUESSED_WIDTH)
        work_from = WorkFrom.SOLVED if "hidden" in launch.attributes else WorkFrom.GRID
    out_bits = seen.out_bits or 8
    scales = elements / (16 if out_bits == 4 else 32)  # at most one byte per 16 or 32
    return launch.work(
        work_from, flop=3.0 * elements, read_bytes=2.0 * elements, write_bytes=elements * out_bits / 8 + scales,
        rows=m, n=elements / max(m, 1), a_bits=16, out_bits=out_bits,
    )  # fmt: skip


# --- elementwise, reductions, copies -----------------------------------------------------------------------------


def _elementwise(launch: _Launch) -> Work:
    """Everything read once, the broadcast result written once."""
    seen = launch.seen
    elements = max((prod(shape) for shape, _ in launch.tensors), default=0)
    if elements and not launch.grid_contradicts(elements):
        out_bits = launch.bits() if seen.kind != "compare" else 8
        read = sum(prod(shape) * (bits or seen.a_bits or 16) for shape, bits in launch.tensors[:3]) / 8
        shape = launch.tensors[0][0]
        return launch.work(
            launch.known, flop=float(elements), read_bytes=read, write_bytes=elements * out_bits / 8,
            rows=prod(shape[:-1]), n=shape[-1], a_bits=launch.bits(), out_bits=out_bits,
            placed_elements=elements * seen.places_elements,
        )  # fmt: skip
    elements, work_from = _elements_by_launch(launch)
    a_bits, out_bits = seen.a_bits or 16, seen.out_bits or seen.a_bits or 16
    inputs = max(seen.tensors - 1, 0) if seen.tensors else 1
    return launch.work(
        work_from, flop=float(elements), read_bytes=inputs * elements * a_bits / 8, write_bytes=elements * out_bits / 8,
        rows=launch.tokens or 1, a_bits=a_bits, out_bits=out_bits, placed_elements=elements * seen.places_elements,
    )  # fmt: skip


def _elements_by_launch(launch: _Launch) -> tuple[int, WorkFrom]:
    if launch.elements_of_grid:
        return launch.elements_of_grid, WorkFrom.GRID
    if launch.ctas and launch.threads:
        return launch.ctas * launch.threads * 4, WorkFrom.GRID
    if launch.tokens:
        return launch.tokens * launch.attributes.get("hidden", GUESSED_WIDTH), WorkFrom.NOTHING
    return GUESSED_WIDTH, WorkFrom.NOTHING


def _fused(launch: _Launch) -> Work:
    """Inductor's Triton kernels have their pointers as operands: inputs, then outputs."""
    seen, tensors = launch.seen, launch.tensors
    if tensors:
        result = prod(tensors[-1][0])
        is_pointwise = seen.kind in {"pointwise", "silu_mul"}
        # One element of output reads one element of each input: a table of embeddings is not read whole.
        sizes = [min(prod(shape), result) if is_pointwise else prod(shape) for shape, _ in tensors]
        sized = [size * (bits or 16) / 8 for size, (_, bits) in zip(sizes, tensors, strict=True)]
        rows = tensors[-1][0][0]
        return launch.work(
            launch.known, flop=2.0 * max(sizes), read_bytes=sum(sized[:-1]), write_bytes=sized[-1],
            rows=rows, n=result / max(rows, 1), a_bits=launch.bits(), out_bits=tensors[-1][1] or 16,
        )  # fmt: skip
    hidden = launch.attributes.get("hidden", 0)
    inner = launch.attributes.get("intermediate", 0)
    width = inner if seen.kind == "silu_mul" else hidden
    if launch.tokens and width:
        elements, work_from = launch.tokens * width, WorkFrom.SOLVED
    else:
        elements, work_from = _elements_by_launch(launch)
    rows = launch.tokens or 1
    # A norm reads hidden states and residual and writes both; the others read two and write one.
    written = 2 if seen.kind == "rms_norm" else 1
    return launch.work(
        work_from, flop=4.0 * elements, read_bytes=2 * elements * 2.0, write_bytes=written * elements * 2.0,
        rows=rows, n=elements / rows, a_bits=16, out_bits=16,
    )  # fmt: skip


def _reduction(launch: _Launch) -> Work:
    seen, tensors = launch.seen, launch.tensors
    if tensors:
        shape = tensors[0][0]
        elements, work_from, bits = prod(shape), launch.known, launch.bits()
        rows = elements // max(shape[-1], 1)
    else:
        # At least one element per thread; reductions read more where their grid is full.
        (elements, work_from), bits, rows = _elements_by_launch(launch), seen.a_bits or 32, launch.ctas or 1
    write = elements * bits / 8 if seen.kind == "scan" else rows * (seen.out_bits or bits) / 8
    return launch.work(
        work_from, flop=float(elements), read_bytes=elements * bits / 8, write_bytes=write, rows=rows,
        n=elements / max(rows, 1), a_bits=bits, out_bits=seen.out_bits or bits,
    )  # fmt: skip


def _softmax(launch: _Launch) -> Work:
    work = _reduction(launch)
    return replace(work, flop=5 * work.flop, write_bytes=work.read_bytes)


def _sampling(launch: _Launch) -> Work:
    """Passes over the logits: one for an argmax, about three for sampling, six reads and writes for a radix sort."""
    work = _reduction(launch)
    if work.kind == "argmax":
        return work
    reads, writes = {"sort": (6, 6), "topk": (4, 1), "exponential": (0, 1)}.get(work.kind, (3, 1))
    return replace(work, read_bytes=reads * work.read_bytes, write_bytes=writes * work.read_bytes)


def _embedding(launch: _Launch) -> Work:
    """Rows gathered: of a table [V, H] by ids, or of hidden states."""
    seen, tensors = launch.seen, launch.tensors
    table = next(((shape, bits) for shape, bits in tensors if len(shape) > 1), None)
    if table is None:
        elements, work_from = _elements_by_launch(launch)
        bits = seen.a_bits or 16
        return launch.work(
            work_from, read_bytes=elements * bits / 8, write_bytes=elements * bits / 8,
            rows=launch.tokens or 1, a_bits=bits,
        )  # fmt: skip
    (vocab, width), bits = (table[0][0], table[0][-1]), table[1] or 16
    ids = next((shape for shape, b in tensors if b in {32, 64} and shape != table[0]), None)
    grid = launch.task.signature.grid
    if ids is not None:
        rows, work_from = (prod(ids[:-1]) if len(ids) > 1 and ids[-1] == width else prod(ids)), launch.known
    elif grid is not None and seen.kind == "gather" and not launch.elements_of_grid:
        rows, work_from = min(int(grid[0]), vocab), WorkFrom.GRID
        if "index_elementwise" in launch.task.signature.name:  # 128 threads, 4 elements each
            rows = min(ceil(launch.ctas * launch.threads * 4 / width), vocab)
    else:
        rows, work_from = min(launch.tokens or 1, vocab), WorkFrom.GRID
    moved = rows * width * bits / 8
    return launch.work(
        work_from, read_bytes=moved + 8.0 * rows, write_bytes=moved, rows=rows, n=width, a_bits=bits, out_bits=bits
    )


def _copy(launch: _Launch) -> Work:
    task, seen, tensors = launch.task, launch.seen, launch.tensors
    if task.moved_bytes is not None:
        if seen.kind == "memset":
            return launch.work(WorkFrom.SHAPES, write_bytes=float(task.moved_bytes))
        half = task.moved_bytes / 2
        return launch.work(WorkFrom.SHAPES, read_bytes=half, write_bytes=half)
    sizes = [prod(shape) for shape, _ in tensors]
    elements = (sum(sizes) if seen.kind == "cat" else max(sizes, default=0)) if tensors else 0
    if elements and not launch.grid_contradicts(elements):
        work_from = launch.known
        # copy_ has the target first, then the source.
        out_bits = launch.bits()
        in_bits = launch.bits(1) if task.op in {"aten::copy_", "aten::_to_copy"} and len(tensors) > 1 else out_bits
    else:
        elements, work_from = _elements_by_launch(launch)
        in_bits, out_bits = seen.a_bits or 16, seen.out_bits or seen.a_bits or 16
    read = 0.0 if seen.kind == "fill" else elements * in_bits / 8
    return launch.work(
        work_from, read_bytes=read, write_bytes=elements * out_bits / 8, rows=tensors[0][0][0] if tensors else 1,
        a_bits=in_bits, out_bits=out_bits, placed_elements=elements * seen.places_elements,
    )  # fmt: skip


def _collective(launch: _Launch) -> Work:
    """message_bytes is the whole buffer: of an all-gather what every rank has in the end."""
    task, seen, tensors = launch.task, launch.seen, launch.tensors
    ranks = max(task.ranks, 1)
    collective = seen.collective or "all_reduce"
    sized = [prod(shape) * (bits or seen.a_bits or 16) / 8 for shape, bits in tensors]
    if sized:
        message, work_from = max(sized), launch.known
        if collective in {"all_gather", "reduce_scatter"} and len(set(sized)) == 1 and collective == "all_gather":
            message *= ranks
        rows = float(tensors[0][0][0])
    elif launch.tokens and "hidden" in launch.attributes:
        message, work_from = 2.0 * launch.tokens * launch.attributes["hidden"], WorkFrom.SOLVED
        rows = float(launch.tokens)
    else:
        rows = float(launch.tokens or 1)
        message, work_from = 2.0 * rows * GUESSED_WIDTH, WorkFrom.NOTHING
    bits = launch.bits()
    return launch.work(
        work_from, flop=message * 8 / bits if collective in {"all_reduce", "reduce_scatter"} else 0.0,
        read_bytes=message, write_bytes=message, rows=rows, ranks=ranks, message_bytes=message, collective=collective,
        a_bits=bits, out_bits=bits,
    )  # fmt: skip


def _state_space(launch: _Launch) -> Work:
    """Operands once, the first of them (states, or the output) twice."""
    sized = [prod(shape) * (bits or 16) / 8 for shape, bits in launch.tensors]
    if not sized:
        elements, work_from = _elements_by_launch(launch)
        return launch.work(work_from, flop=8.0 * elements, read_bytes=2.0 * elements, write_bytes=2.0 * elements)
    return launch.work(
        launch.known, flop=4.0 * sum(sized), read_bytes=sum(sized), write_bytes=sized[0], rows=launch.tokens or 1
    )


def _unknown(launch: _Launch) -> Work:
    """Only the launch's size is known; a simulator scales the measured time (SIMULATION 3.5)."""
    return launch.work(WorkFrom.NOTHING, rows=launch.tokens)


_OF_FAMILY: dict[Family, Callable[[_Launch], Work]] = {
    Family.GEMM: _gemm,
    Family.SPLITK_REDUCE: _splitk_reduce,
    Family.ATTENTION_PREFILL: _attention,
    Family.ATTENTION_DECODE: _attention,
    Family.ATTENTION_MIXED: _attention,
    Family.MLA: _attention,
    Family.ATTENTION_COMBINE: _attention_combine,
    Family.KV_WRITE: _kv_write,
    Family.ROPE: _rope,
    Family.NORM: _norm,
    Family.ACTIVATION: _activation,
    Family.QUANTISE: _quantise,
    Family.MOE_GEMM: _moe_gemm,
    Family.MOE_ROUTING: _moe_routing,
    Family.COLLECTIVE: _collective,
    Family.FUSED: _fused,
    Family.ELEMENTWISE: _elementwise,
    Family.REDUCTION: _reduction,
    Family.SOFTMAX: _softmax,
    Family.SAMPLING: _sampling,
    Family.EMBEDDING: _embedding,
    Family.COPY: _copy,
    Family.STATE_SPACE: _state_space,
    Family.UNKNOWN: _unknown,
}

# A kernel with a name nobody knows, launched by an op whose work is known.
_OP_FAMILIES: dict[str, Recognised] = {
    **{
        op: Recognised(Family.GEMM)
        for op in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::_scaled_mm")
    },
    "vllm::unified_attention_with_output": Recognised(Family.ATTENTION_MIXED),
    "vllm::unified_attention": Recognised(Family.ATTENTION_MIXED),
    "_C::rms_norm": Recognised(Family.NORM, kind="rms_norm"),
    "_C::fused_add_rms_norm": Recognised(Family.NORM, kind="fused_add_rms_norm"),
    "_C::rotary_embedding": Recognised(Family.ROPE, kind="rope"),
    "_C::silu_and_mul": Recognised(Family.ACTIVATION, kind="silu_mul"),
    "_C_cache_ops::reshape_and_cache_flash": Recognised(Family.KV_WRITE, kind="kv_write"),
    "aten::embedding": Recognised(Family.EMBEDDING, kind="embedding"),
    "aten::copy_": Recognised(Family.COPY, kind="copy"),
    "aten::add": Recognised(Family.ELEMENTWISE, kind="add"),
    "aten::mul": Recognised(Family.ELEMENTWISE, kind="mul"),
}


def _by_op(op: str) -> Recognised | None:
    return _OP_FAMILIES.get(op)
