"""Between job and destination: nothing is lost while it is away, memory stays bounded, the job never waits."""

import threading
import time

import pyarrow as pa
import pytest
from cascade_profiler import saying
from cascade_profiler.destinations import (
    BadDestination,
    DestinationAway,
    DestinationRefused,
    File,
    Gateway,
    KafkaAccess,
    Memory,
    destination_of,
    stream_path,
)
from cascade_profiler.recorder import Recorder, StepFacts
from cascade_profiler.spool import Spool
from cascade_schemas.codec import decode, encode
from cascade_schemas.events import LaunchesRecorded, StepRecorded, TraceCompleted, TraceEnded, TraceHeartbeat
from cascade_schemas.recording import MalformedRecording, RecordStream, is_record_stream, packed_records, read_stream

from services.ingest.live import LiveIngest
from tests.recordings import LAYERS, recorded_events, recording_started, step_launches


@pytest.fixture(autouse=True)
def told():
    saying.forget()
    yield saying.said
    saying.forget()


def facts(step):
    prompt = 64
    return StepFacts(step, step * 1_000_000, 900_000, (0,), (prompt if step == 0 else 1,), (prompt + step,), (prompt,))


def record_steps(recorder, steps):
    return [recorder.step(facts(step), step_launches(step, 64 if step == 0 else 1, step * 1_000_000)) for step in steps]


def events_of(records):
    return [decode(record.headers, record.value) for record in records]


def catalog_of(records):
    live = LiveIngest()
    return [said for event in events_of(records) for said in live.react(event)]


class Flaky(Memory):
    """Away when told so; may take a batch and then fail to say so."""

    def __init__(self):
        super().__init__()
        self.is_away = False
        self.loses_answers = False
        self.refuses = ""
        self.asked = 0

    def send(self, records):
        self.asked += 1
        if self.refuses:
            raise DestinationRefused(self.refuses)
        if self.is_away:
            raise DestinationAway("nobody there")
        super().send(records)
        if self.loses_answers:
            self.loses_answers = False
            raise DestinationAway("the answer was lost")


def recorder_of(destination, tmp_path, **options):
    spool = Spool(tmp_path / "spool.cascade-trace", options.pop("spool_bytes_limit", 1 << 26))
    return Recorder(recording_started(), destination, spool, **{"heartbeat_s": 60.0, **options})


def test_what_is_recorded_is_what_ingest_understands(tmp_path):
    memory = Memory()
    recorder = recorder_of(memory, tmp_path)
    assert all(record_steps(recorder, range(5)))
    recorder.end([], 10)
    end = catalog_of(memory.records)[-1]
    assert isinstance(end, TraceCompleted)
    assert (end.launch_count, end.step_count, end.is_truncated) == (5 * 2 * LAYERS, 5, False)


def test_while_the_destination_is_away_everything_waits_on_disk_and_arrives_in_order(tmp_path, told):
    flaky = Flaky()
    flaky.is_away = True
    recorder = recorder_of(flaky, tmp_path)
    record_steps(recorder, range(3))
    wait_until(lambda: recorder.outbox.delivery.spooled_records >= 4)
    assert (tmp_path / "spool.cascade-trace").exists()
    assert flaky.records == []
    record_steps(recorder, range(3, 6))
    flaky.is_away = False
    record_steps(recorder, range(6, 8))
    delivery = recorder.end([], 10)
    assert delivery.lost_records == 0
    seqs = [event.first_seq for event in events_of(flaky.records) if isinstance(event, LaunchesRecorded)]
    assert seqs == sorted(seqs)
    end = catalog_of(flaky.records)[-1]
    assert (end.launch_count, end.step_count, end.is_truncated) == (8 * 2 * LAYERS, 8, False)
    assert not (tmp_path / "spool.cascade-trace").exists()
    assert len([sentence for sentence in told() if "nobody there" in sentence]) == 1


def test_an_answer_that_is_lost_means_sending_twice_and_counting_once(tmp_path):
    flaky = Flaky()
    recorder = recorder_of(flaky, tmp_path)
    record_steps(recorder, range(2))
    wait_until(lambda: flaky.records)
    flaky.loses_answers = True
    record_steps(recorder, range(2, 4))
    recorder.end([], 10)
    sent = [event for event in events_of(flaky.records) if isinstance(event, LaunchesRecorded)]
    assert sum(event.rows.num_rows for event in sent) > 4 * 2 * LAYERS
    end = catalog_of(flaky.records)[-1]
    assert (end.launch_count, end.step_count) == (4 * 2 * LAYERS, 4)


