"""Two to eight answers side by side: ratios with intervals that know which errors two predictions share.

The same kernel is misjudged alike on two GPUs as far as they run the same code. `alpha` (correction.json) is how far,
measured on pairs of GPUs: the share of one's residual that the other inherits. So of the variances of ln(time) of one
family on two configs, the share alpha of the smaller cancels in their ratio:

    var ln(b ÷ a) = a² + b² - 2 · alpha · min(a, b)²

Errors of one family are fully correlated over its kernels, those of two families independent, as in compose.py. What
a measurement has already corrected is treated the same: how much of the rest is shared was not measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_schemas.gpu import GpuSpec

from services.aggregator import ttft
from services.aggregator.compose import Z90
from services.aggregator.lanes import shape_of
from services.aggregator.queries import Report, UnknownRun
from services.aggregator.store import Store
from services.kernels.correction import alpha

COUNT_LIMIT = 8


class Incomparable(ValueError):
    """What was asked to be compared cannot be; one sentence."""


@dataclass(frozen=True, slots=True)
class _Version:
    """One config of a run, with its kernels by task."""

    place: int
    run_id: str
    row: Report
    gpu: GpuSpec
    kernels: list[Report]

    @property
    def name(self) -> str:
        return f"{self.run_id}.{self.row['config_id']}"


def compare(store: Store, asked: Sequence[str], base: str | None = None) -> Report:
    """asked: `run.config` each, two to eight; base: one of them, else the first. Raises UnknownRun, Incomparable."""
    if not 2 <= len(asked) <= COUNT_LIMIT:
        raise Incomparable(f"{len(asked)} versions were named; compare two to {COUNT_LIMIT}: v=RUN.CONFIG&v=RUN.CONFIG")
    if base is not None and base not in asked:
        raise Incomparable(f"base={base!r} is not among the versions compared: {', '.join(asked)}")
    versions = [_version(store, place, text) for place, text in enumerate(asked)]
    first = versions[asked.index(base) if base is not None else 0]
    differs = _differences(versions)
    key = "task_id" if len({version.row["trace_id"] for version in versions}) == 1 else "name"
    metric = _metric(versions)
    counts = {version.row["trace_id"]: _counts(store, version.row["trace_id"], metric) for version in versions}
    comparable = not any(found["is_fatal"] for found in differs)
    tables = [_by_key(version, key) for version in versions]
    return {
        "base": first.place,
        "matched_by": "launch" if key == "task_id" else "kernel name",
        "is_comparable": comparable,
        "differs": differs,
        "metric": metric,
        "versions": [_about(version) for version in versions],
        "comparisons": [
            _comparison(first, version, metric, counts, is_comparable=comparable)
            for version in versions
            if version.place != first.place
        ],
        "kernels": _kernels(versions, tables, first),
    }


# --- one version ----------------------------------------------------------------------------------------------------


def _version(store: Store, place: int, text: str) -> _Version:
    run_id, dot, config_id = text.partition(".")
    rows = store.query(
        """select c.*, s.spec, r.trace_id, r.simulator, r.trace_name, r.model_name, r.status
        from configs c join run_configs s using (run_id, config_id) join runs r using (run_id)
        where run_id = ? and (config_id = ? or c.label = ?)""",
        [run_id, config_id, config_id],
    )
    if not dot or not rows:
        raise UnknownRun(f"{text[:200]!r} is no RUN.CONFIG; a run's configs are listed at /api/runs/RUN")
    row = rows[0]
    kernels = store.query(
        """select s.task_id, k.name, k.op, k.task, s.family, s.bound, s.reason, s.sigma_ppm, p.launch_count,
            coalesce(p.duration_ns, s.duration_ns) as duration_ns, coalesce(p.p10_ns, s.p10_ns) as p10_ns,
            coalesce(p.p90_ns, s.p90_ns) as p90_ns, p.measured_ns, p.error_ppm
        from simulations s left join predicted_kernels p using (run_id, config_id, task_id)
            left join tasks k on k.trace_id = ? and k.task_id = s.task_id
        where s.run_id = ? and s.config_id = ? and s.stands""",
        [row["trace_id"], run_id, row["config_id"]],
    )
    return _Version(place, run_id, row, GpuSpec.model_validate_json(row["spec"], extra="ignore"), kernels)


def _about(version: _Version) -> Report:
    row = version.row
    return {name: row[name] for name in _SHOWN} | {
        "v": version.name,
        "kernel_time_ns": row["kernel_ns"],
        "infeasible": row["infeasible"] or None,
    }


_SHOWN = (
    "run_id", "config_id", "label", "gpu", "gpu_name", "trace_id", "trace_name", "model_name", "simulator", "status",
    "provenance", "coverage_ppm", "ttft_ns", "ttft_p10_ns", "ttft_p90_ns", "tpot_ns", "tpot_p10_ns", "tpot_p90_ns",
)  # fmt: skip


def _differences(versions: Sequence[_Version]) -> list[Report]:
    """Which fields differ, and whether that leaves nothing to compare kernel by kernel."""
    fields = (("trace", "trace_id"), ("model", "model_name"), ("provenance", "provenance"), ("simulator", "simulator"))
    found = []
    for name, column in fields:
        values = [version.row[column] for version in versions]
        if len(set(values)) > 1:
            shown = [version.row["trace_name"] for version in versions] if name == "trace" else values
            found.append({"field": name, "values": shown, "is_fatal": name == "model"})
    return found


def _metric(versions: Sequence[_Version]) -> str:
    """What all of them have: TPOT, else TTFT, else the sum of kernel times."""
    feasible = [version.row for version in versions if not version.row["infeasible"]]
    for metric in ("tpot", "ttft"):
        if feasible and all(row[f"{metric}_ns"] is not None for row in feasible):
            return metric
    return "kernel_time"


def _value(version: _Version, metric: str) -> int | None:
    found = version.row["kernel_ns" if metric == "kernel_time" else f"{metric}_ns"]
    return None if found is None else int(found)


def _counts(store: Store, trace_id: str, metric: str) -> tuple[dict[str, int], int]:
    """Launches per task in the steps that the metric is made of, and over how many steps it is a mean."""
    if metric == "kernel_time":
        rows = store.query(
            "select task_id, count(*) as n from launches where trace_id = ? group by task_id", [trace_id]
        )
        return {row["task_id"]: row["n"] for row in rows}, 1
    traced = store.load_steps(trace_id)
    first_rank = min((rank for rank, _ in traced), default=0)
    steps = [step for (rank, _), step in sorted(traced.items()) if rank == first_rank]
    started = store.query("select prompts from trace_starts where trace_id = ?", [trace_id])
    span = ttft.measured_request(steps, tuple(json.loads(started[0]["prompts"] or "[]")) if started else ())
    chosen = span.generating_steps if metric == "tpot" else span.prefill_steps
    rows = store.query(
        """select task_id, count(*) as n from launches
        where trace_id = ? and rank = ? and list_contains(?::integer[], step) group by task_id""",
        [trace_id, first_rank, list(chosen)],
    )
    return {row["task_id"]: row["n"] for row in rows}, max(len(chosen), 1) if metric == "tpot" else 1


# --- ratios ---------------------------------------------------------------------------------------------------------


def ratio_sigma(sigma_a: float, sigma_b: float, shared: float) -> float:
    """Of ln(b ÷ a), see above; `shared`: alpha of the two GPUs and the family."""
    return math.sqrt(max(sigma_a**2 + sigma_b**2 - 2 * shared * min(sigma_a, sigma_b) ** 2, 0.0))


def _shared(a: _Version, b: _Version, family: str) -> float:
    return 1.0 if a.gpu == b.gpu else max(alpha(a.gpu, b.gpu, family), alpha(b.gpu, a.gpu, family))


def _sigma(kernel: Mapping[str, Any]) -> float:
    """Of the time shown, from its own interval."""
    duration, high = kernel["duration_ns"], kernel["p90_ns"]
    return math.log(high / duration) / Z90 if duration and high and high > duration else 0.0


def _ratio(value: float, sigma: float) -> Report:
    spread = math.exp(Z90 * sigma)
    return {"value": value, "p10": value / spread, "p90": value * spread}


def _comparison(
    base: _Version,
    other: _Version,
    metric: str,
    counts: Mapping[str, tuple[dict[str, int], int]],
    *,
    is_comparable: bool,
) -> Report:
    start, end = _value(base, metric), _value(other, metric)
    report: Report = {"v": other.name, "place": other.place, "start_ns": start, "end_ns": end, "ratio": None}
    report |= {"delta_ns": None, "waterfall": [], "verdict": "unknown"}
    said = f"{other.row['label']} against {base.row['label']}"
    for version in (other, base):
        if version.row["infeasible"]:
            return report | {
                "verdict": "infeasible",
                "sentence": f"{version.row['label']} is infeasible: {version.row['infeasible']}",
            }
    if start is None or end is None or not start:
        return report | {"sentence": f"{said}: no answer yet; one of them is still being simulated"}
    before, after = (_families(version, *counts[version.row["trace_id"]]) for version in (base, other))
    sigma = _total_sigma(base, other, before, after)
    ratio = _ratio(end / start, sigma)
    bars = _waterfall(before, after, end - start)
    report |= {"ratio": ratio, "delta_ns": end - start, "waterfall": bars}
    if not is_comparable:
        return report | {
            "verdict": "incomparable",
            "sentence": f"{said}: they ran different models, so the ratio is of two different jobs",
        }
    word = {"tpot": "TPOT", "ttft": "TTFT", "kernel_time": "kernel time"}[metric]
    bounds = f"{word} {ratio['value']:.2f}x ({ratio['p10']:.2f} to {ratio['p90']:.2f})"
    if ratio["p10"] <= 1 <= ratio["p90"]:
        return report | {"verdict": "too close to call", "sentence": f"{said}: too close to call, {bounds}"}
    verdict = "faster" if ratio["value"] < 1 else "slower"
    largest = max(bars, key=lambda bar: abs(bar["delta_ns"]), default=None)
    why = f"; most of it in {largest['label']}" if largest else ""
    return report | {"verdict": verdict, "sentence": f"{said}: {verdict}, {bounds}{why}"}


@dataclass
class _Family:
    total_ns: float = 0.0
    spread_ns: float = 0.0  # Σ time · sigma


def _families(version: _Version, counts: Mapping[str, int], step_count: int) -> dict[str, _Family]:
    """Kernel time per step (or in all) by family."""
    found: dict[str, _Family] = {}
    for kernel in version.kernels:
        time = (kernel["duration_ns"] or 0) * counts.get(kernel["task_id"], 0) / step_count
        if time > 0:
            family = found.setdefault(str(kernel["family"]), _Family())
            family.total_ns += time
            family.spread_ns += time * _sigma(kernel)
    return found


def _total_sigma(base: _Version, other: _Version, before: Mapping[str, _Family], after: Mapping[str, _Family]) -> float:
    whole_before = sum(family.total_ns for family in before.values()) or 1.0
    whole_after = sum(family.total_ns for family in after.values()) or 1.0
    nothing = _Family()
    variance = 0.0
    for name in sorted({*before, *after}):
        a = before.get(name, nothing).spread_ns / whole_before
        b = after.get(name, nothing).spread_ns / whole_after
        variance += ratio_sigma(a, b, _shared(base, other, name)) ** 2
    return math.sqrt(variance)


def _waterfall(before: Mapping[str, _Family], after: Mapping[str, _Family], delta_ns: int) -> list[Report]:
    """Bars in whole nanoseconds that add up to the difference: one per family, and what is no kernel's time."""
    nothing = _Family()
    bars = [
        {"label": name, "delta_ns": round(after.get(name, nothing).total_ns - before.get(name, nothing).total_ns)}
        for name in sorted({*before, *after})
    ]
    bars.sort(key=lambda bar: -abs(int(str(bar["delta_ns"]))))
    rest = delta_ns - sum(int(str(bar["delta_ns"])) for bar in bars)
    if rest:
        bars.append({"label": "gaps, overlap and rounding", "delta_ns": rest})
    return [bar for bar in bars if bar["delta_ns"]]


