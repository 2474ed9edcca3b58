from collections import Counter

import pytest
from cascade_schemas.events import KernelsSimulated, RunCancelled, RunCompleted, TraceRejected
from cascade_schemas.gpu import load_gpu

from services.aggregator import queries
from services.aggregator.shell import AggregatorShell, Delivered, FollowerShell
from services.aggregator.store import Store
from tests.factories import (
    RUN,
    TRACE,
    kernel_task,
    results,
    run_config,
    run_requested,
    shuffled_between_keys,
    trace_events,
)

TASKS = [kernel_task(index) for index in range(3)]
H100, A100 = load_gpu("h100_sxm").config_id, load_gpu("a100_sxm_80gb").config_id


class Bench:
    """A store in memory and an aggregator on it; what it publishes is delivered to it again, as a log would."""

    def __init__(self):
        self.store = Store(None)
        self.said = []
        self.shell = AggregatorShell(self.store, self.said.extend)
        self._offsets = Counter()
        self._log = []

    def tell(self, *events):
        for event in events:
            before = len(self.said)
            self.shell.deliver([self._delivered(event)])
            for echo in self.said[before:]:
                self.shell.deliver([self._delivered(echo)])

    def _delivered(self, event):
        offset = self._offsets[event.topic]
        self._offsets[event.topic] += 1
        self._log.append(Delivered(event.topic, 0, offset, event))
        return self._log[-1]

    def restart(self):
        """Another process on the same store: what it has not stored it reads again."""
        self.shell = AggregatorShell(self.store, self.said.extend)
        kept = self._log[:]
        self.shell.deliver([one for one in kept if one.offset >= self.shell.next_offset(one.topic)])

    @property
    def end(self):
        (end,) = [event for event in self.said if isinstance(event, RunCompleted)]
        return end

    def report(self):
        return queries.run_report(self.store, RUN)


def whole_run(**options):
    source = run_config("a100_sxm_80gb", is_requested=False)
    request = run_requested(configs=(run_config("h100_sxm"), source))
    return [
        *trace_events(**options),
        request,
        results(H100, TASKS, [500, 600, 700]),
        results(A100, TASKS, [1000, 1100, 1200]),
    ]


def test_a_run_ends_when_every_task_has_a_result_on_every_config():
    bench = Bench()
    *first, last = whole_run()
    bench.tell(*first)
    assert not any(isinstance(event, RunCompleted) for event in bench.said)
    bench.tell(last)
    assert bench.end.outcome == "completed"
    assert bench.report()["state_hash"] == bench.end.state_hash


@pytest.mark.parametrize("seed", range(10))
def test_duplicates_and_reordering_change_nothing(seed):
    plain, troubled = Bench(), Bench()
    events = whole_run()
    plain.tell(*events)
    for event in shuffled_between_keys(events, seed):
        troubled.tell(event, event)
    troubled.tell(*shuffled_between_keys(events, seed + 1))
    assert troubled.end.state_hash == plain.end.state_hash


def test_the_answer_is_the_same_from_stored_rows_after_a_restart_at_any_event():
    events = whole_run()
    plain = Bench()
    plain.tell(*events)
    for cut in range(len(events)):
        bench = Bench()
        bench.tell(*events[:cut])
        bench.shell = AggregatorShell(bench.store, bench.said.extend)
        bench.tell(*events[cut:])
        assert bench.end.state_hash == plain.end.state_hash, cut


def test_the_error_shown_is_the_forward_predictions_not_the_corrected_ones():
    bench = Bench()
    bench.tell(*whole_run())
    source = bench.report()["source"]
    assert source["error"]["kernels"] == 3
    assert source["error"]["median_ape"] > 0.01
    kernels = bench.store.query("select * from predicted_kernels where config_id = ?", [A100])
    assert all(row["duration_ns"] == row["measured_ns"] for row in kernels)  # target is source: the measured time


def test_the_source_correction_moves_other_gpus():
    bench = Bench()
    bench.tell(*whole_run())
    rows = bench.store.query("select correction_ppm from predicted_kernels where config_id = ?", [H100])
    assert all(row["correction_ppm"] is not None for row in rows)


def test_without_measured_times_there_is_no_correction_and_no_error():
    bench = Bench()
    bench.tell(*trace_events(is_measured=False), run_requested(), results(H100, TASKS, [500, 600, 700]))
    (config,) = bench.report()["configs"]
    assert config["error"] is None
    assert "no GPU time in the trace" in config["reason"]
    assert bench.report()["source"] is None
    assert bench.store.query("select distinct correction_ppm from predicted_kernels") == [{"correction_ppm": None}]
    assert "host_not_measured" in config["assumptions"]


