from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.imported import ImportedStep, Phase
from services.ingest.requests import (
    BaselineError,
    first_steps,
    prefill_ends,
    prompts_from_baseline,
    reconstruct,
)

SAMPLES = Path(__file__).parents[2] / "services" / "samples"
PROMPTS = (512, 1200, 64, 17)


def step(contexts=0, context_tokens=0, generations=0, generation_tokens=None, annotation="", rank=0):
    return ImportedStep(
        Phase.UNKNOWN,
        0,
        0,
        contexts,
        context_tokens,
        generations,
        generations if generation_tokens is None else generation_tokens,
        annotation=annotation,
        rank=rank,
    )


# As recorded in the sample k22: a budget of 1,024 tokens, prompts of 512, 1,200, 64 and 17 tokens, 8 outputs each.
K22 = [
    step(1, 512),
    step(1, 1023, 1),
    step(3, 258, 1),
    *[step(generations=4)] * 5,
    *[step(generations=3)] * 2,
    step(),
]


def test_the_recorded_schedule_is_found_request_by_request():
    filled = reconstruct(K22, PROMPTS)
    assert filled[0].q_lengths == (512,)
    assert filled[1].q_lengths == (1, 1023)
    assert filled[1].kv_lengths == (513, 1023)
    assert filled[2].request_indexes == (0, 1, 2, 3)
    assert filled[2].q_lengths == (1, 177, 64, 17)
    assert filled[2].kv_lengths == (514, 1200, 64, 17)
    assert filled[3].kv_lengths == (515, 1201, 65, 18)
    assert filled[8].request_indexes == (1, 2, 3)
    assert filled[9].kv_lengths == (1207, 71, 24)
    assert filled[10].q_lengths == ()


def test_every_step_accounts_for_all_its_tokens():
    for before, after in zip(K22, reconstruct(K22, PROMPTS), strict=True):
        assert sum(after.q_lengths) == before.context_tokens + before.generation_tokens


def test_a_decode_adds_one_token_to_its_kv_cache():
    length = {}
    for after in reconstruct(K22, PROMPTS):
        for request, q, kv in zip(after.request_indexes, after.q_lengths, after.kv_lengths, strict=True):
            assert kv == length.get(request, 0) + q
            length[request] = kv
    # 8 outputs: the prefill gives the first, seven decodes the rest, and the last token is never written.
    assert [length[request] for request in range(4)] == [prompt + 7 for prompt in PROMPTS]


def test_known_outputs_say_who_finished():
    filled = reconstruct(K22, PROMPTS, outputs=(8, 8, 8, 8))
    assert filled == reconstruct(K22, PROMPTS)


def test_prefill_starts_and_ends_where_the_first_token_is_made():
    filled = reconstruct(K22, PROMPTS)
    assert first_steps(filled, 4) == (0, 1, 2, 2)
    assert prefill_ends(filled, PROMPTS) == (0, 2, 2, 2)


def test_ranks_are_scheduled_alike():
    both = [
        s for one in K22 for s in (one, step(one.context_requests, one.context_tokens, one.generation_requests, rank=1))
    ]
    filled = reconstruct(both, PROMPTS)
    assert [s.q_lengths for s in filled[::2]] == [s.q_lengths for s in filled[1::2]]


def test_prompts_that_contradict_the_trace_fill_nothing_from_there_on():
    filled = reconstruct(K22, (512, 900, 64, 17))
    assert filled[0].q_lengths == (512,)
    assert all(s.q_lengths == () for s in filled[1:])


def test_without_prompts_only_what_the_annotation_settles_is_filled():
    assert reconstruct([step(2, 100, 3)], ())[0].q_lengths == ()
    squared = step(1, 888, annotation="execute_context_1(888_788544)_generation_0(0)")
    assert reconstruct([squared], ())[0].kv_lengths == (888,)
    chunk = step(1, 888, annotation="execute_context_1(888_1000000)_generation_0(0)")
    assert reconstruct([chunk], ())[0].kv_lengths == ()
    text = "execute_14_context_1(sq10sk30sqsq100sqsk300)_generation_4(sq4sk1002sqsq4sqsk1002)"
    detailed = reconstruct([step(1, 10, 4, annotation=text)], ())[0]
    assert detailed.q_lengths == (1, 1, 1, 1, 10)
    assert detailed.kv_lengths == (251, 251, 250, 250, 30)


def test_speculated_tokens_are_shared_equally():
    filled = reconstruct([step(2, 20), step(generations=2, generation_tokens=8)], (10, 10))
    assert filled[1].q_lengths == (4, 4)
    assert filled[1].kv_lengths == (14, 14)


def test_the_baselines_name_their_prompts():
    for name in ("k22_vllm0.32_cpu_opt-125m_steps", "k23_vllm0.32_cpu_llama-3.2-1b_steps"):
        assert prompts_from_baseline(SAMPLES / f"{name}.baseline.json") == (PROMPTS, (8, 8, 8, 8))


def test_a_baseline_without_requests_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(BaselineError, match="prompt_tokens"):
        prompts_from_baseline(tmp_path / "b.json")


def schedule(prompts, outputs, budget):
    """A scheduler written the other way round: from requests to steps."""
    left, made, steps, wanted = list(prompts), [0] * len(prompts), [], []
    while any(made[i] < outputs[i] for i in range(len(prompts))):
        room, q = budget, {}
        for i in range(len(prompts)):
            if left[i] < prompts[i] and made[i] < outputs[i] and room:
                q[i] = 1 if left[i] == 0 else min(left[i], room)
                room -= q[i]
        for i in range(len(prompts)):
            if left[i] == prompts[i] and room:
                q[i] = min(left[i], room)
                room -= q[i]
        contexts = {i: n for i, n in q.items() if left[i]}
        steps.append(step(len(contexts), sum(contexts.values()), len(q) - len(contexts)))
        for i, n in q.items():
            left[i] -= min(n, left[i])
            made[i] += left[i] == 0
        wanted.append(tuple(q.items()))
    return steps, wanted


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=6), st.integers(7, 64))
def test_any_first_come_first_served_schedule_is_found_again(requests, budget):
    prompts, outputs = zip(*requests, strict=True)
    steps, wanted = schedule(prompts, outputs, budget)
    filled = reconstruct(steps, prompts, outputs)
    assert [tuple(zip(s.request_indexes, s.q_lengths, strict=True)) for s in filled] == wanted
