"""Why this number: a task's time on a config as an ordered receipt whose lines multiply and add to the number shown.

Three sums, each of which the reader can do again: terms add up to the form's time; times the table's factor, rounded,
it is the forward prediction; times the source correction, rounded, it is the value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from cascade_schemas.gpu import GpuSpec, UnknownGpu, figure_sources, load_gpu
from cascade_schemas.task import KernelTask

from services.aggregator.compose import Z90
from services.aggregator.predict import SAME_KERNEL_SIGMA, runs_code
from services.aggregator.queries import UnknownRun
from services.aggregator.store import Store
from services.kernels.correction import alpha, corrected, relation, sigma_factor
from services.kernels.work import Family, Work, WorkTable
from services.kernels.work_of import work_of
from services.runtime.engine import Report
from services.simworker.calibration.scored import scored_rows
from services.simworker.simulators.analytic.explain import Explanation, explain
from services.simworker.simulators.analytic.simulator import AnalyticSimulator
from services.simworker.simulators.roofline import flop_rate

_TERMS = ("tensor", "dram", "l2", "issue")

_FLOP_FORMULA = {
    Family.GEMM: "2 · m · n · k · batch",
    Family.MOE_GEMM: "2 · m · topk · n · k",
    Family.ATTENTION_PREFILL: "4 · heads · head_dim · query-key pairs",
    Family.ATTENTION_DECODE: "4 · heads · head_dim · query-key pairs",
    Family.ATTENTION_MIXED: "4 · heads · head_dim · query-key pairs",
    Family.MLA: "2 · heads · (576 + 512) · query-key pairs",
}
_WORK_FROM = {
    "shapes": "operand shapes in the trace",
    "solved": "solved from the model's configuration and the step's tokens",
    "grid": "inferred from the launch configuration",
    "nothing": "a bounded guess: the trace does not tell",
}
_RELATION = {
    "same": "the same chip",
    "same_die": "the same die with other memory",
    "same_capability": "another chip of the same compute capability",
    "same_class": "another architecture, programmed alike",
    "other_class": "tensor cores that are programmed differently",
}
_LIMIT_SAYS = {
    "tensor": "arithmetic",
    "dram": "bytes through DRAM",
    "link": "bytes through the link between GPUs",
    "l2": "bytes through L2",
    "issue": "serial parts, special functions, tile and wave remainders",
    "launch": "launch, prologue and epilogue",
}


def receipt(store: Store, analytic: AnalyticSimulator, run_id: str, config_id: str, task_id: str) -> Report:
    """Raises UnknownRun where the run has no such config or no result of such a task yet."""
    row = _row(store, run_id, config_id, task_id)
    gpu = GpuSpec.model_validate_json(row["spec"], extra="ignore")
    task = KernelTask.model_validate_json(row["task"], extra="ignore")
    work = work_of(task)
    taken = explain(analytic, WorkTable.of([work]), gpu)
    # Numbers of another version of the simulator or of its constants are shown as stored, and not taken apart anew.
    is_own = row["simulator"] == analytic.name and row["forward_ns"] == taken.forward_ns
    lines = [*_inputs(task, work), *_work_lines(work, taken)]
    if row["forward_ns"] is None:
        lines.append(_line("result", "no prediction", formula=row["reason"], source="simulator"))
        return _report(row, gpu, lines, is_own=False)
    lines += _limits(row, gpu, work, taken, is_own=is_own)
    lines.append(_line("subtotal", "forward prediction", value=row["forward_ns"], source=_simulator(row)))
    source = _source_row(store, run_id, task_id, str(row["source_gpu"] or ""), str(row["simulator"]))
    lines += _correction(row, gpu, work, source)
    value_ns = row["duration_ns"] if row["duration_ns"] is not None else row["forward_ns"]
    lines.append(_line("result", "shown time of one launch", value=value_ns, source=_simulator(row)))
    lines += _interval(row, gpu, work, taken, source, is_own=is_own)
    return _report(row, gpu, lines, is_own=is_own)


def _report(row: Mapping[str, Any], gpu: GpuSpec, lines: list[Report], *, is_own: bool) -> Report:
    value = row["duration_ns"] if row["duration_ns"] is not None else row["forward_ns"]
    return {
        "run_id": row["run_id"],
        "config_id": row["config_id"],
        "task_id": row["task_id"],
        "gpu": row["label"],
        "gpu_name": gpu.name,
        "name": row["name"],
        "family": row["family"],
        "bound": row["bound"],
        "tier": row["tier"],
        "reason": row["reason"],
        "provenance": row["provenance"],
        "launch_count": row["launch_count"],
        "value_ns": value,
        "p10_ns": row["p10_ns"] if row["duration_ns"] is not None else row["forward_p10_ns"],
        "p90_ns": row["p90_ns"] if row["duration_ns"] is not None else row["forward_p90_ns"],
        "forward_ns": row["forward_ns"],
        "roofline_ns": row["roofline_ns"],
        "measured_ns": row["measured_ns"],
        "error_ppm": row["error_ppm"],
        "simulator": row["simulator"],
        "simulator_version": row["simulator_version"],
        "calibration_digest": row["calibration_digest"],
        "is_reproduced": is_own,
        "lines": lines,
    }


def _line(
    kind: str,
    label: str,
    *,
    formula: str = "",
    inputs: list[Report] | None = None,
    value: float | None = None,
    factor: float | None = None,
    source: str = "",
    is_largest: bool = False,
) -> Report:
    """kind: input, work, limit (alone, adds nothing), add, multiply, subtotal, result, interval."""
    return {
        "kind": kind,
        "label": label,
        "formula": formula,
        "inputs": inputs or [],
        "value_ns": value,
        "factor": factor,
        "source": source,
        "is_largest": is_largest,
    }


def _given(name: str, value: float | str, unit: str = "", source: str = "") -> Report:
    return {"name": name, "value": value, "unit": unit, "source": source}


# --- inputs and work ------------------------------------------------------------------------------------------------


def _inputs(task: KernelTask, work: Work) -> list[Report]:
    given = [
        _given(f"operand {place}", f"{operand.dtype}[{', '.join(map(str, operand.shape))}]", source=task.operands_from)
        for place, operand in enumerate(task.operands)
    ]
    if task.tokens is not None:
        given.append(_given("tokens", task.tokens, source="engine step"))
    if task.kv_lengths:
        given.append(_given("requests", len(task.kv_lengths), source="engine step"))
        given.append(_given("new tokens", sum(task.q_lengths), source="engine step"))
        given.append(_given("tokens attended to", sum(task.kv_lengths), source="engine step"))
    if task.ranks > 1:
        given.append(_given("ranks", task.ranks, source="trace"))
    if work.family == Family.MOE_GEMM:
        given += _routing(task, work)
    if task.moved_bytes is not None:
        given.append(_given("bytes moved", task.moved_bytes, "B", "trace"))
    given += [_given(name, value, source="attributes") for name, value in sorted(task.attributes.items())]
    signature = task.signature
    launch = [
        _given(name, " x ".join(map(str, dim)), source="trace")
        for name, dim in (("grid", signature.grid), ("block", signature.block), ("cluster", signature.cluster))
        if dim is not None
    ]
    return [
        _line(
            "input",
            "kernel",
            formula=signature.name,
            inputs=[_given("op", task.op or "not named"), *launch],
            source=f"recognised as {work.family}, by {work.library}",
        ),
        _line("input", "shapes", inputs=given, source=_WORK_FROM[str(work.work_from)]),
    ]


def _routing(task: KernelTask, work: Work) -> list[Report]:
    source = "rows of each expert" if task.tokens_per_expert else "assumed: tokens spread evenly over the experts"
    return [
        _given("experts hit", round(work.experts_hit, 1), source=source),
        _given("rows of the busiest expert", round(work.rows_busiest_expert, 1), source=source),
    ]


def _work_lines(work: Work, taken: Explanation) -> list[Report]:
    amount = taken.work
    flop, read, write, link = (
        float(getattr(amount, name)[0]) for name in ("flop", "read_bytes", "write_bytes", "link_bytes")
    )
    source = _WORK_FROM[str(work.work_from)]
    lines = [
        _line(
            "work",
            "arithmetic",
            formula=_FLOP_FORMULA.get(work.family, "operations of this kind of kernel per element"),
            inputs=[_given("FLOP", flop, "FLOP"), _given("arithmetic", str(work.math))],
            source=source,
        ),
        _line(
            "work",
            "bytes",
            formula="operands once in, results once out, as if nothing were cached",
            inputs=[_given("read", read, "B"), _given("written", write, "B")],
            source=source,
        ),
    ]
    if link:
        lines.append(
            _line(
                "work",
                "message",
                formula="bytes of one GPU, one direction, by the cheapest algorithm",
                inputs=[_given("moved", link, "B"), _given("ranks", work.ranks)],
                source=source,
            )
        )
    return lines


# --- limits ---------------------------------------------------------------------------------------------------------


def _limits(row: Mapping[str, Any], gpu: GpuSpec, work: Work, taken: Explanation, *, is_own: bool) -> list[Report]:
    limits = taken.limits_ns if is_own else {n: float(row[f"{n}_ns"] or 0) for n in (*_TERMS, "launch")}
    total = taken.total_ns if is_own else float(row["forward_ns"])
    linked = work.family == Family.COLLECTIVE
    sources = _figures(gpu)
    lines = []
    for name, value in limits.items():
        shown = "link" if name == "dram" and linked else name
        formula, inputs = _limit_formula(shown, value, gpu, work, taken, sources)
        lines.append(
            _line(
                "limit",
                shown,
                formula=formula,
                inputs=inputs,
                value=value,
                source=_LIMIT_SAYS[shown],
                is_largest=shown == row["bound"],
            )
        )
    longest = max(_TERMS, key=lambda name: limits[name])
    lines.append(
        _line(
            "add",
            f"longest limit: {'link' if longest == 'dram' and linked else longest}",
            value=limits[longest],
            source="the kernel cannot be faster than this",
        )
    )
    rest = total - limits[longest] - limits["launch"]
    lines.append(
        _line("add", "of the other limits, what it does not hide", value=rest, source=_constants(taken, is_own=is_own))
    )
    lines.append(_line("add", "launch floor", value=limits["launch"], source=_constants(taken, is_own=is_own)))
    if is_own and taken.factor != 1:
        how = "by boosted trees over its sizes" if taken.is_by_trees else "interpolated over shapes"
        lines.append(
            _line(
                "multiply",
                "what measured tables say beyond the form",
                factor=taken.factor,
                source=f"residual table of {taken.form} {taken.variant}, {how}",
            )
        )
    return lines


def _limit_formula(
    name: str, value_ns: float, gpu: GpuSpec, work: Work, taken: Explanation, sources: Mapping[str, str]
) -> tuple[str, list[Report]]:
    """The rate is the datasheet's; the share is what constants, tiles and caches leave of it."""
    amount = taken.work
    moved = float(amount.read_bytes[0] + amount.write_bytes[0])
    if name == "tensor":
        rate, is_fallback = flop_rate(str(work.math), gpu)
        field = (
            "fp32" if work.math in {"none", "fp32", "tf32", "fp64"} and rate == gpu.fp32_flop_per_s else str(work.math)
        )
        field = "bf16" if is_fallback and field != "fp32" else field
        unit, key, quantity = "FLOP/s", f"{field}_flop_per_s", float(amount.flop[0])
    elif name == "link":
        rate = float(gpu.link_bytes_per_s or gpu.pcie_bytes_per_s)
        key = "link_bytes_per_s" if gpu.link_bytes_per_s else "pcie_bytes_per_s"
        unit, quantity = "B/s", float(amount.link_bytes[0])
    elif name == "dram":
        rate, unit, key, quantity = float(gpu.dram_bytes_per_s), "B/s", "dram_bytes_per_s", moved
    elif name == "l2":
        rate, unit, key, quantity = float(gpu.l2_bytes_per_s), "B/s", "l2_bytes_per_s", moved
    else:
        return "constants in µs, scaled with the clock" if name == "issue" else "constant in µs", []
    if value_ns <= 0 or quantity <= 0:
        return f"nothing to do for {name}", [_given(key, rate, unit, sources.get(key, ""))]
    share = quantity / (rate * value_ns / 1e9)
    return (
        f"{'FLOP' if unit == 'FLOP/s' else 'bytes'} ÷ ({key} · share)",
        [
            _given("quantity", quantity, unit.removesuffix("/s")),
            _given(key, rate, unit, sources.get(key, "")),
            _given("share", share, "", "what tiles, waves and caches leave of the datasheet's rate"),
        ],
    )


