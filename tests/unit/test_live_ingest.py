"""Recorded events in, catalog out: in any order, any number of times, with the job killed at any moment."""

import random
from itertools import chain

import pytest
from cascade_schemas.codec import encode
from cascade_schemas.events import (
    HostProfileMeasured,
    HostProfileRecorded,
    LaunchesRecorded,
    LaunchesTraced,
    StepTraced,
    TraceCompleted,
    TraceEnded,
    TraceRejected,
    TraceStarted,
)
from cascade_schemas.recording import RecordStream
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from services.ingest import admission
from services.ingest.live import SILENCE_LIMIT_MS, LiveIngest
from services.runtime.embedded import Embedded
from tests.factories import Clock, fake_simulators, settings
from tests.recordings import LAYERS, RECORDED, recorded_events, recording_started, step_recorded


def catalog_of(events):
    live = LiveIngest()
    return [said for event in events for said in live.react(event)]


def facts_of(catalog):
    """What a catalog says, whatever the order it was said in."""
    found = []
    for event in catalog:
        if isinstance(event, LaunchesTraced):
            found += [("launch", event.rank, *sorted(row.items(), key=str)) for row in event.rows.to_pylist()]
        else:
            found.append(event.model_dump_json())
    return sorted(map(str, found))


def test_a_step_is_said_as_soon_as_all_its_launches_are_here():
    events = recorded_events(step_count=3)
    live = LiveIngest()
    said_after = [[type(said).__name__ for said in chain(live.react(event), live.settle())] for event in events]
    assert said_after[0] == ["TraceStarted"]
    assert said_after[1] == []  # launches of a step that is not over yet
    assert said_after[2][-2:] == ["StepTraced", "LaunchesTraced"]
    assert said_after[2].count("KernelTaskTraced") == 2
    assert "KernelTaskTraced" in said_after[4]  # decode: other shapes
    assert said_after[6] == ["StepTraced", "LaunchesTraced"]  # the same work again
    assert said_after[7] == ["TraceCompleted"]


def test_what_was_recorded_is_counted_exactly():
    (end,) = [event for event in catalog_of(recorded_events(5, rank_count=2)) if isinstance(event, TraceCompleted)]
    assert (end.launch_count, end.kernel_count) == (2 * 5 * 2 * LAYERS, 2 * 5 * 2 * LAYERS)
    assert (end.step_count, end.task_count, end.signature_count, end.is_truncated) == (10, 4, 4, False)
    assert end.prompts == (64,)


