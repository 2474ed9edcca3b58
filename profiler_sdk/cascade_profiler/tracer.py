"""One rank while it is traced: steps as the engine runs them, windows in which a collector records, and the recorder.

Called in the thread that runs the model, between its steps. Reading a window out, and everything after, happens in
another thread; where that cannot keep up, windows are left out rather than the job held up.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from cascade_schemas.events import HostProfileRecorded

from cascade_profiler.clock import Clock
from cascade_profiler.collect import Collector
from cascade_profiler.gpu_clock import GpuClock
from cascade_profiler.hostprofile import STEPS_LIMIT, HostStep, host_profile
from cascade_profiler.kineto import Seen, StepSpan, Window, window_rows
from cascade_profiler.outbox import Delivery
from cascade_profiler.plan import Kind, KindReport, SamplingPlan, kind_of, sentence
from cascade_profiler.recorder import Batch, Recorder, StepFacts
from cascade_profiler.saying import said, say

STEPS_PER_WINDOW = 8
_WINDOWS_WAITING = 4
_STOP_TIMEOUT_S = 60.0
_GPU_TIMEOUT_S = 1.0  # for the last steps to end on the GPU


class _Open(NamedTuple):
    """A step that has begun: its batch, and its two calls so far."""

    batch: Batch
    began_ns: int  # monotonic
    host_ns: int
    is_profiled: bool
    gpu_began: Any  # an event on the GPU; None: not measured


class _Done(NamedTuple):
    """A window that has been recorded, and its steps."""

    read: Callable[[], Iterable[Seen]]
    steps: list[StepFacts]


class Tracer:
    """`collector` None: steps and host times alone. `plan` None: every step is profiled.

    gpu_clock: also measure how long each step keeps the GPU; no_gpu_clock: why there is none.
    """

    def __init__(
        self,
        recorder: Recorder,
        trace_id: str,
        clock: Clock,
        origin_unix_ns: int,
        collector: Collector | None,
        plan: SamplingPlan | None = None,
        *,
        profile: HostProfileRecorded | None = None,
        gpu_clock: GpuClock | None = None,
        no_gpu_clock: str = "",
        steps_per_window: int = STEPS_PER_WINDOW,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.recorder = recorder
        self._trace_id = trace_id
        self._clock = clock
        self._origin_unix_ns = origin_unix_ns
        self._collector = collector
        self._plan = plan
        self._profile = profile
        self._gpu_clock = gpu_clock
        self._no_gpu_clock = no_gpu_clock
        self._gpu_began: Any = None
        self._steps_per_window = steps_per_window
        self._now_ns = now_ns
        self._next_step = 0
        self._pending: list[_Open] = []  # executed, not sampled
        self._window: list[StepFacts] | None = None
        self._skipped_windows = 0
        self._host_steps: list[HostStep] = []
        self._windows: queue.SimpleQueue[_Done | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._is_over = False
        self._reader: threading.Thread | None = None
        if collector is not None:
            self._reader = threading.Thread(target=self._read_windows, name="cascade-reader", daemon=True)
            self._reader.start()

    # --- called by the hook, in the model's thread --------------------------------------------------------------

    def before_execute(self, batch: Batch) -> int:
        """A step begins; monotonic ns."""
        if self._collector is not None and not self._pending:
            self._turn_window(self._collector, batch)
        if self._gpu_clock is not None:
            self._gpu_began = self._gpu_clock.mark()
        return self._now_ns()

    def after_execute(self, batch: Batch, began_ns: int, *, is_over: bool) -> None:
        """`is_over`: no sample_tokens follows."""
        host_ns = self._now_ns() - began_ns
        self._pending.append(_Open(batch, began_ns, host_ns, self._window is not None, self._gpu_began))
        if is_over or len(self._pending) > 4:
            self._end_step()

    def after_sample(self) -> None:
        if self._pending:
            self._end_step()

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> Delivery:
        """End the trace; in whatever thread, once."""
        with self._lock:
            if self._is_over:
                return self.recorder.outbox.delivery
            self._is_over = True
        deadline_s = time.monotonic() + timeout_s
        while self._pending:
            self._end_step()
        if self._collector is not None:
            self._close_window(self._collector, is_last=True)
            self._windows.put(None)
            assert self._reader is not None
            self._reader.join(timeout_s)
        notes = list(said())
        if self._skipped_windows:
            notes.append(
                f"{self._skipped_windows} windows of {self._steps_per_window} steps were not profiled because"
                " earlier ones were still being read; sampling needs fewer of them"
            )
        if self._plan is not None:
            notes.append(f"Sampled: {sentence(self._plan.report())}.")
        profile = self._profile or (self.measured() if self._collector is None else None)
        if profile is not None and profile.step_host_ns:
            self.recorder.host_profile(profile)
        return self.recorder.end(notes, max(deadline_s - time.monotonic(), 1.0))

    def measured(self) -> HostProfileRecorded:
        """Host times of the steps so far; of use only where no profiler ran."""
        clock = self._gpu_clock
        if clock is None:
            return host_profile(self._host_steps, self._trace_id, gpu_absent=self._no_gpu_clock)
        clock.finish(_GPU_TIMEOUT_S)
        return host_profile(self._host_steps, self._trace_id, clock.times_ns, clock.absent)

    def known(self, timeout_s: float) -> list[KindReport]:
        """What sampling has learnt of each kind of step, the open window included; in the model's thread."""
        if self._plan is None or self._collector is None:
            return []
        self._close_window(self._collector, is_last=False)
        deadline_s = time.monotonic() + timeout_s
        while self._waiting and time.monotonic() < deadline_s:
            time.sleep(0.002)
        return self._plan.report()

    # --- steps and windows --------------------------------------------------------------------------------------

    def _end_step(self) -> None:
        opened = self._pending.pop(0)
        ended_ns = self._now_ns()
        facts = StepFacts(
            self._next_step,
            self._clock.unix_ns(opened.began_ns) - self._origin_unix_ns,
            ended_ns - opened.began_ns,
            *opened.batch,
        )
        self._next_step += 1
        if self._collector is None:
            if len(self._host_steps) < STEPS_LIMIT:
                # Only execute_model: it issues work and goes on, where sampling waits for the GPU's answer.
                end_ns = facts.start_ns + facts.duration_ns
                if self._gpu_clock is not None:
                    self._gpu_clock.end(facts.step, opened.gpu_began)
                self._host_steps.append(HostStep(facts, opened.host_ns, end_ns))
            self.recorder.step(facts)
        elif opened.is_profiled and self._window is not None:
            self._window.append(facts)
        else:
            self.recorder.step(facts)

    def _turn_window(self, collector: Collector, batch: Batch) -> None:
        """Between two steps: close a window that is full, open one where there is something to learn."""
        is_wanted = self._plan is None or self._plan.wants(kind_of(batch))
        if self._window is not None:
            if is_wanted and len(self._window) < self._steps_per_window:
                return
            self._close_window(collector, is_last=False)
        if not is_wanted:
            return
        with self._lock:
            if self._waiting >= _WINDOWS_WAITING:
                self._skipped_windows += 1
                return
        try:
            collector.start()
        except Exception as error:  # noqa: BLE001 - a profiler's failure must not be the job's
            self._give_up(f"{collector.name} could not start a window ({type(error).__name__}: {error})")
            return
        self._window = []

    def _close_window(self, collector: Collector, *, is_last: bool) -> None:
        steps, self._window = self._window, None
        if steps is None:
            return
        try:
            read = collector.stop()
        except Exception as error:  # noqa: BLE001 - see _turn_window
            self._give_up(f"{collector.name} could not end a window ({type(error).__name__}: {error})")
            for facts in steps:
                self.recorder.step(facts)
            return
        if not steps and is_last:
            return
        with self._lock:
            self._waiting += 1
        self._windows.put(_Done(read, steps))

    def _give_up(self, why: str) -> None:
        say(f"{why}; kernels are no longer recorded, steps are")
        self._plan = _Never()

    def _read_windows(self) -> None:
        while (done := self._windows.get()) is not None:
            try:
                self._read(done)
            except Exception as error:  # noqa: BLE001 - see _turn_window
                say(f"a window could not be read ({type(error).__name__}: {error}); its steps have no kernels")
                for facts in done.steps:
                    self.recorder.step(facts)
            with self._lock:
                self._waiting -= 1

    def _read(self, done: _Done) -> None:
        assert self._collector is not None
        spans = [StepSpan(facts.step, facts.start_ns + self._origin_unix_ns) for facts in done.steps]
        window = window_rows(done.read(), spans, self._origin_unix_ns)
        self._say_losses(window, done.steps)
        if window.outside:
            self.recorder.outside(window.outside)
        for facts in done.steps:
            rows = window.steps[facts.step]
            if self._collector.has_gpu:
                self.recorder.step(facts, launches=rows.launches)
            else:
                self.recorder.step(facts, ops=rows.ops)
            if self._plan is not None:
                self._plan.learn(kind_of(facts), facts.duration_ns)

    def _say_losses(self, window: Window, steps: Sequence[StepFacts]) -> None:
        """A profiler can lose kernels without a word."""
        assert self._collector is not None
        if window.opaque_graph_count:
            say(
                f"{window.opaque_graph_count} graph launches left no kernel record: the profiler saw the graph as one;"
                " with nsys use --cuda-graph-trace=node"
            )
        if not self.recorder.has_captures and any(
            graph is not None for rows in window.steps.values() for graph in rows.launches.graph
        ):
            say(
                "kernels that a CUDA graph replays have no ops, so that their shapes are solved from the model; to"
                " record them call cascade_profiler.arm(graphs=True) before the LLM is built, or use cascade-trace"
            )
        has_run = self._collector.has_gpu and any(facts.request_ids for facts in steps)
        if has_run and not any(len(rows.launches) for rows in window.steps.values()):
            say("the profiler saw no kernel during steps that ran: another profiler holds the GPU's counters")


class _Never(SamplingPlan):
    """A plan with nothing left to learn."""

    def wants(self, kind: Kind) -> bool:  # noqa: ARG002 - whatever the kind
        return False


def report_of(tracer: Tracer, delivery: Delivery, rank: int) -> dict[str, Any]:
    """What a rank tells the front end when its trace ends; JSON values only."""
    counts = tracer.recorder.counts
    return {
        "rank": rank,
        "steps": counts.steps,
        "launches": counts.launches,
        "ops": counts.ops,
        "dropped_steps": counts.dropped_steps,
        "dropped_launches": counts.dropped_launches,
        "sent_records": delivery.sent_records,
        "spooled_records": delivery.spooled_records,
        "lost_records": delivery.lost_records,
        "refused": delivery.refused,
        "said": list(said()),
    }
