"""How sure a table is of which shapes: what cross-validation leaves is not spread alike over them.

Attention on L40S is 5 % off without a sliding window and 2 % with one; one sigma for both is too wide for one and too
narrow for the other. Small trees over log2 of the sizes learn ln of what is left; they are kept where left-out rows
say that intervals get better by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import load_gpu
from numpy.typing import NDArray

from services.kernels.work import Floats
from services.simworker.calibration.constants import Constants
from services.simworker.calibration.fit import sigmas_of
from services.simworker.calibration.tables import COLLECTIVES, read_columns, scored_collective_versions, select
from services.simworker.simulators.analytic.residual import SIGMA_MIN
from services.simworker.simulators.base import Z90

ROWS_OF_SPREAD = 300
"""Of fewer rows a table's sigmas are those of all its shapes."""

NCCL_KINDS = tuple(COLLECTIVES.get(name, name) for name in ("all_gather", "all_reduce", "alltoall", "reduce_scatter"))
"""What one library does over one link: of each kind few rows are measured, and together they tell more of sigma."""

_TREES, _LEAVES, _RATE, _ROWS_OF_A_LEAF, _SEED = 40, 4, 0.1, 40, 7
_SMALLEST = 0.005  # of ln: what is left of a row that was hit by chance says as little as half a per cent
_OUTSIDE = 0.2  # of the rows, on purpose


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows predicted by what did not see them."""

    residuals: Floats  # ln(predicted ÷ measured)
    predicted_us: Floats
    cold: NDArray[np.bool_]
    x: Floats  # log2 sizes: (axes, rows)
    fold: NDArray[np.int_]  # rows of one size are of one fold

    def take(self, index: NDArray[np.bool_]) -> LeftOut:
        return LeftOut(
            self.residuals[index], self.predicted_us[index], self.cold[index], self.x[:, index], self.fold[index]
        )


def spread_of(constants: Constants, rows: LeftOut) -> tuple[list[float], Any | None]:
    """Sigmas per bin of time, and trees of ln of what a shape's sigma is to them (LightGBM's); None where a sigma for
    all shapes serves as well.
    """
    plain = sigmas_with(constants, rows, np.zeros(rows.fold.size))
    if rows.fold.size < ROWS_OF_SPREAD:
        return plain, None
    unseen = np.zeros(rows.fold.size)
    for part in np.unique(rows.fold):
        here = rows.fold == part
        trees = _learned(rows.x[:, ~here], rows.residuals[~here])
        unseen[here] = trees.predict(rows.x[:, here].T)
    by_shape = sigmas_with(constants, rows, unseen)
    flat, shaped = (
        _interval_score(constants, rows, sigmas, spread)
        for sigmas, spread in ((plain, np.zeros(unseen.size)), (by_shape, unseen))
    )
    return (by_shape, _learned(rows.x, rows.residuals)) if shaped < flat else (plain, None)


def sigmas_with(constants: Constants, rows: LeftOut, spread: Floats) -> list[float]:
    """Per bin of time, of what is left once each row's is divided by exp(spread)."""
    return sigmas_of(constants, [(rows.residuals / np.exp(spread), rows.predicted_us, rows.cold)])


def pooled_sigmas(constants: Constants, kinds: Sequence[LeftOut]) -> list[float]:
    """One set for all kinds."""
    return sigmas_of(constants, [(k.residuals, k.predicted_us, k.cold) for k in kinds])


def between_versions(folder: Path) -> float:
    """Sigma of a collective whose size was measured: what one minor version of NCCL changes, over all pairs of
    versions of one GPU that no pair scores. What versions several apart change grows with the root of their number.
    """
    c = read_columns(folder / "silicon" / "calibration" / "collectives.parquet")
    c = select(c, (c["backend"].astype(str) == "nccl") & (c["kernel_source"].astype(str) == "NCCL"))
    scored = scored_collective_versions(folder / "silicon" / "pairs_dev.parquet")
    times: dict[str, dict[str, dict[tuple[str, int, int], float]]] = {}
    columns = (c[name].tolist() for name in ("gpu", "version", "collective", "num_gpus", "bytes", "latency_us"))
    for gpu, version, *shape, us in zip(*columns, strict=True):
        if version not in scored.get(load_gpu(gpu).gpu, set()):
            times.setdefault(gpu, {}).setdefault(version, {})[tuple(shape)] = us
    changes: list[Floats] = []
    for of_gpu in times.values():
        for one, other in combinations(sorted(of_gpu), 2):
            minors = int(other.split(".")[1]) - int(one.split(".")[1])
            shared = sorted(of_gpu[one].keys() & of_gpu[other].keys())
            if minors and shared:
                ln = np.log([of_gpu[other][shape] / of_gpu[one][shape] for shape in shared])
                changes.append(np.abs(ln) / math.sqrt(minors))
    return round(float(np.quantile(np.concatenate(changes), 1 - _OUTSIDE)) / Z90, 3)


def _learned(x: Floats, residuals: Floats) -> Any:
    import lightgbm  # noqa: PLC0415 - calibration only: the product runs without it

    y = np.log(np.abs(residuals) + _SMALLEST)
    settings = {
        "objective": "regression_l1", "num_leaves": _LEAVES, "learning_rate": _RATE, "lambda_l2": 1.0, "verbose": -1,
        "min_data_in_leaf": _ROWS_OF_A_LEAF, "bagging_fraction": 0.8, "bagging_freq": 1, "num_threads": 1,
        "seed": _SEED, "deterministic": True, "force_row_wise": True, "boost_from_average": False,
    }  # fmt: skip
    return lightgbm.train(settings, lightgbm.Dataset(x.T, y - np.median(y)), _TREES)


def _interval_score(constants: Constants, rows: LeftOut, sigmas: Sequence[float], spread: Floats) -> float:
    """Mean width of p10 to p90, and what rows outside of it are beyond: less is better, and least where it is right."""
    bins = np.searchsorted(np.array(constants.sigma_bins_us), rows.predicted_us)
    reach = Z90 * np.maximum(np.array(sigmas)[bins] * np.exp(spread), SIGMA_MIN)
    return float(np.mean(2 * reach + 2 / _OUTSIDE * np.maximum(np.abs(rows.residuals) - reach, 0)))