def _figures(gpu: GpuSpec) -> dict[str, str]:
    """Where the GPU's figures are from; an override is named as one."""
    try:
        stock = load_gpu(gpu.gpu)
    except UnknownGpu:
        return dict.fromkeys(GpuSpec.model_fields, "hypothetical chip")
    found = figure_sources(stock.gpu)
    for name in GpuSpec.model_fields:
        if getattr(stock, name) != getattr(gpu, name):
            found[name] = f"override; {stock.gpu} has {getattr(stock, name)}"
    found["l2_bytes_per_s"] = "64 B per clock and SM, as every NVIDIA GPU since Volta"
    return found


def _constants(taken: Explanation, *, is_own: bool) -> str:
    if not is_own:
        return "stored with the result; this server's simulator has other constants"
    return f"constants of {taken.form} {taken.variant} for {taken.level}"


# --- source correction ----------------------------------------------------------------------------------------------


def _source_row(store: Store, run_id: str, task_id: str, source_gpu: str, simulator: str) -> Report | None:
    """The same simulator's forward prediction of the GPU the trace was recorded on, and what was measured there.

    None where nothing was measured.
    """
    if not source_gpu:
        return None
    rows = store.query(
        """select c.spec, s.duration_ns as forward_ns, p.measured_ns
        from run_configs c join simulations s using (run_id, config_id)
            left join predicted_kernels p using (run_id, config_id, task_id)
        where run_id = ? and config_id = ? and task_id = ? and s.simulator = ?""",
        [run_id, load_gpu(source_gpu).config_id, task_id, simulator],
    )
    found = rows[0] if rows else None
    if found is None or not (found["forward_ns"] or 0) > 0 or not (found["measured_ns"] or 0) > 0:
        return None
    return found | {"gpu": GpuSpec.model_validate_json(found["spec"], extra="ignore")}


