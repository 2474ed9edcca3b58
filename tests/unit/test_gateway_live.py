"""/ws: order, credits, pace and places of one viewer; then real sockets."""

from __future__ import annotations

import json
import time

import pyarrow as pa
import pytest
from cascade_schemas.codec import decode
from cascade_schemas.events import TraceCompleted
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from services.aggregator import queries
from services.aggregator.reactor import Aggregator
from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store
from services.gateway import live
from services.gateway.bodies import At, Position, parse_control
from services.gateway.live import FRAME, Say, Send, View, Wait
from services.gateway.positions import RunIndex
from services.runtime.engine import ImportOptions, Refused
from services.runtime.eventlog import Place
from tests.factories import FakeSimulator, fake_simulators, kineto_trace
from tests.served import TOKEN, served

# --- order ----------------------------------------------------------------------------------------------------------


def place(position, timestamp_ms, topic="results", kind="KernelsSimulated", size=100):
    return Place(position, topic, position, timestamp_ms, kind, size)


def index_of(places, *, refreshed=True):
    index = RunIndex(lambda after: [one for one in places if one.position > after])
    if refreshed:
        index.refresh()
    return index


def test_replay_order_is_time_then_topic_then_offset():
    places = [place(1, 5, "results"), place(2, 5, "catalog"), place(3, 4, "predictions"), place(4, 5, "results")]
    assert list(index_of(places).order.appended) == [3, 2, 1, 4]


def test_while_a_run_works_records_are_appended_and_its_end_fixes_the_order():
    places = [place(1, 5, "predictions")]
    index = index_of(places)
    places.append(place(2, 5, "results"))  # the same millisecond, an earlier topic, appended later
    index.refresh()
    assert list(index.order.appended) == [1, 2]
    live_order = index.order
    places.append(place(3, 6, "predictions", "RunCompleted"))
    index.refresh()
    assert index.order.is_fixed
    assert list(index.order.appended) == [2, 1, 3]
    assert list(live_order.appended) == [1, 2, 3]  # whoever reads it reads it to the end


@given(
    times=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    topics=st.lists(st.sampled_from(["catalog", "runs", "results", "predictions"]), min_size=30, max_size=30),
    cuts=st.sets(st.integers(1, 30)),
)
def test_a_fixed_order_does_not_depend_on_when_it_was_looked_at(times, topics, cuts):
    places = [place(n + 1, at, topics[n]) for n, at in enumerate(sorted(times))]
    places.append(place(len(places) + 1, 9, "predictions", "RunCompleted"))
    known = []
    index = RunIndex(lambda after: [one for one in known if one.position > after])
    for one in places:
        known.append(one)
        if one.position in cuts:
            index.refresh()
    index.refresh()
    assert list(index.order.appended) == list(index_of(places).order.appended)


# --- one viewer, without a socket -------------------------------------------------------------------------------------


def finished(count=1000, size=100, step_ms=10):
    places = [place(n + 1, n * step_ms, size=size) for n in range(count - 1)]
    return index_of([*places, place(count, count * step_ms, "predictions", "RunCompleted")])


def turns(view, now_s=0.0, frames=None):
    """All that the view does until it waits."""
    if frames is not None:
        view.credits = frames
    done = []
    while not isinstance(turn := view.turn(now_s), Wait):
        done.append(turn)
        assert len(done) < 100_000
    return done, turn


def sent(done):
    return [position for turn in done if isinstance(turn, Send) for position in turn.positions]


def test_each_frame_costs_a_credit_and_without_credit_nothing_is_read():
    view = View(finished(10_000))
    done, wait = turns(view)
    assert [type(turn) for turn in done] == [Send] * live.CREDITS_AT_START
    assert wait.seconds is None
    assert turns(view)[0] == []
    view.credits = 1
    assert len(turns(view)[0]) == 1


def test_frames_are_bounded_by_records_and_by_bytes():
    done, _ = turns(View(finished(2000)), frames=60)
    assert max(len(turn.positions) for turn in done if isinstance(turn, Send)) == live.RECORDS_PER_FRAME
    done, _ = turns(View(finished(20, size=400_000)), frames=60)
    assert [len(turn.positions) for turn in done if isinstance(turn, Send)] == [2] * 10
    done, _ = turns(View(finished(3, size=50 << 20)), frames=60)
    assert [len(turn.positions) for turn in done if isinstance(turn, Send)] == [1, 1, 1]


