"""What a GPU is, and what a user may write to change one."""

import csv
import os
import re
from pathlib import Path

import pytest
from cascade_schemas import gpu as gpu_module
from cascade_schemas.gpu import (
    GpuSpec,
    InvalidConfig,
    UnknownGpu,
    aliases,
    known_gpus,
    load_gpu,
    match_device,
    override_names,
    parse_config,
)

SHARED = Path(os.environ.get("CASCADE_SHARED", Path(__file__).parents[2].parent / "shared"))
GPU_FILES = sorted((Path(gpu_module.__file__).parent / "gpus").glob("*.toml"))
# Rows of the reference table that are deliberately no GPU of ours.
NOT_OURS = {"P100-PCIE-16GB", "P4", "H800-SXM5-80GB", "Arc-Pro-B60"}


def test_every_gpu_of_the_design_is_known():
    ids = """
        v100_sxm_32gb v100_pcie_32gb t4 a100_sxm_40gb a100_sxm_80gb a100_pcie_40gb a100_pcie_80gb a40 rtx_a6000 rtx_3090
        rtx_4090 l4 l40s h100_sxm h100_pcie h100_nvl h200_sxm gh200 b200_sxm gb200 b300_sxm gb300 rtx_pro_6000 mi250
        mi300x
    """
    assert list(known_gpus()) == sorted(ids.split())


@pytest.mark.parametrize("file", GPU_FILES, ids=lambda f: f.stem)
def test_every_number_names_its_source(file):
    numbers = [line for line in file.read_text(encoding="utf-8").splitlines() if re.match(r"\w+ = [\[\d]", line)]
    numbers = [line for line in numbers if not line.startswith("aliases")]
    assert len(numbers) >= 17
    for line in numbers:
        assert re.search(r"  # \S.{8,}", line), f"{file.name}: no source on {line!r}"


@pytest.mark.parametrize("gpu", known_gpus())
def test_a_gpu_is_found_by_every_spelling(gpu):
    for name in (gpu, gpu.upper(), load_gpu(gpu).name, *aliases(gpu)):
        assert load_gpu(name).gpu == gpu


@pytest.mark.skipif(not (SHARED / "data/silicon/gpus.csv").exists(), reason="needs the shared reference data")
def test_the_spellings_and_datasheet_figures_of_the_reference_table_agree():
    for row in csv.DictReader((SHARED / "data/silicon/gpus.csv").open(encoding="utf-8")):
        if row["gpu"] in NOT_OURS:
            continue
        gpu = load_gpu(row["gpu"])
        assert gpu.sm_count == int(row["sm_count"])
        assert gpu.boost_hz == int(row["boost_mhz"]) * 10**6
        assert gpu.dram_bytes_per_s == int(row["hbm_gbps"]) * 10**9
        assert gpu.bf16_flop_per_s == pytest.approx(float(row["fp16_tc_tflops"]) * 1e12)
        assert gpu.l2_bytes == int(row["l2_mib"]) * 2**20
        assert gpu.tdp_w == int(row["tdp_w"])


def test_an_unknown_gpu_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UnknownGpu, match=r"'b9000'.*a100_sxm_80gb.*h100_sxm"):
        load_gpu("b9000")


@pytest.mark.parametrize(
    ("gpu", "programming_class"),
    [("t4", "mma_sync"), ("a40", "mma_sync"), ("rtx_pro_6000", "mma_sync"), ("gh200", "wgmma"), ("gb300", "tcgen05"),
     ("mi300x", "mfma")],
)  # fmt: skip
def test_the_programming_class_follows_from_the_compute_capability(gpu, programming_class):
    assert load_gpu(gpu).programming_class == programming_class


