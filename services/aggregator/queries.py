"""Reports for people and programs, read from the store: what `--json`, REST and the terminal's table show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cascade_schemas.events import RefinementChosen, RunRequested

from services.aggregator.compose import Z90
from services.aggregator.store import Store

Report = dict[str, Any]


class UnknownTrace(LookupError):
    """No trace has this id."""


class UnknownRun(LookupError):
    """No run has this id."""


def traces(store: Store) -> list[Report]:
    return [_trace(row) for row in store.query("from traces order by started_at nulls last, trace_id")]


def trace_status(store: Store, trace_id: str) -> str | None:
    """importing, complete or rejected; None where nothing is known of it yet."""
    found = store.query("select status from traces where trace_id = ?", [trace_id])
    return str(found[0]["status"]) if found else None


def trace_source(store: Store, trace_id: str) -> tuple[str, str | None]:
    """A trace's status and the GPU it was recorded on. Raises UnknownTrace."""
    found = store.query("select status, source_gpu from traces where trace_id = ?", [trace_id])
    if not found:
        raise UnknownTrace(_no_trace(trace_id))
    return str(found[0]["status"]), found[0]["source_gpu"]


def run_status(store: Store, run_id: str) -> str | None:
    """running, cancelled, failed, completed or completed_with_failures; None where nothing is known of it yet."""
    found = store.query("select status from runs where run_id = ?", [run_id])
    return str(found[0]["status"]) if found else None


def run_progress(store: Store, run_id: str) -> list[Report]:
    """Per config how many of the trace's tasks have a result so far."""
    return store.query(
        """select c.label, c.config_id, c.is_requested,
            count(s.task_id) as simulated, count(s.task_id) filter (s.duration_ns is null) as failed,
            (select count(*) from tasks t where t.trace_id = r.trace_id) as total,
            coalesce((select task_count from refinements f where f.run_id = c.run_id and f.config_id = c.config_id), 0)
                as refining,
            (select count(*) from refined_kernels k where k.run_id = c.run_id and k.config_id = c.config_id) as refined
        from run_configs c join run_requests r using (run_id) left join simulated_kernels s using (run_id, config_id)
        where run_id = ? group by c.run_id, c.label, c.config_id, c.is_requested, c.ordinal, r.trace_id
        order by c.ordinal""",
        [run_id],
    )


def trace_report(store: Store, trace_id: str) -> Report:
    """What an import found. Raises UnknownTrace."""
    found = store.query("from traces where trace_id = ?", [trace_id])
    if not found:
        raise UnknownTrace(_no_trace(trace_id))
    row = found[0]
    steps = store.query(
        """select step, phase, context_requests, context_tokens, generation_requests, generation_tokens,
            kernel_count as kernels from trace_steps where trace_id = ?
            qualify row_number() over (partition by step order by rank) = 1 order by step""",
        [trace_id],
    )
    return _trace(row) | {
        "kernels": row["kernel_count"],
        "signatures": row["signature_count"],
        "tasks": row["task_count"],
        "launches": row["launch_count"],
        "launchless_kernels": row["launchless_count"],
        "sass_tasks": store.query(_SASS_SQL, [trace_id])[0]["n"],
        "steps": steps,
        "quality": json.loads(row["quality"]) if row["quality"] else None,
    }


def _no_trace(trace_id: str) -> str:
    return f"no trace {trace_id!r}; `cascade import FILE` prints the id of a trace"


# Tasks that have their instructions: what the simulator `sass` needs.
_SASS_SQL = """
    select count(*) as n from tasks where trace_id = ? and coalesce(json_extract_string(task, '$.sass'), '') <> ''"""


def _trace(row: Mapping[str, Any]) -> Report:
    names = ("trace_id", "name", "status", "provenance", "tool", "source_gpu", "engine", "engine_version")
    report = {name: row[name] for name in names}
    return report | {
        "model": row["model_name"],
        "ranks": row["rank_count"],
        "world_size": row["world_size"],
        "is_truncated": row["is_truncated"],
        "reason": row["reason"],
        "kernels": row["kernel_count"],
        "started_at": row["started_at"],
    }


def runs(store: Store) -> list[Report]:
    return store.query("from runs order by run_id")


