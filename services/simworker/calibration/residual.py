"""Learns each GPU's residual over the form: `python -m services.simworker.calibration.residual --data FOLDER`.

After fit.py. Boosted trees and kriging over log2 of the shapes, averaged, are read off on a grid, held monotone within
a tenth, and stored (constants/residual.json); the product interpolates them with numpy alone. Only rows that the
constants were fitted to are learned from: never one that a score looks at (tables.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import load_gpu
from numpy.typing import NDArray

from services.kernels.work import Floats, WorkTable
from services.simworker.calibration.constants import FORMS, Constants, load_constants
from services.simworker.calibration.fit import (
    _merged,
    _sigmas,
    _weights,
    companion_us,
    limits_of_sample,
    residuals_of,
)
from services.simworker.calibration.tables import Companion, Sample, read_samples, work_table
from services.simworker.simulators.analytic.residual import (
    AXES,
    GROWING,
    RESOLUTION,
    Residual,
    coordinates,
    evaluate,
    to_json,
)

_FOLDER = Path(__file__).parent / "constants"
_ROWS_MIN = 30
_FOLDS, _ROWS_OF_ONE_FOLD = 5, 600  # a fifth of many rows tells enough
_SEED = 7
_LIMIT = 0.6  # of ln: beyond, the form and the table are not about the same kernel
# From node to node, form times factor may fall by twice this: less than a tenth.
_BAND = 0.045
_EAGER_RESOLUTION_US = 20.0
_LONG_US = 10.0  # row-wise kernels are scored from here on: what is shorter is launching and rounding
# Least distance of two nodes in octaves: a grid no finer than what is measured, and small files.
_SPACING: Mapping[str, float] = {
    "m": 0.5, "n": 0.55, "k": 0.55, "experts": 1.0, "topk": 0.9, "requests": 1.0, "keys": 1.0, "queries": 0.9,
    "kv_heads": 1.0, "group": 1.9, "width": 0.4, "windowed": 1.0, "heads": 1.0, "history": 1.0, "ranks": 0.5,
    "bytes": 0.9, "rows": 0.9, "row_bytes": 0.9,
}  # fmt: skip
_SPACING_OF_FORM: Mapping[str, Mapping[str, float]] = {
    "moe": {"m": 1.0, "n": 1.4, "k": 0.9, "experts": 1.9, "topk": 1.2}
}
_TREES, _LEAVES, _RATE = 400, 24, 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with silicon/calibration/*.parquet")
    parser.add_argument("--out", type=Path, default=_FOLDER, help="where residual.json is written")
    parser.add_argument(
        "--only", nargs="*", choices=FORMS, default=list(FORMS), help="forms to learn; the rest is kept"
    )
    options = parser.parse_args(arguments)
    constants = load_constants(options.out)
    path = options.out / "residual.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else {}
    tables: dict[str, Any] = {key: table for key, table in kept.items() if key.split(" ")[0] not in options.only}
    samples = [s for s in read_samples(options.data) if s.form in options.only]
    # Row-wise kernels are companions of the others: first.
    for form, variant in sorted({(s.form, s.variant) for s in samples}, key=lambda key: (key[0] != "rowwise", key)):
        for sample in _merged(s for s in samples if (s.form, s.variant) == (form, variant)):
            learned = learn(constants, sample)
            if learned is not None:
                residual, score = learned
                constants = _with(constants, (form, variant, sample.gpu), residual)
                tables[f"{form} {variant} {sample.gpu}"] = {**to_json(residual), **score}
                print(f"{form:10} {variant:20} {sample.gpu:20} {score}", flush=True)
    document = {
        "provenance": {
            "script": "python -m services.simworker.calibration.residual",
            "fitted_on": datetime.now(tz=UTC).date().isoformat(),
            "data": "the fitted rows of silicon/calibration, as the constants beside this file",
            "what": (
                "ln(measured ÷ form) in units of 1/100 on a grid; int8, differences along the second axis, LZMA, "
                "base64; axes are log2 of the sizes"
            ),
        },
        "axes": AXES,
        "tables": dict(sorted(tables.items())),
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def _with(constants: Constants, key: tuple[str, str, str], residual: Residual) -> Constants:
    return replace(constants, residuals={**constants.residuals, key: residual})


def learn(constants: Constants, sample: Sample) -> tuple[Residual, dict[str, Any]] | None:
    """None where there are too few rows, no constants of that GPU's own, or no gain in cross-validation."""
    if sample.resolution_us >= _EAGER_RESOLUTION_US or sample.fitted.sum() < _ROWS_MIN:
        return None
    _, group = constants.group(sample.form, sample.variant, load_gpu(sample.gpu))
    if group.level != f"gpu:{sample.gpu}":
        return None
    rows = sample.take(sample.fitted)
    before, times, cold = residuals_of(sample.form, constants, group.parameters, rows)
    after, tested = _cross_validated(constants, group.parameters, rows)
    if sample.form == "rowwise":
        cold = rows.measured_us >= _LONG_US
    counted = tested & cold if (tested & cold).sum() >= 20 else tested
    errors = [float(np.median(np.abs(np.expm1(r[counted])))) for r in (before, after)]
    if errors[1] >= errors[0]:
        return None
    residual = tabulated(constants, rows)
    score = {
        "rows_fitted": int(sample.fitted.sum()),
        "rows_validated": int(counted.sum()),
        "median_ape_before": round(errors[0], 4),
        "median_ape": round(errors[1], 4),
    }
    sigmas = tuple(_sigmas(constants, [(after[tested], times[tested], cold[tested])]))
    return Residual(residual.nodes, residual.values, sigmas, residual.copies, residual.l2_kept_bytes), score


