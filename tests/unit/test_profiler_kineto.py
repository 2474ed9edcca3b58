"""What torch's profiler recorded, from its file or its own result: the same as importing the file."""

from pathlib import Path

import pytest
from cascade_profiler.kineto import Seen, StepSpan, arguments, seen_in_file, seen_in_process, window_rows
from cascade_profiler.plan import SamplingPlan, kind_of, sentence
from cascade_profiler.recorder import Batch
from cascade_profiler.rows import FactColumns, launch_batches
from cascade_schemas.events import KernelTaskTraced, LaunchesRecorded, LaunchesTraced, TraceEnded

from services.ingest.importers import import_trace
from services.ingest.live import LiveIngest
from tests.factories import kineto_trace
from tests.fakes.torch_profiler import Event
from tests.recordings import RECORDED, recording_started, step_recorded


def seen(kind, name, start, length, correlation=0, thread=1, **args):
    return Seen(kind, name, start, length, thread, correlation, args)


def spans_of(path):
    """Steps as a hook would have seen them: by the annotations in the file."""
    import json

    events = json.loads(path.read_text())["traceEvents"]
    notes = sorted(event["ts"] for event in events if event["cat"] == "user_annotation")
    return [StepSpan(index, round(ts * 1000)) for index, ts in enumerate(notes)]


def catalog_of_window(window, prompt=64):
    live = LiveIngest()
    said = list(live.react(recording_started()))
    seq = 0
    for step, rows in window.steps.items():
        for batch in launch_batches(rows.launches, seq, step, FactColumns()):
            event = LaunchesRecorded(trace_id=RECORDED, rank=0, first_seq=seq, rows=batch)
            said += live.react(event)
            seq += batch.num_rows
        said += live.react(step_recorded(step, prompt=prompt, launch_count=len(rows.launches)))
    end = TraceEnded(trace_id=RECORDED, rank=0, launch_count=seq, step_count=len(window.steps), dropped_launch_count=0)
    return said + list(live.react(end))


def test_a_file_read_by_the_sdk_gives_the_tasks_that_importing_it_gives(tmp_path):
    path = kineto_trace(tmp_path / "small.json", step_count=4, layers=3)
    imported = import_trace([path])
    said = catalog_of_window(window_rows(seen_in_file(path), spans_of(path), 0))
    tasks = {event.task_id for event in said if isinstance(event, KernelTaskTraced)}
    assert tasks == {task.task_id for task in imported.tasks}
    launched = [row for event in said if isinstance(event, LaunchesTraced) for row in event.rows.to_pylist()]
    assert [row["task_id"] for row in launched] == [imported.tasks[index].task_id for index in imported.launches.task]
    assert [row["duration_ns"] for row in launched] == imported.launches.duration_ns.tolist()
    assert [row["step"] for row in launched] == imported.launches.step.tolist()


def test_a_real_file_of_vllm_on_a_gpu_gives_its_kernels(shared: Path):
    path = shared / "data" / "traces" / "kineto" / "k01_vllm_b200_gptoss_tp8_prefill_eager.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in the shared folder")
    imported = import_trace([path])
    events = list(seen_in_file(path))
    first_call = min(event.start_ns for event in events if event.kind.startswith("cuda_"))
    window = window_rows(events, [StepSpan(0, first_call)], first_call)
    rows = window.steps[0].launches
    kernels = sum(rows.facts[fact].is_kernel for fact in rows.fact)
    assert kernels == int(imported.launches.is_kernel.sum()) == 768
    named = {
        (rows.facts[fact].name, rows.facts[fact].grid, rows.facts[fact].block)
        for fact in rows.fact
        if rows.facts[fact].is_kernel
    }
    assert len(named) == 30
    with_op = sum(bool(imported.tasks[task].op) for task in imported.launches.task[imported.launches.is_kernel])
    assert sum(rows.facts[fact].op is not None for fact in rows.fact) == with_op > 700


def test_kernels_of_one_graph_launch_share_its_id_and_have_no_op():
    events = [
        seen("cpu_op", "aten::mm", 90, 100),
        seen("cuda_runtime", "cudaGraphLaunch", 100, 10, correlation=7),
        seen("kernel", "a", 150, 5, correlation=7, stream=7, grid=[1, 1, 1], block=[32, 1, 1], **{"graph node id": 3}),
        seen("kernel", "b", 160, 5, correlation=7, stream=7),
        seen("cuda_runtime", "cudaGraphLaunch", 120, 10, correlation=8),
    ]
    window = window_rows(events, [StepSpan(4, 50)], 0)
    rows = window.steps[4].launches
    assert rows.graph == [7, 7]
    assert rows.graph_node == [3, None]
    assert [rows.facts[fact].op for fact in rows.fact] == [None, None]
    assert window.opaque_graph_count == 1


