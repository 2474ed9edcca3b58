"""What a GPU gets that was never measured: each GPU of the tables predicted as if it, or its whole class, were unknown.

Constants of the others alone: those of the nearest kin as `Constants.group` finds them, pools fitted anew without the
GPU. A table of another GPU is used where the product would use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cascade_schemas.gpu import load_gpu

from services.kernels.correction import relation
from services.simworker.calibration.constants import Constants, Group, MissingConstants, levels
from services.simworker.calibration.fit import fit_group, merged, residuals_of
from services.simworker.calibration.residual import residuals_with
from services.simworker.calibration.tables import Sample
from services.simworker.simulators.analytic.simulator import table_for
from services.simworker.simulators.base import Z90

# Forms and variants that the page shows; a GPU is left out with all packages of its die.
SHOWN = (
    ("gemm", "bf16"), ("gemm", "fp8"), ("gemm", "fp8_block"), ("decode", "kv16"), ("prefill", "kv16"), ("moe", "bf16"),
    ("moe", "fp8"), ("collective", "all_reduce"), ("rowwise", "quantise"),
)  # fmt: skip
GPUS = ("a100_sxm_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l40s")
_ROWS_MIN = 8


def unseen(constants: Constants, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One row per form, variant, GPU and how much is unknown: "GPU" (its relatives are measured) or "class"."""
    rows = []
    for form, variant in SHOWN:
        measured = merged(s for s in samples if (s.form, s.variant) == (form, variant) and s.resolution_us < 20)
        for sample in measured:
            if sample.gpu not in GPUS:
                continue
            for unknown in ("GPU", "class"):
                known = [s for s in measured if not _is_unknown(s.gpu, sample.gpu, unknown)]
                row = _row(constants, sample, measured, known)
                if row is not None:
                    rows.append({"form": form, "variant": variant, "gpu": sample.gpu, "unknown": unknown, **row})
    return rows


def _is_unknown(gpu: str, left_out: str, unknown: str) -> bool:
    one, other = load_gpu(gpu), load_gpu(left_out)
    if unknown == "class":
        return one.programming_class == other.programming_class
    # Of one die, only other packages with the same memory are the GPU itself: H200 is H100's relative.
    return gpu == left_out or (relation(one, other) == "same_die" and one.dram_bytes_per_s == other.dram_bytes_per_s)


def _row(
    constants: Constants, sample: Sample, measured: Sequence[Sample], known: Sequence[Sample]
) -> dict[str, Any] | None:
    if not known:
        return None
    without = constants_without(constants, sample, measured, known)
    gpu = load_gpu(sample.gpu)
    try:
        _, group = without.group(sample.form, sample.variant, gpu)
    except MissingConstants:
        return None
    table = table_for(without, sample.form, sample.variant, gpu, group)
    held = sample.take(sample.left_out | sample.scored)
    left, times, cold = residuals_with(without, sample.form, group.parameters, table, held)
    if sample.form == "rowwise":
        cold = held.measured_us >= 10
    form_alone = residuals_of(sample.form, without, group.parameters, held)[0]
    some = cold if cold.sum() >= _ROWS_MIN else np.ones(cold.size, dtype=bool)
    if some.sum() < _ROWS_MIN:
        return None
    sigma = np.array(group.sigmas)[np.searchsorted(np.array(constants.sigma_bins_us), times)]
    error = np.expm1(left[some])
    return {
        "by": group.level,
        "n": int(some.sum()),
        "form_alone": float(np.median(np.abs(np.expm1(form_alone[some])))),
        "median": float(np.median(np.abs(error))),
        "median_of_all": float(np.median(np.abs(np.expm1(left)))),
        "mean": float(np.mean(np.abs(error))),
        "p90": float(np.quantile(np.abs(error), 0.9)),
        "bias": float(np.median(error)),
        "covered": float(np.mean(np.abs(left[some]) <= Z90 * sigma[some])),
    }


def constants_without(
    constants: Constants, sample: Sample, measured: Sequence[Sample], known: Sequence[Sample]
) -> Constants:
    """The constants as if only `known` GPUs had been measured: only the groups that the GPU in question would use."""
    form, variant = sample.form, sample.variant
    all_groups = constants.forms[form][variant]
    names = {s.gpu for s in known}
    groups = {f"gpu:{name}": all_groups[f"gpu:{name}"] for name in names if f"gpu:{name}" in all_groups}
    gone = {s.gpu for s in measured} - names
    for level, group in all_groups.items():
        if level.startswith("gpu:"):
            continue
        members = {s.gpu for s in measured if level in levels(load_gpu(s.gpu), {})}
        left = [s for s in known if s.gpu in members and f"gpu:{s.gpu}" in groups]
        if not members & gone:
            groups[level] = group
        elif len(left) == 1:
            groups[level] = Group(level, groups[f"gpu:{left[0].gpu}"].parameters, group.sigmas)
        elif left and level in levels(load_gpu(sample.gpu), {}):
            fitted = fit_group(form, constants, left, [groups[f"gpu:{s.gpu}"].parameters for s in left])
            if fitted is not None:
                groups[level] = Group(level, fitted["parameters"], group.sigmas)
    # Other variants stand in for one that nobody measured: they must not know the GPU either.
    of_gone = {level for name in gone for level in levels(load_gpu(name), {})}
    others = {
        name: {level: group for level, group in one.items() if level not in of_gone}
        for name, one in constants.forms[form].items()
        if name != variant
    }
    return replace(
        constants,
        forms={**constants.forms, form: {**others, variant: groups}},
        residuals={key: table for key, table in constants.residuals.items() if key[2] not in gone},
    )
