"""What is simulated: a kernel task, that is a launch signature plus the facts that fix its work."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

Dim3 = tuple[int, int, int]
Lengths = tuple[int, ...]

OperandsFrom = Literal["traced", "capture", "solved", "derived", "none"]
"""Where a task's operands come from: the profiler's own shapes, the capture trace of the same CUDA graph, solved from
the model's configuration, derived from framework ops recorded without a GPU, or nowhere."""


class Value(BaseModel):
    """An immutable value; unknown fields are refused on construction."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="constants", ignored_types=(cached_property,)
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, without what was computed of the original: a digest of other content."""
        copied = super().model_copy(update=update, deep=deep)
        if update:
            for name in copied.__dict__.keys() - type(self).model_fields.keys():
                del copied.__dict__[name]
        return copied


def digest(value: BaseModel) -> str:
    """The first 16 hex digits of the SHA-256 of a value's canonical JSON (sorted keys, no blanks)."""
    text = json.dumps(value.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class KernelSignature(Value):
    """A launch configuration. Two launches with one signature may still do different work: see KernelTask."""

    name: str  # demangled; canonical spelling, without the argument list
    grid: Dim3 | None = None  # CTAs; None where the profiler did not say
    block: Dim3 | None = None  # threads per CTA
    cluster: Dim3 | None = None
    registers: int | None = None  # per thread
    shared_memory_bytes: int | None = None  # static + dynamic, per CTA

    @cached_property
    def signature_id(self) -> str:
        return digest(self)


class Operand(Value):
    """One tensor argument of the op that launched the kernel."""

    dtype: str  # bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, fp4, int32, int64, bool, or the framework's word
    shape: tuple[int, ...]


class KernelTask(Value):
    """What a simulator simulates and what is cached: all that determines a launch's time, and no measured time."""

    signature: KernelSignature
    op: str = ""  # framework op, as the trace names it: aten::mm, vllm::unified_attention_with_output
    operands: tuple[Operand, ...] = ()
    operands_from: OperandsFrom = "none"
    tokens: int | None = None  # M, tokens of the engine step (padded to the graph's bucket where a graph was replayed)
    q_lengths: Lengths = ()  # attention: new tokens per request, in the engine's order
    kv_lengths: Lengths = ()  # attention: tokens attended to per request, the new ones included
    tokens_per_expert: Lengths = ()  # mixture of experts, where the trace tells; balanced otherwise
    ranks: int = 1  # of a collective, or the tensor-parallel group the launch belongs to
    moved_bytes: int | None = None  # copies: bytes read plus bytes written
    sass: Annotated[str, Field(exclude_if=not_)] = ""
    """SHA-256 of the artifact that holds the SASS trace of such a launch; "" where none was recorded, and then not part
    of the task's identity."""
    attributes: Annotated[dict[str, int], Field(default_factory=dict)]
    """Further facts by name: heads, kv_heads, head_dim, window (tokens), kv_bits, experts, topk, hidden, intermediate,
    m, n, k (a GEMM whose operands say less than that), layers (weight matrices cycling between reuses)."""

    @cached_property
    def task_id(self) -> str:
        return digest(self)