def _cross_validated(
    constants: Constants, parameters: Mapping[str, float], rows: Sample
) -> tuple[Floats, NDArray[np.bool_]]:
    """ln(predicted ÷ measured) by tables that did not see the row, and for which rows."""
    fold = np.random.default_rng(_SEED).integers(0, 5, rows.measured_us.size)
    tested = np.isin(fold, range(_FOLDS if rows.measured_us.size < _ROWS_OF_ONE_FOLD else 1))
    after: Floats = np.zeros(fold.size)
    for part in sorted(set(fold[tested])):
        here = fold == part
        residual = tabulated(constants, rows.take(~here))
        after[here] = residuals_with(constants, rows.form, parameters, residual, rows.take(here))[0]
    return after, tested


def tabulated(constants: Constants, sample: Sample) -> Residual:
    """The residual of these rows on a grid."""
    gpu = load_gpu(sample.gpu)
    _, group = constants.group(sample.form, sample.variant, gpu)
    x, y, weights = _training(constants, group.parameters, sample)
    nodes = tuple(
        _nodes(axis, _SPACING_OF_FORM.get(sample.form, {}).get(name, _SPACING[name]))
        for name, axis in zip(AXES[sample.form], x, strict=True)
    )
    shape = tuple(axis.size for axis in nodes)
    mesh = np.array([axis.ravel() for axis in np.meshgrid(*nodes, indexing="ij")])
    predicted = _learned(sample.form, x, y, weights, mesh, gpu.sm_count).reshape(shape)
    form_us = limits_of_sample(sample.form, constants, group.parameters, sample.gpu, _work_at(sample, mesh)).total[0]
    growing = [i for i, name in enumerate(AXES[sample.form]) if name in GROWING[sample.form]]
    values = _held_monotone(predicted, np.log(form_us).reshape(shape), growing)
    copies_column = "kv_copies" if sample.form in {"decode", "mla"} else "weight_copies"
    copies = float(np.median(sample.work[copies_column])) if sample.form in {"gemm", "moe", "decode", "mla"} else 1.0
    return Residual(
        nodes=nodes,
        values=np.rint(np.clip(values, -_LIMIT, _LIMIT) / RESOLUTION).astype(np.int8).ravel(),
        sigmas=(),
        copies=copies,
        l2_kept_bytes=float(gpu.l2_bytes * group.parameters.get("l2", 1.0)),
    )


