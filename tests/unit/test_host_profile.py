"""A baseline without a profiler: what it changes in a prediction, and how far the forward prediction is from reality."""

import pytest
from cascade_schemas.events import HostProfileMeasured, TraceCompleted

from services.aggregator import queries
from tests.factories import RUN, TRACE, results, trace_events
from tests.unit.test_aggregator import A100, H100, TASKS, Bench, run_config, run_requested


def profile(**changes):
    fields = {
        "trace_id": TRACE,
        "step_host_ns": (400_000, 300_000, 310_000),
        "step_gpu_ns": (0, 0, 0),
        "ttft_ns": (500_000,),
        "tpot_ns": (350_000,),
        "step_gap_ns": (0, 50_000, 60_000),
        "step_context_tokens": (100, 0, 0),
        "step_generation_tokens": (0, 1, 1),
        **changes,
    }
    return HostProfileMeasured.model_validate(fields)


def report_of(*more, step_count=2, source="a100_sxm_80gb", forward=(1_500_000, 1_500_000, 1_500_000), **options):
    bench = Bench()
    events = trace_events(step_count=step_count, source_gpu=source, **options)
    request = run_requested(configs=(run_config("h100_sxm"), run_config("a100_sxm_80gb", is_requested=False)))
    before, end = events[:-1], events[-1]
    bench.tell(*before, *more, end, request)
    bench.tell(results(H100, TASKS, (700, 800, 900)), results(A100, TASKS, forward))
    return bench, queries.run_report(bench.store, RUN)


def test_without_a_baseline_it_is_said_that_there_is_none():
    _, report = report_of()
    assert "host_not_measured" in report["configs"][0]["assumptions"]


def test_a_host_slower_than_the_gpu_is_what_a_step_takes_and_the_gap_comes_on_top():
    _, without = report_of()
    _, report = report_of(profile())
    prefill, decode = report["configs"][0]["steps"]
    assert prefill["duration_ms"]["value"] == pytest.approx(0.4)
    assert decode["duration_ms"]["value"] == pytest.approx(0.310 + 0.060)  # the middle of two is the upper one
    assert without["configs"][0]["steps"][0]["duration_ms"]["value"] < 0.1
    assert decode["duration_ms"]["p10"] <= decode["duration_ms"]["value"] <= decode["duration_ms"]["p90"]
    assert "host_not_measured" not in report["configs"][0]["assumptions"]
    assert "host_time_of_source_machine" in report["configs"][0]["assumptions"]


def test_a_gpu_slower_than_the_host_hides_it_but_not_the_gap():
    _, without = report_of()
    _, report = report_of(profile(step_host_ns=(10, 10, 10), step_gap_ns=(0, 70_000, 70_000)))
    for plain, with_host, gap in zip(
        without["configs"][0]["steps"], report["configs"][0]["steps"], (0.0, 0.07), strict=True
    ):
        assert with_host["duration_ms"]["value"] == pytest.approx(plain["duration_ms"]["value"] + gap)


def test_a_step_unlike_every_one_of_the_baseline_stays_unknown():
    _, report = report_of(profile(step_context_tokens=(0, 0, 0), step_generation_tokens=(2, 2, 2)))
    prefill, decode = report["configs"][0]["steps"]
    assert prefill["duration_ms"]["value"] < 0.1
    assert decode["duration_ms"]["value"] >= 0.3  # the nearest decode
    assert {"host_not_measured", "host_time_of_source_machine"} <= set(report["configs"][0]["assumptions"])


def test_host_times_of_a_cpu_engine_are_the_models_own_work_and_not_used():
    _, report = report_of(profile(), is_measured=False, source=None)
    assert report["configs"][0]["steps"][0]["duration_ms"]["value"] < 0.3
    assert "host_not_measured" in report["configs"][0]["assumptions"]


def accuracy_of(bench, config_id):
    (row,) = bench.store.query("from accuracy where run_id = ? and config_id = ?", [RUN, config_id])
    return row


def test_the_error_against_the_real_job_is_that_of_the_forward_prediction():
    # Forward predictions a thousand times the measured ones: the corrected step is short, the forward one is not.
    bench, report = report_of(profile(step_host_ns=(10, 10, 10), step_gap_ns=(0, 0, 0)), rows_per_event=99)
    row = accuracy_of(bench, A100)
    assert (row["measured_ttft_ns"], row["measured_tpot_ns"]) == (500_000, 350_000)
    forward_ns = 12 * 1_500_000
    assert row["ttft_error_ppm"] == pytest.approx((forward_ns - 500_000) / 500_000 * 1e6, rel=0.05)
    assert row["tpot_error_ppm"] == pytest.approx((forward_ns - 350_000) / 350_000 * 1e6, rel=0.05)
    assert report["source"]["ttft_ms"]["value"] < 0.1
    assert accuracy_of(bench, H100)["measured_ttft_ns"] is None


def test_what_the_real_job_did_not_measure_has_no_error():
    bench, _ = report_of(profile(ttft_ns=(0,), tpot_ns=()))
    row = accuracy_of(bench, A100)
    assert (row["measured_ttft_ns"], row["ttft_error_ppm"], row["measured_tpot_ns"]) == (None, None, None)


def test_a_baseline_that_is_read_back_from_the_store_gives_the_same(tmp_path):
    bench, report = report_of(profile())
    state = bench.store.load_trace(TRACE)
    assert state.host_profile.step_gap_ns == (0, 50_000, 60_000)
    assert isinstance(state.completed, TraceCompleted)
    assert report["state_hash"] == bench.end.state_hash
