"""The embedded event log: SQLite in WAL mode, one writer process, any number of readers.

The interface is that of a Kafka topic with one partition: append, read from an offset, commit a group's offset. What
Kafka cannot do, this can: appending a service's answers and committing its offset is one transaction.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from cascade_schemas.codec import Record
from cascade_schemas.events import TOPICS

# A lost answer is computed again from the fact that caused it; a lost command or a lost end of a trace is not.
DURABLE_TYPES = frozenset({"TraceUploaded", "RunRequested", "RunCancelled", "TraceCompleted", "TraceRejected"})

_POSITIONS_PER_READ = 512  # placeholders of one statement

_SCHEMA = """
create table if not exists records (
    position integer primary key,      -- order of appending over all topics
    topic text not null,
    offset integer not null,           -- from 0 within the topic
    timestamp_ms integer not null,
    key text not null,
    type text not null,
    headers text not null,
    value blob not null
);
create unique index if not exists by_offset on records (topic, offset);
create index if not exists by_key on records (key, position);
create table if not exists commits (
    consumer text, topic text, next_offset integer not null, primary key (consumer, topic)
);
"""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with its place in the log."""

    topic: str
    offset: int
    timestamp_ms: int
    record: Record


class Place(NamedTuple):
    """Where a record lies, and what is needed to put it in order and to size a read of it."""

    position: int  # of appending, over all topics
    topic: str
    offset: int
    timestamp_ms: int
    type: str
    value_bytes: int


