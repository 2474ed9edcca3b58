"""What if, for every knob at once: six figures of a chip at nine values each, and which bottleneck moves next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cascade_schemas.events import Estimate
from cascade_schemas.gpu import GpuSpec, InvalidConfig, resolve
from numpy.typing import NDArray

from services.aggregator import compose
from services.aggregator.extrapolation import filled
from services.aggregator.predict import SourcePrediction, TracePredictor
from services.aggregator.run_state import ResultColumns
from services.kernels.work import WorkTable
from services.runtime.engine import Report
from services.simworker.simulators.base import BOUNDS, KernelSimulator, Predictions

FACTORS = tuple(4.0 ** (step / 4) for step in range(-4, 5))  # a quarter to four times, half an octave apart
_BISECTIONS = 6  # of half an octave: a threshold is found within half a per cent
_NEGLIGIBLE = 0.002  # a knob that moves the answer by less over its whole range has no effect
_SHARE_WORTH_NAMING = 0.02  # of kernel time


@dataclass(frozen=True, slots=True)
class Knob:
    """An override as a slider: its name in configs, words, unit, and what the stock chip has."""

    name: str
    words: str
    unit: str
    limit: str  # the bound that it moves

    def stock(self, gpu: GpuSpec) -> float:
        return float(
            {
                "sm": gpu.sm_count,
                "clock_ghz": gpu.boost_hz / 1e9,
                "dram_gbps": gpu.dram_bytes_per_s / 1e9,
                "l2_mb": gpu.l2_bytes / 2**20,
                "tensor_tflops": gpu.bf16_flop_per_s / 1e12,
                "link_gbps": gpu.link_bytes_per_s / 1e9,
            }[self.name]
        )


KNOBS = (
    Knob("sm", "SMs", "", "tensor"),
    Knob("clock_ghz", "Clock", "GHz", "issue"),
    Knob("tensor_tflops", "Tensor rate", "TFLOP/s", "tensor"),
    Knob("dram_gbps", "DRAM", "GB/s", "dram"),
    Knob("l2_mb", "L2", "MiB", "l2"),
    Knob("link_gbps", "Link", "GB/s", "link"),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A trace and the chip whose knobs are turned; `source` corrects as in a run."""

    predictor: TracePredictor
    work: WorkTable
    gpu: GpuSpec
    source: SourcePrediction | None


def sweep(subject: Subject, analytic: KernelSimulator) -> Report:
    """Per knob nine points with value, interval and bound shares; elasticity; the next bottleneck in a sentence."""
    gpu = subject.gpu
    grid = [(knob, _values(knob, gpu)) for knob in KNOBS]
    gpus = [gpu, *(_with(gpu, knob, value) for knob, values in grid for value in values)]
    answers = _answers(subject, analytic, gpus)
    base, rest = answers[0], answers[1:]
    knobs = []
    for knob, values in grid:
        points, rest = rest[: len(values)], rest[len(values) :]
        knobs.append(_knob_report(subject, analytic, knob, values, points, base))
    return {"metric": base.metric, "base": base.report(), "knobs": knobs}


def _knob_report(
    subject: Subject,
    analytic: KernelSimulator,
    knob: Knob,
    values: Sequence[float],
    points: Sequence[_Answer],
    base: _Answer,
) -> Report:
    stock = knob.stock(subject.gpu)
    report: Report = {"name": knob.name, "words": knob.words, "unit": knob.unit, "stock": stock}
    if not values:
        return report | {
            "points": [],
            "elasticity": None,
            "next": None,
            "sentence": f"this chip has no {knob.words.lower()} to turn",
        }
    shown = [
        {"factor": factor, "value": value} | answer.report()
        for factor, value, answer in zip(FACTORS, values, points, strict=True)
    ]
    times = [answer.value_ns for answer in points]
    has_effect = max(times) - min(times) > _NEGLIGIBLE * base.value_ns
    turn = _next_turn(subject, analytic, knob, values, points) if has_effect else None
    return report | {
        "points": shown,
        "elasticity": _elasticity(points, base),
        "next": turn,
        "sentence": _sentence(knob, turn, has_effect=has_effect),
    }


def _elasticity(points: Sequence[_Answer], base: _Answer) -> float:
    """Change of the metric for 10 % more of the knob, as a ratio: from the next point up, half an octave away."""
    up = points[FACTORS.index(1.0) + 1].value_ns / base.value_ns
    return float(up ** (np.log(1.1) / np.log(FACTORS[5])) - 1)


def _sentence(knob: Knob, turn: Report | None, *, has_effect: bool) -> str:
    if not has_effect:
        return f"no kernel here is limited by {knob.words if knob.words.isupper() else knob.words.lower()}"
    if turn is None:
        return "no bottleneck moves up to 4x"
    value, unit = turn["value"], knob.unit
    if unit == "GB/s" and value >= 1000:
        value, unit = value / 1000, "TB/s"
    amount = f"{value:.3g} {unit}".strip()
    return f"at {knob.words} ≥ {amount} {turn['family']} turns {_BOUND_WORDS[turn['bound']]}-bound"


_BOUND_WORDS = {
    "tensor": "tensor",
    "dram": "DRAM",
    "l2": "L2",
    "issue": "issue",
    "launch": "launch",
    "link": "link",
    "none": "un",
}


# --- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answer:
    metric: str  # tpot, ttft, kernel_time
    value_ns: float
    p10_ns: float
    p90_ns: float
    kernel_ns: float
    bound_by: dict[str, float]  # share of kernel time
    family_bound: dict[str, str]  # what each family waits for in most of its time
    family_share: dict[str, float]

    def report(self) -> Report:
        return {
            "value_ms": self.value_ns / 1e6,
            "p10_ms": self.p10_ns / 1e6,
            "p90_ms": self.p90_ns / 1e6,
            "kernel_time_ms": self.kernel_ns / 1e6,
            "bound_by": self.bound_by,
        }


