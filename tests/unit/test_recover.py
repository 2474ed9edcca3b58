import pytest
from cascade_schemas.model import load_model
from cascade_schemas.task import KernelSignature, KernelTask, Operand

from services.kernels.recover import layer_template, recover_step, tokens_of_step
from services.kernels.work_of import work_of

LLAMA = load_model("llama-3.1-8b")


def kernel(name, grid=None, block=None, **facts):
    return KernelTask(signature=KernelSignature(name=name, grid=grid, block=block), **facts)


def ampere(first, second, n, m):
    """A legacy cuBLAS kernel of that tile, launched for y[m, n]."""
    name = f"ampere_fp16_s16816gemm_fp16_{first}x{second}_ldg8_f2f_stages_64x5_tn"
    return kernel(name, (-(-n // first), -(-m // second), 1), (128, 1, 1))


def decode_step(m=64, tp=1, layers=32):
    q, kv, inner = 4096 // tp, 1024 // tp, 14336 // tp
    per_token = ((m, 1, 1), (256, 1, 1))
    layer = [
        kernel("vllm::fused_add_rms_norm_kernel<c10::Half,8>", *per_token),
        ampere(128, 64, q + 2 * kv, m),
        kernel("vllm::rotary_embedding_kernel<c10::Half,true>", *per_token),
        kernel("vllm::reshape_and_cache_flash_kernel<__half,__half>", *per_token),
        kernel("flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128,64,128,4>>", (1, m, 32 // tp), (128, 1, 1)),
        ampere(64, 64, 4096, m),
        kernel("vllm::fused_add_rms_norm_kernel<c10::Half,8>", *per_token),
        ampere(256, 64, 2 * inner, m),
        kernel("vllm::act_and_mul_kernel<c10::Half,&silu>", *per_token),
        ampere(64, 64, 4096, m),
    ]
    return [*layer * layers, ampere(128, 64, 128256 // tp, m)]


def test_tokens_are_the_ctas_of_row_wise_kernels():
    assert tokens_of_step(decode_step(m=48)) == 48
    assert tokens_of_step([kernel("mystery", (7, 1, 1))]) == 0
    assert tokens_of_step([kernel("mystery", tokens=9)]) == 9


def test_a_layers_gemms_are_those_of_the_configuration():
    assert [(s.role, s.n, s.k) for s in layer_template(LLAMA)] == [
        ("qkv", 6144, 4096),
        ("o", 4096, 4096),
        ("gate_up", 28672, 4096),
        ("down", 4096, 14336),
    ]
    assert [(s.role, s.n, s.k) for s in layer_template(LLAMA, tp=8)] == [
        ("qkv", 768, 4096),
        ("o", 4096, 512),
        ("gate_up", 3584, 4096),
        ("down", 4096, 1792),
    ]


@pytest.mark.parametrize("tp", [1, 8])
def test_names_and_grids_of_a_step_are_enough(tp):
    works = [work_of(task) for task in recover_step(decode_step(tp=tp), LLAMA, tp)]
    gemms = [(w.m, w.n, w.k) for w in works if w.family == "gemm"]
    slots = [(64, s.n, s.k) for s in layer_template(LLAMA, tp)]
    assert gemms == slots * 32 + [(64, 128256 // tp, 4096)]
    assert {w.work_from for w in works if w.family == "gemm"} == {"solved"}
    attention = next(w for w in works if w.heads)
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (32 // tp, 8 // tp, 128)
    norm = next(w for w in works if w.family == "norm")
    assert (norm.rows, norm.n) == (64, 4096)


def test_helper_gemms_and_missing_ones_do_not_shift_the_others():
    step = decode_step(layers=2)
    stray = ampere(64, 64, 64, 64)  # something that is no layer of the model
    works = [work_of(task) for task in recover_step([*step[:6], stray, *step[6:9], *step[10:]], LLAMA)]
    sizes = [(w.n, w.k) for w in works if w.family == "gemm" and w.work_from == "solved"]
    qkv, o, gate_up, down = ((s.n, s.k) for s in layer_template(LLAMA))
    assert sizes == [qkv, o, gate_up, qkv, o, gate_up, down, (128256, 4096)]


def test_separate_projections_are_noticed():
    m = 64
    names = [(4096, 4096), (1024, 4096), (1024, 4096)], [(4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
    before, after = ([ampere(64, 64, n, m) for n, _ in sizes] for sizes in names)
    attention = kernel("flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128,128,64,4>>", (1, 1, 32), (128, 1, 1))
    step = [kernel("vllm::rms_norm_kernel<c10::Half>", (m, 1, 1)), *before, attention, *after]
    works = [work_of(task) for task in recover_step(step * 2, LLAMA)]
    assert [(w.n, w.k) for w in works if w.family == "gemm"] == [*names[0], *names[1]] * 2


def test_only_sampled_rows_reach_the_lm_head():
    step = [*decode_step(m=64, layers=1)[:-1], ampere(128, 64, 128256, 4)]
    assert work_of(recover_step(step, LLAMA, sampled_rows=4)[-1]).m == 4


def test_what_a_trace_says_stays():
    said = (Operand(dtype="bf16", shape=(64, 4096)), Operand(dtype="bf16", shape=(4096, 6144)))
    step = decode_step(layers=1)
    step[1] = step[1].model_copy(update={"operands": said, "operands_from": "traced", "op": "aten::mm"})
    assert recover_step(step, LLAMA)[1] == step[1]


def test_sliding_layers_get_their_window():
    oss = load_model("gpt-oss-20b")
    attention = kernel("kernel_unified_attention_2d", (8, 48, 1), (128, 1, 1))
    norm = kernel("vllm::rms_norm_kernel<c10::BFloat16>", (32, 1, 1))
    gemm = kernel("nvjet_tst_64x64_64x16_2x1_v_bz_TNT", (132, 1, 1), (384, 1, 1))
    tasks = recover_step([norm, *[gemm, attention] * 4, gemm], oss)
    assert [t.attributes.get("window", 0) for t in tasks if t.signature == attention.signature] == [128, 0, 128, 0]


def test_an_expert_pair_tells_about_itself_without_a_model():
    hidden = (Operand(dtype="bf16", shape=(888, 3072)), Operand(dtype="bf16", shape=(888, 128)))
    stem = "bmm_{}_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_TN_transOut_{}dynBatch_sm100f"
    gate_up = kernel(
        stem.format("MxE4m3", "swiGlu_"), (8, 342, 1), (576, 1, 1), op="vllm::moe_forward", operands=hidden
    )
    down = kernel(stem.format("Bfloat16", ""), (24, 342, 1), (480, 1, 1), op="vllm::moe_forward", operands=hidden)
    first, second = recover_step([gate_up, down])
    assert first.attributes == {"experts": 128, "topk": 4, "m": 888, "n": 1024, "k": 3072}
    assert second.attributes == {"experts": 128, "topk": 4, "m": 888, "n": 3072, "k": 512}


def test_nothing_is_invented_without_tokens_or_model():
    step = [kernel("mystery", (7, 1, 1)), kernel("nvjet_tst_64x64_64x16_2x1_v_bz_TNT", (132, 1, 1), (384, 1, 1))]
    assert recover_step(step, LLAMA) == step
    assert recover_step(decode_step(layers=1)) == decode_step(layers=1)


RECORDINGS = [
    (["k01"], "gpt-oss-120b", 8, 1),
    (["k02", "k03"], "gpt-oss-20b", 1, 0),
    (["k04"], "gpt-oss-20b", 1, 46),
    (["k05"], "qwen3-8b", 1, 0),
]


@pytest.mark.parametrize(("recordings", "model", "tp", "rows"), RECORDINGS, ids=str)
def test_real_steps_are_solved_as_their_profiler_traced_them(shared, recordings, model, tp, rows):
    """Names, grids and blocks alone give every GEMM, norm and attention the shapes that the recording has."""
    importers = pytest.importorskip("services.ingest.importers")
    folder = shared / "data" / "traces" / "kineto"
    trace = importers.import_trace([path for name in recordings for path in sorted(folder.glob(f"{name}*"))])
    of_kernels = zip(trace.launches.task, trace.launches.is_kernel, strict=True)
    tasks = [trace.tasks[index] for index, is_kernel in of_kernels if is_kernel]
    nothing = {"operands": (), "op": "", "attributes": {}, "operands_from": "none", "tokens": None}
    solved = recover_step([task.model_copy(update=nothing) for task in tasks], load_model(model), tp, rows)
    families = {"gemm", "norm", "rope", "attention_decode", "attention_prefill", "attention_mixed"}
    compared = 0
    for task, again in zip(tasks, solved, strict=True):
        truth, found = work_of(task), work_of(again)
        if truth.family in families and truth.work_from in {"shapes", "solved"}:
            assert (found.m, found.n, found.k, found.heads, found.kv_heads) == (
                truth.m,
                truth.n,
                truth.k,
                truth.heads,
                truth.kv_heads,
            ), task.signature.name
            assert found.flop == truth.flop or truth.window != found.window
            compared += 1
    assert compared > 100