def test_every_record_is_sent_once_and_then_the_end_is_said_once():
    view = View(finished(1000))
    done, _ = turns(view, frames=60)
    assert sent(done) == list(range(1000))
    assert [turn.message["op"] for turn in done if isinstance(turn, Say)] == ["end"]
    assert turns(view)[0] == []


@given(st.integers(0, 1200), st.integers(0, 12_000))
def test_a_seek_goes_on_from_there(position, at_ms):
    view = View(finished(1000))
    turns(view, frames=60)
    view.go_to(Position(position=position), 7)
    done, _ = turns(view, frames=60)
    assert done[0].message["op"] == "at"
    assert done[0].message["id"] == 7
    assert done[0].message["position"] == min(position, 1000)
    assert sent(done) == list(range(min(position, 1000), 1000))
    view.go_to(At(at_ms=at_ms), 8)
    times = view.order.timestamp_ms
    assert all(times[n] >= at_ms for n in sent(turns(view, frames=60)[0]))
    assert view.order.position_at(at_ms) == sum(time < at_ms for time in times)


def test_of_many_seeks_only_the_last_is_answered():
    view = View(finished(1000))
    for number in range(50):
        view.go_to(Position(position=number * 3), number)
    answers = [
        turn.message for turn in turns(view, frames=60)[0] if isinstance(turn, Say) and turn.message["op"] == "at"
    ]
    assert [(one["id"], one["position"]) for one in answers] == [(49, 147)]


def test_a_replay_keeps_the_pace_of_the_log():
    view = View(finished(1000, step_ms=10))
    view.set_speed(2.0)
    assert sent(turns(view, now_s=50.0, frames=60)[0]) == [0]
    _, wait = turns(view, now_s=50.0)
    assert wait.seconds == pytest.approx(0.005)
    assert sent(turns(view, now_s=51.0, frames=60)[0]) == list(range(1, 201))
    view.set_paused(is_paused=True)
    assert turns(view, now_s=60.0, frames=60)[0] == []
    view.set_paused(is_paused=False)
    assert sent(turns(view, now_s=60.0)[0]) == [201]  # the pause is not made up for
    view.set_speed(None)
    assert sent(turns(view, now_s=60.0, frames=60)[0]) == list(range(202, 1000))


def test_only_the_types_asked_for_are_sent_at_their_positions():
    kinds = ["KernelsSimulated", "SimulatorLogged", "RunCompleted"]
    index = index_of([place(n + 1, n, kind=kind) for n, kind in enumerate(kinds)])
    assert sent(turns(View(index, ("RunCompleted", "SimulatorLogged")))[0]) == [1, 2]


def test_a_live_viewer_is_told_of_the_live_edge_and_then_that_the_order_is_fixed():
    places = [place(1, 1), place(2, 2)]
    index = index_of(places)
    view = View(index)
    done, _ = turns(view)
    assert sent(done) == [0, 1]
    assert done[-1].message["op"] == "live"
    places += [place(3, 3), place(4, 4, "predictions", "RunCompleted")]
    index.refresh()
    done, _ = turns(view)
    assert sent(done) == [2, 3]
    assert [turn.message["op"] for turn in done if isinstance(turn, Say)] == ["fixed", "end"]


# --- control frames ---------------------------------------------------------------------------------------------------


