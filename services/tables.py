"""Reports as text for a terminal. A number never stands without its interval and its provenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cascade_schemas.gpu import GpuSpec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Report = Mapping[str, Any]

_ASSUMPTIONS = {
    "host_time_of_source_machine": "host time was measured without a profiler on the traced machine and taken for all",
    "profiled_steps_stand_for_all": "only some steps were profiled while tracing; they stand for all",
    "host_not_measured": "no unprofiled host baseline: a step is GPU time plus launch gaps; p10 is GPU time alone",
    "host_issue_assumed_in_p90": "p90 of a step is at least a Python host's launch rate for eager launches",
    "experts_routed_evenly": "tokens are spread evenly over experts; say otherwise with --routing when importing",
    "experts_routed_as_told": "tokens are spread over experts as told, by --routing or by the trace",
    "missing_ranks_assumed_equal": "ranks missing from the trace are assumed equal to those present",
}
_PROVENANCE = {
    "recorded-on-cpu": "recorded-on-cpu: real engine steps and shapes, recorded without a GPU; kernels are derived",
    "measured": "measured",
    "synthesized": "synthesized: no engine ran; steps and kernels are made from the model's architecture",
}


def run_table(report: Report) -> RenderableType:
    """GPU, kernel time, steps, TTFT, TPOT with their intervals; provenance, assumptions and reasons below."""
    trace = report["trace"]
    table = Table(
        title=f"{trace.get('name', '')}   run {report['run_id']} {report['status']}",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("GPU", no_wrap=True)
    for name in ("kernel\ntime ms", "prefill\nstep ms", "decode\nstep ms", "TTFT\nms", "TPOT\nms"):
        table.add_column(name, justify="right", no_wrap=True)
    for config in report["configs"]:
        table.add_row(config["gpu"].replace(":", ":\n", 1), *_cells(config))
    lines: list[RenderableType] = [table]
    lines.append(Text(f"provenance: {_PROVENANCE.get(trace.get('provenance') or '', 'unknown')}"))
    lines.extend(Text(line) for line in _footnotes(report))
    return Group(*lines)


def _cells(config: Report) -> list[str]:
    if config["infeasible"]:
        return ["INFEASIBLE", "", "", "", ""]
    kernel = config["kernel_time_ms"]
    whole = None if kernel is None else {"value": kernel, **config["kernel_time_interval_ms"]}
    return [
        estimate(whole),
        estimate(config["prefill_step_ms"]),
        estimate(config["decode_step_ms"]),
        estimate(config["ttft_ms"]),
        estimate(config["tpot_ms"]),
    ]


def _footnotes(report: Report) -> Iterable[str]:
    configs: Sequence[Report] = report["configs"]
    yield "below each value p10-p90; TTFT and TPOT count from the first step's start: no queueing, no network"
    tokens = {config["ttft_prompt_tokens"] for config in configs if config["ttft_ms"]}
    for count in sorted(token for token in tokens if token):
        shown = (config for config in configs if config["ttft_ms"])
        request = next(config["ttft_request"] for config in shown if config["ttft_prompt_tokens"] == count)
        yield f"TTFT is request {request}'s, with the most prompt tokens ({count})"
    for config in (*configs, report["source"]):
        if config and config["error"]:
            yield _error_line(config)
    for name in sorted({name for config in configs for name in config["assumptions"]}):
        yield f"assumption {name}: {_ASSUMPTIONS.get(name, name)}"
    yield from _refinement_lines(report["refinement"])
    for config in configs:
        if config["infeasible"]:
            yield f"{config['gpu']}: infeasible: {config['infeasible']}"
    reasons = [part for c in configs if not c["infeasible"] for part in c["reason"].split("; ") if part]
    yield from dict.fromkeys(reasons)


def _refinement_lines(refinement: Report | None) -> Iterable[str]:
    for config in refinement["configs"] if refinement else ():
        stands = f" {config['taken']} of {config['chosen']} refined results stand" if config["chosen"] else ""
        failed = f", {config['failed']} could not be refined" if config["failed"] else ""
        yield f"refined, {config['gpu']}: {config['sentence'] or 'nothing is chosen yet.'}{stands}{failed}"


def simulators_table(kernels: Sequence[Report]) -> RenderableType:
    """Kernels that more than one simulator was asked of, one row for each of them; * stands."""
    table = Table()
    for name in ("GPU", "kernel", "simulator"):
        table.add_column(name)
    for name in ("ns", "p10-p90", "cycles", "IPC", "measured ns"):
        table.add_column(name, justify="right")
    table.add_column("bound or reason")
    for kernel in kernels:
        for place, said in enumerate(kernel["simulations"]):
            is_failed = said["duration_ns"] is None
            counted = said["statistics"] or {}
            table.add_row(
                "" if place else kernel["gpu"],
                "" if place else str(kernel["name"])[:48],
                f"{said['simulator']}{' *' if said['stands'] else ''}",
                "failed" if is_failed else f"{said['duration_ns']:,}",
                "" if is_failed else f"{said['p10_ns']:,}-{said['p90_ns']:,}",
                "" if said["sm_cycles"] is None else f"{said['sm_cycles']:,}",
                str(counted.get("ipc", "")),
                "" if place or kernel["measured_ns"] is None else f"{kernel['measured_ns']:,}",
                said["reason"] if is_failed else said["bound"],
            )
    return Group(table, Text("* the answer rests on this one: the tighter interval, after the source correction"))


def what_if_text(report: Report) -> str:
    if report["infeasible"]:
        return f"{report['gpu']}: infeasible: {report['infeasible']}"
    named = {"TTFT": report["ttft_ms"], "TPOT": report["tpot_ms"]}
    named |= {"prefill step": report["prefill_step_ms"], "decode step": report["decode_step_ms"]}
    parts = [f"{name} {estimate(value).replace(chr(10), ' ms (')})" for name, value in named.items() if value]
    bound = ", ".join(f"{name} {share:.0%}" for name, share in report["bound_by"].items())
    return f"{report['gpu']}: {'; '.join(parts)}; time bound by {bound}"


def _error_line(config: Report) -> str:
    error = config["error"]
    return (
        f"error on {config['gpu']}, where it was measured (forward prediction, {error['kernels']} kernels): median"
        f" {error['median_ape']:.1%}, mean {error['mape']:.1%}, time-weighted {error['weighted_error']:.1%}, total"
        f" {error['total_error']:+.1%}; datasheet roofline mean {error['roofline_mape']:.1%}"
    )


def estimate(value: Report | None) -> str:
    """The value over its interval, three significant digits, narrow enough for six in 80 columns; - where none is."""
    if value is None:
        return "-"
    return f"{digits(value['value'])}\n{digits(value['p10'])}-{digits(value['p90'])}"


def digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def trace_summary(report: Report) -> RenderableType:
    lines = [f"trace {report['trace_id']}  {report['name']}  {_PROVENANCE.get(report['provenance'] or '', '')}"]
    lines.append(
        f"{report['kernels']} kernels, {report['signatures']} signatures, {report['tasks']} tasks,"
        f" {report['launchless_kernels']} without a launch; source GPU {report['source_gpu'] or 'none'};"
        f" model {report['model'] or 'not given'}; {report['engine']} {report['engine_version']}"
    )
    for step in report["steps"]:
        lines.append(
            f"step {step['step']:4} {step['phase']:8} {step['context_requests']} prefills of"
            f" {step['context_tokens']} tokens, {step['generation_requests']} decodes, {step['kernels']} kernels"
        )
    quality = report["quality"] or {}
    found = [f"{name} {value}" for name, value in quality.items() if isinstance(value, int) and value]
    lines.append(f"quality: {', '.join(found) or 'nothing to report'}")
    lines.extend(quality.get("notes", []))
    lines.append(f"next: cascade run {report['trace_id']} --gpu h100_sxm --gpu b200_sxm")
    return Group(*(Text(line) for line in lines))


def gpu_table(specs: Sequence[GpuSpec]) -> RenderableType:
    table = Table()
    for name in (
        "id",
        "class",
        "SMs",
        "clock\nGHz",
        "bf16\nTFLOP/s",
        "DRAM\nGB/s",
        "DRAM\nGiB",
        "L2\nMiB",
        "link\nGB/s",
    ):
        table.add_column(name, justify="left" if name in ("id", "class") else "right", no_wrap=True)
    for spec in specs:
        table.add_row(
            spec.gpu,
            spec.programming_class,
            str(spec.sm_count),
            f"{spec.boost_hz / 1e9:.2f}",
            f"{spec.bf16_flop_per_s / 1e12:.0f}",
            f"{spec.dram_bytes_per_s / 1e9:.0f}",
            f"{spec.dram_bytes / 2**30:.0f}",
            f"{spec.l2_bytes / 2**20:.0f}",
            f"{spec.link_bytes_per_s / 1e9:.0f}",
        )
    return table


def sql_table(names: Sequence[str], rows: Sequence[Report]) -> RenderableType:
    table = Table()
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in names))
    return table


def sass_table(report: Report) -> RenderableType:
    table = Table()
    for name, justify in (("kernel", "left"), ("cycles", "right"), ("warp instr.", "right"), ("IPC", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("L1 hits", "L2 hits", "DRAM MB"):
        table.add_column(name, justify="right")
    for kernel in report["kernels"]:
        if "error" in kernel:
            table.add_row(kernel["file"], "–", "", "", "", "", "")
            continue
        moved = (kernel["dram_read_bytes"] + kernel["dram_write_bytes"]) / 1e6
        table.add_row(
            f"{kernel['name'][:48]} ({kernel['file']})",
            "deadlock" if kernel["cycles"] is None else f"{'~' if 'sampled' in kernel else ''}{kernel['cycles']:,}",
            f"{kernel['warp_instructions']:,}",
            "" if kernel["ipc"] is None else f"{kernel['ipc']:.2f}",
            _share(kernel["l1_read_hits"], kernel["l1_read_sectors"]),
            _share(kernel["l2_read_hits"], kernel["l2_read_sectors"]),
            f"{moved:.2f}",
        )
    deadlocks = [kernel["deadlock"] for kernel in report["kernels"] if "deadlock" in kernel]
    total = f"{report['cycles']:,} cycles without launch latency; {report['cpu_seconds']:.3f} CPU s"
    return Group(table, *(Text(line) for line in (*report["warnings"], *_sampled_lines(report), *deadlocks, total)))


def _sampled_lines(report: Report) -> list[str]:
    """How many kernels were simulated in part, and what such parts were off where they were measured."""
    by: dict[str, list[Report]] = {}
    for kernel in report["kernels"]:
        if "sampled" in kernel:
            by.setdefault(kernel["sampled"]["by"], []).append(kernel["sampled"])
    return [
        f"~ {len(found)} kernels sampled by {name}: {sum(one['thread_blocks'] for one in found):,} of "
        f"{sum(one['of_thread_blocks'] for one in found):,} thread blocks; cycles were off by "
        f"{found[0]['measured_error']['mean']:.1%} on average and {found[0]['measured_error']['worst']:.1%} at most in "
        f"{found[0]['measured_error']['kernels']} kernels that were simulated whole as well"
        for name, found in by.items()
    ]


def sass_comparison_table(report: Report) -> RenderableType:
    """The built-in simulator beside Accel-Sim, kernel by kernel."""
    table = Table()
    for name, justify in (("kernel", "left"), ("sass", "right"), ("Accel-Sim", "right"), ("ratio", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for kernel in report["kernels"]:
        cycles = [kernel[simulator]["cycles"] for simulator in ("sass", "accelsim")]
        table.add_row(
            f"{kernel['name'][:48]} ({kernel['file']})",
            *("–" if count is None else f"{count:,}" for count in cycles),
            "" if kernel["cycles_ratio"] is None else f"{kernel['cycles_ratio']:.3f}",
        )
    cpu = report["cpu_seconds"]
    total = f"cycles without launch latency; CPU seconds: sass {cpu['sass']:.3f}, Accel-Sim {cpu['accelsim']:.3f}"
    return Group(table, *(Text(line) for line in (*report["warnings"], total)))


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def validation_table(rows: Sequence[Report]) -> RenderableType:
    table = Table(title="absolute error of predicted target times; cold rows are those that LLM serving looks like")
    names = ("op", "source", "target", "rows", "n", "median", "mean", "p90", "bias", "p10-p90", "roofline", "ratio")
    for name in names:
        table.add_column(name, justify="left" if name in names[:4] else "right", no_wrap=True)
    refused: list[str] = []
    for row in rows:
        if row.get("refused"):
            refused.append(f"{row['op']} {row['source_gpu']} to {row['target_gpu']}: {row['refused']} rows refused")
            continue
        errors = (row[name] for name in ("median_ape", "mean_ape", "p90_ape", "bias", "coverage_p10_p90"))
        baselines = (row["roofline_median_ape"], row["ratio_median_ape"])
        table.add_row(
            row["op"], row["source_gpu"], row["target_gpu"], row["rows"], str(row["n"]), *map(_percent, errors),
            *map(_percent, baselines),
        )  # fmt: skip
    return Group(table, *(Text(line) for line in refused))


def measured_text(report: Report) -> str:
    """What measuring a GPU gained."""
    lines = [f"{report['gpu']}: written to {report['file']}"]
    lines += [
        f"  {row['form']} {row['variant']}, {row['points']} points: median error {_percent(row['median_ape_before'])}"
        f" before, {_percent(row['median_ape'])} cross-validated"
        for row in report["forms"]
    ]
    return "\n".join(lines)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
