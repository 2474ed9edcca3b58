"""How much of a source's residual a target inherits: measured by residual.py on what its tables leave.

On the fitted rows, each predicted by what did not see it, never on one that a score looks at: for every two GPUs, the
alpha that leaves the least median error, pooled over pairs of GPUs of one relation (services/kernels/correction.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import load_gpu
from numpy.typing import NDArray

from services.kernels.correction import relation
from services.kernels.work import Family, Floats
from services.simworker.calibration.spread import LeftOut
from services.simworker.simulators.analytic.shapes import OP_2024
from services.simworker.simulators.base import Z90

SHIPPED = Path(__file__).parents[2] / "kernels" / "correction.json"
"""Where the product reads it."""

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


def write_correction(path: Path, left_out: Mapping[tuple[str, str, str], LeftOut], forms: Iterable[str]) -> None:
    """By form, variant and GPU what their tables leave of rows that they did not see -> the file; what it says of other
    forms than these is kept.
    """
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    table: dict[str, dict[str, dict[str, float]]] = {
        what: dict(kept.get(what, {})) for what in ("alpha", "sigma_factor")
    }
    for form in forms:
        found = _of_form(form, {key[1:]: rows for key, rows in left_out.items() if key[0] == form})
        for name in _FAMILIES[form]:
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
            "script": "python -m services.simworker.calibration.residual",
            "measured_on": datetime.now(tz=UTC).date().isoformat(),
            "data": "fitted rows of silicon/calibration that two GPUs share, each predicted by what did not see it",
            "chosen": (
                "alpha: least median of |ln(measured ÷ corrected)| over all pairs of GPUs of a relation; sigma_factor: "
                "its 80th percentile over that without correction. Where no two GPUs of a relation share rows, a "
                "guess: the next looser relation's. *: row-wise kernels, a guess (the script says why). unknown: such "
                "a kernel is known by its measurement alone"
            ),
        },
        **{what: dict(sorted(by_family.items())) for what, by_family in table.items()},
    }
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _of_form(form: str, left_out: Mapping[tuple[str, str], LeftOut]) -> dict[str, dict[str, Any]]:
    """Relation -> alpha, sigma_factor and the number of rows; `left_out` by variant and GPU."""
    held = {key: ({size: row for row, size in enumerate(_sizes(rows))}, rows) for key, rows in left_out.items()}
    pooled: dict[str, list[_Shared]] = {how: [] for how in _RELATIONS}
    for (variant, source), (source_rows, of_source) in held.items():
        for (other, target), (target_rows, of_target) in held.items():
            if source == target or variant != other:
                continue
            shared = [size for size in source_rows if size in target_rows]
            if len(shared) >= 10:
                on_target = [target_rows[size] for size in shared]
                on_source = [source_rows[size] for size in shared]
                both = -of_source.residuals[on_source], -of_target.residuals[on_target], of_target.cold[on_target]
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


def _sizes(rows: LeftOut) -> list[tuple[float, ...]]:
    return [tuple(size) for size in np.round(rows.x, 6).T.tolist()]
