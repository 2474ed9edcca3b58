"""Two pipeline stages in processes of their own: both are recorded, with the same steps and each its own ops."""

import shutil

import cascade_profiler
import pytest

from tests.vllm.conftest import build, generate
from tests.vllm.test_real_engine import accounted, events_of


def test_both_stages_record_the_same_steps_and_all_of_their_ops(model):
    if shutil.which("g++") is None:
        pytest.skip("two stages run compiled only on a CPU, and there is no g++")
    llm = build(model, pipeline_parallel_size=2, enforce_eager=False)
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        generate(llm, (200, 40), 8)
    events = events_of(trace)
    (first, _), (second, end) = accounted(events, 0), accounted(events, 1)
    assert [step.q_lengths for step in first] == [step.q_lengths for step in second]
    assert [step.request_ids for step in first] == [step.request_ids for step in second]
    assert sum(sum(step.q_lengths) for step in second) == 200 + 40 + 2 * 7
    assert all(step.op_count for step in (*first, *second) if step.request_ids)
    assert end.op_count > 0
    assert sorted(report["rank"] for report in trace.reports) == [0, 1]