@pytest.mark.parametrize(
    ("device", "facts", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", {}, "h100_sxm"),
        ("NVIDIA A100-SXM4-80GB", {"sm_count": 108, "dram_bytes": 85_097_971_712}, "a100_sxm_80gb"),
        ("NVIDIA A100", {"sm_count": 108, "dram_bytes": 42_298_834_944, "compute_capability": (8, 0)}, "a100_sxm_40gb"),
        ("NVIDIA H100", {"sm_count": 114, "dram_bytes": 85_024_112_640, "compute_capability": (9, 0)}, "h100_pcie"),
        ("NVIDIA B200", {"sm_count": 148}, "b200_sxm"),
        ("NVIDIA B200", {"sm_count": 20}, None),
        ("AMD Instinct MI300X", {}, "mi300x"),
        ("Intel Xeon", {}, None),
        ("", {}, None),
    ],
)
def test_a_profiler_device_is_matched_by_name_and_facts(device, facts, gpu):
    match = match_device(device, **facts)
    assert (match.gpu if match else None) == gpu


def test_a_config_is_a_gpu_with_overrides_and_replicas():
    config = parse_config("H100 SXM:dram_gbps=6000, sm=160*2")
    assert (config.gpu.gpu, config.gpu.dram_bytes_per_s, config.gpu.sm_count) == ("h100_sxm", 6 * 10**12, 160)
    assert (config.replicas, config.label) == (2, "h100_sxm:dram_gbps=6000,sm=160")
    assert re.fullmatch("[0-9a-f]{16}", config.config_id)


def test_more_sms_and_clock_scale_the_rates_of_the_sms_and_no_others():
    h100, wide = load_gpu("h100_sxm"), parse_config("h100_sxm:sm=264,clock_ghz=3.96").gpu
    for rate in ("fp64", "fp32", "tf32", "bf16", "fp8", "int8", "fp4"):
        assert wide.flop_per_s(rate) == pytest.approx(4 * h100.flop_per_s(rate))
    assert wide.l2_bytes_per_s == 4 * h100.l2_bytes_per_s
    assert (wide.dram_bytes_per_s, wide.link_bytes_per_s) == (h100.dram_bytes_per_s, h100.link_bytes_per_s)


def test_a_given_rate_stands_whatever_the_order():
    one, other = parse_config("h100_sxm:fp8_tflops=3000,sm=66"), parse_config("h100_sxm:sm=66,fp8_tflops=3000")
    assert one.gpu == other.gpu
    assert one.gpu.fp8_flop_per_s == 3000 * 10**12


def test_equal_chips_have_one_config_id_however_they_were_written():
    assert parse_config("h100_sxm:dram_gbps=3350*4").config_id == parse_config("h100").config_id
    assert parse_config("h100_sxm:dram_gbps=3351").config_id != parse_config("h100").config_id


@pytest.mark.parametrize("name", sorted({*override_names()} - {"smem_kib"}))
def test_every_override_changes_the_chip(name):
    assert parse_config(f"h100_sxm:{name}=7").gpu != parse_config("h100_sxm").gpu


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h100_sxm:bandwidth=6000", "'bandwidth'.*dram_gbps"),
        ("h100_sxm:dram_gbps=-1", "dram_gbps=-1"),
        ("h100_sxm:dram_gbps=nan", "dram_gbps=nan"),
        ("h100_sxm:dram_gbps=inf", "dram_gbps=inf"),
        ("h100_sxm:dram_gbps=6TB", "dram_gbps=6TB"),
        ("h100_sxm:sm=0", "sm=0"),
        ("h100_sxm:sm=1.5", "sm=1.5"),
        ("h100_sxm:sm=1e9", "sm=1e9"),
        ("h100_sxm:sm", "'sm'"),
        ("h100_sxm:sm=1,sm=2", "'sm' is given twice"),
        ("h100_sxm*0", "'0'"),
        ("h100_sxm*many", "'many'"),
    ],
)
def test_an_absurd_config_is_refused_in_one_sentence_with_the_value(text, says):
    with pytest.raises(InvalidConfig, match=says) as error:
        parse_config(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["sm_count", "boost_hz", "dram_bytes_per_s", "l2_bytes", "bf16_flop_per_s"])
def test_a_spec_has_no_zero_or_negative_essential(field):
    for value in (0, -1):
        with pytest.raises(ValueError):
            GpuSpec.model_validate(load_gpu("h100_sxm").model_dump() | {field: value})
