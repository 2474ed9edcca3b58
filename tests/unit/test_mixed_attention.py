"""Steps of chunks and decodes in one launch: never measured, so told by their parts, with an interval that says so."""

from dataclasses import replace

import numpy as np
import pytest
from cascade_schemas.gpu import load_gpu
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kernels.work import Family, Math, Work, WorkTable
from services.simworker.calibration.constants import shipped_constants
from services.simworker.simulators.analytic import shapes
from services.simworker.simulators.analytic.simulator import AnalyticSimulator

CONSTANTS = shipped_constants()
SIMULATOR = AnalyticSimulator(1, CONSTANTS)
ON = [load_gpu(name) for name in ("a100_sxm_80gb", "h100_sxm", "b200_sxm", "l40s", "mi300x")]
COMMON = {"math": Math.BF16, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0, "kv_bits": 16.0, "work_from": "shapes"}


def chunk(queries, history):
    return Work(
        family=Family.ATTENTION_PREFILL, sequences=1, q_tokens=queries, kv_tokens=history + queries,
        qk_pairs=queries * history + queries * (queries + 1) / 2, q_longest=queries, kv_longest=history + queries,
        **COMMON,
    )  # fmt: skip


def decodes(requests, keys):
    return Work(
        family=Family.ATTENTION_DECODE, sequences=requests, q_tokens=requests, kv_tokens=requests * keys,
        qk_pairs=requests * keys, q_longest=1, kv_longest=keys, **COMMON,
    )  # fmt: skip


def mixed(queries, history, requests, keys):
    one, other = chunk(queries, history), decodes(requests, keys)
    return replace(
        one, family=Family.ATTENTION_MIXED,
        **{name: getattr(one, name) + getattr(other, name) for name in ("sequences", "q_tokens", "kv_tokens", "qk_pairs")},
        kv_longest=max(one.kv_longest, keys),
    )  # fmt: skip


STEPS = st.tuples(
    st.integers(16, 4_096).map(float), st.integers(0, 8_192).map(float), st.integers(1, 256).map(float),
    st.integers(16, 16_384).map(float),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_mixed_step_takes_as_long_as_its_longer_part_and_no_longer_than_both(step):
    work = WorkTable.of([mixed(*step), chunk(*step[:2]), decodes(*step[2:])])
    for whole, one, other in SIMULATOR.simulate(work, ON).duration_ns:
        assert 0.98 * max(one, other) <= whole <= 1.02 * (one + other)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_its_parts_are_the_chunks_and_the_decodes(step):
    queries, history, requests, keys = step
    one, other = shapes.mixed_parts(WorkTable.of([mixed(*step)]))
    assert one["q_tokens"][0] == pytest.approx(queries)
    assert one["kv_tokens"][0] == pytest.approx(history + queries)
    assert other["sequences"][0] == pytest.approx(requests)
    assert other["kv_tokens"][0] == pytest.approx(requests * keys, rel=1e-6)


def test_what_tables_say_of_the_parts_reaches_the_whole():
    work = WorkTable.of([mixed(16.0, 0.0, 128.0, 4_096.0), decodes(128.0, 4_096.0)])
    with_tables, without = (
        AnalyticSimulator(1, c).simulate(work, ON[:4]).duration_ns
        for c in (CONSTANTS, replace(CONSTANTS, residuals={}))
    )
    whole, part = (with_tables / without).T
    assert np.abs(np.log(part)).max() > 0.01
    assert whole == pytest.approx(part, rel=0.01)  # nearly all of it is decoding


def test_the_interval_is_wider_the_less_the_longer_part_decides():
    """Two parts alike may hide each other or not: nobody measured it."""
    work = WorkTable.of([mixed(2_048.0, 0.0, requests, 2_048.0) for requests in (1.0, 24.0, 4_096.0)])
    alone = WorkTable.of([chunk(2_048.0, 0.0), decodes(24.0, 2_048.0)])
    for sigma, of_parts in zip(SIMULATOR.simulate(work, ON).sigma, SIMULATOR.simulate(alone, ON).sigma, strict=True):
        assert sigma[1] > max(sigma[0], sigma[2])
        assert sigma[1] > of_parts.max()
