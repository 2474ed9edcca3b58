"""KernelSimulationRequested in; KernelsSimulated out, failed tasks with their reason."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import RESULTS, tasks_of
from cascade_schemas.events import (
    AnyEvent,
    KernelSimulationRequested,
    KernelsSimulated,
    RunCancelled,
    SimulatorFinished,
    SimulatorLogged,
    SimulatorStarted,
)
from numpy.typing import NDArray

from services.kernels.work import Work, WorkTable
from services.kernels.work_of import work_of
from services.runtime.executor import Cancelled
from services.simworker.simulators.base import Interruptible, KernelSimulator, Predictions, Talking

_WORKS_REMEMBERED = 65_536  # ~60 MB: a run's tasks come once per config, their work is the same each time


class ResultCache(Protocol):
    """Results kept for ever, for all workers, under a key that holds everything they depend on."""

    def get_result(self, key: str) -> pa.RecordBatch | None: ...

    def put_result(self, key: str, rows: pa.RecordBatch) -> None: ...


class NoCache:
    """Remembers nothing."""

    def get_result(self, key: str) -> pa.RecordBatch | None:  # noqa: ARG002 - a ResultCache's shape
        return None

    def put_result(self, key: str, rows: pa.RecordBatch) -> None:
        pass


Say = Callable[[Sequence[AnyEvent]], None]

_SAY_EACH_MS = 100
_SAY_BYTES = 64 << 10


class _LiveLines:
    """Lines of the configs of one call as they come from several threads, said ten times a second at most; where more
    come than a record may hold they are counted instead.
    """

    def __init__(self, say: Callable[[int, tuple[str, ...], int], None], now_ms: Callable[[], int]) -> None:
        self._say = say
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._waiting: dict[int, list[str]] = {}
        self._bytes: Counter[int] = Counter()
        self._left_out: Counter[int] = Counter()
        self._said_ms: dict[int, int] = {}

    def hear(self, config: int, line: str) -> None:
        with self._lock:
            size = len(line.encode())
            if self._bytes[config] + size > _SAY_BYTES:
                self._left_out[config] += 1
            else:
                self._waiting.setdefault(config, []).append(line)
                self._bytes[config] += size
            now_ms = self._now_ms()
            if now_ms - self._said_ms.get(config, 0) >= _SAY_EACH_MS:
                self._flush(config, now_ms)

    def end(self) -> None:
        with self._lock:
            for config in list(self._waiting):
                self._flush(config, self._now_ms())

    def _flush(self, config: int, now_ms: int) -> None:
        self._said_ms[config] = now_ms
        self._bytes[config] = 0
        lines, left_out = tuple(self._waiting.pop(config, ())), self._left_out.pop(config, 0)
        if lines or left_out:
            self._say(config, lines, left_out)


@dataclass
class _Pending:
    """One set of tasks wanted on several configs, possibly by several runs: one call of the simulator."""

    task_ids: tuple[str, ...]
    requests: list[KernelSimulationRequested]


class Simworker:
    """Collects what waits in the log and simulates it in one call per distinct set of tasks."""

    def __init__(
        self,
        simulators: dict[str, KernelSimulator],
        worker: str,
        now_ms: Callable[[], int],
        cache: ResultCache | None = None,
        say: Say | None = None,
    ) -> None:
        """`say` appends what is said in the middle of a simulation at once; without it that is not heard."""
        self._simulators = simulators
        self._say = say
        self._cache = cache or NoCache()
        self._roofline = simulators["roofline"]  # shown beside every prediction
        self._worker = worker
        self._now_ms = now_ms
        self._works: dict[str, Work] = {}
        self._pending: dict[tuple[str, tuple[str, ...]], _Pending] = {}
        self._cancelled: set[str] = set()
        self._started: set[tuple[str, str]] = set()
        self._line_counts: dict[tuple[str, str], int] = {}
        self._running: tuple[KernelSimulator, list[KernelSimulationRequested]] | None = None

    def react(self, event: AnyEvent) -> Iterator[AnyEvent]:
        self.restore(event)
        if isinstance(event, KernelSimulationRequested) and event.run_id not in self._cancelled:
            task_ids = tuple(event.rows.column("task_id").to_pylist())
            self._learn_works(event.rows, task_ids)
            key = (event.simulator, task_ids)
            self._pending.setdefault(key, _Pending(task_ids, [])).requests.append(event)
        yield from ()

    def restore(self, event: AnyEvent) -> None:
        """May be called from another thread while this one simulates: what nobody wants any more is ended."""
        if isinstance(event, RunCancelled):
            self._cancelled.add(event.run_id)
            running = self._running
            if running is not None and not self._wanted(running[1]) and isinstance(running[0], Interruptible):
                running[0].cancel()

    def settle(self) -> Iterator[AnyEvent]:
        pending, self._pending = self._pending, {}
        for (simulator_name, _), work in pending.items():
            wanted = self._wanted(work.requests)
            if wanted:
                # A run that is cancelled in the middle has nothing more to say.
                with suppress(Cancelled):
                    yield from self._simulate(self._simulators[simulator_name], work.task_ids, wanted)

    def _wanted(self, requests: Sequence[KernelSimulationRequested]) -> list[KernelSimulationRequested]:
        return [request for request in requests if request.run_id not in self._cancelled]

    def _learn_works(self, rows: pa.RecordBatch, task_ids: tuple[str, ...]) -> None:
        unknown = [index for index, task_id in enumerate(task_ids) if task_id not in self._works]
        if not unknown:
            return
        if len(self._works) + len(unknown) > _WORKS_REMEMBERED:
            self._works.clear()
            unknown = list(range(len(task_ids)))
        tasks = tasks_of(rows.take(pa.array(unknown)))
        for task_id, task in zip((task_ids[index] for index in unknown), tasks, strict=True):
            self._works[task_id] = work_of(task)

    def _simulate(
        self, simulator: KernelSimulator, task_ids: tuple[str, ...], requests: list[KernelSimulationRequested]
    ) -> Iterator[AnyEvent]:
        for request in requests:
            if (request.run_id, request.config_id) not in self._started:
                self._started.add((request.run_id, request.config_id))
                yield self._started_event(simulator, request)
        began_ms = self._now_ms()
        keys = [result_key(simulator, request.config_id, task_ids) for request in requests]
        found = [self._cache.get_result(key) for key in keys]
        wanted = [request for request, rows in zip(requests, found, strict=True) if rows is None]
        simulated = iter(self._simulated(simulator, task_ids, wanted))
        elapsed_ms = self._now_ms() - began_ms
        for request, key, cached in zip(requests, keys, found, strict=True):
            rows = cached
            lines: tuple[str, ...] = ()
            if rows is None:
                rows, lines = next(simulated)
                # A refusal is no result: what was missing may be there the next time.
                if not rows.column("duration_ns").null_count:
                    self._cache.put_result(key, with_cached_flag(rows))
            failed_count = rows.column("duration_ns").null_count
            yield KernelsSimulated(
                run_id=request.run_id, config_id=request.config_id, simulator=simulator.name, rows=rows
            )
            if lines:
                yield self._logged_event(request, *lines)
            how = "from the cache" if cached is not None else f"{elapsed_ms} ms for {len(wanted)} configs"
            yield self._logged_event(
                request, f"{len(task_ids)} tasks on {request.gpu.name}: {failed_count} failed, {how}"
            )
            yield SimulatorFinished(
                run_id=request.run_id,
                config_id=request.config_id,
                simulated_count=len(task_ids) - failed_count,
                failed_count=failed_count,
                elapsed_ms=elapsed_ms,
            )

    def _simulated(
        self, simulator: KernelSimulator, task_ids: tuple[str, ...], requests: list[KernelSimulationRequested]
    ) -> list[tuple[pa.RecordBatch, tuple[str, ...]]]:
        """Per request one batch of RESULTS, and lines for its log."""
        if not requests:
            return []
        gpus = [request.gpu for request in requests]
        table = WorkTable.of([self._works[task_id] for task_id in task_ids])
        self._running = (simulator, requests)
        try:
            if not self._wanted(requests):
                raise Cancelled("the run was cancelled before it began")
            with self._heard(simulator, requests):
                predictions = simulator.simulate(table, gpus)
        finally:
            self._running = None
        roofline_ns = self._roofline.simulate(table, gpus).duration_ns
        log = predictions.log or ((),) * len(gpus)
        return [
            (result_rows(task_ids, table, predictions, roofline_ns, index), log[index]) for index in range(len(gpus))
        ]

    @contextmanager
    def _heard(self, simulator: KernelSimulator, requests: list[KernelSimulationRequested]) -> Iterator[None]:
        """What the simulator says meanwhile is in the runs' logs at once."""
        say = self._say
        if say is None or not isinstance(simulator, Talking):
            yield
            return

        def say_now(config: int, lines: tuple[str, ...], left_out: int) -> None:
            logged = self._logged_event(requests[config], *lines)
            say([logged.model_copy(update={"left_out_line_count": left_out})])

        live = _LiveLines(say_now, self._now_ms)
        simulator.listen(live.hear)
        try:
            yield
        finally:
            live.end()

    def _started_event(self, simulator: KernelSimulator, request: KernelSimulationRequested) -> SimulatorStarted:
        return SimulatorStarted(
            run_id=request.run_id,
            config_id=request.config_id,
            simulator=simulator.name,
            simulator_version=simulator.version,
            calibration_digest=simulator.calibration_digest,
            worker=self._worker,
        )

    def _logged_event(self, request: KernelSimulationRequested, *lines: str) -> SimulatorLogged:
        key = (request.run_id, request.config_id)
        first_line = self._line_counts.get(key, 0)
        self._line_counts[key] = first_line + len(lines)
        return SimulatorLogged(run_id=request.run_id, config_id=request.config_id, first_line=first_line, lines=lines)


