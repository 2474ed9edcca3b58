"""From kernel times to step times: stream sums, overlap as traced, launch gaps, host time, and their interval.

Durations are integer ns, so sums over launches are exact in float64 (below 2^53 ns, 104 days) whatever their order;
that is what makes two machines, and a replay, agree on every stored number.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from cascade_schemas.events import HostProfileMeasured
from numpy.typing import NDArray

from services.aggregator.run_state import TraceColumns

Z90 = 1.2815515655446004  # standard normal quantile of 0.9

HOST_NOT_MEASURED = "host_not_measured"
HOST_ISSUE_ASSUMED = "host_issue_assumed_in_p90"
ROUTED_EVENLY, ROUTED_AS_TOLD = "experts_routed_evenly", "experts_routed_as_told"
MISSING_RANKS_EQUAL = "missing_ranks_assumed_equal"
PROFILED_STEPS_STAND_FOR_ALL = "profiled_steps_stand_for_all"
HOST_OF_SOURCE_MACHINE = "host_time_of_source_machine"


@dataclass(frozen=True, slots=True)
class LaunchGaps:
    """Default gaps between launches and the host's cost of a launch, where no unprofiled baseline says better."""

    eager_gap_ns: int
    graph_gap_ns: int
    host_issue_ns: int  # host time per eager launch; only ever widens p90


@cache
def default_gaps() -> LaunchGaps:
    table = tomllib.loads((files("services.aggregator") / "launch_gaps.toml").read_text())
    return LaunchGaps(**{name: row["ns"] for name, row in table.items()})


@dataclass(frozen=True, slots=True)
class StepLayout:
    """How a trace's launches fall into steps; computed once per trace, used for every config.

    A row is a (step, rank). `counts[row, task]` is how many launches of a task it has.
    """

    row_step: NDArray[np.int64]
    row_rank: NDArray[np.int64]
    counts: NDArray[np.float64]  # (rows, tasks)
    overlap: NDArray[np.float64]  # (rows,): GPU busy time ÷ sum of durations as traced; 1 where not measured
    gap_ns: NDArray[np.int64]  # (rows,): all gaps between launches, without host time
    eager_count: NDArray[np.int64]  # (rows,): launches issued one by one
    traced_gap_ns: NDArray[np.int64]  # (rows,): gaps on the GPU as traced, profiler's share included; -1 unknown
    measured_gpu_ns: NDArray[np.int64]  # (rows,): busy time as traced; -1 not measured
    launch_count: NDArray[np.int64]


def step_layout(trace: TraceColumns, gaps: LaunchGaps) -> StepLayout:
    """Launches outside every step belong to none and are left out."""
    inside = np.flatnonzero(trace.step >= 0)
    task_count = len(trace.task_ids)
    ranks = int(trace.rank.max(initial=0)) + 1
    keys = trace.step[inside] * ranks + trace.rank[inside]
    # Steps are numbered from 0: counting is a tenth of the sorting that np.unique would do.
    present = np.bincount(keys) > 0
    row_keys = np.flatnonzero(present)
    row = (np.cumsum(present) - 1)[keys]
    row_count = len(row_keys)
    counts = np.bincount(row * task_count + trace.task[inside], minlength=row_count * task_count)
    graph = trace.graph[inside] >= 0
    graph_gap = np.bincount(row, weights=graph, minlength=row_count).astype(np.int64) * gaps.graph_gap_ns
    eager_count = np.bincount(row, weights=~graph, minlength=row_count).astype(np.int64)
    busy = np.full(row_count, -1, dtype=np.int64)
    span = np.full(row_count, -1, dtype=np.int64)
    overlap = np.ones(row_count)
    if trace.is_measured:
        is_ordered = bool((np.diff(row) >= 0).all())  # one rank: steps follow each other
        by_row = inside if is_ordered else inside[np.argsort(row, kind="stable")]
        ends = np.cumsum(np.bincount(row, minlength=row_count))
        for index, chosen in enumerate(np.split(by_row, ends[:-1]) if row_count else ()):
            busy[index], span[index], total = _busy_span_sum(trace.start_ns[chosen], trace.duration_ns[chosen])
            overlap[index] = busy[index] / total if total else 1.0
    return StepLayout(
        row_step=row_keys // ranks,
        row_rank=row_keys % ranks,
        counts=counts.reshape(row_count, task_count).astype(np.float64),
        overlap=overlap,
        gap_ns=graph_gap + eager_count * gaps.eager_gap_ns,
        eager_count=eager_count,
        traced_gap_ns=np.where(busy >= 0, span - busy, -1),
        measured_gpu_ns=busy,
        launch_count=np.bincount(row, minlength=row_count).astype(np.int64),
    )


