import gzip
import json
import sqlite3

import pytest

from services.ingest.growing import QUIET_S, FileEnd, follow
from tests.factories import kineto_trace


class Writer:
    """A clock, and a profiler that writes a little more at each look."""

    def __init__(self, path, body, step):
        self.path, self.body, self.step = path, body, step
        self.written, self.now = 0, 0.0

    def sleep(self, seconds):
        self.now += seconds
        if self.written < len(self.body):
            self.written += self.step
            self.path.write_bytes(self.body[: self.written])


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_following_ends_when_the_file_is_whole(tmp_path, pack):
    body = pack(kineto_trace(tmp_path / "whole.json").read_bytes())
    writer = Writer(tmp_path / "growing.json", body, step=len(body) // 7)
    seen = []
    growth = follow(writer.path, lambda: writer.now, writer.sleep, seen.append)
    assert growth.is_whole
    assert growth.size_bytes == len(body)
    assert writer.now < QUIET_S
    assert [look.is_whole for look in seen].count(True) == 1


def test_a_file_that_stops_growing_is_taken_as_it_is(tmp_path):
    body = kineto_trace(tmp_path / "whole.json").read_bytes()
    writer = Writer(tmp_path / "growing.json", body[: len(body) // 2], step=100_000)
    growth = follow(writer.path, lambda: writer.now, writer.sleep, lambda _: None)
    assert not growth.is_whole
    assert writer.now >= QUIET_S


def test_a_file_that_never_appears_is_an_error(tmp_path):
    writer = Writer(tmp_path / "never.json", b"", step=1)
    with pytest.raises(FileNotFoundError, match="has not appeared"):
        follow(writer.path, lambda: writer.now, writer.sleep, lambda _: None)


def test_no_prefix_of_a_trace_looks_whole(tmp_path):
    whole = kineto_trace(tmp_path / "whole.json")
    body = whole.read_bytes()
    assert FileEnd(whole).is_reached()
    part = tmp_path / "part.json"
    for length in range(1, len(body), 7):
        part.write_bytes(body[:length])
        assert not FileEnd(part).is_reached(), body[max(0, length - 40) : length]


def test_a_trace_with_keys_after_its_events_is_whole(tmp_path):
    trace = json.loads(kineto_trace(tmp_path / "t.json").read_text())
    path = tmp_path / "u.json"
    path.write_text(json.dumps(trace | {"traceName": "x.json", "displayTimeUnit": "ms"}))
    assert FileEnd(path).is_reached()


def test_brackets_and_escaped_quotes_in_names_do_not_count(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [{"name": 'a "]}" \\'}]}))
    assert FileEnd(path).is_reached()


@pytest.mark.parametrize("size", [17, 61, 1000])
def test_looking_while_it_grows_sees_the_same_end(tmp_path, size):
    body = kineto_trace(tmp_path / "t.json").read_bytes()
    path = tmp_path / "u.json"
    end = FileEnd(path)
    for length in range(0, len(body), size):
        path.write_bytes(body[:length])
        assert not end.is_reached()
    path.write_bytes(body)
    assert end.is_reached()


def test_sqlite_and_gzip_ends_are_known(tmp_path):
    database = tmp_path / "d.sqlite"
    connection = sqlite3.connect(database)
    connection.execute("create table t (a)")
    connection.commit()
    connection.close()
    assert FileEnd(database).is_reached()
    database.write_bytes(database.read_bytes()[:-100])
    assert not FileEnd(database).is_reached()
    packed = tmp_path / "t.gz"
    packed.write_bytes(gzip.compress(b"{}") + gzip.compress(b"[]"))
    assert FileEnd(packed).is_reached()
    packed.write_bytes(packed.read_bytes()[:-3])
    assert not FileEnd(packed).is_reached()
