"""Learns each GPU's residual over the form: `python -m services.simworker.calibration.residual --data FOLDER`.

After fit.py. Boosted trees and kriging over log2 of the shapes, in the shares that validate best, are read off on a
grid, held monotone within a tenth, and stored (constants/residual.json); the product interpolates them with numpy
alone. Only rows that the constants were fitted to are learned from: never one that a score looks at (tables.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import load_gpu
from numpy.typing import NDArray

from services.kernels.work import Floats, WorkTable
from services.simworker.calibration.alpha import SHIPPED, write_correction
from services.simworker.calibration.constants import FORMS, Constants, load_constants
from services.simworker.calibration.fit import (
    _weights,
    companion_us,
    merged,
    residuals_of,
)
from services.simworker.calibration.followable import followable
from services.simworker.calibration.spread import (
    NCCL_KINDS,
    LeftOut,
    between_versions,
    pooled_sigmas,
    sigmas_with,
    spread_of,
)
from services.simworker.calibration.tables import Companion, Sample, read_samples, work_table
from services.simworker.simulators.analytic.forest import Forest, Rising, Trees, features, rising_features
from services.simworker.simulators.analytic.isotonic import growing
from services.simworker.simulators.analytic.learned import Learned, evaluate, to_json
from services.simworker.simulators.analytic.residual import (
    AXES,
    BAND,
    GROWING,
    RESOLUTION,
    SPREAD_RESOLUTION,
    Residual,
    coordinates,
    interpolated,
    mesh_of,
)
from services.simworker.simulators.analytic.residual import evaluate as evaluate_grid
from services.simworker.simulators.analytic.simulator import form_us_as_sold

_FOLDER = Path(__file__).parent / "constants"
_ROWS_MIN = 30
_FOLDS, _ROWS_OF_ONE_FOLD, _SERVING_ROWS_OF_ONE_FOLD = 5, 600, 100  # a fifth of many rows tells enough
_SEED = 7
_LIMIT = 0.8  # of ln: beyond, the form and the table are not about the same kernel
_EAGER_RESOLUTION_US = 20.0
_LONG_US = 10.0  # row-wise kernels are scored from here on: what is shorter is launching and rounding
# Least distance of two nodes in octaves: a grid no finer than what is measured, and small files. Of m all are kept: one
# row more is one tile more, and tables have 128 rows and 129 (block FP8 on B200: 6.9 % off without, 5.2 % with them).
_SPACING: Mapping[str, float] = {
    "m": 0.0, "n": 0.2, "k": 0.2, "requests": 1.0, "keys": 1.0, "queries": 0.9,
    "kv_heads": 1.0, "group": 1.9, "width": 0.4, "windowed": 1.0, "heads": 1.0, "history": 1.0, "ranks": 0.5,
    "bytes": 0.9, "rows": 0.9, "row_bytes": 0.9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Boosting:
    trees: int
    leaves: int
    rate: float
    depth: int


_TREES = _Boosting(400, 24, 0.05, -1)  # read off on a grid
_FOREST = _Boosting(300, 24, 0.07, 9)  # evaluated by the product: as good, and two thirds of the time
# Of ln(measured ÷ form) that is learned from. A100's expert GEMMs are half of what their form says, or twice.
_CLIP: Mapping[str, float] = {"moe": 1.6}
# What trees learn of rows that lie together. Squares follow the rows for which a library chose ill (FP8 on B200: 8.1 %
# off so, 4.0 % by medians); of few rows they make more.
_CENTRES: Mapping[str, str] = {"medians": "regression_l1", "means": "regression"}
_ROWS_OF_MEDIANS = 300  # of fewer, choosing among twice as many ways of learning looks better than what comes of it
_OUTLIER = 0.1  # of ln from what the trees say: kriging goes through what is near, and not to what is beyond
_SLOPES, _RISING_TREES = (0.8, 0.6), 400
_SHARES_OF_TREES = (0.5, 0.75, 1.0)  # the rest is kriging's: trees see tiles and waves, kriging is smooth


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
    lessons: dict[tuple[str, str, str], Lesson] = {}
    left_out: dict[tuple[str, str, str], LeftOut] = {}
    # Row-wise kernels are companions of the others: first.
    for form, variant in sorted({(s.form, s.variant) for s in samples}, key=lambda key: (key[0] != "rowwise", key)):
        for sample in merged(s for s in samples if (s.form, s.variant) == (form, variant)):
            key = (form, variant, sample.gpu)
            lesson = learn(constants, sample)
            if isinstance(lesson, Lesson):
                lessons[key], left_out[key] = lesson, lesson.left_out
                constants = _with(constants, key, lesson.learned)
                print(f"{form:10} {variant:20} {sample.gpu:20} {lesson.score}", flush=True)
            elif lesson is not None:
                left_out[key] = lesson
    lessons |= _over_versions(constants, lessons, options.data) if "collective" in options.only else {}
    tables |= {" ".join(key): {**to_json(lesson.learned), **lesson.score} for key, lesson in lessons.items()}
    document = {
        "provenance": {
            "script": "python -m services.simworker.calibration.residual",
            "fitted_on": datetime.now(tz=UTC).date().isoformat(),
            "data": "the fitted rows of silicon/calibration, as the constants beside this file",
            "what": (
                "ln(measured ÷ form) in units of 1/100 on a grid; int8, differences along the second axis, LZMA, "
                "base64; axes are log2 of the sizes; spread, where there is one: ln of what sigma is to sigmas, in "
                "units of 1/25, packed alike"
            ),
        },
        "axes": AXES,
        "tables": dict(sorted(tables.items())),
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    # What a target inherits of a source is what both tables leave: measured anew with them.
    write_correction(SHIPPED if options.out == _FOLDER else options.out / "correction.json", left_out, options.only)
    return 0


def _with(constants: Constants, key: tuple[str, str, str], residual: Learned) -> Constants:
    return replace(constants, residuals={**constants.residuals, key: residual})


@dataclass(frozen=True, slots=True)
class Way:
    """Of learning what a form leaves."""

    centre: str  # of _CENTRES
    share: float  # of trees on a grid, the rest is kriging's; of forests, the slope of the trees that hold them

    def described(self, form: str) -> str:
        if form == "moe":
            return f"trees of {self.centre}, held by rising ones over {self.share:.0%} of the form"
        return f"grid of {self.share:.0%} trees of {self.centre}, rest kriging"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learned of one GPU's table, and how it does on rows that it did not see."""

    learned: Learned
    score: Mapping[str, Any]
    left_out: LeftOut


