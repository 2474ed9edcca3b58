"""Curves: through the traced step itself, growing, wider beyond what was traced, and no number where nothing fits."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from cascade_schemas.events import HostProfileRecorded

from services.cli import sample
from services.gateway import answers
from services.kernels.work import Family, Work, WorkTable
from services.runtime.curves import routed_alike
from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions, Refused
from services.runtime.served import ServedEngine
from services.simworker.simulators.catalog import simulators
from tests.factories import kineto_trace, settings
from tests.recordings import recorded_events


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = ServedEngine(Embedded(settings(tmp_path_factory.mktemp("home")), simulators(1), now_ms=wall_clock_ms))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def run(engine):
    path, options = sample("opt-125m")
    trace = engine.import_files([path], options)
    return engine.wait_run(engine.start_run(trace["trace_id"], ["h100_sxm", "l4"], "analytic"))


@pytest.mark.parametrize("axis", ["context", "batch"])
def test_a_curve_passes_through_the_traced_step(engine, run, axis):
    found = engine.screens.curves(run["run_id"], axis)
    answers.Curves.model_validate(found)
    for curve, config in zip(found["configs"], run["configs"], strict=True):
        (step,) = [step for step in config["steps"] if step["step"] == found["step"]]
        at = found["requests"] if axis == "batch" else found["context_tokens"]
        nearest = min(range(len(found["x"])), key=lambda index: abs(found["x"][index] - at))
        share = found["x"][nearest] / at
        if share == 1:
            assert curve["points"][nearest]["value_ms"] == pytest.approx(step["duration_ms"]["value"], rel=0.01)
        values = [point["value_ms"] for point in curve["points"]]
        # A table's own noise may make the next size a little faster: see residual.GROWING.
        assert all(after > 0.97 * before for before, after in pairwise(values))
        assert values[-1] > 2 * values[0]
        assert all(p["p10_ms"] <= p["value_ms"] <= p["p90_ms"] for p in curve["points"])
        beyond = [point["is_extrapolated"] for point in curve["points"]]
        inside = [found["traced"]["low"] <= x <= found["traced"]["high"] for x in found["x"]]
        assert [not is_beyond for is_beyond in beyond][1:-1] == inside[1:-1]


def test_what_does_not_fit_is_no_number(engine, run):
    found = engine.screens.curves(run["run_id"], "batch")
    assert not any(point["infeasible"] for point in found["configs"][0]["points"][:3])


def test_a_trace_without_lengths_has_no_curve(engine, tmp_path):
    trace = engine.import_files([kineto_trace(tmp_path / "job.json")], ImportOptions())
    run_id = engine.start_run(trace["trace_id"], ["l4"], "analytic")
    engine.wait_run(run_id)
    with pytest.raises(Refused, match="no decode step whose context is known"):
        engine.screens.curves(run_id, "context")


def recorded_run(engine, trace_id, **profile):
    """A recorded job with a baseline, and its run."""
    events = [event.model_copy(update={"trace_id": trace_id}) for event in recorded_events(6)]
    host = HostProfileRecorded.model_validate({"trace_id": trace_id, "step_gpu_ns": (0,) * 4, **profile})
    engine.embedded.publish([*events[:-1], host, events[-1]])
    deadline = time.monotonic() + 20
    while {one["trace_id"]: one["status"] for one in engine.traces()}.get(trace_id) != "complete":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return engine.wait_run(engine.start_run(trace_id, ["h100_sxm"], "analytic"))


@pytest.mark.parametrize("axis", ["context", "batch"])
def test_the_hosts_time_of_a_baseline_is_in_a_curve_as_in_the_step(engine, axis):
    run = recorded_run(
        engine, ("a" if axis == "batch" else "b") * 16,
        step_host_ns=(9_000_000, 5_000_000, 5_000_000, 7_000_000), step_gap_ns=(0, 1_000_000, 1_000_000, 2_000_000),
        step_context_tokens=(64, 0, 0, 0), step_generation_tokens=(0, 1, 1, 64),
    )  # fmt: skip
    found = engine.screens.curves(run["run_id"], axis)
    answers.Curves.model_validate(found)
    points = dict(zip(found["x"], found["configs"][0]["points"], strict=True))
    (step,) = [step for step in run["configs"][0]["steps"] if step["step"] == found["step"]]
    at = float(found["requests"]) if axis == "batch" else found["traced"]["high"]
    assert points[at]["value_ms"] == pytest.approx(step["duration_ms"]["value"]) == 6.0
    assert points[at]["p10_ms"] == pytest.approx(6.0)  # the host is slower than the GPU here, and it is known
    # Another batch takes the host as long as the baseline steps that are nearest in tokens.
    far = points[64.0]["value_ms"] if axis == "batch" else points[128.0]["value_ms"]
    assert far == pytest.approx(9.0 if axis == "batch" else 6.0)
    assert points[found["x"][-1]]["value_ms"] >= far


def test_a_host_faster_than_the_gpu_leaves_a_curve_as_it_was_but_for_the_gap(engine):
    lengths = {"step_context_tokens": (64, 0, 0, 0), "step_generation_tokens": (0, 1, 1, 64)}
    gaps = {"c": (0, 0, 0, 0), "d": (0, 500_000, 500_000, 500_000)}
    curves = {}
    for name, gap in gaps.items():
        run = recorded_run(engine, name * 16, step_host_ns=(1, 1, 1, 1), step_gap_ns=gap, **lengths)
        curves[name] = [p["value_ms"] for p in engine.screens.curves(run["run_id"], "context")["configs"][0]["points"]]
    assert [after - before for before, after in zip(curves["c"], curves["d"], strict=True)] == pytest.approx(
        [0.5] * len(curves["c"])
    )


def test_another_batch_is_routed_as_the_one_before():
    even, skewed = (
        WorkTable.of([Work(family=Family.MOE_GEMM, m=16, n=1536, k=2048, experts=128, topk=8, **told)])
        for told in (
            {"experts_hit": 82.4, "rows_busiest_expert": 1.55},
            {"experts_hit": 41.2, "rows_busiest_expert": 12.4},
        )
    )
    before, after = (routed_alike(even, ratio) for ratio in (1, 100))
    assert before["experts_hit"] == pytest.approx([82.4], abs=0.1)
    assert after["experts_hit"] == pytest.approx([128], rel=0.001)
    assert after["rows_busiest_expert"] == pytest.approx([100], rel=0.01)  # as many as every other
    assert routed_alike(skewed, 100)["experts_hit"] == pytest.approx([64], rel=0.01)  # half of them, as before
    assert routed_alike(skewed, 100)["rows_busiest_expert"] == pytest.approx([12.4 * 100 * 41.2 / 64], rel=0.01)
