"""What a kernel is, from its name alone.

A kernel's name is the one thing every profiler records. `recognise` reads it, in any spelling: demangled with or
without its argument list and casts, mangled (`_ZN…`), or without namespaces (Nsight Compute). It knows nothing of
shapes; work_of.py says what is made of them.

Tiles are (tokens, out features) whatever the library calls them. cuBLAS, and what runs under it (nvjet, xmma, legacy,
CUTLASS 2, Tensile), is column-major: to it a linear layer y[m, n] = x[m, k] · W[n, k]ᵀ is W · xᵀ, so the *first* number
of its tile runs along out features n and the second along tokens m.

Kernel families are described in SIMULATION 2.1. The rules are tried in order; the first that matches wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from services.kernels.work import Family, Library, Math

Class = Literal["", "mma_sync", "wgmma", "tcgen05", "mfma"]
"""How the kernel programs tensor cores, as in GpuSpec.programming_class; "" = it does not, or the name does not say."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a name says. 0 and "" mean that it does not."""

    family: Family = Family.UNKNOWN
    library: Library = Library.UNKNOWN
    kind: str = ""
    math: Math = Math.NONE
    a_bits: int = 0  # activations; of an elementwise kernel, its elements
    w_bits: int = 0
    out_bits: int = 0
    tile_m: int = 0  # tokens
    tile_n: int = 0  # out features
    tile_k: int = 0
    split_k: int = 0
    n: int = 0  # compiled in (DeepGEMM)
    k: int = 0
    programming_class: Class = ""
    is_persistent: bool = False  # the grid is about the SMs, not about the work
    collective: str = ""
    head_dim: int = 0
    is_windowed: bool = False
    is_gated: bool = False  # a GEMM with a gated activation in its epilogue
    elements_per_thread: int = 0  # elementwise kernels whose grid covers the elements
    tensors: int = 0  # operands of an elementwise kernel, the output included
    places_elements: bool = False  # each element's address is worked out by divisions: strided or broadcast operands
    notes: str = ""


@lru_cache(maxsize=65_536)
def recognise(name: str) -> Recognised:
    """What is known of a kernel by its name; Family.UNKNOWN when that is nothing."""
    text = _spelled_plainly(name)
    for pattern, read in _RULES:
        match = pattern.search(text)
        if match is not None:
            found = read(match, text) if callable(read) else read
            if found is not None:
                return found
    return _UNKNOWN


_UNKNOWN = Recognised()
_Reader = Callable[[re.Match[str], str], Recognised | None]

_CAST = re.compile(r"\((?:bool|char|short|int|long|unsigned|(?:un)?signed (?:int|long|char)|long long)\)(?=[\w(-])")
_ELSEWHERE = re.compile(r"(?<=\d)[uU]?[lL]{1,2}\b|(?<=\d)[uU]\b")


def _spelled_plainly(name: str) -> str:
    text = name.strip()
    if "<" not in text and "(" not in text:
        return text
    text = text.replace("<unnamed>", "(anonymous namespace)").replace("{anonymous}", "(anonymous namespace)")
    return _ELSEWHERE.sub("", _CAST.sub("", text)).replace("operator ()", "operator()")


# --- element types -----------------------------------------------------------------------------------------------

_ELEMENT = re.compile(
    r"BFloat16|bfloat16|bf16|Float8_e\dm\d\w*|fp8|e[45]m[23]|[Hh]alf\b|__half|half_t|fp16|OpaqueType<(\d+)|"
    r"\bdouble\b|\bfloat\b|\blong\b|\bunsigned char\b|\bsigned char\b|\bint\b|\bbool\b|\bshort\b"
)
_ELEMENT_BITS = {
    "BFloat16": 16, "bfloat16": 16, "bf16": 16, "Half": 16, "half": 16, "__half": 16, "half_t": 16, "fp16": 16,
    "fp8": 8, "double": 64, "float": 32, "long": 64, "unsigned char": 8, "signed char": 8, "int": 32, "bool": 8,
    "short": 16,
}  # fmt: skip


def _element_bits(text: str) -> int:
    """Bits of the first element type named."""
    match = _ELEMENT.search(text)
    if match is None:
        return 0
    return 8 * int(match[1]) if match[1] else _ELEMENT_BITS.get(match[0], 8)


def _float_bits(text: str) -> int:
    """Bits of the first floating type named: integers are indexes and sizes."""
    for match in _ELEMENT.finditer(text):
        if match[0] not in {"int", "long", "bool", "short", "unsigned char", "signed char"}:
            return 8 * int(match[1]) if match[1] else _ELEMENT_BITS.get(match[0], 8)
    return 0


def _math_of(bits: int, *, is_integer: bool = False) -> Math:
    if is_integer:
        return Math.INT8
    return {4: Math.FP4, 8: Math.FP8, 16: Math.BF16, 32: Math.FP32, 64: Math.FP64}.get(bits, Math.NONE)


# --- GEMMs -------------------------------------------------------------------------------------------------------

# nvjet letters: in, accumulate, out.
_NVJET_BITS = {"h": 16, "t": 16, "s": 32, "q": 8, "r": 8, "o": 4, "d": 64}


def _nvjet(match: re.Match[str], text: str) -> Recognised:
    arch, types, first, second, k_tile = match.groups()
    a_bits, out_bits = _NVJET_BITS.get(types[0], 16), _NVJET_BITS.get(types[-1], 16)
    # More than three letters name both inputs; tf32 is "s" as an input.
    w_bits = _NVJET_BITS.get(types[1], 16) if len(types) > 3 else a_bits
    programming_class: Class = "wgmma" if arch == "90" else "tcgen05" if arch or "_2cta_" in text else ""
    return Recognised(
        Family.GEMM,
        Library.NVJET,
        math=Math.TF32 if types[0] == "s" else _math_of(max(a_bits, w_bits)),
        a_bits=a_bits,
        w_bits=w_bits,
        out_bits=out_bits,
        tile_m=int(second),
        tile_n=int(first),
        tile_k=int(k_tile),
        split_k=2 if "splitK" in text else 0,
        programming_class=programming_class,
        is_persistent=True,
        notes="the first tile number runs along out features; split-K count is not in the name",
    )


