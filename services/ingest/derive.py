"""The kernels vLLM would launch on a GPU for a step that was recorded on the CPU.

A CPU recording has framework ops with shapes and no kernels. The step is the same on a GPU, only each op runs as other
kernels, so the list is written from what vLLM's GPU worker does for the same op, eagerly (`enforce_eager`), in order:

recorded on the CPU                                  on the GPU
---------------------------------------------------  ------------------------------------------------------------------
copy_ of equal integer or bool tensors, before the   one small host-to-device copy each: block table, query starts,
  embedding (the input batch is put together)          sequence lengths, positions, token ids (CpuGpuBuffer)
compute_slot_mapping_kernel_impl                     one kernel, slot mapping
get_scheduler_metadata, index_select and sums on     nothing: the scheduler of the CPU attention, and host arithmetic
  integers before the embedding                        that numpy does on a GPU machine as well
cast of the token ids, embedding                     a cast and a gather of rows each
to, pow, mean, rsqrt, mul(weight)                    one rms_norm; fused_add_rms_norm where the residual is added first
layer_norm                                           one layer_norm
onednn_mm, linear, addmm, mm                         one GEMM, its bias in the epilogue
rotary_embedding                                     the same
unified_kv_cache_update, cpu_attn_reshape_and_cache  one reshape_and_cache
unified_attention_with_output,                       one attention kernel: prefill, decode or mixed by the step's
  cpu_attention_with_kv_cache                          lengths (split-KV and its combine are left to the simulator)
silu or gelu, then mul by the other half             one silu_and_mul or gelu_and_mul
relu, gelu, silu alone; add, mul                     one elementwise kernel each
shm_allreduce, shm_all_gather, vllm::all_reduce      one collective
moe_forward                                          routing, two grouped GEMMs with the activation between, a sum
index of hidden states before lm_head                one gather of the rows that are sampled
lm_head's GEMM, cast of the logits, argmax           a GEMM, a cast to fp32, a reduction, a cast of the ids, and a copy
                                                       of the sampled ids back to the host
views, slices, empty, item, fill_ of padding         nothing

Every kernel is named `derived::…<dtype>`: nobody's kernel is called so, nobody takes it for a traced one. Not known
from a CPU recording, hence not derived: kernels that torch.compile would fuse, sampling other than greedy, CUDA
graphs' padding. Operands are those of the GPU's op, in its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from cascade_schemas.model import ModelSpec
from cascade_schemas.task import KernelSignature, KernelTask, Lengths, Operand

from services.ingest.imported import ImportedStep
from services.kernels.dtypes import bits_of, canonical_dtype

Shape = tuple[int, ...]


class CannotDerive(ValueError):
    """Ops whose kernels need something the recording does not say."""


@dataclass(frozen=True, slots=True)
class TracedOp:
    """A framework op with the shape and dtype of each argument; an argument that is no tensor has the shape ()."""

    name: str
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()  # the profiler's words or ours


def derive_step(
    ops: Iterable[TracedOp], step: ImportedStep, model: ModelSpec | None = None, ranks: int = 1
) -> list[KernelTask]:
    """The step's kernels and copies, in order. Ops may be nested: inner ones are told by their names and left out."""
    derivation = _Derivation(step, model, ranks)
    for op in ops:
        derivation.take(op)
    return derivation.finish()


def is_copy(task: KernelTask) -> bool:
    """Whether a derived task is a memcpy rather than a kernel."""
    return task.signature.name.startswith("derived::memcpy")


_INTEGERS = {"int32", "int64", "bool", "int8", "uint8", "int16"}
_GEMMS = {"_C::onednn_mm", "aten::linear", "aten::addmm", "aten::mm"}
_KV_UPDATES = {"vllm::unified_kv_cache_update", "_C::cpu_attn_reshape_and_cache"}
_ATTENTIONS = {"vllm::unified_attention_with_output", "_C::cpu_attention_with_kv_cache"}
_ALL_REDUCES = {"_C::shm_allreduce", "vllm::all_reduce"}
_ALL_GATHERS = {"_C::shm_all_gather", "vllm::all_gather"}
_ARGMAXES = {"_C::greedy_argmax", "aten::argmax"}
_GATED = {"aten::silu": "silu_and_mul", "aten::gelu": "gelu_and_mul"}
_PASSED_ON = {  # the same op on both
    "_C::rms_norm": "rms_norm",
    "_C::fused_add_rms_norm": "fused_add_rms_norm",
    "_C::silu_and_mul": "silu_and_mul",
    "_C::gelu_and_mul": "gelu_and_mul",
    "_C::gelu_tanh_and_mul": "gelu_and_mul",
    "aten::softmax": "softmax",
    "aten::sort": "sort",
    "aten::topk": "topk",
    "aten::exponential_": "exponential",
    "aten::masked_fill_": "masked_fill",
}


