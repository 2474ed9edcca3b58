"""A run that starts analytic and is refined: which kernels, by whom, whose result stands, in whatever order it comes."""

import numpy as np
import pytest
from cascade_schemas.events import KernelSimulationRequested, Refine, RefinementChosen, RunCompleted
from cascade_schemas.gpu import load_gpu

from services.aggregator import queries, refine
from services.aggregator.shell import AggregatorShell
from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store
from services.ingest.plan import Planner
from tests.factories import (
    RUN,
    kernel_task,
    results,
    run_config,
    run_requested,
    shuffled_between_keys,
    trace_events,
)
from tests.unit.test_aggregator import Bench

TASKS = [kernel_task(0, sass="a" * 64), kernel_task(1, sass="b" * 64), kernel_task(2)]
H100, H200, A100 = (load_gpu(name).config_id for name in ("h100_sxm", "h200_sxm", "a100_sxm_80gb"))
WITH_SASS = Refine(simulator="sass", share_ppm=1_000_000)


def unmeasured(*, sigma=0.9):
    """One config, nothing measured: two kernels with instructions, one without."""
    return [
        *trace_events(tasks=TASKS, is_measured=False),
        run_requested(refine=WITH_SASS),
        results(H100, TASKS, [500, 600, 700], sigma=sigma),
    ]


def measured():
    """Recorded on an H100, asked for on an H200: one die, so that the correction goes across."""
    source = run_config("h100_sxm", is_requested=False)
    return [
        *trace_events(tasks=TASKS, source_gpu="h100_sxm"),
        run_requested(configs=(run_config("h200_sxm"), source), refine=WITH_SASS),
        results(H200, TASKS, [500, 600, 700], sigma=0.9),
        results(H100, TASKS, [900, 1000, 1100], sigma=0.9),
    ]


def refined(config_id, durations, tasks=TASKS[:2], sigma=0.3, **changes):
    return results(config_id, tasks, durations, sigma=sigma, simulator="sass", **changes)


def choices(bench):
    return {event.config_id: event for event in bench.said if isinstance(event, RefinementChosen)}


def kernels(bench, config_id=H100):
    rows = bench.store.query("select * from kernels where config_id = ? order by name", [config_id])
    return {row["task_id"]: row for row in rows}


def test_the_first_answer_is_out_before_anything_is_refined():
    bench = Bench()
    bench.tell(*unmeasured())
    (config,) = bench.report()["configs"]
    assert bench.report()["status"] == "running"
    assert config["kernel_time_ms"] > 0
    assert choices(bench)[H100].simulator == "sass"


def test_kernels_with_instructions_are_chosen_by_their_share_of_the_variance():
    bench = Bench()
    bench.tell(*unmeasured())
    choice = choices(bench)[H100]
    # Equal sigmas and one family: a kernel holds the part of the variance that it has of the time.
    assert [task.task_id for task in choice.tasks] == [TASKS[1].task_id, TASKS[0].task_id]
    assert [task.share_ppm for task in choice.tasks] == [round(600 / 1800 * 1e6), round(500 / 1800 * 1e6)]
    (left,) = choice.left
    assert (left.reason, left.task_count, left.share_ppm) == ("no_sass_trace", 1, round(700 / 1800 * 1e6))
    assert choice.sentence == (
        "2 of 3 kernels go to sass: they hold 61 % of the variance of the steps;"
        " 1 have no SASS trace (39 % of the variance)."
    )


@pytest.mark.parametrize(
    ("asked", "count"),
    [(Refine(simulator="sass", share_ppm=500_000), 1), (Refine(simulator="sass", task_limit=1), 1), (WITH_SASS, 2)],
)
def test_share_and_limit_bound_what_is_chosen(asked, count):
    bench = Bench()
    events = unmeasured()
    bench.tell(
        *(event.model_copy(update={"refine": asked}) if event.type == "RunRequested" else event for event in events)
    )
    assert len(choices(bench)[H100].tasks) == count


def test_the_tighter_interval_stands_and_both_are_kept():
    bench = Bench()
    bench.tell(*unmeasured(), refined(H100, [400, 450]))
    assert bench.end.outcome == "completed"
    found = kernels(bench)
    assert [found[task.task_id]["forward_ns"] for task in TASKS] == [400, 450, 700]
    assert [found[task.task_id]["duration_ns"] for task in TASKS] == [400, 450, 700]
    assert [found[task.task_id]["simulator"] for task in TASKS] == ["sass", "sass", "analytic"]
    assert found[TASKS[0].task_id]["refinement"] == refine.TAKEN_TIGHTER
    (of_config,) = bench.report()["refinement"]["configs"]
    assert (of_config["chosen"], of_config["done"], of_config["taken"], of_config["failed"]) == (2, 2, 2, 0)
    (kernel, _) = of_config["kernels"]
    assert (kernel["first_ns"], kernel["refined_ns"]) == (600, 450)
    assert sum(row["n"] for row in bench.store.query("select count(*) as n from simulated_kernels")) == 3
    assert bench.store.query("select distinct refined from predicted_steps") == [{"refined": True}]


