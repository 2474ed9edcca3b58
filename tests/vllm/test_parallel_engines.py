"""Two data-parallel engines: each is a trace of its own, whole, and neither has a step of the other."""

import sys

from cascade_profiler.cli import main
from cascade_schemas.codec import decode
from cascade_schemas.events import RecordingStarted
from cascade_schemas.recording import read_stream

from tests.vllm.conftest import ROOT
from tests.vllm.parallel_engines import OUTPUT_TOKENS
from tests.vllm.test_real_engine import accounted


def test_each_engine_is_recorded_whole_and_by_itself(model, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    job = [sys.executable, "-m", "tests.vllm.parallel_engines", str(model)]
    assert main(["--to", f"file://{tmp_path}/job", "--name", "two engines", "--", *job]) == 0
    ids = set()
    for name, prompts in (("job", (20, 22)), ("job.dp1", (21, 23))):
        stream = read_stream(tmp_path / f"{name}.rank0.cascade-trace")
        events = [decode(record.headers, record.value) for record in stream]
        steps, _ = accounted(events)
        ran = [step for step in steps if step.request_ids]
        assert {prompt for step in ran for prompt in step.prompt_tokens} == set(prompts)
        assert sum(sum(step.q_lengths) for step in ran) == sum(prompts) + 2 * (OUTPUT_TOKENS - 1)
        assert all(step.op_count for step in ran)
        (started,) = [event for event in events if isinstance(event, RecordingStarted)]
        assert (started.rank, started.rank_count, started.world_size) == (0, 1, 1)
        ids.add(started.trace_id)
    assert len(ids) == 2