# --- kernels --------------------------------------------------------------------------------------------------------


def _by_key(version: _Version, key: str) -> dict[str, Report]:
    """Kernels by what matches them; those of one name are taken together."""
    found: dict[str, Report] = {}
    for kernel in version.kernels:
        count = kernel["launch_count"] or 0
        known = kernel["duration_ns"] is not None
        one = found.setdefault(
            kernel[key],
            {
                "name": kernel["name"],
                "op": kernel["op"],
                # Tasks that are taken together by name have many.
                "shape": shape_of(kernel["task"]) if key == "task_id" and kernel["task"] else "",
                "family": kernel["family"],
                "bound": kernel["bound"],
                "count": 0,
                "total_ns": 0,
                "spread_ns": 0.0,
                "longest_ns": -1,
            },
        )
        one["count"] += count
        if known:
            total = kernel["duration_ns"] * max(count, 1)
            one["total_ns"] += total
            one["spread_ns"] += total * _sigma(kernel)
            if total > one["longest_ns"]:
                one["longest_ns"], one["bound"] = total, kernel["bound"]
    return found


def _kernels(versions: Sequence[_Version], tables: Sequence[Mapping[str, Report]], base: _Version) -> list[Report]:
    rows = []
    for key in dict.fromkeys(key for table in tables for key in table):
        found = [table.get(key) for table in tables]
        named = next(one for one in found if one is not None)
        reference = found[base.place]
        rows.append(
            {
                "key": key,
                "name": named["name"],
                "op": named["op"],
                "shape": named["shape"],
                "family": named["family"],
                "versions": [
                    None if one is None else _cell(one, reference, base, version)
                    for one, version in zip(found, versions, strict=True)
                ],
            }
        )
    rows.sort(key=lambda row: (-max((cell["total_ns"] or 0) for cell in row["versions"] if cell), row["key"]))
    return rows


def _cell(one: Report, reference: Report | None, base: _Version, version: _Version) -> Report:
    is_known = one["longest_ns"] >= 0
    cell: Report = {
        "count": one["count"],
        "total_ns": one["total_ns"] if is_known else None,
        "duration_ns": one["total_ns"] / max(one["count"], 1) if is_known else None,
        "bound": one["bound"],
        "delta_ns": None,
        "ratio": None,
    }
    if is_known and reference is not None and reference["longest_ns"] >= 0 and reference["total_ns"]:
        a, b = (x["spread_ns"] / x["total_ns"] for x in (reference, one))
        sigma = 0.0 if version is base else ratio_sigma(a, b, _shared(base, version, str(one["family"])))
        cell["delta_ns"] = one["total_ns"] - reference["total_ns"]
        cell["ratio"] = _ratio(one["total_ns"] / reference["total_ns"], sigma)
    return cell
