"""GPU time of unprofiled steps: events that are read once they have happened, and never make the job wait."""

import sys

import cascade_profiler
import pytest
from cascade_profiler import arming, saying, vllm
from cascade_profiler.gpu_clock import GpuClock, why_no_gpu_clock
from cascade_schemas.codec import decode
from cascade_schemas.events import HostProfileMeasured, HostProfileRecorded

from services.ingest.live import LiveIngest
from tests.fakes.torch_profiler import FakeTorch
from tests.fakes.vllm_engine import FakeLLM, worker_module
from tests.recordings import RECORDED, recording_started

STEP_NS = 3_000_000


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    saying.forget()
    monkeypatch.setattr(vllm, "_seat", vllm._Seat())
    monkeypatch.setenv(arming.VARIABLE, "armed")


@pytest.fixture
def torch(monkeypatch):
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def engine(fake):
    """Steps that take the GPU 3 ms, longer for more tokens."""
    module = worker_module()
    execute = module.Worker.execute_model

    def execute_model(self, output):
        fake.gpu_ns += STEP_NS + 1000 * output.total_num_scheduled_tokens
        return execute(self, output)

    module.Worker.execute_model = execute_model
    vllm.hook(module)
    return FakeLLM(module.Worker)


def test_a_baseline_knows_how_long_each_step_kept_the_gpu(torch, capsys):
    llm = engine(torch)
    with cascade_profiler.baseline(llm) as measured:
        llm.generate([20], output_tokens=4)
    assert measured.profile["step_gpu_ns"] == [STEP_NS + 20_000, *[STEP_NS + 1000] * 3]
    assert measured.profile["step_gpu_absent"] == ""
    assert "GPU times of steps: not validated on hardware" in capsys.readouterr().err


def test_times_travel_with_the_trace_and_into_the_catalog(torch):
    llm = engine(torch)
    with cascade_profiler.trace(llm, destination="memory://", mode="steps") as trace:
        llm.generate([20], output_tokens=3)
    events = [decode(record.headers, record.value) for record in trace.records]
    (profile,) = [event for event in events if isinstance(event, HostProfileRecorded)]
    live = LiveIngest()
    said = [one for event in (recording_started(), profile) for one in live.react(_of(event, RECORDED))]
    (measured,) = [event for event in said if isinstance(event, HostProfileMeasured)]
    assert list(measured.step_gpu_ns) == [STEP_NS + 20_000, STEP_NS + 1000, STEP_NS + 1000]


def _of(event, trace_id):
    return event.model_copy(update={"trace_id": trace_id})


def test_a_gpu_that_is_behind_is_not_waited_for(torch):
    torch.gpu_done_ns = 0
    clock = GpuClock(torch.cuda)
    for number in range(50):
        start = clock.mark()
        torch.gpu_ns += 1_000_000
        clock.end(number, start)
        torch.gpu_done_ns = max(torch.gpu_ns - 10_000_000, 0)  # ten steps behind
    assert sorted(clock.times_ns) == list(range(39))  # as of the last look
    torch.gpu_done_ns = torch.gpu_ns
    clock.finish(1.0)
    assert clock.times_ns == dict.fromkeys(range(50), 1_000_000)
    assert torch.events <= 2 * 12  # events are used again


def test_what_a_gpu_has_not_run_in_time_stays_unmeasured(torch):
    torch.gpu_done_ns = 0
    now = [0.0]
    clock = GpuClock(torch.cuda, now_s=lambda: now[0])
    start = clock.mark()
    torch.gpu_ns += 1_000_000
    clock.end(0, start)

    def sleep(seconds):
        now[0] += seconds

    clock.finish(1.0, sleep)
    assert now[0] == pytest.approx(1.0, abs=0.01)
    assert clock.times_ns == {}


def test_an_event_that_fails_ends_the_measuring_and_not_the_job(torch, capsys):
    torch.event_fails_at = 4
    torch.gpu_done_ns = 0  # so that no event is free again
    llm = engine(torch)
    with cascade_profiler.trace(llm, destination="memory://", mode="steps") as trace:
        assert len(llm.generate([20], output_tokens=6)) == 1
    assert trace.reports[0]["steps"] == 6
    assert "out of memory" in trace.reports[0]["host_profile"]["step_gpu_absent"]
    assert "not measured any more" in capsys.readouterr().err


def test_without_a_device_the_reason_is_in_the_profile(monkeypatch):
    fake = FakeTorch(has_gpu=False)
    monkeypatch.setitem(sys.modules, "torch", fake)
    llm = engine(fake)
    with cascade_profiler.baseline(llm) as measured:
        llm.generate([20], output_tokens=3)
    assert measured.profile["step_gpu_ns"] == [0, 0, 0]
    assert measured.profile["step_gpu_absent"] == "this process has no CUDA device"
    assert fake.events == 0
    assert why_no_gpu_clock(None) == "torch is not loaded in this process"