def test_the_answer_upgrades_when_the_refined_kernels_stand():
    bench = Bench()
    bench.tell(*unmeasured())
    before = bench.report()["configs"][0]
    bench.tell(refined(H100, [400, 450]))
    after = bench.report()["configs"][0]
    assert after["tpot_ms"]["value"] < before["tpot_ms"]["value"]
    assert after["kernel_time_ms"] < before["kernel_time_ms"]


@pytest.mark.parametrize(("sigma", "verdict"), [(0.9, refine.KEPT_TIGHTER), (0.95, refine.KEPT_TIGHTER)])
def test_on_a_tie_or_with_a_wider_interval_the_first_result_stays(sigma, verdict):
    bench = Bench()
    bench.tell(*unmeasured(), refined(H100, [400, 450], sigma=sigma))
    found = kernels(bench)[TASKS[0].task_id]
    assert (found["duration_ns"], found["refinement"], found["simulator"]) == (500, verdict, "analytic")


def test_a_failed_refinement_leaves_the_first_result_and_is_listed():
    bench = Bench()
    bench.tell(*unmeasured(), refined(H100, [400, None], reason="deadlock: it waits"))
    assert (bench.end.outcome, bench.end.failed_count) == ("completed", 0)
    assert kernels(bench)[TASKS[1].task_id]["duration_ns"] == 600
    (of_config,) = bench.report()["refinement"]["configs"]
    assert of_config["failed"] == 1
    (failed,) = [kernel for kernel in of_config["kernels"] if kernel["refined_ns"] is None]
    assert (failed["verdict"], failed["refined_reason"]) == (refine.KEPT_FAILED, "deadlock: it waits")


def test_a_kernel_that_failed_at_first_is_rescued():
    bench = Bench()
    bench.tell(*unmeasured()[:-1], results(H100, TASKS, [None, 600, 700]))
    assert choices(bench)[H100].tasks[0].task_id == TASKS[0].task_id  # nothing is less certain than no time at all
    bench.tell(refined(H100, [400, 590]))
    assert (bench.end.outcome, bench.end.failed_count) == ("completed", 0)
    found = kernels(bench)[TASKS[0].task_id]
    assert (found["duration_ns"], found["refinement"]) == (400, refine.TAKEN_ALONE)


def test_where_nothing_can_be_refined_the_run_ends_with_its_first_answer_and_says_why():
    bench = Bench()
    plain = [kernel_task(index) for index in range(3)]
    bench.tell(
        *trace_events(tasks=plain, is_measured=False),
        run_requested(refine=WITH_SASS),
        results(H100, plain, [500, 600, 700]),
    )
    assert bench.end.outcome == "completed"
    assert choices(bench)[H100].sentence == "No kernel is refined: of 3 3 have no SASS trace (100 % of the variance)."


def test_measured_kernels_are_refined_by_the_ratio_of_two_simulations():
    bench = Bench()
    bench.tell(*measured())
    assert {task.task_id for task in choices(bench)[H100].tasks} == {TASKS[0].task_id, TASKS[1].task_id}
    bench.tell(refined(H200, [1500, 1700]), refined(H100, [1800, 2000]))
    found = kernels(bench, H200)[TASKS[0].task_id]
    assert found["refinement"] == refine.TAKEN_TIGHTER
    # Only the ratio of cycles counts: what the simulator is wrong by on both cancels, all of it.
    assert found["duration_ns"] == pytest.approx(found["measured_ns"] * 1500 / 1800, abs=1)
    assert found["duration_ns"] != pytest.approx(1500 * (found["measured_ns"] / 1800) ** 0.8, abs=5)
    assert kernels(bench, H100)[TASKS[0].task_id]["duration_ns"] == found["measured_ns"]


def test_cycles_of_another_chip_are_never_taken_where_the_source_could_not_be_simulated():
    bench = Bench()
    bench.tell(*measured(), refined(H200, [2000, 2200]), refined(H100, [None, 4400], reason="deadlock: it waits"))
    found = kernels(bench, H200)
    assert found[TASKS[0].task_id]["refinement"] == refine.KEPT_UNCORRECTED
    assert found[TASKS[0].task_id]["forward_ns"] == 500
    assert found[TASKS[1].task_id]["refinement"] == refine.TAKEN_TIGHTER


def test_nothing_is_refined_across_programming_classes():
    bench = Bench()
    source = run_config("a100_sxm_80gb", is_requested=False)
    bench.tell(
        *trace_events(tasks=TASKS),
        run_requested(configs=(run_config("h100_sxm"), source), refine=WITH_SASS),
        results(H100, TASKS, [500, 600, 700], sigma=0.9),
        results(A100, TASKS, [900, 1000, 1100], sigma=0.9),
    )
    assert bench.end.outcome == "completed"
    assert [left.reason for left in choices(bench)[H100].left] == ["no_sass_trace", "other_class"]


