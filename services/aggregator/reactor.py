"""Catalog, runs and results in; kernel, step and request predictions out, and the end of a run.

Everything it says is a function of a whole trace and a run's complete results, so the order in which those arrived
cannot show. Its memory is a cache of the store: rows and positions are committed together, states are read back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
from cascade_schemas.events import (
    AccuracyMeasured,
    AnyEvent,
    ColumnarEvent,
    HostProfileMeasured,
    KernelsPredicted,
    KernelsSimulated,
    KernelTaskTraced,
    LaunchesTraced,
    RefinementChosen,
    RequestPredicted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRequested,
    StepsPredicted,
    StepTraced,
    TraceCompleted,
    TraceRejected,
    TraceStarted,
)
from cascade_schemas.gpu import load_gpu

from services.aggregator.predict import (
    RefinedSource,
    SourcePrediction,
    TracePredictor,
    refined_source,
    source_prediction,
)
from services.aggregator.rows import rows_of, taken_of
from services.aggregator.run_state import ConfigState, RunState, TraceState

_TRACES_REMEMBERED = 8


class States(Protocol):
    """Where states come from when the aggregator does not remember them."""

    def load_trace(self, trace_id: str) -> TraceState: ...

    def load_run(self, run_id: str) -> RunState | None: ...

    def open_runs(self, trace_id: str) -> list[str]: ...


class Aggregator:
    """`taken_rows` is what the store must commit together with the positions of the events that were read."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._traces: OrderedDict[str, TraceState] = OrderedDict()
        self._predictors: dict[str, TracePredictor] = {}
        self._runs: dict[str, RunState] = {}
        self._orphans: dict[str, list[AnyEvent]] = {}  # results that arrived before their run's request
        self._touched: dict[str, None] = {}  # runs that may have become complete, in order of first touch
        self._news: list[AnyEvent] = []  # not taken yet
        self._refined_news: list[KernelsSimulated] = []

    def react(self, event: AnyEvent) -> Iterator[AnyEvent]:
        self.restore(event)
        yield from ()

    def restore(self, event: AnyEvent) -> None:
        """Fold one event into states and rows."""
        match event:
            case (
                TraceStarted()
                | KernelTaskTraced()
                | LaunchesTraced()
                | StepTraced()
                | HostProfileMeasured()
                | TraceCompleted()
                | TraceRejected()
            ):
                if self._learn_trace(event):
                    for run_id in self._runs_of(event.trace_id):
                        self._touched[run_id] = None
            case RunRequested():
                if self._run(event.run_id) is None:
                    self._runs[event.run_id] = RunState.of(event)
                    self._collect(event)
                    self._touched[event.run_id] = None
                    for orphan in self._orphans.pop(event.run_id, ()):
                        self.restore(orphan)
            case RunCancelled() | KernelsSimulated() | RefinementChosen() | RunCompleted() | RunFailed():
                self._learn_run(event)
            case KernelsPredicted() | StepsPredicted() | RequestPredicted() | AccuracyMeasured():
                self._collect(event)
                if (run := self._run(event.run_id)) and event.config_id in run.configs:
                    _learn_prediction(run.configs[event.config_id], event)
            case _:
                self._collect(event)

    def settle(self) -> Iterator[AnyEvent]:
        touched, self._touched = self._touched, {}
        for run_id in touched:
            run = self._run(run_id)
            if run is None:
                continue
            for event in self._answers(run):
                self.restore(event)
                yield event
            if run.is_ended or run.is_cancelled:
                del self._runs[run_id]  # the store remembers it

    def forget_ended(self) -> None:
        """For who only follows what another aggregator says: nothing is answered, and ended runs are the store's."""
        touched, self._touched = self._touched, {}
        for run_id in touched:
            run = self._runs.get(run_id)
            if run is not None and (run.is_ended or run.is_cancelled):
                del self._runs[run_id]

    def is_awaiting(self, run_id: str) -> bool:
        """Whether something came of a run whose request did not come yet: it is remembered, and no row tells of it."""
        return run_id in self._orphans

    def touch(self, run_ids: list[str]) -> None:
        """Look at these runs again at the next settle: what a restart interrupted may only need finishing."""
        self._touched.update(dict.fromkeys(run_ids))

    def finished(self) -> list[RunCompleted]:
        """Ends of runs whose predictions are all said; the state hash is left to whoever has committed the rows."""
        ends = []
        for run in self._runs.values():
            if run.is_ended or run.is_cancelled:
                continue
            # Predictions alone are not enough: after a crash they may be read back before the results they rest on.
            trace = self._trace(run.request.trace_id)
            configs = run.configs.values()
            if not trace.is_whole or not all(c.is_predicted and _is_complete(c, trace) for c in configs):
                continue
            if run.request.refine is not None and not all(_is_settled(config) for config in configs):
                continue
            total = sum(len(config.failed()) for config in run.configs.values())
            ends.append(
                RunCompleted(
                    run_id=run.request.run_id,
                    outcome="completed_with_failures" if total else "completed",
                    failed_count=total,
                    state_hash="",
                )
            )
        return ends

    def taken_rows(self) -> dict[str, list[pa.Table]]:
        news, self._news = self._news, []
        refined, self._refined_news = self._refined_news, []
        return {table: [rows] for table, rows in rows_of(news, refined).items()}

    # --- folds ----------------------------------------------------------------------------------------------

    def _learn_trace(
        self,
        event: TraceStarted
        | KernelTaskTraced
        | LaunchesTraced
        | StepTraced
        | HostProfileMeasured
        | TraceCompleted
        | TraceRejected,
    ) -> bool:
        """True where the event was new and the trace may have become whole or rejected."""
        trace = self._trace(event.trace_id)
        match event:
            case LaunchesTraced():
                new = trace.add_launches(event.rank, event.rows)
                if new.num_rows:
                    self._collect(event.model_copy(update={"rows": new}))
                return trace.is_whole
            case KernelTaskTraced():
                if event.task_id in trace.tasks:
                    return False
                trace.tasks[event.task_id] = event
            case StepTraced():
                if (event.rank, event.step) in trace.steps:
                    return False
                trace.steps[event.rank, event.step] = event
            case TraceStarted():
                trace.started = trace.started or event
            case HostProfileMeasured():
                trace.host_profile = trace.host_profile or event
            case TraceCompleted():
                trace.completed = trace.completed or event
            case TraceRejected():
                trace.rejected = trace.rejected or event
        self._collect(event)
        return trace.is_whole or trace.rejected is not None

    def _learn_run(self, event: RunCancelled | KernelsSimulated | RefinementChosen | RunCompleted | RunFailed) -> None:
        run = self._run(event.run_id)
        if run is None:
            self._orphans.setdefault(event.run_id, []).append(event)
            return
        match event:
            case RunCancelled():
                run.is_cancelled = True
                self._collect(event)
            case KernelsSimulated():
                self._learn_results(run, event)
            case RefinementChosen():
                config = run.configs.get(event.config_id)
                if config is not None and config.refinement is None:
                    config.refinement = event
                    self._collect(event)
            case RunCompleted() | RunFailed():
                run.is_ended = True
                self._collect(event)
        self._touched[event.run_id] = None

    def _learn_results(self, run: RunState, event: KernelsSimulated) -> None:
        config = run.configs.get(event.config_id)
        if config is None:
            return
        refine = run.request.refine
        is_again = refine is not None and event.simulator == refine.simulator
        new = (config.refined if is_again else config.first).add(event.rows)
        if new.num_rows:
            fresh = event.model_copy(update={"rows": new})
            self._refined_news.append(fresh) if is_again else self._collect(fresh)

    def _collect(self, event: AnyEvent) -> None:
        if not isinstance(event, ColumnarEvent) or event.rows.num_rows:
            self._news.append(event)

    def _trace(self, trace_id: str) -> TraceState:
        trace = self._traces.get(trace_id)
        if trace is None:
            self._forget_traces()
            trace = self._traces[trace_id] = self._states.load_trace(trace_id)
        self._traces.move_to_end(trace_id)
        return trace

    def _forget_traces(self) -> None:
        """Whole traces only, and only between commits: rows not yet committed are in no store to read back from."""
        if self._news or self._refined_news:
            return
        for trace_id in list(self._traces)[: max(0, len(self._traces) - _TRACES_REMEMBERED + 1)]:
            if self._traces[trace_id].is_whole:
                del self._traces[trace_id]
                self._predictors.pop(trace_id, None)

    def _run(self, run_id: str) -> RunState | None:
        run = self._runs.get(run_id) or self._states.load_run(run_id)
        if run is not None:
            self._runs[run_id] = run
        return run

    def _runs_of(self, trace_id: str) -> list[str]:
        remembered = [run_id for run_id, run in self._runs.items() if run.request.trace_id == trace_id]
        stored = [run_id for run_id in self._states.open_runs(trace_id) if run_id not in self._runs]
        for run_id in stored:
            self._run(run_id)
        return remembered + stored

    # --- answers --------------------------------------------------------------------------------------------

    def _answers(self, run: RunState) -> Iterator[AnyEvent]:
        if run.is_ended or run.is_cancelled:
            return
        run_id = run.request.run_id
        trace = self._trace(run.request.trace_id)
        if trace.rejected is not None:
            yield RunFailed(run_id=run_id, reason=f"the trace was rejected: {trace.rejected.reason}")
            return
        if not trace.is_whole:
            return
        predictor = self._predictor(trace)
        source_config = _source_config(run, trace)
        if source_config is not None and not _is_complete(source_config, trace):
            return
        source = (
            source_prediction(source_config, predictor, run.request.simulator) if source_config is not None else None
        )
        for config in run.configs.values():
            if not _is_complete(config, trace) or config.is_predicted:
                continue
            if trace.tasks and len(config.first.failed()) == len(trace.tasks):
                yield RunFailed(
                    run_id=run_id, reason=f"no kernel could be simulated on {config.config.label}; see its failures"
                )
                return
            yield from predictor.predict(run_id, config, source)
        if run.request.refine is not None and all(_is_complete(config, trace) for config in run.configs.values()):
            yield from _choices(run, source_config, source, predictor)
            yield from _refined_answers(run, source_config, source, predictor)

    def _predictor(self, trace: TraceState) -> TracePredictor:
        predictor = self._predictors.get(trace.trace_id)
        if predictor is None:
            predictor = self._predictors[trace.trace_id] = TracePredictor(trace)
        return predictor


