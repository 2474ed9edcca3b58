"""Three profilers spell one kernel three ways; the canonical name is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingest.names import canonical_name

KINETO = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
NSYS = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>, "
    "std::array<char *, (unsigned long)3>>(int, T2, T3)"
)


def test_kineto_and_nsight_systems_agree():
    assert canonical_name(KINETO) == canonical_name(NSYS)
    assert canonical_name(KINETO) == (
        "at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<float>,std::array<char*,3>>"
    )


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT"),
        (
            "void <unnamed>::softmax_warp_forward<float, (int)6>(T2 *)",
            "(anonymous namespace)::softmax_warp_forward<float,6>",
        ),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, 6>(float*)",
            "(anonymous namespace)::softmax_warp_forward<float,6>",
        ),
        (
            "f<at::TensorIteratorBase &>::[lambda() (instance 3)]::operator ()() const",
            "f<at::TensorIteratorBase&>::{lambda()#3}::operator()",
        ),
        (
            "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, (bool)0>(T13)",
            "internal::gemvx::kernel<int,0>",
        ),
        (
            "std::enable_if<(((8)>(0)))&&x::exists, void>::type vllm::rms<c10::BFloat16, 8>(c10::BFloat16*, int)",
            "vllm::rms<c10::BFloat16,8>",
        ),
        ("_ZN5aiter24add_rmsnorm_quant_kernelE", "_ZN5aiter24add_rmsnorm_quant_kernelE"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("foo(int) [clone .kd]", "foo"),
        ("", ""),
        ("((((", "(((("),
    ],
)
def test_spellings(raw, canonical):
    assert canonical_name(raw) == canonical


@given(st.text(alphabet="abT<>(){}[]:, *&0#'const", max_size=60))
def test_any_text_has_a_name_of_its_own(text):
    name = canonical_name(text)
    assert bool(name) == bool(text)
