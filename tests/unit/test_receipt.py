"""Why this number: for every family the receipt's lines multiply and add to exactly the time that is shown."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from cascade_schemas.events import KernelsSimulated, KernelTaskTraced, SimulatorStarted
from cascade_schemas.gpu import figure_sources, known_gpus, load_gpu, parse_config
from cascade_schemas.task import KernelSignature, KernelTask, Operand

from services.aggregator.queries import UnknownRun
from services.gateway import answers
from services.kernels.correction import alpha, corrected
from services.kernels.work import WorkTable
from services.kernels.work_of import work_of
from services.runtime.receipt import receipt
from services.simworker.reactor import result_rows
from services.simworker.simulators.analytic.simulator import AnalyticSimulator
from services.simworker.simulators.roofline import RooflineSimulator
from tests.factories import RUN, TRACE, run_config, run_requested, trace_events
from tests.unit.test_lanes import stored

ANALYTIC = AnalyticSimulator(1)


def bf16(*shape):
    return Operand(dtype="bf16", shape=shape)


def task(name, op="", operands=(), **changes):
    signature = KernelSignature(name=name, grid=(128, 1, 1), block=(128, 1, 1))
    return KernelTask(
        signature=signature, op=op, operands=operands, operands_from="traced" if operands else "none", **changes
    )


HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}
TASKS = {
    "gemm": task("nvjet_tst_128x128_64x6_2x1_v_bz_TNT", "aten::mm", (bf16(64, 4096), bf16(4096, 4096))),
    "norm": task("vllm::rms_norm_kernel<c10::BFloat16>", "_C::rms_norm", (bf16(64, 4096), bf16(64, 4096), bf16(4096))),
    "activation": task(
        "vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>", "_C::silu_and_mul", (bf16(64, 4096), bf16(64, 8192))
    ),
    "attention_decode": task(
        "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
        tokens=8,
        q_lengths=(1,) * 8,
        kv_lengths=(2048,) * 8,
        attributes=HEADS,
    ),
    "attention_prefill": task(
        "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
        tokens=512,
        q_lengths=(512,),
        kv_lengths=(512,),
        attributes=HEADS,
    ),
    "attention_mixed": task(
        "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
        tokens=520,
        q_lengths=(512, 1, 1, 1),
        kv_lengths=(512, 900, 900, 900),
        attributes=HEADS,
    ),
    "collective": task("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ranks=8, tokens=64, operands=(bf16(64, 8192),)),
    "moe_gemm": task(
        "fused_moe_kernel", "vllm::moe_forward", (bf16(64, 4096),), tokens=64,
        attributes={"experts": 8, "topk": 2, "hidden": 4096, "intermediate": 2048},
    ),
    "rope": task("vllm::rotary_embedding_kernel<c10::BFloat16, true>", tokens=64, attributes=HEADS),
    "copy": task("Memcpy DtoD (Device -> Device)", moved_bytes=1 << 22),
    "sampling": task("at::native::sbtopk::gatherTopK<float>", "aten::topk", (Operand(dtype="fp32", shape=(8, 32000)),)),
    "unknown": task("a_kernel_nobody_has_heard_of"),
}  # fmt: skip
CONFIGS = [
    parse_config(text) for text in ("a100_sxm_80gb", "h100_sxm", "h100_sxm:dram_gbps=6000", "b200_sxm", "mi300x")
]


@pytest.fixture(scope="module")
def store():
    tasks = list(TASKS.values())
    work = WorkTable.of([work_of(one) for one in tasks])
    gpus = [config.gpu for config in CONFIGS]
    predictions = ANALYTIC.simulate(work, gpus)
    roofline = RooflineSimulator().simulate(work, gpus).duration_ns
    events = [event for event in trace_events() if not isinstance(event, KernelTaskTraced)]
    events += [
        KernelTaskTraced(trace_id=TRACE, task_id=one.task_id, signature_id=one.signature.signature_id, task=one)
        for one in tasks
    ]
    configs = tuple(run_config(config_id=c.config_id, label=c.label, gpu=c.gpu) for c in CONFIGS)
    events.append(run_requested(configs=configs))
    for index, config in enumerate(CONFIGS):
        rows = result_rows(tuple(one.task_id for one in tasks), work, predictions, roofline, index)
        events.append(KernelsSimulated(run_id=RUN, config_id=config.config_id, simulator="analytic", rows=rows))
        events.append(
            SimulatorStarted(
                run_id=RUN,
                config_id=config.config_id,
                simulator="analytic",
                simulator_version=ANALYTIC.version,
                calibration_digest=ANALYTIC.calibration_digest,
                worker="here",
            )
        )
    return stored(events)


def evaluated(lines):
    """Add, multiply, round at each subtotal: what a reader would do with a pencil."""
    value = 0.0
    for line in lines:
        if line["kind"] == "add":
            value += line["value_ns"]
        elif line["kind"] == "multiply":
            value *= line["factor"]
        elif line["kind"] in {"subtotal", "result"}:
            value = max(float(np.rint(value)), 1)
            assert value == line["value_ns"], line
    return value


@pytest.mark.parametrize("family", TASKS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_lines_multiply_and_add_to_the_number(store, config, family):
    found = receipt(store, ANALYTIC, RUN, config.config_id, TASKS[family].task_id)
    answers.Receipt.model_validate(found)
    assert found["family"] == family
    assert found["is_reproduced"]
    assert evaluated(found["lines"]) == found["value_ns"]
    marked = [line["label"] for line in found["lines"] if line["is_largest"]]
    assert marked == [found["bound"]]
    interval = {line["label"]: line["value_ns"] for line in found["lines"] if line["kind"] == "interval"}
    assert interval == {"p10": found["p10_ns"], "p90": found["p90_ns"]}
    assert all(line["source"] for line in found["lines"])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_an_interval_says_how_many_measured_rows_it_rests_on(store, config):
    found = receipt(store, ANALYTIC, RUN, config.config_id, TASKS["gemm"].task_id)
    (low,) = [line for line in found["lines"] if line["label"] == "p10"]
    rows = [given["value"] for given in low["inputs"] if given["name"] == "n"]
    if config.gpu.gpu == "mi300x":
        assert rows == [], "its constants are derived from other GPUs': no row of its kind was measured"
    else:
        assert len(rows) == 1
        assert rows[0] > 100


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_the_source_correction_is_a_line_of_it(store, config):
    one = TASKS["gemm"]
    source = CONFIGS[0]
    forward = receipt(store, ANALYTIC, RUN, config.config_id, one.task_id)["forward_ns"]
    there = receipt(store, ANALYTIC, RUN, source.config_id, one.task_id)["forward_ns"]
    measured = round(there * 1.3)
    share = 1.0 if config is source else alpha(source.gpu, config.gpu, "gemm")
    value = measured if config is source else round(float(corrected(forward, there, measured, share)))
    with_answer = stored(())
    for table in ("trace_starts", "tasks", "run_requests", "run_configs", "simulated_kernels", "simulator_starts"):
        with_answer.commit({table: [store.arrow(f"from {table}")]}, {})
    rows = [
        {"run_id": RUN, "config_id": c.config_id, "task_id": one.task_id, "launch_count": 4, "measured_ns": measured,
         "duration_ns": value if c is config else 1, "p10_ns": round(value * 0.9), "p90_ns": round(value / 0.9)}
        for c in {source.config_id: source, config.config_id: config}.values()
    ]  # fmt: skip
    with_answer.commit({"predicted_kernels": [pa.Table.from_pylist(rows)]}, {})
    found = receipt(with_answer, ANALYTIC, RUN, config.config_id, one.task_id)
    assert evaluated(found["lines"]) == found["value_ns"] == value
    (line,) = [line for line in found["lines"] if line["label"] == "source correction"]
    assert line["inputs"][0]["value"] == measured
    assert math.isclose(line["factor"], value / forward, rel_tol=1e-3)


def test_numbers_of_another_version_are_shown_as_stored(store):
    other = stored(())
    for table in ("trace_starts", "tasks", "run_requests", "run_configs", "simulator_starts"):
        other.commit({table: [store.arrow(f"from {table}")]}, {})
    other.commit(
        {
            "simulated_kernels": [
                store.arrow("select * replace (duration_ns * 2 as duration_ns) from simulated_kernels")
            ]
        },
        {},
    )
    found = receipt(other, ANALYTIC, RUN, CONFIGS[1].config_id, TASKS["gemm"].task_id)
    assert not found["is_reproduced"]
    assert evaluated(found["lines"]) == found["value_ns"]


def test_a_task_without_a_result_is_refused(store):
    with pytest.raises(UnknownRun, match="nope"):
        receipt(store, ANALYTIC, RUN, CONFIGS[0].config_id, "nope")


def test_every_figure_of_every_gpu_names_its_source():
    for gpu in known_gpus():
        named = figure_sources(gpu)
        figures = {
            name
            for name, value in load_gpu(gpu).model_dump().items()
            if isinstance(value, int) and not (name == "copy_bytes_per_s" and value == 0)
        }
        assert figures <= set(named), gpu


@pytest.mark.parametrize(("family", "words"), [("moe_gemm", "by boosted trees"), ("gemm", "interpolated")])
def test_the_tables_line_says_how_the_table_speaks(store, family, words):
    found = receipt(store, ANALYTIC, RUN, CONFIGS[1].config_id, TASKS[family].task_id)
    (line,) = [line for line in found["lines"] if "tables say" in line["label"]]
    assert words in line["source"]
