"""A job as the profiler SDK records it, small and whole; a test states only what it is about."""

from __future__ import annotations

from collections.abc import Sequence

from cascade_profiler.rows import FactColumns, Launches, LaunchFacts, launch_batches
from cascade_schemas.events import AnyEvent, LaunchesRecorded, RecordingStarted, StepRecorded, TraceEnded

RECORDED = "0123456789abcdef"
LAYERS = 3


def recording_started(rank: int = 0, rank_count: int = 1, **changes: object) -> RecordingStarted:
    fields = {
        "trace_id": RECORDED,
        "rank": rank,
        "rank_count": rank_count,
        "name": "recorded",
        "provenance": "measured",
        "tool": "cascade-profiler torch",
        "origin_unix_ns": 1_790_000_000_000_000_000,
        "world_size": rank_count,
        "gpu_name": "NVIDIA A100-SXM4-80GB",
        "compute_capability": (8, 0),
        "sm_count": 108,
        "engine": "vllm",
        "engine_version": "0.32.0",
        **changes,
    }
    return RecordingStarted.model_validate(fields)


def step_launches(step: int, tokens: int, start_ns: int, layers: int = LAYERS) -> Launches:
    """Per layer a GEMM whose op and shapes are known, and an RMSNorm."""
    gemm = LaunchFacts(
        "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn",
        grid=(tokens, 1, 1),
        block=(128, 1, 1),
        registers=128,
        shared_memory_bytes=49152,
        op="aten::mm",
        operand_dtypes=("c10::BFloat16", "c10::BFloat16"),
        operand_shapes=((tokens, 128), (128, 384)),
    )
    norm = LaunchFacts(
        "void vllm::rms_norm_kernel<c10::BFloat16>(int)",
        grid=(tokens, 1, 1),
        block=(128, 1, 1),
        op="_C::rms_norm",
        operand_dtypes=("c10::BFloat16",) * 3,
        operand_shapes=((tokens, 128), (tokens, 128), (128,)),
    )
    rows = Launches(facts=[gemm, norm])
    for place in range(2 * layers):
        rows.fact.append(place % 2)
        rows.start_ns.append(start_ns + 20_000 * place)
        rows.duration_ns.append(5_000 + 10 * tokens + step % 3)
        rows.stream.append(7)
        rows.graph.append(None)
        rows.graph_node.append(None)
        rows.host_launch_ns.append(start_ns + 20_000 * place - 4_000)
    return rows


def step_recorded(step: int, rank: int = 0, *, prompt: int = 64, **changes: object) -> StepRecorded:
    """A prefill of one request first, then its decodes."""
    fields = {
        "trace_id": RECORDED,
        "rank": rank,
        "step": step,
        "start_ns": step * 1_000_000,
        "duration_ns": 900_000,
        "request_ids": (0,),
        "q_lengths": (prompt if step == 0 else 1,),
        "kv_lengths": (prompt + step,),
        "prompt_tokens": (prompt,),
        "launch_count": 2 * LAYERS,
        **changes,
    }
    return StepRecorded.model_validate(fields)


def recorded_events(step_count: int = 4, rank_count: int = 1, *, unprofiled: Sequence[int] = ()) -> list[AnyEvent]:
    """Everything a job says, rank after rank."""
    events: list[AnyEvent] = []
    for rank in range(rank_count):
        events.append(recording_started(rank, rank_count))
        seq = 0
        for step in range(step_count):
            if step in unprofiled:
                events.append(step_recorded(step, rank, launch_count=None))
                continue
            rows = step_launches(step, 64 if step == 0 else 1, step * 1_000_000 + 10_000)
            for batch in launch_batches(rows, seq, step, FactColumns()):
                events.append(LaunchesRecorded(trace_id=RECORDED, rank=rank, first_seq=seq, rows=batch))
                seq += batch.num_rows
            events.append(step_recorded(step, rank))
        events.append(
            TraceEnded(trace_id=RECORDED, rank=rank, launch_count=seq, step_count=step_count, dropped_launch_count=0)
        )
    return events
