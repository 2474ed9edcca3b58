"""GPUs predicted as if they had never been measured, and what thirty measured GEMMs would bring."""

import numpy as np
import pytest

from services.simworker.calibration.constants import shipped_constants
from services.simworker.calibration.fit import merged, residuals_of
from services.simworker.calibration.measure import fit_sample
from services.simworker.calibration.sweep import sweep_points
from services.simworker.calibration.tables import read_samples
from services.simworker.calibration.unseen import constants_without, unseen

# Median absolute error of serving rows, as a ratio, rounded up: the GPU unknown, its relative of the same die known.
RELATIVE_KNOWN = {"gemm": 0.055, "decode": 0.04, "prefill": 0.05}
# No GPU of the class known: 9 % for GEMM and 15 % on GDDR, 7 % for decode, 12 % for prefill and 25 % on GDDR.
CLASS_UNKNOWN = {
    ("gemm", "a100_sxm_80gb"): 0.09, ("gemm", "h100_sxm"): 0.09, ("gemm", "h200_sxm"): 0.09, ("gemm", "b200_sxm"): 0.09,
    ("gemm", "l40s"): 0.15, ("decode", "a100_sxm_80gb"): 0.07, ("decode", "h100_sxm"): 0.07, ("decode", "h200_sxm"): 0.07,
    ("decode", "b200_sxm"): 0.07, ("decode", "l40s"): 0.07, ("prefill", "a100_sxm_80gb"): 0.12,
    ("prefill", "h100_sxm"): 0.12, ("prefill", "h200_sxm"): 0.12, ("prefill", "b200_sxm"): 0.12, ("prefill", "l40s"): 0.25,
}  # fmt: skip


@pytest.fixture(scope="module")
def samples(shared):
    return read_samples(shared / "data")


@pytest.fixture(scope="module")
def rows(samples):
    shown = (("gemm", "bf16"), ("decode", "kv16"), ("prefill", "kv16"))
    return unseen(shipped_constants(), [s for s in samples if s.form == "rowwise" or (s.form, s.variant) in shown])


def test_a_relative_of_the_same_die_is_nearly_as_good_as_a_measurement(rows):
    hopper = [r for r in rows if r["gpu"] in {"h100_sxm", "h200_sxm"} and r["form"] in RELATIVE_KNOWN]
    found = {(r["form"], r["gpu"]): r for r in hopper if r["unknown"] == "GPU"}
    assert len(found) == 6
    for (form, gpu), row in found.items():
        assert row["by"] == "cc:9.0", (form, gpu)
        assert row["median"] <= RELATIVE_KNOWN[form], row


def test_without_its_class_a_gpu_is_within_what_was_reached(rows):
    found = {(r["form"], r["gpu"]): r for r in rows if r["unknown"] == "class"}
    for key, limit in CLASS_UNKNOWN.items():
        assert found[key]["median"] <= limit, found[key]


def test_intervals_of_another_class_are_wide_enough(rows):
    for form in ("gemm", "decode", "prefill"):
        some = [r for r in rows if r["unknown"] == "class" and r["form"] == form]
        assert 0.6 <= np.average([r["covered"] for r in some], weights=[r["n"] for r in some]) <= 0.97, form


@pytest.mark.parametrize(("gpu", "limit"), [("a100_sxm_80gb", 0.06), ("l40s", 0.07), ("b200_sxm", 0.055)])
def test_thirty_gemms_of_an_unknown_gpu_tell_most_of_it(samples, gpu, limit):
    measured = merged(s for s in samples if (s.form, s.variant) == ("gemm", "bf16") and s.resolution_us < 20)
    own = next(s for s in measured if s.gpu == gpu)
    without = constants_without(shipped_constants(), own, measured, [s for s in measured if s.gpu != gpu])
    rows = own.take(own.fitted)
    sizes = np.log2(np.array([rows.columns[name] for name in "mnk"], dtype=float))
    nearest = {
        int(np.abs(sizes - np.log2([[p.sizes[name]] for name in "mnk"])).sum(axis=0).argmin())
        for p in sweep_points()
        if p.op == "gemm"
    }
    fitted = fit_sample(rows.take(np.array(sorted(nearest))), without)
    assert fitted is not None
    held = own.take((own.left_out | own.scored) & own.cold)
    errors = residuals_of("gemm", without, fitted.parameters, held)[0]
    assert np.median(np.abs(np.expm1(errors))) <= limit
