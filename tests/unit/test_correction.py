"""The source's measured times, and what they say about a target."""

import numpy as np
import pytest
from cascade_schemas.gpu import load_gpu, resolve
from hypothesis import given
from hypothesis import strategies as st

from services.kernels.correction import alpha, corrected, relation, sigma_factor
from services.kernels.work import Family

H100, H200, A100, L40S, B200 = (load_gpu(g) for g in ("h100_sxm", "h200_sxm", "a100_sxm_80gb", "l40s", "b200_sxm"))
TIMES = st.floats(1e-3, 1e9)


@given(model=TIMES, measured=TIMES)
def test_the_source_itself_gets_its_measured_time(model, measured):
    assert corrected(model, model, measured, alpha(H100, H100, Family.GEMM)) == pytest.approx(measured)


@given(target=TIMES, source=TIMES, measured=TIMES)
def test_without_alpha_the_model_stands(target, source, measured):
    assert corrected(target, source, measured, 0.0) == pytest.approx(target)


@given(target=TIMES, source=TIMES, measured=TIMES, share=st.floats(0, 0.99))
def test_a_correction_is_at_most_a_factor_of_two_towards_the_residual(target, source, measured, share):
    answer = corrected(target, source, measured, share)
    assert target / 2.0001 <= answer <= target * 2.0001
    assert (answer >= target * 0.999999) if measured >= source else (answer <= target * 1.000001)


def test_arrays_in_arrays_out():
    assert corrected(np.ones(3), np.ones(3), np.full(3, 2.0), np.array([0.0, 0.5, 1.0])) == pytest.approx(
        [1, 2**0.5, 2]
    )


def test_of_simulators_that_run_the_code_only_the_ratio_of_cycles_counts():
    for source, target in ((H100, H200), (A100, L40S), (H100, resolve(H100, {"sm": 100}))):
        assert alpha(source, target, Family.GEMM, runs_code=True) == 1
        assert alpha(source, target, Family.GEMM) < 1
        assert sigma_factor(source, target, Family.GEMM, runs_code=True) == 1
    assert alpha(A100, H100, Family.GEMM, runs_code=True) == 0  # it would not run that code


def test_how_two_gpus_are_related():
    assert relation(H100, H100) == "same"
    assert relation(H100, H200) == "same_die"
    assert relation(H100, load_gpu("h100_pcie")) == "same_capability"
    assert relation(A100, L40S) == "same_class"
    assert relation(H100, B200) == "other_class"
    assert relation(H100, resolve(H100, {"dram_gbps": 6000})) == "same_die"


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("target", [H100, H200, A100, L40S, B200])
def test_alpha_and_what_it_leaves_of_sigma_are_shares(family, target):
    assert 0 <= alpha(H100, target, family) <= 1
    assert 0 < sigma_factor(H100, target, family) <= 1.5


def test_the_nearer_the_chip_the_more_of_the_residual_it_inherits():
    for family in (Family.GEMM, Family.ATTENTION_DECODE, Family.ATTENTION_PREFILL):
        assert alpha(H100, H200, family) >= alpha(A100, L40S, family) >= 0
        assert alpha(H100, H200, family) >= alpha(H100, B200, family)


def test_an_unknown_kernel_is_known_by_its_measurement_alone():
    assert alpha(H100, B200, Family.UNKNOWN) == 1
