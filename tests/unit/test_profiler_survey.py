"""A trace made for the purpose: it goes where a second buys most, stops by itself, and says what more would buy."""

import math
from types import SimpleNamespace

import cascade_profiler
import pytest
from cascade_profiler import collect, vllm
from cascade_profiler.plan import KindReport, decode_kinds, kind_of
from cascade_profiler.recorder import Batch
from cascade_profiler.surveying import Known, Point, known_of, next_point, output_tokens, possible
from cascade_schemas.codec import decode
from cascade_schemas.events import StepTraced

from services.ingest.live import LiveIngest
from tests.fakes.seat import fresh_seat, use_torch
from tests.fakes.torch_profiler import FakeTorch
from tests.fakes.vllm_engine import FakeLLM, worker_module

LIMITS = vllm.Limits(context_tokens=600, requests=8, step_tokens=128, vocabulary=1000)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(vllm, "generate", _generate)
    yield from fresh_seat(monkeypatch)


@pytest.fixture
def torch(monkeypatch):
    return use_torch(monkeypatch, FakeTorch())


def _generate(llm, prompts, output_tokens):
    assert all(10 <= token < LIMITS.vocabulary for prompt in prompts for token in prompt)
    llm.visits.append((len(prompts), len(prompts[0])))
    llm.generate([len(prompt) for prompt in prompts], output_tokens)


def engine(fake, step_s=0.003):
    module = worker_module()
    execute = module.Worker.execute_model

    def execute_model(self, output):
        fake.work(2, rows=max(output.total_num_scheduled_tokens, 1))
        return execute(self, output)

    module.Worker.execute_model = execute_model
    vllm.hook(module)
    llm = FakeLLM(module.Worker, budget=LIMITS.step_tokens, step_s=step_s)
    llm.visits = []
    model = SimpleNamespace(max_model_len=LIMITS.context_tokens, get_vocab_size=lambda: LIMITS.vocabulary)
    scheduler = SimpleNamespace(max_num_seqs=LIMITS.requests, max_num_batched_tokens=LIMITS.step_tokens)
    llm.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model, scheduler_config=scheduler))
    return llm


def steps_of(records):
    live = LiveIngest()
    said = [one for record in records for one in live.react(decode(record.headers, record.value))]
    return [event for event in said if isinstance(event, StepTraced)]


def test_every_point_is_visited_and_steps_with_all_requests_decoding_are_profiled(torch, capsys):
    llm = engine(torch)
    found = cascade_profiler.survey(
        llm, batches=(1, 4), contexts=(50, 300), seconds=30, target_ratio=0.5, destination="memory://"
    )
    assert found.is_converged
    assert set(llm.visits) == {(1, 50), (1, 300), (4, 50), (4, 300)} == set(found.known)
    steps = steps_of(found.trace.records)
    for point, known in found.known.items():
        assert known.steps >= 3
        assert known.half_width_ratio <= 0.5
        assert known.mean_ns >= 3_000_000
        profiled = [
            step
            for step in steps
            if step.is_profiled and step.phase == "decode" and step.generation_requests == point.requests
            and all(point.context < length <= point.context + 20 for length in step.kv_lengths)
        ]  # fmt: skip
        assert len(profiled) >= 3
    assert "a second more of it" in capsys.readouterr().err


def test_it_stops_when_the_time_is_up_and_says_what_more_would_buy(torch, capsys):
    now = [0.0]

    def now_s():
        now[0] += 1.0
        return now[0]

    llm = engine(torch, step_s=0.0)
    found = cascade_profiler.survey(
        llm, batches=(1, 2), contexts=(20, 200), seconds=9, target_ratio=1e-9, now_s=now_s, destination="memory://"
    )
    assert not found.is_converged
    assert 1 <= len(llm.visits) <= 4
    said = capsys.readouterr().err
    assert "the time is up" in said
    assert "were not visited" in said or "a second more of it" in said
    assert found.trace.reports[0]["steps"] > 0


