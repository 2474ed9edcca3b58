"""Functions that never fall: against scipy's along one axis, and the definition along several."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import isotonic_regression

from services.simworker.simulators.analytic.isotonic import growing

VALUES = st.floats(-3, 3, allow_nan=False, width=32)


@given(arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=VALUES))
@settings(max_examples=60, deadline=None)
def test_along_one_axis_it_is_the_isotonic_regression(values):
    expected = np.array([isotonic_regression(line).x for line in values])
    assert growing(values, [1]) == pytest.approx(expected, abs=1e-9)


@given(arrays(np.float64, st.tuples(*[st.integers(1, 5)] * 3), elements=VALUES))
@settings(max_examples=60, deadline=None)
def test_along_several_axes_it_never_falls(values):
    fit = growing(values, [0, 2])
    assert (np.diff(fit, axis=0) >= 0).all()
    assert (np.diff(fit, axis=2) >= 0).all()


def test_what_never_falls_stays_as_it_is():
    values = np.add.outer(np.arange(5.0), np.arange(4.0))
    assert growing(values, [0, 1]) == pytest.approx(values)


def test_one_slow_point_pulls_its_neighbours_less_than_a_running_maximum_would():
    values = np.arange(40.0)
    values[10] = 30.0
    assert growing(values, [0])[:10] == pytest.approx(values[:10])
    assert growing(values, [0])[31:] == pytest.approx(values[31:])
    assert growing(values, [0])[12] < (12 + 30) / 2
