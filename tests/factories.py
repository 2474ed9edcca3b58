"""Small, whole examples of everything; a test states only what it is about."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from cascade_schemas.batches import LAUNCHES, RESULTS
from cascade_schemas.events import (
    AnyEvent,
    KernelsSimulated,
    KernelTaskTraced,
    LaunchesTraced,
    RunConfig,
    RunRequested,
    StepTraced,
    TraceCompleted,
    TraceStarted,
)
from cascade_schemas.gpu import GpuSpec, load_gpu
from cascade_schemas.task import KernelSignature, KernelTask, Operand

from services.kernels.work import WorkTable
from services.runtime.settings import Settings
from services.simworker.simulators.base import Predictions

TRACE, RUN = "trace-1", "run-1"


def kernel_task(index: int = 0, **changes: object) -> KernelTask:
    """A GEMM that differs from others by its index."""
    shape = (64 + index, 128)
    fields = {
        "signature": KernelSignature(name=f"ampere_bf16_gemm_{index % 3}", grid=(1 + index, 1, 1), block=(128, 1, 1)),
        "op": "aten::mm",
        "operands": (Operand(dtype="bf16", shape=shape), Operand(dtype="bf16", shape=(128, 256))),
        "operands_from": "traced",
        **changes,
    }
    return KernelTask.model_validate(fields)


def run_config(name: str = "h100_sxm", **changes: object) -> RunConfig:
    gpu = load_gpu(name)
    return RunConfig.model_validate({"config_id": gpu.config_id, "label": name, "gpu": gpu, **changes})


def run_requested(gpus: Sequence[str] = ("h100_sxm",), **changes: object) -> RunRequested:
    fields = {
        "run_id": RUN,
        "trace_id": TRACE,
        "configs": tuple(run_config(name) for name in gpus),
        "simulator": "analytic",
        **changes,
    }
    return RunRequested.model_validate(fields)


def launch_rows(
    task_ids: Sequence[str],
    *,
    first_seq: int = 0,
    rank: int = 0,
    duration_ns: Sequence[int | None] | None = None,
    step: Sequence[int | None] | None = None,
) -> pa.RecordBatch:
    count = len(task_ids)
    durations = list(duration_ns or [1000] * count)
    starts = np.cumsum([0, *[(d or 0) + 100 for d in durations[:-1]]]) if count else []
    return pa.RecordBatch.from_arrays(
        [
            pa.array([rank] * count, type=pa.int32()),
            pa.array(range(first_seq, first_seq + count), type=pa.int64()),
            pa.array(task_ids, type=pa.string()).dictionary_encode(),
            pa.array(starts, type=pa.int64()),
            pa.array(durations, type=pa.int64()),
            pa.array([7] * count, type=pa.int32()),
            pa.array(list(step or [0] * count), type=pa.int32()),
            pa.nulls(count, pa.int64()),
            pa.nulls(count, pa.int64()),
            pa.array([True] * count, type=pa.bool_()),
        ],
        schema=LAUNCHES,
    )


def trace_events(
    task_count: int = 3,
    launches_per_task: int = 4,
    step_count: int = 2,
    *,
    source_gpu: str | None = "a100_sxm_80gb",
    is_measured: bool = True,
    rows_per_event: int = 5,
    tasks: Sequence[KernelTask] = (),
) -> list[AnyEvent]:
    """A whole small trace: a prefill step, then decode steps, in which every task is launched."""
    tasks = tasks or [kernel_task(index) for index in range(task_count)]
    task_count = len(tasks)
    events: list[AnyEvent] = [
        TraceStarted(
            trace_id=TRACE,
            name="small",
            provenance="measured" if is_measured else "recorded-on-cpu",
            tool="kineto",
            source_gpu=source_gpu if is_measured else None,
            engine="vllm",
        )
    ]
    events += [
        KernelTaskTraced(trace_id=TRACE, task_id=task.task_id, signature_id=task.signature.signature_id, task=task)
        for task in tasks
    ]
    per_step = task_count * launches_per_task
    for index in range(step_count):
        is_prefill = index == 0
        events.append(
            StepTraced(
                trace_id=TRACE,
                rank=0,
                step=index,
                phase="prefill" if is_prefill else "decode",
                start_ns=index * 1_000_000,
                duration_ns=900_000,
                context_requests=int(is_prefill),
                context_tokens=100 if is_prefill else 0,
                generation_requests=int(not is_prefill),
                generation_tokens=int(not is_prefill),
                kernel_count=per_step,
            )
        )
    order = [task.task_id for _ in range(step_count) for _ in range(launches_per_task) for task in tasks]
    steps = [index for index in range(step_count) for _ in range(per_step)]
    durations = [1000 + 10 * (place % 7) if is_measured else None for place in range(len(order))]
    for first in range(0, len(order), rows_per_event):
        part = slice(first, first + rows_per_event)
        rows = launch_rows(order[part], first_seq=first, duration_ns=durations[part], step=steps[part])
        events.append(LaunchesTraced(trace_id=TRACE, rank=0, first_seq=first, rows=rows))
    events.append(
        TraceCompleted(
            trace_id=TRACE,
            is_truncated=False,
            launch_count=len(order),
            kernel_count=len(order),
            signature_count=task_count,
            task_count=task_count,
            step_count=step_count,
            launchless_count=0,
            quality={},
        )
    )
    return events


def results(
    config_id: str,
    tasks: Sequence[KernelTask],
    duration_ns: Sequence[int | None],
    *,
    sigma: float = 0.1,
    simulator: str = "analytic",
    reason: str = "fake",
) -> KernelsSimulated:
    """Forward predictions for these tasks; None is a failure."""
    count = len(tasks)
    durations = pa.array(list(duration_ns), type=pa.int64())
    word = pa.array(["gemm"] * count).dictionary_encode()
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([task.task_id for task in tasks]),
            durations,
            durations,
            durations,
            pa.array([round(sigma * 1e6)] * count, type=pa.int64()),
            word,
            *[pa.array([text] * count).dictionary_encode() for text in ("A", reason, "dram")],
            *[durations] * 5,
            pa.nulls(count, pa.int64()),
            pa.array([False] * count),
            durations,
            pa.nulls(count, pa.string()),
        ],
        schema=RESULTS,
    )
    return KernelsSimulated(run_id=RUN, config_id=config_id, simulator=simulator, rows=rows)


class FakeSimulator:
    """Time is CTAs × 1 µs × 100 ÷ SMs: nothing to do with a GPU, but a pure function like the real ones."""

    version, calibration_digest = "1", ""

    def __init__(self, name: str = "analytic") -> None:
        self.name = name

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions:
        ctas = np.maximum(work["ctas"], 1.0)
        sms = np.array([gpu.sm_count for gpu in gpus], dtype=np.float64)[:, None]
        time = np.rint(ctas[None, :] * 100_000 / sms).astype(np.int64)
        zero = np.zeros_like(time)
        return Predictions(
            duration_ns=time,
            p10_ns=time * 9 // 10,
            p90_ns=time * 11 // 10,
            tensor_ns=time,
            dram_ns=zero,
            l2_ns=zero,
            issue_ns=zero,
            launch_ns=zero,
            bound=zero.astype(np.uint8),
            sigma=np.full(time.shape, 0.1, dtype=np.float32),
            reason=zero.astype(np.int16),
            reasons=("fake",),
        )


def fake_simulators() -> dict[str, FakeSimulator]:
    return {"analytic": FakeSimulator("analytic"), "roofline": FakeSimulator("roofline")}


def settings(home: Path) -> Settings:
    return Settings(home=home, thread_count=2, upload_bytes_limit=1 << 30)


class Clock:
    """Time that moves by a millisecond at each look."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def __call__(self) -> int:
        self._now_ms += 1
        return self._now_ms


