import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.aggregator.compose import LaunchGaps, StepTimes, family_counts, median_per_task, step_layout, step_times
from services.aggregator.extrapolation import filled
from services.aggregator.run_state import TraceColumns

GAPS = LaunchGaps(eager_gap_ns=1000, graph_gap_ns=300, host_issue_ns=6000)


def columns(task, *, start=None, duration=None, step=None, rank=None, graph=None, task_count=None):
    count = len(task)
    zeros = np.zeros(count, dtype=np.int64)
    return TraceColumns(
        task_ids=[f"t{index}" for index in range(task_count or max(task) + 1)],
        task=np.array(task, dtype=np.int64),
        rank=np.array(rank if rank is not None else zeros, dtype=np.int64),
        start_ns=np.array(start if start is not None else np.arange(count) * 1000, dtype=np.int64),
        duration_ns=np.array(duration if duration is not None else zeros - 1, dtype=np.int64),
        stream=zeros,
        step=np.array(step if step is not None else zeros, dtype=np.int64),
        graph=np.array(graph if graph is not None else zeros - 1, dtype=np.int64),
        host_launch_ns=zeros - 1,
        is_kernel=np.ones(count, dtype=bool),
    )


def times(trace, duration, sigma=0.1, family="gemm"):
    count = len(trace.task_ids)
    layout = step_layout(trace, GAPS)
    families = np.array([family] * count if isinstance(family, str) else family, dtype=object)
    both = step_times(
        layout,
        family_counts(layout, families),
        np.array([duration, [2 * d for d in duration]], dtype=np.int64),
        np.full((2, count), sigma),
        np.ones(count, dtype=np.int64),
        GAPS,
    )
    return _first(both)


def _first(times):
    """The first of two configs; the second only shows that configs do not mix."""
    picked = {name: getattr(times, name)[0] for name in StepTimes.__dataclass_fields__ if name != "step"}
    return StepTimes(step=times.step, **picked)


def test_replaying_the_source_with_its_own_times_gives_the_measured_step():
    # Launches 0 and 1 overlap by 200 ns (programmatic dependent launch): busy time is the union, not the sum.
    trace = columns([0, 1, 0], start=[0, 800, 3000], duration=[1000, 500, 1000])
    step = times(trace, [1000, 500])
    assert step.gpu_ns.tolist() == [2300]
    assert step.measured_gpu_ns.tolist() == [2300]


def test_launches_outside_every_step_belong_to_none():
    trace = columns([0, 0, 0], step=[-1, 0, 0])
    assert times(trace, [100]).launch_count.tolist() == [2]


def test_a_step_takes_as_long_as_its_slowest_rank():
    trace = columns([0, 1, 1], rank=[0, 1, 1])
    assert times(trace, [1000, 900]).gpu_ns.tolist() == [1800]


def test_graph_launches_have_smaller_gaps_than_eager_ones():
    eager, graph = columns([0] * 10), columns([0] * 10, graph=[5] * 10)
    assert times(eager, [100]).duration_ns - 1000 == 10 * 1000
    assert times(graph, [100]).duration_ns - 1000 == 10 * 300


def test_errors_of_one_family_add_up_and_of_two_partly_cancel():
    trace = columns([0, 1])
    one = times(trace, [1_000_000, 1_000_000], sigma=0.2)
    two = times(trace, [1_000_000, 1_000_000], sigma=0.2, family=["gemm", "norm"])
    assert one.p10_ns[0] < two.p10_ns[0] < two.duration_ns[0]


def test_without_a_host_baseline_p90_reaches_half_the_traced_host_gaps():
    trace = columns([0, 0], start=[0, 1_000_000], duration=[1000, 1000])
    step = times(trace, [1000])
    assert step.p90_ns[0] >= 2000 + 999_000 // 2
    assert step.p10_ns[0] <= 2000
    assert step.duration_ns[0] == 2000 + 2 * 1000


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 10**6), st.integers(0, 3)), min_size=1, max_size=40),
    st.floats(0, 1),
)
def test_the_value_lies_in_its_interval_and_order_does_not_matter(launches, sigma):
    task, duration, step = (list(column) for column in zip(*launches, strict=True))
    trace = columns(task, step=sorted(step), duration=duration, task_count=5)
    predicted = times(trace, [100, 2000, 30000, 5, 77], sigma=sigma)
    assert (predicted.p10_ns <= predicted.duration_ns).all()
    assert (predicted.duration_ns <= predicted.p90_ns).all()
    assert (predicted.coverage == 1).all()


def test_a_collective_counts_as_its_fastest_rank_since_others_waited():
    trace = columns([0, 0, 1, 1], rank=[0, 1, 0, 1], duration=[50, 90, 50, 90])
    medians = median_per_task(trace, np.array([True, False]))
    assert medians.tolist() == [50, 70]


def test_medians_ignore_unmeasured_launches():
    trace = columns([0, 0, 0, 1], duration=[10, 30, -1, -1])
    assert median_per_task(trace, np.array([False, False])).tolist() == [20, -1]


def test_a_failed_task_takes_its_familys_ratio():
    family = np.array(["gemm", "gemm", "norm", "gemm"], dtype=object)
    measured = np.array([100, 200, 50, 400])
    result = filled(np.array([50, 100, 50, -1]), measured, family)
    assert result.tolist() == [50, 100, 50, 200]


def test_a_failed_task_without_a_measured_time_stays_unknown():
    assert filled(np.array([50, -1]), np.array([-1, -1]), np.array(["a", "a"], dtype=object)).tolist() == [50, -1]


@pytest.mark.parametrize("field", ["eager_gap_ns", "graph_gap_ns", "host_issue_ns"])
def test_default_gaps_are_stated_with_a_source(field):
    import tomllib
    from importlib.resources import files

    table = tomllib.loads((files("services.aggregator") / "launch_gaps.toml").read_text())
    assert table[field]["ns"] > 0
    assert table[field]["source"]
