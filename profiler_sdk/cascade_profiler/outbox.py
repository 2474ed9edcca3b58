"""Between the job and the destination: a bounded queue, and one thread that sends.

The job never waits: what does not fit is dropped and counted. While the destination is away, records go to a spool on
disk; when it is back they are sent in order, before what is newer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cascade_schemas.codec import Record, encode
from cascade_schemas.events import AnyEvent

from cascade_profiler.destinations import Destination, DestinationAway, DestinationRefused
from cascade_profiler.rows import packed
from cascade_profiler.saying import say
from cascade_profiler.spool import Spool

HEARTBEAT_S = 5.0
_RETRY_FIRST_S, _RETRY_LIMIT_S = 0.25, 5.0
_ITEMS_PER_SEND = 64
_SEND_BYTES = 4 << 20  # about what is encoded at once
_LINGER_S = 0.1  # waking for every step would cost the job a switch of threads in each
_WAKE_BYTES = 256 << 10


class Item(NamedTuple):
    """Events not yet made: the job's thread pays for none of it."""

    make: Callable[[], Iterable[AnyEvent]]
    size_bytes: int


@dataclass(slots=True)
class Delivery:
    """What became of the records so far."""

    sent_records: int = 0
    spooled_records: int = 0
    lost_records: int = 0  # encoded, and neither sent nor spooled at the end
    refused: str = ""  # why the destination will take nothing


class Outbox:
    """`heartbeat` makes the event that says the job is alive; None: say nothing."""

    def __init__(
        self,
        destination: Destination,
        spool: Spool | None,
        *,
        memory_bytes_limit: int = 64 << 20,
        heartbeat: Callable[[], AnyEvent] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.delivery = Delivery()
        self._destination = destination
        self._spool = spool
        self._memory_bytes_limit = memory_bytes_limit
        self._heartbeat = heartbeat
        self._heartbeat_s = heartbeat_s
        self._items: deque[Item] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._deadline_s = float("inf")
        self._retry_at_s = 0.0
        self._retry_s = 0.0  # 0: connected
        self._beat_at_s = time.monotonic() + heartbeat_s
        self._thread = threading.Thread(target=self._run, name="cascade-outbox", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def offer(self, item: Item, *, is_small: bool = False) -> bool:
        """Take an item to be sent; False where there is no room for it. `is_small`: there always is."""
        with self._changed:
            is_full = self._waiting_bytes + item.size_bytes > self._memory_bytes_limit
            if self._is_closing or self.delivery.refused or (is_full and not is_small):
                return False
            self._items.append(item)
            self._waiting_bytes += item.size_bytes
            if self._waiting_bytes >= _WAKE_BYTES:
                self._changed.notify_all()
            return True

    def close(self, timeout_s: float) -> Delivery:
        """Send what waits, for at most so long; what is left stays in the spool."""
        with self._changed:
            self._is_closing = True
            self._deadline_s = time.monotonic() + timeout_s
            self._changed.notify_all()
        self._thread.join(timeout_s + 5.0)
        return self.delivery

    def _run(self) -> None:
        try:
            while (items := self._taken()) is not None:
                events = packed(event for item in items for event in item.make())
                records = [encode(event, is_compressed=True) for event in events]
                if records:
                    self._deliver(records)
                with self._changed:
                    self._waiting_bytes -= sum(item.size_bytes for item in items)
            while self._spool is not None and not self._spool.is_empty and time.monotonic() < self._deadline_s:
                if self._is_connected():
                    break
                self._pause()
        except Exception as error:  # noqa: BLE001 - a bug here must not end the user's job
            self.delivery.refused = f"the sender failed ({type(error).__name__}: {error})"
            say(f"{self.delivery.refused}; nothing more is sent, the job goes on")
        finally:
            self._left()

    def _taken(self) -> list[Item] | None:
        """What to send next, a heartbeat when one is due; None once closed and empty."""
        with self._changed:
            if not self._is_closing and self._waiting_bytes < _WAKE_BYTES:
                self._changed.wait(_LINGER_S)
            if self._is_closing and not self._items:
                return None
            taken: list[Item] = []
            held_bytes = 0
            while self._items and len(taken) < _ITEMS_PER_SEND and held_bytes < _SEND_BYTES:
                taken.append(self._items.popleft())
                held_bytes += taken[-1].size_bytes
        if self._heartbeat is not None and time.monotonic() >= self._beat_at_s:
            self._beat_at_s = time.monotonic() + self._heartbeat_s
            beat = self._heartbeat
            taken.append(Item(lambda: (beat(),), 0))
        elif not taken:
            self._is_connected()
        return taken

    def _deliver(self, records: Sequence[Record]) -> None:
        while not self.delivery.refused:
            if self._is_connected() and self._is_sent(records):
                return
            if self.delivery.refused:
                break
            if self._spool is not None and self._spool.append(records, time.time_ns() // 1_000_000):
                self.delivery.spooled_records += len(records)
                return
            if time.monotonic() >= self._deadline_s:
                break
            self._pause()
        self.delivery.lost_records += len(records)

    def _is_connected(self) -> bool:
        """Whether newer records may be sent: the destination answers, and all that was spooled has been sent."""
        if time.monotonic() < self._retry_at_s:
            return False
        if self._spool is None or self._spool.is_empty:
            return True
        for records in self._spool.waiting():
            if not self._is_sent(records):
                return False
        self._spool.clear()
        say("the destination is back; everything that waited has been sent")
        return True

    def _is_sent(self, records: Sequence[Record]) -> bool:
        try:
            self._destination.send(records)
        except DestinationAway as error:
            self._retry_s = min(max(self._retry_s * 2, _RETRY_FIRST_S), _RETRY_LIMIT_S)
            self._retry_at_s = time.monotonic() + self._retry_s
            say(f"{error}; records wait on disk and are sent when it is back")
            return False
        except DestinationRefused as error:
            self.delivery.refused = str(error)
            say(f"{error}; nothing more is recorded, the job goes on")
            return False
        self._retry_s = 0.0
        self.delivery.sent_records += len(records)
        return True

    def _pause(self) -> None:
        with self._changed:
            until_s = min(self._retry_at_s, self._deadline_s)
            self._changed.wait(max(min(until_s - time.monotonic(), 0.5), 0.01))

    def _left(self) -> None:
        try:
            self._destination.close()
        except Exception as error:  # noqa: BLE001 - see _run
            say(f"the destination could not be closed ({type(error).__name__})")
        if self._spool is None:
            return
        is_left = not self._spool.is_empty
        self._spool.close()
        if is_left:
            say(f"records wait in {self._spool.path}; send them with: cascade-trace --resume {self._spool.path}")
