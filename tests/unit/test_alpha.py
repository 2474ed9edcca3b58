"""How much of a source's residual a target inherits, from rows that the tables did not see."""

import json

import numpy as np
import pytest

from services.kernels.work import Family
from services.simworker.calibration.alpha import write_correction
from services.simworker.calibration.spread import LeftOut

ROWS = 400


def left(residuals, x):
    return LeftOut(residuals, np.full(ROWS, 50.0), np.arange(ROWS) % 2 == 0, x, np.arange(ROWS) % 5)


@pytest.mark.parametrize(("shared", "expected"), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
def test_alpha_is_the_share_that_two_gpus_have_in_common(tmp_path, shared, expected):
    random = np.random.default_rng(3)
    x = random.permutation(np.arange(3 * ROWS, dtype=float)).reshape(3, ROWS)
    of_source = random.normal(0, 0.1, ROWS)
    other_order = random.permutation(ROWS)
    of_target = shared * of_source + random.normal(0, 0.002, ROWS)
    path = tmp_path / "correction.json"
    rows = {
        ("gemm", "bf16", "h100_sxm"): left(of_source, x),
        ("gemm", "bf16", "h200_sxm"): left(of_target[other_order], x[:, other_order]),
        ("gemm", "fp8", "h200_sxm"): left(random.normal(0, 1, ROWS), x),  # another variant says nothing about it
    }
    write_correction(path, rows, ["gemm"])
    found = json.loads(path.read_text())
    assert found["alpha"][Family.GEMM]["same_die"] == pytest.approx(expected, abs=0.051)
    assert found["alpha"][Family.GEMM]["other_class"] == 0  # no two GPUs of different classes: nothing is known
    assert found["sigma_factor"][Family.GEMM]["same_die"] <= 1


def test_what_is_said_of_other_forms_is_kept(tmp_path):
    path = tmp_path / "correction.json"
    path.write_text(json.dumps({"alpha": {"mla": {"same_die": 0.3}}, "sigma_factor": {"mla": {"same_die": 0.9}}}))
    write_correction(path, {}, ["gemm"])
    found = json.loads(path.read_text())
    assert found["alpha"]["mla"] == {"same_die": 0.3}
    assert found["sigma_factor"]["mla"] == {"same_die": 0.9}
    assert found["alpha"][Family.UNKNOWN]["other_class"] == 1
