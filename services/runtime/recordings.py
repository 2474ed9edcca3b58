"""What profilers send over HTTP, put on the log: checked, each batch once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from cascade_schemas.codec import MalformedEvent, decode
from cascade_schemas.events import AnyEvent
from cascade_schemas.recording import MalformedRecording, read_stream

from services.runtime.engine import Refused

RECORDS_LIMIT = 20_000  # of one request
_SENDERS_REMEMBERED = 4096


class Recordings:
    """May be called from any thread. `publish` appends events, all or none.

    A batch whose answer was lost is sent again under its number and appended once. After a restart that memory is gone,
    and a batch may be appended twice: what it says has identities of its own.
    """

    def __init__(self, publish: Callable[[Sequence[AnyEvent]], None]) -> None:
        self._publish = publish
        self._lock = threading.Lock()
        self._next_batch: OrderedDict[tuple[str, int, str], int] = OrderedDict()

    def take(self, trace_id: str, rank: int, sender: str, batch: int, body: bytes) -> int:
        """How many events were appended; 0 for a batch that is here already. Raises Refused."""
        events = _events(trace_id, rank, body)
        key = (trace_id, rank, sender)
        with self._lock:
            if batch < self._next_batch.get(key, 0):
                return 0
            self._publish(events)
            self._next_batch[key] = batch + 1
            self._next_batch.move_to_end(key)
            while len(self._next_batch) > _SENDERS_REMEMBERED:
                self._next_batch.popitem(last=False)
        return len(events)


def _events(trace_id: str, rank: int, body: bytes) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    try:
        for record in read_stream(body):
            event = decode(record.headers, record.value)
            if event is None:
                continue  # a newer profiler says something this version does not know
            if event.topic != "traces" or event.key != trace_id or getattr(event, "rank", rank) != rank:
                raise Refused(f"{event.type} is nothing that rank {rank} of trace {trace_id[:64]} may say here")
            events.append(event)
            if len(events) > RECORDS_LIMIT:
                raise Refused(f"more than {RECORDS_LIMIT} records in one request; send them in several")
    except (MalformedRecording, MalformedEvent) as error:
        raise Refused(f"the body is not what cascade-profiler sends: {error}") from error
    if not events:
        raise Refused("the body has no record; send an Arrow record stream as cascade-profiler does")
    return events
