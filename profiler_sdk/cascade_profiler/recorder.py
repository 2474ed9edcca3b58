"""One rank's trace: numbers what is recorded, counts what is dropped, and says it as events.

A step and its launches are one unit: both are taken or both are dropped, so that no step is ever half there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cascade_schemas.codec import encode
from cascade_schemas.events import (
    AnyEvent,
    GraphCaptured,
    HostProfileRecorded,
    LaunchesRecorded,
    OpsRecorded,
    RecordingStarted,
    StepRecorded,
    TraceEnded,
    TraceHeartbeat,
)
from cascade_schemas.recording import packed_records

from cascade_profiler.destinations import Destination
from cascade_profiler.kineto import Capture
from cascade_profiler.outbox import HEARTBEAT_S, Delivery, Item, Outbox
from cascade_profiler.rows import FactColumns, Launches, Ops, capture_batch, launch_batches, op_batches, size_bytes
from cascade_profiler.spool import Spool

_STEP_BYTES = 400  # an event of one step while it waits, beside its lengths


class Batch(NamedTuple):
    """What a step works on; one entry per request, in the engine's order. A prompt of 0 began before the trace."""

    request_ids: tuple[int, ...]
    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    prompt_tokens: tuple[int, ...]


class StepFacts(NamedTuple):
    """One engine step. Times in ns from the trace's start; one entry per request in each list."""

    step: int
    start_ns: int
    duration_ns: int
    request_ids: tuple[int, ...]
    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    prompt_tokens: tuple[int, ...]


@dataclass(slots=True)
class Counts:
    """What has been taken, and what there was no room for."""

    launches: int = 0
    ops: int = 0
    steps: int = 0
    dropped_launches: int = 0
    dropped_steps: int = 0


class Recorder:
    """May be called from several threads. `captures`: the engine's graphs, as many as `started` promises."""

    def __init__(
        self,
        started: RecordingStarted,
        destination: Destination,
        spool: Spool | None,
        *,
        captures: Sequence[Capture] = (),
        memory_bytes_limit: int = 64 << 20,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.counts = Counts()
        self.has_captures = bool(captures)
        self._trace_id, self._rank = started.trace_id, started.rank
        self._lock = threading.Lock()
        self._is_over = False
        self._facts = FactColumns()
        self.outbox = Outbox(
            destination,
            spool,
            memory_bytes_limit=memory_bytes_limit,
            heartbeat=self._beat,
            heartbeat_s=heartbeat_s,
        )
        # pyarrow imports what it finds (pandas) with its first array; while the interpreter exits that fails.
        packed_records([encode(started, is_compressed=True)], 0)
        self._say(started)
        for number, capture in enumerate(captures):
            self._say_capture(number, capture)

    def step(self, step: StepFacts, launches: Launches | None = None, ops: Ops | None = None) -> bool:
        """Take a step with what a profiler saw of it (None: no profiler ran). False where it was dropped."""
        size = _STEP_BYTES + 64 * len(step.request_ids)
        size += sum(size_bytes(rows) for rows in (launches, ops) if rows is not None)
        with self._lock:
            counts = self.counts
            first_launch, first_op = counts.launches, counts.ops

            def make() -> Iterator[AnyEvent]:
                if launches is not None:
                    yield from self._launches(launches, first_launch, step.step)
                if ops is not None:
                    yield from self._ops(ops, first_op, step.step)
                yield StepRecorded(
                    trace_id=self._trace_id,
                    rank=self._rank,
                    **step._asdict(),
                    launch_count=None if launches is None else len(launches),
                    op_count=None if ops is None else len(ops),
                )

            if self._is_over or not self.outbox.offer(Item(make, size)):
                counts.dropped_steps += 1
                counts.dropped_launches += len(launches or ())
                return False
            counts.steps += 1
            counts.launches += len(launches or ())
            counts.ops += len(ops or ())
            return True

    def outside(self, launches: Launches) -> bool:
        """Take launches that belong to no step."""
        with self._lock:
            first = self.counts.launches
            item = Item(lambda: self._launches(launches, first, None), size_bytes(launches))
            if self._is_over or not self.outbox.offer(item):
                self.counts.dropped_launches += len(launches)
                return False
            self.counts.launches += len(launches)
            return True

    def host_profile(self, profile: HostProfileRecorded) -> None:
        self._say(profile)

    def end(self, notes: Sequence[str], timeout_s: float) -> Delivery:
        """Say that this was all, and send what waits. A second call changes nothing."""
        with self._lock:
            if self._is_over:
                return self.outbox.delivery
            self._is_over = True
        counts = self.counts
        said = list(notes)
        if counts.dropped_steps:
            said.append(
                f"{counts.dropped_steps} steps with {counts.dropped_launches} launches were dropped because the"
                " destination was too slow; raise memory_bytes_limit, or record into a file"
            )
        self._say(
            TraceEnded(
                trace_id=self._trace_id,
                rank=self._rank,
                launch_count=counts.launches,
                step_count=counts.steps,
                dropped_launch_count=counts.dropped_launches,
                op_count=counts.ops,
                notes=tuple(said),
            )
        )
        return self.outbox.close(timeout_s)

    def _launches(self, rows: Launches, first_seq: int, step: int | None) -> Iterator[AnyEvent]:
        for batch in launch_batches(rows, first_seq, step, self._facts):
            yield LaunchesRecorded(trace_id=self._trace_id, rank=self._rank, first_seq=first_seq, rows=batch)
            first_seq += batch.num_rows

    def _ops(self, rows: Ops, first_seq: int, step: int | None) -> Iterator[AnyEvent]:
        for batch in op_batches(rows, first_seq, step, self._facts):
            yield OpsRecorded(trace_id=self._trace_id, rank=self._rank, first_seq=first_seq, rows=batch)
            first_seq += batch.num_rows

    def _say(self, event: AnyEvent) -> None:
        self.outbox.offer(Item(lambda: (event,), _STEP_BYTES), is_small=True)

    def _say_capture(self, number: int, capture: Capture) -> None:
        def make() -> Iterator[AnyEvent]:
            yield GraphCaptured(
                trace_id=self._trace_id,
                rank=self._rank,
                capture=number,
                text=capture.text,
                batch_size=capture.batch_size,
                graph_count=len(capture.graphs),
                rows=capture_batch(capture.graphs),
            )

        self.outbox.offer(Item(make, _STEP_BYTES), is_small=True)

    def _beat(self) -> AnyEvent:
        return TraceHeartbeat(
            trace_id=self._trace_id,
            rank=self._rank,
            sent_launch_count=self.counts.launches,
            dropped_launch_count=self.counts.dropped_launches,
        )