@given(st.text(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_a_control_frame_or_refused_in_one_sentence(text):
    try:
        parse_control(text)
    except Refused as refusal:
        assert "\n" not in str(refusal)


OPS = st.sampled_from(["subscribe", "pause", "resume", "seek", "speed", "credit", "stop", ""])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just({"position": 3})


@given(
    st.dictionaries(st.sampled_from(["run", "from", "speed", "position", "at_ms", "value", "count", "x"]), VALUES), OPS
)
def test_any_fields_are_a_control_frame_or_refused_in_one_sentence(fields, op):
    try:
        parse_control(json.dumps({"op": op} | fields))
    except Refused as refusal:
        assert "\n" not in str(refusal)
        assert len(str(refusal)) < 500


@pytest.mark.parametrize(
    "text",
    [
        '{"op":"seek"}',
        '{"op":"seek","position":1,"at_ms":1}',
        '{"op":"seek","position":-1}',
        '{"op":"speed","value":0}',
        '{"op":"speed","value":NaN}',
        '{"op":"credit","count":0}',
        '{"op":"credit","count":1000000}',
        '{"op":"pause","now":true}',
        '{"op":"subscribe","run":"r","from":"middle"}',
        "[]",
        "",
    ],
)
def test_control_frames_that_mean_nothing_are_refused(text):
    with pytest.raises(Refused):
        parse_control(text)


# --- real sockets ------------------------------------------------------------------------------------------------------


class SlowSimulator(FakeSimulator):
    """Long enough for a viewer to be there while it works."""

    def simulate(self, work, gpus):
        time.sleep(0.2)
        return super().simulate(work, gpus)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    simulators = fake_simulators() | {"slow": SlowSimulator("slow")}
    with served(tmp_path_factory.mktemp("home"), simulators) as server:
        yield server


@pytest.fixture(scope="module")
def trace_id(server, tmp_path_factory):
    path = kineto_trace(tmp_path_factory.mktemp("trace") / "job.json", step_count=3)
    return server.engine.import_files([path], ImportOptions())["trace_id"]


@pytest.fixture(scope="module")
def run(server, trace_id):
    return server.engine.wait_run(server.engine.start_run(trace_id, ["h100_sxm", "l4"], "analytic"))


class Viewer:
    """A client of /ws that folds what it is sent."""

    def __init__(self, server, token=TOKEN):
        headers = {"Authorization": f"Bearer {token}"}
        address = server.url.replace("http", "ws") + "/ws"
        self._connection = connect(address, additional_headers=headers, compression=None)

    def __enter__(self):
        self.socket = self._connection.__enter__()
        return self

    def __exit__(self, *error):
        self._connection.__exit__(*error)

    def say(self, **control):
        self.socket.send(json.dumps(control))

    def hear(self, timeout=10):
        """A control frame, or the rows of a binary one; gives its credit back."""
        message = self.socket.recv(timeout=timeout)
        if isinstance(message, str):
            return json.loads(message)
        self.say(op="credit", count=1)
        return rows_of(message)

    def until(self, op):
        """All rows before the control frame `op`, and it."""
        rows = []
        while not isinstance(heard := self.hear(), dict) or heard["op"] != op:
            assert not isinstance(heard, dict) or heard["op"] != "error", heard
            rows.extend(heard if isinstance(heard, list) else [])
        return rows, heard


def rows_of(message):
    with pa.ipc.open_stream(message) as reader:
        assert reader.schema.equals(FRAME)
        return reader.read_all().to_pylist()


def folded(rows, run_id):
    """The state hash that a viewer arrives at from what it was sent."""
    store = Store(None)
    aggregator = Aggregator(store)
    for row in rows:
        aggregator.restore(decode({"type": row["type"]}, row["value"]))
    store.commit(aggregator.taken_rows(), {})
    try:
        return state_hash(store, run_id), queries.run_report(store, run_id)
    finally:
        store.close()


def test_a_viewer_that_was_sent_everything_knows_what_the_server_knows(server, run):
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run=run["run_id"], **{"from": "start"})
        hello = viewer.hear()
        assert hello["op"] == "hello"
        assert hello["is_complete"]
        rows, end = viewer.until("end")
    assert len(rows) == hello["record_count"] == end["record_count"]
    assert [row["position"] for row in rows] == list(range(len(rows)))
    assert hello["first_ms"] == rows[0]["timestamp_ms"]
    listed = list(server.engine.events(run["run_id"]))
    assert [row["type"] for row in rows] == [event["type"] for event in listed]
    found_hash, report = folded(rows, run["run_id"])
    assert found_hash == run["state_hash"]
    assert report == run


def test_seeking_back_and_forth_ends_in_the_same_state(server, run):
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run=run["run_id"], **{"from": {"position": 5}})
        late, _ = viewer.until("end")
        assert late[0]["position"] == 5
        viewer.say(op="seek", position=len(late) // 2, id=1)
        _, at = viewer.until("at")
        assert at["id"] == 1
        viewer.until("end")
        viewer.say(op="seek", at_ms=0, id=2)
        viewer.until("at")
        rows, _ = viewer.until("end")
    assert folded(rows, run["run_id"])[0] == run["state_hash"]


def test_pause_holds_and_resume_goes_on(server, run):
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run=run["run_id"], **{"from": "start"}, speed=0.001)
        viewer.say(op="pause")
        viewer.say(op="speed", value=None)
        assert viewer.hear()["op"] == "hello"
        before = []
        with pytest.raises(TimeoutError):
            while True:
                before += viewer.hear(timeout=0.5)
        viewer.say(op="resume")
        rows, _ = viewer.until("end")
        assert [row["position"] for row in before + rows] == list(range(len(before + rows)))


