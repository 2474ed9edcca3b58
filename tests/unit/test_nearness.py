"""What is said of errors where nothing was measured: the nearest GPU that was, and how often intervals held."""

from __future__ import annotations

import pytest
from cascade_schemas.gpu import load_gpu, parse_config

from services.runtime.nearness import known_errors
from services.simworker.calibration.accuracy_map import accuracy_map

MAP = {
    "sections": [
        {
            "tables": [
                {
                    "columns": ["op", "variant", "GPU", "rows", "n", "mean"],
                    "rows": [
                        ["gemm", "bf16", "h100_sxm", "serving", 10, 50.0],
                        ["gemm", "bf16", "h100_sxm", "all", 100, 4.0],
                        ["gemm", "fp8", "h100_sxm", "all", 300, 8.0],
                        ["decode", "kv16", "h100_sxm", "all", 50, 3.0],
                        ["gemm", "bf16", "l40s", "all", 100, 9.0],
                    ],
                },
                {
                    "columns": ["op", "source", "target", "n", "mean", "covered"],
                    "rows": [["gemm", "a40", "l40s", 7, 1.0, 1.0]],
                },
                {
                    "columns": ["op", "variant", "GPU", "unknown", "n", "mean"],
                    "rows": [["gemm", "bf16", "h100_sxm", "class", 1000, 400.0]],
                },
                {
                    "columns": ["op", "class", "n", "covered"],
                    "rows": [["gemm", "wgmma", 1000, 76.0], ["attention_decode", "wgmma", 500, 80.0]],
                },
            ]
        }
    ]
}


def known(gpu, families):
    (found,) = known_errors({"c": gpu}, families, MAP)
    return found


def test_a_gpu_that_was_measured_stands_for_itself():
    found = known(load_gpu("h100_sxm"), {"gemm": 5e6})
    assert (found["nearest"], found["kin"]) == ("h100_sxm", "same")
    assert found["mean_ape"] == pytest.approx((100 * 4 + 300 * 8) / 400 / 100)
    assert found["row_count"] == 400
    assert (found["coverage"], found["coverage_row_count"]) == (0.76, 1000)


@pytest.mark.parametrize(
    ("gpu", "nearest", "kin"),
    [
        ("h200_sxm", "h100_sxm", "same_die"),
        ("h100_sxm:dram_gbps=6000", "h100_sxm", "same_die"),
        ("rtx_4090", "l40s", "same_capability"),
        ("b200_sxm", "h100_sxm", "other_class"),
    ],
)
def test_one_that_was_not_is_told_of_the_nearest(gpu, nearest, kin):
    found = known(parse_config(gpu).gpu, {"gemm": 1.0})
    assert (found["nearest"], found["kin"]) == (nearest, kin)


def test_families_count_by_the_time_they_take():
    found = known(load_gpu("h100_sxm"), {"gemm": 1e6, "attention_decode": 3e6, "norm": 9e6, "of the future": 1e6})
    assert found["mean_ape"] == pytest.approx((0.07 * 1 + 0.03 * 3) / 4), "no row-wise kernel was measured here"
    assert found["coverage"] == pytest.approx((0.76 * 1 + 0.80 * 3) / 4)
    assert found["row_count"] == 450


def test_nothing_measured_is_said_as_nothing():
    found = known(load_gpu("h100_sxm"), {"mla": 1e6})
    assert (found["mean_ape"], found["row_count"], found["coverage"]) == (None, 0, None)


def test_the_shipped_map_knows_every_op_of_a_dense_model():
    families = {"gemm": 6.0, "attention_decode": 2.0, "attention_prefill": 1.0, "norm": 1.0}
    for found in known_errors(
        {name: load_gpu(name) for name in ("h100_sxm", "l4", "mi300x")}, families, accuracy_map()
    ):
        assert found["nearest"]
        assert 0 < found["mean_ape"] < 1
        assert found["row_count"] > 1000
    (h100,) = known_errors({"c": load_gpu("h100_sxm")}, families, accuracy_map())
    assert 0.5 < h100["coverage"] < 1
