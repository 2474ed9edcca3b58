"""Shapes that a trace left out, solved from the model's configuration, one engine step at a time.

`recover_step(tasks, model, tp, sampled_rows)` takes the tasks of one step's launches on one GPU in order of start, and
gives them back, same length and order, filled in: operands (operands_from="solved") where a task had none, attributes
(heads, window, experts, n, k, …) where operands do not say it. What a trace said itself is never replaced. Without a
model only what the step's own kernels tell about each other is filled in.

`tokens_of_step(tasks)` is M, from kernels with one CTA per token.

How: a layer's GEMMs come in a fixed order, and attention separates the layers. The GEMMs between two attention kernels
are aligned with the template o, gate_up, down, qkv by dynamic programming: a kernel or a slot may be skipped at a cost,
and a kernel that is not persistent must have a grid that its slot's tiles explain. Models write the template in
several ways (q, k, v apart or as one; gate and up apart or as one); the way that costs least over the step is taken.
All sizes are those on one GPU of the tensor-parallel group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from cascade_schemas.model import ModelSpec
from cascade_schemas.task import KernelTask, Operand

from services.kernels.recognise import Recognised, recognise
from services.kernels.work import Family, Library
from services.kernels.work_of import work_of

_ATTENTION = (Family.ATTENTION_PREFILL, Family.ATTENTION_DECODE, Family.ATTENTION_MIXED, Family.MLA)
_ONE_CTA_PER_TOKEN = ("rms_norm_kernel", "rotary_embedding_kernel", "act_and_mul_kernel", "reshape_and_cache")
_SKIP = 1.0  # a kernel without a slot, or a slot without a kernel
_CONTRADICTED = 1.9  # a grid that the slot's tiles do not explain: only just better than skipping both


@dataclass(frozen=True, slots=True)
class Slot:
    """A GEMM of the layer template: W[n, k]."""

    role: str
    n: int
    k: int
    is_experts: bool = False


def recover_step(
    tasks: Sequence[KernelTask], model: ModelSpec | None = None, tp: int = 1, sampled_rows: int = 0
) -> list[KernelTask]:
    """The same tasks with their shapes; `sampled_rows` are the rows of the lm_head, 0 = as many as there are tokens."""
    seen = [recognise(task.signature.name) for task in tasks]
    filled = list(tasks)
    slots: dict[int, Slot] = {}
    tokens = tokens_of_step(tasks)
    if model is not None and tokens:
        step = _Step(tasks, seen, model, max(tp, 1), tokens, sampled_rows or tokens)
        slots = step.slot_of
        filled = [step.filled(index) for index in range(len(tasks))]
    # Kernels pad the experts' sizes, and their grids show by how much; so they come before the configuration's.
    for first, second in _expert_pairs(filled, seen):
        filled[first], filled[second] = _told_by_each_other(filled[first], filled[second])
    for index, slot in slots.items():
        if slot.is_experts and not _has_expert_weights(filled[index]):
            filled[index] = _with(filled[index], {"n": slot.n, "k": slot.k})
    return filled


def tokens_of_step(tasks: Sequence[KernelTask]) -> int:
    """M of a step, padded to its graph's bucket where a graph was replayed; 0 when no kernel tells."""
    votes: Counter[int] = Counter()
    for task in tasks:
        grid, name = task.signature.grid, task.signature.name
        if grid is None:
            continue
        if any(word in name for word in _ONE_CTA_PER_TOKEN) or (
            name.startswith(("triton_red_fused", "triton_per_fused")) and "rsqrt" in name
        ):
            votes[grid[0]] += 1
    if votes:
        # Norms of single heads (Qwen3) have more CTAs and are as many; the fewest CTAs among the frequent win.
        most = max(votes.values())
        return min(count for count, times in votes.items() if 2 * times >= most)
    return Counter(task.tokens for task in tasks if task.tokens).most_common(1)[0][0] if _any_tokens(tasks) else 0


def _any_tokens(tasks: Sequence[KernelTask]) -> bool:
    return any(task.tokens for task in tasks)