def _busy_span_sum(start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> tuple[int, int, int]:
    """Union of intervals, first start to last end, and sum of durations."""
    order = np.argsort(start_ns, kind="stable")
    start, length = start_ns[order], np.maximum(duration_ns[order], 0)
    end = start + length
    reached = np.maximum.accumulate(end)
    covered_until = np.concatenate(([start[0]], reached[:-1]))
    busy = int(np.maximum(end - np.maximum(start, covered_until), 0).sum())
    return busy, int(reached[-1] - start[0]), int(length.sum())


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Per row of a layout the host's time without a profiler: median, and 10th and 90th percentile of equal steps.

    Arrays of shape (3, rows), in the order p10, median, p90; -1 where no baseline step is like this one.
    """

    issue_ns: NDArray[np.int64]  # until the host has issued the step's work; goes on beside the GPU
    exposed_ns: NDArray[np.int64]  # between two steps, when nothing is issued

    @property
    def is_known(self) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self.issue_ns[1] >= 0
        return known


def host_times(
    layout: StepLayout, tokens: Mapping[int, tuple[int, int]], profile: HostProfileMeasured | None
) -> HostTimes:
    """Each step's host times from the baseline steps that worked on as much: equal tokens of prefill and of decode.

    Where there is no equal one, the nearest in tokens of the same phase: host time follows requests, not tokens.
    tokens: (context, generation) of each step of the trace.
    """
    rows = len(layout.row_step)
    found_issue = np.full((3, rows), -1, dtype=np.int64)
    found_exposed = found_issue.copy()
    if profile is None:
        return HostTimes(found_issue, found_exposed)
    known: dict[tuple[int, int], HostTimes | None] = {}
    for row, step in enumerate(layout.row_step.tolist()):
        asked = tokens.get(step)
        if asked is None:
            continue
        if asked not in known:
            known[asked] = host_times_of(profile, asked)
        if (times := known[asked]) is not None:
            found_issue[:, row], found_exposed[:, row] = times.issue_ns, times.exposed_ns
    return HostTimes(found_issue, found_exposed)


def host_times_of(profile: HostProfileMeasured, asked: tuple[int, int]) -> HostTimes | None:
    """Of one step by its (context, generation) tokens, arrays of shape (3,); None where no baseline step is like it."""
    if not profile.step_context_tokens or not profile.step_host_ns:
        return None
    chosen = _alike(
        np.array(profile.step_context_tokens, dtype=np.int64),
        np.array(profile.step_generation_tokens, dtype=np.int64),
        asked,
    )
    if not len(chosen):
        return None
    issue = np.array(profile.step_host_ns, dtype=np.int64)
    exposed = np.array(profile.step_gap_ns or [0] * len(issue), dtype=np.int64)
    return HostTimes(_percentiles(issue[chosen]), _percentiles(exposed[chosen]))


def _alike(context: NDArray[np.int64], generation: NDArray[np.int64], asked: tuple[int, int]) -> NDArray[np.intp]:
    equal = np.flatnonzero((context == asked[0]) & (generation == asked[1]))
    if len(equal):
        return equal
    same_phase = np.flatnonzero(((context > 0) == (asked[0] > 0)) & ((generation > 0) == (asked[1] > 0)))
    if not len(same_phase):
        return same_phase
    distance = np.abs(context[same_phase] - asked[0]) + np.abs(generation[same_phase] - asked[1])
    nearest: NDArray[np.intp] = same_phase[distance == distance.min()]
    return nearest


def _percentiles(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """10th, 50th and 90th, each one of the values: integers stay integers on every machine."""
    ordered = np.sort(values)
    picked: NDArray[np.int64] = ordered[[len(ordered) // 10, len(ordered) // 2, (len(ordered) * 9) // 10]]
    return picked


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Predicted times of every step of a trace on some configs; shape (configs, steps) where not said otherwise."""

    step: NDArray[np.int64]  # (steps,)
    gpu_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    p10_ns: NDArray[np.int64]
    p90_ns: NDArray[np.int64]
    coverage: NDArray[np.float64]
    measured_gpu_ns: NDArray[np.int64]  # -1 not measured
    launch_count: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FamilyCounts:
    """A layout's counts with tasks sorted by family, so that each family is one block of rows."""

    family: NDArray[np.object_]  # (tasks,), as given
    order: NDArray[np.intp]
    counts: NDArray[np.float64]  # (tasks, rows), in `order`
    blocks: list[tuple[int, int]]  # first, last + 1 of each family


def family_counts(layout: StepLayout, family: NDArray[np.object_]) -> FamilyCounts:
    names, code = np.unique(family.astype(str), return_inverse=True)
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(names)))
    blocks = list(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)) if len(names) else []
    return FamilyCounts(family, order, np.ascontiguousarray(layout.counts.T[order]), blocks)


