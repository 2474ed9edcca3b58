from math import ceil, isfinite

import pytest
from cascade_schemas.task import KernelSignature, KernelTask, Operand
from hypothesis import given
from hypothesis import strategies as st

from services.kernels.work import Family, Library, Math, Work, WorkFrom, WorkTable
from services.kernels.work_of import experts_hit, qk_pairs, work_of
from tests.unit.test_derive import LLAMA, OPT, derive_step, recording


def task(name, op="", *shapes: tuple[int, ...], dtype="bf16", grid=None, block=None, dtypes=None, **facts):
    dtypes = dtypes or [dtype] * len(shapes)
    return KernelTask(
        signature=KernelSignature(name=name, grid=grid, block=block),
        op=op,
        operands=tuple(Operand(dtype=d, shape=s) for d, s in zip(dtypes, shapes, strict=True)),
        operands_from="traced" if shapes else "none",
        **facts,
    )


def test_a_gemm_multiplies_and_moves_its_three_matrices():
    work = work_of(task("nvjet_tst_128x24_64x11_2x1_v_bz_TNT", "aten::mm", (24, 4096), (4096, 6144)))
    assert (work.m, work.n, work.k) == (24, 6144, 4096)
    assert work.flop == 2 * 24 * 6144 * 4096
    assert work.read_bytes == 2 * (24 * 4096 + 6144 * 4096)
    assert work.write_bytes == 2 * 24 * 6144
    assert (work.math, work.library, work.work_from) == (Math.BF16, Library.NVJET, WorkFrom.SHAPES)
    assert (work.tile_m, work.tile_n) == (24, 128)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("aten::mm", [(7, 64), (64, 96)]),
        ("aten::addmm", [(96,), (7, 64), (64, 96)]),
        ("aten::linear", [(7, 64), (96, 64), (96,)]),
        ("_C::onednn_mm", [(7, 96), (7, 64), (96,)]),
        ("aiter::gemm", [(7, 64), (96, 64)]),
    ],
)
def test_every_spelling_of_a_linear_layer_is_the_same_work(op, shapes):
    work = work_of(task("derived::gemm<bf16>", op, *shapes))
    assert (work.m, work.n, work.k, work.flop) == (7, 96, 64, 2 * 7 * 96 * 64)


def test_a_square_weight_is_read_in_its_ops_order():
    for op in ("aten::mm", "aten::linear"):
        assert work_of(task("derived::gemm<bf16>", op, (7, 64), (64, 64))).n == 64


def test_batched_and_narrow_gemms():
    bmm = work_of(task("nvjet_tst_64x64_64x16_2x1_v_bz_NNT", "aten::bmm", (5, 8, 16), (5, 16, 32)))
    assert (bmm.batch, bmm.flop) == (5, 2 * 5 * 8 * 32 * 16)
    fp8 = work_of(
        task("nvjet_qqtst_128x256_128x6_2x1_v_bz_TNN", "aten::_scaled_mm", (8, 64), (64, 32), dtype="fp8_e4m3")
    )
    assert fp8.math == Math.FP8
    assert (fp8.read_bytes, fp8.write_bytes) == (8 * 64 + 64 * 32, 2 * 8 * 32)
    marlin = work_of(
        task("marlin::Marlin<>", "_C::gptq_marlin_gemm", (8, 4096), (256, 12288), dtypes=["bf16", "int32"])
    )
    assert (marlin.m, marlin.n, marlin.k, marlin.w_bits) == (8, 6144, 4096, 4)
    assert marlin.read_bytes == 2 * 8 * 4096 + 6144 * 4096 / 2


def test_a_split_k_gemm_is_known_by_its_grid():
    # 2,880 / 32 = 90 tiles along n, one along m: 90 CTAs; Tensile's grid counts threads.
    name = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_MI16x16x1_SN"
    one = work_of(task(name, "aten::mm", (32, 4096), (4096, 2880), grid=(90 * 256, 1, 1), block=(256, 1, 1)))
    assert (one.ctas, one.split_k) == (90, 0)
    four = work_of(task(name, "aten::mm", (32, 4096), (4096, 2880), grid=(360 * 256, 1, 1), block=(256, 1, 1)))
    assert four.split_k == 4


