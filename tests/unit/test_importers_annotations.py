"""What the engines write around their steps, read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.annotations import read_capture, read_step
from services.ingest.imported import Phase


@pytest.mark.parametrize(
    ("text", "phase", "counts"),
    [
        ("execute_context_1(512)_generation_0(0)", Phase.PREFILL, (1, 512, 0, 0)),
        ("execute_context_2(1023)_generation_3(3)", Phase.MIXED, (2, 1023, 3, 3)),
        ("execute_context_0(0)_generation_4(4)", Phase.DECODE, (0, 0, 4, 4)),
        ("execute_context_0(0)_generation_0(0)", Phase.EMPTY, (0, 0, 0, 0)),
        ("execute_context_1(888_788544)_generation_0(0)", Phase.PREFILL, (1, 888, 0, 0)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            Phase.DECODE,
            (0, 0, 32, 32),
        ),
        ("execute_new_2_cached_30", Phase.MIXED, (2, 0, 30, 30)),
        ("step[DECODE bs=32]", Phase.DECODE, (0, 0, 32, 32)),
        ("step[EXTEND bs=15 toks=15360]", Phase.PREFILL, (15, 15360, 0, 0)),
        ("[Executor] _forward_step 7: 1 ctx reqs, 12 gen reqs", Phase.MIXED, (1, 0, 12, 12)),
        ("ProfilerStep#5", Phase.UNKNOWN, (0, 0, 0, 0)),
    ],
)
def test_steps_of_the_engines(text, phase, counts):
    words = read_step(text)
    assert words is not None
    assert words.phase is phase
    assert counts == (
        words.context_requests, words.context_tokens, words.generation_requests, words.generation_tokens
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["nccl:all_reduce", "## forward ##", "gpu_model_runner: sample", "execute_context_x", "capture_32_FULL", ""]
)
def test_other_ranges_are_no_steps(text):
    assert read_step(text) is None


def test_captures():
    words = read_capture("capture_8192_PIECEWISE")
    assert words is not None
    assert (words.batch_size, words.mode) == (8192, "PIECEWISE")
    assert read_capture("execute_context_1(1)_generation_0(0)") is None


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=40))
def test_lengths_have_the_sums_that_the_annotation_says(lengths):
    total, squares = sum(lengths), sum(q * q for q in lengths)
    words = read_step(
        f"execute_{total}_context_{len(lengths)}(sq{total}sk{total}sqsq{squares}sqsk{squares})_generation_0(sq0sk0sqsq0sqsk0)"
    )
    assert words is not None
    assert sum(words.q_lengths) == sum(words.kv_lengths) == total
    assert len(words.q_lengths) == len(lengths)
    assert min(words.q_lengths) >= 1


@given(st.text(max_size=80))
def test_any_text_is_read_without_an_error(text):
    read_step(text)
    read_capture(text)