def test_without_a_profiler_that_works_it_ends_by_itself(torch, monkeypatch, capsys):
    monkeypatch.setattr(collect, "_module", lambda _: None)
    llm = engine(torch, step_s=0.0)
    found = cascade_profiler.survey(llm, batches=(1,), contexts=(20,), seconds=60, destination="memory://")
    assert not found.is_converged
    assert llm.visits == [(1, 20)] * 2
    assert "could be profiled" in capsys.readouterr().err


def test_what_the_engine_raises_is_said_and_what_was_traced_is_kept(torch, monkeypatch, capsys):
    llm = engine(torch, step_s=0.0)

    def generate(llm, prompts, output_tokens):
        if len(llm.visits) == 2:
            raise MemoryError("CUDA out of memory")
        _generate(llm, prompts, output_tokens)

    monkeypatch.setattr(vllm, "generate", generate)
    found = cascade_profiler.survey(llm, batches=(1, 2), contexts=(20, 200), destination="memory://")
    assert not found.is_converged
    assert len(found.known) == 2
    assert found.trace.reports[0]["steps"] > 0
    assert "CUDA out of memory" in capsys.readouterr().err


def test_points_that_the_engine_does_not_take_are_left_out_and_counted(capsys):
    points = possible((1, 8, 32), (100, 590, 4096), LIMITS)
    assert points == [Point(1, 100), Point(8, 100)]  # 590 and what is generated do not fit into 600
    assert "7 of 9 points are left out" in capsys.readouterr().err


def test_requests_whose_prompts_come_first_generate_until_the_last_has_begun():
    assert output_tokens(Point(1, 100), LIMITS) == 1 + 8
    assert output_tokens(Point(8, 100), LIMITS) == 7 + 8  # 800 tokens, 128 a step


def test_the_next_visit_goes_where_a_second_buys_most():
    near, far, new = Point(1, 100), Point(8, 4000), Point(8, 100)
    known = {near: Known(10, 1_000_000, 0.10, 0.01), far: Known(10, 9_000_000, 0.12, 0.02)}
    cost_s = {near: 0.1, far: 4.0}
    assert next_point([near, far], known, cost_s, 0.02) == near  # a little narrower already, and far cheaper
    assert next_point([near, far], known, {near: 4.0, far: 4.0}, 0.02) == far
    assert next_point([near, far, new], known, cost_s, 0.02) == new
    assert next_point([near, far], known, cost_s, 0.11) == far
    assert next_point([near, far], known, cost_s, 0.2) is None
    barely = {**known, near: Known(1, 5, math.inf, math.inf)}
    assert next_point([near, far], barely, cost_s, 0.02) == near
    assert next_point([near, new], barely, cost_s, 0.02) == new


def test_a_point_is_as_well_known_as_the_kind_that_most_of_its_steps_are_of():
    kinds = sorted(decode_kinds(4, 101, 116))
    assert len(kinds) > 1
    rows = [KindReport(kind, 3 - place, 2_000_000, 0.01 * (place + 1), 0.001) for place, kind in enumerate(kinds)]
    found = known_of(Point(4, 100), 116, rows)
    assert found.half_width_ratio == 0.01
    assert found.steps == sum(row.steps for row in rows)
    assert known_of(Point(4, 100), 116, []).half_width_ratio == math.inf
    for context in (101, 108, 116):
        step = Batch(tuple(range(4)), (1,) * 4, (context,) * 4, (100,) * 4)
        assert kind_of(step) in kinds


def test_a_window_that_is_open_counts_too(torch):
    llm = engine(torch, step_s=0.0)
    with cascade_profiler.trace(llm, sample=True, destination="memory://"):
        llm.generate([30], output_tokens=4)
        ((*rows,),) = vllm.rpc(llm)(vllm.KNOWN)
        assert sum(row[1] for row in rows) == 4
    assert vllm.rpc(llm)(vllm.KNOWN) == [[]]