def run_report(store: Store, run_id: str) -> Report:
    """A run's answer so far: per config kernel time, steps, TTFT, TPOT, coverage, error. Raises UnknownRun."""
    found = store.query("from runs where run_id = ?", [run_id])
    if not found:
        raise UnknownRun(f"no run {run_id!r}; `cascade run TRACE --gpu ID` starts one and prints its id")
    run = found[0]
    trace = store.query("from traces where trace_id = ?", [run["trace_id"]])
    configs = store.query("from configs where run_id = ? order by ordinal", [run_id])
    return {
        "run_id": run_id,
        "status": run["status"],
        "simulator": run["simulator"],
        "state_hash": run["state_hash"],
        "reason": run["reason"],
        "failed_kernels": run["failed_count"],
        "trace": _trace(trace[0]) if trace else {"trace_id": run["trace_id"]},
        "configs": [_config(store, run_id, row) for row in configs if row["is_requested"]],
        "source": next((_config(store, run_id, row) for row in configs if not row["is_requested"]), None),
        "refinement": refinement_report(store, run_id),
    }


def _config(store: Store, run_id: str, row: Mapping[str, Any]) -> Report:
    key = [run_id, row["config_id"]]
    assumptions = store.query(
        "select assumption from assumptions where run_id = ? and config_id = ? order by assumption", key
    )
    infeasible = row["infeasible"] or None
    steps = [
        step_report(step) for step in store.query("from steps where run_id = ? and config_id = ? order by step", key)
    ]
    return {
        "gpu": row["label"],
        "gpu_name": row["gpu_name"],
        "config_id": row["config_id"],
        "provenance": row["provenance"],
        **_kernel_time(store, key),
        "prefill_step_ms": mean_step(steps, "prefill"),
        "decode_step_ms": mean_step(steps, "decode"),
        "steps": steps,
        "ttft_ms": _estimate(row, "ttft"),
        "tpot_ms": _estimate(row, "tpot"),
        "ttft_request": row["request"] if row["ttft_ns"] is not None else None,
        "ttft_prompt_tokens": row["prompt_tokens"],
        "coverage": _ratio(row["coverage_ppm"]),
        "error": _error(row),
        "assumptions": [found["assumption"] for found in assumptions],
        "infeasible": infeasible,
        "reason": infeasible or _reasons(row),
    }


def refinement_report(store: Store, run_id: str) -> Report | None:
    """Which kernels are simulated again, and whose result of each stands; None where the run is not to be refined."""
    asked = store.query("select event from run_requests where run_id = ?", [run_id])
    refine = RunRequested.model_validate_json(asked[0]["event"], extra="ignore").refine if asked else None
    if refine is None:
        return None
    choices = store.query(
        """select c.label, c.config_id, f.event from run_configs c left join refinements f using (run_id, config_id)
        where run_id = ? order by c.ordinal""",
        [run_id],
    )
    return {
        "simulator": refine.simulator,
        "share": refine.share_ppm / 1e6,
        "limit": refine.task_limit,
        "configs": [_refined_config(store, run_id, row) for row in choices],
    }


def _refined_config(store: Store, run_id: str, row: Mapping[str, Any]) -> Report:
    choice = RefinementChosen.model_validate_json(row["event"], extra="ignore") if row["event"] else None
    shares = {task.task_id: task.share_ppm for task in choice.tasks} if choice else {}
    found = store.query(
        """select s.task_id, t.name, p.refinement as verdict, p.duration_ns, p.p10_ns, p.p90_ns,
            s.duration_ns as first_ns, s.p10_ns as first_p10_ns, s.p90_ns as first_p90_ns,
            k.duration_ns as refined_ns, k.p10_ns as refined_p10_ns, k.p90_ns as refined_p90_ns,
            k.reason as refined_reason, k.task_id is not null as is_done
        from simulated_kernels s join run_requests r using (run_id)
            left join tasks t on t.trace_id = r.trace_id and t.task_id = s.task_id
            left join predicted_kernels p
                on p.run_id = s.run_id and p.config_id = s.config_id and p.task_id = s.task_id
            left join refined_kernels k
                on k.run_id = s.run_id and k.config_id = s.config_id and k.task_id = s.task_id
        where s.run_id = ? and s.config_id = ? and s.task_id in (select unnest(?))""",
        [run_id, row["config_id"], list(shares)],
    )
    of_task = {kernel["task_id"]: kernel for kernel in found}
    kernels = [of_task[task_id] | {"share": _ratio(share)} for task_id, share in shares.items() if task_id in of_task]
    done = [kernel for kernel in kernels if kernel["is_done"]]
    return {
        "gpu": row["label"],
        "config_id": row["config_id"],
        "sentence": choice.sentence if choice else None,
        "chosen": len(shares),
        "done": len(done),
        "failed": sum(kernel["refined_ns"] is None for kernel in done),
        "taken": sum((kernel["verdict"] or "").startswith("taken:") for kernel in kernels),
        "left": [one.model_dump() for one in choice.left] if choice else [],
        "kernels": kernels,
    }


