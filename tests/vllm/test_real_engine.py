"""The profiler inside the real engine: every step, and every op of every profiled step, is accounted for."""

from __future__ import annotations

import time
from pathlib import Path

import cascade_profiler
import pytest
from cascade_schemas.codec import decode
from cascade_schemas.events import HostProfileRecorded, OpsRecorded, RecordingStarted, StepRecorded, TraceEnded

from tests.vllm.conftest import build, generate
from tests.vllm.contract import lacking

TOKEN = "a-token-that-only-tests-know"


@pytest.fixture(scope="module")
def llm(model):
    return build(model)


def events_of(trace):
    return [decode(record.headers, record.value) for record in trace.records]


def of_type(events, kind):
    return [event for event in events if isinstance(event, kind)]


def accounted(events, rank=0):
    """What a rank said, checked against itself: no sequence number missing, no step without its ops."""
    (end,) = [event for event in of_type(events, TraceEnded) if event.rank == rank]
    steps = [event for event in of_type(events, StepRecorded) if event.rank == rank]
    ops = [event for event in of_type(events, OpsRecorded) if event.rank == rank]
    seqs = [seq for event in ops for seq in event.rows.column("seq").to_pylist()]
    assert seqs == list(range(end.op_count))
    by_step = {}
    for event in ops:
        for step in event.rows.column("step").to_pylist():
            by_step[step] = by_step.get(step, 0) + 1
    assert {step.step: step.op_count for step in steps if step.op_count} == by_step
    assert sorted(step.step for step in steps) == list(range(end.step_count))
    assert end.dropped_launch_count == 0
    return steps, end


def test_the_engine_is_what_the_profiler_expects():
    """What the fake engine of `make test` pretends, the real one has; graphs, which no CPU captures, in its sources."""
    import vllm

    assert lacking(Path(vllm.__file__).parent) == []


def test_chunked_prefill_and_decode_are_recorded_as_they_were_scheduled(llm):
    with cascade_profiler.trace(llm, destination="memory://", name="chunked") as trace:
        generate(llm, (200, 40, 17), 12)
    events = events_of(trace)
    steps, end = accounted(events)
    # 128 tokens a step: the first prompt in two chunks.
    assert (steps[0].q_lengths, steps[0].kv_lengths, steps[0].prompt_tokens) == ((128,), (128,), (200,))
    assert steps[1].q_lengths[0] == 72
    assert steps[1].kv_lengths[0] == 200
    decodes = [step for step in steps if set(step.q_lengths) == {1} and len(step.q_lengths) == 3]
    assert len(decodes) >= 9
    assert sum(sum(step.q_lengths) for step in steps) == 200 + 40 + 17 + 3 * 11
    assert all(step.op_count for step in steps)
    assert end.op_count == sum(step.op_count for step in steps)
    (started,) = of_type(events, RecordingStarted)
    assert (started.provenance, started.engine, started.model.name) == ("recorded-on-cpu", "vllm", "tiny-llama")
    assert started.model.layers == 2
    assert [(one.name, one.state, one.is_validated) for one in started.collectors] == [("torch", "used", True)]


def test_tracing_starts_and_stops_as_often_as_asked(llm):
    counts = []
    for seed in range(3):
        with cascade_profiler.trace(llm, destination="memory://") as trace:
            generate(llm, (30,), 5, seed)
        steps, _ = accounted(events_of(trace))
        ran = [step for step in steps if step.request_ids]  # the engine says goodbye to requests in an empty one
        counts.append((len(ran), ran[0].step, ran[0].request_ids))
        generate(llm, (30,), 3, seed)  # nobody looks
    assert counts == [(5, 0, (0,))] * 3


