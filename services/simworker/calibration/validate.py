"""Scores the analytic simulator on measured pairs: the same shape on a source and a target GPU.

Per op and pair of GPUs, cold rows apart, beside the two baselines anyone has without a model: the datasheet roofline
of the target, and the source's time times the ratio of both rooflines. Errors and coverage are ratios: 0.05 is 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import GpuSpec, UnknownGpu, load_gpu

from services.kernels.correction import alpha, corrected, sigma_factor
from services.kernels.work import Family, Floats, Math, WorkTable
from services.simworker.calibration.constants import Constants
from services.simworker.calibration.tables import (
    Columns,
    attention_work,
    collective_work,
    elementwise_bytes,
    gemm_work,
    kv_write_work,
    mla_work,
    moe_call,
    quantised_gemm,
    read_columns,
    rowwise_kind,
    rowwise_work,
    select,
)
from services.simworker.simulators.analytic.shapes import OP_2024
from services.simworker.simulators.analytic.simulator import AnalyticSimulator
from services.simworker.simulators.base import Z90
from services.simworker.simulators.roofline import RooflineSimulator

OPS = ("gemm", "attention_prefill", "attention_decode", "elementwise", "collective", "mla", "moe")
DURATIONS = {"cold < 10 µs": (0.0, 10.0), "cold 10-100 µs": (10.0, 100.0), "cold > 100 µs": (100.0, np.inf)}
_BF16 = frozenset({"bf16", "bfloat16", "fp16", "half"})
# The benchmark of the GEMM tables rotates six copies of the weights.
_WEIGHT_COPIES = 6.0


class InvalidPairs(ValueError):
    """A table of pairs that lacks a column."""


def validate(pairs: Path, constants: Constants | None = None, *, detailed: bool = False) -> list[dict[str, Any]]:
    """One row per op, source, target and regime ("cold", "all"), and one per op and pair that is refused. Detailed:
    per dtype too, and by how long a cold kernel takes.
    """
    columns = read_columns(pairs)
    for needed in ("op", "source_gpu", "source_us", "target_gpu", "target_us", "cold"):
        if needed not in columns:
            raise InvalidPairs(f"{pairs}: no column {needed!r}; a table of pairs has op, shape columns, source_gpu, "
                               "source_us, target_gpu, target_us and cold")  # fmt: skip
    simulator = AnalyticSimulator(thread_count=1, constants=constants)
    parts = ("op", "source_gpu", "target_gpu", *(("dtype", "kv_dtype") if detailed else ()))
    keys = zip(*(columns[name].astype(str) for name in parts), strict=True)
    names = np.array(["\t".join(key) for key in keys], dtype=object)
    rows: list[dict[str, Any]] = []
    for name in sorted(set(names)):
        op, source_name, target_name, *types = name.split("\t")
        pair = select(columns, names == name)
        head = {"op": op, "source_gpu": source_name, "target_gpu": target_name}
        try:
            source, target = load_gpu(source_name), load_gpu(target_name)
        except UnknownGpu as unknown:
            rows.append({**head, "rows": "refused", "n": len(pair["op"]), "reason": str(unknown)})
            continue
        if op not in OPS:
            rows.append(
                {**head, "rows": "refused", "n": len(pair["op"]), "reason": f"{op!r} is none of {', '.join(OPS)}"}
            )
            continue
        head = {"op": op, "source_gpu": source.gpu, "target_gpu": target.gpu, **_dtype(types)}
        scored = _scored(simulator, op, pair, source, target)
        cold = pair["cold"].astype(bool)
        regimes = {"cold": cold, "all": np.ones(len(cold), dtype=bool)}
        if detailed:
            us = scored["measured"] / 1e3
            regimes |= {name: cold & (low <= us) & (us < high) for name, (low, high) in DURATIONS.items()}
        for regime, mask in regimes.items():
            if mask.any():
                rows.append({**head, "rows": regime, **_summary({k: v[mask] for k, v in scored.items()})})
    return rows


def pair_works(op: str, c: Columns) -> tuple[WorkTable, tuple[WorkTable, ...]]:
    """The kernel that a row measures, and the kernels that the measured call contains beside it. All rows have one
    dtype.
    """
    dtype = str(c["dtype"][0]) if "dtype" in c else "bf16"
    if op == "gemm":
        # The table's column "batch" is attention's.
        sizes = {name: c[name] for name in ("m", "n", "k")}
        if dtype in _BF16:
            return gemm_work(sizes, Math.BF16, 16, 16, _WEIGHT_COPIES), ()
        work, companions = quantised_gemm(dtype, sizes, _WEIGHT_COPIES)
        return work, tuple(companion.work for companion in companions)
    if op == "moe":
        work, companions = moe_call("bf16" if dtype in _BF16 else dtype, c)
        return work, tuple(companion.work for companion in companions)
    if op == "mla":
        return mla_work(c, 8.0 if dtype == "fp8" else 16.0), ()
    if op in {"attention_prefill", "attention_decode"}:
        return attention_work(c, Family(op)), (kv_write_work(c),)
    if op == "collective":
        return collective_work(c), ()
    kinds = c["kind"].astype(str)
    families = np.array([str(rowwise_kind(kind)[0]) for kind in kinds], dtype=object)
    names = np.array([rowwise_kind(kind)[1] for kind in kinds], dtype=object)
    bits = np.where(c["dtype"].astype(str) == "fp32", 4.0, 2.0)
    moved = elementwise_bytes(kinds, c["rows"].astype(float), c["width"].astype(float), 1.0) * bits
    return rowwise_work(c, names, moved, families), ()


def _dtype(types: list[str]) -> dict[str, str]:
    """The one that tells kernels apart: the cache's for attention."""
    if not types:
        return {}
    dtype, kv_dtype = types
    return {"dtype": kv_dtype if kv_dtype == "fp8" else dtype}


