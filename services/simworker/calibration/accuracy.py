"""The error map: `python -m services.simworker.calibration.accuracy --data FOLDER` (`make accuracy`).

Pairs each two GPUs' rows that nothing was fitted to (tables.py) into build/accuracy/pairs_test.parquet, in the columns
of pairs_dev.parquet, scores both tables as `cascade validate` does, cross-validates off the grid, and writes
docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cascade_schemas.gpu import load_gpu
from numpy.typing import NDArray

from services.kernels.correction import relation
from services.kernels.work import Floats
from services.simworker.calibration.constants import Constants, shipped_constants
from services.simworker.calibration.fit import residuals_of
from services.simworker.calibration.followable import followable
from services.simworker.calibration.residual import Lesson, learn, residuals_not_held, residuals_with
from services.simworker.calibration.tables import QUANTISED, SHAPE_COLUMNS, SKEWED, Sample, read_columns, read_samples
from services.simworker.calibration.unseen import unseen
from services.simworker.calibration.validate import validate
from services.simworker.simulators.analytic.residual import AXES, BAND, coordinates
from services.simworker.simulators.analytic.simulator import AnalyticSimulator

_ROOT = Path(__file__).parents[3]
_GPUS = ("a100_sxm_80gb", "a40", "l40s", "h100_sxm", "h200_sxm", "b200_sxm")
_ROWS_PER_PAIR = 1_500
_ROWS_MIN = 8  # fewer tell nothing, and are left out of the map
_SEED = 7
_DTYPES: Mapping[str, Mapping[str, str]] = {"mla": {"kv16": "bf16", "kv8": "fp8"}}
# Off the grid: these axes lose every fourth value, one axis after the other.
_OFF_GRID: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"), "decode": ("requests", "keys", "kv_heads"), "prefill": ("requests", "queries", "kv_heads"),
    "mla": ("requests", "keys", "heads"), "moe": ("m", "n", "k"),
}  # fmt: skip
# Their measured times fall as sizes grow: what the promise that ours do not costs.
_FALLING = (("gemm", "fp8"), ("gemm", "fp8_block"), ("moe", "bf16"), ("moe", "fp8"), ("moe", "fp8_block"))
_OFF_GRID_GPUS = ("a100_sxm_80gb", "h100_sxm")  # the others say the same, for minutes
# Median absolute error of serving rows that is aimed at: of a GPU with a table of its own, and of L40S.
_GOALS: Mapping[str, tuple[str, Sequence[str], float, float]] = {
    "GEMM bf16": ("gemm", ("bf16",), 0.045, 0.06),
    "decode attention": ("decode", ("kv16",), 0.035, 0.05),
    "prefill attention": ("prefill", ("kv16",), 0.045, 0.06),
    "GEMM fp8": ("gemm", ("fp8",), 0.06, 0.06),
    "GEMM block fp8": ("gemm", ("fp8_block",), 0.06, 0.06),
    "GEMM int8, 4- and 8-bit weights, fp4": ("gemm", ("int8", "w4", "w8", "fp4"), 0.06, 0.06),
    "expert GEMM bf16": ("moe", ("bf16",), 0.08, 0.1),
    "the same, skewed": ("moe", ("bf16 skewed",), 0.08, 0.1),
    "expert GEMM fp8": ("moe", ("fp8",), 0.08, 0.1),
    "fp8, skewed": ("moe", ("fp8 skewed",), 0.08, 0.1),
    "expert GEMM block fp8": ("moe", ("fp8_block",), 0.08, 0.1),
    "block fp8, skewed": ("moe", ("fp8_block skewed",), 0.08, 0.1),
    "expert GEMM, 4-bit": ("moe", ("w4", "fp4"), 0.1, 0.1),
    "4-bit, skewed": ("moe", ("w4 skewed", "fp4 skewed"), 0.1, 0.1),
    "NVLink collectives": ("collective", (), 0.07, 0.0),
    "row-wise kernels from 10 µs": ("rowwise", (), 0.04, 0.06),
}
# The same of a GPU whose programming class was never measured: HBM, GDDR.
_GOALS_OF_A_CLASS = {"gemm": (0.09, 0.15), "decode": (0.07, 0.15), "prefill": (0.12, 0.25)}
# SGLang's tables are aimed at less closely than vLLM's: those of A100 are SGLang's.
_SGLANG_AIM: Mapping[tuple[str, str], float] = {("moe", "a100_sxm_80gb"): 0.1}
_COVERED = (0.75, 0.85)  # aimed at, of what lies between p10 and p90
_AIMED_AT = ("a100_sxm_80gb", "h100_sxm", "h200_sxm", "b200_sxm", "l40s")
_PUBLISHED = """| method | kernels of | median or mean error, % |
|---|---|---|
| SynPerf / PipeWeave (2026) | 11 GPUs, trained on all of them | 6.1 |
| KernelSight-LM (2026) | an unseen generation; after one sweep of it | 12.1; 3.8 |
| its roofline | the same | 22.0 |
| NeuSight (2025) | GPT-3 on H100, end to end | 2.3-3.8 |
| Habitat (2021) | GPU to GPU | ~12 |
| AIConfigurator | leave one shape out of its own tables, GEMM | 7-15 |"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with silicon/")
    parser.add_argument("--build", type=Path, default=_ROOT / "build" / "accuracy", help="where the pairs are written")
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "accuracy.md")
    options = parser.parse_args(arguments)
    constants = shipped_constants()
    samples = read_samples(options.data)
    options.build.mkdir(parents=True, exist_ok=True)
    test = options.build / "pairs_test.parquet"
    pq.write_table(dropped_pairs(samples), test)
    dev = options.data / "silicon" / "pairs_dev.parquet"
    found = {"pairs_test": validate(test, detailed=True), "pairs_dev": validate(dev, detailed=True)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    own, beyond, new = known(constants, samples), off_grid(constants, samples), unseen(constants, samples)
    floors = not_held(constants, samples)
    options.out.write_text(page(constants, found, own, floors, between_engines(options.data), beyond, new), "utf-8")
    print(f"wrote {test} and {options.out}")
    return 0


def dropped_pairs(samples: Sequence[Sample]) -> pa.Table:
    """Rows that were dropped from every fit, of each two GPUs that measured the same shape with the same dtype."""
    parts: list[dict[str, Any]] = []
    held: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in samples:
        if sample.gpu in _GPUS and sample.resolution_us < 20 and sample.variant != "fp32":
            rows = sample.take(sample.left_out | sample.scored)
            held.setdefault((sample.op, sample.variant, _kind(sample)), []).append(rows)
    for (op, variant, kind), of_gpus in sorted(held.items()):
        if kind == "fp8_scale_matrix" or variant == "all_reduce:custom":
            continue  # no pair says which kernel it is: scored by the table of known GPUs alone
        for source in of_gpus:
            for target in of_gpus:
                if source is not target:
                    parts.append(_pair(op, variant, source, target))
    names = dict.fromkeys(name for part in parts for name in part)
    return pa.concat_tables(
        [pa.table({n: part[n] for n in names if n in part}) for part in parts if len(part["op"])],
        promote_options="permissive",
    )


def _pair(op: str, variant: str, source: Sample, target: Sample) -> dict[str, Any]:
    columns = [n for n in (*SHAPE_COLUMNS[op], "kv_dtype", "distribution") if n in source.columns]
    first = {shape: i for i, shape in enumerate(_shapes(source, columns))}
    both = [(first[shape], j) for j, shape in enumerate(_shapes(target, columns)) if shape in first]
    if len(both) > _ROWS_PER_PAIR:
        some = np.random.default_rng(_SEED).choice(len(both), _ROWS_PER_PAIR, replace=False)
        both = [both[i] for i in np.sort(some)]
    here, there = [i for i, _ in both], [j for _, j in both]
    dtype = _DTYPES.get(op, {}).get(variant)
    if dtype is None:
        dtype = variant if op in {"gemm", "moe"} else "fp16" if op == "elementwise" else "bf16"
    return {
        "op": [op] * len(both),
        "dtype": [dtype] * len(both),
        **{name: _values(source.columns[name][here]) for name in columns},
        "source_gpu": [source.gpu] * len(both),
        "source_us": source.measured_us[here],
        "target_gpu": [target.gpu] * len(both),
        "target_us": target.measured_us[there],
        "cold": source.cold[here] & target.cold[there],
    }


def known(constants: Constants, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Each GPU by its own constants and table on its own dropped rows: what a user of that GPU gets."""
    rows = []
    for sample, variant in [part for whole in samples for part in _by_routing(whole)]:
        _, group = constants.group(sample.form, sample.variant, load_gpu(sample.gpu))
        if sample.gpu not in _GPUS or group.level != f"gpu:{sample.gpu}" or sample.resolution_us >= 20:
            continue
        held = sample.take(sample.left_out | sample.scored)
        if held.measured_us.size < _ROWS_MIN:
            continue
        table = constants.residuals.get((sample.form, sample.variant, sample.gpu))
        before, _, cold = residuals_of(sample.form, constants, group.parameters, held)
        after, _, _ = residuals_with(constants, sample.form, group.parameters, table, held)
        if sample.form == "rowwise":  # what launching and rounding add hides what is shorter
            cold = held.measured_us >= 10
        for name, some in (("serving", cold), ("all", np.ones(cold.size, dtype=bool))):
            if some.sum() >= _ROWS_MIN:
                error = np.expm1(after[some])
                rows.append({
                    "form": sample.form, "variant": variant, "gpu": sample.gpu, "rows": name,
                    "n": int(some.sum()), "form_alone": float(np.median(np.abs(np.expm1(before[some])))),
                    "median": float(np.median(np.abs(error))), "mean": float(np.mean(np.abs(error))),
                    "p90": float(np.quantile(np.abs(error), 0.9)), "bias": float(np.median(error)),
                })  # fmt: skip
    return rows


def _by_routing(sample: Sample) -> list[tuple[Sample, str]]:
    """Skewed expert GEMMs apart: a mean over both kinds of routing would hide either."""
    if sample.form != "moe":
        return [(sample, sample.variant)]
    skewed = sample.columns["distribution"].astype(str) == SKEWED
    return [(sample.take(~skewed), sample.variant), (sample.take(skewed), f"{sample.variant} skewed")]


def not_held(constants: Constants, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Serving rows by the shipped tables, and by trees that may fall."""
    rows = []
    for sample in samples:
        table = constants.residuals.get((sample.form, sample.variant, sample.gpu))
        if (sample.form, sample.variant) not in _FALLING or table is None:
            continue
        _, group = constants.group(sample.form, sample.variant, load_gpu(sample.gpu))
        held = sample.take(sample.left_out | sample.scored)
        free = residuals_not_held(constants, sample)[held.cold]
        kept = residuals_with(constants, sample.form, group.parameters, table, held)[0][held.cold]
        if free.size >= _ROWS_MIN:
            measured = coordinates(sample.form, sample.work), np.log(sample.measured_us)
            rows.append({
                "form": sample.form, "variant": sample.variant, "gpu": sample.gpu, "n": int(free.size),
                "contradicting": float(1 - followable(*measured, 2 * BAND)[sample.cold].mean()),
                "median": float(np.median(np.abs(np.expm1(kept)))),
                "not_held": float(np.median(np.abs(np.expm1(free)))),
            })  # fmt: skip
    return rows


def between_engines(folder: Path) -> list[dict[str, Any]]:
    """Low-precision GEMMs of the same sizes that two engines measured on one GPU: no model of both can be nearer."""
    columns = read_columns(folder / "silicon" / "calibration" / "gemm_lowprec.parquet")
    of: dict[tuple[str, str], dict[str, dict[tuple[int, ...], float]]] = {}
    for gpu, dtype, engine, m, n, k, us in zip(
        *(columns[name].tolist() for name in ("gpu", "dtype", "backend", "m", "n", "k", "latency_us")), strict=True
    ):
        bits = QUANTISED["fp4" if dtype == "nvfp4" else dtype][2] if dtype in {"fp8_block", "nvfp4"} else 0.0
        if bits and n * k * bits / 8 * 6 > 1.5 * load_gpu(gpu).l2_bytes:  # serving rows: six copies do not fit L2
            of.setdefault((dtype, load_gpu(gpu).gpu), {}).setdefault(engine, {})[m, n, k] = us
    rows = []
    for (dtype, gpu), engines in sorted(of.items()):
        for one, other in combinations(sorted(engines), 2):
            shared = engines[one].keys() & engines[other].keys()
            if len(shared) >= _ROWS_MIN:
                ln = np.log([engines[one][size] / engines[other][size] for size in sorted(shared)])
                rows.append({
                    "variant": dtype, "gpu": gpu, "engines": f"{one}, {other}", "n": len(shared),
                    "apart": float(np.median(np.abs(np.expm1(ln)))),
                    "beyond_a_factor": float(np.median(np.abs(np.expm1(ln - np.median(ln))))),
                })  # fmt: skip
    return rows


def off_grid(constants: Constants, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Fitted rows of sizes that the table never saw: every fourth value of an axis is left out of it."""
    found = []
    for sample in samples:
        key = (sample.form, sample.variant, sample.gpu)
        usual = sample.variant in {"bf16", "kv16"}
        if (
            sample.form not in _OFF_GRID
            or key not in constants.residuals
            or not usual
            or sample.gpu not in _OFF_GRID_GPUS
        ):
            continue
        rows = sample.take(sample.fitted)
        _, group = constants.group(sample.form, sample.variant, load_gpu(sample.gpu))
        before, _, cold = residuals_of(sample.form, constants, group.parameters, rows)
        x = np.round(coordinates(sample.form, rows.work), 4)
        row: dict[str, Any] = {"form": sample.form, "gpu": sample.gpu}
        errors: list[Floats] = []
        forms: list[Floats] = []
        for name in _OFF_GRID[sample.form]:
            out = _every_fourth(x[AXES[sample.form].index(name)])
            if out.sum() < _ROWS_MIN or (~out).sum() < 100:
                continue
            lesson = learn(constants, rows.take(~out), with_sigmas=False)
            table = lesson.learned if isinstance(lesson, Lesson) else None
            after, _, _ = residuals_with(constants, sample.form, group.parameters, table, rows.take(out))
            serving = cold[out] if cold[out].sum() >= _ROWS_MIN else np.ones(int(out.sum()), dtype=bool)
            row[name] = float(np.median(np.abs(np.expm1(after[serving]))))
            errors.append(after[serving])
            forms.append(before[out][serving])
        if errors:
            row["all"] = float(np.median(np.abs(np.expm1(np.concatenate(errors)))))
            row["form_alone"] = float(np.median(np.abs(np.expm1(np.concatenate(forms)))))
            found.append(row)
    return found


def page(
    constants: Constants,
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    own: Sequence[Mapping[str, Any]],
    floors: Sequence[Mapping[str, Any]],
    engines: Sequence[Mapping[str, Any]],
    beyond: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
) -> str:
    lines = [
        "# Accuracy",
        "",
        (
            f"Written by `make accuracy` on {datetime.now(tz=UTC).date().isoformat()}: analytic simulator version "
            f"{AnalyticSimulator.version}, calibration {constants.digest}. Measurements: `silicon/` of the reference "
            "data (AIConfigurator, Vidur and others; their licences are in its README). Errors are |predicted / "
            "measured - 1| in per cent, on rows that no constant and no table was fitted to: a fifth of all shapes by "
            "hash, and all shapes of `pairs_dev`. *Serving* rows are cold ones (operands do not fit L2); of row-wise "
            "kernels those of 10 µs and more."
        ),
        "",
        *_against_goals(own, new),
        "",
        "## A GPU with a table of its own",
        "",
        "*Form* is the physical model alone, *median* with the residual table over it.",
        "",
        "| op | variant | GPU | rows | n | form | median | mean | p90 | bias |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['form']} | {r['variant']} | {r['gpu']} | {r['rows']} | {r['n']} | "
        + " | ".join(_percent(r[name]) for name in ("form_alone", "median", "mean", "p90", "bias")) + " |"
        for r in own
    ]  # fmt: skip
    lines += ["", "## What it costs that more work is never faster", "", (
        "Measured times of these fall by more than a tenth where another kernel takes over; ours may not. *Not held*: "
        "trees learned from the same rows that may fall. *Contradicting*: the share of all measured serving rows that "
        "no function that falls by less than a tenth can follow together with the rest. It never reaches a half, so a "
        "median of 0 would be possible for who saw all rows before; tables of GEMMs do not learn from such rows."
    ), "", "| op | variant | GPU | n | median | not held | contradicting |", "|" + "---|" * 7]  # fmt: skip
    for r in floors:
        errors = " | ".join(_percent(r[name]) for name in ("median", "not_held", "contradicting"))
        lines.append(f"| {r['form']} | {r['variant']} | {r['gpu']} | {r['n']} | {errors} |")
    lines += ["", "## How far two engines are apart", "", (
        "The same GPU, sizes and precision, measured in two engines; serving rows. *Beyond a factor*: once the median "
        "ratio of the two is taken out. The tables are of one engine each (the first of vLLM, SGLang, TensorRT-LLM)."
    ), "", "| variant | GPU | engines | n | apart | beyond a factor |", "|" + "---|" * 6]  # fmt: skip
    for r in engines:
        errors = f"{_percent(r['apart'])} | {_percent(r['beyond_a_factor'])}"
        lines.append(f"| {r['variant']} | {r['gpu']} | {r['engines']} | {r['n']} | {errors} |")
    lines += ["", "## Off the grid", "", (
        "Every fourth value of one axis is left out of the table whole; the rows with these values are predicted from "
        "the others. Serving rows among the fitted ones; the form has seen them, the table has not."
    ), "", "| op | GPU | form | with table | each axis |", "|---|---|---|---|---|"]  # fmt: skip
    for r in beyond:
        axes = ", ".join(f"{name} {_percent(r[name])}" for name in _OFF_GRID[r["form"]] if name in r)
        lines.append(f"| {r['form']} | {r['gpu']} | {_percent(r['form_alone'])} | {_percent(r['all'])} | {axes} |")
    lines += _of_new_gpus(new)
    for table, rows in found.items():
        lines += _map_of(table, [r for r in rows if r["rows"] != "refused"])
    lines += ["", "## Published numbers", "", "As their authors report them, on other kernels and GPUs.", ""]
    lines += [_PUBLISHED, ""]
    return "\n".join(lines)


def _against_goals(own: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Medians beside what is aimed at; over several kinds of kernels the median is weighted by rows."""
    yield from ("## What is aimed at", "", (
        "Serving rows; what misses its aim is bold. Expert GEMMs of A100 were measured in SGLang, "
        "whose aim is 10. *Skewed*: tokens routed by a power law, experts of a rank hit and loaded as it says."
    ), "")  # fmt: skip
    yield "| kernels | aim | " + " | ".join(_AIMED_AT[:-1]) + " | aim | l40s |"
    yield "|" + "---|" * 8
    for name, (form, variants, aim, of_l40s) in _GOALS.items():
        cells = []
        for gpu in _AIMED_AT:
            rows = [
                r for r in own
                if (r["form"], r["gpu"], r["rows"]) == (form, gpu, "serving")
                and (r["variant"] in variants or not variants)
            ]  # fmt: skip
            cells.append(_aimed(rows, of_l40s if gpu == "l40s" else _SGLANG_AIM.get((form, gpu), aim)))
        last = _percent(of_l40s) if of_l40s else "-"
        yield (
            f"| {name} | {_percent(aim)} | " + " | ".join(cells[:-1]) + f" | {last} | {cells[-1] if of_l40s else '-'} |"
        )
    yield from ("", "Of GPUs taken for unknown, all of their class with them (GDDR: L40S):", "")
    yield "| kernels | aim | " + " | ".join(_AIMED_AT[:-1]) + " | aim | l40s |"
    yield "|" + "---|" * 8
    for form, (aim, of_gddr) in _GOALS_OF_A_CLASS.items():
        cells = []
        for gpu in _AIMED_AT:
            rows = [r for r in new if (r["form"], r["gpu"], r["unknown"]) == (form, gpu, "class")]
            rows = [r for r in rows if r["variant"] in {"bf16", "kv16"}]
            cells.append(_aimed(rows, of_gddr if gpu == "l40s" else aim))
        yield f"| {form} | {_percent(aim)} | " + " | ".join(cells[:-1]) + f" | {_percent(of_gddr)} | {cells[-1]} |"


def _aimed(rows: Sequence[Mapping[str, Any]], aim: float) -> str:
    if not rows:
        return "-"
    median = sum(r["median"] * r["n"] for r in rows) / sum(r["n"] for r in rows)
    return _percent(median) if round(median, 3) <= aim else f"**{_percent(median)}**"


def _of_new_gpus(new: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    yield from ["", "## A GPU that was never measured", "", (
        "Each GPU predicted by the others' constants and tables alone, as if it had never been measured (*GPU*: its "
        "relatives were), or no GPU of its programming class (*class*). *By*: whose constants stand in. *Median* and "
        "what follows are of serving rows, *all* is the median of all rows, *covered* the share inside p10 to p90."
    ), ""]  # fmt: skip
    yield "| op | variant | GPU | unknown | by | n | form | median | all | mean | p90 | bias | covered |"
    yield "|" + "---|" * 13
    names = ("form_alone", "median", "median_of_all", "mean", "p90", "bias", "covered")
    for r in new:
        yield (
            f"| {r['form']} | {r['variant']} | {r['gpu']} | {r['unknown']} | {r['by']} | {r['n']} | "
            + " | ".join(_percent(r[name]) for name in names) + " |"
        )  # fmt: skip


def _map_of(table: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    what = "left-out rows of every op" if table == "pairs_test" else "the reference data's own table of pairs"
    yield from ["", f"## From a source to a target: {table}", "", (
        f"{what[0].upper()}{what[1:]}. *Roofline* is the target's datasheet, *ratio* the source's time times the ratio "
        "of both rooflines. Regimes are of the measured time on the target; *covered* is the share inside p10 to p90. "
        "*Kin*: how close the two GPUs are."
    ), ""]  # fmt: skip
    yield "| op | source | target | kin | rows | n | median | mean | p90 | bias | covered | roofline | ratio |"
    yield "|" + "---|" * 13
    for r in rows:
        if r["n"] < _ROWS_MIN:
            continue
        kin = relation(load_gpu(r["source_gpu"]), load_gpu(r["target_gpu"])).replace("_", " ")
        names = ("median_ape", "mean_ape", "p90_ape", "bias", "coverage_p10_p90", "roofline_median_ape",
                 "ratio_median_ape")  # fmt: skip
        yield (
            f"| {r['op']} {r['dtype']} | {r['source_gpu']} | {r['target_gpu']} | {kin} | {r['rows']} | {r['n']} | "
            + " | ".join(_percent(r[name]) for name in names) + " |"
        )  # fmt: skip
    yield from ["", (
        "Coverage of all rows, per op and class of the target, aimed at 75 to 85. *Measured*: rows of the target, each "
        "once however many sources ask for it; *±* is one standard error of that many, and a figure outside by two "
        "of them or more is bold. Of collectives over PCIe (L40S) the host decides, and one was measured."
    ), "", "| op | class | n | measured | covered | ± |", "|" + "---|" * 6]  # fmt: skip
    pooled: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for r in rows:
        if r["rows"] == "all":
            pooled.setdefault((r["op"], load_gpu(r["target_gpu"]).programming_class), []).append(r)
    for (op, class_), some in sorted(pooled.items()):
        n = [r["n"] for r in some]
        covered = float(np.average([r["coverage_p10_p90"] for r in some], weights=n))
        told, count, error = _coverage(covered, some)
        yield f"| {op} | {class_} | {sum(n)} | {count} | {told} | {_percent(error)} |"


def _coverage(covered: float, rows: Sequence[Mapping[str, Any]]) -> tuple[str, int, float]:
    """As it is shown, the target's rows it is of, and its standard error."""
    most: dict[tuple[str, str], int] = {}
    for r in rows:  # several sources ask for the same row of a target
        key = r["target_gpu"], r["dtype"]
        most[key] = max(most.get(key, 0), r["n"])
    count = sum(most.values())
    error = float(np.sqrt(covered * (1 - covered) / count))
    beyond = max(_COVERED[0] - covered, covered - _COVERED[1])
    return f"**{_percent(covered)}**" if beyond > 2 * error else _percent(covered), count, error


def _kind(sample: Sample) -> str:
    """Row-wise ops and collectives are samples of their own; their constants may be shared."""
    for name in ("kind", "collective"):
        if name in sample.columns and len(sample.columns[name]):
            return str(sample.columns[name][0])
    return ""


def _shapes(sample: Sample, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(sample.columns[name].tolist() for name in columns), strict=True))


def _values(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(str) if column.dtype == object else column.astype(np.float64)


def _every_fourth(axis: Floats) -> NDArray[np.bool_]:
    """Inner values only: beyond the ends of a table is another question."""
    values = np.unique(axis)
    out: NDArray[np.bool_] = np.isin(axis, values[2:-1:4])
    return out


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f}"


if __name__ == "__main__":
    sys.exit(main())
