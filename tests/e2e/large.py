"""A home with more in it than a person would wait for: written straight into the log, answered by the real services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import LAUNCHES
from cascade_schemas.codec import encode
from cascade_schemas.events import (
    AnyEvent,
    KernelTaskTraced,
    LaunchesTraced,
    RunCompleted,
    RunConfig,
    RunRequested,
    SimulatorLogged,
    StepTraced,
    TraceCompleted,
    TraceStarted,
)
from cascade_schemas.gpu import parse_config

from services.runtime.eventlog import EventLog
from tests.bench.scale import make_tasks

TRACE = "large"
RUN = "large-run"
GPUS = ("a100_sxm_80gb", "l4", "l40s", "rtx_4090", "h100_sxm", "h200_sxm", "b200_sxm", "mi300x")
TASKS = 400
OUTLIER_NS = 5_000_000
_ROWS_PER_EVENT = 4096
_LINES_PER_EVENT = 1000


def seed(home: Path, *, launches: int, tasks: int = TASKS, run_id: str = RUN, at_ms: int = 1_700_000_000_000) -> None:
    """A measured trace of one stream and a run of it on eight GPUs, not yet simulated: a server does that at its start."""
    home.mkdir(parents=True, exist_ok=True)
    _write(home, [*trace(launches, task_count=tasks), run_requested(run_id, GPUS)], at_ms)


def seed_runs(home: Path, *, runs: int, at_ms: int = 1_700_000_000_000) -> None:
    """Many runs that ended, of a trace that is not here any more: a list, and nothing for a simulator to do."""
    home.mkdir(parents=True, exist_ok=True)
    ended = (
        event
        for number in range(runs)
        for event in (
            run_requested(f"run-{number:04d}", GPUS[:2], trace_id="gone"),
            RunCompleted(run_id=f"run-{number:04d}", outcome="completed", failed_count=0, state_hash="0" * 64),
        )
    )
    _write(home, ended, at_ms)


def seed_log(home: Path, *, run_id: str, lines: int, at_ms: int = 1_700_000_000_001) -> str:
    """Lines that a simulator of the run's first config said; the config's id."""
    config_id = parse_config(GPUS[0]).config_id
    said = (
        SimulatorLogged(
            run_id=run_id,
            config_id=config_id,
            first_line=first,
            lines=tuple(f"line {line} of the simulator" for line in range(first, min(first + _LINES_PER_EVENT, lines))),
        )
        for first in range(0, lines, _LINES_PER_EVENT)
    )
    _write(home, said, at_ms)
    return config_id


def run_requested(run_id: str, gpus: tuple[str, ...], trace_id: str = TRACE) -> RunRequested:
    parsed = [parse_config(gpu) for gpu in gpus]
    configs = tuple(RunConfig(config_id=one.config_id, label=one.label, gpu=one.gpu) for one in parsed)
    return RunRequested(run_id=run_id, trace_id=trace_id, configs=configs, simulator="analytic")


def trace(launches: int, *, task_count: int = TASKS, per_step: int = 1000) -> Iterator[AnyEvent]:
    """Decode steps of short kernels of so many tasks; one launch in the middle was measured far longer than all others."""
    tasks = make_tasks()[:task_count]
    step_count = -(-launches // per_step)
    yield TraceStarted(
        trace_id=TRACE, name="a million launches", provenance="measured", tool="kineto", source_gpu="a100_sxm_80gb"
    )
    for task in tasks:
        yield KernelTaskTraced(
            trace_id=TRACE, task_id=task.task_id, signature_id=task.signature.signature_id, task=task
        )
    random = np.random.default_rng(7)
    which = random.integers(0, len(tasks), launches)
    duration = random.integers(2_000, 50_000, launches)
    duration[launches // 2] = OUTLIER_NS
    start = np.cumsum(duration + 1_000) - duration
    step = np.arange(launches) // per_step
    for number in range(step_count):
        yield StepTraced(
            trace_id=TRACE,
            rank=0,
            step=number,
            phase="prefill" if number == 0 else "decode",
            start_ns=int(start[number * per_step]),
            duration_ns=int(duration[number * per_step : (number + 1) * per_step].sum()),
            context_requests=int(number == 0),
            context_tokens=512 if number == 0 else 0,
            generation_requests=int(number > 0),
            generation_tokens=int(number > 0),
            kernel_count=per_step,
        )
    names = pa.array([task.task_id for task in tasks])
    for first in range(0, launches, _ROWS_PER_EVENT):
        part = slice(first, min(first + _ROWS_PER_EVENT, launches))
        yield LaunchesTraced(
            trace_id=TRACE,
            rank=0,
            first_seq=first,
            rows=_rows(names, which[part], start[part], duration[part], step[part], first),
        )
    yield TraceCompleted(
        trace_id=TRACE,
        is_truncated=False,
        launch_count=launches,
        kernel_count=launches,
        signature_count=len({task.signature.signature_id for task in tasks}),
        task_count=len(tasks),
        step_count=step_count,
        launchless_count=0,
        quality={},
    )


def _rows(
    names: pa.Array, which: np.ndarray, start: np.ndarray, duration: np.ndarray, step: np.ndarray, first: int
) -> pa.RecordBatch:
    count = len(which)
    used, codes = np.unique(which, return_inverse=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.zeros(count, dtype=np.int32)),
            pa.array(np.arange(first, first + count)),
            pa.DictionaryArray.from_arrays(pa.array(codes, type=pa.int32()), names.take(pa.array(used))),
            pa.array(start),
            pa.array(duration),
            pa.array(np.full(count, 7, dtype=np.int32)),
            pa.array(step.astype(np.int32)),
            pa.nulls(count, pa.int64()),
            pa.array(start - 500),
            pa.array(np.ones(count, dtype=np.bool_)),
        ],
        schema=LAUNCHES,
    )


def _write(home: Path, events: Iterator[AnyEvent] | list[AnyEvent], at_ms: int) -> None:
    log = EventLog(home / "events.sqlite")
    try:
        pending: list[AnyEvent] = []
        for event in events:
            pending.append(event)
            if len(pending) == 500:
                log.append([encode(one) for one in pending], timestamp_ms=at_ms)
                pending = []
        log.append([encode(one) for one in pending], timestamp_ms=at_ms)
    finally:
        log.close()
