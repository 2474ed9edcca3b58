"""What if: one config's answer at once, from the analytic simulator and the aggregator's own formulas; no event."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cascade_schemas.events import (
    AccuracyMeasured,
    Estimate,
    KernelsPredicted,
    RequestPredicted,
    RunConfig,
    RunRequested,
    StepsPredicted,
)
from cascade_schemas.gpu import load_gpu

from services.aggregator.predict import SourcePrediction, TracePredictor, source_prediction
from services.aggregator.queries import Report, kernel_time, step_report
from services.aggregator.run_state import ConfigState
from services.aggregator.store import Store
from services.kernels.work import WorkTable
from services.kernels.work_of import work_of
from services.runtime.curves import Axis, curves
from services.runtime.sweep import Subject, sweep
from services.simworker.reactor import result_rows
from services.simworker.simulators.base import KernelSimulator

_TRACES_REMEMBERED = 4


@dataclass
class _Prepared:
    """What every question about one trace shares."""

    predictor: TracePredictor
    task_ids: tuple[str, ...]
    work: WorkTable
    traced: dict[int, dict[str, Any]]  # per step what it did
    source: SourcePrediction | None = None
    is_source_known: bool = False


class WhatIf:
    """Answers for complete traces; the last few stay prepared. Thread-safe."""

    def __init__(self, store: Store, simulators: Mapping[str, KernelSimulator]) -> None:
        self._store = store
        self._simulators = simulators
        self._prepared: OrderedDict[str, _Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, trace_id: str, request: RunRequested, *, has_steps: bool) -> Report:
        """request: one config to ask about, and the source GPU's where the trace has one.

        Without its steps the answer for a thousand of them is 1 kB instead of 260: what a slider waits for.
        """
        return self._report(*self._simulate(trace_id, request), has_steps=has_steps)

    def sweep(self, trace_id: str, request: RunRequested) -> Report:
        """Six knobs at nine values each; request as for `answer`."""
        prepared, asked, _, source = self._simulate(trace_id, request)
        subject = Subject(prepared.predictor, prepared.work, asked.gpu, source)
        report = sweep(subject, self._simulators["analytic"])
        return report | {"gpu": asked.label, "config_id": asked.config_id}

    def curves(self, trace_id: str, configs: Sequence[RunConfig], axis: Axis) -> Report:
        """A decode step over context or batch on each config. Raises NoCurve."""
        with self._lock:
            prepared = self._prepare(trace_id)
            started = prepared.predictor.started
            if not prepared.is_source_known and started.provenance == "measured" and started.source_gpu:
                gpu = load_gpu(started.source_gpu)
                config = RunConfig(config_id=gpu.config_id, label=gpu.gpu, gpu=gpu, is_requested=False)
                prepared.source = source_prediction(self._simulated(prepared, config), prepared.predictor, "analytic")
                prepared.is_source_known = True
        return curves(prepared.predictor, prepared.work, configs, prepared.source, self._simulators["analytic"], axis)

    def _simulate(
        self, trace_id: str, request: RunRequested
    ) -> tuple[_Prepared, RunConfig, ConfigState, SourcePrediction | None]:
        """The config asked about, simulated, and what the source GPU says for correction."""
        with self._lock:
            prepared = self._prepare(trace_id)
            if not prepared.is_source_known:
                source = next((config for config in request.configs if not config.is_requested), None)
                if source is not None:
                    prepared.source = source_prediction(
                        self._simulated(prepared, source), prepared.predictor, "analytic"
                    )
                    prepared.is_source_known = True
        asked = next(config for config in request.configs if config.is_requested)
        state = self._simulated(prepared, asked)
        reference = prepared.source
        if reference is None and asked.gpu.gpu == prepared.predictor.started.source_gpu:
            # The source itself is asked about: it is its own reference, as in a run.
            reference = source_prediction(state, prepared.predictor, "analytic")
        return prepared, asked, state, reference

    def _prepare(self, trace_id: str) -> _Prepared:
        prepared = self._prepared.get(trace_id)
        if prepared is None:
            trace = self._store.load_trace(trace_id)
            work = WorkTable.of([work_of(traced.task) for traced in trace.tasks.values()])
            predictor = TracePredictor(trace)
            traced = {step.step: {name: getattr(step, name) for name in _TRACED} for step in predictor.steps}
            prepared = self._prepared[trace_id] = _Prepared(predictor, tuple(trace.tasks), work, traced)
            while len(self._prepared) > _TRACES_REMEMBERED:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(trace_id)
        return prepared

    def _simulated(self, prepared: _Prepared, config: RunConfig) -> ConfigState:
        predictions = self._simulators["analytic"].simulate(prepared.work, [config.gpu])
        roofline_ns = self._simulators["roofline"].simulate(prepared.work, [config.gpu]).duration_ns
        state = ConfigState(config)
        state.first.add(result_rows(prepared.task_ids, prepared.work, predictions, roofline_ns, 0))
        return state

    def _report(
        self,
        prepared: _Prepared,
        config: RunConfig,
        state: ConfigState,
        source: SourcePrediction | None,
        *,
        has_steps: bool,
    ) -> Report:
        report: Report = {"gpu": config.label, "config_id": config.config_id, "infeasible": None, "steps": []}
        report |= dict.fromkeys(("prefill_step_ms", "decode_step_ms"))
        family = prepared.work.text("family")
        for event in prepared.predictor.predict("what-if", state, source):
            match event:
                case KernelsPredicted():
                    report |= kernel_time(_families(event, family))
                case StepsPredicted():
                    report |= {f"{phase}_step_ms": _mean_step(event, phase) for phase in ("prefill", "decode")}
                    if has_steps:
                        report["steps"] = [
                            step_report(row | prepared.traced.get(row["step"], _NOT_TRACED))
                            for row in event.rows.to_pylist()
                        ]
                    report["assumptions"] = sorted(event.assumptions)
                case RequestPredicted():
                    report["infeasible"] = event.infeasible or None
                    report |= {"ttft_ms": _estimate(event.ttft), "ttft_reason": event.ttft_reason}
                    report |= {"tpot_ms": _estimate(event.tpot), "tpot_reason": event.tpot_reason}
                case AccuracyMeasured():
                    report["coverage"] = event.coverage_ppm / 1e6
        report["bound_by"] = _bound_by(state, prepared.predictor)
        return report


def _estimate(estimate: Estimate | None) -> Report | None:
    if estimate is None:
        return None
    return {"value": estimate.value_ns / 1e6, "p10": estimate.p10_ns / 1e6, "p90": estimate.p90_ns / 1e6}


def _mean_step(event: StepsPredicted, phase: str) -> Report | None:
    """As `queries.mean_step`, from columns."""
    rows = event.rows.filter(pc.equal(event.rows.column("phase").cast(pa.string()), phase))
    if not rows.num_rows:
        return None
    columns = {"value": "duration_ns", "p10": "p10_ns", "p90": "p90_ns"}
    times = {name: (np.asarray(rows.column(column)) / 1e6).tolist() for name, column in columns.items()}
    return {name: round(math.fsum(values) / rows.num_rows, 6) for name, values in times.items()}


def _families(event: KernelsPredicted, family: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    rows = event.rows
    duration = np.asarray(rows.column("duration_ns").fill_null(0), dtype=np.int64)
    high = np.asarray(rows.column("p90_ns").fill_null(0), dtype=np.int64)
    total = duration * np.asarray(rows.column("launch_count"), dtype=np.int64)
    spread = np.zeros(len(total))
    known = duration > 0
    spread[known] = total[known] * np.log(high[known] / duration[known])
    return [
        {"total_ns": int(total[family == name].sum()), "spread": float(spread[family == name].sum())}
        for name in sorted(set(family[known]))
    ]


_TRACED = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")
_NOT_TRACED = dict.fromkeys(_TRACED)


def _bound_by(state: ConfigState, predictor: TracePredictor) -> dict[str, float]:
    """Share of kernel time by what limits it."""
    rows = state.first.rows[0]
    total = np.asarray(rows.column("duration_ns").fill_null(0), dtype=np.float64) * predictor.launch_count
    bound = rows.column("bound")
    sums = np.bincount(np.asarray(bound.indices), weights=total, minlength=len(bound.dictionary))
    whole = float(total.sum())
    shares = dict(zip(bound.dictionary.to_pylist(), (sums / whole).tolist(), strict=True)) if whole else {}
    return dict(sorted(shares.items(), key=lambda one: -one[1]))
