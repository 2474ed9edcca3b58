import gzip
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from cascade_schemas.model import load_model
from cascade_schemas.task import Operand

from services.ingest.derive import CannotDerive, TracedOp, derive_step, is_copy
from services.ingest.imported import ImportedStep, Phase
from services.ingest.requests import reconstruct

SAMPLES = Path(__file__).parents[2] / "services" / "samples"
OPT, LLAMA = "k22_vllm0.32_cpu_opt-125m_steps", "k23_vllm0.32_cpu_llama-3.2-1b_steps"
PROMPTS = (512, 1200, 64, 17)
STEP = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")


@cache
def recording(name):
    """(steps, their ops) of a sample, read without the importer."""
    events = json.loads(gzip.decompress((SAMPLES / f"{name}.pt.trace.json.gz").read_bytes()))["traceEvents"]
    marks = sorted((e["ts"], STEP.match(e["name"])) for e in events if e.get("cat") == "user_annotation")
    ops = sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: (e["ts"], -e["dur"]))
    steps = [ImportedStep(Phase.UNKNOWN, 0, 0, *(int(group) for group in match.groups())) for _, match in marks]
    inside = [[] for _ in steps]
    for op in ops:
        index = max(i for i, (ts, _) in enumerate(marks) if ts <= op["ts"])
        shapes = (tuple(d) if all(isinstance(n, int) for n in d) else () for d in op["args"].get("Input Dims", []))
        inside[index].append(TracedOp(op["name"], tuple(shapes), tuple(op["args"].get("Input type", []))))
    return reconstruct(steps, PROMPTS), inside


def derived(name, index, model=None, **facts):
    steps, ops = recording(name)
    return derive_step(ops[index], steps[index], load_model(model) if model else None, **facts)


def kernels(tasks):
    return [task.signature.name.removeprefix("derived::").split("<")[0] for task in tasks]


def test_a_llama_layer_is_the_nine_kernels_that_vllm_launches():
    names = kernels(derived(LLAMA, 2))
    first = names.index("rms_norm")
    assert names[first : first + 9] == [
        "rms_norm",
        "gemm",
        "rotary_embedding",
        "reshape_and_cache",
        "attention_mixed",
        "gemm",
        "fused_add_rms_norm",
        "gemm",
        "silu_and_mul",
    ]
    count = Counter(names)
    assert (count["gemm"], count["rms_norm"], count["fused_add_rms_norm"]) == (16 * 4 + 1, 1, 32)
    assert names[-6:] == ["gather_rows", "gemm", "cast", "argmax", "cast", "memcpy_d2h"]


def test_an_opt_layer_keeps_its_layer_norms_and_additions_apart():
    names = kernels(derived(OPT, 2))
    first = names.index("layer_norm")
    assert names[first : first + 11] == [
        "layer_norm",
        "gemm",
        "reshape_and_cache",
        "attention_mixed",
        "gemm",
        "add",
        "layer_norm",
        "gemm",
        "relu",
        "gemm",
        "add",
    ]
    assert Counter(names)["embedding"] == 2  # tokens, and learned positions


def test_gemms_have_the_shapes_of_the_model():
    shapes = [task.operands for task in derived(LLAMA, 2) if task.op == "aten::linear"]
    sizes = [(rows.shape[0], weight.shape[0], weight.shape[1]) for rows, weight, *_ in shapes]
    assert sizes[:4] == [(259, 3072, 2048), (259, 2048, 2048), (259, 16384, 2048), (259, 2048, 8192)]
    assert sizes[-1] == (4, 128256, 2048)  # only the rows that are sampled


def test_attention_knows_every_requests_lengths():
    attention = next(t for t in derived(LLAMA, 2) if "attention" in t.signature.name)
    assert attention.q_lengths == (1, 177, 64, 17)
    assert attention.kv_lengths == (514, 1200, 64, 17)
    assert attention.attributes == {"heads": 32, "kv_heads": 8, "head_dim": 64}
    assert attention.tokens == 259


@pytest.mark.parametrize(
    ("index", "kernel"), [(0, "attention_prefill"), (1, "attention_mixed"), (4, "attention_decode")]
)
def test_attention_is_named_by_what_the_step_does(index, kernel):
    assert kernel in kernels(derived(OPT, index))