def _correction(row: Mapping[str, Any], gpu: GpuSpec, work: Work, source: Report | None) -> list[Report]:
    if row["duration_ns"] is None:
        return [_line("multiply", "source correction", factor=1.0, source="the config's answer is not out yet")]
    if source is None:
        reason = "nothing was measured on the GPU the trace was recorded on"
        return [_line("multiply", "source correction", factor=1.0, source=reason)]
    stock: GpuSpec = source["gpu"]
    inputs = [
        _given("measured there", source["measured_ns"], "ns", f"median of its launches on {stock.gpu}"),
        _given("forward there", source["forward_ns"], "ns", "the same simulator, knowing no measured time"),
    ]
    if stock.config_id == gpu.config_id:
        return [
            _line(
                "multiply",
                "source correction",
                formula="measured ÷ forward",
                inputs=inputs,
                factor=source["measured_ns"] / row["forward_ns"],
                source="this is the GPU the trace was recorded on: its own measurement stands",
            )
        ]
    share = alpha(stock, gpu, str(row["family"]), runs_code=runs_code(row["simulator"]))
    one = np.ones(1)
    factor = float(corrected(one, one * source["forward_ns"], one * source["measured_ns"], share)[0])
    if round(row["forward_ns"] * factor) != row["duration_ns"]:
        factor = row["duration_ns"] / row["forward_ns"]  # of a run that an earlier version answered
    whence = "both ran the traced code" if runs_code(row["simulator"]) else "fitted on pairs of GPUs"
    inputs.append(_given("alpha", share, "", f"{_RELATION[relation(stock, gpu)]}; {whence}"))
    formula = "(measured ÷ forward on the source) ^ alpha, within a factor of 2"
    return [
        _line(
            "multiply",
            "source correction",
            formula=formula,
            inputs=inputs,
            factor=factor,
            source=f"kernels of family {work.family}",
        )
    ]


