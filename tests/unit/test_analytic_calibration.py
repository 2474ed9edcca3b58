"""What the constants were fitted to, and what they must never have seen."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from cascade_schemas.gpu import known_gpus, load_gpu

from services.kernels.work import Family, Work, WorkTable
from services.simworker.calibration.constants import FORMS, levels, shipped_constants
from services.simworker.calibration.tables import SHAPE_COLUMNS, is_left_out, pair_shapes, read_samples, shapes_of
from services.simworker.simulators.analytic.simulator import AnalyticSimulator

SHARED = Path(os.environ.get("CASCADE_SHARED", Path(__file__).parents[2].parent / "shared"))
needs_tables = pytest.mark.skipif(
    not (SHARED / "data/silicon/calibration").exists(), reason="needs the shared reference data (CASCADE_SHARED)"
)
CONSTANTS = Path(__file__).parents[2] / "services/simworker/calibration/constants"


@pytest.fixture(scope="module")
def samples():
    return read_samples(SHARED / "data")


@needs_tables
def test_no_row_that_is_scored_is_fitted(samples):
    assert samples
    for sample in samples:
        assert not (sample.fitted & sample.left_out).any()
        assert not (sample.fitted & sample.scored).any()
        assert 0.1 < sample.left_out.mean() < 0.4 or sample.left_out.size < 60


@needs_tables
@pytest.mark.parametrize("op", ["gemm", "attention_prefill", "attention_decode"])
def test_the_shapes_that_are_fitted_and_the_shapes_of_the_pairs_are_disjoint(samples, op):
    form = {"gemm": "gemm", "attention_prefill": "prefill", "attention_decode": "decode"}[op]
    scored = pair_shapes(SHARED / "data/silicon/pairs_dev.parquet")[op]
    assert len(scored) > 1000
    for sample in samples:
        if sample.form != form:
            continue
        work = sample.take(sample.fitted).work
        if op == "gemm":
            columns = {name: work[name].astype(int) for name in ("m", "n", "k")}
        else:
            columns = {
                "batch": work["sequences"],
                "new_tokens": work["q_longest"],
                "heads": work["heads"],
                "kv_heads": work["kv_heads"],
                "head_dim": work["head_dim"],
                "window_size": work["window"],
                "past_tokens": np.zeros(work.count),
            }
            if op == "attention_decode":  # a window hides the past: those shapes are told by the other test
                whole = work["window"] == 0
                columns = {name: column[whole] for name, column in columns.items()}
                columns["past_tokens"] = work["kv_longest"][whole] - 1
        shapes = set(shapes_of(columns, op))
        assert not shapes & scored
        assert not any(is_left_out(SHAPE_COLUMNS[op], shape) for shape in shapes)


def test_the_rule_is_the_first_byte_of_the_canonical_json():
    assert is_left_out(("m", "n", "k"), (96, 32, 64)) == (
        __import__("hashlib").sha256(b'{"k":64,"m":96,"n":32}').digest()[0] % 5 == 0
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_group_says_what_it_was_fitted_to(form):
    stored = json.loads((CONSTANTS / f"{form}.json").read_text(encoding="utf-8"))
    assert {"data", "script", "fitted_on", "dropped", "units"} <= stored["provenance"].keys()
    for variant, groups in stored["groups"].items():
        for level, group in groups.items():
            where = f"{form} {variant} {level}"
            assert group["rows_fitted"] >= 15, where
            assert group["rows_dropped_left_out"] > 0, where
            assert group["fitted_to"], where
            assert all(np.isfinite(v) and v >= 0 for v in group["parameters"].values()), where
            assert all(0.01 <= s < 3 for s in group["sigmas"]), where


def test_every_gpu_has_constants_of_every_form():
    constants = shipped_constants()
    for gpu in map(load_gpu, known_gpus()):
        for form in (*FORMS, "mixed"):
            _, group = constants.group(form, "any", gpu)
            assert group.parameters


def test_a_measured_gpu_is_predicted_by_its_own_constants_and_others_by_their_kin():
    constants = shipped_constants()
    assert constants.group("gemm", "bf16", load_gpu("h100_sxm"))[1].level == "gpu:h100_sxm"
    assert constants.group("gemm", "bf16", load_gpu("gh200"))[1].level == "cc:9.0"
    assert constants.group("gemm", "bf16", load_gpu("gb300"))[1].level == "cc:10.0"
    assert levels(load_gpu("mi300x"), {})[-1] == "class:mfma"


def test_an_interval_is_wider_where_less_is_known():
    simulator = AnalyticSimulator(1)
    known, kin, work = load_gpu("b200_sxm"), load_gpu("gb200"), Work(family=Family.GEMM, m=512, n=8192, k=8192)
    p = simulator.simulate(WorkTable.of([work]), [known, kin])
    assert p.sigma[1, 0] > p.sigma[0, 0]
    assert p.reasons_of(0)[0].startswith("calibrated:b200_sxm")
    assert p.reasons_of(1)[0].startswith("cc:10.0")


def test_the_constants_load_in_a_tenth_of_a_second():
    shipped_constants.cache_clear()
    began = time.perf_counter()
    shipped_constants()
    assert time.perf_counter() - began < 0.5  # 0.1 on an idle machine
