"""What measurements say of GPUs like a run's: the nearest one measured, its error, and how often intervals held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_schemas.gpu import GpuSpec, UnknownGpu, load_gpu

from services.kernels.correction import relation
from services.kernels.work import Family
from services.runtime.engine import Report

NOMINAL_COVERAGE = 0.8  # p10 to p90
_KIN = ("same", "same_die", "same_capability", "same_class", "other_class")

# The error map's words for families; row-wise kernels of all kinds are one.
_OPS = {
    Family.GEMM: ("gemm", "gemm"),
    Family.ATTENTION_PREFILL: ("prefill", "attention_prefill"),
    Family.ATTENTION_DECODE: ("decode", "attention_decode"),
    Family.MLA: ("mla", "mla"),
    Family.MOE_GEMM: ("moe", "moe"),
    Family.COLLECTIVE: ("collective", "collective"),
}
_ROWWISE = ("rowwise", "elementwise")


@dataclass(frozen=True, slots=True)
class _Measured:
    """One op on one GPU, or on one class of GPUs: rows, and a figure of them in per cent."""

    op: str
    of: str
    count: int
    percent: float


def known_errors(
    gpus: Mapping[str, GpuSpec], family_ns: Mapping[str, float], error_map: Mapping[str, Any]
) -> list[Report]:
    """Per config id what is known of errors there, over the families of a run weighted by the time they take.

    error_map: of accuracy_map. Where no GPU like a config was measured, its `nearest` is None.
    """
    errors = list(_rows(error_map, "GPU", "mean"))
    covered = list(_rows(error_map, "class", "covered"))
    return [{"config_id": config_id} | _of_config(gpu, family_ns, errors, covered) for config_id, gpu in gpus.items()]


def _of_config(
    gpu: GpuSpec, family_ns: Mapping[str, float], errors: Sequence[_Measured], covered: Sequence[_Measured]
) -> Report:
    near = _nearest(gpu, {row.of for row in errors})
    error = _weighted(family_ns, [row for row in errors if near is not None and row.of == near[0]], 0)
    held = _weighted(family_ns, [row for row in covered if row.of == gpu.programming_class], 1)
    return {
        "nearest": near and near[0],
        "kin": near and near[1],
        "mean_ape": error and error[0],
        "row_count": error[1] if error else 0,
        "nominal_coverage": NOMINAL_COVERAGE,
        "coverage": held and held[0],
        "coverage_row_count": held[1] if held else 0,
    }


def _nearest(gpu: GpuSpec, measured: set[str]) -> tuple[str, str] | None:
    """The measured GPU that shares most with this one, and how much that is; of equals the one with the likest DRAM."""
    found: list[tuple[int, float, str]] = []
    for name in sorted(measured):
        try:
            other = load_gpu(name)
        except UnknownGpu:
            continue
        found.append(
            (_KIN.index(relation(other, gpu)), abs(math.log(other.dram_bytes_per_s / gpu.dram_bytes_per_s)), name)
        )
    if not found:
        return None
    kin, _, name = min(found)
    return name, _KIN[kin]


def _weighted(family_ns: Mapping[str, float], rows: Sequence[_Measured], word: int) -> tuple[float, int] | None:
    """Mean of a figure over families by their time, as a ratio, and the rows behind it; None without any."""
    whole = total = 0.0
    counts: dict[str, int] = {}
    for family, time_ns in family_ns.items():
        op = _OPS.get(Family(family), _ROWWISE)[word] if family in set(Family) else _ROWWISE[word]
        members = [row for row in rows if row.op == op]
        count = sum(row.count for row in members)
        if count == 0 or time_ns <= 0:
            continue
        counts[op] = count
        total += time_ns * sum(row.count * row.percent for row in members) / count
        whole += time_ns
    return (total / whole / 100, sum(counts.values())) if whole else None


def _rows(error_map: Mapping[str, Any], of: str, figure: str) -> Iterator[_Measured]:
    """The rows of the tables that have an op, a GPU or class, a count and this figure, predicted by its own constants:
    not those from a source GPU, nor those of a GPU taken for unknown.
    """
    for section in error_map["sections"]:
        for table in section["tables"]:
            columns = table["columns"]
            if not {"op", of, "n", figure} <= set(columns) or {"source", "unknown"} & set(columns):
                continue
            for cells in table["rows"]:
                row = dict(zip(columns, cells, strict=True))
                if row.get("rows", "all") == "all" and row["n"] and row[figure] is not None:
                    yield _Measured(str(row["op"]), str(row[of]), int(row["n"]), float(row[figure]))