def _scored(simulator: AnalyticSimulator, op: str, c: Columns, source: GpuSpec, target: GpuSpec) -> dict[str, Floats]:
    kernel, beside = pair_works(op, c)
    roofline = RooflineSimulator()
    gpus = [source, target]
    main = simulator.simulate(kernel, gpus)
    model = main.duration_ns.astype(float)
    baseline = roofline.simulate(kernel, gpus).duration_ns.astype(float)
    for companion in beside:
        model = model + simulator.simulate(companion, gpus).duration_ns
        baseline = baseline + roofline.simulate(companion, gpus).duration_ns
    measured_source, measured = c["source_us"].astype(float) * 1e3, c["target_us"].astype(float) * 1e3
    families = kernel.text("family")
    # Ops of 2024 have constants of their own, and so less of a residual in common than today's kernels.
    word = {f: OP_2024 if op == "elementwise" else str(f) for f in set(families)}
    shares = {f: (alpha(source, target, w), sigma_factor(source, target, w)) for f, w in word.items()}
    share = np.array([shares[f][0] for f in families])
    predicted = corrected(model[1], model[0], measured_source, share)
    sigma = main.sigma[1].astype(float) * np.array([shares[f][1] for f in families])
    return {
        "measured": measured,
        "predicted": predicted,
        "p10": predicted * np.exp(-Z90 * sigma),
        "p90": predicted * np.exp(Z90 * sigma),
        "roofline": baseline[1],
        "ratio": measured_source * baseline[1] / baseline[0],
    }


def _summary(scored: Mapping[str, Floats]) -> dict[str, Any]:
    measured = scored["measured"]
    error = scored["predicted"] / measured - 1
    ape = np.abs(error)
    inside = (scored["p10"] <= measured) & (measured <= scored["p90"])

    def median_ape(name: str) -> float:
        return float(np.median(np.abs(scored[name] / measured - 1)))

    return {
        "n": len(measured),
        "median_ape": float(np.median(ape)),
        "mean_ape": float(np.mean(ape)),
        "p90_ape": float(np.quantile(ape, 0.9)),
        "bias": float(np.median(error)),
        "coverage_p10_p90": float(np.mean(inside)),
        "roofline_median_ape": median_ape("roofline"),
        "ratio_median_ape": median_ape("ratio"),
    }


def table_text(rows: list[dict[str, Any]]) -> str:
    """The rows as aligned text, errors in per cent."""
    heading = (
        f"{'op':18} {'source':14} {'target':14} {'rows':7} {'n':>6} {'median':>8} {'mean':>8} {'p90':>8} {'bias':>8} "
        f"{'covered':>8} {'roofline':>9} {'x ratio':>9}"
    )
    lines = [heading]
    for row in rows:
        start = f"{row['op']:18} {row['source_gpu']:14} {row['target_gpu']:14} {row['rows']:7} {row['n']:6d} "
        if row["rows"] == "refused":
            lines.append(start + row["reason"])
            continue
        names = ("median_ape", "mean_ape", "p90_ape", "bias", "coverage_p10_p90")
        lines.append(
            start
            + " ".join(f"{100 * row[name]:7.2f}%" for name in names)
            + f" {100 * row['roofline_median_ape']:8.1f}% {100 * row['ratio_median_ape']:8.1f}%"
        )
    return "\n".join(lines)
