"""How a decode step grows with context or batch: one traced step, asked again with other lengths or more requests.

Everything else stays as traced: the launches of the step, its overlap and gaps, and what the source correction said of
each kernel. The host's time is the baseline's for as many tokens. Beyond what the trace covers the band widens, and
says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from cascade_schemas.events import RunConfig, StepTraced
from cascade_schemas.model import ModelSpec
from numpy.typing import NDArray

from services.aggregator import compose
from services.aggregator.predict import SourcePrediction, TracePredictor
from services.kernels.work import Family, Floats, WorkTable
from services.runtime.engine import Report
from services.runtime.sweep import Subject, corrected_times
from services.simworker.simulators.base import KernelSimulator
from services.simworker.simulators.quantities import experts_hit

Axis = Literal["context", "batch"]

# A guess, in ln per octave beyond the traced range, added in quadrature: kernels change their tiles and splits there.
_SIGMA_PER_OCTAVE = 0.04
_ATTENTION = (Family.ATTENTION_DECODE, Family.ATTENTION_MIXED, Family.MLA)
_GROWS_WITH_BATCH = (
    "m", "rows", "sequences", "q_tokens", "kv_tokens", "qk_pairs", "flop", "read_bytes", "write_bytes",
    "message_bytes", "ctas", "rows_busiest_expert",
)  # fmt: skip


class NoCurve(ValueError):
    """The trace does not hold what a curve starts from; one sentence."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The traced step that is asked again."""

    step: int
    requests: int
    tokens: int
    context: float  # tokens attended to per request
    launches: NDArray[np.float64]  # per task
    overlap: float
    gap_ns: int
    host_issue_ns: int


