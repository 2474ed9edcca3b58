"""The hook in vLLM's workers, on an engine of the same class paths: what is recorded, and that the job never notices."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import cascade_profiler
import cascade_profiler_plugin
import pytest
from cascade_profiler import arming, saying, session, vllm
from cascade_profiler.arming import arm, is_armed
from cascade_profiler.orders import Orders, standing_orders
from cascade_schemas.codec import decode, encode
from cascade_schemas.events import (
    HostProfileMeasured,
    LaunchesTraced,
    RecordingStarted,
    StepRecorded,
    StepTraced,
    TraceCompleted,
)
from cascade_schemas.recording import read_stream

from services.ingest.live import LiveIngest
from tests.fakes.seat import fresh_seat, use_torch
from tests.fakes.torch_profiler import FakeTorch
from tests.fakes.vllm_engine import FakeLLM, worker_module

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    yield from fresh_seat(monkeypatch)


@pytest.fixture
def torch(monkeypatch):
    return use_torch(monkeypatch, FakeTorch())


def hooked(fake=None, **options):
    """An engine whose workers are hooked; its steps run on the fake GPU."""
    module = worker_module()
    if fake is not None:
        execute = module.Worker.execute_model

        def execute_model(self, output):
            fake.work(3, rows=max(output.total_num_scheduled_tokens, 1))
            return execute(self, output)

        module.Worker.execute_model = execute_model
    vllm.hook(module)
    return FakeLLM(module.Worker, **options)


def catalog_of(records):
    live = LiveIngest()
    said = []
    for record in records:
        said += live.react(decode(record.headers, record.value))
    return said


def of_type(events, kind):
    return [event for event in events if isinstance(event, kind)]


# --- arming -------------------------------------------------------------------------------------------------------


def test_importing_the_package_arms_and_zero_forbids():
    environ = {}
    arm(environ)
    assert is_armed(environ)
    forbidden = {arming.VARIABLE: "0"}
    arm(forbidden)
    assert not is_armed(forbidden)
    assert standing_orders(environ) is None


def test_orders_travel_as_json_and_forget_what_a_newer_version_says():
    orders = Orders("t" * 16, "job", "memory://", 5, token="secret")
    text = json.dumps({**json.loads(orders.to_json()), "of_tomorrow": 1})
    assert Orders.from_json(text) == orders
    assert "secret" not in repr(orders)


def test_a_job_that_is_not_armed_is_not_touched(monkeypatch):
    monkeypatch.setenv(arming.VARIABLE, "0")
    monkeypatch.setattr(vllm, "install", lambda: pytest.fail("it was hooked"))
    cascade_profiler_plugin.register()


def test_importing_is_cheap_and_needs_only_the_schemas():
    code = (
        "import sys, time; t = time.process_time(); import cascade_profiler; s = time.process_time() - t;"
        "heavy = [m for m in ('pyarrow', 'pydantic', 'torch', 'vllm', 'aiokafka', 'numpy') if m in sys.modules];"
        "print(s, heavy)"
    )
    best = 1.0
    for _ in range(3):
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        elapsed, heavy = said.stdout.split(" ", 1)
        assert heavy.strip() == "[]"
        best = min(best, float(elapsed))
    assert best < 0.1


def test_without_an_address_the_server_of_this_machine_is_taken_else_a_file_here(tmp_path, monkeypatch):
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    here = session.nearest_destination("my job/7", "0123456789")
    assert here == (f"file://{tmp_path}/my-job-7-012345", "")
    server = {"url": "http://127.0.0.1:8765", "token": "t0ken", "pid": os.getpid()}
    (tmp_path / "server.json").write_text(json.dumps(server))
    assert session.nearest_destination("job", "0123") == ("http://127.0.0.1:8765", "t0ken")
    (tmp_path / "server.json").write_text(json.dumps(server | {"pid": 2**22 + 1}))  # it was killed
    assert session.nearest_destination("my job/7", "0123456789") == here


# --- steps --------------------------------------------------------------------------------------------------------


def test_every_step_of_every_rank_is_recorded_with_who_did_what():
    llm = hooked(world_size=1, budget=64)
    with cascade_profiler.trace(llm, destination="memory://", mode="steps", model="opt-125m") as trace:
        llm.generate([100, 10], output_tokens=3)
    steps = [e for e in map(event, trace.records) if isinstance(e, StepRecorded)]
    assert [(s.request_ids, s.q_lengths, s.kv_lengths) for s in steps] == [
        ((0,), (64,), (64,)),
        ((0, 1), (36, 10), (100, 10)),
        ((0, 1), (1, 1), (101, 11)),
        ((0, 1), (1, 1), (102, 12)),
    ]
    assert steps[0].prompt_tokens == (100,)
    assert all(s.launch_count is None and s.duration_ns >= 0 for s in steps)
    (started,) = [e for e in map(event, trace.records) if isinstance(e, RecordingStarted)]
    assert (started.model.name, started.engine) == ("opt-125m", "vllm")


def event(record):
    return decode(record.headers, record.value)


def test_kernels_belong_to_the_step_that_launched_them(torch):
    llm = hooked(torch, budget=64)
    with cascade_profiler.trace(llm, destination="memory://", source_gpu="a100") as trace:
        llm.generate([100, 10], output_tokens=20)
    said = catalog_of(trace.records)
    steps = of_type(said, StepTraced)
    assert len(steps) == 21
    assert [step.kernel_count for step in steps] == [3] * 21
    assert steps[0].phase == "prefill"
    (end,) = of_type(said, TraceCompleted)
    assert (end.launch_count, end.kernel_count, end.is_truncated) == (63, 63, False)
    assert torch.sessions == 1 + 3  # its own test, then windows of eight steps
    assert said[0].source_gpu == "a100_sxm_80gb"
    assert said[0].model.name == "facebook/opt-125m"
    rows = [row for launched in of_type(said, LaunchesTraced) for row in launched.rows.to_pylist()]
    assert all(row["duration_ns"] > 0 and row["host_launch_ns"] is not None for row in rows)


def test_without_a_gpu_the_ops_are_recorded_and_kernels_derived(monkeypatch):
    fake = FakeTorch(has_gpu=False)
    use_torch(monkeypatch, fake)
    llm = hooked(fake, budget=64)
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([10], output_tokens=4)
    assert trace.reports[0]["ops"] == 4 * 3
    assert [event(r).provenance for r in trace.records if r.headers["type"] == "RecordingStarted"] == [
        "recorded-on-cpu"
    ]


def test_a_profiler_that_sees_nothing_is_found_out_before_the_trace(monkeypatch, capsys):
    use_torch(monkeypatch, FakeTorch(is_blind=True))
    llm = hooked()
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([10])
    assert "saw no kernel in its own test" in capsys.readouterr().err
    assert trace.reports[0]["steps"] == 4
    (started,) = [e for e in map(event, trace.records) if isinstance(e, RecordingStarted)]
    assert [(found.name, found.state) for found in started.collectors] == [("torch", "failed"), ("cupti", "absent")]


def test_a_profiler_that_fails_later_leaves_steps_and_the_job(monkeypatch, capsys):
    fake = FakeTorch()
    fake.fails_at = 3
    use_torch(monkeypatch, fake)
    llm = hooked(fake)
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        assert len(llm.generate([10], output_tokens=30)) == 1
    steps = of_type(catalog_of(trace.records), StepTraced)
    assert len(steps) == 30
    assert sum(step.is_profiled for step in steps) == 8
    assert "CUPTI_ERROR_MULTIPLE" in capsys.readouterr().err


def test_sampling_stops_by_itself_and_says_what_more_would_buy(torch):
    llm = hooked(torch)
    with cascade_profiler.trace(llm, destination="memory://", sample=True) as trace:
        llm.generate([10, 10], output_tokens=400)
    said = catalog_of(trace.records)
    steps = of_type(said, StepTraced)
    assert len(steps) == 401 or len(steps) == 400
    profiled = sum(step.is_profiled for step in steps)
    assert 8 <= profiled < 300
    (end,) = of_type(said, TraceCompleted)
    assert any("after one more second" in note for note in end.quality["notes"])


def test_a_job_with_a_profiler_of_its_own_is_read_from_its_files(tmp_path, monkeypatch, capsys):
    use_torch(monkeypatch, FakeTorch())
    module = worker_module()
    module.Worker.profile = _writing_profiler(tmp_path)
    vllm.hook(module)
    llm = FakeLLM(module.Worker, step_s=0.003)
    config = {"profiler": "torch", "torch_profiler_dir": str(tmp_path), "torch_profiler_record_shapes": True}
    llm.workers[0].profiler_config = type("Config", (), config)()
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([10], output_tokens=10)
    said = catalog_of(trace.records)
    steps = sorted(of_type(said, StepTraced), key=lambda step: step.step)
    assert [step.kernel_count for step in steps] == [1, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert said[0].tool == "cascade-profiler vllm"
    assert list(tmp_path.iterdir()) == []
    with cascade_profiler.trace(hooked(), destination="memory://", collector="vllm") as trace:
        pass
    assert "no torch profiler of its own" in capsys.readouterr().err


def _writing_profiler(folder):
    """One kernel a window, launched when the window begins."""

    def profile(self, is_start=True, prefix=None):
        if is_start:
            self.began_us, self.prefix = time.time_ns() / 1000 + 1000, prefix
            return
        time.sleep(0.001)
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": self.began_us, "dur": 1, "tid": 1}
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": self.began_us + 5, "dur": 3, "tid": 7}
        events = [call | {"args": {"correlation": 1}}, kernel | {"args": {"correlation": 1, "stream": 7}}]
        (folder / f"{self.prefix}_rank0.1.pt.trace.json").write_text(json.dumps({"traceEvents": events}))
        (folder / f"{self.prefix}_rank0.profiler_out.txt").write_text("table")

    return profile


def test_a_second_trace_of_one_engine_is_a_trace_of_its_own(torch):
    llm = hooked(torch)
    counts = []
    for _ in range(2):
        with cascade_profiler.trace(llm, destination="memory://") as trace:
            llm.generate([10], output_tokens=5)
        counts.append((trace.reports[0]["steps"], len({event(r).trace_id for r in trace.records})))
    assert counts == [(5, 1), (5, 1)]


# --- never into the job -------------------------------------------------------------------------------------------


def test_an_engine_built_before_it_was_armed_records_nothing_and_says_what_to_add(capsys):
    llm = FakeLLM(worker_module().Worker)
    with cascade_profiler.trace(llm, destination="memory://") as trace:
        assert len(llm.generate([10])) == 1
    assert not trace.is_recording
    assert trace.reports == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "import cascade_profiler" in said


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"destination": "ftp://x"}, "is no destination"),
        ({"destination": "memory://", "model": "no-such-model"}, "no-such-model"),
        ({"destination": "memory://", "source_gpu": "h900"}, "h900"),
        ({"destination": "memory://", "mode": "everything"}, "everything"),
        ({"destination": "memory://", "host_profile": "/nowhere.json"}, "nowhere"),
    ],
)
def test_a_mistake_in_the_call_is_one_sentence_and_the_job_goes_on(options, word, capsys):
    llm = hooked()
    with cascade_profiler.trace(llm, **options):
        assert len(llm.generate([10])) == 1
    said = capsys.readouterr().err
    assert word in said
    assert said.count("\n") == 1


def test_what_the_job_raises_comes_out_unchanged(torch):
    llm = hooked(torch)
    with pytest.raises(ZeroDivisionError), cascade_profiler.trace(llm, destination="memory://") as trace:
        llm.generate([10])
        raise ZeroDivisionError
    assert trace.reports[0]["steps"] == 4


def test_a_step_that_raises_in_the_engine_raises_the_same(monkeypatch):
    module = worker_module()

    def execute_model(self, output):
        raise MemoryError("CUDA out of memory")

    module.Worker.execute_model = execute_model
    vllm.hook(module)
    llm = FakeLLM(module.Worker)
    with pytest.raises(MemoryError, match="CUDA"), cascade_profiler.trace(llm, destination="memory://", mode="steps"):
        llm.generate([10])


def test_a_scheduler_that_looks_different_ends_the_trace_and_not_the_job(capsys):
    llm = hooked()
    with cascade_profiler.trace(llm, destination="memory://", mode="steps"):
        worker = llm.workers[0]
        worker.execute_model(type("Other", (), {"total_num_scheduled_tokens": 3})())
        worker.sample_tokens(None)
    assert "the job goes on" in capsys.readouterr().err


def test_a_worker_class_that_looks_different_is_left_alone(capsys):
    module = worker_module()
    del module.Worker.sample_tokens
    before = module.Worker.execute_model
    vllm.hook(module)
    assert module.Worker.execute_model is before
    assert "sample_tokens" in capsys.readouterr().err


def test_hooking_twice_is_hooking_once():
    module = worker_module()
    vllm.hook(module)
    once = module.Worker.execute_model
    vllm.hook(module)
    assert module.Worker.execute_model is once


def test_the_module_is_hooked_when_it_is_imported_later(tmp_path, monkeypatch):
    package = tmp_path / "vllm" / "v1" / "worker"
    package.mkdir(parents=True)
    for folder in (tmp_path / "vllm", tmp_path / "vllm" / "v1", package):
        (folder / "__init__.py").write_text("")
    (package / "gpu_worker.py").write_text(
        "class Worker:\n    def execute_model(self, o): return 1\n    def sample_tokens(self, g): return 2\n"
    )
    code = (
        "import cascade_profiler_plugin as p; p.register(); p.register();"
        "from vllm.v1.worker.gpu_worker import Worker; print(hasattr(Worker, 'cascade_start'), Worker().execute_model(3))"
    )
    for armed, expected in (("armed", "True 1"), ("0", "False 1")):
        environ = {"PATH": "/usr/bin", "PYTHONPATH": f"{tmp_path}:{ROOT / 'profiler_sdk'}", "CASCADE_TRACE": armed}
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
        assert said.stdout.strip() == expected, said.stderr


# --- orders from the environment ----------------------------------------------------------------------------------


def test_standing_orders_trace_from_the_first_step_to_the_shutdown_of_the_worker(tmp_path, monkeypatch, torch):
    orders = session.new_orders(destination=f"file://{tmp_path}/job", model="opt-125m", name="bench")
    monkeypatch.setenv(arming.VARIABLE, orders.to_json())
    llm = hooked(torch, world_size=1)
    llm.generate([10, 20], output_tokens=6)
    llm.workers[0].shutdown()
    assert llm.workers[0].is_shut_down
    said = catalog_of(read_stream(tmp_path / "job.rank0.cascade-trace"))
    (end,) = of_type(said, TraceCompleted)
    assert (end.step_count, end.kernel_count) == (6, 18)


def test_engines_of_a_data_parallel_job_are_traces_of_their_own(tmp_path, monkeypatch, torch, capsys):
    orders = session.new_orders(destination=f"file://{tmp_path}/job", model="opt-125m", name="bench")
    ids = []
    for index, name in ((0, "job"), (1, "job.dp1"), (2, "job.dp2")):
        monkeypatch.setattr(vllm, "_seat", vllm._Seat())
        monkeypatch.setenv(arming.VARIABLE, orders.to_json())
        llm = hooked(torch, world_size=1, engine=index)
        llm.generate([10], output_tokens=3 + index)
        llm.workers[0].shutdown()
        said = catalog_of(read_stream(tmp_path / f"{name}.rank0.cascade-trace"))
        (end,) = of_type(said, TraceCompleted)
        assert (end.step_count, end.is_truncated) == (3 + index, False)
        ids.append(end.trace_id)
    assert len(set(ids)) == 3
    assert ids[0] == orders.trace_id
    assert f"engine 1 of this data-parallel job is trace {ids[1]}" in capsys.readouterr().err


def test_an_executor_that_passes_the_worker_by_is_said_and_the_one_that_does_not_is_traced(monkeypatch, capsys):
    for value, steps in (("0", None), ("1", 3)):
        saying.forget()
        monkeypatch.setenv(vllm.RAY_WITH_WORKERS, value)
        llm = hooked()
        llm.workers[0].parallel_config.distributed_executor_backend = "ray"
        with cascade_profiler.trace(llm, destination="memory://", mode="steps") as trace:
            llm.generate([10], output_tokens=3)
        assert trace.is_recording is False
        assert (trace.reports[0]["steps"] if trace.reports else None) == steps
        assert (f"{vllm.RAY_WITH_WORKERS}=1" in capsys.readouterr().err) == (steps is None)


def test_nothing_of_the_machine_or_the_requests_is_in_what_is_sent(tmp_path, monkeypatch, torch):
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecretsecret")
    folder = tmp_path / "private-folder" / "my-model"
    folder.mkdir(parents=True)
    llm = hooked(torch)
    for worker in llm.workers:
        worker.model_config.model = str(folder)
    with cascade_profiler.trace(llm, destination="memory://", token="the-secret-token") as trace:
        llm.generate([10], output_tokens=3)
    text = b"".join(encode(event(r)).value for r in trace.records)
    for secret in (b"hf_secret", b"private-folder", b"the-secret-token", b"req-0", str(tmp_path).encode()):
        assert secret not in text
    assert b"my-model" in text


# --- host profile -------------------------------------------------------------------------------------------------


def test_a_baseline_knows_host_times_ttft_and_tpot_and_travels_with_the_trace(tmp_path, torch):
    llm = hooked(step_s=0.002)
    with cascade_profiler.baseline(llm) as measured:
        measured.take(llm.generate([100, 10], output_tokens=6))
    profile = measured.profile
    assert len(profile["step_host_ns"]) == 7
    assert all(host >= 2_000_000 for host in profile["step_host_ns"])
    assert profile["step_context_tokens"][:3] == [64, 46, 0]
    assert profile["step_generation_tokens"][:3] == [0, 0, 2]
    assert 4_000_000 <= profile["ttft_ns"][0] < 40_000_000  # two steps
    assert profile["ttft_ns"][1] < profile["ttft_ns"][0]
    assert all(2_000_000 <= tpot < 20_000_000 for tpot in profile["tpot_ns"])
    measured.save(tmp_path / "host.json")
    with cascade_profiler.trace(llm, destination="memory://", host_profile=tmp_path / "host.json") as trace:
        llm.generate([10], output_tokens=2)
    (told,) = of_type(catalog_of(trace.records), HostProfileMeasured)
    assert list(told.ttft_ns) == profile["ttft_ns"]


def test_a_process_that_a_profiler_has_run_in_gives_no_baseline(torch, capsys):
    llm = hooked(torch)
    with cascade_profiler.trace(llm, destination="memory://"):
        llm.generate([10])
    with cascade_profiler.baseline(llm) as measured:
        llm.generate([10])
    assert measured.profile == {}
    assert "fresh" in capsys.readouterr().err


def test_the_front_ends_own_times_are_preferred(torch):
    from cascade_profiler.hostprofile import with_front_end

    metrics = type(
        "M", (), {"scheduled_ts": 10.0, "first_token_ts": 10.5, "last_token_ts": 11.5, "arrival_time": 1.7e9}
    )()
    output = type("O", (), {"metrics": metrics, "outputs": [type("C", (), {"token_ids": [1] * 5})()]})()
    profile = with_front_end({"ttft_ns": [1, 2], "tpot_ns": [1, 2]}, [output])
    assert profile == {"ttft_ns": [500_000_000, 2], "tpot_ns": [250_000_000, 2]}


# --- cost ---------------------------------------------------------------------------------------------------------


def test_a_step_that_nobody_traces_costs_next_to_nothing():
    """One attribute test: far below a thousandth of the shortest decode step of a real engine, 2 ms."""
    bare, hooked_llm = FakeLLM(worker_module().Worker), hooked()
    output = type("O", (), {"total_num_scheduled_tokens": 1})()

    def best(worker):
        times = []
        for _ in range(20):
            began = time.perf_counter_ns()
            for _ in range(200):
                worker.execute_model(output)
                worker.sample_tokens(None)
            times.append((time.perf_counter_ns() - began) / 200)
            worker.executed.clear()
        return min(times)

    assert best(hooked_llm.workers[0]) - best(bare.workers[0]) < 2_000