def _answers(subject: Subject, analytic: KernelSimulator, gpus: Sequence[GpuSpec]) -> list[_Answer]:
    predictor = subject.predictor
    predictions = analytic.simulate(subject.work, gpus)
    family = subject.work.text("family")
    measured = predictor.measured(family)
    final, sigma = corrected_times(subject, predictions, gpus)
    durations = np.stack([filled(row, measured, family) for row in final])
    times = predictor.step_times(durations, sigma, family, measured)
    return [
        _answer(subject, predictions, index, final[index], sigma[index], predictor.request_times(times, index))
        for index in range(len(gpus))
    ]


def corrected_times(
    subject: Subject, predictions: Predictions, gpus: Sequence[GpuSpec]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Final durations and their sigma, shape (configs, tasks), as a run would correct them."""
    family = subject.work.text("family")
    nothing = np.full(subject.work.count, -1, dtype=np.int64)
    no_words = np.full(subject.work.count, "", dtype=object)
    rows = []
    for index, gpu in enumerate(gpus):
        # As results carry it: whole parts per million.
        sigma = np.rint(predictions.sigma[index].astype(np.float64) * 1e6) / 1e6
        results = ResultColumns(predictions.duration_ns[index], sigma, family, no_words, nothing)
        rows.append(subject.predictor.corrected(results, gpu, subject.source))
    return np.stack([final for final, _ in rows]), np.stack([sigma for _, sigma in rows])


def _answer(
    subject: Subject,
    predictions: Predictions,
    index: int,
    final_ns: NDArray[np.int64],
    sigma: NDArray[np.float64],
    request: tuple[Estimate | None, Estimate | None],
) -> _Answer:
    weight = np.maximum(final_ns, 0) * subject.predictor.launch_count
    whole = float(weight.sum()) or 1.0
    bound = predictions.bound[index]
    shares = np.bincount(bound, weights=weight, minlength=len(BOUNDS)) / whole
    family = subject.work.text("family")
    family_bound, family_share = {}, {}
    variance = 0.0
    for name in sorted(set(family)):
        members = family == name
        by_bound = np.bincount(bound[members], weights=weight[members], minlength=len(BOUNDS))
        family_bound[str(name)] = BOUNDS[int(by_bound.argmax())]
        family_share[str(name)] = float(by_bound.sum() / whole)
        variance += float((weight[members] * sigma[members]).sum()) ** 2
    first, per_token = request
    metric, estimate = ("tpot", per_token) if per_token else ("ttft", first) if first else ("kernel_time", None)
    spread = np.exp(compose.Z90 * np.sqrt(variance) / whole)
    return _Answer(
        metric=metric,
        value_ns=estimate.value_ns if estimate else whole,
        p10_ns=estimate.p10_ns if estimate else whole / spread,
        p90_ns=estimate.p90_ns if estimate else whole * spread,
        kernel_ns=whole,
        bound_by={name: float(share) for name, share in zip(BOUNDS, shares, strict=True) if share > 0},
        family_bound=family_bound,
        family_share=family_share,
    )


# --- the next bottleneck --------------------------------------------------------------------------------------------


def _next_turn(
    subject: Subject, analytic: KernelSimulator, knob: Knob, values: Sequence[float], points: Sequence[_Answer]
) -> Report | None:
    """The first family, of those that take time, that waits for something else once the knob is turned up."""
    at_stock = FACTORS.index(1.0)
    now = points[at_stock]
    for place in range(at_stock + 1, len(values)):
        turned = [
            name
            for name, bound in points[place].family_bound.items()
            if bound != now.family_bound[name] and now.family_share[name] >= _SHARE_WORTH_NAMING
        ]
        if turned:
            family = max(turned, key=lambda name: now.family_share[name])
            low, high, bound = values[place - 1], values[place], points[place].family_bound[family]
            members = np.flatnonzero(subject.work.text("family") == family)
            for _ in range(_BISECTIONS):
                middle = float(np.sqrt(low * high))
                found = _bound_of(subject, analytic, members, _with(subject.gpu, knob, middle))
                low, high, bound = (low, middle, found) if found != now.family_bound[family] else (middle, high, bound)
            return {"value": high, "family": family, "bound": bound, "was": now.family_bound[family]}
    return None


def _bound_of(subject: Subject, analytic: KernelSimulator, members: NDArray[np.intp], gpu: GpuSpec) -> str:
    part = Subject(subject.predictor, subject.work.take(members), gpu, subject.source)
    predictions = analytic.simulate(part.work, [gpu])
    weight = predictions.duration_ns[0] * subject.predictor.launch_count[members]
    return BOUNDS[int(np.bincount(predictions.bound[0], weights=weight, minlength=len(BOUNDS)).argmax())]


# --- knobs ----------------------------------------------------------------------------------------------------------


def _values(knob: Knob, gpu: GpuSpec) -> list[float]:
    """The nine values; none where the chip lacks what the knob turns."""
    stock = knob.stock(gpu)
    return [_rounded(knob, stock * factor) for factor in FACTORS] if stock > 0 else []


def _rounded(knob: Knob, value: float) -> float:
    return float(max(round(value), 1)) if knob.name == "sm" else value


def _with(gpu: GpuSpec, knob: Knob, value: float) -> GpuSpec:
    """The chip with the knob turned; a value beyond what an override may be stays at stock."""
    try:
        return resolve(gpu, {knob.name: _rounded(knob, value)})
    except InvalidConfig:
        return gpu