def test_step_mode_records_no_op_and_measures_the_host(llm):
    with cascade_profiler.trace(llm, destination="memory://", mode="steps") as trace:
        outputs = generate(llm, (200, 40), 10)
    events = events_of(trace)
    steps = of_type(events, StepRecorded)
    assert all(step.op_count is None and step.launch_count is None for step in steps)
    (profile,) = of_type(events, HostProfileRecorded)
    assert len(profile.step_host_ns) == sum(bool(step.request_ids) for step in steps)
    # The worker's own TTFT and TPOT lie below the front end's by scheduling and messages, and not by much.
    metrics = outputs[0].metrics
    front_ns = (metrics.first_token_ts - metrics.scheduled_ts) * 1e9
    assert 0.3 * front_ns < profile.ttft_ns[0] <= front_ns * 1.05
    front_ns = (metrics.last_token_ts - metrics.first_token_ts) * 1e9 / 9
    assert 0.5 * front_ns < profile.tpot_ns[0] <= front_ns * 1.2


def test_a_run_asked_for_while_tracing_is_simulated_before_the_end(llm, server):
    with cascade_profiler.trace(llm, destination=server.url, token=TOKEN, name="live") as trace:
        generate(llm, (200, 40), 40)
        server.trace(trace.trace_id, "importing")
        run_id = server.ask("runs", {"trace_id": trace.trace_id, "gpus": ["h100_sxm"], "simulator": "analytic"})[
            "run_id"
        ]
        deadline = time.monotonic() + 30
        while not any(one["simulated"] for one in server.ask(f"runs/{run_id}/progress")["configs"]):
            assert time.monotonic() < deadline, "nothing was simulated while tracing"
            time.sleep(0.2)
        assert server.trace(trace.trace_id, "importing")["status"] == "importing"
        generate(llm, (30,), 5)
    report = server.trace(trace.trace_id, "complete")
    assert len(report["steps"]) == trace.reports[0]["steps"]
    during = finished(server, run_id)
    after = finished(
        server,
        server.ask("runs", {"trace_id": trace.trace_id, "gpus": ["h100_sxm"], "simulator": "analytic"})["run_id"],
    )
    assert during["status"] == after["status"] == "completed"
    assert during["state_hash"] == after["state_hash"]


def finished(server, run_id):
    deadline = time.monotonic() + 60
    while (report := server.ask(f"runs/{run_id}"))["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return report


def test_a_destination_that_is_down_for_thirty_seconds_loses_nothing(llm, server):
    with cascade_profiler.trace(llm, destination=server.url, token=TOKEN, name="outage") as trace:
        generate(llm, (100,), 10)
        server.kill()
        down = time.monotonic()
        while time.monotonic() - down < 30:
            generate(llm, (50,), 10)
        server.start()
        generate(llm, (50,), 10)
    (report,) = trace.reports
    assert (report["lost_records"], report["dropped_steps"], report["refused"]) == (0, 0, "")
    assert report["spooled_records"] > 0
    whole = server.trace(trace.trace_id, "complete")
    assert len(whole["steps"]) == report["steps"]
    assert not whole["is_truncated"]


def test_a_survey_profiles_full_batches_at_every_context_it_was_asked_for(llm):
    found = cascade_profiler.survey(
        llm, batches=(1, 4), contexts=(60, 300), seconds=240, target_ratio=0.5, destination="memory://"
    )
    assert found.is_converged, found.known
    steps, _ = accounted(events_of(found.trace))
    for point in ((1, 60), (1, 300), (4, 60), (4, 300)):
        assert found.known[point].steps >= 3
        together = [
            step
            for step in steps
            if step.op_count and step.q_lengths == (1,) * point[0] and min(step.kv_lengths) > point[1]
        ]
        assert len(together) >= 3


def test_an_unarmed_engine_says_so_and_goes_on(llm, capsys, monkeypatch):
    from cascade_profiler import vllm as names

    monkeypatch.setattr(names, "START", "cascade_start_that_is_not_there")
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        assert len(generate(llm, (10,), 2)) == 1
    assert not trace.reports
    assert "import cascade_profiler" in capsys.readouterr().err