def layer_template(model: ModelSpec, tp: int = 1, *, is_split: bool = False) -> list[Slot]:
    """The GEMMs of one layer, from qkv to down; `is_split`: q, k, v and gate, up are GEMMs of their own."""
    h, tp = model.hidden, max(tp, 1)
    q = model.heads * model.head_dim // tp
    kv = max(1, model.kv_heads // tp) * model.head_dim
    if model.is_mla:
        attention = _mla_slots(model, tp)
    elif is_split:
        attention = [Slot("q", q, h), Slot("k", kv, h), Slot("v", kv, h), Slot("o", h, q)]
    else:
        attention = [Slot("qkv", q + 2 * kv, h), Slot("o", h, q)]
    if model.experts:
        return [*attention, *_expert_slots(model, tp)]
    inner = model.intermediate // tp
    if model.gated and is_split:
        return [*attention, Slot("gate", inner, h), Slot("up", inner, h), Slot("down", h, inner)]
    return [*attention, Slot("gate_up", (2 if model.gated else 1) * inner, h), Slot("down", h, inner)]


def _mla_slots(model: ModelSpec, tp: int) -> list[Slot]:
    heads = model.heads // tp
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    latent = model.kv_lora_rank + model.qk_rope_head_dim
    query = [Slot("qkv_a", model.q_lora_rank + latent, model.hidden), Slot("q_b", heads * qk, model.q_lora_rank)]
    if not model.q_lora_rank:
        query = [Slot("q", heads * qk, model.hidden), Slot("kv_a", latent, model.hidden)]
    return [*query, Slot("o", model.hidden, heads * model.v_head_dim)]


def _expert_slots(model: ModelSpec, tp: int) -> list[Slot]:
    h, inner = model.hidden, model.moe_intermediate // tp
    up = (2 if model.gated else 1) * inner
    shared = (model.shared_experts * model.moe_intermediate + model.shared_intermediate) // tp
    slots = [
        Slot("router", model.experts, h),
        Slot("experts_gate_up", up, h, True),
        Slot("experts_down", h, inner, True),
    ]
    if shared:
        slots += [Slot("shared_gate_up", 2 * shared, h), Slot("shared_down", h, shared)]
    return slots


class _Step:
    """A step's tasks, their GEMMs aligned with the model's layers."""

    def __init__(
        self, tasks: Sequence[KernelTask], seen: Sequence[Recognised], model: ModelSpec, tp: int, tokens: int, rows: int
    ) -> None:
        self.tasks, self.seen, self.model, self.tp, self.tokens, self.rows = tasks, seen, model, tp, tokens, rows
        self.kv_is_narrow = any(found.family == Family.KV_WRITE and found.out_bits == 8 for found in seen)
        self.layer_of = self._layers()
        self.slot_of = min((self._aligned(is_split=split) for split in (False, True)), key=lambda found: found[0])[1]

    def _layers(self) -> dict[int, int]:
        """Layer of each attention kernel. A layer's prefill and decode may be two kernels in a row."""
        layers: dict[int, int] = {}
        layer, gemms = -1, 1
        for index, seen in enumerate(self.seen):
            if seen.family in {Family.GEMM, Family.MOE_GEMM}:
                gemms += 1
            elif seen.family in _ATTENTION:
                layer, gemms = layer + (1 if gemms else 0), 0
                layers[index] = layer
        return layers

    def _aligned(self, *, is_split: bool) -> tuple[float, dict[int, Slot]]:
        """(cost, slot of each GEMM) of one way to write the template."""
        template = layer_template(self.model, self.tp, is_split=is_split)
        at_o = next(index for index, slot in enumerate(template) if slot.role == "o")
        before, after = template[:at_o], template[at_o:]
        lm_head = Slot("lm_head", ceil(self.model.vocab / self.tp), self.model.hidden)
        segments = list(self._segments())
        total, slots = 0.0, {}
        for number, gemms in enumerate(segments):
            is_first, is_last = number == 0, number == len(segments) - 1
            wanted = [*([] if is_first else after), *([lm_head] if is_last else before)]
            if is_first and is_last:  # no attention kernel was recognised: as many whole layers as fit
                wanted = [*template * max(self.model.layers, 1), lm_head]
            cost, found = self._align(gemms, wanted)
            total += cost
            slots.update(found)
        return total, slots

    def _segments(self) -> Iterator[list[int]]:
        """GEMMs before the first layer's attention, between two layers', and after the last."""
        gemms: list[int] = []
        layer = -1
        for index, seen in enumerate(self.seen):
            if index in self.layer_of and self.layer_of[index] != layer:
                layer = self.layer_of[index]
                yield gemms
                gemms = []
            elif seen.family in {Family.GEMM, Family.MOE_GEMM}:
                gemms.append(index)
        yield gemms

    def _align(self, gemms: list[int], slots: list[Slot]) -> tuple[float, dict[int, Slot]]:
        """Cheapest alignment of kernels with slots, both in order (Needleman and Wunsch)."""
        rows, columns = len(gemms), len(slots)
        cost = [[_SKIP * (i + j) if not i or not j else 0.0 for j in range(columns + 1)] for i in range(rows + 1)]
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                matched = cost[i - 1][j - 1] + self._mismatch(gemms[i - 1], slots[j - 1])
                cost[i][j] = min(matched, cost[i - 1][j] + _SKIP, cost[i][j - 1] + _SKIP)
        found: dict[int, Slot] = {}
        i, j = rows, columns
        while i and j:
            if cost[i][j] == cost[i - 1][j - 1] + self._mismatch(gemms[i - 1], slots[j - 1]):
                found[gemms[i - 1]] = slots[j - 1]
                i, j = i - 1, j - 1
            elif cost[i][j] == cost[i - 1][j] + _SKIP:
                i -= 1
            else:
                j -= 1
        return cost[rows][columns], found

    def _mismatch(self, index: int, slot: Slot) -> float:
        task, seen = self.tasks[index], self.seen[index]
        if (seen.family == Family.MOE_GEMM) != slot.is_experts:
            return 10.0
        if seen.is_gated and slot.role == "experts_down":
            return 10.0
        if slot.is_experts:
            return 0.0
        if task.operands:  # a traced shape decides
            work = work_of(task)
            return 0.0 if (work.n, work.k) == (slot.n, slot.k) else _CONTRADICTED
        ctas = int(work_of(task).ctas)
        if not (ctas and seen.tile_m and seen.tile_n) or seen.is_persistent:
            return 0.1  # nothing contradicts, nothing confirms
        m = self.rows if slot.role == "lm_head" else self.tokens
        return min(
            _tiles_cost(ctas, ceil(slot.n / across) * ceil(m / down))
            for across, down in ((seen.tile_n, seen.tile_m), (seen.tile_m, seen.tile_n))
        )

    # What each task becomes

    def filled(self, index: int) -> KernelTask:
        task, seen = self.tasks[index], self.seen[index]
        attributes = self._attributes(index, seen)
        op, operands = self._operands(index, seen) if not task.operands else (task.op, task.operands)
        missing = {name: value for name, value in attributes.items() if name not in task.attributes}
        if not missing and operands == task.operands:
            return task
        return task.model_copy(
            update={
                "op": task.op or op,
                "operands": operands,
                "operands_from": task.operands_from if task.operands else "solved" if operands else "none",
                "tokens": task.tokens or self.tokens,
                "attributes": {**task.attributes, **missing},
                "ranks": max(task.ranks, self.tp) if seen.family == Family.COLLECTIVE else task.ranks,
            }
        )

    def _attributes(self, index: int, seen: Recognised) -> dict[str, int]:
        model, tp = self.model, self.tp
        heads = {
            "heads": max(1, model.heads // tp),
            "kv_heads": 1 if model.is_mla else max(1, model.kv_heads // tp),
            "head_dim": model.head_dim,
        }
        if seen.family in _ATTENTION:
            window = model.window(self.layer_of[index] % model.layers)
            narrow = {"kv_bits": 8} if self.kv_is_narrow and not seen.w_bits else {}
            return {**heads, **narrow, **({"window": window} if window else {})}
        if seen.family == Family.ATTENTION_COMBINE:
            return heads
        if seen.family in {Family.MOE_GEMM, Family.MOE_ROUTING}:
            return {"experts": model.experts, "topk": model.topk, "hidden": model.hidden} if model.experts else {}
        if seen.family == Family.QUANTISE and not self.tasks[index].operands:
            return {"hidden": model.hidden}
        if seen.family == Family.FUSED and not self.tasks[index].operands:
            return {"hidden": model.hidden, "intermediate": (model.moe_intermediate or model.intermediate) // tp}
        return {}

    def _operands(self, index: int, seen: Recognised) -> tuple[str, tuple[Operand, ...]]:
        model, m, tp = self.model, self.tokens, self.tp
        h = model.hidden
        heads, kv_heads = max(1, model.heads // tp), max(1, model.kv_heads // tp)
        slot = self.slot_of.get(index)

        def bf16(*shape: int) -> Operand:
            return Operand(dtype=model.dtype, shape=shape)

        def int64(*shape: int) -> Operand:
            return Operand(dtype="int64", shape=shape)

        if slot is not None and not slot.is_experts:
            rows = self.rows if slot.role == "lm_head" else m
            return "aten::linear", (bf16(rows, slot.k), bf16(slot.n, slot.k))
        if seen.family in _ATTENTION and not model.is_mla:
            q, kv = bf16(m, heads, model.head_dim), bf16(m, kv_heads, model.head_dim)
            return "vllm::unified_attention_with_output", (q, kv, kv, q)
        if seen.family == Family.NORM and "norm" in seen.kind:
            shape = self._normed(index)
            kind = "fused_add_rms_norm" if seen.kind.startswith("fused_add") else "rms_norm"
            return f"_C::{kind}", (bf16(*shape), bf16(*shape), bf16(shape[-1]))
        if seen.family == Family.ROPE:
            q, kv = bf16(m, heads * model.head_dim), bf16(m, kv_heads * model.head_dim)
            return "_C::rotary_embedding", (int64(m), q, kv, bf16(model.max_positions, model.head_dim))
        if seen.family == Family.KV_WRITE and not model.is_mla:
            kv = bf16(m, kv_heads, model.head_dim)
            return "_C_cache_ops::reshape_and_cache_flash", (kv, kv, int64(m))
        if seen.family == Family.ACTIVATION and not model.experts:
            inner = model.intermediate // tp
            if "_mul" in seen.kind:
                return "_C::silu_and_mul", (bf16(m, inner), bf16(m, 2 * inner))
            return "aten::relu", (bf16(m, inner),)
        if seen.family == Family.COLLECTIVE and seen.collective == "all_reduce":
            return "vllm::all_reduce", (bf16(m, h),)
        if seen.family == Family.SAMPLING and seen.kind in {"argmax", "sample"}:
            return "aten::argmax", (Operand(dtype="fp32", shape=(self.rows, model.vocab)),)
        return "", ()

    def _normed(self, index: int) -> tuple[int, int]:
        """Hidden states, or the heads of q or k where the grid counts those."""
        model, grid = self.model, self.tasks[index].signature.grid
        rows = grid[0] if grid else self.tokens
        for heads in (max(1, model.heads // self.tp), max(1, model.kv_heads // self.tp)):
            if model.qk_norm and rows == self.tokens * heads and rows != self.tokens:
                return rows, model.head_dim
        return self.tokens, model.hidden


def _tiles_cost(ctas: int, tiles: int) -> float:
    if tiles <= ctas <= tiles + 8:  # a raster is padded by at most 8 tiles
        return 0.0
    return 0.2 if tiles and ctas % tiles == 0 and ctas // tiles <= 32 else _CONTRADICTED  # split-K


# --- without a model: a layer's two expert GEMMs tell about each other ---------------------------------------------


def _expert_pairs(tasks: Sequence[KernelTask], seen: Sequence[Recognised]) -> Iterator[tuple[int, int]]:
    """A gated expert GEMM and the next one that is not: gate_up and down of one layer."""
    gated = -1
    for index, found in enumerate(seen):
        if found.family != Family.MOE_GEMM or "n" in tasks[index].attributes:
            continue
        if found.is_gated:
            gated = index
        elif gated >= 0:
            yield gated, index
            gated = -1


def _told_by_each_other(gate_up: KernelTask, down: KernelTask) -> tuple[KernelTask, KernelTask]:
    """Down multiplies what gate_up wrote: its k is half of gate_up's n."""
    first = work_of(gate_up)
    if (
        _has_expert_weights(gate_up)
        or first.work_from == "nothing"
        or first.library not in {Library.TRTLLM, Library.TRITON}
    ):
        return gate_up, down
    second = work_of(down)
    facts = {"experts": int(first.experts), "topk": int(first.topk), "m": int(first.m)}
    # Whoever pads, pads the hidden size alike: down writes as wide as gate_up reads.
    n = int(second.n) if down.signature.grid else int(first.k)
    gate_up = _with(gate_up, {**facts, "n": int(first.n), "k": int(first.k)})
    return gate_up, _with(down, {**facts, "n": n, "k": int(first.n) // 2})


def _has_expert_weights(task: KernelTask) -> bool:
    """Whether the op has the experts' weights among its operands."""
    return any(len(operand.shape) == 3 for operand in task.operands)


def _with(task: KernelTask, attributes: dict[str, int]) -> KernelTask:
    return task.model_copy(update={"attributes": {**attributes, **task.attributes}})