_XMMA_BITS = {"f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "e4m3": 8, "e5m2": 8, "i8": 8, "f64": 64, "e2m1": 4}


def _xmma(match: re.Match[str], text: str) -> Recognised:
    arch, kind, types, tile = match.groups()
    words = re.findall(r"tf32|bf16|f16|f32|f64|e4m3|e5m2|e2m1|i8|i32", types)
    a_bits = _XMMA_BITS.get(words[0], 16) if words else 16
    is_tf32 = bool(words) and words[0] == "tf32"
    is_simt = "ffma" in text
    first, second, k_tile = (int(size) for size in tile.split("x"))
    math = Math.FP32 if is_simt else Math.TF32 if is_tf32 or a_bits == 32 else _math_of(a_bits)
    return Recognised(
        Family.GEMM,
        Library.CUBLAS,
        kind="" if kind == "gemm" else "conv",
        math=Math.INT8 if words and words[0] == "i8" else math,
        a_bits=a_bits,
        w_bits=a_bits,
        out_bits=_XMMA_BITS.get(words[2], a_bits) if len(words) > 2 else a_bits,
        tile_m=second,
        tile_n=first,
        tile_k=k_tile,
        split_k=2 if "split_k_kernel" in text else 1,
        programming_class="" if is_simt else "wgmma" if arch.startswith("9") else "mma_sync",
        # cuBLAS's sm90 kernels walk the tiles; one CTA per SM or fewer.
        is_persistent=arch.startswith("9"),
    )


def _legacy(match: re.Match[str], text: str) -> Recognised:
    arch, kind, first, second = match.groups()
    head = text[match.start() : match.end() + 8]
    is_half = "16816" in head or "fp16" in head or "hgemm" in kind or "h884" in kind or "h1688" in kind
    is_bf16 = "bf16" in head
    is_int = "i8" in kind or "igemm" in kind or "i16832" in kind or "int8" in head
    is_tf32 = "s1688" in kind and not is_half and not is_bf16
    is_double = "dgemm" in kind or "d884" in kind
    bits = 8 if is_int else 16 if is_half or is_bf16 else 64 if is_double else 32
    is_simt = bits == 32 and not is_tf32
    sliced = re.search(r"sliced\d+x(\d+)", text)
    return Recognised(
        Family.GEMM,
        Library.CUBLAS,
        kind="conv" if "cudnn" in text else "",
        math=Math.TF32 if is_tf32 else _math_of(bits, is_integer=is_int),
        a_bits=bits,
        w_bits=bits,
        out_bits=32 if is_int else bits,
        tile_m=int(second),
        tile_n=int(first),
        split_k=2 if "splitK" in text else 1,
        programming_class="" if is_simt else "mma_sync",
        notes=f"the warps of a CTA split k {sliced[1]} ways" if sliced else arch,
    )


def _cutlass2(match: re.Match[str], text: str) -> Recognised:
    head = text[match.start() : match.start() + 120]
    tile = re.search(r"_(\d+)x(\d+)_(\d+)x(\d+)_", head)
    is_simt = "simt" in head
    if re.search(r"tf32|s1688", head):
        bits, math = 32, Math.TF32
    elif re.search(r"bf16|_f16|s16816|s161616|hgemm|h16816", head):
        bits, math = 16, Math.BF16
    elif re.search(r"i16832|i8816|_s8|igemm", head):
        bits, math = 8, Math.INT8
    elif re.search(r"e4m3|e5m2|fp8", head):
        bits, math = 8, Math.FP8
    else:
        bits, math = 32, Math.FP32
    sm = re.search(r"cutlass_?(?:3x_sm)?(\d+)", head)
    programming_class: Class = "" if is_simt else _class_of(int(sm[1])) if sm else "mma_sync"
    return Recognised(
        Family.GEMM,
        Library.CUTLASS,
        kind="conv" if re.search(r"fprop|dgrad|wgrad", head) else "",
        math=math,
        a_bits=bits,
        w_bits=bits,
        out_bits=bits,
        tile_m=int(tile[2]) if tile else 0,
        tile_n=int(tile[1]) if tile else 0,
        tile_k=int(tile[3]) if tile else 0,
        split_k=0,
        programming_class=programming_class,
    )


def _class_of(sm: int) -> Class:
    return "wgmma" if sm // 10 == 9 else "tcgen05" if sm // 10 in {10, 11} else "mma_sync"


def _cute_tile(text: str) -> tuple[int, int, int]:
    """The tile among the shapes compiled in; the cluster's comes before it and is small."""
    for match in _CUTE_SHAPE.finditer(text):
        sizes = (int(match[1]), int(match[2]), int(match[3]))
        if max(sizes) > 16:
            return sizes
    named = re.search(r"_(\d+)x(\d+)x(\d+)_", text)
    return (int(named[1]), int(named[2]), int(named[3])) if named else (0, 0, 0)


_CUTE_SHAPE = re.compile(r"tuple<(?:cute::)?C<(\d+)>,\s*(?:cute::)?C<(\d+)>,\s*(?:cute::)?C<(\d+)>")


def _cutlass3(_: re.Match[str], text: str) -> Recognised:
    """`cutlass::device_kernel<…Gemm…>`: the tile stands as cute::tuple<C<BM>, C<BN>, C<BK>> (row-major)."""
    sizes = _cute_tile(text)
    is_narrow = re.search(r"float_?e[45]m[23]|e4m3|fp8", text)
    is_fp4 = re.search(r"float_?e2m1|nv_float4|mx_float4|nvfp4", text)
    is_int = re.search(r"\bint8_t|signed char", text)
    bits = 4 if is_fp4 else 8 if is_narrow or is_int else 16
    sm = re.search(r"[sS][mM](\d{2,3})", text)
    return Recognised(
        Family.MOE_GEMM if re.search(r"[gG]roup(?:ed)?|[pP]trArray|moe", text) else Family.GEMM,
        Library.CUTLASS,
        math=_math_of(bits, is_integer=bool(is_int)),
        a_bits=bits,
        w_bits=bits,
        out_bits=16,
        tile_m=sizes[0],
        tile_n=sizes[1],
        tile_k=sizes[2],
        programming_class=_class_of(int(sm[1])) if sm else "",
        is_persistent=True,
    )


_TENSILE_BITS = {"H": 16, "B": 16, "S": 32, "D": 64, "F8": 8, "B8": 8, "F8B8": 8, "B8F8": 8, "I8": 8, "X": 32}


def _tensile(match: re.Match[str], text: str) -> Recognised:
    """RocBLAS and hipBLASLt: Cijk_Ailk_Bljk_<types>_…_MT<n>x<m>x<k>_…, column-major as cuBLAS."""
    types, first, second, k_tile = match[1], int(match[2]), int(match[3]), int(match[4])
    letter = next((word for word in ("F8B8", "B8F8", "F8", "B8", "I8") if types.startswith(word)), types[:1])
    bits = _TENSILE_BITS.get(letter, 16)
    math = Math.INT8 if letter == "I8" else Math.TF32 if letter == "X" or "_SX_" in text else _math_of(bits)
    split = re.search(r"_GSU(\d+)_", text)
    rest = types[len(letter) :].lstrip("_")
    out = next((value for word, value in _TENSILE_BITS.items() if rest[:1] == word), 0)
    return Recognised(
        Family.GEMM,
        Library.AMD,
        math=math,
        a_bits=bits,
        w_bits=bits,
        out_bits=(bits if bits >= 16 else out or 16),
        tile_m=second,
        tile_n=first,
        tile_k=k_tile,
        split_k=int(split[1]) if split else 0,
        programming_class="mfma",
        is_persistent="_SK" in text and "_SK0" not in text,  # stream-K
        notes="global split-K is chosen at run time" if "GSUAMB" in text else "",
    )


def _bmm_trtllm(match: re.Match[str], text: str) -> Recognised:
    """TensorRT-LLM's batched GEMM: bmm_<out>_<A><B>_<accumulator>_t<M>x<N>x<K>. transOut: A is the weights."""
    out, inputs, first, second, k_tile = match.groups()
    is_transposed = "transOut" in text
    kinds = re.findall(r"MxE\dm\d|E\dm\d|Bfloat16|Fp16|NvfpE2m1|MxInt4|E2m1", inputs)
    weights, rows = (kinds[0], kinds[-1]) if is_transposed else (kinds[-1], kinds[0]) if kinds else ("", "")
    a_bits, w_bits = _trtllm_bits(rows), _trtllm_bits(weights)
    is_moe = "dynBatch" in text or "dynB" in text or "routeAct" in text or "MoE" in text
    return Recognised(
        Family.MOE_GEMM if is_moe else Family.GEMM,
        Library.TRTLLM,
        # Mixed inputs run at the wider one's rate (tcgen05 kind f8f6f4).
        math=_math_of(max(a_bits, w_bits)),
        a_bits=a_bits,
        w_bits=w_bits,
        out_bits=_trtllm_bits(out),
        tile_m=int(second if is_transposed else first),
        tile_n=int(first if is_transposed else second),
        tile_k=int(k_tile),
        programming_class="tcgen05" if "sm10" in text else "wgmma" if "sm90" in text else "",
        is_persistent="persistent" in text.lower() or "schPd" in text,
        is_gated=bool(re.search(r"swiGlu|geGlu|actSwiGlu", text)),
    )


def _trtllm_bits(word: str) -> int:
    return 4 if "E2m1" in word or "Int4" in word else 8 if re.search(r"E\dm\d", word) else 16


def _matmul_ogs(match: re.Match[str], text: str) -> Recognised:
    """OpenAI's Triton kernels: _matmul_ogs_<layouts>_<out>x<rows>x<weights>_<BM>x<BN>x<BK>x<split>[_swiglu]."""
    rows, weights, tile_m, tile_n, tile_k, split = match.groups()
    a_bits = 8 if "fp8" in rows or "e4m3" in rows or "e5m2" in rows else 32 if rows == "fp32" else 16
    w_bits = 4 if "fp4" in weights else 8 if "8" in weights or "e4m3" in weights else 16
    return Recognised(
        Family.MOE_GEMM,
        Library.TRITON,
        math=_math_of(a_bits),  # narrower weights are widened to the activations' type
        a_bits=a_bits,
        w_bits=w_bits,
        out_bits=16,
        tile_m=int(tile_m),
        tile_n=int(tile_n),
        tile_k=int(tile_k),
        split_k=int(split),
        is_gated="swiglu" in text,
    )


def _deep_gemm(match: re.Match[str], text: str) -> Recognised:
    """DeepGEMM compiles n, k and the tile in: 1d2d kernels <major, M, N, K, groups, BLOCK_M, BLOCK_N, …>."""
    n = k = tile_m = tile_n = 0
    words = [word.strip() for word in text[match.end() :].split(",")[:12]]
    numbers = [int(word) for word in words if word.isdigit()]
    if "1d2d" in match[0] and len(numbers) >= 6:  # M is 0 where it varies
        n, k, tile_m, tile_n = numbers[1], numbers[2], numbers[4], numbers[5]
    bits = 16 if "bf16" in match[0] else 4 if "fp4" in match[0] else 8
    return Recognised(
        Family.MOE_GEMM if re.search(r"[mM]?_?[gG]rouped|GemmType::(?!Normal)", text) else Family.GEMM,
        Library.DEEPGEMM,
        math=_math_of(bits),
        a_bits=bits,
        w_bits=bits,
        out_bits=16,
        tile_m=tile_m,
        tile_n=tile_n,
        n=n,
        k=k,
        programming_class="tcgen05" if "sm100" in text else "wgmma",
        is_persistent=True,
    )


def _gemv(_: re.Match[str], text: str) -> Recognised:
    bits = _float_bits(text)
    return Recognised(
        Family.GEMM,
        Library.CUBLAS,
        kind="gemv",
        # CUDA cores multiply in fp32, whatever is stored.
        math=Math.FP64 if bits == 64 else Math.FP32,
        a_bits=bits,
        w_bits=bits,
        out_bits=bits,
        split_k=1,
    )


def _marlin(_: re.Match[str], text: str) -> Recognised:
    return Recognised(
        Family.MOE_GEMM if "moe" in text.lower() else Family.GEMM,
        Library.MARLIN,
        kind="weight_only",
        math=Math.BF16,
        a_bits=16,
        w_bits=8 if re.search(r"kU?8|u8b128|fp8|float8", text) else 4,
        out_bits=16,
        programming_class="wgmma" if "machete" in text else "mma_sync",
        is_persistent=True,
    )


def _fused_moe(_: re.Match[str], text: str) -> Recognised:
    w_bits = 4 if re.search(r"mxfp4|gptq|awq|wna16|int4|MX", text) else 8 if re.search(r"[fF]p8|fp8|a8w8", text) else 16
    a_bits = 8 if w_bits == 8 else 16
    is_amd = re.search(r"aiter|ck_|MoeFlatmm|kernel_moe_gemm|_ZN2ck", text)
    return Recognised(
        Family.MOE_GEMM,
        Library.AMD if is_amd else Library.TRITON,
        math=_math_of(a_bits),
        a_bits=a_bits,
        w_bits=w_bits,
        out_bits=16,
        programming_class="mfma" if is_amd else "",
    )


# --- attention ---------------------------------------------------------------------------------------------------


def _flash2(match: re.Match[str], text: str) -> Recognised:
    traits = re.search(r"Flash_fwd_kernel_traits<(\d+),\s*(\d+),\s*(\d+)", text)
    sizes = [int(size) for size in traits.groups()] if traits else [0, 0, 0]
    family = {
        "flash_fwd_kernel": Family.ATTENTION_PREFILL,
        "flash_fwd_splitkv_kernel": Family.ATTENTION_MIXED,
        "flash_fwd_splitkv_combine_kernel": Family.ATTENTION_COMBINE,
    }[match[1]]
    # The template's booleans: dropout, causal, local, …
    local = re.search(r">\s*>?,\s*(?:true|false|0|1),\s*(?:true|false|0|1),\s*(true|1)", text)
    return Recognised(
        family,
        Library.FA2,
        kind="splitkv" if "splitkv" in match[1] else "",
        math=Math.BF16 if family != Family.ATTENTION_COMBINE else Math.NONE,
        a_bits=16,
        out_bits=16,
        head_dim=sizes[0],
        tile_m=sizes[1],
        tile_n=sizes[2],
        programming_class="mma_sync",
        is_windowed=local is not None,
    )


def _flash3(_: re.Match[str], text: str) -> Recognised:
    sm = re.search(r"Sm(\d+)", text)
    tile = _cute_tile(text)
    is_narrow = "e4m3" in text
    is_combine = "Combine" in text
    return Recognised(
        Family.ATTENTION_COMBINE if is_combine else Family.ATTENTION_MIXED,
        Library.FA3,
        kind="combine" if is_combine else "",
        math=Math.NONE if is_combine else Math.FP8 if is_narrow else Math.BF16,
        a_bits=8 if is_narrow else 16,
        out_bits=16,
        tile_m=tile[0],
        tile_n=tile[1],
        head_dim=tile[2],
        programming_class=_class_of(int(sm[1])) if sm else "wgmma",
        is_persistent=not is_combine,
    )


def _fmha_trtllm(match: re.Match[str], text: str) -> Recognised:
    qkv, out, head = match.groups()
    is_narrow = "E4m3" in qkv or "e4m3" in qkv
    is_context = "Context" in text
    family = Family.ATTENTION_PREFILL if is_context else Family.ATTENTION_DECODE
    return Recognised(
        Family.MLA if head.startswith(("576", "192")) or "Mla" in text else family,
        Library.TRTLLM,
        math=Math.FP8 if is_narrow else Math.BF16,
        a_bits=8 if is_narrow else 16,
        w_bits=8 if is_narrow else 16,
        out_bits=8 if "E4m3" in out else 16,
        head_dim=int(head),
        programming_class="tcgen05",
        is_persistent="Persistent" in text,
        is_windowed="SlidingOrChunked" in text,
    )


def _attention(
    family: Family, library: Library, kind: str = "", programming_class: Class = "", *, is_persistent: bool = False
) -> _Reader:
    def read(_: re.Match[str], text: str) -> Recognised:
        is_narrow = bool(re.search(r"e4m3|fp8_e|Fp8KVCacheDataType\)[12]", text))
        head = re.search(r"HEAD_DIM_QK?=?(\d+)|head_dim[_=](\d+)", text)
        return Recognised(
            family,
            Library.AMD if "aiter" in text else library,
            kind=kind,
            math=Math.NONE if family == Family.ATTENTION_COMBINE else Math.BF16,
            a_bits=16,
            out_bits=16,
            head_dim=int(head[1] or head[2]) if head else 0,
            programming_class=programming_class,
            is_persistent=is_persistent,
            notes="the KV cache may be fp8" if is_narrow else "",
        )

    return read


# --- PyTorch's own kernels ---------------------------------------------------------------------------------------

# Functors of at::native elementwise kernels: (what the name contains, family, kind).
_FUNCTORS: tuple[tuple[str, Family, str], ...] = (
    ("FillFunctor", Family.COPY, "fill"),
    ("bfloat16tofloat32_copy", Family.COPY, "cast"),
    ("bfloat16_copy_kernel", Family.COPY, "cast"),
    ("float16_copy_kernel", Family.COPY, "cast"),
    ("float8_copy_kernel", Family.COPY, "cast"),
    ("direct_copy_kernel", Family.COPY, "copy"),
    ("copy_device_to_device", Family.COPY, "copy"),
    ("copy_kernel", Family.COPY, "copy"),
    ("silu", Family.ACTIVATION, "silu"),
    ("Gelu", Family.ACTIVATION, "gelu"),
    ("gelu", Family.ACTIVATION, "gelu"),
    ("threshold_kernel", Family.ACTIVATION, "relu"),
    ("clamp_min", Family.ACTIVATION, "relu"),
    ("launch_clamp_scalar", Family.ACTIVATION, "relu"),
    ("tanh_kernel", Family.ACTIVATION, "tanh"),
    ("sigmoid_kernel", Family.ACTIVATION, "sigmoid"),
    ("GeluCUDA", Family.ACTIVATION, "gelu"),
    ("masked_fill", Family.ELEMENTWISE, "masked_fill"),
    ("masked_scatter", Family.ELEMENTWISE, "scatter"),
    ("where_kernel", Family.ELEMENTWISE, "where"),
    ("CUDAFunctor_add", Family.ELEMENTWISE, "add"),
    ("CUDAFunctorOnSelf_add", Family.ELEMENTWISE, "add"),
    ("CUDAFunctorOnOther_add", Family.ELEMENTWISE, "add"),
    ("AddFunctor", Family.ELEMENTWISE, "add"),
    ("MulFunctor", Family.ELEMENTWISE, "mul"),
    ("MulScalarFunctor", Family.ELEMENTWISE, "mul"),
    ("DivFunctor", Family.ELEMENTWISE, "div"),
    ("div_", Family.ELEMENTWISE, "div"),
    ("pow_tensor", Family.ELEMENTWISE, "pow"),
    ("rsqrt_kernel", Family.ELEMENTWISE, "rsqrt"),
    ("neg_kernel", Family.ELEMENTWISE, "neg"),
    ("arange", Family.ELEMENTWISE, "arange"),
    ("exponential", Family.SAMPLING, "exponential"),
    ("compare", Family.ELEMENTWISE, "compare"),
    ("Compare", Family.ELEMENTWISE, "compare"),
)
_PLACING = {"elementwise_kernel", "elementwise_kernel_manual_unroll", "legacy_elementwise_kernel"}
_WIDE_FUNCTORS = {"bfloat16_copy_kernel": (32, 16), "bfloat16tofloat32_copy": (16, 32), "float16_copy_kernel": (32, 16)}


def _torch_elementwise(match: re.Match[str], text: str) -> Recognised:
    """vectorized_elementwise_kernel<vec, functor, array<char*, operands>> and its relatives."""
    shape = match[1]
    functor = next((f for f in _FUNCTORS if f[0] in text), ("", Family.ELEMENTWISE, ""))
    body = text[match.end() :]
    numbers = re.match(r"<\(?(\d+)(?:,\s*(\d+))?", body) or re.match(r"ILi(\d+)E(?:Li(\d+)E)?", body)
    per_thread = 0
    if numbers is not None and shape.startswith("vectorized"):
        per_thread = max(4, int(numbers[1]))
    elif numbers is not None and numbers[2] is not None:  # <threads, elements per thread>
        per_thread = int(numbers[2])
    elif shape.startswith("unrolled"):
        per_thread = 4
    arrays = re.search(r"(?:array|Array)<char\s?\*,\s*(\d+)", body)
    bits = _element_bits(_without_offsets(body))
    mangled = re.search(r"FunctorI([dfilb])[IE]", body) if not bits else None
    bits = {"d": 64, "l": 64, "f": 32, "i": 32, "b": 8}[mangled[1]] if mangled else bits
    a_bits, out_bits = _WIDE_FUNCTORS.get(functor[0], (bits, bits))
    tensors = int(arrays[1]) if arrays else {"fill": 1, "arange": 1}.get(functor[2], 0)
    if not tensors:
        is_binary = re.search(r"\bBinaryFunctor|CUDAFunctor_add|AddFunctor|where|masked", body)
        tensors = 3 if is_binary else 2
    return Recognised(
        functor[1],
        Library.TORCH,
        kind=functor[2] or "elementwise",
        math=Math.FP32,
        a_bits=a_bits,
        out_bits=out_bits,
        elements_per_thread=per_thread,
        tensors=tensors,
        places_elements=shape in _PLACING,
    )


_LAMBDA = re.compile(r"lambda\(([^()]+)\)")


def _without_offsets(body: str) -> str:
    """The part of a template argument list that names element types.

    A functor that is a lambda has them as its arguments; the lambdas around it take an element's index, `int`.
    """
    arguments = [words for words in _LAMBDA.findall(body) if words not in {"int", "int, bool"} and "char" not in words]
    return arguments[0] if arguments else body


def _torch_reduce(_: re.Match[str], text: str) -> Recognised:
    kind = next(
        (
            kind
            for word, kind in (
                ("ArgMax", "argmax"),
                ("ArgMin", "argmin"),
                ("MeanOps", "mean"),
                ("NormTwoOps", "norm"),
                ("WelfordOps", "var"),
                ("sum_functor", "sum"),
                ("prod_functor", "prod"),
                ("MaxOps", "max"),
                ("MaxNan", "max"),
                ("and_kernel", "all"),
                ("or_kernel", "any"),
            )
            if word in text
        ),
        "reduce",
    )
    bits = _element_bits(text[text.find("ReduceOp") :])
    return Recognised(
        Family.SAMPLING if kind == "argmax" else Family.REDUCTION,
        Library.TORCH,
        kind=kind,
        math=Math.FP32,
        a_bits=bits,
        out_bits=64 if kind == "argmax" else bits,
    )


def _torch_copy(kind: str) -> _Reader:
    def read(_: re.Match[str], text: str) -> Recognised:
        bits = _element_bits(text)
        places = kind == "cat" and re.search(r"CatArrayBatchedCopy(?!_)", text) is not None
        return Recognised(Family.COPY, Library.TORCH, kind=kind, a_bits=bits, out_bits=bits, places_elements=places)

    return read


def _torch_gather(match: re.Match[str], text: str) -> Recognised:
    bits = _float_bits(text[match.start() :])  # vectorized_gather_kernel<vector bytes, index type> names none
    return Recognised(Family.EMBEDDING, Library.TORCH, kind="gather", a_bits=bits, out_bits=bits)


def _torch_index(_: re.Match[str], text: str) -> Recognised:
    is_put = "index_put" in text or "index_fill" in text or "index_copy" in text
    bits = _element_bits(text[text.find("OpaqueType") :] if "OpaqueType" in text else text)
    return Recognised(
        Family.ELEMENTWISE if is_put else Family.EMBEDDING,
        Library.TORCH,
        kind="scatter" if is_put else "gather",
        a_bits=bits,
        out_bits=bits,
    )


def _torch_softmax(_: re.Match[str], text: str) -> Recognised:
    bits = _element_bits(text[text.find("oftmax") :]) or _element_bits(text)
    return Recognised(
        Family.SOFTMAX,
        Library.TORCH,
        kind="softmax_backward" if "ackward" in text else "softmax",
        math=Math.FP32,
        a_bits=bits,
        out_bits=bits,
    )


# --- collectives -------------------------------------------------------------------------------------------------

_NCCL_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "AllGatherV": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "all_reduce",
    "SendRecv": "send_recv",
    "AlltoAll": "all_to_all",
    "AlltoAllv": "all_to_all",
    "Gather": "all_gather",
}
_NCCL_TYPES = {
    "bf16": 16, "f16": 16, "half": 16, "f32": 32, "float": 32, "f64": 64, "double": 64, "u8": 8, "i8": 8, "int8_t": 8,
    "uint8_t": 8, "f8e4m3": 8, "f8e5m2": 8, "i32": 32, "u32": 32, "i64": 64, "u64": 64, "int32_t": 32, "int64_t": 64,
}  # fmt: skip


