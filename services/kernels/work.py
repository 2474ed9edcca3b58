"""The work of a kernel task: what it computes and moves, in numbers that every simulator reads.

`Work` is one task's, `WorkTable` many tasks' as columns. Recognition (recognise.py) and the recovery of shapes
(recover.py) produce it; simulators consume it and look at nothing else of a task.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Family(StrEnum):
    """What a kernel is for. The same word in results, tables and views."""

    GEMM = "gemm"  # also gemv, batched GEMM, and split-K reductions folded into theirs
    SPLITK_REDUCE = "splitk_reduce"  # the fp32 round trip of a split-K GEMM, where it is a kernel of its own
    ATTENTION_PREFILL = "attention_prefill"
    ATTENTION_DECODE = "attention_decode"  # every request has one new token (or a few speculated)
    ATTENTION_MIXED = "attention_mixed"  # prefill chunks and decodes in one kernel
    ATTENTION_COMBINE = "attention_combine"  # merges split-KV partial results; scheduling helpers of attention
    MLA = "mla"  # DeepSeek's latent attention, decode form
    KV_WRITE = "kv_write"
    ROPE = "rope"
    NORM = "norm"
    ACTIVATION = "activation"
    QUANTISE = "quantise"
    MOE_GEMM = "moe_gemm"
    MOE_ROUTING = "moe_routing"  # gating, sorting, permuting, finalising
    COLLECTIVE = "collective"
    FUSED = "fused"  # inductor-generated Triton
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    SOFTMAX = "softmax"
    SAMPLING = "sampling"
    EMBEDDING = "embedding"
    COPY = "copy"  # memcpy, memset, device-to-device
    STATE_SPACE = "state_space"
    UNKNOWN = "unknown"


class Math(StrEnum):
    """Which arithmetic rate of the GPU the work uses."""

    NONE = "none"
    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"  # fp16 too: same rate on every GPU listed
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"


class Library(StrEnum):
    """Who wrote the kernel; decides what the target GPU would run instead."""

    UNKNOWN = "unknown"
    CUBLAS = "cublas"  # legacy and xmma kernels
    NVJET = "nvjet"  # cuBLASLt on compute capability 9.0 and later
    CUTLASS = "cutlass"
    TRITON = "triton"
    FA2 = "fa2"
    FA3 = "fa3"
    FLASHINFER = "flashinfer"
    TRTLLM = "trtllm"
    VLLM = "vllm"
    TORCH = "torch"
    DEEPGEMM = "deepgemm"
    MARLIN = "marlin"
    NCCL = "nccl"
    CUSTOM_ALLREDUCE = "custom_allreduce"
    MULTIMEM = "multimem"
    AMD = "amd"  # Tensile, hipBLASLt, composable kernel, AITER


class WorkFrom(StrEnum):
    """How the work is known; widens the interval from top to bottom."""

    SHAPES = "shapes"  # operand shapes of the trace, its capture, or a derived op
    SOLVED = "solved"  # the model's configuration and the step's tokens
    GRID = "grid"  # inferred from the launch configuration
    NOTHING = "nothing"  # only a bounded guess is possible


@dataclass(frozen=True, slots=True)
class Work:
    """One task's work. A field that does not apply is 0; `bits` are per element."""

    family: Family = Family.UNKNOWN
    math: Math = Math.NONE
    library: Library = Library.UNKNOWN
    work_from: WorkFrom = WorkFrom.NOTHING
    # What any kernel has
    flop: float = 0.0
    read_bytes: float = 0.0  # compulsory, as if nothing were cached
    write_bytes: float = 0.0
    rows: float = 0.0  # row-wise kernels: tokens
    placed_elements: float = 0.0  # whose address each thread works out by divisions (PyTorch, strided or broadcast)
    ctas: float = 0.0
    threads_per_cta: float = 0.0
    # GEMM: C[m, n] = A[m, k] · W[n, k]ᵀ, m tokens; `batch` independent ones
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    batch: float = 0.0
    a_bits: float = 0.0
    w_bits: float = 0.0
    out_bits: float = 0.0
    tile_m: float = 0.0  # as traced, tokens side; 0 unknown
    tile_n: float = 0.0
    split_k: float = 0.0
    weight_copies: float = 0.0  # distinct weight matrices between two uses of one: layers in serving; 0 = many (cold)
    # Attention
    sequences: float = 0.0
    q_tokens: float = 0.0  # Σ q
    kv_tokens: float = 0.0  # Σ tokens read from the KV cache per request (window applied), new ones included
    qk_pairs: float = 0.0  # Σ pairs actually computed: causal and window applied
    q_longest: float = 0.0
    kv_longest: float = 0.0
    heads: float = 0.0
    kv_heads: float = 0.0
    head_dim: float = 0.0
    kv_bits: float = 0.0
    window: float = 0.0  # tokens; 0 = none
    kv_copies: float = 0.0  # layers cycling through L2 between two uses of one KV cache; 0 = many (cold)
    # Mixture of experts (m tokens · topk rows over `experts`; n, k as for one expert's GEMM)
    experts: float = 0.0
    experts_hit: float = 0.0
    topk: float = 0.0
    rows_busiest_expert: float = 0.0
    # Collectives
    ranks: float = 0.0
    message_bytes: float = 0.0  # per rank
    collective: str = ""  # all_reduce, all_gather, reduce_scatter, all_to_all, send_recv, broadcast
    # Row-wise subtype, for calibration classes: rms_norm, layer_norm, silu_mul, gelu, relu, rope, add, embedding …
    kind: str = ""
    sass: str = ""  # SHA-256 of a recorded SASS trace of such a launch


Floats = NDArray[np.float64]
Strings = NDArray[np.object_]

_STRINGS = ("family", "math", "library", "work_from", "collective", "kind", "sass")
_NUMBERS = tuple(f.name for f in fields(Work) if f.name not in _STRINGS)


class WorkTable:
    """Columns of many tasks' work: `table["m"]` is float64 of shape (tasks,), `table.text("family")` objects (str)."""

    __slots__ = ("_numbers", "_texts", "count")

    def __init__(self, numbers: dict[str, Floats], texts: dict[str, Strings]) -> None:
        self._numbers, self._texts = numbers, texts
        self.count = len(texts["family"])

    @classmethod
    def of(cls, works: list[Work]) -> WorkTable:
        return cls(
            {name: np.array([getattr(w, name) for w in works], dtype=np.float64) for name in _NUMBERS},
            {name: np.array([str(getattr(w, name)) for w in works], dtype=object) for name in _STRINGS},
        )

    def __getitem__(self, name: str) -> Floats:
        return self._numbers[name]

    def text(self, name: str) -> Strings:
        return self._texts[name]

    def replaced(self, columns: dict[str, Floats]) -> WorkTable:
        """With other numbers in some columns."""
        return WorkTable({**self._numbers, **columns}, self._texts)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> WorkTable:
        return WorkTable(
            {name: column[index] for name, column in self._numbers.items()},
            {name: column[index] for name, column in self._texts.items()},
        )