def test_a_tile_is_turned_round_where_only_that_fits_the_grid():
    name = "cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x64_32x4_tn_align8>"
    shapes = ((1024, 512), (512, 192))
    as_named = work_of(task(name, "aten::mm", *shapes, grid=(16, 1, 1), block=(128, 1, 1)))
    assert (as_named.tile_m, as_named.tile_n) == (64, 256)  # ceil(192 / 256) × 1024 / 64 = 16
    turned = work_of(task(name, "aten::mm", *shapes, grid=(4, 3, 1), block=(128, 1, 1)))
    assert (turned.tile_m, turned.tile_n) == (256, 64)  # 192 / 64 × 1024 / 256 = 12


def test_without_shapes_a_gemm_is_guessed_from_its_tiles():
    name = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
    work = work_of(task(name, grid=(48, 1, 1), block=(128, 1, 1), tokens=64))
    assert (work.m, work.n, work.work_from) == (64, 48 * 128, WorkFrom.GRID)
    assert work_of(task("nvjet_tst_64x64_64x16_2x1_v_bz_TNT")).work_from == WorkFrom.NOTHING


def test_a_convolution_is_as_much_work_backward_as_forward():
    x, gradient, filters = (32, 256, 56, 56), (32, 64, 56, 56), (64, 256, 1, 1)
    name = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize64x256x8_stage3"
    flop = 2 * 32 * 56 * 56 * 64 * 256
    assert work_of(task(name, "aten::cudnn_convolution", x, filters, dtype="fp32")).flop == flop
    backward = task(name, "aten::convolution_backward", gradient, x, filters, dtype="fp32")
    assert work_of(backward).flop == flop


def test_causal_pairs_are_counted_one_by_one():
    def brute(q, kv, window):
        return sum(min(kv - q + i + 1, window or kv) for i in range(q))

    for q, kv, window in [(1, 9, 0), (9, 9, 0), (4, 9, 0), (4, 9, 3), (9, 9, 3), (2, 9, 8), (5, 6, 5), (1, 1, 1)]:
        assert qk_pairs(q, kv, window) == brute(q, kv, window), (q, kv, window)


ATTENTION = "vllm::unified_attention_with_output"
QKVO = ((259, 32, 64), (259, 8, 64), (259, 8, 64), (259, 32, 64))


def test_attention_adds_up_its_requests():
    name = "flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64,64,256,4>>"
    work = work_of(task(name, ATTENTION, *QKVO, q_lengths=(1, 177, 64, 17), kv_lengths=(514, 1200, 64, 17)))
    pairs = 514 + (177 * 1023 + 177 * 178 / 2) + 64 * 65 / 2 + 17 * 18 / 2
    assert work.family == Family.ATTENTION_MIXED
    assert (work.q_tokens, work.kv_tokens, work.qk_pairs) == (259, 1795, pairs)
    assert work.flop == 4 * 32 * 64 * pairs
    assert work.read_bytes == 2 * (259 * 32 * 64 + 2 * 1795 * 8 * 64)
    assert work.write_bytes == 2 * 259 * 32 * 64
    assert (work.sequences, work.q_longest, work.kv_longest) == (4, 177, 1200)


@pytest.mark.parametrize(
    ("q", "kv", "family"),
    [
        ((1, 1), (9, 9), Family.ATTENTION_DECODE),
        ((4, 4), (12, 9), Family.ATTENTION_DECODE),  # speculated
        ((9, 9), (9, 9), Family.ATTENTION_PREFILL),
        ((1, 9), (9, 9), Family.ATTENTION_MIXED),
    ],
)
def test_lengths_say_what_an_attention_kernel_did(q, kv, family):
    found = work_of(task("kernel_unified_attention_2d", ATTENTION, *QKVO, q_lengths=q, kv_lengths=kv))
    assert found.family == family


def test_a_sliding_window_reads_and_multiplies_less():
    decode = task("kernel_unified_attention_2d", ATTENTION, *QKVO, q_lengths=(1,), kv_lengths=(1000,))
    windowed = decode.model_copy(update={"attributes": {"window": 128}})
    assert work_of(decode).kv_tokens == 1000
    assert (work_of(windowed).kv_tokens, work_of(windowed).qk_pairs, work_of(windowed).window) == (128, 128, 128)