def _nccl(match: re.Match[str], _: str) -> Recognised:
    """ncclDevKernel_<Coll>[_<op>_<type>]_<ALG>_<PROTO>; before 2.19 ncclKernel_<Coll>_<ALG>_<PROTO>_<op>_<type>."""
    words = match[0].split("_", 1)[1].split("_") if "_" in match[0] else []
    bits = next((_NCCL_TYPES[word] for word in words if word in _NCCL_TYPES), 0)
    if not bits and re.search(r"u?int8_t", match[0]):
        bits = 8
    algorithm = next((word for word in ("NVLS", "RING", "TREE", "COLLNET", "PAT") if word in match[0]), "")
    protocol = next((word for word in ("LL128", "SIMPLE", "LL") if f"_{word}" in match[0]), "")
    return Recognised(
        Family.COLLECTIVE,
        Library.NCCL,
        kind=" ".join(word.lower() for word in (algorithm, protocol) if word),
        a_bits=bits,
        out_bits=bits,
        collective=_NCCL_COLLECTIVES.get(match[1], "all_reduce"),
        is_persistent=True,
        notes="RCCL's generic kernel names no collective" if match[1] == "Generic" else "",
    )


def _peer_reduce(library: Library, kind: str) -> _Reader:
    def read(_: re.Match[str], text: str) -> Recognised:
        bits = _element_bits(text)
        collective = "all_gather" if "all_gather" in text else "all_reduce"
        if "reduce_scatter" in text:
            collective = "reduce_scatter"
        is_fused = "rms" in text.lower() or "norm" in text.lower()
        return Recognised(
            Family.COLLECTIVE,
            library,
            kind=f"{kind} + norm" if is_fused else kind,
            a_bits=bits,
            out_bits=bits,
            collective=collective,
            is_persistent=True,
        )

    return read