def curves(
    predictor: TracePredictor,
    work: WorkTable,
    configs: Sequence[RunConfig],
    source: SourcePrediction | None,
    analytic: KernelSimulator,
    axis: Axis,
) -> Report:
    """Per config the step's time with its interval at each x. Raises NoCurve."""
    steps = [step for step in predictor.steps if step.phase == "decode" and step.kv_lengths]
    if not steps:
        raise NoCurve("the trace has no decode step whose context is known: import it with the prompts' lengths")
    traced = _traced(steps, axis)
    base = _base(predictor, steps[len(steps) // 2])
    xs = _grid(axis, *traced)
    used = np.flatnonzero(base.launches)
    part = work.take(used)
    asked = _repeated(part, [_changed(part, axis, x, base) for x in xs])
    hosts = [
        predictor.host_times_of(0, round(base.tokens * x / base.requests) if axis == "batch" else base.tokens)
        for x in xs
    ]
    gpus = [config.gpu for config in configs]
    predictions = analytic.simulate(asked, gpus)
    stock = analytic.simulate(work, gpus)
    final, sigma = corrected_times(Subject(predictor, work, gpus[0], source), stock, gpus)
    shown = []
    for index, config in enumerate(configs):
        known = stock.duration_ns[index][used] > 0
        factor = np.where(known, final[index][used] / np.maximum(stock.duration_ns[index][used], 1), 1.0)
        left = np.where(
            stock.sigma[index][used] > 0, sigma[index][used] / np.maximum(stock.sigma[index][used], 1e-9), 1.0
        )
        duration = predictions.duration_ns[index].reshape(len(xs), len(used)) * factor
        spread = predictions.sigma[index].reshape(len(xs), len(used)) * left
        values = _composed(base, base.launches[used], duration, spread, part.text("family"), traced, xs, hosts)
        for x, value in zip(xs, values, strict=True):
            value["infeasible"] = _too_large(predictor, config, base, axis, x)
        shown.append(
            {"gpu": config.label, "gpu_name": config.gpu.name, "config_id": config.config_id, "points": values}
        )
    return {
        "axis": axis,
        "x": xs,
        "traced": {"low": traced[0], "high": traced[1]},
        "step": base.step,
        "requests": base.requests,
        "context_tokens": round(base.context),
        "configs": shown,
    }


def _traced(steps: Sequence[StepTraced], axis: Axis) -> tuple[float, float]:
    found = [sum(s.kv_lengths) / len(s.kv_lengths) if axis == "context" else float(len(s.kv_lengths)) for s in steps]
    return min(found), max(found)


def _base(predictor: TracePredictor, step: StepTraced) -> _Step:
    row = predictor.step_row(step.step)
    return _Step(
        step=step.step,
        requests=len(step.kv_lengths),
        tokens=step.generation_tokens,
        context=sum(step.kv_lengths) / len(step.kv_lengths),
        launches=row.launches,
        overlap=row.overlap,
        gap_ns=row.gap_ns,
        host_issue_ns=row.host_issue_ns,
    )


def _grid(axis: Axis, low: float, high: float) -> list[float]:
    """Powers of two around what was traced, and the ends of it."""
    if axis == "batch":
        powers = [float(2**power) for power in range(max(9, int(np.ceil(np.log2(high))) + 3))]
    else:
        first = min(7, int(np.floor(np.log2(max(low, 2)))) - 1)
        last = max(15, int(np.ceil(np.log2(max(high, 2)))) + 2)
        powers = [float(2**power) for power in range(max(first, 0), last + 1)]
    return sorted({*powers, float(round(low)), float(round(high))})


def _changed(work: WorkTable, axis: Axis, x: float, base: _Step) -> dict[str, Floats]:
    """The columns that are other numbers at x."""
    if axis == "batch":
        ratio = x / base.requests
        columns = {name: work[name] * ratio for name in _GROWS_WITH_BATCH}
        return columns | routed_alike(work, ratio)
    attends = np.isin(work.text("family"), [str(family) for family in _ATTENTION])
    seen = np.where(work["window"] > 0, np.minimum(x, work["window"]), x)
    before = np.maximum(work["kv_tokens"], 1)
    after = np.maximum(work["sequences"], 1) * seen
    ratio_kv = np.where(attends, after / before, 1.0)
    return {name: work[name] * ratio_kv for name in ("kv_tokens", "qk_pairs", "flop", "read_bytes")} | {
        "kv_longest": np.where(attends, seen, work["kv_longest"])
    }


def routed_alike(work: WorkTable, ratio: float) -> dict[str, Floats]:
    """Of what even routing would hit, the same share as before; and the busiest expert as far above the mean."""
    even = work.replaced({"experts_hit": np.zeros(work.count)})
    share = np.minimum(experts_hit(work) / np.maximum(experts_hit(even), 1e-9), 1)
    hit = share * experts_hit(even.replaced({"m": work["m"] * ratio}))
    return {
        "experts_hit": np.where(work["experts_hit"] > 0, hit, 0.0),
        "rows_busiest_expert": work["rows_busiest_expert"] * ratio * experts_hit(work) / np.maximum(hit, 1e-9),
    }


def _repeated(work: WorkTable, changes: Sequence[dict[str, Floats]]) -> WorkTable:
    """One block of tasks per change."""
    whole = work.take(np.tile(np.arange(work.count), len(changes)))
    return whole.replaced({name: np.concatenate([change[name] for change in changes]) for name in changes[0]})


def _composed(
    base: _Step,
    launches: NDArray[np.float64],
    duration_ns: Floats,
    sigma: Floats,
    family: NDArray[Any],
    traced: tuple[float, float],
    xs: Sequence[float],
    hosts: Sequence[compose.HostTimes | None],
) -> list[Report]:
    """As compose.step_times does for a traced step. duration_ns, sigma: (xs, tasks)."""
    times = np.rint(duration_ns) * launches
    total = times.sum(axis=1)
    variance = np.zeros(len(xs))
    for name in sorted(set(family)):
        members = family == name
        variance += (times[:, members] * sigma[:, members]).sum(axis=1) ** 2
    beyond = np.array([max(np.log2(traced[0] / x), np.log2(x / traced[1]), 0.0) for x in xs])
    spread = np.sqrt(variance / np.maximum(total, 1) ** 2 + (_SIGMA_PER_OCTAVE * beyond) ** 2)
    gpu = np.rint(total * base.overlap)
    value = gpu + base.gap_ns
    low = gpu * np.exp(-compose.Z90 * spread)
    high = gpu * np.exp(compose.Z90 * spread) + base.gap_ns
    points = []
    for index, host in enumerate(hosts):
        times = np.array([low[index], value[index], high[index]])
        if host is None:
            times[2] = max(times[2], base.host_issue_ns, times[1])
        else:
            times = np.maximum(times, host.issue_ns) + host.exposed_ns
        p10_ms, value_ms, p90_ms = (times / 1e6).tolist()
        points.append(
            {"value_ms": value_ms, "p10_ms": p10_ms, "p90_ms": p90_ms, "is_extrapolated": bool(beyond[index] > 0)}
        )
    return points


def _too_large(predictor: TracePredictor, config: RunConfig, base: _Step, axis: Axis, x: float) -> str | None:
    model: ModelSpec | None = predictor.started.model
    if model is None:
        return None
    tokens = x * base.requests if axis == "context" else x * base.context
    needed = model.weight_bytes(predictor.started.world_size)
    needed += round(tokens) * model.kv_bytes_per_token(predictor.started.world_size)
    if needed <= config.gpu.dram_bytes:
        return None
    return f"needs {needed / 2**30:.0f} GiB, {config.gpu.dram_bytes / 2**30:.0f} GiB present"
