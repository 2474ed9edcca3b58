"""What an engine's step annotation says: how many requests and tokens of which kind, and their lengths where told.

| engine | annotation | read as |
|---|---|---|
| vLLM | `execute_context_1(512)_generation_3(3)` | requests(tokens) of prefill and of decode |
| vLLM, some builds | `execute_context_1(888_788544)_generation_0(0)` | the second number is the sum of squares |
| vLLM, detailed | `execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086…)` | Σq, ΣKV, Σq², Σq·KV |
| vLLM, 2025 | `execute_new_2_cached_30` | requests only |
| SGLang | `step[DECODE bs=32]`, `step[EXTEND bs=15 toks=15360]` | requests and tokens |
| TensorRT-LLM | `[Executor] _forward_step 7: 1 ctx reqs, 12 gen reqs` | requests only |
| torch.profiler | `ProfilerStep#5` | a step of unknown kind |
| graph capture | `capture_32_FULL` | batch size and mode, see graphs.py |
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from cascade_schemas.task import Lengths

from services.ingest.imported import Phase


@dataclass(frozen=True, slots=True)
class StepWords:
    """An annotation, read."""

    engine: str  # vllm, sglang, tensorrt-llm; "" for a plain profiler step
    context_requests: int = 0
    context_tokens: int = 0
    generation_requests: int = 0
    generation_tokens: int = 0
    q_lengths: Lengths = ()
    kv_lengths: Lengths = ()

    @property
    def phase(self) -> Phase:
        """What kind of step this is."""
        if not self.engine:
            return Phase.UNKNOWN
        if self.context_requests and self.generation_requests:
            return Phase.MIXED
        if self.context_requests:
            return Phase.PREFILL
        return Phase.DECODE if self.generation_requests else Phase.EMPTY


@dataclass(frozen=True, slots=True)
class CaptureWords:
    """The annotation around one graph capture."""

    batch_size: int
    mode: str


_N = r"(\d{1,12})"
_SUMS = rf"\(sq{_N}sk{_N}sqsq(\d+)sqsk(\d+)\)"
_PLAIN = re.compile(rf"execute_context_{_N}\({_N}(?:_(\d+))?\)_generation_{_N}\({_N}(?:_(\d+))?\)")
_DETAILED = re.compile(rf"execute_{_N}_context_{_N}{_SUMS}_generation_{_N}{_SUMS}")
_NEW_CACHED = re.compile(rf"execute_(?:{_N}_)?new_{_N}_cached_{_N}")
_SGLANG = re.compile(rf"step\[(\w+)(?:[^\]]*?\bbs={_N})?(?:[^\]]*?\btoks={_N})?[^\]]*\]")
_TRTLLM = re.compile(rf"\[Executor\] _forward_step \d+: {_N} ctx reqs, {_N} gen reqs")
_PROFILER = re.compile(r"ProfilerStep ?#\d+")
_CAPTURE = re.compile(rf"capture_{_N}_([A-Za-z]\w*)")


def read_step(text: str) -> StepWords | None:
    """The step an annotation opens, or None where it opens none."""
    if match := _PLAIN.match(text):
        nc, tc, ng, tg = int(match[1]), int(match[2]), int(match[4]), int(match[5])
        q: Lengths = ()
        # One request whose tokens squared are the sum of squares: its whole prompt, nothing cached before.
        if match[3] and nc == 1 and ng == 0 and tc * tc == int(match[3]):
            q = (tc,)
        return StepWords("vllm", nc, tc, ng, tg, q, q)
    if match := _DETAILED.match(text):
        nc, sq, sk, sqsq, ng, gq, gk, gqq = (int(match[i]) for i in (2, 3, 4, 5, 7, 8, 9, 10))
        if max(nc, ng) > 1_000_000:
            return None
        context_q = _with_moments(sq, sqsq, nc)
        generation_q = _with_moments(gq, gqq, ng)
        cached = _evenly(max(sk - sq, 0), nc)
        kv = (*_evenly(gk, ng), *(q + before for q, before in zip(context_q, cached, strict=True)))
        return StepWords("vllm", nc, sq, ng, gq, (*generation_q, *context_q), kv)
    if match := _NEW_CACHED.match(text):
        return StepWords("vllm", int(match[2]), 0, int(match[3]), int(match[3]))
    if match := _SGLANG.match(text):
        kind, requests, tokens = match[1].upper(), int(match[2] or 0), int(match[3] or 0)
        if kind in ("DECODE", "TARGET_VERIFY", "DRAFT_EXTEND"):
            return StepWords("sglang", 0, 0, requests, tokens or requests)
        if kind in ("EXTEND", "PREFILL", "SPLIT_PREFILL"):
            return StepWords("sglang", requests, tokens)
        if kind == "IDLE":
            return StepWords("sglang")
        # MIXED tells the requests of both kinds together; one of each is the least it can be.
        return StepWords("sglang", max(requests - 1, 1), tokens, 1, 0) if kind == "MIXED" else None
    if match := _TRTLLM.match(text):
        return StepWords("tensorrt-llm", int(match[1]), 0, int(match[2]), int(match[2]))
    return StepWords("") if _PROFILER.match(text) else None


def read_capture(text: str) -> CaptureWords | None:
    """The graph capture an annotation opens, or None."""
    match = _CAPTURE.match(text)
    return CaptureWords(int(match[1]), match[2]) if match else None


def _evenly(total: int, count: int) -> Lengths:
    return tuple(total // count + (index < total % count) for index in range(count)) if count else ()


def _with_moments(total: int, squares: int, count: int) -> Lengths:
    """`count` lengths ≥ 1 with this sum and about this sum of squares: half of them d below the mean, half d above.

    The single lengths are not in the annotation; attention's work is a function of the sums, and these agree with it.
    """
    if count == 0:
        return ()
    even = _evenly(total, count)
    variance = squares / count - (total / count) ** 2
    spread = min(int(math.sqrt(variance)) if variance > 0 else 0, max(min(even) - 1, 0))
    half = count // 2
    shifts = (-spread,) * half + (0,) * (count - 2 * half) + (spread,) * half
    return tuple(length + shift for length, shift in zip(even, shifts, strict=True))
