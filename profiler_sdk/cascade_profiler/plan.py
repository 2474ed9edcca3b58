"""Which steps are worth profiling: a few of every kind instead of thousands, until their times are known well enough.

Steps of one kind (phase, tokens and context within an eighth of each other) take nearly the same time. The mean of a
kind is known to ± t·s/√n; a kind is done when that is within the target, and the plan when all kinds seen so far are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cascade_profiler.orders import Goal
from cascade_profiler.recorder import Batch, StepFacts

# Student's t, two-sided 95 %, by degrees of freedom from 1; beyond the table the normal's.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_Z95 = 1.96
_BUCKETS_PER_DOUBLING = 5.0  # 2 ** (1 / 5) = 1.15


class Kind(NamedTuple):
    """Steps that do about the same work; logarithmic buckets."""

    phase: str
    tokens: int
    context: int
    requests: int


@dataclass(slots=True)
class _Moments:
    count: int = 0
    mean_ns: float = 0.0
    squares: float = 0.0  # Σ (x - mean)²

    def add(self, value_ns: int) -> None:
        self.count += 1
        delta = value_ns - self.mean_ns
        self.mean_ns += delta / self.count
        self.squares += delta * (value_ns - self.mean_ns)

    def half_width_ratio(self, extra: int = 0) -> float:
        """Half of the 95 % interval of the mean ÷ the mean, had `extra` more steps been seen; inf below two."""
        if self.count < 2 or self.mean_ns <= 0:
            return math.inf
        count = self.count + extra
        deviation = math.sqrt(self.squares / (self.count - 1))
        t = _T95[count - 2] if count - 2 < len(_T95) else _Z95
        return t * deviation / math.sqrt(count) / self.mean_ns


class KindReport(NamedTuple):
    """What is known of one kind, and what a second more would buy."""

    kind: Kind
    steps: int
    mean_ns: int
    half_width_ratio: float  # of the 95 % interval of the mean
    after_one_more_second: float


class SamplingPlan:
    """Decides step by step; a kind needs three steps at least before its interval means anything."""

    def __init__(self, goal: Goal | None = None, count_least: int = 3) -> None:
        self._goal = goal or Goal()
        self._count_least = count_least
        self._kinds: dict[Kind, _Moments] = {}
        self._seen = 0

    def wants(self, kind: Kind) -> bool:
        """Whether a profiled step of this kind would tell anything new."""
        moments = self._kinds.get(kind)
        return moments is None or not self._is_done(moments)

    def learn(self, kind: Kind, duration_ns: int) -> None:
        """A step of this kind was profiled and took so long."""
        self._seen += 1
        self._kinds.setdefault(kind, _Moments()).add(duration_ns)

    @property
    def is_converged(self) -> bool:
        return bool(self._kinds) and all(self._is_done(moments) for moments in self._kinds.values())

    def report(self) -> list[KindReport]:
        """Per kind, the widest interval first."""
        rows = []
        for kind, moments in self._kinds.items():
            extra = max(1, round(1e9 / moments.mean_ns)) if moments.mean_ns > 0 else 1
            rows.append(
                KindReport(
                    kind,
                    moments.count,
                    round(moments.mean_ns),
                    moments.half_width_ratio(),
                    moments.half_width_ratio(extra),
                )
            )
        return sorted(rows, key=lambda row: -row.half_width_ratio)

    def _is_done(self, moments: _Moments) -> bool:
        if moments.count < self._count_least:
            return False
        return moments.count >= self._goal.count_limit or moments.half_width_ratio() <= self._goal.target_ratio


def decode_kinds(requests: int, first: int, last: int) -> set[Kind]:
    """The kinds of decode steps of so many requests, whose contexts are `first` to `last` tokens on average."""
    buckets = range(_bucket(requests * first), _bucket(requests * last) + 1)
    return {Kind("decode", _bucket(requests), bucket, _bucket(requests)) for bucket in buckets}


def kind_of(step: Batch | StepFacts) -> Kind:
    """The kind of a step."""
    prompts = step.prompt_tokens
    lengths = list(zip(step.q_lengths, step.kv_lengths, prompts, strict=True))
    context = sum(kv - q < prompt if prompt else q > 1 for q, kv, prompt in lengths)
    phase = "empty" if not lengths else "decode" if not context else "prefill" if context == len(lengths) else "mixed"
    return Kind(phase, _bucket(sum(step.q_lengths)), _bucket(sum(step.kv_lengths)), _bucket(len(lengths)))


def sentence(report: Sequence[KindReport]) -> str:
    """What was learnt, for people: the widest interval, and whether more time would help."""
    if not report:
        return "no step was profiled"
    widest = report[0]
    known = "one step only" if math.isinf(widest.half_width_ratio) else f"± {widest.half_width_ratio:.1%}"
    more = "unknown" if math.isinf(widest.after_one_more_second) else f"± {widest.after_one_more_second:.1%}"
    return (
        f"{len(report)} kinds of steps from {sum(row.steps for row in report)} profiled steps; the least known"
        f" ({widest.kind.phase}, {widest.mean_ns / 1e6:.2f} ms) is known to {known}, after one more second of it"
        f" {more}"
    )


def _bucket(count: int) -> int:
    return 0 if count <= 0 else 1 + round(math.log2(count) * _BUCKETS_PER_DOUBLING)
