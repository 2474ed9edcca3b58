"""Fits one GPU to a short sweep of it: `cascade calibrate --measure`.

Thirty points cannot tell fourteen constants, so these start at those of the nearest kin and are pulled back to them.
They are cross-validated, and kept only where they do better on points that they have not seen than what stood in
before. Tried on measured tables, with each GPU unknown: GEMM medians from 20.8 to 5.2 % (A100), 15.6 to 6.1 (L40S), 6.6
to 4.8 (B200); kriging what is left over shapes gained nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import GpuSpec, UnknownGpu, load_gpu, match_device

from services.kernels.work import Floats
from services.simworker.calibration.constants import Constants
from services.simworker.calibration.fit import FORM_RANGES, residuals_of, sigmas_of
from services.simworker.calibration.measured import CalibrationFile, Fitted, NothingLearned, written
from services.simworker.calibration.residual import residuals_with
from services.simworker.calibration.sweep import Clock, Timed, measure, samples_of
from services.simworker.calibration.tables import Sample
from services.simworker.simulators.analytic.simulator import table_for

_POINTS_MIN = 5
_FOLDS = 5
_PULL = 0.3  # on squared ln of a constant, beside squared ln errors of points (SIMULATION 3.7)
_SEED = 7


def measure_here(
    clock: Clock, gpu_name: str | None, constants: Constants, folder: Path, today: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Times the sweep, fits it and writes the GPU's file into `folder`; the report says what was gained.

    Raises NoGpu, UnknownGpu, and NothingLearned where no constant does better than before: then nothing is written.
    """
    gpu = load_gpu(gpu_name) if gpu_name else match_device(clock.device_name, clock.sm_count)
    if gpu is None:
        raise UnknownGpu(
            f"{clock.device_name!r} is not a known GPU: say which it is by --gpu, as `cascade gpus` lists them"
        )
    say("measuring is not validated on hardware: look at the errors that it reports")
    timed = measure(clock, say)
    file = calibration(gpu, timed, constants, today)
    if not file.groups:
        raise NothingLearned(f"{len(timed)} points teach nothing that is not known of {gpu.gpu}: nothing was written")
    path = written(file, folder)
    forms = [
        {
            "form": form,
            "variant": variant,
            "points": fitted.points,
            "median_ape_before": fitted.median_ape_before,
            "median_ape": fitted.median_ape,
        }
        for form, variants in file.groups.items()
        for variant, fitted in variants.items()
    ]
    return {"gpu": gpu.gpu, "file": str(path), "forms": forms}


def calibration(gpu: GpuSpec, timed: Sequence[Timed], constants: Constants, today: str) -> CalibrationFile:
    """What the sweep says of this GPU, beside what stood in for it before."""
    groups: dict[str, dict[str, Fitted]] = {}
    for sample in samples_of(gpu.gpu, gpu.l2_bytes, timed):
        fitted = fit_sample(sample, constants)
        if fitted is not None:
            groups.setdefault(sample.form, {})[sample.variant] = fitted
    rows = [{"op": t.point.op, **t.point.sizes, "median_us": round(t.median_us, 3)} for t in timed]
    return CalibrationFile(gpu=gpu.gpu, measured_on=today, rows=rows, groups=groups)


def fit_sample(sample: Sample, constants: Constants) -> Fitted | None:
    """None where there are too few points, or what they teach does not help on points left out."""
    count = sample.measured_us.size
    if count < _POINTS_MIN:
        return None
    gpu = load_gpu(sample.gpu)
    _, kin = constants.group(sample.form, sample.variant, gpu)
    table = table_for(constants, sample.form, sample.variant, gpu, kin)
    before = residuals_with(constants, sample.form, kin.parameters, table, sample)[0]
    fold = np.random.default_rng(_SEED).permutation(count) % _FOLDS
    after, times = np.zeros(count), np.zeros(count)
    for part in range(_FOLDS):
        here = fold == part
        parameters = _refitted(sample.take(~here), constants, kin.parameters)
        after[here], times[here], _ = residuals_of(sample.form, constants, parameters, sample.take(here))
    was, now = (float(np.median(np.abs(np.expm1(r)))) for r in (before, after))
    if now >= was:
        return None
    parameters = _refitted(sample, constants, kin.parameters)
    sigmas = sigmas_of(constants, [(after, times, np.ones(count, dtype=np.bool_))])
    # A few points may lie well by luck: never surer than half of what the kin's constants were.
    sigmas = [round(max(s, k / 2), 3) for s, k in zip(sigmas, kin.sigmas, strict=True)]
    return Fitted(
        parameters={name: float(f"{value:.4g}") for name, value in parameters.items()},
        sigmas=sigmas,
        points=count,
        median_ape_before=round(was, 4),
        median_ape=round(now, 4),
    )


def _refitted(sample: Sample, constants: Constants, kin: Mapping[str, float]) -> dict[str, float]:
    from scipy.optimize import least_squares  # noqa: PLC0415 - calibration only: the product runs without scipy

    ranges = FORM_RANGES[sample.form]
    free = [name for name, r in ranges.items() if r.low < r.high and kin[name] > 0]
    low, high = (np.log([getattr(ranges[name], side) for name in free]) for side in ("low", "high"))
    start = np.clip(np.log([kin[name] for name in free]), low + 1e-6, high - 1e-6)

    def errors(z: Floats) -> Floats:
        parameters = {**kin, **dict(zip(free, np.exp(z), strict=True))}
        points = residuals_of(sample.form, constants, parameters, sample)[0]
        return np.concatenate([points, np.sqrt(_PULL / len(free)) * (z - start)])

    solved = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, diff_step=3e-3, max_nfev=30)
    return {**kin, **{name: float(v) for name, v in zip(free, np.exp(solved.x), strict=True)}}