def learn(constants: Constants, sample: Sample, *, with_sigmas: bool = True) -> Lesson | LeftOut | None:
    """None where there are too few rows, or no constants of that GPU's own. Where cross-validation shows no gain, what
    the form leaves, whose few constants saw all of the rows.
    """
    if sample.resolution_us >= _EAGER_RESOLUTION_US or sample.fitted.sum() < _ROWS_MIN:
        return None
    _, group = constants.group(sample.form, sample.variant, load_gpu(sample.gpu))
    if group.level != f"gpu:{sample.gpu}":
        return None
    rows = sample.take(sample.fitted)
    before, before_us, cold = residuals_of(sample.form, constants, group.parameters, rows)
    fold = _folds(rows)
    is_enough = rows.measured_us.size >= _ROWS_OF_ONE_FOLD and rows.cold[fold == 0].sum() >= _SERVING_ROWS_OF_ONE_FOLD
    tested = np.isin(fold, range(1 if is_enough else _FOLDS))
    tried = _cross_validated(constants, group.parameters, rows, fold, _ways(rows), sorted(set(fold[tested])))
    if sample.form == "rowwise":
        cold = rows.measured_us >= _LONG_US
    counted = tested & cold if (tested & cold).sum() >= 20 else tested
    errors = {way: _median_ape(after[counted]) for way, (after, _) in tried.items()}
    # Serving rows decide, and of ways that serve alike (within a tenth) the one that is best on all.
    alike = [way for way, error in errors.items() if error <= 1.1 * min(errors.values())]
    way = min(alike, key=lambda one: _median_ape(tried[one][0][tested]))
    x = coordinates(sample.form, rows.work)
    if errors[way] >= _median_ape(before[counted]):
        return LeftOut(before, before_us, cold, x, fold)
    learned, (after, times) = learned_from(constants, rows, [way])[way], tried[way]
    score = {
        "rows_fitted": int(sample.fitted.sum()),
        "rows_validated": int(counted.sum()),
        "learned_by": way.described(sample.form),
        "median_ape_before": round(_median_ape(before[counted]), 4),
        "median_ape": round(errors[way], 4),
    }
    left_out = LeftOut(after, times, cold, x, fold)
    if not with_sigmas:
        return Lesson(learned, score, left_out.take(tested))
    others = sorted(set(fold[~tested]))
    if others:  # sigmas need more rows than the choice of a way
        more, more_us = _cross_validated(constants, group.parameters, rows, fold, [way], others)[way]
        after, times = np.where(tested, after, more), np.where(tested, times, more_us)
        left_out = replace(left_out, residuals=after, predicted_us=times)
    return Lesson(with_spread(constants, learned, left_out), score, left_out)