# --- row-wise kernels of serving engines -------------------------------------------------------------------------


def _rows(family: Family, library: Library, kind: str) -> _Reader:
    def read(_: re.Match[str], text: str) -> Recognised:
        bits = _float_bits(text) if "<" in text or text.startswith("_Z") else 0
        return Recognised(family, library, kind=kind, math=Math.FP32, a_bits=bits or 16, out_bits=bits or 16)

    return read


def _kv_write(_: re.Match[str], text: str) -> Recognised:
    is_narrow = re.search(r"unsigned char|uint8|Fp8KVCacheDataType\)[12]|fp8_e[45]|e4m3", text)
    return Recognised(
        Family.KV_WRITE,
        Library.VLLM,
        kind="kv_write",
        a_bits=_element_bits(text) or 16,
        out_bits=8 if is_narrow else 16,
    )


def _activation(library: Library) -> _Reader:
    def read(_: re.Match[str], text: str) -> Recognised:
        lower = text.lower()
        kind = "silu_mul" if "silu" in lower or "swiglu" in lower else "gelu_mul" if "gelu" in lower else "silu_mul"
        is_quantised = "quant" in lower or "fp8" in lower
        return Recognised(
            Family.ACTIVATION,
            _library_of(text, library),
            kind=f"{kind}_quant" if is_quantised else kind,
            math=Math.FP32,
            a_bits=16,
            out_bits=8 if is_quantised else 16,
        )

    return read