@dataclass(slots=True)
class _Norm:
    """An RMSNorm in the middle of its ops."""

    shape: Shape
    adds_residual: bool


@dataclass(slots=True)
class _Derivation:
    step: ImportedStep
    model: ModelSpec | None
    ranks: int
    tasks: list[KernelTask] = field(default_factory=list)
    tokens: int | None = None
    is_forward: bool = False  # the embedding has been seen: from here on, tensors are the GPU's
    attention_count: int = 0
    kv_is_written: bool = False
    attention_is_done: bool = False
    skipped_gemm: int = 0  # tokens of the linear whose inner mm comes next
    ids_cast: Operand | None = None
    float_cast: tuple[Operand, Operand] | None = None  # the last one, in case it is the logits'
    held_add: tuple[Operand, Operand] | None = None  # an fp32 sum that an RMSNorm may follow
    held_activation: tuple[str, Operand] | None = None  # a silu or gelu that its multiplication may follow
    held_index: Operand | None = None  # hidden states of which rows will be taken
    norm: _Norm | None = None
    argmax_shape: Shape = ()

    def take(self, op: TracedOp) -> None:
        name, tensors = op.name, _tensors(op)
        if name == "aten::embedding" and len(tensors) >= 2:
            self._embed(tensors)
        elif not self.is_forward:
            self._prepare(name, tensors)
        elif name in _GEMMS and len(tensors) >= 2:
            self._gemm(name, tensors)
        elif name in _KV_UPDATES and len(tensors) >= 2:
            self._write_kv(tensors)
        elif name in _ATTENTIONS and tensors:
            self._attend(name, tensors)
        elif name == "aten::pow" and tensors and len(tensors[0].shape) > 1:
            self.norm = _Norm(tensors[0].shape, adds_residual=self.held_add is not None)
            self.held_add = None
        elif name == "aten::mul" and len(tensors) == 2:
            self._multiply(tensors)
        elif name == "aten::add" and tensors:
            self._add(tensors)
        elif name == "aten::copy_" and len(tensors) >= 2:
            self._copy(tensors)
        elif tensors:
            self._take_one_to_one(name, tensors)

    def _take_one_to_one(self, name: str, tensors: list[Operand]) -> None:
        if name == "aten::layer_norm":
            self._settle()
            self._emit("layer_norm", "aten::layer_norm", tensors[:3])
        elif name == "aten::relu":
            self._settle()
            self._emit("relu", name, tensors[:1])
        elif name in _GATED:
            self._settle()
            self.held_activation = (_GATED[name], tensors[0])
        elif name == "_C::rotary_embedding":
            self._settle()
            self._emit("rotary_embedding", name, tensors, dtype=tensors[1].dtype)
        elif name in _ALL_REDUCES:
            self._settle()
            self._emit("all_reduce", "vllm::all_reduce", tensors[:1])
        elif name in _ALL_GATHERS:
            self._settle()
            if len(tensors) > 1:
                self.ranks = max(self.ranks, prod(tensors[1].shape) // max(prod(tensors[0].shape), 1))
            self._emit("all_gather", "vllm::all_gather", tensors[:1])
        elif name == "aten::index":
            self._settle()
            self.held_index = tensors[0]
        elif name in _ARGMAXES:
            self._sample(tensors[0])
        elif name == "vllm::moe_forward":
            self._settle()
            self._route_and_run_experts(tensors[0])
        elif name in _PASSED_ON:
            self._settle()
            self._emit(_PASSED_ON[name], name, tensors)

    def finish(self) -> list[KernelTask]:
        self._settle()
        if self.argmax_shape:
            self._memcpy("memcpy_d2h", Operand(dtype="int32", shape=self.argmax_shape[:1]))
        if self.ranks > 1:
            # A collective may precede the op that tells the number of ranks.
            return [task.model_copy(update={"ranks": self.ranks}) for task in self.tasks]
        return self.tasks

    def _prepare(self, name: str, tensors: list[Operand]) -> None:
        if name == "aten::copy_" and len(tensors) >= 2:
            target, source = tensors[:2]
            if target == source and target.dtype in _INTEGERS:
                self._memcpy("memcpy_h2d", target)
            elif target.dtype == "int64" and source.dtype == "int32" and len(target.shape) == 1:
                self.ids_cast = source
        elif name == "_C::compute_slot_mapping_kernel_impl" and len(tensors) >= 2:
            self._emit("slot_mapping", "vllm::compute_slot_mapping", tensors[:2])

    def _embed(self, tensors: list[Operand]) -> None:
        table, ids = tensors[:2]
        if not self.is_forward:
            self.is_forward, self.tokens = True, ids.shape[0] if ids.shape else 1
            if self.ids_cast is not None and self.ids_cast.shape == ids.shape:
                self._emit("cast", "aten::copy_", [ids, self.ids_cast])
        self._settle()
        self._emit("embedding", "aten::embedding", [table, ids])

    def _gemm(self, name: str, tensors: list[Operand]) -> None:
        if name in {"aten::addmm", "aten::mm"} and self.skipped_gemm:
            self.skipped_gemm = 0
            return
        rows, weight, bias = _linear(name, tensors)
        if self.held_index is not None and rows.shape[0] <= self.held_index.shape[0]:
            indexes = Operand(dtype="int64", shape=(rows.shape[0],))
            self._emit("gather_rows", "aten::index", [self.held_index, indexes])
        self.held_index = None
        self._settle()
        self.skipped_gemm = rows.shape[0] if name == "aten::linear" else 0
        self._emit("gemm", "aten::linear", [rows, weight, *bias])

    def _write_kv(self, tensors: list[Operand]) -> None:
        self._settle()
        if not self.kv_is_written:
            slots = Operand(dtype="int64", shape=tensors[0].shape[:1])
            # Without the caches: their block count and layout are the CPU's.
            self._emit("reshape_and_cache", "_C_cache_ops::reshape_and_cache_flash", [*tensors[:2], slots])
        self.kv_is_written, self.attention_is_done = True, False

    def _attend(self, name: str, tensors: list[Operand]) -> None:
        self._settle()
        self.kv_is_written = False
        if self.attention_is_done and name == "_C::cpu_attention_with_kv_cache":
            return  # inside the op that was taken
        q = tensors[0]
        if name == "_C::cpu_attention_with_kv_cache":  # q, K cache [blocks, KV heads, block, head], V cache, output
            kv = Operand(dtype=q.dtype, shape=(q.shape[0], tensors[1].shape[1], q.shape[-1]))
            tensors = [q, kv, kv, q]
        attributes = {"heads": q.shape[1], "kv_heads": tensors[1].shape[1], "head_dim": q.shape[2]}
        layer, self.attention_count = self.attention_count, self.attention_count + 1
        window = self.model.window(layer % self.model.layers) if self.model else 0
        if window:
            attributes["window"] = window
        self._emit(
            f"attention_{_attention_phase(self.step)}",
            "vllm::unified_attention_with_output",
            tensors[:4],
            attributes=attributes,
            q_lengths=self.step.q_lengths,
            kv_lengths=self.step.kv_lengths,
        )
        self.attention_is_done = True

    def _multiply(self, tensors: list[Operand]) -> None:
        left, right = tensors
        if self.norm is not None:
            if len(right.shape) != 1:  # x · rsqrt; the weight comes next
                return
            out = Operand(dtype=right.dtype, shape=self.norm.shape)
            if self.norm.adds_residual:
                self._emit("fused_add_rms_norm", "_C::fused_add_rms_norm", [out, out, right])
            else:
                self._emit("rms_norm", "_C::rms_norm", [out, out, right])
            self.norm = None
        elif self.held_activation is not None and self.held_activation[1] == left == right:
            both = Operand(dtype=left.dtype, shape=(*left.shape[:-1], 2 * left.shape[-1]))
            kernel, self.held_activation = self.held_activation[0], None
            self._emit(kernel, f"_C::{kernel}", [left, both])
        else:
            self._settle()
            self._emit("mul", "aten::mul", tensors)

    def _add(self, tensors: list[Operand]) -> None:
        if self.norm is not None or not tensors[0].shape:  # the ε of a norm; a scalar on the host
            return
        self._settle()
        is_sum = len(tensors) > 1 and tensors[0].shape == tensors[1].shape
        if is_sum and tensors[0].dtype == "fp32":
            self.held_add = (tensors[0], tensors[1])
        else:
            self._emit("add", "aten::add", tensors[:2])

    def _copy(self, tensors: list[Operand]) -> None:
        target, source = tensors[:2]
        if not target.shape or self.norm is not None:
            return
        integers = target.dtype in _INTEGERS
        if target.dtype == source.dtype:
            if target.shape == source.shape and not integers:  # a clone, a contiguous()
                self._settle()
                self._emit("copy", "aten::copy_", [target, source])
        elif integers:
            self._emit("cast", "aten::copy_", [target, source])
        else:  # an RMSNorm's, which its GPU kernel does in registers, unless sampling follows
            self.float_cast = (target, source)

    def _sample(self, logits: Operand) -> None:
        self._settle()
        if self.argmax_shape == logits.shape:
            return
        self.argmax_shape = logits.shape
        if self.float_cast is not None and self.float_cast[0] == logits:
            self._emit("cast", "aten::copy_", list(self.float_cast))
        self._emit("argmax", "aten::argmax", [logits])

    def _route_and_run_experts(self, hidden: Operand) -> None:
        if self.model is None or not self.model.experts:
            raise CannotDerive(
                "the recording runs experts (vllm::moe_forward) and names none of their sizes; give the model's "
                "config.json"
            )
        tokens, width = hidden.shape
        model, dtype = self.model, hidden.dtype
        rows, inner = tokens * model.topk, model.moe_intermediate // self.ranks
        up = (2 if model.gated else 1) * inner
        facts = {"experts": model.experts, "topk": model.topk}

        def tensor(*shape: int, dtype: str = dtype) -> Operand:
            return Operand(dtype=dtype, shape=shape)

        scores = tensor(tokens, model.experts)
        self._emit("moe_routing", "vllm::topk_softmax", [scores], attributes=facts)
        for n, k in ((up, width), (width, inner)):
            attributes = {**facts, "m": tokens, "n": n, "k": k}
            self._emit("moe_gemm", "vllm::fused_moe", [tensor(rows, k)], attributes=attributes)
            if n == up:
                kernel = f"{model.activation}_and_mul" if model.gated else model.activation
                self._emit(kernel, f"_C::{kernel}", [tensor(rows, inner), tensor(rows, up)])
        self._emit("moe_sum", "_moe_C::moe_sum", [tensor(rows, width), hidden], attributes=facts)

    def _settle(self) -> None:
        """What was held back for a fusion that did not come is a kernel of its own."""
        if self.held_add is not None:
            held, self.held_add = self.held_add, None
            self._emit("add", "aten::add", list(held))
        if self.held_activation is not None:
            (kernel, operand), self.held_activation = self.held_activation, None
            alone = kernel.removesuffix("_and_mul")
            self._emit(alone, f"aten::{alone}", [operand])

    def _memcpy(self, name: str, operand: Operand) -> None:
        moved = 2 * prod(operand.shape) * bits_of(operand.dtype) // 8
        if moved:
            self.tasks.append(
                KernelTask(
                    signature=KernelSignature(name=f"derived::{name}"),
                    op="aten::copy_",
                    operands_from="derived",
                    moved_bytes=moved,
                    attributes={},
                )
            )

    def _emit(
        self,
        kernel: str,
        op: str,
        operands: list[Operand],
        *,
        dtype: str = "",
        attributes: dict[str, int] | None = None,
        q_lengths: Lengths = (),
        kv_lengths: Lengths = (),
    ) -> None:
        if not prod(operands[0].shape):
            return
        self.tasks.append(
            KernelTask(
                signature=KernelSignature(name=f"derived::{kernel}<{dtype or operands[0].dtype}>"),
                op=op,
                operands=tuple(operands),
                operands_from="derived",
                tokens=self.tokens,
                q_lengths=q_lengths,
                kv_lengths=kv_lengths,
                ranks=self.ranks,
                attributes=attributes or {},
            )
        )


def _tensors(op: TracedOp) -> list[Operand]:
    return [
        Operand(dtype=canonical_dtype(dtype), shape=shape)
        for shape, dtype in zip(op.shapes, op.dtypes, strict=False)
        if bits_of(dtype) and (shape or op.name == "aten::copy_")
    ]


def _linear(name: str, tensors: list[Operand]) -> tuple[Operand, Operand, list[Operand]]:
    """(rows [m, k], weight [n, k], bias) of any spelling of a linear layer."""
    if name == "_C::onednn_mm":  # out [m, n], rows [m, k], bias [n]
        out, rows = tensors[:2]
        return rows, Operand(dtype=rows.dtype, shape=(out.shape[1], rows.shape[1])), tensors[2:3]
    if name == "aten::linear":
        return tensors[0], tensors[1], tensors[2:3]
    bias = tensors[:1] if name == "aten::addmm" else []
    rows, right = tensors[len(bias) : len(bias) + 2]
    return rows, Operand(dtype=right.dtype, shape=right.shape[::-1]), bias


def _attention_phase(step: ImportedStep) -> str:
    if step.q_lengths:
        ones = sum(q == 1 for q in step.q_lengths)
        return "decode" if ones == len(step.q_lengths) else "mixed" if ones else "prefill"
    if step.context_requests and step.generation_requests:
        return "mixed"
    return "decode" if step.generation_requests else "prefill"
