"""TTFT and TPOT of a trace's requests from its predicted steps. No queueing and no network: see the glossary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cascade_schemas.events import Estimate, StepTraced
from numpy.typing import NDArray

GENERATING = ("decode", "mixed")


@dataclass(frozen=True, slots=True)
class Span:
    """The steps that a quantity is made of, and which request they serve (-1: requests cannot be told apart)."""

    request: int
    prompt_tokens: int | None
    prefill_steps: tuple[int, ...]
    generating_steps: tuple[int, ...]
    ttft_reason: str = ""  # why prefill_steps is empty
    tpot_reason: str = ""


def measured_request(steps: Sequence[StepTraced], prompts: Sequence[int]) -> Span:
    """The request with the most prompt tokens (the first of equals), and the steps of its prefill and afterwards.

    steps: of one rank, in order. prompts: tokens per request; 0 where the request began before the trace.
    """
    ran = [step for step in steps if step.phase != "empty"]
    if any(prompts) and any(step.request_indexes for step in ran):
        return _of_known_requests(steps, ran, prompts)
    prefills = [step for step in ran if step.phase == "prefill" and step.is_profiled]
    generating = tuple(step.step for step in ran if step.phase in GENERATING and step.is_profiled)
    tpot_reason = "" if generating else "the trace has no decode step"
    if any(step.request_indexes for step in ran):
        return Span(-1, None, (), generating, "every request began before the trace", tpot_reason)
    if len(prefills) == 1 and prefills[0].context_requests <= 1:
        first = prefills[0]
        after = tuple(index for index in generating if index > first.step)
        return Span(0, first.context_tokens or None, (first.step,), after, tpot_reason=tpot_reason)
    if not prefills and not any(step.context_requests for step in ran):
        reason = "the trace has no prefill step"
    else:
        reason = "the trace does not tell which request a prefill chunk belongs to: import it with the prompts' lengths"
    return Span(-1, None, (), generating, ttft_reason=reason, tpot_reason=tpot_reason)


def _of_known_requests(steps: Sequence[StepTraced], ran: Sequence[StepTraced], prompts: Sequence[int]) -> Span:
    request = max(range(len(prompts)), key=lambda index: (prompts[index], -index))
    prefill: list[int] = []
    done_tokens = 0  # a prefix found in the cache included: it is in the first chunk's KV
    for step in ran:
        for index, kv in zip(step.request_indexes, step.kv_lengths, strict=True):
            if index == request and done_tokens < prompts[request]:
                prefill.append(step.step)
                done_tokens = kv
    if done_tokens < prompts[request]:
        return Span(
            request, prompts[request], (), (), "the trace ends before this request's prefill", "no step follows"
        )
    after = tuple(
        step.step for step in ran if step.step > prefill[-1] and step.phase in GENERATING and step.is_profiled
    )
    # From the first step of the request to the one that ends its prefill, those between included: the engine ran them.
    span = tuple(step.step for step in ran if prefill[0] <= step.step <= prefill[-1])
    ttft_reason = ""
    if any(prefill[0] <= step.step <= prefill[-1] and not step.is_profiled for step in ran):
        ttft_reason = "no profiler ran during a step of this request's prefill"
    elif _has_gap(steps, prefill[0], prefill[-1]):
        ttft_reason = "a step of this request's prefill was dropped while tracing"
    tpot_reason = "" if after else "no step follows the first token"
    return Span(request, prompts[request], () if ttft_reason else span, after, ttft_reason, tpot_reason)


def _has_gap(steps: Sequence[StepTraced], first: int, last: int) -> bool:
    """Whether a step is missing between these two, or right before them: it may have held an earlier chunk."""
    present = {step.step for step in steps}
    before = {first - 1} if first > min(present) else set()
    return not before | set(range(first, last + 1)) <= present


@dataclass(frozen=True, slots=True)
class Steps:
    """Predicted times by step: `place` says where in the arrays a step is."""

    place: Mapping[int, int]
    value_ns: NDArray[np.int64]
    p10_ns: NDArray[np.int64]
    p90_ns: NDArray[np.int64]


def total(steps: Sequence[int], times: Steps) -> Estimate | None:
    """Sum of steps. Their errors come from the same model of the same kernels, so the bounds add as well."""
    if not steps or any(step not in times.place for step in steps):
        return None
    chosen = np.array([times.place[step] for step in steps])
    return Estimate(
        value_ns=int(times.value_ns[chosen].sum()),
        p10_ns=int(times.p10_ns[chosen].sum()),
        p90_ns=int(times.p90_ns[chosen].sum()),
    )


def mean(steps: Sequence[int], times: Steps) -> Estimate | None:
    whole = total(steps, times)
    if whole is None:
        return None
    count = len(steps)
    return Estimate(
        value_ns=round(whole.value_ns / count), p10_ns=round(whole.p10_ns / count), p90_ns=round(whole.p90_ns / count)
    )