def with_spread(constants: Constants, learned: Learned, left_out: LeftOut) -> Learned:
    """How sure it is, of which shapes, as rows that it did not see tell."""
    sigmas, trees = spread_of(constants, left_out)
    if trees is None:
        return replace(learned, sigmas=tuple(sigmas))
    if isinstance(learned, Forest):
        return replace(learned, sigmas=tuple(sigmas), spread=_arrays(trees.dump_model()["tree_info"]))
    spread = _packed(trees.predict(learned.mesh().T))
    # Read between nodes it is not what the trees say there: sigmas are for what is read.
    read = interpolated(learned.nodes, spread, left_out.x) * SPREAD_RESOLUTION
    return replace(learned, sigmas=tuple(sigmas_with(constants, left_out, read)), spread=spread)


def _packed(spread: Floats) -> NDArray[np.int8]:
    return np.clip(np.rint(spread / SPREAD_RESOLUTION), -127, 127).astype(np.int8)


def _over_versions(
    constants: Constants, lessons: Mapping[tuple[str, str, str], Lesson], data: Path
) -> dict[tuple[str, str, str], Lesson]:
    """NCCL's tables with sigmas of all kinds of a GPU together; at sizes that were measured, what a version changes."""
    least = between_versions(data)
    found = {}
    for form, variant, gpu in lessons:
        kinds = {kind: lessons[form, kind, gpu] for kind in NCCL_KINDS if (form, kind, gpu) in lessons}
        if form != "collective" or variant not in kinds or len(kinds) < len(NCCL_KINDS):
            continue
        lesson = kinds[variant]
        sigmas = np.maximum(pooled_sigmas(constants, [kind.left_out for kind in kinds.values()]), least)
        assert isinstance(lesson.learned, Residual)
        mesh = lesson.learned.mesh()
        _, group = constants.group(form, variant, load_gpu(gpu))
        work = work_table(mesh.shape[1], family="collective", collective=variant, work_from="shapes",
                          ranks=2.0 ** mesh[0], message_bytes=2.0 ** mesh[1])  # fmt: skip
        us = form_us_as_sold(constants, form, group.parameters, gpu, work) * np.exp(lesson.learned.values * RESOLUTION)
        is_known = (np.abs(mesh[:, :, None] - lesson.left_out.x[:, None, :]).max(axis=0) < 1e-3).any(axis=1)
        there = sigmas[np.searchsorted(np.array(constants.sigma_bins_us), us)]
        spread = _packed(np.where(is_known, np.log(least / there), 0.0))
        found[form, variant, gpu] = replace(
            lesson, learned=replace(lesson.learned, sigmas=tuple(sigmas.round(3).tolist()), spread=spread)
        )
    return found


def _median_ape(residuals: Floats) -> float:
    return float(np.median(np.abs(np.expm1(residuals))))


def _folds(rows: Sample) -> NDArray[np.int_]:
    """All rows of a size go together: two tools measured many of them, and one would give the other away."""
    sizes = np.round(coordinates(rows.form, rows.work), 6)
    _, which = np.unique(sizes, axis=1, return_inverse=True)
    folds: NDArray[np.int_] = np.random.default_rng(_SEED).integers(0, _FOLDS, which.max() + 1)[which.ravel()]
    return folds