def test_a_batch_of_equal_requests_is_in_the_operands_of_torchs_attention():
    traits = "pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64,128,128,4>>"
    work = work_of(task(traits, "aten::_flash_attention_forward", *[(16, 559, 16, 64)] * 3))
    assert (work.sequences, work.q_tokens, work.qk_pairs) == (16, 16 * 559, 16 * 559 * 560 / 2)
    sdpa = work_of(task("attn_fwd", "aten::_scaled_dot_product_flash_attention", *[(16, 12, 559, 64)] * 3))
    assert (sdpa.heads, sdpa.q_tokens) == (12, 16 * 559)


def test_a_decode_whose_context_nobody_knows_is_only_guessed():
    work = work_of(task("kernel_unified_attention_3d", ATTENTION, *QKVO))
    assert work.work_from == WorkFrom.NOTHING


def test_latent_attention_reads_one_latent_for_all_heads():
    work = work_of(task("flash_fwd_splitkv_mla_kernel", "", (2, 128, 576), q_lengths=(1, 1), kv_lengths=(100, 50)))
    assert work.flop == 2 * 128 * 150 * (576 + 512)
    assert work.read_bytes == 576 * 150 * 2 + 2 * 128 * 576 * 2


def test_experts_hit_when_routing_is_balanced():
    assert experts_hit(8, 2, 1) == pytest.approx(2)
    assert experts_hit(128, 4, 10_000) == pytest.approx(128)
    assert experts_hit(4, 4, 1) == 4


MOE = {"experts": 8, "topk": 2, "m": 16, "n": 28672, "k": 4096}


def test_an_expert_gemm_reads_the_weights_of_the_experts_hit():
    work = work_of(task("derived::moe_gemm<bf16>", "vllm::fused_moe", (32, 4096), attributes=MOE))
    hit = 8 * (1 - 0.75**16)
    assert work.experts_hit == pytest.approx(hit)
    assert work.flop == 2 * 32 * 28672 * 4096
    assert work.read_bytes == pytest.approx(2 * (32 * 4096 + hit * 28672 * 4096))
    assert work.write_bytes == 2 * 32 * 28672


def test_traced_routing_replaces_the_balanced_one():
    skewed = task("fused_moe_kernel", attributes=MOE, tokens_per_expert=(30, 2, 0, 0, 0, 0, 0, 0))
    work = work_of(skewed)
    assert (work.experts_hit, work.rows_busiest_expert, work.rows) == (2, 30, 32)


def test_an_expert_gemm_is_solved_from_its_grid():
    # 888 tokens, 128 experts: 342 row tiles of 16 are needed for the worst routing of 4 experts per token.
    name = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_TN_transOut_swiGlu_dynBatch_sm100f"
    work = work_of(task(name, "vllm::moe_forward", (888, 3072), (888, 128), grid=(8, 342, 1), block=(576, 1, 1)))
    assert (work.m, work.n, work.k, work.experts, work.topk) == (888, 1024, 3072, 128, 4)
    assert work.work_from == WorkFrom.GRID
    # OpenAI's Triton kernels: a flat grid of 38 row tiles by 46 column tiles.
    ogs = "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu"
    work = work_of(task(ogs, "vllm::moe_forward", (32, 3072), (32, 32), grid=(1748, 1, 1), block=(256, 1, 1)))
    assert (work.n, work.topk) == (46 * 128, 4)
    assert work.write_bytes == 32 * 4 * 46 * 128 * 2 / 2  # the gate is multiplied in before writing


M, H = 888, 2880


