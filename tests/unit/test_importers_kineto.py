"""Kineto files in every state that public reports describe: an event may be lost, the file never."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard

from services.ingest.imported import ImportedTrace, Phase
from services.ingest.importers import ImportProgress, TraceRejected, import_trace


def kernel(index: int, **changes) -> dict:
    args = {
        "External id": index, "device": 0, "stream": 7, "correlation": index, "registers per thread": 32,
        "shared memory": 0, "grid": [index % 3 + 1, 1, 1], "block": [128, 1, 1],
    }  # fmt: skip
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "void f<4>(int)",
        "pid": 0,
        "tid": 7,
        "ts": 1000.0 + 10 * index,
        "dur": 5.5,
    }
    args.update(changes.pop("args", {}))
    return {**event, **changes, "args": args}


def launch(index: int, **changes) -> dict:
    event = {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 500.0 + 10 * index,
        "dur": 3, "args": {"External id": index, "cbid": 211, "correlation": index},
    }  # fmt: skip
    return {**event, **changes}


def op(index: int, name: str = "aten::mm", dims=([8, 16], [16, 4])) -> dict:
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 499.0 + 10 * index, "dur": 6,
        "args": {"External id": index, "Input Dims": list(dims), "Input type": ["c10::BFloat16"] * len(dims)},
    }  # fmt: skip


def step(text: str = "execute_context_1(8)_generation_0(0)", ts: float = 490.0, dur: float = 400.0) -> dict:
    return {"ph": "X", "cat": "user_annotation", "name": text, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": {}}


def events(count: int = 20) -> list[dict]:
    return [step(), *(make(index) for index in range(1, count + 1) for make in (op, launch, kernel))]


def text_of(listed: list[dict], **top) -> str:
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100", "numSms": 108}], **top}
    return (
        json.dumps(head)[:-1]
        + ', "traceEvents": [\n'
        + ",\n".join(map(json.dumps, listed))
        + '\n], "traceName": "x.json"}'
    )


def imported(folder: Path, text: str | bytes, **options) -> ImportedTrace:
    path = folder / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_trace([path], **options)


def kernel_count(trace: ImportedTrace) -> int:
    return int(trace.launches.is_kernel.sum())


def same(first: ImportedTrace, second: ImportedTrace) -> bool:
    return (
        first.tasks == second.tasks
        and first.steps == second.steps
        and (first.launches.start_ns == second.launches.start_ns).all()
        and (first.launches.task == second.launches.task).all()
    )


WHOLE = text_of(events())


def test_a_sound_file(tmp_path):
    trace = imported(tmp_path, WHOLE)
    assert (kernel_count(trace), len(trace.tasks), len(trace.steps)) == (20, 3, 1)
    assert trace.tasks[0].op == "aten::mm"
    assert [operand.shape for operand in trace.tasks[0].operands] == [(8, 16), (16, 4)]
    assert trace.tasks[0].tokens == 8
    assert (trace.launches.duration_ns == 5_500).all()
    assert trace.quality.event_count == 61
    assert (trace.quality.dropped_event_count, trace.quality.is_truncated) == (0, False)
    assert (trace.metadata.gpu_name, trace.metadata.sm_count) == ("NVIDIA A100", 108)


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress,
        lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),  # several members
        lambda data: gzip.compress(data) + b"\0" * 512,  # padded
        zstandard.compress,
        lambda data: zstandard.compress(data[:700]) + zstandard.compress(data[700:]),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: b"\n\n  " + data,
    ],
)
def test_packing_does_not_matter_and_names_do_not_tell_it(tmp_path, pack):
    trace = imported(tmp_path, pack(WHOLE.encode()))
    assert same(trace, imported(tmp_path, WHOLE))
    assert not trace.quality.is_truncated


def test_a_wrong_checksum_is_said_and_costs_nothing(tmp_path):
    packed = bytearray(gzip.compress(WHOLE.encode()))
    packed[-6] ^= 0xFF
    trace = imported(tmp_path, bytes(packed))
    assert kernel_count(trace) == 20
    assert trace.quality.is_truncated


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.95])
def test_a_file_that_breaks_off_keeps_its_whole_events(tmp_path, share):
    long = text_of(events(200))
    for data in (long.encode()[: int(len(long) * share)], _cut_gzip(long, share)):
        trace = imported(tmp_path, data)
        assert 0 < kernel_count(trace) < 200
        assert trace.quality.is_truncated
        assert trace.quality.dropped_event_count <= 1


def _cut_gzip(text: str, share: float) -> bytes:
    packer = zlib.compressobj(wbits=31)
    # Flushed now and then, as a profiler's writer does, so that a cut loses the end only.
    packed = b"".join(
        packer.compress(text[at : at + 500].encode()) + packer.flush(zlib.Z_SYNC_FLUSH)
        for at in range(0, len(text), 500)
    )
    return packed[: int(len(packed) * share)]


def broken(old: str, new: str, count: int = 1) -> str:
    assert old in WHOLE
    return WHOLE.replace(old, new, count)


@pytest.mark.parametrize(
    ("text", "kernels", "dropped", "non_finite"),
    [
        (broken('"registers per thread": 32', '"memory bandwidth (GB/s)": inf'), 20, 0, 1),
        (broken('"registers per thread": 32', '"a": -nan, "b": NaN, "c": Infinity'), 20, 0, 3),
        (broken('"registers per thread": 32', '"a": N/A'), 20, 0, 1),
        (broken('"registers per thread": 32', '"a": [inf, 1, nan]'), 20, 0, 2),
        (broken("void f<4>(int)", 'void f<4> "quoted" (int)'), 19, 1, 0),
        (broken("void f<4>(int)", "void f<4>\\\\ \\q (int)"), 19, 1, 0),
        (broken("void f<4>(int)", "void f<4>(\x07int)"), 20, 0, 0),
        (broken("void f<4>(int)", "void f<4>(\nint)"), 20, 0, 0),
        (broken('"dur": 5.5', '"dur": inf'), 19, 1, 1),
        (broken('"dur": 5.5', '"dur": "5.5"'), 20, 0, 0),
        (broken('"ts": 1010.0', '"ts": null'), 19, 1, 0),
        (broken('"stream": 7', '"stream": "stream 7"'), 20, 0, 0),
        (broken('"correlation": 5, "registers', f'"correlation": {10**30}, "registers'), 20, 0, 0),
        (broken('"grid": [2, 1, 1]', '"grid": [2, 1]'), 20, 0, 0),
        (broken('"grid": [2, 1, 1]', '"grid": "2x1x1"'), 20, 0, 0),
        (
            broken('"registers per thread": 32', '"more": [{"a": 1}, {"b": {"c": 2}}, {"name": "x"}, {"ts": 1}]'),
            20,
            0,
            0,
        ),
        (broken('"registers per thread": 32', '"more": [{"name": "x"}], "last": 1'), 20, 0, 0),
        (broken("},\n{", "}\n{", 3), 20, 0, 0),
        (broken('"cat": "kernel"', '"cat": "Kernel"', 20), 20, 0, 0),
        (broken('"cat": "kernel"', '"cat": ["kernel"]'), 19, 0, 0),
        (broken('"args": {"External id": 4,', '"args": null, "rest": {"External id": 4,'), 20, 0, 0),
    ],
)
def test_what_is_broken_costs_no_more_than_its_event(tmp_path, text, kernels, dropped, non_finite):
    trace = imported(tmp_path, text)
    found = kernel_count(trace), trace.quality.dropped_event_count, trace.quality.non_finite_count
    assert found == (kernels, dropped, non_finite)
    assert not trace.quality.is_truncated


def test_bytes_that_are_no_utf_8(tmp_path):
    trace = imported(tmp_path, WHOLE.encode().replace(b"void f<4>(int)", b"void f<4>(\xff\xfeint)", 1))
    assert (kernel_count(trace), trace.quality.dropped_event_count) == (20, 0)


def test_a_broken_python_frame_is_jumped_over(tmp_path):
    frame = '{"ph": "X", "cat": "python_function", "name": "a "b" }, {c", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    trace = imported(tmp_path, WHOLE.replace('"traceEvents": [', '"traceEvents": [' + frame + ","))
    assert kernel_count(trace) == 20


def test_integer_absolute_microseconds(tmp_path):
    listed = [
        step(ts=1_683_564_902_165_770),
        launch(1, ts=1_683_564_902_165_776),
        kernel(1, ts=1_683_564_902_165_999, dur=0),
    ]
    trace = imported(tmp_path, text_of(listed))
    assert trace.launches.start_ns.tolist() == [229_000]
    assert trace.metadata.started_at == "2023-05-08T16:55:02.165770Z"
    assert trace.quality.zero_duration_count == 1


def test_relative_microseconds_with_a_base(tmp_path):
    listed = [step(ts=1365627862757.064), launch(1, ts=1365627862760.001), kernel(1, ts=1365627862770.007)]
    trace = imported(tmp_path, text_of(listed, baseTimeNanoseconds=1_767_189_312_000_000_000))
    # From the file's first event; fractions of a nanosecond do not add up.
    assert trace.launches.start_ns.tolist() == [12_943]
    assert trace.launches.host_launch_ns.tolist() == [2_937]
    assert trace.metadata.started_at == "2026-01-16T09:15:39.862757Z"


def test_duplicates_are_dropped_and_counted(tmp_path):
    trace = imported(tmp_path, text_of([*events(), kernel(3), kernel(4)]))
    assert (kernel_count(trace), trace.quality.duplicate_count) == (20, 2)


def test_correlation_zero_is_none(tmp_path):
    listed = events()
    listed[3]["args"]["correlation"] = 0
    listed.append(launch(0))
    trace = imported(tmp_path, text_of(listed))
    assert trace.quality.launchless_count == 1
    assert trace.launches.step.tolist().count(-1) == 1


def test_negative_durations_are_dropped_and_counted(tmp_path):
    listed = events()
    listed[3]["dur"] = -5
    trace = imported(tmp_path, text_of(listed))
    assert (kernel_count(trace), trace.quality.negative_duration_count) == (19, 1)


def test_a_clock_that_went_astray_does_not_stretch_the_trace(tmp_path):
    listed = events()
    listed[3]["ts"] = listed[3]["ts"] - 1e11  # 1e14 ns
    trace = imported(tmp_path, text_of(listed))
    assert (kernel_count(trace), trace.quality.before_launch_count) == (19, 1)
    assert trace.launches.start_ns.max() < 1_000_000


def test_durations_that_overrun_are_clipped_and_dependent_launches_are_not(tmp_path):
    listed = events()
    listed[3]["dur"] = 5_000_000  # MI355: until long after its successors
    listed[6]["dur"] = 12  # 2 us into the next one: programmatic dependent launch
    trace = imported(tmp_path, text_of(listed))
    assert trace.quality.overrun_clipped_count == 1
    assert trace.quality.overlap_count == 2
    assert sorted(trace.launches.duration_ns.tolist())[-2:] == [10_000, 12_000]


def test_kernels_belong_to_the_step_that_launched_them(tmp_path):
    listed = [
        step("execute_context_1(8)_generation_0(0)", 100, 50),
        step("execute_context_0(0)_generation_1(1)", 200, 50),
        launch(1, ts=110), kernel(1, ts=230),  # runs while the next step is open
        launch(2, ts=170), kernel(2, ts=240),  # sampling, between the annotations
        launch(3, ts=210), kernel(3, ts=300),
        launch(4, ts=50), kernel(4, ts=60),  # before the first
        kernel(5, ts=40),  # launched before the trace
        launch(6, ts=220, tid=2), kernel(6, ts=310),  # by another thread
    ]  # fmt: skip
    trace = imported(tmp_path, text_of(listed))
    assert trace.launches.start_ns.tolist() == [0, 20_000, 190_000, 200_000, 260_000, 270_000]
    assert trace.launches.step.tolist() == [-1, -1, 0, 0, 1, 1]
    assert [s.phase for s in trace.steps] == [Phase.PREFILL, Phase.DECODE]


def test_a_driver_launch_without_an_external_id_finds_its_op_by_time(tmp_path):
    event = launch(1, cat="cuda_driver", name="cuLaunchKernelEx", args={"correlation": 1})
    trace = imported(tmp_path, text_of([op(1, "vllm::moe_forward"), event, kernel(1)]))
    assert trace.tasks[0].op == "vllm::moe_forward"


def test_external_ids_that_are_correlations_join_nothing(tmp_path):
    listed = [op(9), launch(1, tid=4, args={"External id": 9, "correlation": 9}), kernel(9, args={"External id": 9})]
    trace = imported(tmp_path, text_of(listed))
    assert trace.tasks[0].op == ""


def test_graph_launches_without_kernels_are_counted(tmp_path):
    trace = imported(tmp_path, text_of([*events(), launch(99, name="cudaGraphLaunch")]))
    assert trace.quality.opaque_graph_launch_count == 1


def test_the_same_work_in_another_step_is_the_same_task(tmp_path):
    listed = []
    for number in range(3):
        listed.append(step("execute_context_0(0)_generation_2(2)", 100 + 1000 * number, 500))
        for index in range(1, 4):
            correlation = 10 * number + index
            ts = 100 + 1000 * number + 10 * index
            listed += [
                launch(correlation, ts=ts),
                kernel(correlation, ts=ts + 600, args={"grid": [index, 1, 1], "External id": -1}),
            ]
    trace = imported(tmp_path, text_of(listed))
    assert (len(trace.launches.task), len(trace.tasks)) == (9, 3)


def test_copies_count_what_they_read_and_write(tmp_path):
    copy = kernel(1, cat="gpu_memcpy", name="Memcpy DtoD (Device -> Device)", args={"bytes": 4096})
    fill = kernel(2, cat="gpu_memset", name="Memset (Device)", args={"bytes": 100})
    trace = imported(tmp_path, text_of([*events(0), launch(1), copy, launch(2), fill, launch(3), kernel(3)]))
    assert [task.moved_bytes for task in trace.tasks] == [8192, 100, None]
    assert trace.launches.is_kernel.tolist() == [False, False, True]


def test_collectives_know_their_ranks_and_their_message(tmp_path):
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 5120,
        "Out msg nelems": 5120,
        "Group size": 4,
        "dtype": "BFloat16",
    }
    reduce = kernel(1, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", args=args)
    trace = imported(tmp_path, text_of([launch(1), reduce], distributedInfo={"rank": 3, "world_size": 8}))
    (task,) = trace.tasks
    assert (task.ranks, [(o.dtype, o.shape) for o in task.operands]) == (4, [("bf16", (5120,))])
    assert (trace.metadata.world_size, trace.launches.rank.tolist()) == (8, [3])


def test_secrets_and_surroundings_do_not_survive(tmp_path):
    token = "hf_" + "a1B2c3D4e5" * 3
    listed = [*events(), op(30, f"my_op token={token}"), launch(30), kernel(30)]
    listed.append({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": f"serve --key {token}"}})
    trace = imported(
        tmp_path,
        text_of(listed, environment={"HF_TOKEN": token}, host_name="node-17", INFO=[f"/home/someone/{token}"]),
    )
    everything = repr(trace)
    assert token not in everything
    assert "node-17" not in everything
    assert "someone" not in everything
    assert trace.quality.redacted_count == 1
    assert kernel_count(trace) == 21


def test_metadata_may_follow_the_events(tmp_path):
    text = (
        '{"traceEvents": [' + ",".join(map(json.dumps, events())) + '], "deviceProperties": [{"id": 0, "name": "X"}]}'
    )
    trace = imported(tmp_path, text)
    assert (trace.metadata.gpu_name, trace.quality.event_count) == ("X", 61)


def test_a_bare_list_of_events(tmp_path):
    trace = imported(tmp_path, json.dumps(events()))
    assert kernel_count(trace) == 20
    assert not trace.quality.is_truncated
    assert imported(tmp_path, json.dumps(events())[:-1]).quality.is_truncated


def test_events_in_another_order_of_keys(tmp_path):
    turned = [dict(reversed(event.items())) for event in events()]
    renamed = [{"name": event.pop("name"), **event} for event in map(dict, events())]
    sound = imported(tmp_path, WHOLE)
    assert same(sound, imported(tmp_path, text_of(turned)))
    assert same(sound, imported(tmp_path, text_of(renamed)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("hello", "begins with 'hello'"),
        ("{}", "without a traceEvents list"),
        ('{"traceEvents": []}', "none of the 0 events is GPU work or a framework op"),
        ('{"traceEvents": {}}', "without a traceEvents list"),
        (text_of([op(1)]), "no engine step is annotated"),
        (text_of([step(), op(1), launch(1)]), "1 kernel launches are in the trace but not one kernel"),
        ("PK\x03\x04rest", "zip archive"),
    ],
)
def test_refusals_name_the_way_out(tmp_path, text, sentence):
    with pytest.raises(TraceRejected, match=re.escape(sentence)) as refusal:
        imported(tmp_path, text)
    assert "\n" not in str(refusal.value)


def test_no_file_and_no_such_file(tmp_path):
    with pytest.raises(TraceRejected, match="no file was given"):
        import_trace([])
    with pytest.raises(TraceRejected, match="No such file"):
        import_trace([tmp_path / "missing"])


def test_ranks_are_aligned_by_their_clocks(tmp_path):
    paths = []
    for rank, shift in ((1, 250.0), (0, 0.0)):
        listed = [{**event, "ts": event["ts"] + shift} for event in events()]
        text = text_of(listed, baseTimeNanoseconds=10**18, distributedInfo={"rank": rank, "world_size": 2})
        paths.append(tmp_path / f"any{rank}")
        paths[-1].write_text(text)
    trace = import_trace(paths)
    assert trace.metadata.rank_count == 2
    starts = [trace.launches.start_ns[trace.launches.rank == rank] for rank in (0, 1)]
    assert (starts[1] - starts[0] == 250_000).all()
    assert [s.rank for s in trace.steps] == [0, 1]
    assert len(trace.tasks) == 3


def test_progress_is_reported(tmp_path):
    seen: list[ImportProgress] = []
    data = text_of(events(20_000))
    imported(tmp_path, data, progress=seen.append)
    assert len(seen) > 3
    assert all(first.bytes_read <= second.bytes_read <= len(data) for first, second in pairwise(seen))
    assert all(progress.bytes_total == len(data.encode()) for progress in seen)