def _cross_validated(
    constants: Constants,
    parameters: Mapping[str, float],
    rows: Sample,
    fold: NDArray[np.int_],
    ways: Sequence[Way],
    tested: Sequence[int],
) -> dict[Way, tuple[Floats, Floats]]:
    """Per way of learning, ln(predicted ÷ measured) by what did not see the row, and the time predicted so; of rows of
    the folds `tested`.
    """
    after = {way: (np.zeros(fold.size), np.zeros(fold.size)) for way in ways}
    for part in tested:
        here = fold == part
        for way, learned in learned_from(constants, rows.take(~here), ways).items():
            left, us = after[way]
            left[here], us[here], _ = residuals_with(constants, rows.form, parameters, learned, rows.take(here))
    return after


def _ways(rows: Sample) -> list[Way]:
    centres = _CENTRES if rows.measured_us.size >= _ROWS_OF_MEDIANS else ("means",)
    return [Way(centre, share) for centre in centres for share in (_SLOPES if rows.form == "moe" else _SHARES_OF_TREES)]


def learned_from(constants: Constants, sample: Sample, ways: Sequence[Way]) -> dict[Way, Learned]:
    """What these rows say beyond the form, by each of some ways; cross-validation chooses."""
    if sample.form == "gemm":  # where a library chooses among kernels, and now and then ill
        sizes = coordinates(sample.form, sample.work)
        sample = sample.take(followable(sizes, np.log(sample.measured_us), 2 * BAND))
    learned: dict[Way, Learned] = {}
    for centre in dict.fromkeys(way.centre for way in ways):
        shares = [way.share for way in ways if way.centre == centre]
        parts = _forests if sample.form == "moe" else _tabulated
        learned |= {Way(centre, share): one for share, one in parts(constants, sample, centre, shares)}
    return learned


def _forests(
    constants: Constants, sample: Sample, centre: str, slopes: Sequence[float]
) -> Iterator[tuple[float, Forest]]:
    """The slope of what holds them, and the trees."""
    gpu = load_gpu(sample.gpu)
    _, group = constants.group(sample.form, sample.variant, gpu)
    x, y, weights = trained_on(constants, group.parameters, sample)
    booster = _boosted(features(sample.form, x, gpu.sm_count), y, weights, _FOREST, centre)
    trees = _arrays(booster.dump_model()["tree_info"])
    form_us = [form_us_as_sold(constants, sample.form, group.parameters, sample.gpu, w) for w in _works(sample)]
    form_ln = np.log(np.concatenate(form_us))
    for slope in slopes:
        rising = _never_falling(rising_features(x, form_ln), (1 - slope) * form_ln + y, weights)
        yield slope, Forest(
            trees, nodes=tuple(_ends(axis) for axis in x), sm_count=float(gpu.sm_count), sigmas=(),
            copies=float(np.median(sample.work["weight_copies"])),
            l2_kept_bytes=float(gpu.l2_bytes * group.parameters["l2"]),
            rising=Rising(_arrays(rising.dump_model()["tree_info"]), slope),
        )  # fmt: skip


def _never_falling(x: Floats, y: Floats, weights: Floats) -> Any:
    """Trees that grow with the sizes that cost work, and with all else after the sizes: x is of rising_features."""
    import lightgbm  # noqa: PLC0415 - calibration only: the product runs without it

    directions = [int(name in GROWING["moe"]) for name in AXES["moe"]]
    settings = {
        "objective": "huber", "alpha": 0.1, "num_leaves": 31, "learning_rate": 0.1, "lambda_l2": 0.5, "verbose": -1,
        "min_data_in_leaf": 3, "num_threads": 1, "seed": _SEED, "deterministic": True, "force_row_wise": True,
        "monotone_constraints": [*directions, *(1,) * (len(x) - len(directions))],
        "monotone_constraints_method": "intermediate",
    }  # fmt: skip
    return lightgbm.train(settings, lightgbm.Dataset(x.T, y, weight=weights), _RISING_TREES)


