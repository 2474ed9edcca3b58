"""A run as a file that other viewers open: Perfetto reads the Chrome trace event format written here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from services.aggregator import queries
from services.aggregator.compose import default_gaps
from services.aggregator.run_state import trace_columns
from services.aggregator.store import Store
from services.aggregator.timeline import timeline


def write_perfetto(store: Store, run_id: str, path: Path) -> int:
    """One process per config, one track per stream and one for steps; returns how many events were written.

    The file appears whole or not at all. Raises UnknownRun.
    """
    report = queries.run_report(store, run_id)
    partial = path.with_name(f".{path.name}.partial")
    count = 0
    try:
        with partial.open("w") as out:
            out.write('{"displayTimeUnit":"ns","otherData":' + json.dumps(_about(report)) + ',"traceEvents":[')
            for event in _events(store, report):
                out.write((",\n" if count else "\n") + json.dumps(event, separators=(",", ":")))
                count += 1
            out.write("\n]}\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _about(report: queries.Report) -> dict[str, Any]:
    trace = report["trace"]
    return {
        "run": report["run_id"],
        "trace": trace.get("name"),
        "provenance": trace.get("provenance"),
        "times": "simulated by Cascade; start times are composed, not measured",
    }


def _events(store: Store, report: queries.Report) -> Iterator[dict[str, Any]]:
    trace = trace_columns(store.load_trace(report["trace"]["trace_id"]))
    for process, config in enumerate(report["configs"], start=1):
        title = f"{config['gpu']} ({config['provenance']}, simulated)"
        if config["infeasible"]:
            title += f" INFEASIBLE: {config['infeasible']}"
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": 0, "args": {"name": "engine steps"}}
        kernels = {
            row["task_id"]: row
            for row in store.query(
                "from kernels where run_id = ? and config_id = ?", [report["run_id"], config["config_id"]]
            )
        }
        durations = np.array(
            [(kernels.get(task_id) or {}).get("duration_ns") or -1 for task_id in trace.task_ids], dtype=np.int64
        )
        line = timeline(trace, durations, default_gaps())
        phases = {step["step"]: step for step in config["steps"]}
        for (rank, step), start_ns in line.step_start_ns.items():
            if rank == 0 and step in phases:
                length = (line.step_end_ns[rank, step] - start_ns) / 1e3
                about = phases[step]
                name = f"step {step} {about['phase']}"
                args = {"p10_ms": about["duration_ms"]["p10"], "p90_ms": about["duration_ms"]["p90"]}
                yield {
                    "ph": "X",
                    "name": name,
                    "pid": process,
                    "tid": 0,
                    "ts": start_ns / 1e3,
                    "dur": length,
                    "args": args,
                }
        for index in np.flatnonzero(line.start_ns >= 0).tolist():
            kernel = kernels.get(trace.task_ids[trace.task[index]])
            if kernel is None or line.duration_ns[index] < 0:
                continue
            yield {
                "ph": "X",
                "name": kernel["name"],
                "cat": kernel["family"],
                "pid": process,
                "tid": 1 + int(trace.rank[index]) * 1000 + int(trace.stream[index]),
                "ts": line.start_ns[index] / 1e3,
                "dur": line.duration_ns[index] / 1e3,
                "args": {
                    name: kernel[name]
                    for name in ("p10_ns", "p90_ns", "measured_ns", "bound", "reason", "task_id")
                    if kernel[name] is not None
                },
            }