def _ck_norm(_: re.Match[str], text: str) -> Recognised:
    # FusedAddEnum 1: the residual is added and stored; 2: added only.
    fused = re.search(r"FusedAddEnumE([12])", text)
    return Recognised(
        Family.NORM,
        Library.AMD,
        kind="layer_norm" if "Layernorm" in text else "fused_add_rms_norm" if fused else "rms_norm",
        math=Math.FP32,
        a_bits=16,
        out_bits=16,
    )


def _aiter_norm(match: re.Match[str], _: str) -> Recognised:
    # add_rmsnorm_quant_kernel<in, out, threads, vector, ADD_RESIDUAL, QUANT, …>
    adds = match[1] in {"1", "true"}
    return Recognised(
        Family.NORM,
        Library.AMD,
        kind="fused_add_rms_norm" if adds else "rms_norm",
        math=Math.FP32,
        a_bits=16,
        out_bits=16,
    )


def _vllm_norm(match: re.Match[str], text: str) -> Recognised:
    is_fused = "fused_add" in match[0].lower() or "FusedAdd" in text
    is_quantised = "quant" in text
    return Recognised(
        Family.NORM,
        _library_of(text, Library.VLLM),
        kind=("fused_add_rms_norm" if is_fused else "rms_norm") + ("_quant" if is_quantised else ""),
        math=Math.FP32,
        a_bits=16,
        out_bits=8 if is_quantised else 16,
    )


def _library_of(text: str, otherwise: Library) -> Library:
    if "flashinfer" in text:
        return Library.FLASHINFER
    if "tensorrt_llm" in text or "trtllm" in text:
        return Library.TRTLLM
    if "aiter" in text or "ck_tile" in text:
        return Library.AMD
    return otherwise


def _quantise(_: re.Match[str], text: str) -> Recognised:
    is_four = re.search(r"fp4|Fp4|nvfp4|mxfp4|cvt_fp16_to_fp4|e2m1", text)
    return Recognised(
        Family.QUANTISE,
        _library_of(text, Library.VLLM),
        kind="fp4" if is_four else "int8" if "int8" in text else "fp8",
        a_bits=16,
        out_bits=4 if is_four else 8,
    )


def _inductor(match: re.Match[str], text: str) -> Recognised:
    """triton_<how>_fused_<ops>_<id>: poi(ntwise), red(uction), per(sistent reduction), tem(plate), for(each)."""
    how, ops = match[1], match[2] or ""
    kind = {"poi": "pointwise", "red": "reduction", "per": "reduction", "tem": "template", "for": "foreach"}.get(
        how, ""
    )
    if "rsqrt" in ops and "mean" in ops:
        kind = "rms_norm"
    elif "silu" in ops and "mul" in ops:
        kind = "silu_mul"
    elif "mm" in ops.split("_"):
        kind = "mm"
    return Recognised(
        Family.GEMM if kind == "mm" or how == "mm" else Family.FUSED,
        Library.TRITON,
        kind=kind or "pointwise",
        math=Math.BF16 if kind == "mm" or how == "mm" else Math.FP32,
        a_bits=16,
        w_bits=16 if kind == "mm" or how == "mm" else 0,
        out_bits=16,
        notes=text if len(text) < 80 else "",
    )


def _derived(match: re.Match[str], _: str) -> Recognised | None:
    """Our own names for kernels of a CPU recording: services/ingest/derive.py."""
    family, kind, collective = _DERIVED.get(match[1], (Family.UNKNOWN, "", ""))
    if family == Family.UNKNOWN:
        return None
    bits = {"bf16": 16, "fp16": 16, "fp32": 32, "fp64": 64, "int64": 64, "int32": 32, "bool": 8}.get(match[2] or "", 8)
    is_matmul = family in {Family.GEMM, Family.MOE_GEMM} or family.startswith("attention")
    return Recognised(
        family,
        # Which library multiplies matrices and attends is the target GPU's choice.
        Library.TORCH
        if match[1] in _DERIVED_TORCH
        else Library.NCCL
        if collective
        else _DERIVED_LIBRARIES.get(family, Library.UNKNOWN),
        kind=kind,
        math=_math_of(bits) if is_matmul else Math.NONE if family == Family.COPY else Math.FP32,
        a_bits=bits,
        w_bits=bits if is_matmul else 0,
        out_bits=bits,
        collective=collective,
    )


_DERIVED: dict[str, tuple[Family, str, str]] = {
    "gemm": (Family.GEMM, "", ""),
    "attention_prefill": (Family.ATTENTION_PREFILL, "", ""),
    "attention_decode": (Family.ATTENTION_DECODE, "", ""),
    "attention_mixed": (Family.ATTENTION_MIXED, "", ""),
    "reshape_and_cache": (Family.KV_WRITE, "kv_write", ""),
    "rotary_embedding": (Family.ROPE, "rope", ""),
    "rms_norm": (Family.NORM, "rms_norm", ""),
    "fused_add_rms_norm": (Family.NORM, "fused_add_rms_norm", ""),
    "layer_norm": (Family.NORM, "layer_norm", ""),
    "silu_and_mul": (Family.ACTIVATION, "silu_mul", ""),
    "gelu_and_mul": (Family.ACTIVATION, "gelu_mul", ""),
    "relu_and_mul": (Family.ACTIVATION, "relu_mul", ""),
    "silu": (Family.ACTIVATION, "silu", ""),
    "gelu": (Family.ACTIVATION, "gelu", ""),
    "relu": (Family.ACTIVATION, "relu", ""),
    "add": (Family.ELEMENTWISE, "add", ""),
    "mul": (Family.ELEMENTWISE, "mul", ""),
    "masked_fill": (Family.ELEMENTWISE, "masked_fill", ""),
    "slot_mapping": (Family.ELEMENTWISE, "slot_mapping", ""),
    "embedding": (Family.EMBEDDING, "embedding", ""),
    "gather_rows": (Family.EMBEDDING, "gather", ""),
    "cast": (Family.COPY, "cast", ""),
    "copy": (Family.COPY, "copy", ""),
    "memcpy_h2d": (Family.COPY, "h2d", ""),
    "memcpy_d2h": (Family.COPY, "d2h", ""),
    "argmax": (Family.SAMPLING, "argmax", ""),
    "sort": (Family.SAMPLING, "sort", ""),
    "topk": (Family.SAMPLING, "topk", ""),
    "exponential": (Family.SAMPLING, "exponential", ""),
    "softmax": (Family.SOFTMAX, "softmax", ""),
    "moe_routing": (Family.MOE_ROUTING, "topk", ""),
    "moe_gemm": (Family.MOE_GEMM, "", ""),
    "moe_sum": (Family.MOE_ROUTING, "finalize", ""),
    "all_reduce": (Family.COLLECTIVE, "", "all_reduce"),
    "all_gather": (Family.COLLECTIVE, "", "all_gather"),
}
_DERIVED_LIBRARIES = dict.fromkeys((Family.NORM, Family.ROPE, Family.ACTIVATION, Family.KV_WRITE), Library.VLLM)
_DERIVED_TORCH = {
    "layer_norm",
    "relu",
    "gelu",
    "silu",
    "add",
    "mul",
    "embedding",
    "gather_rows",
    "cast",
    "copy",
    "argmax",
}


