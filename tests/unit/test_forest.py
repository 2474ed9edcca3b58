"""Expert GEMMs by trees: what holds them so that more work is never faster."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kernels.work import Family, Math, Work, WorkTable
from services.simworker.calibration.constants import shipped_constants
from services.simworker.simulators.analytic.forest import (
    Forest,
    Rising,
    Trees,
    features,
    from_json,
    rising_features,
    to_json,
)
from services.simworker.simulators.analytic.residual import AXES, BAND, coordinates
from services.simworker.simulators.analytic.simulator import form_us_as_sold

CONSTANTS = shipped_constants()
FORESTS = {key: t for key, t in ((k, CONSTANTS.residuals[k]) for k in CONSTANTS.residuals) if isinstance(t, Forest)}


def expert(m, n=2048.0, k=4096.0, experts=64, topk=8):
    return Work(family=Family.MOE_GEMM, math=Math.BF16, m=m, n=n, k=k, experts=experts, topk=topk)


def stump(threshold, low, high, feature=0):
    """One tree: `low` up to the threshold of a feature, `high` beyond."""
    return Trees(
        feature=np.array([[feature, 0, 0]], dtype=np.int8), threshold=np.array([[threshold, 0, 0]], dtype=np.float32),
        left=np.array([[1, 1, 2]], dtype=np.int8), right=np.array([[2, 1, 2]], dtype=np.int8),
        value=np.array([[0, low, high]], dtype=np.float32),
    )  # fmt: skip


def forest(trees, rising):
    ends = ((0, 12), (6, 14), (6, 14), (0, 9), (0, 9), (0, 4), (0, 6))
    nodes = tuple(np.array(pair, dtype=float) for pair in ends)
    return Forest(trees, nodes=nodes, sm_count=132.0, sigmas=(0.1,) * 4, copies=1.0, l2_kept_bytes=1.0, rising=rising)


def test_what_trees_say_stays_within_the_band_of_what_never_falls():
    work = WorkTable.of([expert(2.0**exponent) for exponent in range(13)])
    flat = Rising(stump(6.5, 1.0, 2.0), slope=0.0)  # ln µs: 1, and 2 from 128 tokens on
    held, _, _ = forest(stump(3.5, 0.9, -0.9), flat).evaluate(work, lambda table: np.exp(1.0) * np.ones(table.count))
    assert held == pytest.approx([BAND] * 4 + [-BAND] * 3 + [1 - BAND] * 6)


def test_a_share_of_the_form_rises_with_it():
    x = coordinates("moe", WorkTable.of([expert(64.0)]))
    rising = Rising(stump(0.5, 0.25, 0.5, feature=7), slope=0.8)
    assert rising.ln_us(x, np.array([0.4])) == pytest.approx([0.8 * 0.4 + 0.25])
    assert rising.ln_us(x, np.array([0.6])) == pytest.approx([0.8 * 0.6 + 0.5])


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(*(st.floats(low, high) for low, high in ((0, 15), (6, 15), (6, 15), (0, 8), (0, 9), (0, 4), (0, 6)))),
    st.tuples(*(st.floats(0, 3) for _ in range(4))),
    st.floats(0, 5),
)
def test_what_rising_trees_read_never_falls_as_sizes_grow(sizes, more, form_ln):
    smaller = np.array(sizes)[:, None]
    larger = smaller + np.array([*more, 0, 0, 0])[:, None]
    one, other = rising_features(smaller, np.array([form_ln])), rising_features(larger, np.array([form_ln + 0.1]))
    assert (other >= one - 1e-5).all()


def test_a_forest_is_the_same_after_it_was_written():
    before = forest(stump(3.5, 0.5, -0.5), Rising(stump(6.5, 1.0, 2.0), slope=0.6))
    after = from_json(to_json(before))
    assert after.rising.slope == 0.6
    for one, other in ((before.trees, after.trees), (before.rising.trees, after.rising.trees)):
        for name in ("feature", "threshold", "left", "right", "value"):
            assert (getattr(one, name) == getattr(other, name)).all()


def test_a_size_that_was_measured_stays_what_it_is():
    """Features jump at whole tiles: 3.0000000001 of them would be four."""
    x = np.log2(np.array([[192.0], [2880.0], [48.0], [24.0], [24.0], [8.0], [1.0]]))
    share_of_experts, share_of_a_tile = features("moe", x, 132.0)[[7, 12], 0]
    assert (share_of_experts, share_of_a_tile) == (0, 1)


def test_experts_hit_and_the_busiest_one_are_sizes_of_a_forest():
    even, fewer, skewed = (
        coordinates("moe", WorkTable.of([replace(expert(64.0), **told)]))[:, 0]
        for told in ({}, {"experts_hit": 16.0}, {"experts_hit": 16.0, "rows_busiest_expert": 128.0})
    )
    hit, skew = AXES["moe"].index("experts_hit"), AXES["moe"].index("skew")
    assert even[hit] == pytest.approx(np.log2(64), abs=0.01)
    assert (fewer[hit], fewer[skew]) == pytest.approx((4, 0))
    assert (skewed[hit], skewed[skew]) == pytest.approx((4, 2))


@pytest.mark.parametrize("key", sorted(FORESTS), ids=" ".join)
def test_what_holds_a_shipped_forest_never_falls(key):
    form, variant, gpu = key
    group = CONSTANTS.forms[form][variant][f"gpu:{gpu}"]
    random = np.random.default_rng(3)
    smaller = [
        expert(*np.exp2(random.uniform((0, 7, 7), (13, 13, 13))), experts=experts, topk=topk)
        for experts, topk in ((8, 2), (64, 8), (128, 8), (256, 8)) for _ in range(60)
    ]  # fmt: skip
    grown = [
        Work(
            family=w.family, math=w.math, m=w.m * a, n=w.n * b, k=w.k * c, experts=w.experts, topk=w.topk
        )
        for w, (a, b, c) in zip(smaller, random.uniform(1, 2, (len(smaller), 3)), strict=True)
    ]  # fmt: skip
    ln = []
    for works in (smaller, grown):
        table = WorkTable.of(works)
        form_ln = np.log(form_us_as_sold(CONSTANTS, form, group.parameters, gpu, table))
        ln.append(FORESTS[key].rising.ln_us(coordinates(form, table), form_ln))
    assert (ln[1] >= ln[0] - 1e-9).all()