class EventLog:
    """All methods may be called from any thread; each is atomic."""

    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._appended = threading.Condition()
        self._append_count = 0
        address = f"file:{path}?mode=ro" if is_read_only else str(path)
        self._db = sqlite3.connect(
            address, uri=is_read_only, check_same_thread=False, isolation_level=None, timeout=30, cached_statements=64
        )
        if not is_read_only:
            self._db.execute("pragma journal_mode=wal")
            self._db.executescript(_SCHEMA)
            # WAL frames of answers reach the disk at the next checkpoint; see DURABLE_TYPES for what may not wait.
            self._db.execute("pragma synchronous=normal")
        self._next_offset: dict[str, int] = dict(
            self._db.execute("select topic, max(offset) + 1 from records group by topic").fetchall()
        )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def append(
        self,
        records: Sequence[Record],
        *,
        timestamp_ms: int | Sequence[int],
        commit: tuple[str, dict[str, int]] | None = None,
    ) -> None:
        """Append all records, and commit a consumer's next offsets per topic with them: all or nothing.

        timestamp_ms: of all, or one for each.
        """
        timed = (
            zip(records, repeat(timestamp_ms), strict=False)
            if isinstance(timestamp_ms, int)
            else zip(records, timestamp_ms, strict=True)
        )
        with self._lock:
            is_durable = any(r.headers["type"] in DURABLE_TYPES for r in records)
            # A transaction's synchronous level is read at its start, so it is set outside.
            self._db.execute(f"pragma synchronous={'full' if is_durable else 'normal'}")
            next_offset = dict(self._next_offset)
            rows = []
            for r, time_ms in timed:
                offset = next_offset.get(r.topic, 0)
                next_offset[r.topic] = offset + 1
                headers = json.dumps(r.headers, separators=(",", ":"))
                rows.append((r.topic, offset, time_ms, r.key, r.headers["type"], headers, r.value))
            self._db.execute("begin immediate")
            try:
                self._db.executemany(
                    "insert into records (topic, offset, timestamp_ms, key, type, headers, value)"
                    " values (?,?,?,?,?,?,?)",
                    rows,
                )
                if commit is not None:
                    consumer, offsets = commit
                    self._db.executemany(
                        "insert into commits values (?,?,?)"
                        " on conflict do update set next_offset = excluded.next_offset",
                        [(consumer, topic, offset) for topic, offset in offsets.items()],
                    )
                self._db.execute("commit")
            except BaseException:
                self._db.execute("rollback")
                raise
            self._next_offset = next_offset
        if records:
            with self._appended:
                self._append_count += 1
                self._appended.notify_all()

    def read(self, topic: str, from_offset: int, limit: int, *, types: Iterable[str] = ()) -> list[StoredRecord]:
        """Records of a topic in order; `types` restricts to events of these types."""
        chosen = tuple(types)
        where = f" and type in ({','.join('?' * len(chosen))})" if chosen else ""
        sql = (
            "select topic, offset, timestamp_ms, key, headers, value from records"  # noqa: S608 - placeholders only
            f" where topic = ? and offset >= ?{where} order by offset limit ?"
        )
        with self._lock:
            rows = self._db.execute(sql, (topic, from_offset, *chosen, limit)).fetchall()
        return [_stored(row) for row in rows]

    def read_keys(self, keys: Sequence[str], *, types: Sequence[str] = ()) -> Iterator[StoredRecord]:
        """All records of these keys in replay order: timestamp, topic in the order of TOPICS, offset."""
        where = f" and type in ({','.join('?' * len(types))})" if types else ""
        sql = (
            "select topic, offset, timestamp_ms, key, headers, value from records"  # noqa: S608 - placeholders only
            f" where key in ({','.join('?' * len(keys))}){where}"
        )
        with self._lock:
            rows = self._db.execute(sql, (*keys, *types)).fetchall()
        for row in sorted(rows, key=lambda row: (row[2], topic_rank(row[0]), row[1])):
            yield _stored(row)

    def places(self, keys: Sequence[str], after_position: int = 0) -> list[Place]:
        """Where the records of these keys lie, in the order of appending; without their values."""
        sql = (
            "select position, topic, offset, timestamp_ms, type, length(value) from records"  # noqa: S608 - placeholders only
            f" where key in ({','.join('?' * len(keys))}) and position > ? order by position"
        )
        with self._lock:
            rows = self._db.execute(sql, (*keys, after_position)).fetchall()
        return [Place(*row) for row in rows]

    def read_positions(self, positions: Sequence[int]) -> list[StoredRecord]:
        """The records at these positions of appending, in the order asked for."""
        found: dict[int, StoredRecord] = {}
        for first in range(0, len(positions), _POSITIONS_PER_READ):
            part = tuple(positions[first : first + _POSITIONS_PER_READ])
            sql = (
                "select topic, offset, timestamp_ms, key, headers, value, position from records"  # noqa: S608 - placeholders only
                f" where position in ({','.join('?' * len(part))})"
            )
            with self._lock:
                rows = self._db.execute(sql, part).fetchall()
            found |= {row[6]: _stored(row[:6]) for row in rows}
        return [found[position] for position in positions]

    def topics(self) -> list[str]:
        with self._lock:
            return sorted(self._next_offset, key=lambda topic: (topic_rank(topic), topic))

    def end(self, topic: str) -> int:
        """The offset the next record of the topic will get."""
        with self._lock:
            return self._next_offset.get(topic, 0)

    def committed(self, consumer: str, topic: str) -> int:
        with self._lock:
            row = self._db.execute(
                "select next_offset from commits where consumer = ? and topic = ?", (consumer, topic)
            ).fetchone()
        return int(row[0]) if row else 0

    def wait(self, seen_append_count: int, timeout_s: float) -> int:
        """Block until something was appended since `seen_append_count`; returns the count to wait from next."""
        with self._appended:
            self._appended.wait_for(lambda: self._append_count != seen_append_count, timeout_s)
            return self._append_count


def replay_key(place: Place) -> tuple[int, int, int]:
    """Sorts places into replay order."""
    return place.timestamp_ms, topic_rank(place.topic), place.offset


def topic_rank(topic: str) -> int:
    """Place of a topic in replay order; all work.<simulator> topics share one."""
    return TOPICS.index(topic.partition(".")[0])


def _stored(row: tuple[str, int, int, str, str, bytes]) -> StoredRecord:
    topic, offset, timestamp_ms, key, headers, value = row
    return StoredRecord(topic, offset, timestamp_ms, Record(topic, key, json.loads(headers), value))