def test_norms():
    plain = work_of(task("vllm::rms_norm_kernel<c10::BFloat16,8,2>", "_C::rms_norm", (M, H), (M, H), (H,)))
    assert (plain.flop, plain.read_bytes, plain.write_bytes) == (4 * M * H, 2 * (M * H + H), 2 * M * H)
    assert (plain.kind, plain.rows) == ("rms_norm", M)
    name = "vllm::fused_add_rms_norm_kernel<c10::BFloat16,8>"
    fused = work_of(task(name, "_C::fused_add_rms_norm", (M, H), (M, H), (H,)))
    assert (fused.read_bytes, fused.write_bytes) == (2 * (2 * M * H + H), 4 * M * H)
    by_grid = work_of(task(name, grid=(M, 1, 1), block=(256, 1, 1), attributes={"hidden": H}))
    assert (by_grid.rows, by_grid.read_bytes, by_grid.work_from) == (M, fused.read_bytes, WorkFrom.SOLVED)
    layer = work_of(task("vectorized_layer_norm_kernel<float,float>", "aten::layer_norm", (M, H), (H,), (H,)))
    assert layer.read_bytes == 2 * (M * H + 2 * H)


def test_rotary_embedding_turns_q_and_k():
    shapes = ((M,), (M, 4096), (M, 512), (131072, 64))
    dtypes = ["int64", "bf16", "bf16", "bf16"]
    work = work_of(
        task("vllm::rotary_embedding_kernel<c10::BFloat16,true>", "_C::rotary_embedding", *shapes, dtypes=dtypes)
    )
    assert work.flop == 3 * M * (4096 + 512)
    assert work.read_bytes == 2 * M * (4096 + 512) + 2 * M * 64 + 8 * M
    assert work.write_bytes == 2 * M * (4096 + 512)


def test_a_gated_activation_reads_two_and_writes_one():
    work = work_of(task("vllm::act_and_mul_kernel<c10::BFloat16,&silu>", "_C::silu_and_mul", (M, 100), (M, 200)))
    assert (work.flop, work.read_bytes, work.write_bytes) == (5 * M * 100, 2 * M * 200, 2 * M * 100)
    assert work.kind == "silu_mul"


def test_the_kv_cache_is_written_in_its_own_format():
    name = "vllm::reshape_and_cache_flash_kernel<__nv_bfloat16,unsigned char,(vllm::Fp8KVCacheDataType)1>"
    shapes = ((M, 8, 64), (M, 8, 64), (99, 16, 8, 64), (99, 16, 8, 64), (M,))
    dtypes = ["bf16", "bf16", "uint8", "uint8", "int64"]
    work = work_of(task(name, "_C_cache_ops::reshape_and_cache_flash", *shapes, dtypes=dtypes))
    assert (work.read_bytes, work.write_bytes, work.kv_bits) == (2 * 2 * M * 512 + 8 * M, 2 * M * 512, 8)


def test_quantisation_writes_less_than_it_reads():
    name = "vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16,c10::Float8_e4m3fn>"
    work = work_of(task(name, "_C::static_scaled_fp8_quant", (M, 512), (M, 512), dtypes=["fp8_e4m3", "bf16"]))
    assert work.read_bytes == 2 * M * 512
    assert M * 512 <= work.write_bytes <= 1.1 * M * 512


def test_an_embedding_reads_only_the_rows_it_needs():
    work = work_of(task("derived::embedding<bf16>", "aten::embedding", (151936, 1024), (M,), dtypes=["bf16", "int64"]))
    assert (work.read_bytes, work.write_bytes) == (2 * M * 1024 + 8 * M, 2 * M * 1024)


ADD = "at::native::vectorized_elementwise_kernel<4,at::native::CUDAFunctor_add<c10::BFloat16>,std::array<char*,3>>"


def test_elementwise_kernels_broadcast():
    work = work_of(task(ADD, "aten::add", (16, 559, 1024), (16, 559, 1)))
    elements = 16 * 559 * 1024
    assert (work.read_bytes, work.write_bytes) == (2 * (elements + 16 * 559), 2 * elements)


STRIDED = "at::native::elementwise_kernel<128,4,at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float>>>"


def test_only_kernels_of_strided_operands_work_out_where_an_element_lies():
    shapes = (16, 559, 1024), (16, 559, 1)
    assert work_of(task(STRIDED, "aten::add", *shapes)).placed_elements == 16 * 559 * 1024
    assert work_of(task(ADD, "aten::add", *shapes)).placed_elements == 0
    cat = work_of(
        task(
            "at::native::CatArrayBatchedCopy<at::native::OpaqueType<2>,unsigned int,4,64,64>",
            "aten::cat",
            (8, 100),
            (8, 100),
        )
    )
    assert cat.placed_elements == 1600
    aligned = task(
        "at::native::CatArrayBatchedCopy_aligned16_contig<at::native::OpaqueType<2>,1>", "aten::cat", (8, 100)
    )
    assert work_of(aligned).placed_elements == 0