def _arrays(trees: Sequence[Mapping[str, Any]]) -> Trees:
    """LightGBM's nested trees as arrays (trees, nodes)."""
    nodes = max(2 * tree["num_leaves"] - 1 for tree in trees)
    shape = (len(trees), nodes)
    feature, left, right = (np.zeros(shape, dtype=np.int8) for _ in range(3))
    threshold, value = (np.zeros(shape, dtype=np.float32) for _ in range(2))
    for row, tree in enumerate(trees):
        count = 0

        def add(node: Mapping[str, Any], row: int = row) -> int:
            nonlocal count
            at, count = count, count + 1
            if "split_feature" in node:
                assert node["decision_type"] == "<="
                feature[row, at], threshold[row, at] = node["split_feature"], node["threshold"]
                left[row, at], right[row, at] = add(node["left_child"]), add(node["right_child"])
            else:
                value[row, at], left[row, at], right[row, at] = node["leaf_value"], at, at
            return at

        add(tree["tree_structure"])
    return Trees(feature, threshold, left, right, value)


def _tabulated(
    constants: Constants, sample: Sample, centre: str, shares: Sequence[float]
) -> Iterator[tuple[float, Residual]]:
    """Share of trees, and the residual of these rows on a grid."""
    gpu = load_gpu(sample.gpu)
    _, group = constants.group(sample.form, sample.variant, gpu)
    x, y, weights = trained_on(constants, group.parameters, sample)
    nodes = tuple(_nodes(axis, _SPACING[name]) for name, axis in zip(AXES[sample.form], x, strict=True))
    mesh = mesh_of(nodes)
    at = np.concatenate([mesh, x], axis=1)
    seen, asked = features(sample.form, x, gpu.sm_count), features(sample.form, at, gpu.sm_count)
    learned = _by_trees(seen, y, weights, asked, centre)
    trees, own = learned[: mesh.shape[1]], learned[mesh.shape[1] :]
    near = _by_kriging(x, y if centre == "means" else own + np.clip(y - own, -_OUTLIER, _OUTLIER), mesh)
    for share in shares:
        yield share, held_table(constants, group.parameters, sample, nodes, share * trees + (1 - share) * near)


def held_table(
    constants: Constants, parameters: Mapping[str, float], sample: Sample, nodes: tuple[Floats, ...], learned: Floats
) -> Residual:
    """A grid of ln(measured ÷ form), flat with the last axis fastest, held monotone within the band."""
    form_us = form_us_as_sold(constants, sample.form, parameters, sample.gpu, _work_at(sample, mesh_of(nodes)))
    shape = tuple(axis.size for axis in nodes)
    rising = [i for i, name in enumerate(AXES[sample.form]) if name in GROWING[sample.form]]
    values = _held_monotone(learned.reshape(shape), np.log(form_us).reshape(shape), rising)
    copies_column = "kv_copies" if sample.form in {"decode", "mla"} else "weight_copies"
    has_copies = sample.form in {"gemm", "decode", "mla"}
    return Residual(
        nodes=nodes,
        values=np.rint(np.clip(values, -_LIMIT, _LIMIT) / RESOLUTION).astype(np.int8).ravel(),
        sigmas=(),
        copies=float(np.median(sample.work[copies_column])) if has_copies else 1.0,
        l2_kept_bytes=float(load_gpu(sample.gpu).l2_bytes * parameters.get("l2", 1.0)),
    )


def residuals_not_held(constants: Constants, sample: Sample) -> Floats:
    """ln(predicted ÷ measured) of the rows left out, by trees that may fall where the measurements do: GEMMs alone."""
    gpu = load_gpu(sample.gpu)
    _, group = constants.group(sample.form, sample.variant, gpu)
    rows, held = sample.take(sample.fitted), sample.take(sample.left_out | sample.scored)
    x, y, weights = trained_on(constants, group.parameters, rows)
    at, there, _ = trained_on(constants, group.parameters, held)
    count = held.measured_us.size
    seen, asked = features(sample.form, x, gpu.sm_count), features(sample.form, at, gpu.sm_count)
    learned = _by_trees(seen, y, weights, asked, "medians")
    left: Floats = (learned - there)[:count]
    return left


