from collections import Counter
from pathlib import Path

import pytest
from cascade_schemas.model import known_models, load_model
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ingest.importers import TraceRejected, import_trace
from services.ingest.importers.synthesis import synthesized
from services.ingest.synthesis import Workload, steps_of
from services.kernels.work import Family
from services.kernels.work_of import work_of

SAMPLES = Path(__file__).resolve().parents[2] / "services" / "samples"


def workload(model="opt-125m", **changes):
    return Workload(model=load_model(model), **{"prompt_tokens": (512,), **changes})


def test_one_request_is_a_prefill_step_and_a_decode_step_per_further_token():
    steps = steps_of(workload(output_tokens=4))
    assert [step.phase.value for step in steps] == ["prefill", "decode", "decode", "decode"]
    assert [step.kv_lengths for step in steps] == [(512,), (513,), (514,), (515,)]


def test_a_prompt_over_the_budget_is_chunked_and_decodes_go_first():
    steps = steps_of(workload(prompt_tokens=(100, 300), output_tokens=2, batched_tokens_limit=256))
    assert [step.q_lengths for step in steps] == [(100, 156), (1, 144), (1,)]
    assert [step.kv_lengths for step in steps] == [(100, 156), (101, 300), (301,)]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    st.integers(1, 20),
    st.integers(16, 4000),
)
def test_every_token_is_computed_once(prompts, output_tokens, budget):
    steps = steps_of(workload(prompt_tokens=tuple(prompts), output_tokens=output_tokens, batched_tokens_limit=budget))
    computed = Counter()
    for step in steps:
        assert sum(step.q_lengths) <= budget
        for request, new in zip(step.request_indexes, step.q_lengths, strict=True):
            computed[request] += new
    assert computed == {index: prompt + output_tokens - 1 for index, prompt in enumerate(prompts)}


@pytest.mark.parametrize(
    ("stem", "model"),
    [("k22_vllm0.32_cpu_opt-125m_steps", "opt-125m"), ("k23_vllm0.32_cpu_llama-3.2-1b_steps", "llama-3.2-1b")],
)
def test_a_synthesized_decode_step_has_the_kernels_of_the_recorded_one(stem, model):
    prompts = (512, 1200, 64, 17)
    recorded = import_trace([SAMPLES / f"{stem}.pt.trace.json.gz"], model=load_model(model), prompts=prompts)
    made = synthesized(workload(model, prompt_tokens=prompts))
    assert decode_kernels(made) == decode_kernels(recorded)


def decode_kernels(trace):
    """Name and operands of the forward kernels of the first step of four decodes, with their counts."""
    step = next(n for n, step in enumerate(trace.steps) if step.generation_requests == 4 and not step.context_requests)
    tasks = [trace.tasks[index] for index in trace.launches.task[trace.launches.step == step]]
    # A vocabulary is padded by the engine (50,272 to 50,304); what precedes the embedding is the runner's work.
    forward = [task for task in tasks if task.signature.name.split("::")[1].split("<")[0] in FORWARD]
    # Without the dtype: the published configuration is fp16, the recording was made in bf16.
    return Counter(
        (task.signature.name.split("<")[0], *(operand.shape for operand in task.operands))
        for task in forward
        if not wide(task)
    )


FORWARD = {
    "gemm", "layer_norm", "rms_norm", "fused_add_rms_norm", "reshape_and_cache", "attention_decode", "relu",
    "silu_and_mul", "rotary_embedding",
}  # fmt: skip


def wide(task):
    return any(max(operand.shape, default=0) > 40_000 for operand in task.operands)


def test_every_bundled_model_gives_known_kernels_or_a_sentence():
    for name in known_models():
        asked = workload(name, prompt_tokens=(64,), output_tokens=2)
        if asked.model.is_mla:
            with pytest.raises(TraceRejected, match="latent attention"):
                synthesized(asked)
            continue
        trace = synthesized(asked)
        assert trace.metadata.provenance == "synthesized"
        assert (trace.launches.duration_ns == -1).all()
        for task in trace.tasks:
            assert work_of(task).family is not Family.UNKNOWN, task.signature.name


def test_tensor_parallel_shards_gemms_and_adds_collectives():
    one = synthesized(workload("llama-3.1-8b", output_tokens=1))
    four = synthesized(workload("llama-3.1-8b", output_tokens=1, tensor_parallel=4))

    def flop(trace):
        return sum(
            work_of(trace.tasks[index]).flop
            for index in trace.launches.task
            if work_of(trace.tasks[index]).family is Family.GEMM
        )

    assert flop(four) == pytest.approx(flop(one) / 4, rel=0.01)
    reduces = [task for task in four.tasks if work_of(task).family is Family.COLLECTIVE]
    assert reduces
    assert all(task.ranks == 4 for task in reduces)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cascade_synthesis": 1}', "model"),
        ('{"cascade_synthesis": 2, "model": {}}', "cascade_synthesis"),
        ('{"cascade_synthesis": 1, "model"', "JSON"),
    ],
)
def test_a_broken_workload_is_rejected_in_one_sentence(tmp_path, text, said):
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(TraceRejected, match=said):
        import_trace([path])


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(TraceRejected, match="12 heads cannot be split over 5 GPUs"):
        synthesized(workload(tensor_parallel=5))
