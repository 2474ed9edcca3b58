"""What the accuracy page says of intervals: how many rows a share is of, and what chance alone would make of it."""

import pytest

from services.simworker.calibration.accuracy import _coverage


def row(source, target="h100_sxm", dtype="bf16", n=100):
    return {"source_gpu": source, "target_gpu": target, "dtype": dtype, "n": n}


def test_a_row_counts_once_however_many_sources_ask_for_it():
    rows = [row("a100_sxm_80gb"), row("l40s", n=80), row("l40s", dtype="fp8", n=50), row("l40s", "h200_sxm", n=25)]
    assert _coverage(0.8, rows)[1:] == (175, pytest.approx((0.8 * 0.2 / 175) ** 0.5))


@pytest.mark.parametrize(("covered", "n", "told"), [
    (0.80, 100, "80.0"),
    (0.72, 100, "72.0"),  # a standard error of 100 rows is 4.5: chance
    (0.72, 2_000, "**72.0**"),
    (0.88, 2_000, "**88.0**"),
])  # fmt: skip
def test_bold_is_what_chance_does_not_explain(covered, n, told):
    assert _coverage(covered, [row("l40s", n=n)])[0] == told