def test_with_a_dead_destination_and_no_disk_memory_is_bounded_and_drops_are_counted(tmp_path):
    flaky = Flaky()
    flaky.is_away = True
    limit = 60_000
    recorder = recorder_of(flaky, tmp_path, memory_bytes_limit=limit, spool_bytes_limit=0)
    waited, taken = [], []
    for step in range(400):
        began = time.perf_counter()
        taken += record_steps(recorder, [step])
        waited.append(time.perf_counter() - began)
        assert recorder.outbox.waiting_bytes <= limit + 2000
    assert not all(taken)
    assert sorted(waited)[len(waited) // 2] < 0.005
    flaky.is_away = False
    recorder.end([], 10)
    counts = recorder.counts
    assert counts.steps + counts.dropped_steps == 400
    assert counts.dropped_launches == counts.dropped_steps * 2 * LAYERS
    end = catalog_of(flaky.records)[-1]
    # What was taken is whole and consecutive; what was dropped is said.
    assert (end.launch_count, end.step_count) == (counts.launches, counts.steps)
    assert any("dropped" in note for note in end.quality["notes"])
    assert end.quality["dropped_event_count"] == counts.dropped_launches


def test_a_destination_that_refuses_is_asked_once_and_the_job_goes_on(tmp_path, told):
    flaky = Flaky()
    flaky.refuses = "the token is wrong"
    recorder = recorder_of(flaky, tmp_path)
    wait_until(lambda: recorder.outbox.delivery.refused)
    assert record_steps(recorder, range(5)) == [False] * 5
    recorder.end([], 5)
    assert flaky.asked == 1
    assert any("the token is wrong" in sentence for sentence in told())


def test_what_cannot_be_sent_at_the_end_stays_on_disk_with_the_way_to_send_it(tmp_path, told):
    flaky = Flaky()
    flaky.is_away = True
    recorder = recorder_of(flaky, tmp_path)
    record_steps(recorder, range(3))
    recorder.end([], 0.5)
    assert any("cascade-trace --resume" in sentence for sentence in told())
    records = list(read_stream(tmp_path / "spool.cascade-trace"))
    assert isinstance(events_of(records)[-1], TraceEnded)
    assert catalog_of(records)[-1].step_count == 3


def test_a_heartbeat_says_that_the_job_is_alive(tmp_path):
    memory = Memory()
    recorder = recorder_of(memory, tmp_path, heartbeat_s=0.05)
    wait_until(lambda: sum(isinstance(e, TraceHeartbeat) for e in events_of(list(memory.records))) >= 3)
    recorder.end([], 5)


def test_a_bug_in_a_destination_ends_the_trace_and_not_the_job(tmp_path, told):
    class Broken(Memory):
        def send(self, records):
            raise ZeroDivisionError

    recorder = recorder_of(Broken(), tmp_path)
    record_steps(recorder, range(2))
    recorder.end([], 2)
    assert any("ZeroDivisionError" in sentence for sentence in told())


def test_several_threads_may_record_at_once(tmp_path):
    memory = Memory()
    recorder = recorder_of(memory, tmp_path)
    threads = [threading.Thread(target=record_steps, args=(recorder, range(k, 60, 4))) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.end([], 10)
    end = catalog_of(memory.records)[-1]
    assert (end.launch_count, end.step_count) == (60 * 2 * LAYERS, 60)


# --- destinations and streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ftp://x", "nothing", "kafka://", "http://", "file://"])
def test_an_address_of_no_kind_is_refused_with_the_ones_there_are(address):
    with pytest.raises(BadDestination, match=r"write|no destination"):
        destination_of(address, trace_id="0" * 16, rank=0)


def test_each_rank_has_its_file():
    assert stream_path("file:///data/job", 3).as_posix() == "/data/job.rank3.cascade-trace"
    assert isinstance(destination_of("http://127.0.0.1:1", trace_id="a", rank=0), Gateway)


def test_a_file_cut_anywhere_is_read_to_its_last_whole_record(tmp_path):
    path = tmp_path / "job.rank0.cascade-trace"
    file = File(path)
    events = recorded_events(4)
    for event in events:
        file.send([encode(event, is_compressed=True)])
    file.close()
    whole = path.read_bytes()
    assert is_record_stream(whole[:4096])
    assert len(list(read_stream(path))) == len(events)
    seen = set()
    for cut in range(len(whole) - 1, 600, -97):
        path.write_bytes(whole[:cut])
        try:
            records = list(read_stream(path))
        except MalformedRecording:
            records = []
        assert [r.value for r in records] == [encode(e, is_compressed=True).value for e in events[: len(records)]]
        seen.add(len(records))
    assert len(seen) > len(events) // 2


def test_what_is_no_stream_is_said_to_be_none(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"not one")
    with pytest.raises(MalformedRecording, match="no Cascade record stream"):
        list(read_stream(path))
    with RecordStreamFile(tmp_path / "empty") as empty:
        assert list(read_stream(empty)) == []
    assert list(read_stream(packed_records([], 0))) == []


class RecordStreamFile:
    def __init__(self, path):
        self._stream = RecordStream(path)

    def __enter__(self):
        self._stream.close()
        return self._stream.path

    def __exit__(self, *_):
        pass


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_launches_of_steps_that_wait_together_are_one_record_and_in_order(tmp_path):
    kept = Memory()
    recorder = recorder_of(kept, tmp_path)
    record_steps(recorder, range(5))
    recorder.end([], 10)
    events = events_of(kept.records)
    launches = [event for event in events if isinstance(event, LaunchesRecorded)]
    assert len(launches) < 5
    assert pa.concat_batches([e.rows for e in launches]).column("seq").to_pylist() == list(range(5 * 2 * LAYERS))
    # A step is said when all of its launches have been.
    said = 0
    for event in events:
        if isinstance(event, LaunchesRecorded):
            assert event.first_seq == said
            said += event.rows.num_rows
        elif isinstance(event, StepRecorded):
            assert said >= (event.step + 1) * 2 * LAYERS


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"CASCADE_KAFKA_PROTOCOL": "TLS"}, "CASCADE_KAFKA_PROTOCOL='TLS': must be one of PLAINTEXT, SSL"),
        ({"CASCADE_KAFKA_MECHANISM": "MAGIC"}, "CASCADE_KAFKA_MECHANISM='MAGIC': must be one of PLAIN"),
        ({"CASCADE_KAFKA_PROTOCOL": "SASL_SSL"}, "SASL_SSL needs CASCADE_KAFKA_USERNAME and CASCADE_KAFKA_PASSWORD"),
    ],
)
def test_what_a_broker_would_not_understand_is_said_before_the_job_begins(environ, said):
    with pytest.raises(BadDestination, match=said):
        KafkaAccess.from_environ(environ)