def test_a_failed_task_lowers_coverage_and_is_extrapolated_from_its_family():
    bench = Bench()
    *others, _, source = whole_run()
    bench.tell(*others, results(H100, TASKS, [500, 600, None]), source)
    assert bench.end.outcome == "completed_with_failures"
    assert bench.end.failed_count == 1
    (config,) = bench.report()["configs"]
    assert 0.5 < config["coverage"] < 0.75
    steps = bench.store.query("select gpu_ns from predicted_steps where config_id = ? order by step", [H100])
    assert all(row["gpu_ns"] > 0 for row in steps)


def test_a_config_without_any_result_fails_the_run():
    bench = Bench()
    bench.tell(*trace_events(is_measured=False), run_requested(), results(H100, TASKS, [None, None, None]))
    assert bench.report()["status"] == "failed"
    assert "h100_sxm" in bench.report()["reason"]


def test_a_rejected_trace_fails_its_runs():
    bench = Bench()
    bench.tell(run_requested(), TraceRejected(trace_id=TRACE, name="x", reason="x.json: holds no kernel"))
    assert bench.report()["status"] == "failed"
    assert "holds no kernel" in bench.report()["reason"]


def test_a_cancelled_run_stays_cancelled_whatever_arrives():
    bench = Bench()
    *others, last = whole_run()
    bench.tell(*others, RunCancelled(run_id=RUN), last)
    assert bench.report()["status"] == "cancelled"
    assert not any(isinstance(event, RunCompleted) for event in bench.said)


def test_a_model_that_does_not_fit_gets_bytes_and_no_number():
    from cascade_schemas.model import load_model

    bench = Bench()
    started, *rest = trace_events(is_measured=False)
    model = load_model("meta-llama/Llama-3.1-70B")
    t4 = run_config("t4")
    bench.tell(
        started.model_copy(update={"model": model}),
        *rest,
        run_requested(configs=(t4,)),
        results(t4.config_id, TASKS, [1, 2, 3]),
    )
    (config,) = bench.report()["configs"]
    assert "GiB" in config["infeasible"]
    assert config["ttft_ms"] is None
    assert config["kernel_time_ms"] is None
    assert bench.store.query("select count(*) as n from predicted_steps") == [{"n": 0}]


def test_ttft_is_the_prefill_step_and_tpot_the_mean_of_the_decode_steps():
    bench = Bench()
    bench.tell(*trace_events(is_measured=False, step_count=3), run_requested(), results(H100, TASKS, [500, 600, 700]))
    (config,) = bench.report()["configs"]
    steps = [step["duration_ms"]["value"] for step in config["steps"]]
    assert config["ttft_ms"]["value"] == steps[0]
    assert config["tpot_ms"]["value"] == pytest.approx((steps[1] + steps[2]) / 2)
    gpu_ns = 4 * (500 + 600 + 700)
    assert config["steps"][0]["gpu_ms"] == gpu_ns / 1e6
    assert steps[0] > gpu_ns / 1e6  # launch gaps


def test_results_that_arrive_before_their_request_are_not_lost():
    bench = Bench()
    *others, first, second = whole_run()
    request = others.pop()
    bench.tell(first, second, *others, request)
    assert bench.end.outcome == "completed"


@pytest.mark.parametrize("seed", range(2))
def test_results_that_were_read_before_a_restart_and_before_their_request_are_not_lost(seed):
    plain = Bench()
    events = whole_run()
    plain.tell(*events)
    *others, first, second = events
    request = others.pop()
    order = [first, *shuffled_between_keys(others, seed), second, request]
    for cut in range(1, len(order)):
        bench = Bench()
        bench.tell(*order[:cut])
        bench.restart()
        bench.tell(*order[cut:])
        bench.restart()
        assert bench.end.state_hash == plain.end.state_hash, cut
        assert all(
            bench.shell.next_offset(topic) == end for topic, end in bench._offsets.items() if topic != "predictions"
        )


@pytest.mark.parametrize("shell", [lambda store: AggregatorShell(store, [].extend), FollowerShell])
def test_results_and_their_request_may_come_at_once(shell):
    *others, request, first, second = whole_run()
    places = Counter()
    delivered = []
    for event in (first, *others, request, second):
        delivered.append(Delivered(event.topic, 0, places[event.topic], event))
        places[event.topic] += 1
    store = Store(None)
    shell(store).deliver(delivered)
    assert {topic: at for (topic, _), at in store.positions().items()} == places


def test_one_altered_row_changes_the_hash():
    from services.aggregator.state_hash import state_hash

    bench = Bench()
    bench.tell(*whole_run())
    bench.store.db.execute("update simulated_kernels set l2_ns = l2_ns + 1 where task_id = ?", [TASKS[0].task_id])
    assert state_hash(bench.store, RUN) != bench.end.state_hash


def test_replicated_results_of_two_workers_count_once():
    bench = Bench()
    *others, first, second = whole_run()
    bench.tell(
        *others, first, KernelsSimulated.model_validate({**first.model_dump(), "rows": first.rows.slice(1)}), second
    )
    assert bench.store.query("select count(*) as n from simulated_kernels") == [{"n": 6}]
