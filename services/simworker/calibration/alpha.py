"""Measures how much of a source's residual a target inherits: `python -m services.simworker.calibration.alpha --data
FOLDER`.

On the rows that no constant was fitted to and no pair scores: for every two GPUs, the alpha that leaves the least
median error, pooled over pairs of GPUs of one relation (services/kernels/correction.py). Writes
services/kernels/correction.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import load_gpu
from numpy.typing import NDArray

from services.kernels.correction import relation
from services.kernels.work import Family, Floats, WorkTable
from services.simworker.calibration.constants import load_constants
from services.simworker.calibration.residual import residuals_with
from services.simworker.calibration.tables import Sample, read_samples
from services.simworker.simulators.analytic.shapes import OP_2024
from services.simworker.simulators.base import Z90

_TARGET = Path(__file__).parents[2] / "kernels" / "correction.json"
_CONSTANTS = Path(__file__).parent / "constants"
_RELATIONS = ("same_die", "same_capability", "same_class", "other_class")
_ROWS_MIN = 150
_REPEATABILITY = 0.03  # of one kernel measured twice (SIMULATION 3.6): tables repeat better than traces do
_NOTHING: dict[str, Any] = {"alpha": 0.0, "sigma_factor": 1.0, "rows": 0}
# NCCL chooses protocols per topology and version, and no table holds one version on two classes: nothing to measure.
_NOT_INHERITED = {"collective": ("same_class", "other_class")}
# Of the shapes that two GPUs share: residuals of the source and of the target, and which rows are cold.
_Shared = tuple[Floats, Floats, NDArray[np.bool_]]
# Row-wise kernels of today's engines: no table has them, one set of constants stands for all of them, and the same code
# runs on every GPU. What it misses on the source (strided access, several passes) it misses on the target. A guess.
_SAME_CODE = {"same_die": 0.95, "same_capability": 0.9, "same_class": 0.9, "other_class": 0.8}
_ALPHAS = np.round(np.arange(0, 1.0001, 0.05), 2)
# What a form's residuals say about which families.
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "gemm": (Family.GEMM, Family.SPLITK_REDUCE),
    "prefill": (Family.ATTENTION_PREFILL, Family.ATTENTION_MIXED),
    "decode": (Family.ATTENTION_DECODE, Family.ATTENTION_COMBINE),
    "mla": (Family.MLA,),
    "moe": (Family.MOE_GEMM,),
    "collective": (Family.COLLECTIVE,),
    "rowwise": (OP_2024,),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with silicon/calibration/*.parquet")
    parser.add_argument("--out", type=Path, default=_TARGET)
    options = parser.parse_args(arguments)
    samples = read_samples(options.data)
    table: dict[str, dict[str, dict[str, float]]] = {"alpha": {}, "sigma_factor": {}}
    for form, families in _FAMILIES.items():
        found = _of_form(form, [s for s in samples if s.form == form])
        for name in families:
            for what, by_family in table.items():
                by_family[str(name)] = {r: found[r][what] for r in _RELATIONS}
        for how in _RELATIONS:
            print(f"{form:10} {how:16} {found[how]}")
    table["alpha"]["*"] = _SAME_CODE
    table["sigma_factor"]["*"] = dict.fromkeys(_RELATIONS, 1.0)
    table["alpha"][str(Family.UNKNOWN)] = dict.fromkeys(_RELATIONS, 1.0)
    table["sigma_factor"][str(Family.UNKNOWN)] = dict.fromkeys(_RELATIONS, 1.0)
    stored = {
        "provenance": {
            "script": "python -m services.simworker.calibration.alpha",
            "measured_on": datetime.now(tz=UTC).date().isoformat(),
            "data": "left-out rows of silicon/calibration that two GPUs share, without those of pairs_dev.parquet",
            "chosen": (
                "alpha: least median of |ln(measured ÷ corrected)| over all pairs of GPUs of a relation; sigma_factor: "
                "its 80th percentile over that without correction. Where no two GPUs of a relation share rows, a "
                "guess: the next looser relation's. *: row-wise kernels, a guess (the script says why). unknown: such "
                "a kernel is known by its measurement alone"
            ),
        },
        **table,
    }
    options.out.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def _of_form(form: str, samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    constants = load_constants(_CONSTANTS)
    held: dict[tuple[str, str], tuple[dict[tuple[float, ...], int], Floats, NDArray[np.bool_]]] = {}
    for sample in samples:
        rows = sample.take(sample.left_out & ~sample.scored)
        if rows.measured_us.size < 10 or rows.resolution_us >= 20:
            continue
        _, group = constants.group(form, sample.variant, load_gpu(sample.gpu))
        if group.level != f"gpu:{sample.gpu}":
            continue
        table = constants.residuals.get((form, sample.variant, sample.gpu))
        residuals, _, cold = residuals_with(constants, form, group.parameters, table, rows)
        held[sample.gpu, sample.variant] = {key: i for i, key in enumerate(_keys(rows.work))}, -residuals, cold
    pooled: dict[str, list[_Shared]] = {how: [] for how in _RELATIONS}
    for (source, variant), (source_rows, source_residuals, _) in held.items():
        for (target, other), (target_rows, target_residuals, target_cold) in held.items():
            if source == target or variant != other:
                continue
            shared = [key for key in source_rows if key in target_rows]
            if len(shared) >= 10:
                on_target = [target_rows[key] for key in shared]
                on_source = [source_rows[key] for key in shared]
                both = source_residuals[on_source], target_residuals[on_target], target_cold[on_target]
                pooled[relation(load_gpu(source), load_gpu(target))].append(both)
    found: dict[str, dict[str, Any]] = {}
    looser: dict[str, Any] = _NOTHING
    for how in reversed(_RELATIONS):
        found[how] = looser = _best(pooled[how]) or {**looser, "rows": 0}
        if how in _NOT_INHERITED.get(form, ()):
            found[how] = looser = _NOTHING
    return found


def _best(pairs: Sequence[_Shared]) -> dict[str, Any] | None:
    """None where fewer rows are shared than tell: a dozen lucky shapes once said 0.75."""
    if sum(len(pair[0]) for pair in pairs) < _ROWS_MIN:
        return None
    source, target = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    cold = np.concatenate([pair[2] for pair in pairs])
    inherited = np.clip(source, -np.log(2), np.log(2))
    medians = [float(np.median(np.abs(target - a * inherited))) for a in _ALPHAS]
    best = float(_ALPHAS[int(np.argmin(medians))])
    left = []
    for rows in (cold, ~cold):  # what is left of sigma is promised to serving and to hot kernels alike
        if rows.sum() >= 12:
            after, before = (np.quantile(np.abs(target - a * inherited)[rows], 0.8) for a in (best, 0.0))
            left.append(float(np.hypot(after, Z90 * _REPEATABILITY) / before))
    return {"alpha": best, "sigma_factor": round(min(max(left), 1.0), 2), "rows": len(target)}


def _keys(work: WorkTable) -> list[tuple[float, ...]]:
    names = (
        "m", "n", "k", "w_bits", "experts", "experts_hit", "topk", "sequences", "q_tokens", "kv_tokens", "heads",
        "kv_heads", "head_dim", "window", "kv_bits", "ranks", "message_bytes", "rows", "read_bytes",
    )  # fmt: skip
    return list(zip(*(work[name].tolist() for name in names), strict=True))


if __name__ == "__main__":
    sys.exit(main())