def result_key(simulator: KernelSimulator, config_id: str, task_ids: tuple[str, ...]) -> str:
    """SHA-256 of what fixes the answer: tasks, resolved GPU, simulator, its version and its constants."""
    parts = (simulator.name, simulator.version, simulator.calibration_digest, config_id, *task_ids)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def with_cached_flag(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same results, marked as they will be when they come from the cache."""
    place = rows.schema.get_field_index("is_cached")
    return rows.set_column(place, rows.schema.field(place), pa.repeat(pa.scalar(value=True), rows.num_rows))


def result_rows(
    task_ids: tuple[str, ...],
    work: WorkTable,
    predictions: Predictions,
    roofline_ns: NDArray[np.int64],
    config: int,
) -> pa.RecordBatch:
    """One config's predictions as a batch of RESULTS, in the order of the tasks; a negative duration is a failure.

    roofline_ns: the datasheet baseline, shape (configs, tasks).
    """
    failed = predictions.duration_ns[config] < 0

    def times(column: np.ndarray) -> pa.Array:
        return pa.array(column[config].astype(np.int64), type=pa.int64(), mask=failed)

    def words(values: list[str]) -> pa.Array:
        return pa.array(values, type=pa.string()).dictionary_encode()

    count = len(task_ids)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(task_ids, type=pa.string()),
            times(predictions.duration_ns),
            times(predictions.p10_ns),
            times(predictions.p90_ns),
            pa.array(np.rint(predictions.sigma[config] * 1e6).astype(np.int64), type=pa.int64(), mask=failed),
            words([str(family) for family in work.text("family")]),
            words([predictions.tier] * count),
            words(predictions.reasons_of(config)),
            words(predictions.bounds_of(config)),
            times(predictions.tensor_ns),
            times(predictions.dram_ns),
            times(predictions.l2_ns),
            times(predictions.issue_ns),
            times(predictions.launch_ns),
            pa.nulls(count, pa.int64()) if predictions.sm_cycles is None else times(predictions.sm_cycles),
            pa.array(np.zeros(count, dtype=np.bool_), type=pa.bool_()),
            pa.array(np.rint(roofline_ns[config]).astype(np.int64), type=pa.int64()),
            _statistics(predictions, config, count),
        ],
        schema=RESULTS,
    )


def _statistics(predictions: Predictions, config: int, count: int) -> pa.Array:
    if not predictions.statistics:
        return pa.nulls(count, pa.string())
    return pa.array([text or None for text in predictions.statistics[config]], type=pa.string())
