import pytest
from cascade_schemas.codec import encode
from cascade_schemas.recording import MalformedRecording, RecordedRecord, read_recording, write_recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.factories import trace_events

RECORDS = [RecordedRecord(0, n, 1000 + n, encode(event)) for n, event in enumerate(trace_events())]


def test_a_recording_gives_back_what_was_written(tmp_path):
    assert write_recording(tmp_path / "a.cascade", RECORDS) == len(RECORDS)
    assert list(read_recording(tmp_path / "a.cascade")) == RECORDS


def test_an_empty_recording_is_one(tmp_path):
    write_recording(tmp_path / "a.cascade", [])
    assert list(read_recording(tmp_path / "a.cascade")) == []


def test_a_failed_write_leaves_nothing(tmp_path):
    def failing():
        yield RECORDS[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_recording(tmp_path / "a.cascade", failing())
    assert list(tmp_path.iterdir()) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_recording_is_refused_in_one_sentence(tmp_path, data):
    path = tmp_path / "a.cascade"
    write_recording(path, RECORDS)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(MalformedRecording, match=r"a\.cascade is not a whole Cascade recording"):
        list(read_recording(path))
