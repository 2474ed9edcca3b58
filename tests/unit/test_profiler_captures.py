"""Graphs recorded while the engine captures them, and their replays joined as they stream in: the same as importing."""

import random
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import cascade_profiler
import pytest
from cascade_profiler import arming, session, vllm, vllm_graphs
from cascade_profiler.kineto import StepSpan, captures_of, seen_in_file, window_rows
from cascade_profiler.rows import FactColumns, capture_batch, launch_batches
from cascade_schemas.codec import decode
from cascade_schemas.events import (
    GraphCaptured,
    KernelTaskTraced,
    LaunchesRecorded,
    LaunchesTraced,
    StepTraced,
    TraceCompleted,
    TraceEnded,
)
from cascade_schemas.recording import read_stream

from services.ingest import admission
from services.ingest.importers import import_trace
from services.ingest.live import LiveIngest
from tests.fakes.seat import fresh_seat, use_torch
from tests.fakes.torch_profiler import FakeTorch
from tests.fakes.vllm_engine import CachedRequestData, FakeLLM, SchedulerOutput, worker_module
from tests.recordings import RECORDED, recording_started, step_recorded
from tests.unit.test_live_ingest import Pipeline, facts_of, write_stream

LAYERS = 5
SIZES = (8, 4, 2, 1)  # large ones first, as vLLM does


