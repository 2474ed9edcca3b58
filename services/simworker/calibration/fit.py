"""Refits every constant from measured tables: `python -m services.simworker.calibration.fit --data FOLDER`.

FOLDER holds silicon/calibration/*.parquet. Robust least squares of ln(predicted ÷ measured), per GPU, per compute
capability and per programming class. Rows that a score looks at are dropped first (tables.py), so that the scores mean
something.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from cascade_schemas.gpu import load_gpu
from numpy.typing import NDArray

from services.kernels.work import Floats
from services.simworker.calibration.constants import FORMS, Constants, Group, levels, load_constants
from services.simworker.calibration.tables import Companion, Sample, read_samples
from services.simworker.simulators.analytic.collective import PROTOCOLS
from services.simworker.simulators.analytic.residual import SIGMA_MIN
from services.simworker.simulators.analytic.simulator import form_us_as_sold
from services.simworker.simulators.base import Z90

_FOLDER = Path(__file__).parent / "constants"
_ROWS_PER_FIT = {"gemm": 1_000, "moe": 500}  # others 1_200: more rows moved no constant by more than the noise
_STEPS, _STEPS_OF_A_POOL = 30, 8  # of the solver; a pool starts where its members ended
_SEED = 7


_KV_WRITE = "kv_write"


@dataclass(frozen=True, slots=True)
class Range:
    start: float
    low: float
    high: float


RANGES: Mapping[str, Mapping[str, Range]] = {
    "gemm": {
        "floor": Range(2.7, 0.3, 8),
        "eff": Range(0.9, 0.2, 1.6),
        "k0": Range(150, 1, 2000),
        "step": Range(0.0015, 1e-5, 0.02),
        "out": Range(5, 0.01, 60),
        "quantised": Range(0.3, 1e-3, 1),
        "l2bw": Range(0.6, 0.05, 3),
        "l2": Range(0.35, 0.1, 2),
        "dram": Range(0.88, 0.3, 1.05),
        "sat": Range(6.5, 1.8, 40),
        "split": Range(2.3, 0.05, 10),
        "split_l2": Range(0.7, 0.02, 6),
        "restream": Range(0.3, 0.05, 2),
        "overlap": Range(0.16, 1e-3, 1),
    },
    "decode": {
        "floor": Range(8, 0.5, 25),
        "unit": Range(0.5, 1e-3, 6),
        "unit_wave": Range(0.5, 1e-3, 6),
        "quantised": Range(0.4, 1e-3, 1),
        "k0": Range(80, 1, 1000),
        "step": Range(0.002, 1e-5, 0.05),
        "rows": Range(4, 0.1, 40),
        "wide": Range(0.1, 1e-3, 4),
        "l2bw": Range(0.4, 0.02, 3),
        "l2": Range(0.4, 0.1, 2),
        "dram": Range(0.9, 0.3, 1.05),
        "sat": Range(6, 1.8, 40),
        "merge": Range(2, 0.01, 15),
        "merge_l2": Range(0.5, 0.01, 10),
        "overlap": Range(0.1, 1e-3, 1),
    },
    "prefill": {
        "floor": Range(8, 0.5, 25),
        "tensor": Range(0.7, 0.05, 1.5),
        "exp": Range(0.8, 0.05, 3),
        "padding": Range(0.5, 0.01, 4),
        "k0": Range(60, 1, 2000),
        "tail": Range(0.3, 1e-3, 1),
        "packed": Range(0.5, 1e-3, 1),
        "wide": Range(0.1, 1e-3, 4),
        "l2bw": Range(0.6, 0.02, 3),
        "l2": Range(0.4, 0.05, 2),
        "dram": Range(0.8, 0.2, 1.05),
        "rowcost": Range(0.5, 1e-3, 10),
        "overlap": Range(0.3, 1e-3, 1),
        "mix": Range(0.4, 1e-3, 1),
        "beside": Range(1, 0.5, 12),
        "fp8": Range(1, 0.2, 3),
    },
    "rowwise": {
        "floor": Range(2, 0.3, 40),
        "dram": Range(0.85, 0.02, 0.97),
        "l2": Range(0.5, 0.05, 2),
        "l2bw": Range(0.3, 0.005, 3),
        "row": Range(0.01, 1e-5, 5),
        "passes": Range(1, 1, 1),
        "overlap": Range(0.2, 1e-3, 1),
    },
    "collective": {
        **{f"fixed_{p}": Range(s, 0.3, 80) for p, s in zip(PROTOCOLS, (5, 9, 15), strict=True)},
        **{f"rank_{p}": Range(3, 1e-2, 60) for p in PROTOCOLS},
        **{f"rate_{p}": Range(s, 0.005, 2) for p, s in zip(PROTOCOLS, (0.1, 0.4, 0.75), strict=True)},
        **{f"share_{p}": Range(s, 1e-4, 20) for p, s in zip(PROTOCOLS, (0.3, 0.05, 0.01), strict=True)},
    },
}
# MLA's FP8 kernels of Hopper convert keys at a pace that no rate of the chip limits: a second start finds that valley.
_MLA_STEP = Range(0.02, 1e-5, 0.2)
FORM_RANGES = {
    **RANGES,
    "mla": {**RANGES["decode"], "step": _MLA_STEP, "rows": Range(1.5, 0.01, 40)},
    "moe": RANGES["gemm"],
}
_OTHER_STARTS: Mapping[str, Mapping[str, float]] = {"mla": {"step": 0.002}}

_SERVING_MIN, _BIN_MIN, _SPREAD_MIN = 20, 15, 8  # rows that say anything about others

# Eager rows contain ~25 µs of launching, which a trace shows as a gap and not as the kernel: their floor is not a
# kernel's. A guess between the graph-timed floors of quantising (1.3 to 1.8 µs) and of GEMMs (1.9 to 3.4); it hurts
# below 10 µs.
_EAGER_RESOLUTION_US = 20.0
_FLOOR_US = {"rowwise": 2.0, "gemm": 3.0}
_ROW_US = 0.08  # quantising takes 0.08 to 0.09 per row and SM on each of four GPUs; the ops of 2024 are no guide
# Per bin of predicted time, where the kernel in question is not the one that was measured. A guess.
_UNMEASURED_SIGMAS = (0.3, 0.25, 0.15, 0.12)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with silicon/calibration/*.parquet")
    parser.add_argument("--out", type=Path, default=_FOLDER, help="where the constants are written")
    parser.add_argument(
        "--only", nargs="*", choices=FORMS, default=list(FORMS), help="forms to refit; the rest is kept"
    )
    options = parser.parse_args(arguments)
    samples = read_samples(options.data)
    # Companions must be known before the calls that include them.
    for form in ("rowwise", "prefill", "decode", "mla", "collective", "moe", "gemm"):
        if form in options.only:
            began = time.monotonic()
            before = _read_form(options.out, form)
            stored = fit_form(form, [s for s in samples if s.form == form], options.out)
            if form == "rowwise":
                stored.update({v: g for v, g in before.items() if v == _KV_WRITE})
            _write_form(options.out, form, stored)
            if form == "prefill":
                rowwise = _read_form(options.out, "rowwise")
                _write_form(options.out, "rowwise", {**rowwise, _KV_WRITE: _kv_writes(rowwise["stream"], stored)})
            print(f"{form}: {time.monotonic() - began:.0f} s", file=sys.stderr)
            _print_before_and_after(form, before, stored)
    # What is left of the forms that were refitted is learned anew: it is over these constants that it holds.
    from services.simworker.calibration import residual  # noqa: PLC0415 - it reads this module

    return residual.main(["--data", str(options.data), "--out", str(options.out), "--only", *options.only])


def fit_form(form: str, samples: Sequence[Sample], folder: Path) -> dict[str, dict[str, Any]]:
    """Variant -> level -> parameters, sigmas and what they were fitted to."""
    constants = _partial_constants(folder)
    variants = sorted({s.variant for s in samples})
    stored: dict[str, dict[str, Any]] = {}
    for variant in variants:
        of_variant = merged(s for s in samples if s.variant == variant)
        groups: dict[str, Any] = {}
        for sample in of_variant:
            print(f"  {form} {variant} {sample.gpu}", file=sys.stderr, flush=True)
            groups[f"gpu:{sample.gpu}"] = fit_group(form, constants, [sample])
        for level in sorted({v for s in of_variant for v in levels(load_gpu(s.gpu), {})[1:]}):
            members = [s for s in of_variant if level in levels(load_gpu(s.gpu), {})]
            groups[level] = _fit_pool(form, constants, members, groups)
        stored[variant] = {name: group for name, group in groups.items() if group is not None}
    if form == "rowwise":
        _add_streams(stored)
    return {variant: groups for variant, groups in stored.items() if groups}


def predicted_us(form: str, constants: Constants, parameters: Mapping[str, float], sample: Sample) -> Floats:
    """The whole measured call: the kernel by these constants, its companions by theirs (their own form: by these
    too).
    """
    total: Floats = form_us_as_sold(constants, form, parameters, sample.gpu, sample.work)
    for companion in sample.companions:
        if companion.form == form:
            total = total + form_us_as_sold(constants, form, parameters, sample.gpu, companion.work)
    return total


def companions_us(form: str, constants: Constants, sample: Sample) -> Floats:
    total = np.zeros(sample.measured_us.shape)
    for companion in sample.companions:
        if companion.form != form:
            total = total + companion_us(constants, companion, sample.gpu)
    return total


def _beside(companions: Floats, parameters: Mapping[str, float]) -> Floats:
    """Storing keys and values is measured only inside attention's calls: `beside` is how often its bytes pass."""
    least = companions.min() if companions.size else 0.0
    beside: Floats = least + (companions - least) * parameters.get("beside", 1.0)
    return beside