def _choices(
    run: RunState, source_config: ConfigState | None, source: SourcePrediction | None, predictor: TracePredictor
) -> Iterator[RefinementChosen]:
    """What is simulated again, once for each config, when all first answers are out. The source's own comes last: it
    takes what the others are corrected by.
    """
    refine, run_id = run.request.refine, run.request.run_id
    assert refine is not None
    others = [config for config in run.configs.values() if config is not source_config]
    needed: set[str] = set()
    for config in others:
        choice = config.refinement or predictor.refinement(run_id, config, source, refine)
        needed.update(task.task_id for task in choice.tasks)
        if config.refinement is None:
            yield choice
    if source_config is not None and source_config.refinement is None:
        yield predictor.refinement(run_id, source_config, source, refine, frozenset(needed))


def _refined_answers(
    run: RunState, source_config: ConfigState | None, source: SourcePrediction | None, predictor: TracePredictor
) -> Iterator[AnyEvent]:
    """Second answers of configs whose refined results are here, and the source's that correct them."""
    if source_config is not None and not source_config.has_refinements:
        return
    assert run.request.refine is not None
    by = run.request.refine.simulator
    reference = RefinedSource(refined_source(source_config, predictor, by) if source_config is not None else None)
    for config in run.configs.values():
        if config.has_refinements and not _is_settled(config):
            yield from predictor.predict(run.request.run_id, config, source, reference)


def _is_settled(config: ConfigState) -> bool:
    """Nothing more is to come: no kernel of it is refined, or the answer with the refined ones is out."""
    return config.refinement is not None and (config.is_refined or not config.refinement.tasks)


def _learn_prediction(
    config: ConfigState, event: KernelsPredicted | StepsPredicted | RequestPredicted | AccuracyMeasured
) -> None:
    """The last of a config's predictions says that all are out; its kernels say which refined results stand."""
    if isinstance(event, KernelsPredicted) and event.refined:
        config.taken = taken_of(event)
    elif isinstance(event, AccuracyMeasured):
        config.is_predicted = True
        config.is_refined = config.is_refined or event.refined


def _is_complete(config: ConfigState, trace: TraceState) -> bool:
    return len(config.first.done) == len(trace.tasks)


def _source_config(run: RunState, trace: TraceState) -> ConfigState | None:
    """The run's config that is the unmodified GPU the trace was measured on."""
    assert trace.started is not None
    if trace.started.provenance != "measured" or trace.started.source_gpu is None:
        return None
    return run.configs.get(load_gpu(trace.started.source_gpu).config_id)
