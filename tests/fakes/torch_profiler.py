"""A torch whose profiler saw a GPU: kernels behind launches, copies, a graph replay, and ops with shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any


class Event:
    """One of `kineto_results.events()`."""

    def __init__(self, kind: str, name: str, start_ns: int, duration_ns: int, *, correlation: int = 0, thread: int = 1,
                 args: dict[str, Any] | None = None, shapes: Any = (), dtypes: Any = ()) -> None:  # fmt: skip
        self._values = (kind, name, start_ns, duration_ns, correlation, thread, args or {}, shapes, dtypes)

    def activity_type(self) -> str:
        return self._values[0]

    def name(self) -> str:
        return self._values[1]

    def start_ns(self) -> int:
        return self._values[2]

    def duration_ns(self) -> int:
        return self._values[3]

    def correlation_id(self) -> int:
        return self._values[4]

    def start_thread_id(self) -> int:
        return self._values[5]

    def device_resource_id(self) -> int:
        return 7

    def metadata_json(self) -> str:
        return json.dumps(self._values[6])[1:-1]

    def structured_input_shapes(self) -> Any:
        return list(self._values[7])

    def dtypes(self) -> Any:
        return list(self._values[8])


class CudaEvent:
    """Happens when the GPU gets to it; asking how long it took before that is an error, as torch's is."""

    def __init__(self, torch: FakeTorch, *, enable_timing: bool = False) -> None:
        torch.events += 1
        if torch.event_fails_at == torch.events:
            raise RuntimeError("CUDA error: out of memory")
        self._torch, self._is_timed = torch, enable_timing
        self.at_ns: int | None = None

    def record(self) -> None:
        self.at_ns = self._torch.gpu_ns

    def query(self) -> bool:
        return self._torch.gpu_done_ns is None or (self.at_ns or 0) <= self._torch.gpu_done_ns

    def synchronize(self) -> None:
        _never()

    def elapsed_time(self, end: CudaEvent) -> float:
        assert self._is_timed
        assert self.at_ns is not None
        assert end.at_ns is not None
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end.at_ns - self.at_ns) / 1e6


def _never() -> None:
    raise AssertionError("the job was made to wait for the GPU")


class FakeTorch:
    """Put in the place of the module torch. `kernels_per_step`: launches that each `work` call adds."""

    def __init__(self, *, has_gpu: bool = True, is_blind: bool = False) -> None:
        self.__spec__ = ModuleSpec("torch", None)
        self.cuda = SimpleNamespace(
            is_available=lambda: has_gpu,
            current_device=lambda: 0,
            Event=lambda **options: CudaEvent(self, **options),
            synchronize=_never,
            is_current_stream_capturing=lambda: self.is_capturing,
            get_device_properties=lambda _: SimpleNamespace(
                name="NVIDIA A100-SXM4-80GB", major=8, minor=0, multi_processor_count=108, total_memory=80 << 30
            ),
        )
        config = SimpleNamespace(_ExperimentalConfig=lambda **_: object())
        self._C = SimpleNamespace(_profiler=config)
        activity = SimpleNamespace(CPU="cpu", CUDA="cuda")
        self.profiler = SimpleNamespace(
            ProfilerActivity=activity, profile=lambda **_: Profile(self), record_function=self._annotated
        )
        self.is_blind = is_blind
        self.has_gpu = has_gpu
        self.sessions = 0
        self.fails_at: int | None = None
        self.running: Profile | None = None
        self.is_capturing = False
        self.gpu_ns = 0  # the GPU's clock, and up to where it has run
        self.gpu_done_ns: int | None = None  # None: it has run everything
        self.events = 0
        self.event_fails_at: int | None = None
        self._correlation = 0

    def ones(self, *_: Any, **__: Any) -> Any:
        self.work(1)
        return SimpleNamespace(add_=lambda _: None)

    def work(self, count: int, rows: int = 1, inner: int = 128) -> None:
        """A GEMM each, launched now."""
        running = self.running
        if running is None:
            return
        for _ in range(count):
            now = time.time_ns()
            op = Event(
                "cpu_op", "aten::mm", now, 3000, shapes=([rows, inner], [inner, 256]), dtypes=("c10::BFloat16",) * 2
            )
            running.seen.append(op)
            if not self.has_gpu or self.is_blind:
                continue
            correlation = self._called("cudaLaunchKernel", now + 500)
            if not self.is_capturing:
                self._ran(correlation, rows, now + 9000)

    @contextmanager
    def graph(self) -> Iterator[None]:
        """What is launched inside is captured rather than run."""
        self._called("cudaStreamBeginCapture")
        self.is_capturing = True
        try:
            yield
        finally:
            self.is_capturing = False
            self._called("cudaStreamEndCapture")

    def replay(self, count: int, rows: int) -> None:
        """A graph of so many GEMMs, launched at once."""
        if self.running is None:
            return
        correlation = self._called("cudaGraphLaunch")
        for place in range(count):
            self._ran(correlation, rows, time.time_ns() + 9000 + 5000 * place)

    @contextmanager
    def _annotated(self, name: str) -> Iterator[None]:
        began = time.time_ns()
        yield
        if self.running is not None:
            self.running.seen.append(Event("user_annotation", name, began, time.time_ns() - began))

    def _called(self, name: str, at_ns: int | None = None) -> int:
        self._correlation += 1
        if self.running is not None:
            at_ns = time.time_ns() if at_ns is None else at_ns
            self.running.seen.append(Event("cuda_runtime", name, at_ns, 800, correlation=self._correlation))
        return self._correlation

    def _ran(self, correlation: int, rows: int, start_ns: int) -> None:
        args = {"grid": [rows, 1, 1], "block": [128, 1, 1], "registers per thread": 90, "shared memory": 1024,
                "stream": 7}  # fmt: skip
        kernel = Event("kernel", "ampere_bf16_gemm_tn", start_ns, 4000 + rows, correlation=correlation, args=args)
        assert self.running is not None
        self.running.seen.append(kernel)


class Profile:
    """One session."""

    def __init__(self, torch: FakeTorch) -> None:
        self._torch = torch
        self.seen: list[Event] = []

    def start(self) -> None:
        self._torch.sessions += 1
        if self._torch.fails_at == self._torch.sessions:
            raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self._torch.running = self

    def stop(self) -> None:
        self._torch.running = None
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: self.seen))
