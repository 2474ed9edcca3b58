"""The nearest function that never falls along some axes: what holds learned factors to "more work is never faster"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.kernels.work import Floats

_SWEEPS = 10  # of alternating projections; twice as many moved no value by more than 0.001


def growing(values: Floats, axes: Sequence[int]) -> Floats:
    """The least-squares fit to `values` (any shape) that never falls along any of `axes`.

    Dykstra's alternating projections, each the pool-adjacent-violators fit of all lines of one axis at once. The
    middle of the running maximum and minimum also never falls, but follows outliers: FP8 on B200 was 9.4 % off with it
    and is 6.7 % with this.
    """
    fit = values
    corrections = [np.zeros_like(values) for _ in axes]
    for _ in range(_SWEEPS if len(axes) > 1 else 1):
        for i, axis in enumerate(axes):
            wanted = fit + corrections[i]
            fit = _along(wanted, axis)
            corrections[i] = wanted - fit
    for axis in axes:  # what the sweeps left over
        fit = np.maximum.accumulate(fit, axis=axis)
    return fit


def _along(values: Floats, axis: int) -> Floats:
    """Min over ends and max over starts of the mean between: the closed form of isotonic regression."""
    lines = np.moveaxis(values, axis, -1)
    count = lines.shape[-1]
    sums = np.concatenate([np.zeros((*lines.shape[:-1], 1)), np.cumsum(lines, axis=-1)], axis=-1)
    fit = np.full(lines.shape, -np.inf)
    for start in range(count):
        means = (sums[..., start + 1 :] - sums[..., start : start + 1]) / np.arange(1, count - start + 1)
        least = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
        np.maximum(fit[..., start:], least, out=fit[..., start:])
    answer: Floats = np.moveaxis(fit, -1, axis)
    return answer
