"""Which work a run causes: each distinct task of its trace, once per config, as soon as both are known; and those that
are chosen to be refined once more, by the run's refining simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
from cascade_schemas.batches import tasks_batch
from cascade_schemas.events import (
    AnyEvent,
    KernelSimulationRequested,
    KernelTaskTraced,
    RefinementChosen,
    RunCancelled,
    RunConfig,
    RunRequested,
)
from cascade_schemas.partition import TASKS_PER_BATCH, work_partition
from cascade_schemas.task import KernelTask


@dataclass
class _Trace:
    tasks: dict[str, KernelTask] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)


class Planner:
    """Catalog and runs in; KernelSimulationRequested out, in batches, while tracing goes on."""

    def __init__(self) -> None:
        self._traces: dict[str, _Trace] = {}
        self._runs: dict[str, RunRequested] = {}
        self._cancelled: set[str] = set()
        self._pending: dict[str, list[str]] = {}  # run -> tasks not asked for yet
        self._refining: list[RefinementChosen] = []  # not asked for yet
        self._refined: set[tuple[str, str]] = set()  # run and config

    def react(self, event: AnyEvent) -> Iterator[AnyEvent]:
        for run_id, task_ids in self._learn(event):
            self._pending.setdefault(run_id, []).extend(task_ids)
        if isinstance(event, RefinementChosen) and self._learn_refinement(event):
            self._refining.append(event)
        yield from ()

    def restore(self, event: AnyEvent) -> None:
        self._learn(event)
        if isinstance(event, RefinementChosen):
            self._learn_refinement(event)

    def forget(self, run_id: str) -> None:
        """Ask nothing more for a run that has ended."""
        self._cancelled.add(run_id)

    def settle(self) -> Iterator[AnyEvent]:
        pending, self._pending = self._pending, {}
        for run_id, task_ids in pending.items():
            if run_id not in self._cancelled:
                run = self._runs[run_id]
                yield from self._requests(run, run.configs, run.simulator, task_ids)
        yield from self._refinements()

    def _learn(self, event: AnyEvent) -> list[tuple[str, list[str]]]:
        """Runs with the tasks that this event makes ready to simulate."""
        match event:
            case KernelTaskTraced():
                trace = self._traces.setdefault(event.trace_id, _Trace())
                if event.task_id in trace.tasks:
                    return []
                trace.tasks[event.task_id] = event.task
                return [(run_id, [event.task_id]) for run_id in trace.runs]
            case RunRequested() if event.run_id not in self._runs:
                self._runs[event.run_id] = event
                trace = self._traces.setdefault(event.trace_id, _Trace())
                trace.runs.append(event.run_id)
                return [(event.run_id, list(trace.tasks))]
            case RunCancelled():
                self._cancelled.add(event.run_id)
        return []

    def _learn_refinement(self, event: RefinementChosen) -> bool:
        """True where it is new: its first saying stands."""
        is_new = (event.run_id, event.config_id) not in self._refined
        self._refined.add((event.run_id, event.config_id))
        return is_new

    def _refinements(self) -> Iterator[KernelSimulationRequested]:
        """Of runs and tasks that are known here: a new planner may read of a choice before what it is about."""
        waiting, self._refining = self._refining, []
        for choice in waiting:
            if choice.run_id in self._cancelled:
                continue
            run = self._runs.get(choice.run_id)
            task_ids = [task.task_id for task in choice.tasks]
            if run is None or not self._traces[run.trace_id].tasks.keys() >= set(task_ids):
                self._refining.append(choice)
                continue
            configs = [config for config in run.configs if config.config_id == choice.config_id]
            yield from self._requests(run, configs, choice.simulator, task_ids)

    def _requests(
        self, run: RunRequested, configs: Sequence[RunConfig], simulator: str, task_ids: list[str]
    ) -> Iterator[KernelSimulationRequested]:
        tasks = self._traces[run.trace_id].tasks
        limit = TASKS_PER_BATCH.get(simulator, 1)
        made: dict[tuple[str, ...], pa.RecordBatch] = {}  # configs that are not shared ask for the same rows
        for config in configs:
            shards: dict[int, list[KernelTask]] = {}
            for task_id in task_ids:
                shard = work_partition(config.config_id, task_id, config.replicas)
                shards.setdefault(shard, []).append(tasks[task_id])
            for shard in sorted(shards):
                for batch in _batched(shards[shard], limit):
                    ids = tuple(task.task_id for task in batch)
                    rows = made[ids] = made[ids] if ids in made else tasks_batch(batch)
                    yield KernelSimulationRequested(
                        run_id=run.run_id,
                        config_id=config.config_id,
                        gpu=config.gpu,
                        simulator=simulator,
                        shard=shard,
                        rows=rows,
                    )


def _batched(tasks: list[KernelTask], limit: int) -> Iterator[list[KernelTask]]:
    rest = iter(tasks)
    while batch := list(islice(rest, limit)):
        yield batch