@hypothesis_settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False))
def test_duplicates_and_reordering_change_nothing(chance):
    events = recorded_events(4, rank_count=2)
    expected = facts_of(catalog_of(events))
    delivered = events + chance.sample(events, len(events) // 2)
    chance.shuffle(delivered)
    live = LiveIngest()
    said = []
    for event in delivered:
        said += live.react(event)
        if chance.random() < 0.3:  # as many as came together
            said += live.settle()
    # What is reported of the trace as a whole may be listed in another order only.
    assert facts_of(said) == expected


def test_launches_are_said_in_order_of_their_numbers_without_gaps():
    events = recorded_events(6)
    chance = random.Random(7)
    chance.shuffle(events)
    rows = [event for event in catalog_of(events) if isinstance(event, LaunchesTraced)]
    seqs = [seq for event in rows for seq in event.rows.column("seq").to_pylist()]
    assert seqs == list(range(6 * 2 * LAYERS))


def test_a_step_that_no_profiler_saw_is_marked():
    steps = sorted(
        (e for e in catalog_of(recorded_events(4, unprofiled=(2,))) if isinstance(e, StepTraced)), key=lambda e: e.step
    )
    assert [step.is_profiled for step in steps] == [True, True, False, True]
    assert [step.kernel_count for step in steps] == [2 * LAYERS, 2 * LAYERS, 0, 2 * LAYERS]


def test_a_rank_that_died_before_it_began_leaves_what_the_others_said():
    events = recorded_events(3, rank_count=2)
    live = LiveIngest()
    said = [one for event in events[: len(events) // 2] for one in live.react(event)]
    assert [type(one).__name__ for one in said] == ["TraceStarted"]
    said += live.abandon(RECORDED)
    assert isinstance(said[-1], TraceCompleted)
    assert (said[-1].is_truncated, said[-1].step_count) == (True, 3)


def test_a_traces_time_begins_with_the_first_of_its_ranks():
    events = recorded_events(2, rank_count=2)
    began = {0: 70_000_000_000, 1: 69_999_000_000}
    late = [
        event.model_copy(update={"began_ns": began[event.rank]}) if event.type == "RecordingStarted" else event
        for event in events
    ]
    said = catalog_of(late)
    assert facts_of(said) == facts_of(catalog_of(late[::-1]))
    starts = {(step.rank, step.step): step.start_ns for step in said if isinstance(step, StepTraced)}
    assert starts[0, 1] == 1_000_000 - 69_999_000_000
    assert not any(isinstance(one, StepTraced) for one in catalog_of(late[: len(late) // 2]))


def test_prefill_and_decode_are_told_apart_by_the_prompt():
    step = step_recorded(1, request_ids=(0, 1, 2), q_lengths=(1, 30, 1), kv_lengths=(65, 60, 40), prompt_tokens=(64, 90, 0), launch_count=None)  # fmt: skip
    (traced,) = [e for e in catalog_of([recording_started(), step]) if isinstance(e, StepTraced)]
    assert (traced.phase, traced.context_requests, traced.context_tokens) == ("mixed", 1, 30)
    assert (traced.generation_requests, traced.generation_tokens) == (2, 2)


@pytest.mark.parametrize("kept", range(1, 12))
def test_a_killed_job_leaves_its_whole_steps_and_is_marked(kept):
    events = recorded_events(4)[:kept]
    live = LiveIngest()
    said = [one for event in events for one in chain(live.react(event), live.settle())]
    if any(isinstance(one, TraceCompleted) for one in said):
        pytest.skip("the job had ended by itself")
    said += live.abandon(RECORDED)
    end = said[-1]
    steps = [one for one in said if isinstance(one, StepTraced)]
    if not any(isinstance(event, LaunchesRecorded) for event in events):
        assert isinstance(end, TraceRejected)
        return
    assert isinstance(end, TraceCompleted)
    assert end.is_truncated
    assert end.step_count == len(steps)
    launched = [row for one in said if isinstance(one, LaunchesTraced) for row in one.rows.to_pylist()]
    assert len(launched) == end.launch_count
    # A step that was cut off is none: its launches stand outside.
    whole = {step.step for step in steps}
    assert {row["step"] for row in launched} <= whole | {None}
    assert any("killed" in note for note in end.quality["notes"])


def test_launches_that_got_lost_on_the_way_leave_only_whole_steps():
    events = recorded_events(5)
    lost = [event for event in events if isinstance(event, LaunchesRecorded)][2]
    live = LiveIngest()
    said = [one for event in events if event is not lost for one in chain(live.react(event), live.settle())]
    assert not any(isinstance(one, TraceCompleted) for one in said)
    said += live.abandon(RECORDED)
    end = said[-1]
    assert [one.step for one in said if isinstance(one, StepTraced)] == [0, 1]
    assert end.launch_count == 2 * 2 * LAYERS
    assert end.quality["dropped_event_count"] == 2 * 2 * LAYERS  # behind the gap


def test_what_comes_after_the_end_is_not_heard():
    live = LiveIngest()
    for event in recorded_events(2):
        list(live.react(event))
    assert list(live.react(step_recorded(9))) == []
    assert live.open_traces() == []


def test_steps_alone_are_no_trace():
    events = [recording_started(), step_recorded(0, launch_count=None), TraceEnded(trace_id=RECORDED, rank=0, launch_count=0, step_count=1, dropped_launch_count=0)]  # fmt: skip
    end = catalog_of(events)[-1]
    assert isinstance(end, TraceRejected)
    assert "mode 'kernels'" in end.reason


def test_the_first_host_profile_stands():
    profile = HostProfileRecorded(trace_id=RECORDED, step_host_ns=(5,), step_gpu_ns=(0,), ttft_ns=(9,))
    said = catalog_of([recording_started(), profile, profile.model_copy(update={"ttft_ns": (1,)})])
    (measured,) = [one for one in said if isinstance(one, HostProfileMeasured)]
    assert measured.ttft_ns == (9,)


def test_a_gpu_nobody_knows_is_a_note_and_not_a_failure():
    said = catalog_of([recording_started(source_gpu="h900"), *recorded_events(1)[1:]])
    assert isinstance(said[0], TraceStarted)
    assert said[0].source_gpu is None
    assert any("h900" in note for note in said[-1].quality["notes"])


# --- in the pipeline --------------------------------------------------------------------------------------------


class Pipeline:
    def __init__(self, home, clock=None):
        self.clock = clock or Clock()
        self.embedded = Embedded(settings(home), fake_simulators(), self.clock)

    def tell(self, *events):
        self.embedded.publish(list(events))
        self.embedded.pump()

    def run(self, run_id, trace_id=RECORDED):
        self.embedded.request_run(run_id, trace_id, ["h100_sxm", "l4"])

    def order_of(self, *types):
        """Types of events in the order they were appended."""
        places = self.embedded.log.places([RECORDED, "during", "after"])
        return [(place.type) for place in places if place.type in types]

    def hash_of(self, run_id):
        (row,) = self.embedded.store.query("select state_hash, status from runs where run_id = ?", [run_id])
        assert row["status"] == "completed", row
        return row["state_hash"]


@pytest.fixture
def pipeline(tmp_path):
    pipeline = Pipeline(tmp_path / "home")
    yield pipeline
    pipeline.embedded.close()


def write_stream(path, events):
    stream = RecordStream(path)
    for event in events:
        stream.append([encode(event, is_compressed=True)], 1_790_000_000_000)
    stream.close()
    return path


def test_a_run_asked_for_while_tracing_is_simulated_before_the_end_and_answers_the_same(pipeline, tmp_path):
    events = recorded_events(6)
    pipeline.tell(*events[:4])
    pipeline.run("during")
    pipeline.tell(*events[4:6])
    pipeline.tell(*events[6:])
    pipeline.run("after")
    pipeline.embedded.pump()
    order = pipeline.order_of("KernelsSimulated", "TraceCompleted")
    assert order.index("KernelsSimulated") < order.index("TraceCompleted")
    assert pipeline.hash_of("during") == pipeline.hash_of("after")
    # And so does the same recording, imported as a file.
    path = write_stream(tmp_path / "job.rank0.cascade-trace", events)
    upload = admission.upload([pipeline.embedded.store_artifact(path)], name="job", model=None, source_gpu=None)
    pipeline.embedded.upload(upload)
    pipeline.embedded.pump()
    pipeline.run("imported", upload.trace_id)
    pipeline.embedded.pump()
    assert pipeline.hash_of("imported") == pipeline.hash_of("during")
    assert pipeline.embedded.verify_run("during").is_equal


def test_a_restart_in_the_middle_of_tracing_changes_nothing(tmp_path):
    events = recorded_events(5)
    undisturbed, disturbed = Pipeline(tmp_path / "a"), Pipeline(tmp_path / "b")
    undisturbed.tell(*events)
    undisturbed.run("during")
    undisturbed.embedded.pump()
    for cut in (2, 5, 6):
        disturbed.tell(*events[:cut])
        disturbed.embedded.close()
        disturbed = Pipeline(tmp_path / "b")
    disturbed.tell(*events)
    disturbed.run("during")
    disturbed.embedded.pump()
    assert disturbed.hash_of("during") == undisturbed.hash_of("during")
    undisturbed.embedded.close()
    disturbed.embedded.close()


def test_a_job_that_falls_silent_ends_as_truncated_after_a_minute(pipeline):
    pipeline.tell(*recorded_events(4)[:6])
    pipeline.run("during")
    pipeline.embedded.pump()
    assert pipeline.order_of("TraceCompleted") == []
    pipeline.clock._now_ms += SILENCE_LIMIT_MS - 1000
    pipeline.embedded.pump()
    assert pipeline.order_of("TraceCompleted") == []
    pipeline.clock._now_ms += 2000
    pipeline.embedded.pump()
    assert pipeline.order_of("TraceCompleted") == ["TraceCompleted"]
    (trace,) = pipeline.embedded.store.query("from traces")
    assert trace["is_truncated"]
    assert trace["step_count"] == 2
    assert pipeline.hash_of("during")


def test_a_server_that_was_down_does_not_take_its_own_absence_for_silence(tmp_path):
    pipeline = Pipeline(tmp_path)
    pipeline.tell(*recorded_events(4)[:6])
    pipeline.embedded.close()
    later = Pipeline(tmp_path, Clock(pipeline.clock() + 10 * SILENCE_LIMIT_MS))
    later.embedded.pump()
    assert later.order_of("TraceCompleted") == []
    later.tell(*recorded_events(4)[6:])
    (trace,) = later.embedded.store.query("from traces")
    assert not trace["is_truncated"]
    later.embedded.close()