def residuals_with(
    constants: Constants, form: str, parameters: Mapping[str, float], learned: Learned | None, sample: Sample
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """As residuals_of: ln(predicted ÷ measured) of the whole call, its time, and which rows are cold."""
    if learned is None or sample.measured_us.size == 0:
        return residuals_of(form, constants, parameters, sample)
    total = _companions_us(constants, sample)
    form_us = partial(form_us_as_sold, constants, form, parameters, sample.gpu)
    for work in [sample.work, *(c.work for c in sample.companions if c.form == form)]:
        total = total + np.exp(evaluate(learned, form, work, form_us)[0]) * form_us(work)
    return np.log(total / sample.measured_us), total, sample.cold


def trained_on(constants: Constants, parameters: Mapping[str, float], sample: Sample) -> tuple[Floats, Floats, Floats]:
    """Coordinates, ln(measured ÷ form) and weights; each kernel of the form in a call answers for the whole of it."""
    works = _works(sample)
    form_us = sum(form_us_as_sold(constants, sample.form, parameters, sample.gpu, work) for work in works)
    own = np.maximum(sample.measured_us - _companions_us(constants, sample), 0.3 * sample.measured_us)
    limit = _CLIP.get(sample.form, _LIMIT)
    y = np.clip(np.log(own / form_us), -limit, limit)
    x = np.concatenate([coordinates(sample.form, work) for work in works], axis=1)
    return x, np.tile(y, len(works)), np.tile(_weights(sample), len(works))


def _works(sample: Sample) -> list[WorkTable]:
    """Of the kernels of the form in a measured call."""
    return [sample.work, *(c.work for c in sample.companions if c.form == sample.form)]


def _companions_us(constants: Constants, sample: Sample) -> Floats:
    """The kernels of other forms in the measured call, as the product predicts them: by constants and table."""
    total: Floats = np.zeros(sample.measured_us.shape)
    for companion in sample.companions:
        if companion.form == sample.form:
            continue
        if sample.form in {"prefill", "decode"}:
            companion = Companion(companion.form, "kv_write", companion.work)  # noqa: PLW2901 - the same kernel, named
        table = constants.residuals.get((companion.form, companion.variant, sample.gpu))
        alone = companion_us(constants, companion, sample.gpu)
        if isinstance(table, Residual):  # no companion is an expert GEMM
            alone = alone * np.exp(evaluate_grid(table, companion.form, companion.work)[0])
        total = total + alone
    return total


def _by_trees(x: Floats, y: Floats, weights: Floats, at: Floats, centre: str) -> Floats:
    return np.asarray(_boosted(x, y, weights, _TREES, centre).predict(at.T), dtype=np.float64)


def _boosted(x: Floats, y: Floats, weights: Floats, size: _Boosting, centre: str) -> Any:
    import lightgbm  # noqa: PLC0415 - calibration only: the product runs without it

    settings = {
        "objective": _CENTRES[centre], "num_leaves": size.leaves, "learning_rate": size.rate, "lambda_l2": 1.0,
        "verbose": -1, "min_data_in_leaf": 8 if y.size >= 500 else 3, "bagging_fraction": 0.8, "bagging_freq": 1,
        "num_threads": 1, "seed": _SEED, "deterministic": True, "force_row_wise": True, "max_depth": size.depth,
    }  # fmt: skip
    return lightgbm.train(settings, lightgbm.Dataset(x.T, y, weight=weights), size.trees)


def _by_kriging(x: Floats, y: Floats, at: Floats) -> Floats:
    """A linear variogram with a nugget, over the nearest rows."""
    from scipy.interpolate import RBFInterpolator  # noqa: PLC0415 - calibration only

    moving = x.max(axis=1) > x.min(axis=1)
    points, inverse = np.unique(x[moving].T, axis=0, return_inverse=True)
    mean = np.bincount(inverse.ravel(), y) / np.bincount(inverse.ravel())
    model = RBFInterpolator(points, mean, neighbors=min(40, len(points)), kernel="linear", degree=0, smoothing=0.3)
    low, high = points.min(axis=0), points.max(axis=0)
    answer: Floats = np.clip(model(np.clip(at[moving].T, low, high)), -_LIMIT, _LIMIT)
    return answer


def _ends(axis: Floats) -> Floats:
    """Rounded outwards: a measured size must not be moved when it is kept inside."""
    return np.array([np.floor(axis.min() * 1e4), np.ceil(axis.max() * 1e4)]) / 1e4


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


def _held_monotone(residual: Floats, form_ln: Floats, axes: Sequence[int]) -> Floats:
    """The residual, moved as little as it takes for form times factor to fall by no more than the band allows."""
    total = form_ln + residual
    never_falling = growing(total, axes)
    held: Floats = np.clip(total, never_falling - BAND, never_falling + BAND) - form_ln
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