def test_a_live_viewer_sees_a_run_from_its_first_record_to_its_last(server, trace_id):
    run_id = server.engine.start_run(trace_id, ["h100_sxm", "l4", "t4"], "slow")
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run=run_id)
        hello = viewer.hear()
        assert not hello["is_complete"]
        rows, fixed = viewer.until("fixed")
        viewer.until("end")
        viewer.say(op="seek", position=0, id=3)
        viewer.until("at")
        again, _ = viewer.until("end")
    deadline = time.monotonic() + 10  # its end is on its way before it is stored
    while (report := server.engine.run_report(run_id))["state_hash"] is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(rows) == fixed["record_count"] == len(again)
    assert folded(rows, run_id)[0] == folded(again, run_id)[0] == report["state_hash"]


def test_a_viewer_that_stops_reading_delays_nobody_and_loses_nothing(server, trace_id):
    with Viewer(server) as stuck, Viewer(server) as reader:
        run_id = server.engine.start_run(trace_id, ["h100_sxm", "l4", "t4"], "slow")
        stuck.say(op="subscribe", run=run_id)
        reader.say(op="subscribe", run=run_id)
        rows, _ = reader.until("end")  # the stuck one has not read a byte
        late, _ = stuck.until("end")
        assert sorted(row["value"] for row in late) == sorted(row["value"] for row in rows)


def test_without_credits_no_more_than_the_first_frames_come(server, run, monkeypatch):
    monkeypatch.setattr(live, "RECORDS_PER_FRAME", 2)
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run=run["run_id"], **{"from": "start"})
        frames = []
        with pytest.raises(TimeoutError):
            while True:
                message = viewer.socket.recv(timeout=0.7)
                if isinstance(message, bytes):
                    frames.append(message)
        assert len(frames) == live.CREDITS_AT_START
        viewer.say(op="credit", count=3)
        for _ in range(3):
            frames.append(viewer.socket.recv(timeout=5))
        assert [row["position"] for frame in frames for row in rows_of(frame)] == list(range(2 * len(frames)))


def test_an_unknown_run_is_said_and_another_may_be_asked_for(server, run):
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run="nothing")
        assert "nothing" in viewer.hear()["error"]
        viewer.say(op="subscribe", run=run["run_id"])
        assert viewer.hear()["op"] == "hello"


@pytest.mark.parametrize("text", ["{", '{"op":"dance"}', '{"op":"pause"}', "x" * 20_000, b"\x00"])
def test_a_viewer_that_talks_nonsense_is_told_so_and_closed(server, text):
    with Viewer(server) as viewer:
        viewer.socket.send(text)
        said = viewer.hear()
        assert said["op"] == "error"
        assert "\n" not in said["error"]
        with pytest.raises(ConnectionClosed):
            viewer.hear()


def test_too_many_viewers_are_refused_with_a_sentence(server, monkeypatch):
    monkeypatch.setattr(live, "VIEWERS_LIMIT", 1)
    with Viewer(server) as first:
        first.say(op="subscribe", run="nothing")
        first.hear()
        with Viewer(server) as second:
            assert "viewers" in second.hear()["error"]


def test_a_viewer_without_the_token_is_not_let_in(server):
    with pytest.raises(InvalidStatus), Viewer(server, token="wrong"):
        pass


def test_an_idle_viewer_is_closed(server, run, monkeypatch):
    monkeypatch.setattr(live, "IDLE_LIMIT_S", 0.3)
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run=run["run_id"])
        with pytest.raises(ConnectionClosed):
            while True:
                viewer.hear(timeout=5)


def test_frames_are_not_deflated(server):
    with Viewer(server) as viewer:
        assert viewer.socket.protocol.extensions == []


def test_records_of_other_runs_wake_nobody(server, run):
    """A trace's end is of all its runs; another trace's is not."""
    with Viewer(server) as viewer:
        viewer.say(op="subscribe", run=run["run_id"])
        viewer.until("end")
        other = TraceCompleted(
            trace_id="another", is_truncated=False, launch_count=0, kernel_count=0, signature_count=0, task_count=0,
            step_count=0, launchless_count=0, quality={},
        )  # fmt: skip
        server.engine.embedded.publish([other])
        with pytest.raises(TimeoutError):
            viewer.hear(timeout=0.3)
