"""One config's answer: corrected kernel times, steps, TTFT and TPOT, accuracy. Pure: a whole trace and results in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import KERNEL_PREDICTIONS, STEP_PREDICTIONS
from cascade_schemas.events import (
    AccuracyMeasured,
    AnyEvent,
    Estimate,
    KernelsPredicted,
    Refine,
    RefinementChosen,
    RequestPredicted,
    StepsPredicted,
)
from cascade_schemas.gpu import GpuSpec, load_gpu
from cascade_schemas.partition import TASKS_PER_BATCH
from numpy.typing import NDArray

from services.aggregator import compose, refine, ttft
from services.aggregator.accuracy import Accuracy, accuracy
from services.aggregator.extrapolation import filled
from services.aggregator.run_state import (
    ConfigState,
    ResultColumns,
    Results,
    TraceState,
    result_columns,
    trace_columns,
)
from services.kernels.correction import alpha, corrected, sigma_factor
from services.kernels.work import Family

SAME_KERNEL_SIGMA = 0.03  # repeatability of one kernel on one GPU: 2 to 7 % over public traces (SIMULATION 3.6)


@dataclass(frozen=True, slots=True)
class SourcePrediction:
    """Forward predictions for the GPU the trace was measured on, and the medians they are compared with."""

    gpu: GpuSpec
    forward_ns: NDArray[np.int64]
    measured_ns: NDArray[np.int64]  # per task; -1 none
    runs_code: bool = False  # by a simulator of instructions


@dataclass(frozen=True, slots=True)
class RefinedSource:
    """What the refining simulator says of the GPU the trace was measured on; None: nothing was measured."""

    prediction: SourcePrediction | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One traced step, as composition sees it."""

    launches: NDArray[np.float64]  # per task
    overlap: float
    gap_ns: int
    host_issue_ns: int  # 0 where the trace measured its gaps


@dataclass(frozen=True, slots=True)
class Stood:
    """One config's kernel times as they stand: of each task the first result or the refined one."""

    results: ResultColumns
    final_ns: NDArray[np.int64]
    sigma: NDArray[np.float64]
    refined_by: list[str | None]
    refinement: list[str | None]


def source_prediction(config: ConfigState, predictor: TracePredictor, simulator: str) -> SourcePrediction:
    return _reference(config, config.first, predictor, simulator)


def refined_source(config: ConfigState, predictor: TracePredictor, simulator: str) -> SourcePrediction:
    """The same by the refining simulator: each simulator is corrected by what it says of the source itself."""
    return _reference(config, config.refined, predictor, simulator)


def runs_code(simulator: str) -> bool:
    """Whether it runs a kernel's instructions, and not a model of its shapes."""
    return simulator not in TASKS_PER_BATCH


def _reference(config: ConfigState, said: Results, predictor: TracePredictor, simulator: str) -> SourcePrediction:
    task_ids = predictor.columns.task_ids
    family = result_columns(config.first, task_ids).family
    forward_ns = result_columns(said, task_ids).duration_ns
    return SourcePrediction(config.config.gpu, forward_ns, predictor.measured(family), runs_code(simulator))