@pytest.mark.parametrize("name", [OPT, LLAMA])
def test_every_step_of_one_model_has_the_same_kernels_and_an_empty_one_none(name):
    steps, ops = recording(name)
    counts = [len(derive_step(o, s)) for o, s in zip(ops, steps, strict=True)]
    assert len(set(counts[:-1])) == 1
    assert counts[-1] == 0


def test_equal_layers_and_equal_steps_are_few_tasks():
    steps, ops = recording(LLAMA)
    tasks = [t for o, s in zip(ops, steps, strict=True) for t in derive_step(o, s)]
    assert len(tasks) == 1810
    assert len({t.task_id for t in tasks}) < 200


def test_what_the_host_prepares_is_a_handful_of_small_copies():
    tasks = derived(LLAMA, 2)
    copies = [t for t in tasks if is_copy(t)]
    assert len(copies) == 11
    assert max(t.moved_bytes for t in copies) == 2 * 259 * 8  # positions: read and written, 8 bytes each
    assert all(t.operands_from == "derived" for t in tasks)


def test_sliding_windows_come_from_the_model():
    steps, ops = recording(LLAMA)
    windowed = load_model("llama-3.2-1b").model_copy(update={"windows": (128, 0) * 8})
    attention = [t for t in derive_step(ops[0], steps[0], windowed) if "attention" in t.signature.name]
    assert [t.attributes.get("window", 0) for t in attention[:3]] == [128, 0, 128]


BF16 = "c10::BFloat16"
EMBED = TracedOp("aten::embedding", ((1000, 64), (5,)), (BF16, "long int"))
STEP_OF_FIVE = ImportedStep(Phase.PREFILL, 0, 0, 1, 5, q_lengths=(5,), kv_lengths=(5,))


def test_an_activation_without_its_multiplication_is_a_kernel_of_its_own():
    ops = [EMBED, TracedOp("aten::silu", ((5, 64),), (BF16,)), TracedOp("aten::relu", ((5, 64),), (BF16,))]
    assert kernels(derive_step(ops, STEP_OF_FIVE)) == ["embedding", "silu", "relu"]


def test_a_linear_layer_is_counted_once_though_it_contains_its_mm():
    ops = [
        EMBED,
        TracedOp("aten::linear", ((5, 64), (32, 64), (32,)), (BF16,) * 3),
        TracedOp("aten::addmm", ((32,), (5, 64), (64, 32)), (BF16,) * 3),
        TracedOp("aten::mm", ((5, 64), (64, 16)), (BF16,) * 2),
    ]
    tasks = derive_step(ops, STEP_OF_FIVE)
    assert kernels(tasks) == ["embedding", "gemm", "gemm"]
    assert tasks[2].operands == (Operand(dtype="bf16", shape=(5, 64)), Operand(dtype="bf16", shape=(16, 64)))


def test_collectives_learn_the_ranks_from_the_gather():
    ops = [
        EMBED,
        TracedOp("_C::shm_allreduce", ((), (5, 64)), ("Scalar", BF16)),
        TracedOp("_C::shm_all_gather", ((), (5, 10), (20, 10)), ("Scalar", BF16, BF16)),
    ]
    tasks = derive_step(ops, STEP_OF_FIVE)
    assert [(task.op, task.ranks) for task in tasks[1:]] == [("vllm::all_reduce", 4), ("vllm::all_gather", 4)]


def test_experts_need_the_model():
    ops = [EMBED, TracedOp("vllm::moe_forward", ((5, 4096), (5, 8)), (BF16, BF16))]
    with pytest.raises(CannotDerive, match=r"config\.json"):
        derive_step(ops, STEP_OF_FIVE)
    tasks = derive_step(ops, STEP_OF_FIVE, load_model("mixtral-8x7b"))
    assert kernels(tasks)[1:] == ["moe_routing", "moe_gemm", "silu_and_mul", "moe_gemm", "moe_sum"]
    assert tasks[2].attributes == {"experts": 8, "topk": 2, "m": 5, "n": 28672, "k": 4096}
