"""Curves: through the traced step itself, growing, wider beyond what was traced, and no number where nothing fits."""

from __future__ import annotations

from itertools import pairwise

import pytest

from services.cli import sample
from services.gateway import answers
from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions, Refused
from services.runtime.served import ServedEngine
from services.simworker.simulators.catalog import simulators
from tests.factories import kineto_trace, settings


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