def shuffled_between_keys(events: Sequence[AnyEvent], seed: int) -> list[AnyEvent]:
    """The same events, keys interleaved at random, the order within a key kept: what a log with partitions may do."""
    chance = random.Random(seed)
    queues: dict[tuple[str, str], list[AnyEvent]] = {}
    for event in events:
        queues.setdefault((event.topic, event.key), []).append(event)
    out: list[AnyEvent] = []
    while queues:
        key = chance.choice(sorted(queues))
        out.append(queues[key].pop(0))
        if not queues[key]:
            del queues[key]
    return out


def kineto_trace(path: Path, *, step_count: int = 2, layers: int = 2) -> Path:
    """A small Kineto file of a vLLM job on an A100: a prefill step, then decode steps of one request."""
    events: list[dict[str, object]] = []
    clock = 1000.0
    correlation = 0
    for step in range(step_count):
        tokens = 64 if step == 0 else 1
        label = f"execute_context_{int(step == 0)}({tokens if step == 0 else 0})_generation_{int(step > 0)}({int(step > 0)})"
        began = clock
        for _ in range(layers):
            for op, shapes, kernel in (
                ("aten::mm", [[tokens, 128], [128, 384]], "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn"),
                (
                    "_C::rms_norm",
                    [[tokens, 128], [tokens, 128], [128]],
                    "void vllm::rms_norm_kernel<c10::BFloat16>(int)",
                ),
            ):
                correlation += 1
                common = {"ph": "X", "pid": 1, "tid": 10}
                types = ["c10::BFloat16"] * len(shapes)
                args = {"External id": correlation, "Input Dims": shapes, "Input type": types}
                events.append({**common, "cat": "cpu_op", "name": op, "ts": clock, "dur": 8.0, "args": args})
                call = {"External id": correlation, "correlation": correlation, "cbid": 211}
                events.append(
                    {
                        **common,
                        "cat": "cuda_runtime",
                        "name": "cudaLaunchKernel",
                        "ts": clock + 2,
                        "dur": 3.0,
                        "args": call,
                    }
                )
                launch = {
                    "External id": correlation,
                    "correlation": correlation,
                    "device": 0,
                    "stream": 7,
                    "grid": [tokens, 1, 1],
                    "block": [128, 1, 1],
                    "registers per thread": 32,
                    "shared memory": 0,
                }
                duration = 5.0 + tokens / 16
                events.append(
                    {
                        "ph": "X",
                        "pid": 0,
                        "tid": 7,
                        "cat": "kernel",
                        "name": kernel,
                        "ts": clock + 6,
                        "dur": duration,
                        "args": launch,
                    }
                )
                clock += 20.0
        note = {"ph": "X", "pid": 1, "tid": 10, "cat": "user_annotation", "name": label, "ts": began - 1}
        events.append({**note, "dur": clock - began + 2, "args": {}})
        clock += 100.0
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
    whole = {"schemaVersion": 1, "deviceProperties": [device], "vllm_version": "0.32.0", "traceEvents": events}
    path.write_text(json.dumps(whole))
    return path
