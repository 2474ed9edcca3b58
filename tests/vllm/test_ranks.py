"""Two tensor-parallel ranks in processes of their own: both are recorded, and one that dies leaves a truncated trace."""

from __future__ import annotations

import os
import signal
import time

import cascade_profiler
import psutil
import pytest

from tests.vllm.conftest import build, generate
from tests.vllm.test_real_engine import TOKEN, accounted, events_of


@pytest.fixture(scope="module")
def llm(model, tmp_path_factory):
    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(tmp_path_factory.mktemp("profiles")),
        "torch_profiler_record_shapes": True,
        "torch_profiler_with_stack": False,
    }
    return build(model, tensor_parallel_size=2, profiler_config=config)


def test_both_ranks_record_the_same_steps_and_all_of_their_ops(llm):
    with cascade_profiler.trace(llm, destination="memory://", collector="torch") as trace:
        generate(llm, (200, 40), 8)
    events = events_of(trace)
    (first, _), (second, _) = accounted(events, 0), accounted(events, 1)
    assert [s.q_lengths for s in first] == [s.q_lengths for s in second]
    assert [s.request_ids for s in first] == [s.request_ids for s in second]
    assert sorted(report["rank"] for report in trace.reports) == [0, 1]
    # Ranks wait for each other in every step's collectives, so on one clock their steps overlap.
    for a, b in zip(first, second, strict=True):
        if a.request_ids:
            assert max(a.start_ns, b.start_ns) < min(a.start_ns + a.duration_ns, b.start_ns + b.duration_ns)


def test_the_engines_own_profiler_is_read_from_a_file_per_window(llm):
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        generate(llm, (200, 40), 20)
    events = events_of(trace)
    for rank in (0, 1):
        steps, end = accounted(events, rank)
        assert all(step.op_count for step in steps if step.request_ids)
        assert end.op_count > 20 * 100
    assert {event.tool for event in events if event.type == "RecordingStarted"} == {"cascade-profiler vllm"}


def test_a_worker_that_dies_ends_the_trace_as_truncated_with_its_whole_steps(llm, server):
    with cascade_profiler.trace(llm, destination=server.url, token=TOKEN, name="crash") as trace:
        generate(llm, (60, 40), 30)
        time.sleep(2.0)  # heartbeats and records are on their way
        workers = [p for p in psutil.Process(os.getpid()).children(recursive=True) if "Worker_TP1" in _title(p)]
        assert workers, [_title(p) for p in psutil.Process(os.getpid()).children(recursive=True)]
        os.kill(workers[0].pid, signal.SIGKILL)
        with pytest.raises(Exception, match=r"(?i)dead|engine|died|worker"):
            for _ in range(200):
                generate(llm, (20,), 4)
    report = server.trace(trace.trace_id, "complete", timeout_s=100)
    assert report["is_truncated"]
    profiled = [step for step in report["steps"] if step["kernels"]]
    assert len(profiled) >= 16
    run_id = server.ask("runs", {"trace_id": trace.trace_id, "gpus": ["l4"], "simulator": "analytic"})["run_id"]
    deadline = time.monotonic() + 60
    while (run := server.ask(f"runs/{run_id}"))["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert run["status"] == "completed"


def _title(process):
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""