def companion_us(constants: Constants, companion: Companion, gpu: str) -> Floats:
    """A kernel beside the one in question, by the constants stored for it."""
    _, group = constants.group(companion.form, companion.variant, load_gpu(gpu))
    return form_us_as_sold(constants, companion.form, group.parameters, gpu, companion.work)


def fit_group(
    form: str, constants: Constants, samples: Sequence[Sample], own: Sequence[Mapping[str, float]] = ()
) -> dict[str, Any] | None:
    """`own`: constants of the members of a pool, by themselves."""
    usable = [s for s in samples if s.fitted.sum() >= 15]
    if not usable:
        return None
    chosen = [_chosen(s.take(s.fitted), _ROWS_PER_FIT.get(form, 1_200) // len(usable)) for s in usable]
    best: tuple[float, dict[str, float]] | None = None
    starts: list[Mapping[str, float]] = [{}]
    if form in _OTHER_STARTS and not own:
        starts.append(_OTHER_STARTS[form])
    for fixed in _choices(form, own):
        for begun in starts:
            cost, parameters = _least_squares(form, constants, chosen, fixed, own, begun)
            if best is None or cost < best[0]:
                best = cost, parameters
    assert best is not None
    parameters = best[1]
    held = [s.take(s.left_out & ~s.scored) for s in samples]
    residuals = [residuals_of(form, constants, parameters, s) for s in held]
    sigmas = sigmas_of(constants, residuals)
    if all(s.resolution_us >= _EAGER_RESOLUTION_US for s in usable):
        parameters = {**parameters, "floor": _FLOOR_US[form]}
        sigmas = [max(sigma, least) for sigma, least in zip(sigmas, _UNMEASURED_SIGMAS, strict=True)]
    return {
        "parameters": {name: float(f"{value:.4g}") for name, value in parameters.items()},
        "sigmas": sigmas,
        "fitted_to": [s.gpu for s in usable],
        "rows_fitted": int(sum(s.measured_us.size for s in chosen)),
        "rows_available": int(sum(s.fitted.sum() for s in usable)),
        "rows_dropped_left_out": int(sum(s.left_out.sum() for s in samples)),
        "rows_dropped_scored": int(sum((s.scored & ~s.left_out).sum() for s in samples)),
        **_score(residuals, held),
    }


def _choices(form: str, own: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Constants that are one thing or another, each tried: a pool tries what its members chose."""
    options = {
        "decode": ("grouped", (0.0, 1.0)), "mla": ("grouped", (0.0,)), "prefill": ("tile", (64.0, 128.0, 192.0, 256.0)),
    }  # fmt: skip
    if form not in options:
        return [{}]
    name, values = options[form]
    return [{name: value} for value in (sorted({o[name] for o in own}) if own else values)]


def _fit_pool(
    form: str, constants: Constants, members: Sequence[Sample], own: Mapping[str, Any]
) -> dict[str, Any] | None:
    fitted = [s for s in members if own.get(f"gpu:{s.gpu}")]
    in_graphs = [s for s in fitted if s.resolution_us < _EAGER_RESOLUTION_US]
    fitted = in_graphs or fitted  # eager rows and rows of kernels alone have nothing in common but the bandwidth
    if not fitted:
        return None
    unseen: list[tuple[Floats, Floats, NDArray[np.bool_]]] = []
    if len(fitted) == 1:
        group = dict(own[f"gpu:{fitted[0].gpu}"])
        # No second GPU tells how far these constants carry: half again as wide, and never narrower than 0.15.
        group["sigmas"] = [round(max(1.5 * s, 0.15), 3) for s in group["sigmas"]]
        group["sigmas_from"] = "assumed: no second GPU of this kind was measured"
        return group
    parameters = {s.gpu: own[f"gpu:{s.gpu}"]["parameters"] for s in fitted}
    pooled = fit_group(form, constants, fitted, list(parameters.values()))
    assert pooled is not None
    for left in fitted:  # what an unseen GPU of this kind may expect
        others = [s for s in fitted if s.gpu != left.gpu]
        without = fit_group(form, constants, others, [parameters[s.gpu] for s in others])
        if without is not None:
            unseen.append(residuals_of(form, constants, without["parameters"], left.take(left.left_out & ~left.scored)))
    pooled["sigmas"] = sigmas_of(constants, unseen)
    pooled["sigmas_from"] = "each GPU predicted by the others"
    return pooled


def _least_squares(
    form: str,
    constants: Constants,
    samples: Sequence[Sample],
    fixed: Mapping[str, float],
    own: Sequence[Mapping[str, float]] = (),
    begun: Mapping[str, float] = MappingProxyType({}),
) -> tuple[float, dict[str, float]]:
    from scipy.optimize import least_squares  # noqa: PLC0415 - calibration only: the product runs without scipy

    ranges = FORM_RANGES[form]
    free = [n for n, r in ranges.items() if r.low < r.high]
    settled = {**{n: r.start for n, r in ranges.items() if r.low == r.high}, **fixed}
    low, high = (np.log([getattr(ranges[n], side) for n in free]) for side in ("low", "high"))
    if "l2bw" in free:
        low[free.index("l2bw")] = math.log(_least_l2_share(form, samples))
    first = {
        n: np.mean([math.log(o[n]) for o in own]) if own else math.log(begun.get(n, ranges[n].start)) for n in free
    }
    start = np.clip([first[n] for n in free], low + 1e-6, high - 1e-6)
    extra = [companions_us(form, constants, s) for s in samples]
    weights = [_weights(s) for s in samples]

    def residuals(z: Floats) -> Floats:
        parameters = {**settled, **dict(zip(free, np.exp(z), strict=True))}
        parts = [
            w * (np.log(predicted_us(form, constants, parameters, s) + _beside(e, parameters)) - np.log(s.measured_us))
            for s, e, w in zip(samples, extra, weights, strict=True)
        ]
        # A weak pull towards the start: a constant that no row depends on stays where physics would put it.
        prior = (z - start) * 0.03 * math.sqrt(sum(map(len, parts))) / 10
        return np.concatenate([*parts, 0.2 * prior])

    solved = least_squares(
        residuals,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.05,
        diff_step=3e-3,
        max_nfev=_STEPS_OF_A_POOL if own else _STEPS,
    )
    values = dict(zip(free, np.exp(solved.x), strict=True))
    return float(solved.cost), {name: float({**settled, **values}[name]) for name in (*free, *settled)}


def _least_l2_share(form: str, samples: Sequence[Sample]) -> float:
    """Kernels at the bandwidth of DRAM fit as well with an L2 just as slow, but then faster DRAM would not help them.

    Microbenchmarks (public ones of V100, T4, A100, H100) find L2 at a fifth to a half of 64 B per clock and SM, and
    well above DRAM everywhere.
    """
    gpus = [load_gpu(s.gpu) for s in samples]
    above_dram = max(1.3 * gpu.dram_bytes_per_s / gpu.l2_bytes_per_s for gpu in gpus)
    # GEMMs read one operand many times and MLA's heads share one cache: there the share is of a smaller traffic.
    return max(above_dram, 0.05 if form in {"gemm", "moe", "mla"} else 0.2)


def _weights(sample: Sample) -> Floats:
    """Cold rows count as much as hot ones together, since serving is cold; rounded ones by what is left of them."""
    rounding = 0.29 * sample.resolution_us / sample.measured_us  # standard deviation of rounding to one resolution
    trust = 1 / np.sqrt(1 + (rounding / 0.05) ** 2)
    cold_count = max(int(sample.cold.sum()), 1)
    boost = np.clip(2 * (~sample.cold).sum() / cold_count, 1, 6) ** 0.5
    return trust * np.where(sample.cold, boost, 1.0)


def _chosen(sample: Sample, count: int) -> Sample:
    random = np.random.default_rng(_SEED)
    size = sample.measured_us.size
    if size <= count:
        return sample
    return sample.take(np.sort(random.choice(size, count, replace=False)))


def residuals_of(
    form: str, constants: Constants, parameters: Mapping[str, float], sample: Sample
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    if sample.measured_us.size == 0:
        return np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool)
    companions = _beside(companions_us(form, constants, sample), parameters)
    predicted = predicted_us(form, constants, parameters, sample) + companions
    return np.log(predicted / sample.measured_us), predicted, sample.cold


def sigmas_of(constants: Constants, residuals: Sequence[tuple[Floats, Floats, NDArray[np.bool_]]]) -> list[float]:
    """Per bin of predicted time, so that four of five left-out rows lie between p10 and p90: serving rows count as much
    as all rows together, where there are enough of them.
    """
    r, t, cold = (np.concatenate([part[i] for part in residuals]) if residuals else np.zeros(0) for i in range(3))
    edges = [0.0, *constants.sigma_bins_us, math.inf]
    overall = _spread(r, np.ones(r.size), 0.3)
    found = []
    for low, high in pairwise(edges):
        inside = (t >= low) & (t < high)
        serving = cold[inside].astype(bool)
        weights = np.ones(serving.size)
        if serving.sum() >= _SERVING_MIN:
            weights += serving * serving.size / serving.sum()
        sigma = overall if serving.size < _BIN_MIN else _spread(r[inside], weights, overall)
        found.append(round(sigma, 3))
    return found


def _spread(residuals: Floats, weights: Floats, otherwise: float) -> float:
    """Of four fifths of the weight. Few rows say little of the others: half a standard error on top."""
    if residuals.size < _SPREAD_MIN:
        return otherwise
    share = min(0.8 + 0.2 / math.sqrt(residuals.size), 1.0)
    sizes, order = np.abs(residuals), np.argsort(np.abs(residuals))
    reached = np.cumsum(weights[order])
    at = min(int(np.searchsorted(reached, share * reached[-1])), order.size - 1)
    return max(float(sizes[order[at]]) / Z90, SIGMA_MIN)


def _score(residuals: Sequence[tuple[Floats, Floats, NDArray[np.bool_]]], held: Sequence[Sample]) -> dict[str, Any]:
    r = np.concatenate([part[0] for part in residuals]) if residuals else np.zeros(0)
    cold = np.concatenate([s.cold for s in held]) if held else np.zeros(0, dtype=bool)
    score: dict[str, Any] = {"rows_scored": int(r.size), "rows_scored_cold": int(cold.sum())}
    for name, some in (("median_ape", r), ("median_ape_cold", r[cold])):
        score[name] = round(float(np.median(np.abs(np.expm1(some)))), 4) if some.size else None
    return score


def merged(samples: Iterable[Sample]) -> list[Sample]:
    """One sample per GPU: tables that tell of the same kernels in several ops are one."""
    by_gpu: dict[str, list[Sample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.gpu, []).append(sample)
    return [_joined(parts) for parts in by_gpu.values()]


def _joined(parts: Sequence[Sample]) -> Sample:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    assert not first.companions
    numbers = {n: np.concatenate([p.work[n] for p in parts]) for n in first.work._numbers}  # noqa: SLF001 - the table's own columns
    texts = {n: np.concatenate([p.work.text(n) for p in parts]) for n in first.work._texts}  # noqa: SLF001
    return Sample(
        first.form, first.variant, first.gpu, type(first.work)(numbers, texts),
        np.concatenate([p.measured_us for p in parts]), max(p.resolution_us for p in parts),
        np.concatenate([p.cold for p in parts]), np.concatenate([p.left_out for p in parts]),
        np.concatenate([p.scored for p in parts]), (), first.op,
        {name: np.concatenate([p.columns[name] for p in parts]) for name in first.columns},
    )  # fmt: skip


def _add_streams(stored: dict[str, dict[str, Any]]) -> None:
    """Variant "stream": any kernel that passes over its bytes once; the best measured kind of a GPU stands for it."""
    streams: dict[str, Any] = {}
    for variant in ("quantise", "elementwise:op_2024", "elementwise:eager"):
        for level, group in stored.get(variant, {}).items():
            if level in streams:
                continue
            own = {**group, "parameters": dict(group["parameters"]), "stands_for": f"{variant} of the same GPUs"}
            own["sigmas"] = [max(s, least) for s, least in zip(group["sigmas"], _UNMEASURED_SIGMAS, strict=True)]
            if variant != "quantise":  # rounded times do not tell the floor of a kernel in a graph
                own["parameters"] |= {"floor": _FLOOR_US["rowwise"], "row": _ROW_US}
            streams[level] = own
    stored["stream"] = streams


def _kv_writes(streams: Mapping[str, Any], prefill: Mapping[str, Any]) -> dict[str, Any]:
    """Storing keys and values, as attention's calls tell it: a stream whose bytes pass `beside` times."""
    found: dict[str, Any] = {}
    for variant in ("kv16", "kv8"):
        for level, group in prefill.get(variant, {}).items():
            if level in streams and level not in found:
                parameters = {**streams[level]["parameters"], "passes": group["parameters"]["beside"]}
                found[level] = {
                    **streams[level],
                    "parameters": parameters,
                    "stands_for": "the rest of attention's calls",
                }
    return found


def _partial_constants(folder: Path) -> Constants:
    """The constants as stored so far: forms that are still to be fitted are empty."""
    rules = json.loads((folder / "rules.json").read_text(encoding="utf-8"))
    try:
        return load_constants(folder)
    except FileNotFoundError:
        done: dict[str, dict[str, dict[str, Group]]] = {}
        for name in FORMS:
            done[name] = {
                variant: {
                    level: Group(level, group["parameters"], tuple(group["sigmas"])) for level, group in groups.items()
                }
                for variant, groups in _read_form(folder, name).items()
            }
        candidates = {name: tuple(tuple(c) for c in v["value"]) for name, v in rules["candidates"].items()}
        return Constants(done, candidates, rules, "")


def _read_form(folder: Path, form: str) -> dict[str, dict[str, Any]]:
    path = folder / f"{form}.json"
    groups: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["groups"] if path.exists() else {}
    return groups


def _write_form(folder: Path, form: str, stored: dict[str, dict[str, Any]]) -> None:
    document = {
        "form": form,
        "provenance": {
            "data": "silicon/calibration: AIConfigurator (Apache-2.0), Vidur, NeuSight, LLMServingSim (MIT)",
            "script": "python -m services.simworker.calibration.fit",
            "fitted_on": datetime.now(tz=UTC).date().isoformat(),
            "dropped": (
                "each row whose shape hashes (SHA-256 of its canonical JSON, first byte) to 0 modulo 5 or occurs in "
                "pairs_dev.parquet; collectives: each row of an NCCL version that pairs_dev.parquet scores"
            ),
            "units": "microseconds; shares of datasheet rates without unit; the form's module explains the words",
        },
        "groups": stored,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (folder / f"{form}.json").write_text(text + "\n", encoding="utf-8")


def _print_before_and_after(form: str, before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> None:
    print(f"{'form':10} {'variant':24} {'level':22} {'fitted':>7} {'scored':>7} {'before':>8} {'after':>8} {'cold':>8}")
    for variant, groups in after.items():
        for level, group in groups.items():
            old = before.get(variant, {}).get(level, {}).get("median_ape")
            now, cold = group["median_ape"], group["median_ape_cold"]
            print(
                f"{form:10} {variant:24} {level:22} {group['rows_fitted']:7d} {group['rows_scored']:7d} "
                f"{_percent(old)} {_percent(now)} {_percent(cold)} {group['sigmas']}"
            )


def _percent(ratio: float | None) -> str:
    return f"{100 * ratio:7.2f}%" if ratio is not None else "       -"


if __name__ == "__main__":
    sys.exit(main())