# --- interval -------------------------------------------------------------------------------------------------------


def _interval(
    row: Mapping[str, Any], gpu: GpuSpec, work: Work, taken: Explanation, source: Report | None, *, is_own: bool
) -> list[Report]:
    value = row["duration_ns"] if row["duration_ns"] is not None else row["forward_ns"]
    low = row["p10_ns"] if row["duration_ns"] is not None else row["forward_p10_ns"]
    high = row["p90_ns"] if row["duration_ns"] is not None else row["forward_p90_ns"]
    inputs = []
    forward_sigma = row["sigma_ppm"] / 1e6
    if is_own:
        scored = scored_rows(taken.form, taken.variant, taken.level)
        rests_on = scored.sigma_from if scored and scored.sigma_from else "left-out rows"
        of = f"{rests_on}: {taken.form} {taken.variant}, {taken.level}"
        inputs.append(_given("sigma of the form", taken.form_sigma, "", of))
        if scored is not None:
            inputs.append(_given("n", scored.count, "rows", "measured, left out of the fit, and scored by it"))
        rest = math.sqrt(max(forward_sigma**2 - taken.form_sigma**2, 0))
        if rest > 1e-3:
            inputs.append(_given("added for assumptions", rest, "", str(row["reason"])))
    inputs.append(_given("sigma of the forward prediction", forward_sigma, "", "of ln(measured ÷ predicted)"))
    if source is not None and row["duration_ns"] is not None:
        stock: GpuSpec = source["gpu"]
        if stock.config_id == gpu.config_id:
            inputs.append(
                _given("sigma of a measurement", SAME_KERNEL_SIGMA, "", "repeatability of one kernel on one GPU")
            )
        else:
            runs = runs_code(row["simulator"])
            left = sigma_factor(stock, gpu, str(work.family), runs_code=runs)
            whence = "nobody measured what is left" if runs else "share of sigma, fitted on pairs of GPUs"
            inputs.append(_given("left after the correction", left, "", whence))
    sigma = math.log(high / value) / Z90 if value and high else 0.0
    inputs.append(_given("sigma shown", sigma))
    formula = f"value · exp(∓{Z90:.4f} · sigma)"
    return [
        _line("interval", "p10", formula=formula, inputs=inputs, value=low, source="one measured time in ten is below"),
        _line("interval", "p90", formula=formula, value=high, source="one measured time in ten is above"),
    ]