def test_where_the_grid_contradicts_an_ops_operands_the_grid_wins():
    elements = 16 * 559 * 1024
    fits = task(ADD, "aten::add", (16, 559, 1024), (16, 559, 1024), grid=(17888, 1, 1), block=(128, 1, 1))
    assert work_of(fits).work_from == WorkFrom.SHAPES
    other = task(ADD, "vllm::moe_forward", (888, 3072), (888, 128), grid=(17888, 1, 1), block=(128, 1, 1))
    assert (work_of(other).work_from, work_of(other).read_bytes) == (WorkFrom.GRID, 4 * elements)


def test_copies_move_what_they_say():
    memcpy = work_of(task("Memcpy DtoD (Device -> Device)", moved_bytes=2000))
    assert (memcpy.family, memcpy.read_bytes, memcpy.write_bytes) == (Family.COPY, 1000, 1000)
    memset = work_of(task("Memset (Device)", moved_bytes=1000))
    assert (memset.read_bytes, memset.write_bytes) == (0, 1000)
    cast = work_of(task("derived::cast<fp32>", "aten::copy_", (8, 100), (8, 100), dtypes=["fp32", "bf16"]))
    assert (cast.read_bytes, cast.write_bytes) == (1600, 3200)


@pytest.mark.parametrize(
    ("name", "shapes", "collective", "message"),
    [
        ("multimem_all_reduce_kernel<c10::BFloat16,16>", [(2557440,)], "all_reduce", 2 * 2557440),
        ("ncclDevKernel_AllGather_RING_LL", [(25136,), (201088,)], "all_gather", 2 * 201088),
        ("ncclDevKernel_AllGather_RING_LL", [(25136,)], "all_gather", 2 * 25136 * 8),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", [(800,), (100,)], "reduce_scatter", 1600),
        ("ncclDevKernel_SendRecv", [(800,)], "send_recv", 1600),
        ("vllm::cross_device_reduce_1stage<__nv_bfloat16,8>", [(16, 4096)], "all_reduce", 131072),
    ],
)
def test_collectives_exchange_a_buffer(name, shapes, collective, message):
    work = work_of(task(name, "", *shapes, ranks=8))
    assert (work.collective, work.message_bytes, work.ranks) == (collective, message, 8)


def test_fused_kernels_move_their_pointers_tensors():
    pad = work_of(task("triton_poi_fused_constant_pad_nd_moe_forward_0", "triton_poi_fused", (32, 2880), (32, 3072)))
    assert (pad.read_bytes, pad.write_bytes) == (2 * 32 * 2880, 2 * 32 * 3072)
    lookup = work_of(task("triton_poi_fused_0", "triton_poi_fused_0", (32,), (201088, 2880), (32, 2880)))
    assert lookup.read_bytes <= 2 * (32 + 32 * 2880)  # a table is not read whole
    norm = work_of(task("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", tokens=64, attributes={"hidden": 100}))
    assert (norm.read_bytes, norm.write_bytes, norm.work_from) == (4 * 6400, 4 * 6400, WorkFrom.SOLVED)


def test_reductions_softmax_and_sampling_read_their_rows():
    argmax = "at::native::reduce_kernel<512,1,at::native::ReduceOp<float,at::native::ArgMaxOps<float>>>"
    work = work_of(task(argmax, "aten::argmax", (32, 151936), dtype="fp32"))
    assert (work.family, work.read_bytes, work.write_bytes) == (Family.SAMPLING, 4 * 32 * 151936, 8 * 32)
    softmax = work_of(task("cunn_SoftMaxForward<4,float>", "aten::softmax", (32, 1000), dtype="fp32"))
    assert (softmax.read_bytes, softmax.write_bytes) == (128_000, 128_000)
    sort = work_of(task("cub::DeviceRadixSortOnesweepKernel<>", "aten::sort", (32, 1000), dtype="fp32"))
    assert sort.read_bytes == 6 * 128_000