def test_a_result_for_other_code_is_kept_beside_and_not_taken():
    bench = Bench()
    bench.tell(*unmeasured(), refined(H100, [400, 450], reason="sass:x;code_of_sm_80_on_sm_90"))
    assert kernels(bench)[TASKS[0].task_id]["refinement"] == refine.KEPT_OTHER_CLASS


def whole(scenario):
    events = scenario()
    if scenario is unmeasured:
        return [*events, refined(H100, [400], TASKS[:1]), refined(H100, [None], TASKS[1:2])]
    return [
        *events,
        *(refined(c, [d], [t]) for c in (H200, H100) for t, d in zip(TASKS[:2], (2000, 2100), strict=True)),
    ]


@pytest.mark.parametrize("scenario", [unmeasured, measured])
@pytest.mark.parametrize("seed", range(4))
def test_duplicates_and_reordering_change_nothing(scenario, seed):
    plain, troubled = Bench(), Bench()
    events = whole(scenario)
    plain.tell(*events)
    for event in shuffled_between_keys(events, seed):
        troubled.tell(event, event)
    troubled.tell(*shuffled_between_keys(events, seed + 1))
    assert troubled.end.state_hash == plain.end.state_hash


@pytest.mark.parametrize("scenario", [unmeasured, measured])
def test_the_answer_is_the_same_from_stored_rows_after_a_restart_at_any_event(scenario):
    events = whole(scenario)
    plain = Bench()
    plain.tell(*events)
    for cut in range(len(events)):
        bench = Bench()
        bench.tell(*events[:cut])
        bench.shell = AggregatorShell(bench.store, bench.said.extend)
        bench.tell(*events[cut:])
        assert bench.end.state_hash == plain.end.state_hash, cut
        assert len(choices(bench)) == len(choices(plain))


@pytest.mark.parametrize("scenario", [unmeasured, measured])
def test_a_lost_store_is_rebuilt_in_the_middle_of_a_refinement(scenario):
    """Predictions are read before the run they are about, and the second answer is not undone by the first."""
    events = whole(scenario)
    plain = Bench()
    plain.tell(*events)
    for cut in range(len(events) - 4, len(events)):
        before = Bench()
        before.tell(*events[:cut])
        bench = Bench()
        bench.tell(*before.said)
        bench.tell(*events)
        ends = {event.state_hash for event in [*before.said, *bench.said] if isinstance(event, RunCompleted)}
        assert ends == {plain.end.state_hash}, cut
        assert state_hash(bench.store, RUN) == plain.end.state_hash


def test_a_run_that_is_not_refined_has_the_hash_it_always_had():
    bench = Bench()
    bench.tell(
        *trace_events(), run_requested(configs=(run_config("a100_sxm_80gb"),)), results(A100, TASKS_PLAIN, [1, 2, 3])
    )
    assert bench.report()["refinement"] is None
    assert not bench.store.query("select 1 from refinements")


TASKS_PLAIN = [kernel_task(index) for index in range(3)]


def test_the_planner_asks_for_what_was_chosen_once_in_whatever_order_it_learns_of_it():
    bench = Bench()
    events = unmeasured()
    bench.tell(*events)
    (choice,) = choices(bench).values()
    for order in ([*events[:-1], choice], [choice, *events[:-1]]):
        planner = Planner()
        asked = []
        for event in [*order, choice]:
            asked += [*planner.react(event), *planner.settle()]
        again = [event for event in asked if isinstance(event, KernelSimulationRequested) and event.simulator == "sass"]
        assert [event.rows.column("task_id").to_pylist() for event in again] == [
            [task.task_id] for task in choice.tasks
        ]


def test_shares_are_what_compose_adds_up():
    """Two families, each correlated within itself: (Σ spread)² of each, of which a task holds its part."""
    bench = Bench()
    bench.tell(*unmeasured())
    trace = bench.store.load_trace("trace-1")
    layout = _layout_of(trace)
    family = np.array(["gemm", "gemm", "norm"], dtype=object)
    duration, sigma = np.array([100, 300, 200]), np.array([0.1, 0.2, 0.5])
    shares = refine.variance_shares(layout, np.array([8, 8, 8]), duration, sigma, family)
    a, b, c = 10.0, 60.0, 100.0
    whole_variance = (a + b) ** 2 + c**2
    assert shares.tolist() == [round(part / whole_variance * 1e6) for part in (a * (a + b), b * (a + b), c * c)]


def _layout_of(trace):
    from services.aggregator import compose
    from services.aggregator.run_state import trace_columns

    return compose.step_layout(trace_columns(trace), compose.default_gaps())


def test_a_store_from_before_runs_were_refined_opens(tmp_path):
    Store(tmp_path / "a.duckdb").close()
    store = Store(tmp_path / "a.duckdb")
    assert queries.runs(store) == []
    store.close()