def test_a_kernel_belongs_to_the_step_of_its_launch_not_to_the_one_it_ran_in():
    events = [
        seen("cuda_runtime", "cudaLaunchKernel", 110, 5, correlation=1),
        seen("kernel", "late", 260, 50, correlation=1, stream=7),
        seen("cuda_runtime", "cudaLaunchKernel", 210, 5, correlation=2),
        seen("kernel", "own", 320, 50, correlation=2, stream=7),
        seen("kernel", "launched before the window", 20, 50, correlation=99, stream=7),
        seen("gpu_memcpy", "Memcpy HtoD", 215, 4, correlation=3, stream=7, bytes=4096),
        seen("cuda_runtime", "cudaMemcpyAsync", 205, 4, correlation=3),
    ]
    window = window_rows(events, [StepSpan(0, 100), StepSpan(1, 200)], 100)
    names = {step: [rows.launches.facts[f].name for f in rows.launches.fact] for step, rows in window.steps.items()}
    assert names == {0: ["late"], 1: ["Memcpy HtoD", "own"]}
    assert [window.outside.facts[f].name for f in window.outside.fact] == ["launched before the window"]
    copy = window.steps[1].launches
    assert (copy.facts[0].is_kernel, copy.facts[0].moved_bytes) == (False, 4096)


def test_the_innermost_op_is_the_one_that_launched():
    events = [
        seen("cpu_op", "vllm::outer", 0, 100, **{"Input Dims": [[8, 4]], "Input type": ["float"]}),
        seen("cpu_op", "aten::mm", 10, 20, **{"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"]}),
        seen("cpu_op", "aten::add", 40, 20),
        seen("cpu_op", "elsewhere", 0, 100, thread=2),
        seen("cuda_runtime", "cudaLaunchKernel", 15, 2, correlation=1),
        seen("cuda_runtime", "cudaLaunchKernel", 35, 2, correlation=2),
        seen("kernel", "x", 50, 5, correlation=1, stream=7),
        seen("kernel", "y", 60, 5, correlation=2, stream=7),
    ]
    rows = window_rows(events, [StepSpan(0, 0)], 0).steps[0].launches
    assert [rows.facts[fact].op for fact in rows.fact] == ["aten::mm", "vllm::outer"]
    assert rows.facts[0].operand_shapes == ((8, 4), (4, 2))


def test_a_list_of_tensors_gives_each_of_them():
    assert arguments([[[2, 3], [4, 5]], [], [7]], ["TensorList", "Scalar", "float"]) == (
        ((2, 3), (4, 5), (), (7,)),
        ("TensorList", "TensorList", "Scalar", "float"),
    )
    assert arguments(None, None) == ((), ())


def test_events_of_the_process_are_read_as_those_of_the_file():
    events = [
        Event("kernel", "k", 5, 6, correlation=3, args={"grid": [1, 2, 3], "stream": 9}),
        Event("python_function", "no", 0, 1),
        Event("cpu_op", "aten::mm", 1, 2, shapes=([2, 3],), dtypes=("float",)),
    ]
    kernel, op = seen_in_process(events)
    assert kernel == Seen("kernel", "k", 5, 6, 7, 3, {"grid": [1, 2, 3], "stream": 9})
    assert (op.args["Input Dims"], op.thread, op.correlation) == ([[2, 3]], 1, 0)


# --- the sampling plan ----------------------------------------------------------------------------------------------


def batch(requests, context):
    return Batch(tuple(range(requests)), (1,) * requests, (context,) * requests, (10,) * requests)


def test_equal_work_is_one_kind_and_other_work_another():
    assert kind_of(batch(8, 1000)) == kind_of(batch(8, 1010))
    assert kind_of(batch(8, 1000)) != kind_of(batch(8, 2000))
    assert kind_of(batch(8, 1000)) != kind_of(batch(16, 1000))
    assert kind_of(batch(8, 1000)).phase == "decode"
    assert kind_of(Batch((0,), (64,), (64,), (200,))).phase == "prefill"
    assert kind_of(Batch((0, 1), (64, 1), (64, 20), (200, 10))).phase == "mixed"


def test_steady_steps_are_known_after_a_few_and_noisy_ones_after_more():
    steady, noisy = SamplingPlan(), SamplingPlan()
    one = kind_of(batch(4, 100))
    counts = {}
    for plan, spread, name in ((steady, 1, "steady"), (noisy, 200, "noisy")):
        counts[name] = 0
        while plan.wants(one):
            plan.learn(one, 1_000_000 + spread * 1000 * (counts[name] % 3))
            counts[name] += 1
        assert plan.is_converged
    assert counts["steady"] == 3 < counts["noisy"] <= 24
    assert steady.wants(kind_of(batch(4, 900)))


def test_the_plan_says_what_a_second_more_would_buy():
    plan = SamplingPlan()
    one = kind_of(batch(4, 100))
    for duration in (9_000_000, 10_000_000, 11_000_000):
        plan.learn(one, duration)
    (row,) = plan.report()
    # n = 3: ± 4.30 · s / √3 = ± 24.8 %; a second buys 100 steps more: 1.96 · s / √103.
    assert row.half_width_ratio == pytest.approx(4.30 * 0.1 / 3**0.5, rel=1e-3)
    assert row.after_one_more_second == pytest.approx(1.96 * 0.1 / 103**0.5, rel=1e-2)
    assert "± 24.8%" in sentence(plan.report())
    assert "one step only" in sentence(_with_one().report())
    assert sentence([]) == "no step was profiled"


def _with_one():
    plan = SamplingPlan()
    plan.learn(kind_of(batch(1, 1)), 5)
    return plan