class TracePredictor:
    """What is the same for every config of a trace, worked out once."""

    def __init__(self, trace: TraceState) -> None:
        assert trace.is_whole
        assert trace.started is not None
        self.trace = trace
        self.started = trace.started
        self.columns = trace_columns(trace)
        self._gaps = compose.default_gaps()
        self._layout = compose.step_layout(self.columns, self._gaps)
        self.launch_count = np.bincount(self.columns.task, minlength=len(self.columns.task_ids)).astype(np.int64)
        self._measured: NDArray[np.int64] | None = None
        self._by_family: compose.FamilyCounts | None = None
        self._is_measured = self.columns.is_measured
        first_rank = min((rank for rank, _ in trace.steps), default=0)
        self.steps = [step for (rank, _), step in sorted(trace.steps.items()) if rank == first_rank]
        assert trace.completed is not None
        self._span = ttft.measured_request(self.steps, self.started.prompts or trace.completed.prompts)
        # What a CPU engine spends in a step is the model's own work, not the host's.
        profile = trace.host_profile if self.started.provenance == "measured" else None
        tokens = {step.step: (step.context_tokens, step.generation_tokens) for step in self.steps}
        self._host = compose.host_times(self._layout, tokens, profile)
        self._profile = profile

    def measured(self, family: NDArray[np.object_]) -> NDArray[np.int64]:
        """Median measured time per task; families say which tasks are collectives."""
        if self._measured is None:
            self._measured = compose.median_per_task(self.columns, family == Family.COLLECTIVE.value)
        return self._measured

    def _family_counts(self, family: NDArray[np.object_]) -> compose.FamilyCounts:
        """Families are the tasks' own: the same for every config, unless two simulators disagree."""
        kept = self._by_family
        if kept is None or not np.array_equal(kept.family, family):
            kept = self._by_family = compose.family_counts(self._layout, family)
        return kept

    def predict(
        self,
        run_id: str,
        config: ConfigState,
        source: SourcePrediction | None,
        refined: RefinedSource | None = None,
    ) -> Iterator[AnyEvent]:
        """A config's answer; with `refined` the second one, in which refined kernels may stand for the first ones."""
        config_id = config.config.config_id
        infeasible = self._infeasible(config.config.gpu)
        if infeasible:
            yield RequestPredicted(
                run_id=run_id,
                config_id=config_id,
                request=self._span.request,
                prompt_tokens=self._span.prompt_tokens,
                ttft=None,
                ttft_reason="infeasible",
                tpot=None,
                tpot_reason="infeasible",
                infeasible=infeasible,
            )
            yield AccuracyMeasured(
                run_id=run_id, config_id=config_id, kernel_count=0, coverage_ppm=0, reason="infeasible"
            )
            return
        is_refined = refined is not None
        stood = self._first(config, source) if refined is None else self._stood(config, source, refined)
        results, final_ns, sigma = stood.results, stood.final_ns, stood.sigma
        measured_ns = self.measured(results.family)
        yield KernelsPredicted(
            run_id=run_id,
            config_id=config_id,
            refined=is_refined,
            rows=self._kernel_rows(stood, measured_ns, config, source),
        )
        durations = filled(final_ns, measured_ns, results.family)[None, :]
        times = self.step_times(durations, sigma[None, :], results.family, measured_ns)
        yield StepsPredicted(
            run_id=run_id,
            config_id=config_id,
            refined=is_refined,
            rows=self._step_rows(times),
            assumptions=self._assumptions(stood.results.family),
        )
        yield self._request(run_id, config_id, times).model_copy(update={"refined": is_refined})
        accuracy = self._accuracy(run_id, config, results, measured_ns, final_ns, source)
        yield accuracy.model_copy(update={"refined": is_refined})

    def refinement(
        self,
        run_id: str,
        config: ConfigState,
        source: SourcePrediction | None,
        refine_with: Refine,
        also: frozenset[str] = frozenset(),
    ) -> RefinementChosen:
        """Which of the config's kernels are worth simulating again; `also`: what other configs need of the source."""
        gpu = config.config.gpu
        if self._infeasible(gpu):
            return refine.nothing_chosen(run_id, config.config.config_id, refine_with, "the model does not fit there")
        stood = self._first(config, source)
        family = stood.results.family
        measured_ns = self.measured(family)
        durations = filled(stood.final_ns, measured_ns, family)
        sigma = np.where(stood.final_ns < 0, refine.FAILED_SIGMA, stood.sigma)
        traced_on = load_gpu(self.started.source_gpu) if self.started.source_gpu else None
        tasks = [traced.task for traced in self.trace.tasks.values()]
        share_ppm = refine.variance_shares(self._layout, self.launch_count, durations, sigma, family)
        if source is not None and source.gpu.config_id == config.config.config_id:
            share_ppm[measured_ns > 0] = 0  # there the measurement stands, whoever simulates it
        of = refine.Candidates(
            tasks=tasks,
            share_ppm=share_ppm,
            obstacle=refine.obstacles(tasks, family, measured_ns, traced_on, gpu),
            is_failed=stood.final_ns < 0,
        )
        return refine.chosen(run_id, config.config.config_id, refine_with, of, also=also)

    def _first(self, config: ConfigState, source: SourcePrediction | None) -> Stood:
        results = result_columns(config.first, self.columns.task_ids)
        nothing: list[str | None] = [None] * len(self.columns.task_ids)
        return Stood(results, *self.corrected(results, config.config.gpu, source), nothing, nothing)

    def _stood(self, config: ConfigState, source: SourcePrediction | None, refined: RefinedSource) -> Stood:
        """Per task the result with the tighter interval, each corrected by its own simulator's source."""
        assert config.refinement is not None
        first = self._first(config, source)
        again = replace(result_columns(config.refined, self.columns.task_ids), family=first.results.family)
        final_ns, sigma = self.corrected(again, config.config.gpu, refined.prediction)
        asked_ids = {task.task_id for task in config.refinement.tasks}
        asked = np.array([task_id in asked_ids for task_id in self.columns.task_ids], dtype=np.bool_)
        found = refine.verdicts(
            refine.Forward(first.results.duration_ns, first.sigma, first.results.reason),
            refine.Forward(again.duration_ns, sigma, again.reason),
            asked,
            self._lacks_source(refined, first.results.family),
            first.results.family,
        )
        taken = np.array([refine.is_taken(verdict) for verdict in found], dtype=np.bool_)
        mixed = replace(
            first.results,
            duration_ns=np.where(taken, again.duration_ns, first.results.duration_ns),
            sigma=np.where(taken, again.sigma, first.results.sigma),
            reason=np.where(taken, again.reason, first.results.reason),
        )
        return Stood(
            results=mixed,
            final_ns=np.where(taken, final_ns, first.final_ns),
            sigma=np.where(taken, sigma, first.sigma),
            refined_by=[config.refinement.simulator if is_taken else None for is_taken in taken.tolist()],
            refinement=[verdict or None for verdict in found],
        )

    def _lacks_source(self, refined: RefinedSource, family: NDArray[np.object_]) -> NDArray[np.bool_]:
        """Tasks that were measured on a GPU of which the refining simulator has said nothing."""
        if refined.prediction is None:
            return np.zeros(len(family), dtype=np.bool_)
        lacking: NDArray[np.bool_] = (self.measured(family) > 0) & (refined.prediction.forward_ns <= 0)
        return lacking

    def step_row(self, step: int) -> StepRow:
        """What one step is made of, on the rank that is listed first."""
        row = int(np.flatnonzero(self._layout.row_step == step)[0])
        host_issue_ns = int(self._layout.eager_count[row]) * self._gaps.host_issue_ns
        return StepRow(
            launches=self._layout.counts[row],
            overlap=float(self._layout.overlap[row]),
            gap_ns=int(self._layout.gap_ns[row]),
            host_issue_ns=host_issue_ns if self._layout.traced_gap_ns[row] < 0 else 0,
        )

    def host_times_of(self, context_tokens: int, generation_tokens: int) -> compose.HostTimes | None:
        """The host's times of a step of so many tokens, by the baseline; None where there is none, or none like it."""
        return compose.host_times_of(self._profile, (context_tokens, generation_tokens)) if self._profile else None

    def step_times(
        self,
        duration_ns: NDArray[np.int64],
        sigma: NDArray[np.float64],
        family: NDArray[np.object_],
        measured_ns: NDArray[np.int64],
    ) -> compose.StepTimes:
        """duration_ns, sigma: (configs, tasks); failures filled in or -1."""
        is_measured = (measured_ns > 0).any()
        weight_ns = np.where(measured_ns > 0, measured_ns, 1) if is_measured else np.ones_like(measured_ns)
        return compose.step_times(
            self._layout, self._family_counts(family), duration_ns, sigma, weight_ns, self._gaps, self._host
        )

    def request_times(self, times: compose.StepTimes, config: int) -> tuple[Estimate | None, Estimate | None]:
        """TTFT and TPOT of one config."""
        steps = ttft.Steps(
            place={step: place for place, step in enumerate(times.step.tolist())},
            value_ns=times.duration_ns[config],
            p10_ns=times.p10_ns[config],
            p90_ns=times.p90_ns[config],
        )
        return ttft.total(self._span.prefill_steps, steps), ttft.mean(self._span.generating_steps, steps)

    def corrected(
        self, results: ResultColumns, gpu: GpuSpec, source: SourcePrediction | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Final durations (-1 failed) and their sigma. Without a measured source the forward prediction is final."""
        if source is None:
            return results.duration_ns, results.sigma
        is_source = gpu.config_id == source.gpu.config_id
        families = sorted(set(results.family))
        weights = {name: alpha(source.gpu, gpu, name, runs_code=source.runs_code) for name in families}
        factors = {name: sigma_factor(source.gpu, gpu, name, runs_code=source.runs_code) for name in families}
        family_alpha = np.array([1.0 if is_source else weights[name] for name in results.family])
        usable = (results.duration_ns >= 0) & (source.forward_ns > 0) & (source.measured_ns > 0)
        final = results.duration_ns.copy()
        final[usable] = np.rint(
            corrected(
                results.duration_ns[usable].astype(np.float64),
                source.forward_ns[usable].astype(np.float64),
                source.measured_ns[usable].astype(np.float64),
                family_alpha[usable],
            )
        ).astype(np.int64)
        left = np.array([factors[name] for name in results.family])
        sigma = np.where(usable, results.sigma * left, results.sigma)
        if is_source:
            final[usable] = source.measured_ns[usable]
            sigma = np.where(usable, SAME_KERNEL_SIGMA, sigma)
        return final, sigma

    def _kernel_rows(
        self,
        stood: Stood,
        measured_ns: NDArray[np.int64],
        config: ConfigState,
        source: SourcePrediction | None,
    ) -> pa.RecordBatch:
        results, final_ns, sigma = stood.results, stood.final_ns, stood.sigma
        ok = final_ns >= 0
        spread = compose.Z90 * sigma
        low, high = np.rint(final_ns * np.exp(-spread)), np.rint(final_ns * np.exp(spread))
        factor = np.divide(final_ns * 1e6, results.duration_ns, out=np.zeros(len(ok)), where=results.duration_ns > 0)
        is_source = source is not None and config.config.config_id == source.gpu.config_id
        compared = (results.duration_ns >= 0) & (measured_ns > 0) & is_source
        error = np.divide(
            (results.duration_ns - measured_ns) * 1e6, measured_ns, out=np.zeros(len(ok)), where=measured_ns > 0
        )

        def column(values: NDArray[np.float64] | NDArray[np.int64], present: NDArray[np.bool_]) -> pa.Array:
            return pa.array(np.rint(values).astype(np.int64), type=pa.int64(), mask=~present)

        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.columns.task_ids, type=pa.string()),
                pa.array(self.launch_count, type=pa.int64()),
                column(final_ns, ok),
                column(low, ok),
                column(high, ok),
                column(factor, ok & (source is not None)),
                column(measured_ns, measured_ns >= 0),
                column(error, compared),
                pa.array(stood.refined_by, type=pa.string()),
                pa.array(stood.refinement, type=pa.string()),
            ],
            schema=KERNEL_PREDICTIONS,
        )

    def _step_rows(self, times: compose.StepTimes) -> pa.RecordBatch:
        phase = {step.step: step.phase for step in self.steps}
        measured_gpu_ns = times.measured_gpu_ns[0]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(times.step, type=pa.int32()),
                pa.array([phase.get(step, "unknown") for step in times.step.tolist()]).dictionary_encode(),
                pa.array(times.gpu_ns[0], type=pa.int64()),
                pa.array(times.duration_ns[0], type=pa.int64()),
                pa.array(times.p10_ns[0], type=pa.int64()),
                pa.array(times.p90_ns[0], type=pa.int64()),
                pa.array(measured_gpu_ns, type=pa.int64(), mask=measured_gpu_ns < 0),
                pa.array(np.rint(times.coverage[0] * 1e6).astype(np.int64), type=pa.int64()),
                pa.array(times.launch_count[0], type=pa.int64()),
            ],
            schema=STEP_PREDICTIONS,
        )

    def _request(self, run_id: str, config_id: str, times: compose.StepTimes) -> RequestPredicted:
        first_token, per_token = self.request_times(times, 0)
        no_launch = "a step of it has no launches in the trace"
        return RequestPredicted(
            run_id=run_id,
            config_id=config_id,
            request=self._span.request,
            prompt_tokens=self._span.prompt_tokens,
            ttft=first_token,
            ttft_reason="" if first_token else self._span.ttft_reason or no_launch,
            tpot=per_token,
            tpot_reason="" if per_token else self._span.tpot_reason or no_launch,
        )

    def _accuracy(
        self,
        run_id: str,
        config: ConfigState,
        results: ResultColumns,
        measured_ns: NDArray[np.int64],
        final_ns: NDArray[np.int64],
        source: SourcePrediction | None,
    ) -> AccuracyMeasured:
        weight = np.where(measured_ns > 0, measured_ns, 0) if (measured_ns > 0).any() else np.ones_like(measured_ns)
        weight = weight * self.launch_count
        covered, whole = int(weight[final_ns >= 0].sum()), int(weight.sum())
        coverage_ppm = round(covered / whole * 1e6) if whole else 0
        is_source = source is not None and config.config.config_id == source.gpu.config_id
        compared: Accuracy | None = None
        roofline: Accuracy | None = None
        if is_source:
            compared = accuracy(results.duration_ns, measured_ns, self.launch_count)
            roofline = accuracy(results.roofline_ns, measured_ns, self.launch_count)
        if compared is None:
            reason = "no GPU time in the trace" if not self._is_measured else "not measured on this GPU"
            return AccuracyMeasured(
                run_id=run_id,
                config_id=config.config.config_id,
                kernel_count=0,
                coverage_ppm=coverage_ppm,
                reason=reason,
            )
        real = self._against_reality(results, measured_ns)
        return AccuracyMeasured(
            run_id=run_id,
            config_id=config.config.config_id,
            kernel_count=compared.kernel_count,
            median_ape_ppm=round(compared.median_ape * 1e6),
            mape_ppm=round(compared.mape * 1e6),
            weighted_error_ppm=round(compared.weighted_error * 1e6),
            total_error_ppm=round(compared.total_error * 1e6),
            roofline_mape_ppm=round(roofline.mape * 1e6) if roofline else None,
            coverage_ppm=coverage_ppm,
        ).model_copy(update=real)

    def _against_reality(self, results: ResultColumns, measured_ns: NDArray[np.int64]) -> dict[str, int]:
        """TTFT and TPOT of the unprofiled job, and how far those composed of forward predictions are from them."""
        request = self._span.request
        if self._profile is None or request < 0:
            return {}
        forward = results.duration_ns[None, :]
        times = self.step_times(forward, results.sigma[None, :], results.family, measured_ns)
        found: dict[str, int] = {}
        predicted = dict(zip(("ttft", "tpot"), self.request_times(times, 0), strict=True))
        for name, measured in (("ttft", self._profile.ttft_ns), ("tpot", self._profile.tpot_ns)):
            if request >= len(measured) or measured[request] <= 0:
                continue
            found[f"measured_{name}_ns"] = measured[request]
            if (estimate := predicted[name]) is not None:
                found[f"{name}_error_ppm"] = round((estimate.value_ns - measured[request]) * 1e6 / measured[request])
        return found

    def _assumptions(self, family: NDArray[np.object_]) -> tuple[str, ...]:
        found = []
        if not self._host.is_known.all() or not len(self._layout.row_step):
            found.append(compose.HOST_NOT_MEASURED)
        if self._host.is_known.any():
            found.append(compose.HOST_OF_SOURCE_MACHINE)
        if not self._is_measured:
            found.append(compose.HOST_ISSUE_ASSUMED)
        if self.started.world_size > self.started.rank_count:
            found.append(compose.MISSING_RANKS_EQUAL)
        if any(not step.is_profiled for step in self.steps):
            found.append(compose.PROFILED_STEPS_STAND_FOR_ALL)
        of_experts = family == Family.MOE_GEMM.value
        told = {
            bool(traced.task.tokens_per_expert)
            for traced, is_of_experts in zip(self.trace.tasks.values(), of_experts, strict=True)
            if is_of_experts
        }
        found += [compose.ROUTED_AS_TOLD if is_told else compose.ROUTED_EVENLY for is_told in sorted(told)]
        return tuple(found)

    def _infeasible(self, gpu: GpuSpec) -> str:
        """Why the model cannot run there, with the bytes; "" where it fits or where the model is unknown."""
        model = self.started.model
        if model is None:
            return ""
        tp = self.started.world_size
        weights = model.weight_bytes(tp)
        kv_tokens = max((sum(step.kv_lengths) for step in self.steps), default=0)
        kv = kv_tokens * model.kv_bytes_per_token(tp)
        if weights + kv <= gpu.dram_bytes:
            return ""
        return (
            f"weights {_gib(weights)} + KV cache of {kv_tokens} tokens {_gib(kv)} do not fit into"
            f" {_gib(gpu.dram_bytes)} of {gpu.name}"
        )


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / 2**30:.1f} GiB ({count_bytes} bytes)"
