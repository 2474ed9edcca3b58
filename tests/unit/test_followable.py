"""The rows that a function which hardly falls can follow: as many as possible, and none that contradicts another."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.simworker.calibration.followable import followable

BAND = 0.09


def contradict(x, y, one, other):
    return bool((x[:, one] <= x[:, other]).all() and y[one] - y[other] > BAND)


def test_a_row_out_of_line_is_left_out():
    x = np.log2([[1.0, 2.0, 4.0, 8.0, 16.0]])
    assert followable(x, np.log([10.0, 11.0, 30.0, 13.0, 14.0]), BAND).tolist() == [True, True, False, True, True]
    assert followable(x, np.log([10.0, 9.5, 9.4, 9.3, 9.2]), BAND).all()  # falls by less than the band


def test_sizes_of_which_neither_is_the_greater_do_not_contradict():
    x = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert followable(x, np.array([5.0, 1.0]), BAND).all()


@settings(deadline=None, max_examples=120)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=9))
def test_it_is_a_largest_set_without_contradiction(rows):
    x, y = np.array([row[:2] for row in rows], dtype=float).T, np.array([row[2] for row in rows]) * 0.05
    kept = np.flatnonzero(followable(x, y, BAND))
    assert not any(contradict(x, y, a, b) or contradict(x, y, b, a) for a, b in combinations(kept, 2))
    for count in range(len(kept) + 1, len(rows) + 1):
        for some in combinations(range(len(rows)), count):
            assert any(contradict(x, y, a, b) or contradict(x, y, b, a) for a, b in combinations(some, 2))
