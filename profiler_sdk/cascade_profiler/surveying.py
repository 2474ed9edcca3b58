"""A trace made for the purpose: decode steps at a few batch sizes and contexts, instead of thousands of tokens.

Each visit to a point generates a few tokens there. The next visit goes where a second buys most: the widest interval
that narrows fastest. It ends when every point is known well enough, or when the time is up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cascade_profiler import vllm
from cascade_profiler.orders import Goal
from cascade_profiler.plan import Kind, KindReport, decode_kinds
from cascade_profiler.saying import say
from cascade_profiler.session import Trace, trace
from cascade_profiler.tracer import STEPS_PER_WINDOW

_STEPS_PER_VISIT = STEPS_PER_WINDOW  # with all requests decoding
_STEPS_PER_POINT_LIMIT = 1000
_FIRST_TOKEN_ID = 10  # beside those that mean something to a tokenizer


class Point(NamedTuple):
    """Decode steps of so many requests, each with so many tokens before them."""

    requests: int
    context: int


class Known(NamedTuple):
    """What is known of the decode steps at a point."""

    steps: int
    mean_ns: int
    half_width_ratio: float  # of the 95 % interval of the mean; inf: one step or none
    after_one_more_second: float


class Survey(NamedTuple):
    """What a survey found out; `trace` as of `cascade_profiler.trace`."""

    trace: Trace
    known: dict[Point, Known]
    is_converged: bool


def survey(
    llm: Any,
    *,
    batches: Sequence[int] = (1, 8, 32),
    contexts: Sequence[int] = (128, 1024, 4096),
    seconds: float = 60.0,
    target_ratio: float = 0.02,
    now_s: Callable[[], float] = time.monotonic,
    **options: Any,
) -> Survey:
    """Trace the decode steps of every batch size at every context that the engine allows, for at most so many seconds.

    target_ratio: how narrow the 95 % interval of a point's mean step must be, as a share of it. options: of `trace`.
    As there, whatever fails is said once and nothing is raised.
    """
    with trace(llm, sample=Goal(target_ratio, _STEPS_PER_POINT_LIMIT), **options) as found:
        known: dict[Point, Known] = {}
        is_converged = False
        if found.is_recording:
            try:
                visits = _Visits(llm, vllm.limits_of(llm), target_ratio, now_s)
                known = visits.known
                is_converged = visits.run(batches, contexts, now_s() + seconds)
            except Exception as error:  # noqa: BLE001 - as trace: never into the job
                say(f"the survey ended early ({type(error).__name__}: {error}); what was traced until then is kept")
    return Survey(found, known, is_converged)


def possible(batches: Iterable[int], contexts: Iterable[int], limits: vllm.Limits) -> list[Point]:
    """The points an engine can be asked for, the cheap ones first."""
    wanted = {Point(requests, context) for requests in batches for context in contexts}
    points = [
        point
        for point in wanted
        if 0 < point.requests <= limits.requests
        and 0 < point.context <= limits.context_tokens - output_tokens(point, limits)
    ]
    if len(points) < len(wanted):
        say(
            f"{len(wanted) - len(points)} of {len(wanted)} points are left out: the engine takes {limits.requests}"
            f" requests of {limits.context_tokens} tokens"
        )
    return sorted(points, key=lambda point: (point.requests * point.context, point))


def output_tokens(point: Point, limits: vllm.Limits) -> int:
    """Enough that all requests decode together for a window: those whose prompts come first generate meanwhile."""
    return -(-point.requests * point.context // limits.step_tokens) + _STEPS_PER_VISIT


def next_point(
    points: Iterable[Point], known: Mapping[Point, Known], cost_s: Mapping[Point, float], target_ratio: float
) -> Point | None:
    """Where a second buys most; None where all are known well enough. Points never visited come first."""
    best: tuple[float, Point] | None = None
    for point in sorted(points, key=lambda point: point in known):
        have = known.get(point)
        if have is None or math.isinf(have.half_width_ratio):
            return point
        if not _is_wide(have, target_ratio):
            continue
        narrower = have.half_width_ratio * math.sqrt(have.steps / (have.steps + _STEPS_PER_VISIT))
        gain = (have.half_width_ratio - narrower) / max(cost_s[point], 1e-9)
        if best is None or gain > best[0]:
            best = (gain, point)
    return None if best is None else best[1]


def known_of(point: Point, last: int, reports: Sequence[KindReport]) -> Known:
    """Of the kinds that a visit to the point consists of, up to `last` tokens, the one with most steps; all of them.

    The first and the last step may be of a kind that hardly any other step there is of.
    """
    kinds = decode_kinds(point.requests, point.context + 1, last)
    own = [row for row in reports if row.kind in kinds]
    if not own:
        return Known(0, 0, math.inf, math.inf)
    main = max(own, key=lambda row: row.steps)
    return Known(sum(row.steps for row in own), main.mean_ns, main.half_width_ratio, main.after_one_more_second)


class _Visits:
    """One survey while it runs."""

    def __init__(self, llm: Any, limits: vllm.Limits, target_ratio: float, now_s: Callable[[], float]) -> None:
        self.known: dict[Point, Known] = {}
        self._llm = llm
        self._limits = limits
        self._target_ratio = target_ratio
        self._now_s = now_s
        self._cost_s: dict[Point, float] = {}
        self._count = 0

    def run(self, batches: Iterable[int], contexts: Iterable[int], deadline_s: float) -> bool:
        """Whether all points are known well enough."""
        points = possible(batches, contexts, self._limits)
        while (point := next_point(points, self.known, self._cost_s, self._target_ratio)) is not None:
            if self._now_s() >= deadline_s:
                say(f"the time is up; {_left(points, self.known, self._target_ratio)}")
                return False
            before = self.known.get(point)
            self._visit(point)
            if before is not None and self.known[point].steps == before.steps:
                points.remove(point)
                say(f"no more steps of {point.requests} x {point.context} tokens could be profiled; it is left at that")
        return bool(self.known) and all(have.half_width_ratio <= self._target_ratio for have in self.known.values())

    def _visit(self, point: Point) -> None:
        began_s = self._now_s()
        prompts = _prompts(point, self._count, self._limits.vocabulary)
        vllm.generate(self._llm, prompts, output_tokens(point, self._limits))
        reports = _reports(self._llm)
        self._count += 1
        self._cost_s[point] = self._now_s() - began_s
        for one in {point, *self.known}:  # neighbours may share a kind
            self.known[one] = known_of(one, one.context + output_tokens(one, self._limits), reports)
        say(_said(point, self.known[point]))


def _prompts(point: Point, visits: int, vocabulary: int) -> list[list[int]]:
    """Different each time: a prefix that is cached would not be computed."""
    span = max(min(vocabulary, 50_000) - _FIRST_TOKEN_ID, 1)
    return [
        [_FIRST_TOKEN_ID + (7919 * (visits * 1009 + request) + place) % span for place in range(point.context)]
        for request in range(point.requests)
    ]


def _reports(llm: Any) -> list[KindReport]:
    """Of all ranks; of a kind that several know, the widest interval."""
    widest: dict[Kind, KindReport] = {}
    for rows in vllm.rpc(llm)(vllm.KNOWN):
        for kind, *rest in rows:
            row = KindReport(Kind(*kind), *rest)
            if row.kind not in widest or row.half_width_ratio > widest[row.kind].half_width_ratio:
                widest[row.kind] = row
    return list(widest.values())


def _said(point: Point, known: Known) -> str:
    if math.isinf(known.half_width_ratio):
        return f"{point.requests} x {point.context} tokens: {known.steps} steps profiled so far"
    return (
        f"{point.requests} x {point.context} tokens: {known.mean_ns / 1e6:.3f} ms ± {known.half_width_ratio:.1%} after"
        f" {known.steps} steps; a second more of it: ± {known.after_one_more_second:.1%}"
    )


def _left(points: Sequence[Point], known: Mapping[Point, Known], target_ratio: float) -> str:
    """What more time would have been for."""
    wide = [_said(point, known[point]) for point in points if point in known and _is_wide(known[point], target_ratio)]
    unseen = sum(point not in known for point in points)
    return "; ".join([*wide, *([f"{unseen} points were not visited"] if unseen else [])])


def _is_wide(known: Known, target_ratio: float) -> bool:
    return known.half_width_ratio > target_ratio and known.steps < _STEPS_PER_POINT_LIMIT