def residuals_with(
    constants: Constants, form: str, parameters: Mapping[str, float], residual: Residual | None, sample: Sample
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """As residuals_of: ln(predicted ÷ measured) of the whole call, its time, and which rows are cold."""
    if residual is None or sample.measured_us.size == 0:
        return residuals_of(form, constants, parameters, sample)
    total = _companions_us(constants, sample)
    for work in [sample.work, *(c.work for c in sample.companions if c.form == form)]:
        factor = np.exp(evaluate(residual, form, work)[0])
        total = total + factor * limits_of_sample(form, constants, parameters, sample.gpu, work).total[0]
    return np.log(total / sample.measured_us), total, sample.cold


def _training(constants: Constants, parameters: Mapping[str, float], sample: Sample) -> tuple[Floats, Floats, Floats]:
    """Coordinates, ln(measured ÷ form) and weights; each kernel of the form in a call answers for the whole of it."""
    works = [sample.work, *(c.work for c in sample.companions if c.form == sample.form)]
    form_us = sum(limits_of_sample(sample.form, constants, parameters, sample.gpu, work).total[0] for work in works)
    own = np.maximum(sample.measured_us - _companions_us(constants, sample), 0.3 * sample.measured_us)
    y = np.clip(np.log(own / form_us), -0.8, 0.8)
    x = np.concatenate([coordinates(sample.form, work) for work in works], axis=1)
    return x, np.tile(y, len(works)), np.tile(_weights(sample), len(works))


def _companions_us(constants: Constants, sample: Sample) -> Floats:
    """The kernels of other forms in the measured call, as the product predicts them: by constants and table."""
    total: Floats = np.zeros(sample.measured_us.shape)
    for companion in sample.companions:
        if companion.form == sample.form:
            continue
        if sample.form in {"prefill", "decode"}:
            companion = Companion(companion.form, "kv_write", companion.work)  # noqa: PLW2901 - the same kernel, named
        table = constants.residuals.get((companion.form, companion.variant, sample.gpu))
        factor = 1.0 if table is None else np.exp(evaluate(table, companion.form, companion.work)[0])
        total = total + factor * companion_us(constants, companion, sample.gpu)
    return total


def _learned(form: str, x: Floats, y: Floats, weights: Floats, at: Floats, sm_count: float) -> Floats:
    trees = _by_trees(_features(form, x, sm_count), y, weights, _features(form, at, sm_count))
    near: Floats = _by_kriging(x, y, at)
    answer: Floats = (trees + near) / 2
    return answer


def _by_trees(x: Floats, y: Floats, weights: Floats, at: Floats) -> Floats:
    import lightgbm  # noqa: PLC0415 - calibration only: the product runs without it

    settings = {
        "objective": "regression", "num_leaves": _LEAVES, "learning_rate": _RATE, "lambda_l2": 1.0, "verbose": -1,
        "min_data_in_leaf": 8 if y.size >= 500 else 3, "bagging_fraction": 0.8, "bagging_freq": 1, "num_threads": 1,
        "seed": _SEED, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    data = lightgbm.Dataset(x.T, y, weight=weights)
    return np.asarray(lightgbm.train(settings, data, _TREES).predict(at.T), dtype=np.float64)


def _by_kriging(x: Floats, y: Floats, at: Floats) -> Floats:
    """A linear variogram with a nugget, over the nearest rows."""
    from scipy.interpolate import RBFInterpolator  # noqa: PLC0415 - calibration only

    moving = x.max(axis=1) > x.min(axis=1)
    points, inverse = np.unique(x[moving].T, axis=0, return_inverse=True)
    mean = np.bincount(inverse.ravel(), y) / np.bincount(inverse.ravel())
    model = RBFInterpolator(points, mean, neighbors=min(40, len(points)), kernel="linear", degree=0, smoothing=0.3)
    low, high = points.min(axis=0), points.max(axis=0)
    answer: Floats = np.clip(model(np.clip(at[moving].T, low, high)), -0.8, 0.8)
    return answer


def _features(form: str, x: Floats, sm_count: float) -> Floats:
    """The coordinates, and what tiles, waves and sizes make of them."""
    size = 2.0**x
    more: list[Floats] = []
    if form in {"gemm", "moe"}:
        m, n, k = size[:3]
        matrices = np.ones(m.shape)
        if form == "moe":
            experts, topk = size[3:]
            matrices = np.maximum(experts * (1 - (1 - np.minimum(topk / experts, 1)) ** m), 1e-3)
            m = m * topk / matrices
        more += [np.log2(n * k), np.log2(m * n), np.log2(matrices), m / (64 * np.ceil(m / 64))]
        more += [n / (128 * np.ceil(n / 128))]
        for rows, columns in ((128, 128), (256, 128), (64, 64), (128, 256)):
            load = matrices * np.ceil(m / rows) * np.ceil(n / columns) / sm_count
            more += [np.log2(load), np.ceil(load) / load]
    elif form in {"decode", "mla"}:
        units = size[0] * (size[2] if form == "decode" else 1)
        load = units / sm_count
        more += [np.log2(units), np.log2(units * size[1]), np.ceil(load) / load]
        if form == "decode":
            more += [x[2] + x[3], np.log2(units * size[1] * size[4]), x[0] + x[2] + x[3]]
    elif form == "prefill":
        heads = size[2] * size[3]
        load = size[0] * np.ceil(size[1] / 128) * heads / sm_count
        more += [np.log2(heads), x[0] + 2 * x[1] + np.log2(heads), np.log2(load), np.ceil(load) / load]
    else:
        more += [x[0] + x[1]]
    return np.array([*x, *more])


def _nodes(axis: Floats, spacing: float) -> Floats:
    """Measured values at least `spacing` octaves apart, the first and the last among them."""
    values = np.unique(np.round(axis, 4))
    chosen = [float(values[0])]
    for value in values[1:-1]:
        if value - chosen[-1] >= spacing - 1e-6 and values[-1] - value >= spacing / 2:
            chosen.append(float(value))
    if values.size > 1:
        chosen.append(float(values[-1]))
    return np.array(chosen)


def _held_monotone(residual: Floats, form_ln: Floats, growing: Sequence[int]) -> Floats:
    """The residual, moved as little as it takes for form times factor to fall by no more than the band allows."""
    total = form_ln + residual
    lower, upper = total, total
    for axis in growing:
        lower = np.maximum.accumulate(lower, axis=axis)
        upper = np.flip(np.minimum.accumulate(np.flip(upper, axis), axis=axis), axis)
    middle = (lower + upper) / 2
    held: Floats = np.clip(total, middle - _BAND, middle + _BAND) - form_ln
    return held


def _work_at(sample: Sample, x: Floats) -> WorkTable:
    """The work of each point of a grid; what no axis says is as in the sample."""
    size = dict(zip(AXES[sample.form], 2.0**x, strict=True))
    count = x.shape[1]
    first = sample.work.take(np.array([0]))
    common: dict[str, Any] = {
        "family": str(first.text("family")[0]), "math": str(first.text("math")[0]), "work_from": "shapes",
        "kind": str(first.text("kind")[0]), "collective": str(first.text("collective")[0]),
        **{name: float(first[name][0]) for name in ("a_bits", "w_bits", "out_bits", "weight_copies", "kv_copies",
                                                    "kv_bits")},
    }  # fmt: skip
    form = sample.form
    if form in {"gemm", "moe"}:
        more: dict[str, Any] = {name: size[name] for name in AXES[form]}
    elif form == "decode":
        b, keys = size["requests"], size["keys"]
        more = {
            "sequences": b, "q_tokens": b, "kv_tokens": b * keys, "qk_pairs": b * keys, "q_longest": 1.0,
            "kv_longest": keys, "kv_heads": size["kv_heads"], "heads": size["kv_heads"] * size["group"],
            "head_dim": size["width"], "window": np.where(size["windowed"] > 1.5, keys, 0),
        }  # fmt: skip
    elif form == "mla":
        b, keys = size["requests"], size["keys"]
        more = {
            "sequences": b, "q_tokens": b, "kv_tokens": b * keys, "qk_pairs": b * keys, "kv_longest": keys,
            "heads": size["heads"], "kv_heads": 1.0, "head_dim": 576.0,
        }  # fmt: skip
    elif form == "prefill":
        b, q = size["requests"], size["queries"]
        keys = q * size["history"]
        more = {
            "sequences": b, "q_tokens": b * q, "kv_tokens": b * keys, "qk_pairs": b * q * (keys - (q - 1) / 2),
            "q_longest": q, "kv_longest": keys, "kv_heads": size["kv_heads"],
            "heads": size["kv_heads"] * size["group"], "head_dim": size["width"],
            "window": np.where(size["windowed"] > 1.5, keys, 0),
        }  # fmt: skip
    elif form == "collective":
        more = {"ranks": size["ranks"], "message_bytes": size["bytes"]}
    else:
        more = {"rows": size["rows"], "read_bytes": size["rows"] * size["row_bytes"], "write_bytes": 0.0}
    return work_table(count, **{**common, **more})


if __name__ == "__main__":
    sys.exit(main())
