"""Host time from a process without a profiler: what a profiled one never tells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cascade_schemas.events import HostProfileRecorded

from cascade_profiler.recorder import StepFacts

STEPS_LIMIT = 100_000


class HostStep(NamedTuple):
    """One unprofiled step: what it was, the time until its work was issued, and when it ended."""

    facts: StepFacts
    host_ns: int
    end_ns: int


def host_profile(
    steps: Sequence[HostStep], trace_id: str, gpu_ns: Mapping[int, int] | None = None, gpu_absent: str = ""
) -> HostProfileRecorded:
    """The profile of a run. TTFT: from a request's first step to the end of the one that ends its prefill; TPOT: the
    mean time from one of its tokens to the next. No queueing and no network is in either. gpu_ns: by step;
    gpu_absent: why there is none.
    """
    ran = [step for step in steps if step.facts.request_ids]
    gaps = [0] * len(ran)
    for place in range(1, len(ran)):
        follows = ran[place].facts.step == ran[place - 1].facts.step + 1
        gaps[place] = max(ran[place].facts.start_ns - ran[place - 1].end_ns, 0) if follows else 0
    first_ns: dict[int, int] = {}
    token_ns: dict[int, list[int]] = {}
    for step in ran:
        for request, kv, prompt in zip(
            step.facts.request_ids, step.facts.kv_lengths, step.facts.prompt_tokens, strict=True
        ):
            if prompt:
                first_ns.setdefault(request, step.facts.start_ns)
                if kv >= prompt:
                    token_ns.setdefault(request, []).append(step.end_ns)
    count = max(first_ns, default=-1) + 1
    context = [_context_tokens(step.facts) for step in ran]
    return HostProfileRecorded(
        trace_id=trace_id,
        step_host_ns=tuple(step.host_ns for step in ran),
        step_gpu_ns=tuple((gpu_ns or {}).get(step.facts.step, 0) for step in ran),
        step_gpu_absent=gpu_absent,
        ttft_ns=tuple(
            token_ns[request][0] - first_ns[request] if request in token_ns else 0 for request in range(count)
        ),
        tpot_ns=tuple(_mean_gap(token_ns.get(request, ())) for request in range(count)),
        step_gap_ns=tuple(gaps),
        step_context_tokens=tuple(context),
        step_generation_tokens=tuple(
            sum(step.facts.q_lengths) - tokens for step, tokens in zip(ran, context, strict=True)
        ),
    )


def with_front_end(profile: Mapping[str, Any], outputs: Sequence[Any]) -> dict[str, Any]:
    """The profile with TTFT and TPOT as vLLM's front end measured them (`RequestOutput.metrics`), where it did.

    Stamps are of the monotonic clock; arrival_time is unix time and is never compared with them.
    """
    ttft, tpot = list(profile.get("ttft_ns", ())), list(profile.get("tpot_ns", ()))
    for request, output in enumerate(outputs):
        metrics = getattr(output, "metrics", None)
        stamps = [getattr(metrics, name, 0.0) or 0.0 for name in ("scheduled_ts", "first_token_ts", "last_token_ts")]
        count = sum(len(completion.token_ids) for completion in getattr(output, "outputs", ())[:1])
        if not all(stamps) or request >= len(ttft):
            continue
        ttft[request] = round((stamps[1] - stamps[0]) * 1e9)
        tpot[request] = round((stamps[2] - stamps[1]) * 1e9 / (count - 1)) if count > 1 else 0
    return {**profile, "ttft_ns": ttft, "tpot_ns": tpot}


def read_profile(path: Path) -> dict[str, Any]:
    """A profile that was saved. Raises ValueError, OSError."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or "step_host_ns" not in found:
        raise ValueError(
            f"{path.name} is no host profile: it has no step_host_ns; make one with cascade_profiler.baseline"
        )
    return found


def _mean_gap(stamps: Sequence[int]) -> int:
    return round((stamps[-1] - stamps[0]) / (len(stamps) - 1)) if len(stamps) > 1 else 0


def _context_tokens(step: StepFacts) -> int:
    lengths = zip(step.q_lengths, step.kv_lengths, step.prompt_tokens, strict=True)
    return sum(q for q, kv, prompt in lengths if (kv - q < prompt if prompt else q > 1))