def _memcpy(match: re.Match[str], text: str) -> Recognised:
    words = re.sub(r"[ _-]", "", text.lower())
    way = re.search(r"htod|dtoh|dtod|ptop|hosttodevice|devicetohost|peertopeer", words)
    kind = _WAYS.get(way[0] if way else "", "d2d")
    if "memset" in match[0].lower():
        kind = "memset"
    return Recognised(Family.COPY, Library.UNKNOWN, kind=kind)


_WAYS = {
    "htod": "h2d",
    "hosttodevice": "h2d",
    "dtoh": "d2h",
    "devicetohost": "d2h",
    "ptop": "p2p",
    "peertopeer": "p2p",
}


def _fixed(family: Family, library: Library, kind: str = "", **facts: object) -> Recognised:
    return replace(Recognised(family, library, kind=kind), **facts)  # type: ignore[arg-type]


def _routing(_: re.Match[str], text: str) -> Recognised | None:
    if "fbgemm" in text or "permute_pooled" in text or "permute_kernel" in text or "permute_2D" in text:
        return None  # a recommendation model's permutations, or a transposition
    is_sum = re.search(r"moe_sum|finalize|_finalize_matmul|ep_gather", text)
    is_permuted = re.search(r"permute|expandInput|shuffle_rows|ep_scatter|expandRows", text, re.IGNORECASE)
    is_helper = re.search(r"memset|[hH]istogram|Offsets|align|bitmatrix|computeStrides|sort", text)
    kind = "finalize" if is_sum else "permute" if is_permuted else "helper" if is_helper else "topk"
    library = Library.TRTLLM if "moe::dev" in text else Library.TRITON if text.startswith("_") else Library.VLLM
    return Recognised(Family.MOE_ROUTING, library, kind=kind, a_bits=16, out_bits=16)


def _some_gemm(_: re.Match[str], text: str) -> Recognised:
    is_amd = re.search(r"ck::|ck_tile|_xdl|aiter|mfma|f4gemm|kernel_gemm_xdl|_ZN2ck", text)
    is_narrow = re.search(r"fp8|e4m3|f8|a8w8", text)
    is_four = re.search(r"fp4|f4gemm|afp4wfp4|e2m1", text)
    bits = 4 if is_four else 8 if is_narrow else 16
    tile = re.search(r"(?<!\d)(\d{2,3})x(\d{2,3})(?:x\d+)?", text)
    return Recognised(
        Family.GEMM,
        Library.AMD if is_amd else Library.TRITON,
        math=_math_of(bits),
        a_bits=bits,
        w_bits=bits,
        out_bits=16,
        tile_m=int(tile[1]) if tile else 0,
        tile_n=int(tile[2]) if tile else 0,
        programming_class="mfma" if is_amd else "",
    )


# --- the table ---------------------------------------------------------------------------------------------------