def test_an_unknown_kernel_is_known_by_its_op_or_not_at_all():
    assert work_of(task("mystery", "aten::mm", (8, 16), (16, 32))).flop == 2 * 8 * 16 * 32
    unknown = work_of(task("mystery", grid=(10, 2, 1), block=(64, 2, 1)))
    assert (unknown.family, unknown.work_from) == (Family.UNKNOWN, WorkFrom.NOTHING)
    assert (unknown.ctas, unknown.threads_per_cta) == (20, 128)


@pytest.mark.parametrize("name", [OPT, LLAMA])
def test_every_kernel_of_the_samples_is_known_by_its_shapes(name):
    steps, ops = recording(name)
    tasks = {t.task_id: t for o, s in zip(ops, steps, strict=True) for t in derive_step(o, s)}
    works = {t.signature.name: work_of(t) for t in tasks.values()}
    assert [n for n, w in works.items() if w.family == Family.UNKNOWN or w.work_from != WorkFrom.SHAPES] == []
    assert all(w.read_bytes + w.write_bytes > 0 for w in works.values())
    table = WorkTable.of(list(works.values()))
    assert table.count == len(works)


def test_a_steps_gemms_are_the_models_parameters():
    """A prefill of m tokens multiplies every weight of the layers by every token: 2 · m · parameters."""
    steps, ops = recording(LLAMA)
    works = [work_of(t) for t in derive_step(ops[0], steps[0])]
    gemms = [w for w in works if w.family == Family.GEMM and w.n != 128256]
    assert sum(w.n * w.k for w in gemms) == 16 * (3072 * 2048 + 2048 * 2048 + 16384 * 2048 + 8192 * 2048)
    assert all(w.m == 512 for w in gemms)


NAMES = st.sampled_from(
    [
        "nvjet_tst_64x64_64x16_2x1_v_bz_TNT",
        "kernel_unified_attention_2d",
        "flash_fwd_splitkv_mla_kernel",
        "vllm::rms_norm_kernel<c10::BFloat16,8,2>",
        "vllm::rotary_embedding_kernel<c10::BFloat16,true>",
        "vllm::act_and_mul_kernel<c10::BFloat16,&silu>",
        "vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>",
        "fused_moe_kernel",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
        "vllm::moe::topkGatingSoftmax<8>",
        "ncclDevKernel_AllGather_RING_LL",
        "triton_poi_fused_0",
        "triton_red_fused_mean_rsqrt_0",
        ADD,
        "at::native::reduce_kernel<512,1,at::native::ReduceOp<float>>",
        "indexSelectLargeIndex<c10::BFloat16>",
        "at::native::index_elementwise_kernel<128,4>",
        "CatArrayBatchedCopy<float>",
        "selective_scan_fwd_kernel<>",
        "splitKreduce_kernel<>",
        "reduce_segments",
        "vllm::scaled_fp8_quant_kernel<>",
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nhwc_tilesize64x256x8_x",
        "Memcpy HtoD",
        "mystery",
    ]
)
SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), max_size=5)
DIM3 = st.none() | st.tuples(*[st.integers(1, 4096)] * 3)


@given(
    NAMES, SHAPES, DIM3, DIM3, st.none() | st.integers(0, 9000), st.sampled_from(["", "aten::mm", "vllm::moe_forward"])
)
def test_any_task_has_finite_work_that_is_never_negative(name, shapes, grid, block, tokens, op):
    work = work_of(task(name, op, *shapes, grid=grid, block=block, tokens=tokens))
    numbers = [getattr(work, field) for field in Work.__slots__ if isinstance(getattr(work, field), int | float)]
    assert all(isfinite(number) and number >= 0 for number in numbers)
    assert work == work_of(task(name, op, *shapes, grid=grid, block=block, tokens=tokens))


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(0, 500))
def test_a_longer_context_never_means_less_work(q, history, window):
    assert qk_pairs(q, q + history, window) <= qk_pairs(q, q + history + 1, window)
    assert qk_pairs(q, q + history, window) <= qk_pairs(q + 1, q + 1 + history, window)
    assert ceil(qk_pairs(q, q + history, window)) == qk_pairs(q, q + history, window)
