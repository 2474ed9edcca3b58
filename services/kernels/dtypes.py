"""Element types: every profiler's word for one, in ours, and its width."""

from __future__ import annotations

_WORDS = {
    "bf16": ("bfloat16", "c10::bfloat16", "__nv_bfloat16", "__hip_bfloat16", "cutlass::bfloat16_t", "torch.bfloat16"),
    "fp16": ("half", "float16", "c10::half", "__half", "cutlass::half_t", "torch.float16"),
    "fp32": ("float", "float32", "torch.float32"),
    "fp64": ("double", "float64", "torch.float64"),
    "fp8_e4m3": (
        "fp8",
        "c10::float8_e4m3fn",
        "c10::float8_e4m3fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "__nv_fp8_e4m3",
    ),
    "fp8_e5m2": ("c10::float8_e5m2", "c10::float8_e5m2fnuz", "float8_e5m2", "__nv_fp8_e5m2"),
    "fp4": ("e2m1", "nvfp4", "mxfp4", "c10::float4_e2m1fn_x2", "float4_e2m1fn_x2"),
    "int8": ("signed char", "char", "int8_t", "torch.int8"),
    "uint8": ("unsigned char", "byte", "uint8_t", "torch.uint8"),
    "int16": ("short", "short int", "torch.int16"),
    "int32": ("int", "int32_t", "torch.int32"),
    "int64": ("long", "long int", "long long", "int64_t", "torch.int64"),
    "bool": ("torch.bool",),
    "complex64": ("c10::complex<float>",),
}
_OURS = {word: ours for ours, words in _WORDS.items() for word in (ours, *words)}
_BITS = {
    "bf16": 16, "fp16": 16, "fp32": 32, "fp64": 64, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp4": 4, "int4": 4, "int8": 8,
    "uint8": 8, "int16": 16, "int32": 32, "int64": 64, "bool": 8, "complex64": 64,
}  # fmt: skip


def canonical_dtype(word: str) -> str:
    """`c10::BFloat16` is `bf16`; a word nobody knows stays as it is."""
    return _OURS.get(word) or _OURS.get(word.strip().lower(), word)


def bits_of(word: str) -> int:
    """Bits of one element; 0 for what is no tensor (`Scalar`, `ScalarList`, an empty word)."""
    return _BITS.get(word) or _BITS.get(canonical_dtype(word), 0)