def step_times(
    layout: StepLayout,
    by_family: FamilyCounts,
    duration_ns: NDArray[np.int64],
    sigma: NDArray[np.float64],
    weight_ns: NDArray[np.int64],
    gaps: LaunchGaps,
    host: HostTimes | None = None,
) -> StepTimes:
    """Times of all steps on all configs.

    duration_ns, sigma: (configs, tasks), failures already filled in by extrapolation or -1 (then left out).
    weight_ns: (tasks,), what a launch counts for coverage: its measured time, or 1 where nothing was measured.

    Errors of kernels of one family are taken as fully correlated, of different families as independent (SIMULATION
    3.6): the step's sigma is the root of the sum over families of (Σ t·sigma)², divided by the step's time.

    With a baseline a step takes as long as the slower of GPU and host, and the time between steps on top: the host
    issues the next step's work while the GPU is busy. Without one, host time only widens p90.
    """
    config_count = len(duration_ns)
    durations = duration_ns[:, by_family.order]
    known = durations >= 0
    times = np.where(known, durations, 0).astype(np.float64)
    weights = np.broadcast_to(weight_ns[by_family.order].astype(np.float64), times.shape)
    # Sums over launches, in one pass over the counts. Spreads are rounded to whole ns so that their sums, too, are
    # exact and the same everywhere.
    addends = np.concatenate((times, np.rint(times * sigma[:, by_family.order]), weights * known, weights))
    total, weight_known, weight_all = np.zeros((3, config_count, len(layout.row_step)))
    variance = np.zeros_like(total)
    for first, last in by_family.blocks:
        sums = addends[:, first:last] @ by_family.counts[first:last]
        part, spread, of_known, of_all = sums.reshape(4, config_count, -1)
        total += part
        variance += spread**2
        weight_known += of_known
        weight_all += of_all
    step_sigma = np.sqrt(variance) / np.maximum(total, 1.0)
    gpu = np.rint(total * layout.overlap)
    value = gpu + layout.gap_ns
    low = gpu * np.exp(-Z90 * step_sigma)  # GPU busy time alone: no gap is certain
    high = gpu * np.exp(Z90 * step_sigma) + layout.gap_ns
    with_host_gaps = gpu + np.where(layout.traced_gap_ns >= 0, layout.traced_gap_ns // 2, 0)
    issued_by_host = np.where(layout.traced_gap_ns < 0, layout.eager_count * gaps.host_issue_ns, 0)
    high = np.maximum(np.maximum(high, with_host_gaps), np.maximum(issued_by_host, value))
    if host is not None and host.is_known.any():
        low, value, high = (
            np.where(host.is_known, np.maximum(of_gpu, issue) + exposed, without)
            for of_gpu, without, issue, exposed in zip(
                (low, value, gpu * np.exp(Z90 * step_sigma) + layout.gap_ns),
                (low, value, high),
                host.issue_ns,
                host.exposed_ns,
                strict=True,
            )
        )
        high = np.maximum(high, value)
    coverage = np.divide(weight_known, weight_all, out=np.zeros_like(total), where=weight_all > 0)
    return _slowest_rank(
        layout,
        StepTimes(
            step=layout.row_step,
            gpu_ns=gpu.astype(np.int64),
            duration_ns=value.astype(np.int64),
            p10_ns=np.rint(low).astype(np.int64),
            p90_ns=np.rint(high).astype(np.int64),
            coverage=coverage,
            measured_gpu_ns=np.broadcast_to(layout.measured_gpu_ns, total.shape),
            launch_count=np.broadcast_to(layout.launch_count, total.shape),
        ),
    )


def _slowest_rank(layout: StepLayout, rows: StepTimes) -> StepTimes:
    """A step ends when its last rank does; collectives have aligned the ranks' ends already."""
    steps = np.unique(layout.row_step)
    if len(steps) == len(layout.row_step):
        return rows
    slowest = np.empty((len(rows.duration_ns), len(steps)), dtype=np.int64)
    for config, duration in enumerate(rows.duration_ns):
        order = np.lexsort((layout.row_rank, -duration, layout.row_step))
        of_step = layout.row_step[order]
        slowest[config] = order[np.flatnonzero(np.concatenate(([True], of_step[1:] != of_step[:-1])))]
    columns = {
        name: np.take_along_axis(getattr(rows, name), slowest, axis=1)
        for name in StepTimes.__dataclass_fields__
        if name != "step"
    }
    return StepTimes(step=steps, **columns)


def median_per_task(trace: TraceColumns, is_collective: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Median measured time per task, -1 where none; of a collective the fastest rank's: the others waited for it."""
    measured = np.flatnonzero(trace.duration_ns >= 0)
    medians = np.full(len(trace.task_ids), -1, dtype=np.int64)
    order = measured[np.lexsort((trace.duration_ns[measured], trace.rank[measured], trace.task[measured]))]
    group = np.stack((trace.task[order], trace.rank[order]))
    if not group.size:
        return medians
    starts = np.flatnonzero(np.concatenate(([True], (group[:, 1:] != group[:, :-1]).any(axis=0))))
    sizes = np.diff(np.concatenate((starts, [len(order)])))
    values = trace.duration_ns[order]
    middle = (values[starts + (sizes - 1) // 2] + values[starts + sizes // 2]) // 2
    tasks = group[0, starts]
    for task in np.unique(tasks):
        of_ranks = middle[tasks == task]
        medians[task] = of_ranks.min() if is_collective[task] else int(np.median(of_ranks))
    return medians