def _kernel_time(store: Store, key: list[str]) -> Report:
    return kernel_time(
        store.query(
            """select s.family, sum(p.duration_ns * p.launch_count)::bigint as total_ns,
                sum(p.duration_ns * p.launch_count * ln(p.p90_ns / p.duration_ns)) as spread
            from predicted_kernels p join simulations s using (run_id, config_id, task_id)
            where run_id = ? and config_id = ? and s.stands and p.duration_ns > 0
            group by s.family order by s.family""",
            key,
        )
    )


def kernel_time(families: Sequence[Mapping[str, Any]]) -> Report:
    """Sum over all launches; errors of one family fully correlated, families independent, as for steps.

    families: total_ns, and spread = Σ duration · launches · ln(p90 ÷ duration), in order of the family's name.
    """
    if not families:
        return {"kernel_time_ms": None, "kernel_time_interval_ms": None}
    total = sum(row["total_ns"] for row in families)
    sigma = math.sqrt(math.fsum((row["spread"] / Z90) ** 2 for row in families)) / total
    low, high = total * math.exp(-Z90 * sigma), total * math.exp(Z90 * sigma)
    return {
        "kernel_time_ms": total / 1e6,
        "kernel_time_interval_ms": {"p10": round(low) / 1e6, "p90": round(high) / 1e6},
    }


def step_report(row: Mapping[str, Any]) -> Report:
    """One row of the view `steps`."""
    return {
        "step": row["step"],
        "phase": row["phase"],
        "context_requests": row["context_requests"],
        "context_tokens": row["context_tokens"],
        "generation_requests": row["generation_requests"],
        "generation_tokens": row["generation_tokens"],
        "duration_ms": {
            "value": row["duration_ns"] / 1e6,
            "p10": row["p10_ns"] / 1e6,
            "p90": row["p90_ns"] / 1e6,
        },
        "gpu_ms": row["gpu_ns"] / 1e6,
        "measured_gpu_ms": None if row["measured_gpu_ns"] is None else row["measured_gpu_ns"] / 1e6,
        "coverage": _ratio(row["coverage_ppm"]),
        "launches": row["launch_count"],
    }


def mean_step(steps: Sequence[Report], phase: str) -> Report | None:
    """Mean of value, p10 and p90 over the steps of a phase."""
    chosen = [step["duration_ms"] for step in steps if step["phase"] == phase]
    if not chosen:
        return None
    return {name: round(math.fsum(step[name] for step in chosen) / len(chosen), 6) for name in ("value", "p10", "p90")}


def _estimate(row: Mapping[str, Any], name: str) -> Report | None:
    if row[f"{name}_ns"] is None:
        return None
    return {
        "value": row[f"{name}_ns"] / 1e6,
        "p10": row[f"{name}_p10_ns"] / 1e6,
        "p90": row[f"{name}_p90_ns"] / 1e6,
    }


def _error(row: Mapping[str, Any]) -> Report | None:
    if row["mape_ppm"] is None:
        return None
    return {
        "kernels": row["kernel_count"],
        "median_ape": _ratio(row["median_ape_ppm"]),
        "mape": _ratio(row["mape_ppm"]),
        "weighted_error": _ratio(row["weighted_error_ppm"]),
        "total_error": _ratio(row["total_error_ppm"]),
        "roofline_mape": _ratio(row["roofline_mape_ppm"]),
    } | _against_reality(row)


def _against_reality(row: Mapping[str, Any]) -> Report:
    """Only where the real job was timed without a profiler."""
    if row["measured_ttft_ns"] is None and row["measured_tpot_ns"] is None:
        return {}
    return {
        "ttft_error": _ratio(row["ttft_error_ppm"]),
        "tpot_error": _ratio(row["tpot_error_ppm"]),
        "measured_ttft_ms": _ms(row["measured_ttft_ns"]),
        "measured_tpot_ms": _ms(row["measured_tpot_ns"]),
    }


def _reasons(row: Mapping[str, Any]) -> str:
    said = {
        "error": row["error_reason"],
        "ttft": row["ttft_reason"],
        "tpot": row["tpot_reason"],
    }
    return "; ".join(f"{what} null: {why}" for what, why in said.items() if why)


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e6


def _ratio(ppm: int | None) -> float | None:
    return None if ppm is None else ppm / 1e6