# --- rows -----------------------------------------------------------------------------------------------------------


def _simulator(row: Mapping[str, Any]) -> str:
    digest = f", calibration {row['calibration_digest']}" if row["calibration_digest"] else ""
    return f"{row['simulator']} version {row['simulator_version'] or '?'}{digest}"


def _row(store: Store, run_id: str, config_id: str, task_id: str) -> Report:
    rows = store.query(
        """select s.* exclude (duration_ns, p10_ns, p90_ns), s.duration_ns as forward_ns,
            s.p10_ns as forward_p10_ns, s.p90_ns as forward_p90_ns,
            p.duration_ns, p.p10_ns, p.p90_ns, p.launch_count, p.measured_ns, p.error_ppm, c.label, c.spec,
            r.provenance, r.source_gpu, t.name, t.task,
            coalesce(v.simulator_version, b.simulator_version) as simulator_version,
            coalesce(v.calibration_digest, b.calibration_digest) as calibration_digest
        from simulations s join run_configs c using (run_id, config_id) join runs r using (run_id)
            join tasks t on t.trace_id = r.trace_id and t.task_id = s.task_id
            left join predicted_kernels p on p.run_id = s.run_id and p.config_id = s.config_id
                and p.task_id = s.task_id
            left join simulator_versions v on v.run_id = s.run_id and v.config_id = s.config_id
                and v.simulator = s.simulator
            left join simulator_starts b on b.run_id = s.run_id and b.config_id = s.config_id
                and b.simulator = s.simulator
        where s.run_id = ? and s.config_id = ? and s.task_id = ? and s.stands""",
        [run_id, config_id, task_id],
    )
    if not rows:
        raise UnknownRun(
            f"run {run_id} has no result of task {task_id[:100]!r} on config {config_id[:100]!r} yet;"
            f" its kernels are listed at /api/runs/{run_id}/kernels"
        )
    return rows[0]
