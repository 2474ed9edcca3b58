"""One kernel on one GPU by every simulator that was asked, beside what was measured, and which one stands."""

from __future__ import annotations

import json
from typing import Any

from services.aggregator import refine
from services.aggregator.queries import UnknownRun
from services.aggregator.store import Store
from services.runtime.engine import Report

_SAYS = {
    refine.TAKEN_TIGHTER: "the refined result stands: its interval is tighter",
    refine.TAKEN_ALONE: "the refined result stands: the first simulator had none",
    refine.KEPT_TIGHTER: "the first result stands: its interval is as tight or tighter",
    refine.KEPT_FAILED: "the first result stands: the refinement failed",
    refine.KEPT_UNCORRECTED: "the first result stands: the GPU it was measured on could not be simulated, and cycles of"
    " another chip are not compared with a measured time",
    refine.KEPT_OTHER_CLASS: "the first result stands: the trace is code for another class of tensor cores",
}

_COLUMNS = (
    "run_id", "simulator", "stands", "duration_ns", "p10_ns", "p90_ns", "bound", "tier", "reason", "tensor_ns",
    "dram_ns", "l2_ns", "issue_ns", "launch_ns", "sm_cycles", "statistics",
)  # fmt: skip


def simulations(store: Store, run_id: str, config_id: str, task_id: str) -> Report:
    """A run's simulators, then those that other runs of its trace asked the same of. Raises UnknownRun."""
    found = store.query(
        """select c.label, r.trace_id, t.name, p.launch_count, p.measured_ns, p.duration_ns, p.p10_ns, p.p90_ns,
            p.refinement, s.roofline_ns
        from simulated_kernels s join run_configs c using (run_id, config_id) join run_requests r using (run_id)
            left join tasks t on t.trace_id = r.trace_id and t.task_id = s.task_id
            left join predicted_kernels p
                on p.run_id = s.run_id and p.config_id = s.config_id and p.task_id = s.task_id
        where s.run_id = ? and s.config_id = ? and s.task_id = ?""",
        [run_id, config_id, task_id],
    )
    if not found:
        raise UnknownRun(
            f"run {run_id} has no result of task {task_id[:100]!r} on config {config_id[:100]!r} yet;"
            f" its kernels are listed at /api/runs/{run_id}/kernels"
        )
    kernel = found[0]
    columns = ", ".join(f"s.{name}" for name in _COLUMNS)
    rows = store.query(
        f"""select {columns}, v.simulator_version from simulations s join run_requests r using (run_id)
            left join simulator_versions v
                on v.run_id = s.run_id and v.config_id = s.config_id and v.simulator = s.simulator
        where r.trace_id = ? and s.config_id = ? and s.task_id = ?
        order by s.run_id <> ?, s.tier, s.simulator, s.run_id""",  # noqa: S608 - our own names
        [kernel["trace_id"], config_id, task_id, run_id],
    )
    said: dict[str, Report] = {}
    for row in rows:
        said.setdefault(row["simulator"], _simulation(row, is_own=row["run_id"] == run_id))
    return {
        "run_id": run_id,
        "config_id": config_id,
        "task_id": task_id,
        "gpu": kernel["label"],
        "name": kernel["name"],
        "launch_count": kernel["launch_count"],
        "measured_ns": kernel["measured_ns"],
        "value_ns": kernel["duration_ns"],
        "p10_ns": kernel["p10_ns"],
        "p90_ns": kernel["p90_ns"],
        "roofline_ns": kernel["roofline_ns"],
        "refinement": kernel["refinement"],
        "why": _SAYS.get(str(kernel["refinement"]), ""),
        "simulations": list(said.values()),
    }


def _simulation(row: dict[str, Any], *, is_own: bool) -> Report:
    counted = json.loads(row["statistics"]) if row["statistics"] else None
    # What stands in another run says nothing of this one.
    return row | {"statistics": counted, "stands": row["stands"] and is_own}
