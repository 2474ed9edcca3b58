"""Comparisons: bars add up to the difference, shared errors cancel, and what cannot be compared says so."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.aggregator.compare import ratio_sigma
from services.gateway import answers
from tests.unit.test_screens_rest import GPUS, page  # noqa: F401 - a fixture


def asked(page, *labels, base=None):  # noqa: F811
    query = [("v", f"{page.run_id}.{page.configs[label]}") for label in labels]
    if base is not None:
        query.append(("base", f"{page.run_id}.{page.configs[base]}"))
    response = page.client.get("/api/compare", params=query)
    assert response.status_code == 200, response.text
    answers.Comparisons.model_validate(response.json())
    return response.json()


def test_bars_add_up_to_the_difference(page):  # noqa: F811
    found = asked(page, *GPUS)
    assert found["metric"] == "tpot"
    assert found["matched_by"] == "launch"
    assert [one["v"] for one in found["comparisons"]] == [f"{page.run_id}.{page.configs[label]}" for label in GPUS[1:]]
    for one in found["comparisons"]:
        assert sum(bar["delta_ns"] for bar in one["waterfall"]) == one["delta_ns"] == one["end_ns"] - one["start_ns"]
        assert one["ratio"]["p10"] <= one["ratio"]["value"] <= one["ratio"]["p90"]


def test_what_no_kernel_explains_is_next_to_nothing(page):  # noqa: F811
    """One stream, the same gaps on both: the bars of the families are the difference."""
    for one in asked(page, *GPUS)["comparisons"]:
        rest = sum(bar["delta_ns"] for bar in one["waterfall"] if bar["label"].startswith("gaps"))
        assert abs(rest) <= 1 + 0.01 * abs(one["delta_ns"])


def test_every_kernel_has_its_own_ratio_against_the_base(page):  # noqa: F811
    found = asked(page, "h100_sxm", "l4", base="l4")
    assert found["base"] == 1
    for kernel in found["kernels"]:
        mine, base = kernel["versions"]
        assert base["ratio"] == {"value": 1, "p10": 1, "p90": 1}
        assert math.isclose(mine["ratio"]["value"], mine["total_ns"] / base["total_ns"])
        assert mine["delta_ns"] == mine["total_ns"] - base["total_ns"]


def test_a_config_against_itself_is_too_close_to_call(page):  # noqa: F811
    (one,) = asked(page, "h100_sxm", "h100_sxm")["comparisons"]
    assert one["ratio"] == {"value": 1, "p10": 1, "p90": 1}
    assert one["verdict"] == "too close to call"


def test_two_configs_of_one_chip_share_their_errors(page):  # noqa: F811
    own, other = asked(page, "h100_sxm", "h100_sxm:dram_gbps=6000", "l4")["comparisons"]
    width = {name: one["ratio"]["p90"] / one["ratio"]["p10"] for name, one in (("own", own), ("other", other))}
    assert width["own"] < width["other"]


def test_what_is_no_version_is_refused(page):  # noqa: F811
    assert "two to 8" in page.refused("/api/compare", 400, v=f"{page.run_id}.{page.configs['l4']}")
    assert "'nothing'" in page.refused("/api/compare", 404, v=["nothing", "nothing"])
    known = f"{page.run_id}.{page.configs['l4']}"
    assert "base='x'" in page.refused("/api/compare", 400, v=[known, known], base="x")


@given(a=st.floats(0, 2), b=st.floats(0, 2), shared=st.floats(0, 1))
def test_shared_errors_only_ever_narrow_a_ratio(a, b, shared):
    alone = ratio_sigma(a, b, 0)
    assert ratio_sigma(a, b, shared) <= alone + 1e-12
    assert alone == pytest.approx(math.hypot(a, b))
    assert ratio_sigma(a, a, 1) == pytest.approx(0, abs=1e-6)