class Mode(Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    yield from fresh_seat(monkeypatch)


@pytest.fixture
def torch(monkeypatch):
    return use_torch(monkeypatch, FakeTorch())


class FirstRunner:
    """vLLM's first model runner: says itself which batch size it captures. PIECEWISE: a graph per layer."""

    def __init__(self, fake, pieces=1):
        self.fake, self.pieces = fake, pieces

    def capture_model(self):
        for size in SIZES:
            self.fake.work(LAYERS, rows=size)  # a warm-up
            name = "FULL" if self.pieces == 1 else "PIECEWISE"
            with self.fake.profiler.record_function(f"capture_{size}_{name}"):
                for piece in range(self.pieces):
                    with self.fake.graph():
                        self.fake.work(LAYERS // self.pieces, rows=size, inner=128 + piece)
                    self.fake.work(1, rows=size)  # attention, between the pieces
        return 1 << 20


class SecondRunner:
    """vLLM's second one: says nothing, and makes the forward passes of each size in a function it is given."""

    def __init__(self, fake, manager):
        self.fake, self.manager = fake, manager

    def capture_model(self, *, profile_only=False):
        def create_forward_fn(desc, warmup):
            return lambda _: self.fake.work(LAYERS, rows=desc.num_tokens)

        self.manager.capture(create_forward_fn, "Capturing")
        return 1 << 20


def graphs_module(fake):
    module = ModuleType(vllm_graphs.GRAPHS_MODULE)

    class CudaGraphManager:
        def capture(self, create_forward_fn, progress_bar_desc="Capturing CUDA graphs"):
            for size in SIZES:
                desc = SimpleNamespace(num_tokens=size, cg_mode=Mode.FULL)
                create_forward_fn(desc, warmup=True)(Mode.NONE)
                forward = create_forward_fn(desc, warmup=False)
                with fake.graph():
                    forward(Mode.NONE)

    module.CudaGraphManager = CudaGraphManager
    return module


def engine(fake, runner, *, pieces=1, rank_count=1, config=None):
    """A hooked engine that has captured its graphs; decodes of a captured size are replayed."""
    module = worker_module()
    execute = module.Worker.execute_model
    padded = {tokens: min(size for size in SIZES if size >= tokens) for tokens in range(1, max(SIZES) + 1)}

    def execute_model(self, output):
        tokens = output.total_num_scheduled_tokens
        if tokens in padded:
            for _ in range(pieces):
                fake.replay(LAYERS // pieces, rows=padded[tokens])
                if pieces > 1:
                    fake.work(1, rows=padded[tokens])
        else:
            fake.work(LAYERS, rows=max(tokens, 1))
        return execute(self, output)

    module.Worker.execute_model = execute_model
    module.Worker.compile_or_warm_up_model = _warm_up
    vllm.hook(module)
    llm = FakeLLM(module.Worker, world_size=rank_count)
    for worker in llm.workers:
        worker.model_runner = runner
        worker.profiler_config = config
        assert worker.compile_or_warm_up_model() == 1 << 20
    return llm


def _warm_up(self):
    """Steps of made-up requests first, as vLLM warms its kernels up."""
    self.execute_model(SchedulerOutput([], CachedRequestData(), {"made up": 4}))
    self.sample_tokens(None)
    return self.model_runner.capture_model()


def catalog_of(events):
    live = LiveIngest()
    return [said for event in events for said in live.react(event)]


def events_of(records):
    return [decode(record.headers, record.value) for record in records]


def of_type(events, kind):
    return [event for event in events if isinstance(event, kind)]


def replayed_tasks(catalog):
    """Per launch that a graph replayed, its task."""
    tasks = {event.task_id: event.task for event in of_type(catalog, KernelTaskTraced)}
    rows = [row for event in of_type(catalog, LaunchesTraced) for row in event.rows.to_pylist()]
    return [tasks[row["task_id"]] for row in rows if row["graph"] is not None]


# --- recorded by the SDK ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["first", "second", "pieces"])
def test_replays_have_the_ops_and_shapes_of_the_capture_whichever_runner_made_it(kind, torch, monkeypatch, capsys):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    pieces = LAYERS if kind == "pieces" else 1
    runner = FirstRunner(torch, pieces)
    if kind == "second":
        module = graphs_module(torch)
        monkeypatch.setitem(sys.modules, vllm_graphs.GRAPHS_MODULE, module)
        own = module.CudaGraphManager.capture
        runner = SecondRunner(torch, module.CudaGraphManager())
    llm = engine(torch, runner, pieces=pieces)
    if kind == "second":
        assert module.CudaGraphManager.capture is own  # as it was
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([30, 20, 10], output_tokens=9)
    events = events_of(trace.records)
    captured = of_type(events, GraphCaptured)
    assert [(one.batch_size, one.graph_count, one.rows.num_rows) for one in captured] == [
        (size, pieces, LAYERS) for size in SIZES
    ]
    said = catalog_of(events)
    tasks = replayed_tasks(said)
    assert len(tasks) == 8 * LAYERS
    for place, task in enumerate(tasks):
        assert (task.op, task.operands_from, task.tokens) == ("aten::mm", "capture", 4)  # three requests, padded
        inner = 128 + place % pieces  # each piece is another part of the model
        assert [operand.shape for operand in task.operands] == [(4, inner), (inner, 256)]
    (end,) = of_type(said, TraceCompleted)
    assert end.quality["capture_mismatch"] == ""
    assert "the capture of graphs: not validated on hardware" in capsys.readouterr().err


def test_importing_the_recording_and_streaming_it_answer_the_same(torch, monkeypatch, tmp_path):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    llm = engine(torch, FirstRunner(torch))
    with cascade_profiler.trace(llm, destination="memory://", model="opt-125m") as trace:
        llm.generate([30, 20], output_tokens=12)
    events = events_of(trace.records)
    pipeline = Pipeline(tmp_path / "home")
    try:
        half = len(events) // 2
        pipeline.tell(*events[:half])
        pipeline.embedded.request_run("during", trace.trace_id, ["h100_sxm"])
        pipeline.tell(*events[half:])
        pipeline.embedded.pump()
        path = write_stream(tmp_path / "job.rank0.cascade-trace", events)
        upload = admission.upload([pipeline.embedded.store_artifact(path)], name="job", model=None, source_gpu=None)
        pipeline.embedded.upload(upload)
        pipeline.embedded.pump()
        pipeline.embedded.request_run("imported", upload.trace_id, ["h100_sxm"])
        pipeline.embedded.pump()
        assert pipeline.hash_of("during") == pipeline.hash_of("imported")
    finally:
        pipeline.embedded.close()


def test_captures_that_come_late_or_twice_change_nothing(torch, monkeypatch):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    llm = engine(torch, FirstRunner(torch), rank_count=2)
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([30], output_tokens=6)
    events = events_of(trace.records)
    expected = facts_of(catalog_of(events))
    chance = random.Random(3)
    for _ in range(20):
        delivered = events + chance.sample(events, len(events) // 2)
        chance.shuffle(delivered)
        assert facts_of(catalog_of(delivered)) == expected


def test_a_capture_that_got_lost_holds_no_step_back_for_ever(torch, monkeypatch):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    llm = engine(torch, FirstRunner(torch))
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([30], output_tokens=6)
    events = events_of(trace.records)
    lost = of_type(events, GraphCaptured)[-1]
    live = LiveIngest()
    said = [one for event in events if event is not lost for one in live.react(event)]
    assert not of_type(said, LaunchesTraced)
    said += live.abandon(trace.trace_id)
    (end,) = of_type(said, TraceCompleted)
    assert end.step_count == 6
    assert end.is_truncated


def test_a_capture_that_claims_what_it_has_not_fits_nothing_and_costs_nothing(torch, monkeypatch):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    llm = engine(torch, FirstRunner(torch))
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([30], output_tokens=4)
    events = [
        event.model_copy(update={"graph_count": 2**40}) if isinstance(event, GraphCaptured) else event
        for event in events_of(trace.records)
    ]
    said = catalog_of(events)
    (end,) = of_type(said, TraceCompleted)
    assert "65536 graphs, the step launched 1" in end.quality["capture_mismatch"]
    assert all(task.operands_from != "capture" for task in replayed_tasks(said))


def test_a_replay_that_no_capture_fits_is_reported_and_solved_instead(torch, monkeypatch):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    llm = engine(torch, FirstRunner(torch))
    monkeypatch.setattr(torch, "replay", lambda count, rows: type(torch).replay(torch, count + 1, rows))
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([30], output_tokens=4)
    said = catalog_of(events_of(trace.records))
    (end,) = of_type(said, TraceCompleted)
    assert f"captured {LAYERS} launches where the replay ran {LAYERS + 1} kernels" in end.quality["capture_mismatch"]
    assert all(task.operands_from != "capture" for task in replayed_tasks(said))


def test_orders_from_the_environment_record_captures_and_a_baseline_never_does(torch, monkeypatch, tmp_path):
    for mode, count in (("kernels", len(SIZES)), ("steps", 0)):
        monkeypatch.setattr(vllm, "_seat", vllm._Seat())
        orders = session.new_orders(destination=f"file://{tmp_path}/{mode}", name="job", mode=mode)
        monkeypatch.setenv(arming.VARIABLE, orders.to_json())
        sessions = torch.sessions
        llm = engine(torch, FirstRunner(torch))
        assert torch.sessions - sessions == (1 if count else 0)
        assert vllm._seat.has_profiled == bool(count)
        llm.generate([30], output_tokens=4)
        llm.workers[0].shutdown()
        events = events_of(read_stream(tmp_path / f"{mode}.rank0.cascade-trace"))
        assert len(of_type(events, GraphCaptured)) == count
        assert len(of_type(catalog_of(events), StepTraced)) == 4


def test_an_engine_armed_without_graphs_records_none_and_says_how(torch, capsys):
    llm = engine(torch, FirstRunner(torch))
    assert torch.sessions == 0
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([30], output_tokens=4)
    assert not of_type(events_of(trace.records), GraphCaptured)
    assert "arm(graphs=True)" in capsys.readouterr().err


def test_a_job_that_records_its_captures_itself_is_left_alone(torch, monkeypatch, capsys):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    engine(torch, FirstRunner(torch), config=SimpleNamespace(capture_torch_profiler=True))
    assert torch.sessions == 0
    assert "import those files" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["start", "read"])
def test_a_profiler_that_fails_at_the_capture_leaves_the_engine_and_the_trace(torch, monkeypatch, capsys, broken):
    monkeypatch.setenv(arming.VARIABLE, "armed with graphs")
    if broken == "start":
        torch.fails_at = 1
    else:
        monkeypatch.setattr("cascade_profiler.captures.captures_of", lambda _: 1 // 0)
    llm = engine(torch, FirstRunner(torch))
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([30], output_tokens=4)
    assert "shapes are solved instead" in capsys.readouterr().err
    assert trace.reports[0]["steps"] == 4


def test_arming_for_graphs_keeps_what_was_set():
    for before, after in (({}, "armed with graphs"), ({"CASCADE_TRACE": "0"}, "0"), ({"CASCADE_TRACE": "{}"}, "{}")):
        environ = dict(before)
        arming.arm(environ, graphs=True)
        assert environ[arming.VARIABLE] == after


# --- real files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("replay", "capture"), [("k02*", "k03*"), ("k04_*", "k04b*"), ("k05_*", "k05b*")])
def test_a_real_replay_streamed_with_its_capture_gives_what_importing_both_gives(shared, replay, capture):
    folder = shared / "data" / "traces" / "kineto"
    replays, captures = list(folder.glob(replay)), list(folder.glob(capture))
    if not replays or not captures:
        pytest.skip(f"{replay} and {capture} are not in the shared folder")
    imported = import_trace([replays[0], captures[0]])
    recorded = captures_of(seen_in_file(captures[0]))
    (step,) = imported.steps
    seen = list(seen_in_file(replays[0]))
    first_ns = min(event.start_ns for event in seen)
    rows = window_rows(seen, [StepSpan(0, first_ns)], first_ns).steps[0].launches
    said = list(
        _streamed(
            [
                recording_started(gpu_name="", capture_count=len(recorded)),
                *(_captured(number, one) for number, one in enumerate(recorded)),
                *(
                    LaunchesRecorded(trace_id=RECORDED, rank=0, first_seq=0, rows=b)
                    for b in launch_batches(rows, 0, 0, FactColumns())
                ),
                step_recorded(0, **_lengths(step), launch_count=len(rows)),
                TraceEnded(trace_id=RECORDED, rank=0, launch_count=len(rows), step_count=1, dropped_launch_count=0),
            ]
        )
    )
    (end,) = of_type(said, TraceCompleted)
    assert end.quality["capture_mismatch"] == ""
    assert end.quality["gridless_count"] == imported.quality.gridless_count == 0
    graph = imported.launches.is_kernel & (imported.launches.graph >= 0)
    wanted = [imported.tasks[task] for task in imported.launches.task[graph]]
    found = replayed_tasks(said)
    assert len(found) == imported.metadata.graph_capture_joined
    for own, other in zip(found, wanted, strict=True):
        assert (own.signature, own.op, own.operands, own.operands_from) == (
            other.signature,
            other.op,
            other.operands,
            other.operands_from,
        )


def _streamed(events):
    live = LiveIngest()
    for event in events:
        yield from live.react(event)


def _captured(number, capture):
    return GraphCaptured(
        trace_id=RECORDED, rank=0, capture=number, text=capture.text, batch_size=capture.batch_size,
        graph_count=len(capture.graphs), rows=capture_batch(capture.graphs),
    )  # fmt: skip


def _lengths(step):
    """One request for each that the annotation counts; the whole is what the join looks at."""
    tokens = step.context_tokens + step.generation_tokens
    return {"request_ids": (0,), "q_lengths": (tokens,), "kv_lengths": (tokens,), "prompt_tokens": (tokens,)}
