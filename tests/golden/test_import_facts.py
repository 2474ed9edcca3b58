"""Facts of real recordings, counted independently of the importers, must come out of an import."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.ingest.imported import ImportedTrace, Phase
from services.ingest.importers import TraceRejected, import_trace

# (kernels, signatures, kernels without a launch)
KERNELS = {
    "kineto/k01_vllm_b200_gptoss_tp8_prefill_eager.json.gz": (768, 30, 0),
    "kineto/k02_vllm_mi300x_decode_fullgraph.json.gz": (425, 24, 0),
    "kineto/k04_vllm_mi300x_mixed_piecewise.json.gz": (413, 22, 0),
    "kineto/k05_sglang_mi300x_qwen3-8b_decode_graph.json.gz": (555, 27, 0),
    "kineto/k07_hf_h100_qwen1.5-0.5b_prefill.json.gz": (1465, 29, 436),
    "kineto/k08_hf_mi300x_qwen1.5-0.5b_prefill.json.gz": (1516, 49, 463),
    "kineto/k11_a100_dlrm_cudagraph_nccl_intus.json.gz": (6080, 201, 705),
    # 193 and 208 by name, grid and block; registers and shared memory tell one more apart in each.
    "kineto/k12_a100_ddp_2gpu_nccl_args.json.gz": (2700, 194, 0),
    "kineto/k13_v100_resnet50_2021_oldschema.pt.trace.json.gz": (8772, 209, 0),
    # 12 by name; the launches tell grids that the kernels' own records lack.
    "kineto/k14_mi250_rocm62_no_grid.json.gz": (14, 13, 0),
    "kineto/k15_mi210_gpu_only.json.gz": (562, 117, 0),
    "kineto/k16_a100_triton_kernel.json.gz": (1, 1, 0),
    "kineto/k17_a100_cuda_event_sync.json.gz": (4, 4, 0),
    "kineto/k18_bigint_synthetic.json.gz": (1, 1, 1),
    "kineto/k19_2026schema_synthetic.json": (1, 1, 0),
    "nsys/n01_h100_2gpu_train_1s.sqlite.gz": (3442, 90, 1810),
    "nsys/n03_rtx5090_deepseek-ocr_decode_cuda_gpu_kern_sum.csv": (78_016, 46, 0),
    "nsys/n03_rtx5090_deepseek-ocr_prefill_cuda_gpu_kern_sum.csv": (6_660, 97, 0),
    "nsys/n04_a100_vllm0.15_kernels.csv": (56_626, 30, 0),
}


@pytest.fixture(scope="session")
def traces(shared: Path) -> Path:
    return shared / "data" / "traces"


def imported(traces: Path, *names: str, **options) -> ImportedTrace:
    paths = [path for name in names for path in sorted(traces.glob(name))]
    assert len(paths) == len(names)
    return import_trace(paths, **options)


def signature_count(trace: ImportedTrace) -> int:
    of_kernels = set(trace.launches.task[trace.launches.is_kernel].tolist())
    return len({trace.tasks[task].signature.signature_id for task in of_kernels})


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_and_signatures_are_those_counted_by_hand(traces, name):
    trace = imported(traces, name)
    counted = int(trace.launches.is_kernel.sum()), signature_count(trace), trace.quality.launchless_count
    assert counted == KERNELS[name]
    assert trace.quality.dropped_event_count == 0
    assert not trace.quality.is_truncated
    assert (trace.launches.start_ns >= 0).all()
    assert (trace.launches.duration_ns >= 0).all()


@pytest.mark.parametrize("name", sorted(name for name in KERNELS if "k13" in name or "k12" in name))
def test_registers_and_shared_memory_tell_one_signature_more_apart(traces, name):
    trace = imported(traces, name)
    kernels = {trace.tasks[task].signature for task in set(trace.launches.task[trace.launches.is_kernel].tolist())}
    assert len({(s.name, s.grid, s.block) for s in kernels}) == KERNELS[name][1] - 1


def test_k01_is_one_prefill_of_888_tokens(traces):
    trace = imported(traces, "kineto/k01*")
    (step,) = trace.steps
    assert (step.phase, step.context_requests, step.context_tokens) == (Phase.PREFILL, 1, 888)
    assert (step.q_lengths, step.kv_lengths) == ((888,), (888,))
    assert (trace.launches.step == 0).all()
    assert trace.quality.overlap_count == 74  # programmatic dependent launch
    assert (trace.metadata.gpu_name, trace.metadata.sm_count) == ("NVIDIA B200", 148)
    assert (trace.metadata.world_size, trace.metadata.rank_count, trace.metadata.engine) == (8, 1, "vllm")


def test_layers_share_their_tasks(traces):
    trace = imported(traces, "kineto/k01*")
    tasks = [trace.tasks[task] for task in set(trace.launches.task[trace.launches.is_kernel].tolist())]
    assert len(tasks) <= 33
    attention = [task for task in tasks if "fmha" in task.signature.name]
    assert len(attention) == 2  # sliding window and full
    assert all(task.q_lengths == (888,) and task.kv_lengths == (888,) for task in attention)
    # Lengths fix the work of attention and its helpers only.
    assert {task.signature.name for task in tasks if task.q_lengths and task not in attention} == {
        "_copy_page_indices_kernel"
    }
    norm = next(task for task in tasks if task.op == "_C::fused_add_rms_norm")
    assert [(o.dtype, o.shape) for o in norm.operands] == [
        ("bf16", (888, 2880)),
        ("bf16", (888, 2880)),
        ("bf16", (2880,)),
    ]
    assert {task.ranks for task in tasks if "all_reduce" in task.signature.name} == {8}


def test_k02_is_one_decode_of_32_requests(traces):
    trace = imported(traces, "kineto/k02*")
    (step,) = trace.steps
    assert (step.phase, step.generation_requests, step.generation_tokens) == (Phase.DECODE, 32, 32)
    assert (sum(step.q_lengths), sum(step.kv_lengths)) == (32, 55_086)
    assert (trace.launches.step == 0).all()
    assert int((trace.launches.graph >= 0).sum()) == 421
    assert trace.metadata.gpu_name == ""
    assert imported(traces, "kineto/k02*", source_gpu="mi300x").metadata.gpu_name == "mi300x"


def test_k04_is_one_mixed_step(traces):
    trace = imported(traces, "kineto/k04_*")
    (step,) = trace.steps
    assert (step.phase, step.context_requests, step.context_tokens) == (Phase.MIXED, 9, 8155)
    assert (step.generation_requests, step.generation_tokens) == (37, 37)
    decodes, prefills = step.q_lengths[:37], step.q_lengths[37:]
    assert (sum(decodes), sum(prefills)) == (37, 8155)
    assert sum(step.kv_lengths) == 34_489 + 8_430
    assert sum(q * q for q in prefills) == pytest.approx(7_475_785, rel=0.002)
    assert sum(q * kv for q, kv in zip(prefills, step.kv_lengths[37:], strict=True)) == pytest.approx(
        7_671_310, rel=0.01
    )


def test_nested_annotations_are_one_step(traces):
    trace = imported(traces, "kineto/k05_*")
    (step,) = trace.steps
    assert (step.phase, step.generation_requests, sum(step.kv_lengths)) == (Phase.DECODE, 32, 32_785)
    assert trace.metadata.engine == "sglang"
    assert (trace.launches.step == 0).all()


def test_shapes_tell_the_prefill_of_a_plain_torch_run(traces):
    for name in ("kineto/k07*", "kineto/k08*"):
        (step,) = imported(traces, name).steps
        assert (step.phase, step.context_requests, step.context_tokens) == (Phase.PREFILL, 16, 8_944)


def test_kernels_launched_before_the_window_belong_to_no_step(traces):
    trace = imported(traces, "kineto/k07*")
    outside = trace.launches.step < 0
    assert int((outside & trace.launches.is_kernel).sum()) == 436
    assert (trace.launches.host_launch_ns[outside] == -1).all()
    assert int((~outside & trace.launches.is_kernel).sum()) == 1029


def test_a_training_step_has_no_phase(traces):
    trace = imported(traces, "kineto/k12*")
    assert [step.phase for step in trace.steps] == [Phase.UNKNOWN] * 3
    assert [step.annotation for step in trace.steps] == ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]
    reduces = [task for task in trace.tasks if "AllReduce" in task.signature.name]
    assert reduces
    assert all(task.ranks == 2 and task.operands and task.operands[0].shape[0] > 0 for task in reduces)


def test_whole_microseconds_leave_kernels_of_no_length(traces):
    trace = imported(traces, "kineto/k13*")
    assert trace.quality.zero_duration_count == 639
    assert trace.metadata.started_at.startswith("2021-06-08T")


@pytest.mark.parametrize(
    ("replay", "capture", "count"),
    [("k02*", "k03*", 421), ("k04_*", "k04b*", 361), ("k05_*", "k05b*", 544)],
)
def test_replays_take_op_shapes_and_grid_from_their_capture(traces, replay, capture, count):
    alone = imported(traces, f"kineto/{replay}")
    trace = imported(traces, f"kineto/{replay}", f"kineto/{capture}")
    assert trace.metadata.graph_capture_joined == count
    assert trace.quality.capture_mismatch == ""
    assert trace.launches.is_kernel.sum() == alone.launches.is_kernel.sum()
    assert trace.quality.gridless_count == 0
    assert alone.quality.gridless_count == count
    replayed = trace.launches.is_kernel & (trace.launches.graph >= 0)
    tasks = [trace.tasks[task] for task in set(trace.launches.task[replayed].tolist())]
    assert all(task.signature.grid and task.signature.block for task in tasks)
    assert sum(task.operands_from == "capture" for task in tasks) > len(tasks) / 2
    # The order of the files is no fact.
    turned = imported(traces, f"kineto/{capture}", f"kineto/{replay}")
    assert turned.tasks == trace.tasks


def test_the_capture_of_another_job_is_reported_and_not_used(traces):
    trace = imported(traces, "kineto/k02*", "kineto/k05b*")
    assert trace.metadata.graph_capture_joined == 0
    assert "544 launches where the replay ran 421 kernels" in trace.quality.capture_mismatch
    assert all(task.operands_from != "capture" for task in trace.tasks)


def test_a_capture_alone_says_what_it_is(traces):
    trace = imported(traces, "kineto/k03*")
    assert int(trace.launches.is_kernel.sum()) == 7
    assert "graph capture" in trace.quality.notes[0]


def test_nvidia_graph_replays_have_their_own_grids(traces):
    trace = imported(traces, "kineto/k11*")
    graphs = trace.launches.graph[(trace.launches.graph >= 0) & trace.launches.is_kernel]
    assert len(graphs) == 135
    assert len(set(graphs.tolist())) == 70
    assert trace.quality.gridless_count == 0
    assert len(trace.steps) == 5


def test_processes_of_an_nsys_export_are_ranks(traces):
    trace = imported(traces, "nsys/n01*")
    assert (trace.metadata.rank_count, sorted(set(trace.launches.rank.tolist()))) == (2, [0, 1])
    assert "--cuda-graph-trace=node" in trace.quality.notes[0]
    linked = trace.launches.is_kernel & (trace.launches.host_launch_ns >= 0)
    assert int(linked.sum()) == 3442 - 1810
    assert any(task.op.startswith("aten::") for task in trace.tasks)


def test_a_kernel_summary_has_durations_but_no_steps(traces):
    trace = imported(traces, "nsys/n03*decode*")
    assert trace.steps == []
    assert (trace.launches.step == -1).all()
    gemv = trace.tasks[0]
    assert gemv.signature.name.startswith("internal::gemvx::kernel<int,int,__nv_bfloat16")
    of_gemv = trace.launches.duration_ns[trace.launches.task == 0]
    assert (len(of_gemv), int(of_gemv.sum())) == (16_448, 61_602_133)
    assert "step structure" in trace.quality.notes[0]


def test_ncu_tables_give_one_launch_each(traces):
    for path in sorted((traces / "ncu").glob("c01*.csv")):
        trace = import_trace([path])
        (task,) = trace.tasks
        assert task.signature.grid
        assert task.signature.block
        assert task.signature.name.partition("<")[0] in (
            "kernel",
            "elementwise_kernel",
            "unrolled_elementwise_kernel",
            "vectorized_elementwise_kernel",
        )
        assert trace.metadata.compute_capability == (12, 0)
        assert int(trace.launches.duration_ns[0]) > 0
    together = import_trace(sorted((traces / "ncu").glob("c01*.csv")))
    assert len(together.launches.task) == 5


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nsys/n03*_all_*", "1695983 launches"),
        ("nsys/n04*gaps*", "begins with 'device_id,gap_st'"),
        ("kineto/k22*baseline.json", "without a traceEvents list"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_sentence(traces, name, sentence):
    with pytest.raises(TraceRejected, match=sentence):
        imported(traces, name)


@pytest.mark.parametrize("name", ["k22_vllm0.32_cpu_opt-125m_steps", "k23_vllm0.32_cpu_llama-3.2-1b_steps"])
def test_a_cpu_recording_becomes_the_kernels_of_its_steps(samples, name):
    trace = import_trace([samples / f"{name}.pt.trace.json.gz"], prompts=(512, 1200, 64, 17))
    assert trace.metadata.provenance == "recorded-on-cpu"
    assert trace.metadata.gpu_name == ""
    assert trace.metadata.engine_version == "0.32.0"
    phases = [step.phase for step in trace.steps]
    assert phases == [Phase.PREFILL, *[Phase.MIXED] * 2, *[Phase.DECODE] * 7, Phase.EMPTY]
    assert (trace.launches.duration_ns == -1).all()
    assert (trace.launches.host_launch_ns == -1).all()
    for index, step in enumerate(trace.steps):
        starts = trace.launches.start_ns[trace.launches.step == index]
        assert starts.tolist() == list(range(step.start_ns, step.start_ns + len(starts)))
        assert bool(len(starts)) == (step.phase is not Phase.EMPTY)
    assert trace.steps[1].q_lengths == (1, 1023)
    assert trace.steps[2].kv_lengths == (514, 1200, 64, 17)
    assert len(trace.tasks) < len(trace.launches.task) / 8


def test_ranks_of_one_job_come_together(traces):
    trace = imported(traces, "kineto/k21*rank0*", "kineto/k21*rank1*")
    assert (trace.metadata.rank_count, trace.metadata.world_size) == (2, 2)
    assert sorted(set(trace.launches.rank.tolist())) == [0, 1]
    by_rank = [[step.phase for step in trace.steps if step.rank == rank] for rank in (0, 1)]
    assert by_rank[0] == by_rank[1]
    assert any(task.ranks == 2 for task in trace.tasks)
    steps_of = [set(trace.launches.step[trace.launches.rank == rank].tolist()) for rank in (0, 1)]
    assert not steps_of[0] & steps_of[1]


def test_cpu_recordings_without_a_job_of_ours_import_too(traces):
    trace = imported(traces, "kineto/k20*")
    assert [step.phase for step in trace.steps] == [Phase.PREFILL, Phase.MIXED, *[Phase.DECODE] * 7, Phase.EMPTY]