# fmt: off
_TABLE: tuple[tuple[str, _Reader | Recognised], ...] = (
    (r"^derived::(\w+?)(?:<(\w+)>)?$", _derived),
    (r"^(?:\[CUDA )?(?i:mem(?:cpy|set))\b", _memcpy),
    (r"__amd_rocclr_(?:copy|fill)Buffer|^Copy(?:Host|Device)To(?:Host|Device)",
     _fixed(Family.COPY, Library.AMD, "d2d")),
    # Collectives
    (r"(?:nccl|rccl|msccl)\w*?(?:Dev)?Kernel_?(\w+?)(?:_|\(|$)\w*", _nccl),
    (r"multimem_(?:all_reduce|one_shot|all_gather|reduce_scatter)", _peer_reduce(Library.MULTIMEM, "multimem")),
    ((r"cross_device_reduce_(?:1stage|2stage)|all_reduce_(?:one|two)_?shot|one_shot_all_reduce|"
      r"two_shot_all_reduce"),
     _peer_reduce(Library.CUSTOM_ALLREDUCE, "p2p")),
    (r"quickreduce|allreduce_prototype_twoshot", _peer_reduce(Library.CUSTOM_ALLREDUCE, "quick")),
    ((r"allreduce_fusion_kernel|oneshotAllreduce|twoshotAllreduce|AllReduceFusion|lamport|"
      r"trtllm_mnnvl_allreduce|reduce_scatter_cross_device|allgather_cross_device|allreduce_fusion"),
     _peer_reduce(Library.CUSTOM_ALLREDUCE, "fused")),
    # GEMMs of the BLAS libraries
    (r"nvjet_(?:sm(\d+)_)?([a-z]{3,5})_(\d+)x(\d+)_(\d+)x\d+", _nvjet),
    (r"splitKreduce_kernel|ReduceSplitK|SplitKReduce|splitk_reduce|gemm_postprocess_splitk|Cijk_\w*_PostGSU\w*",
     _fixed(Family.SPLITK_REDUCE, Library.CUBLAS, out_bits=16)),
    ((r"sm(\d+)_xmma_(gemm|fprop|dgrad|wgrad)\w*?_((?:(?:tf32|bf16|f16|f32|f64|e4m3|e5m2|e2m1|i8|"
      r"i32)+_)+)\w*?tilesize(\d+x\d+x\d+)"),
     _xmma),
    (r"(volta|turing|ampere|sm\d+|maxwell|pascal)_(?:fp16_|bf16_|i8_)?(\w*?(?:gemm|cudnn)\w*?)_(\d+)x(\d+)_", _legacy),
    (r"cutlass_?(?:75|80|86|89|90|100)?_(?:wmma_)?(?:tensorop|simt)", _cutlass2),
    (r"cutlass_(?:cudnn_\w+|tensorop)|cutlass3x_", _cutlass2),
    ((r"(?:deep_gemm|DeepGemm)\S*?(?:fp8|bf16|fp4)\w*(?:gemm|impl)\w*<|sm(?:90|100)_(?:fp8|"
      r"bf16)_gemm_1d[12]d\w*<"),
     _deep_gemm),
    (r"deep_gemm::|_w8a8_block_fp8_matmul|w8a8_triton_block_scaled_mm",
     _fixed(Family.GEMM, Library.TRITON, math=Math.FP8, a_bits=8, w_bits=8, out_bits=16)),
    (r"Cijk_[A-Z]\w+?_[A-Z][a-z]+_([A-Z0-9_]+?)_(?:Bias|BH|HA|HPA|UserArgs|AS|MT)\w*?_?MT(\d+)x(\d+)x(\d+)", _tensile),
    (r"Cijk_[A-Z]\w+?_[A-Z][a-z]+_([A-Z0-9]+)\w*?MT(\d+)x(\d+)x(\d+)", _tensile),
    (r"bmm_(\w+?)_((?:Mx|Nvfp)?(?:E\dm\d|Bfloat16|Fp16|Int4)\w*?)_Fp32_t(\d+)x(\d+)x(\d+)", _bmm_trtllm),
    (r"gemm_(\w+?)_((?:Mx|Nvfp)?(?:E\dm\d|Bfloat16|Fp16|Int4)\w*?)_Fp32_t(\d+)x(\d+)x(\d+)", _bmm_trtllm),
    (r"_matmul_ogs_\w+?_\w+?x(\w+?)x(\w+?)_(\d+)x(\d+)x(\d+)x(\d+)", _matmul_ogs),
    (r"[mM]arlin::Marlin|marlin_moe|Marlin<|gptq_marlin|machete|awq_marlin", _marlin),
    ((r"gemv2T|gemv2N|gemvNSP|gemvx::kernel|gemv_kernel|gemmk1_kernel|dot_kernel|wvSplitK|LLGemm1|gemvx|"
      r"gemvSplitK"),
     _gemv),
    (r"reduce_1Block_kernel", _fixed(Family.REDUCTION, Library.CUBLAS, "dot")),
    (r"awq_(?:gemm|gemv)|gemm_forward_4bit|dequantize_weights",
     _fixed(Family.GEMM, Library.VLLM, "weight_only", math=Math.BF16, a_bits=16, w_bits=4, out_bits=16)),
    (r"gemm_half_q_half|gptq(?!_awq)|exllama",
     _fixed(Family.GEMM, Library.VLLM, "weight_only", math=Math.BF16, a_bits=16, w_bits=4, out_bits=16)),
    (r"kgemm_4bit|bitsandbytes|kDequantizeBlockwise",
     _fixed(Family.GEMM, Library.VLLM, "weight_only", math=Math.BF16, a_bits=16, w_bits=4, out_bits=16)),
    (r"mul_mat_(?:vec_)?q|ggml",
     _fixed(Family.GEMM, Library.VLLM, "weight_only", math=Math.INT8, a_bits=16, w_bits=4, out_bits=16)),
    # KV cache; before attention, whose names it shares
    ((r"reshape_and_cache|concat_and_cache|store_kvcache|store_kv_cache|set_mla_kv_buffer|AppendPagedKV|"
      r"append_paged|copy_blocks_kernel|kv_cache_update|fused_qk_rope_reshape|set_kv_buffer|store_cache"),
     _kv_write),
    # Attention; before the CUTLASS 3 rule, for FlashAttention 3 is a cutlass::device_kernel
    ((r"flash_fwd_splitkv_mla|[mM][lL][aA]_?[dD]ecode|FlashMLA|flash_mla|mla_decode|"
      r"_fwd_grouped_kernel_stage1\w*mla|mla_a\d+w\d+|mla_pfl|Sm100FmhaMla|mla_kernel"),
     _attention(Family.MLA, Library.FLASHINFER)),
    (r"(flash_fwd_splitkv_combine_kernel|flash_fwd_splitkv_kernel|flash_fwd_kernel)", _flash2),
    (r"FlashAttnFwd|flash::FlashAttn|FlashAttentionForwardSm\d+", _flash3),
    ((r"prepare_varlen_num_blocks|_copy_page_indices|create_flashinfer_kv_indices|merge_attn_states|merge_state|"
      r"MergeState|VariableLengthMerge|reduce_segments|cp_gather_cache|get_mla_metadata|get_kv_indices|"
      r"kv_indices|_fwd_kernel_stage2|paged_attention_(?:v2|ll4mi)_reduce|paged_attention_ll4mi_reduce|"
      r"PersistentVariableLength|mla_reduce|FmhaFwdSplitKVCombine|fmha_fwd_splitkv_combine"),
     _attention(Family.ATTENTION_COMBINE, Library.VLLM, "helper")),
    (r"fmhaSm\d+\w*?Kernel_?Qkv(\w+?)O(\w+?)H(\d+)", _fmha_trtllm),
    (r"fmhaReduction|fmha_reduction", _attention(Family.ATTENTION_COMBINE, Library.TRTLLM, "combine", "tcgen05")),
    (r"BatchPrefillWith|SinglePrefillWith|PrefillWithKVCacheKernel|BatchPrefillRagged|prefill_with_kv",
     _attention(Family.ATTENTION_PREFILL, Library.FLASHINFER)),
    (r"BatchDecodeWith|SingleDecodeWith|DecodeWithKVCache", _attention(Family.ATTENTION_DECODE, Library.FLASHINFER)),
    (r"(?:Holistic|PersistentKernelTemplate|BlockBatchPagedAttention|BatchAttention)",
     _attention(Family.ATTENTION_MIXED, Library.FLASHINFER, is_persistent=True)),
    (r"kernel_unified_attention_3d", _attention(Family.ATTENTION_DECODE, Library.TRITON, "3d")),
    (r"kernel_unified_attention(?:_2d)?", _attention(Family.ATTENTION_MIXED, Library.TRITON, "2d")),
    (r"paged_attention_ll4mi|pa_fwd|pa_bf16|paged_attention_kernel_aiter|pa_decode|paged_attention_rocm",
     _attention(Family.ATTENTION_DECODE, Library.AMD, "paged", "mfma")),
    (r"paged_attention_v[12]|single_query_cached|masked_multihead_attention|mmha|paged_attention",
     _attention(Family.ATTENTION_DECODE, Library.VLLM, "paged")),
    (r"_fwd_(?:grouped_)?kernel_stage1|_decode_att|decode_attention",
     _attention(Family.ATTENTION_DECODE, Library.TRITON)),
    (r"fmha_cutlassF|AttentionKernel|fmha_v2|FmhaKernel|Sm100Fmha|fmha_sm\d+|cudnn_generated_fort_native_sdpa",
     _attention(Family.ATTENTION_PREFILL, Library.CUTLASS)),
    (r"^attn_fwd|FmhaFwd|fmha_fwd|aiter\w*fmha|fmha_bwd|flash_attn_fwd",
     _attention(Family.ATTENTION_PREFILL, Library.AMD, "", "mfma")),
    ((r"context_attention_fwd|^_fwd_kernel|_attn_fwd|flex_attention|_flash_attention|triton_flash|"
      r"_prefill_attention"),
     _attention(Family.ATTENTION_PREFILL, Library.TRITON)),
    # Rotary embedding
    (r"rotary|[rR]ope|applyBiasRopeUpdateKVCache|apply_rotary|ApplyRotary", _rows(Family.ROPE, Library.VLLM, "rope")),
    # Mixture of experts
    ((r"fused_moe_kernel|fused_moe_mxfp4|moe_wna16|grouped_gemm|group_gemm|GroupedGemm|moeGemm|MoeGemm|moe_gemm|"
      r"fused_moe_(?:gemm|fp8)|MoeFlatmm|kernel_moe_gemm|fmoe_|MoeMxGemm|ck_moe|_batched_gemm_kernel|"
      r"moe_cutlass|batched_triton_kernel|expert_triton_kernel"),
     _fused_moe),
    ((r"topkGating|topk_?gating|moe_align|count_and_sort_expert|moe_sum|moe_sum_reduce|permute|Permute|"
      r"expandInputRows|finalizeMoe|finalizeKernel|routingIndices|routingMain|routing::|routingCustom|moe::dev|"
      r"grouped_topk|_combined_routing|_sum_bitmatrix|_topk_forward|_finalize_matmul|MoeSorting|moe_sorting|"
      r"biased_grouped|moe_fused_gate|shuffle_rows|ep_scatter|ep_gather|_routing_|_expt_data|expert_map|"
      r"expandRows|computeStrides|get_group_gemm_starts|compute_problem_sizes|deepep|_pack_bitmatrix|"
      r"doActivation|fusedBuildExpertMaps|blockExpertPrefixSum|globalExpertPrefixSum|mergeExpertPrefixSum|"
      r"topk_softmax"),
     _routing),
    # Quantisation
    ((r"scaled_fp8_quant|scaled_int8_quant|per_token_group_quant|per_token_quant|segmented_max_reduction|"
      r"nvfp4_quant|cvt_fp16_to_fp4|quantize_with_block_size|_per_token_group|mxfp4_quant|dynamic_per_token|"
      r"per_block_quant|_fp8_quant|quantize_mx|downcast_to_mxfp|block_scale_interleave|fp4_quant|dynamic_quant|"
      r"smooth_quant|act_quant"),
     _quantise),
    # Norms and activations
    (r"Rmsnorm2d|Layernorm2d", _ck_norm),
    (r"add_rmsnorm_quant_kernel(?:I\w*?Lb([01])E|<[^>]*?,\s*\d+,\s*\d+,\s*(true|false))", _aiter_norm),
    (r"(?i:fused_?add_?rms_?norm|rms_?norm|FusedAddRMSNorm|RMSNormKernel)", _vllm_norm),
    (r"(?i:batch_?norm)|cudnn::bn_|bn_(?:fw|bw)_", _rows(Family.NORM, Library.TORCH, "batch_norm")),
    (r"layer_?norm|LayerNorm|layernorm|RowwiseMoments|GroupNorm|group_norm",
     _rows(Family.NORM, Library.TORCH, "layer_norm")),
    ((r"act_and_mul|silu_and_mul|gelu_and_mul|swiglu|SwiGLU|silu_mul|ActAndMul|_silu_and_mul|silu_and_mul_quant|"
      r"gelu_tanh_and_mul"),
     _activation(Library.VLLM)),
    # State space and linear attention
    ((r"selective_scan|selective_state_update|causal_conv1d|chunk_(?:scan|state|gated|delta|fwd|o|bwd|local|"
      r"scaled)|_chunk_cumsum|_state_passing|fused_recurrent|_bmm_chunk|mamba|recompute_w_u|l2norm_fwd|"
      r"solve_tril|_ssd_|lightning_attn|_fwd_diag|kda_"),
     _fixed(Family.STATE_SPACE, Library.TRITON, "scan", math=Math.FP32, a_bits=16, out_bits=16)),
    # CUTLASS 3, after everything that is built from it
    (r"cutlass::device_kernel<|cutlass::Kernel2?<|device_kernelI|cutlass_(?:scaled|group|moe)_mm", _cutlass3),
    # Sampling
    (r"gatherTopK|radixFindKth|sbtopk|mbtopk|computeBlockwiseWithin|computeBlockDigit",
     _fixed(Family.SAMPLING, Library.TORCH, "topk", a_bits=32, out_bits=32)),
    ((r"radixSort|RadixSort|bitonicSort|sortBySegment|segmented_sort|sort_postprocess|"
      r"fill_reverse_indices|DeviceSegmentedSort|"
      r"DeviceMergeSort|merge_sort|onesweep|sorting_"),
     _fixed(Family.SAMPLING, Library.TORCH, "sort", a_bits=32, out_bits=32)),
    ((r"TopPSampling|TopKSampling|SamplingFromProb|MinPSampling|TopKTopP|multinomial|ChainSpeculative|"
      r"distribution_elementwise|TopKMask|TopPRenorm|TopKRenorm|OnlineSoftmax|topk_topp|"
      r"apply_repetition_penalt|rejection_|_gumbel|expand_kernel|sampleMultinomial|apply_penalt|bincount|"
      r"_temperature_kernel|_min_p_kernel|_ranks_kernel|_penalties|_logit_bias|gumbel|_topk_log|eagle_|"
      r"speculative"),
     _fixed(Family.SAMPLING, Library.FLASHINFER, "sample", a_bits=32, out_bits=32)),
    # PyTorch's own kernels
    ((r"indexSelect|vectorized_gather_kernel|index_select|gather_kernel|EmbeddingBag|embedding_kernel|"
      r"split_embedding_codegen_forward|masked_embedding|get_masked_input"),
     _torch_gather),
    (r"index_elementwise_kernel|gpu_index_kernel|index_put|indexing_backward", _torch_index),
    (r"scatter_gather_elementwise|scatter_fill|scatter_kernel|scatter_add",
     _fixed(Family.ELEMENTWISE, Library.TORCH, "scatter", a_bits=64, out_bits=64)),
    (r"CatArrayBatchedCopy|CatArray", _torch_copy("cat")),
    (r"(?i:batched_transpose|nchwToNhwc|nhwcToNchw|transpose_kernel|permute_kernel|im2col|col2im)",
     _torch_copy("transpose")),
    (r"softmax|SoftMax|Softmax", _torch_softmax),
    ((r"(vectorized_elementwise_kernel|unrolled_elementwise_kernel(?:_for_multi_outputs)?|"
      r"elementwise_kernel_manual_unroll|legacy_elementwise_kernel|elementwise_kernel_with_index|"
      r"elementwise_kernel)"),
     _torch_elementwise),
    (r"reduce_kernel|DeviceReduce|device_reduce|reduceKernel", _torch_reduce),
    (r"multi_tensor_apply_kernel", _fixed(Family.ELEMENTWISE, Library.TORCH, "multi_tensor", a_bits=32, out_bits=32)),
    ((r"DeviceScan|DeviceSelect|DeviceCompact|DevicePartition|scan_kernel|cumsum|tensor_kernel_scan|"
      r"DeviceReduceByKey|scan_innermost|masked_scatter_size|DeviceRunLength|rocprim|hipcub|thrust::|cub::|"
      r"write_indices"),
     _fixed(Family.REDUCTION, Library.TORCH, "scan", a_bits=64, out_bits=64)),
    ((r"upsample|max_pool|avg_pool|adaptive|im2col|grid_sample|roll_cuda|triu_tril|flip|unfold|"
      r"repeat_interleave|mse_|nll_loss|ClassNLL|cunn_|scalePackedTensor|SubTensorOp|Op(?:1d|2d|4d)Tensor|"
      r"CatKernel|tril|computeOffsetsKernel|OffsetsKernel|winograd|dropout|CrossEntropy|fbgemm_gpu::|permute_|"
      r"bounds_check|linearize|split_embedding|adagrad|Adam|sgd|optimizer|SparseAdagrad|copy_page|"
      r"resolve_future|clamp_position|prepare_inputs|_compute_slot_mapping|slot_mapping|_prepare_|"
      r"write_req_to_token|assign_req_to_token|compute_position|_post_update|_combine_sampled|"
      r"_gather_block_tables|advance_step|_update_|zero_experts"),
     _fixed(Family.ELEMENTWISE, Library.TORCH, "elementwise", math=Math.FP32, a_bits=32, out_bits=32)),
    # Convolutions: implicit GEMMs
    ((r"(?i:cudnn.*?(?:engine|conv|gemm|winograd))|implicit_convolve|explicit_convolve|igemm_(?:fwd|bwd|wrw)|"
      r"scudnn|convolve|conv2d|ImplicitGemm|dgrad|wgrad|miopen|naive_conv|MIOpen|kernel_grouped_conv|depthwise"),
     _fixed(Family.GEMM, Library.UNKNOWN, "conv", math=Math.FP32, a_bits=16, w_bits=16, out_bits=16)),
    (r"^cudnn|cudnn::", _fixed(Family.ELEMENTWISE, Library.TORCH, "cudnn", math=Math.FP32, a_bits=32, out_bits=32)),
    ((r"ck::.*?[gG]emm|kernel_gemm|ck_tile.*?[gG]emm|Gemm_xdl|_gemm_a\dw\d|gemm_a8w8|f4gemm|bf16gemm|DeviceGemm|"
      r"hgemm|batched_gemm|_gemm_kernel|matmul_kernel|_mm_kernel|scaled_mm|gemm_kernel|cublas\w*gemm|tinygemm|"
      r"router_gemm|fp8_gemm|skinny_gemm|gemm_afp4wfp4"),
     _some_gemm),
    (r"^triton_(poi|red|per|tem|mm|for)_(?:fused_)?(.*?)(?:_\d+)?$", _inductor),
    (r"^triton_+\w*|^fused_|nvfuser|inductor_",
     _fixed(Family.FUSED, Library.TRITON, "pointwise", math=Math.FP32, a_bits=16, out_bits=16)),
)
# fmt: on
_RULES = tuple((re.compile(pattern), read) for pattern, read in _TABLE)
