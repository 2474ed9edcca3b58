"""Kernel names of real recordings, and of libraries that no recording here has, and what they are.

kernel_names.csv: `seen_in` is the recording (k01 … n04 of shared/data/traces) in which a profiler printed the name,
here in its canonical spelling; empty where the name is written as the library's source spells it.
"""

import csv
import gzip
import json
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from services.ingest.names import canonical_name
from services.kernels.recognise import recognise
from services.kernels.work import Family, Library, Math

NAMES = list(csv.DictReader(Path(__file__).with_name("kernel_names.csv").open(newline="")))


def test_enough_real_names_are_known():
    assert sum(bool(row["seen_in"]) for row in NAMES) >= 300


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row["name"][:60])
def test_a_name_is_what_it_was_found_to_be(row):
    found = recognise(row["name"])
    assert (found.family, found.library, found.kind) == (row["family"], row["library"], row["kind"])
    tile = f"{found.tile_m}x{found.tile_n}" if found.tile_m else ""
    assert tile == row["tile_tokens_x_features"]


def test_nvjet_is_column_major():
    found = recognise("nvjet_sm90_tst_128x24_64x11_2x1_v_bz_TNT")
    assert (found.tile_n, found.tile_m, found.tile_k) == (128, 24, 64)  # 24 tokens
    assert (found.math, found.a_bits, found.out_bits, found.programming_class) == (Math.BF16, 16, 16, "wgmma")
    assert found.is_persistent
    assert recognise("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT").programming_class == "tcgen05"
    assert recognise("nvjet_qqtst_128x256_128x6_2x1_v_bz_TNN").math == Math.FP8


def test_mixed_formats_of_expert_gemms_are_read():
    gate_up = recognise("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_TN_transOut_swiGlu_dynBatch_sm100f")
    assert (gate_up.family, gate_up.a_bits, gate_up.w_bits, gate_up.out_bits) == (Family.MOE_GEMM, 8, 4, 8)
    assert (gate_up.tile_n, gate_up.tile_m, gate_up.is_gated) == (128, 16, True)
    ogs = recognise("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu")
    assert (ogs.a_bits, ogs.w_bits, ogs.tile_m, ogs.tile_n, ogs.is_gated) == (16, 4, 16, 128, True)


def test_compiled_in_shapes_are_read():
    found = recognise(
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 7168u, 1u, 64u, 128u, 128u, 128u>"
    )
    assert (found.n, found.k, found.tile_m, found.tile_n) == (4096, 7168, 64, 128)


def test_every_profilers_spelling_is_read_alike():
    kineto = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >("
        "int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
    )
    nsys = (
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, "
        "(unsigned long)1>>(int, T2, T3)"
    )
    ncu = "void vectorized_elementwise_kernel<4, FillFunctor<float>, array<char *, 1>>(int, T2, T3)"
    mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
    found = {(r.family, r.kind, r.a_bits, r.elements_per_thread) for r in map(recognise, (kineto, nsys, ncu, mangled))}
    assert found == {(Family.COPY, "fill", 32, 4)}


@pytest.mark.parametrize(
    "row", [row for row in NAMES if "mem" not in row["name"].lower()], ids=lambda row: row["name"][:60]
)
def test_the_canonical_spelling_of_a_canonical_name_says_the_same(row):
    assert recognise(canonical_name(row["name"])) == recognise(row["name"])


@pytest.mark.parametrize("name", ["", " ", "()", "<", "_Z", "Kernel", "x" * 100_000, "void f<" * 300, "(" * 2000])
def test_any_text_is_answered(name):
    assert recognise(name).family == Family.UNKNOWN


def test_derived_names_are_our_own():
    found = recognise("derived::gemm<bf16>")
    assert (found.family, found.math, found.library) == (Family.GEMM, Math.BF16, Library.UNKNOWN)
    assert recognise("derived::no_such_kernel<bf16>").family == Family.UNKNOWN


def unknown_share(durations):
    total = sum(durations.values())
    return sum(time for name, time in durations.items() if recognise(name).family == Family.UNKNOWN) / total


def kineto_durations(path):
    raw = path.read_bytes()
    events = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)["traceEvents"]
    times = Counter()
    for event in events:
        if str(event.get("cat", "")).lower() == "kernel":
            times[event["name"]] += float(event["dur"])
    return times


@pytest.mark.parametrize(
    "recording", ["k01", "k02", "k03", "k04_", "k04b", "k05_", "k05b", "k07", "k08", "k11", "k12", "k13", "k14", "k15"]
)
def test_nearly_all_gpu_time_of_a_recording_is_known(shared, recording):
    (path,) = (shared / "data" / "traces" / "kineto").glob(f"{recording}*.gz")
    assert unknown_share(kineto_durations(path)) < 0.02


@pytest.mark.parametrize("recording", ["n03_*_decode_*", "n03_*_prefill_*", "n04_*_kernels"])
def test_nearly_all_gpu_time_of_a_summary_is_known(shared, recording):
    (path,) = (shared / "data" / "traces" / "nsys").glob(f"{recording}.csv".replace("_.csv", "_*.csv"))
    rows = list(csv.DictReader(path.open(newline="")))
    name, time = ("Name", "Total Time (ns)") if "Name" in rows[0] else ("kernel_name", "total_time_ns")
    times = Counter()
    for row in rows:
        times[row[name]] += float(row[time])
    assert unknown_share(times) < 0.02


def test_nearly_all_gpu_time_of_an_nsys_database_is_known(shared, tmp_path):
    (packed,) = (shared / "data" / "traces" / "nsys").glob("n01*.gz")
    database = tmp_path / "n01.sqlite"
    database.write_bytes(gzip.decompress(packed.read_bytes()))
    times = Counter()
    rows = sqlite3.connect(database).execute(
        "SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"
    )
    for name, time in rows:
        times[name] += time
    assert unknown_share(times) < 0.02
