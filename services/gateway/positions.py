"""A run's records in replay order: (timestamp ms, topic, offset) over its own and its trace's records.

While the run works, records are appended as they come; once its end is stored the order is fixed, and a record's
position is its index in it. Everything here can be made again from the log.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from services.runtime.eventlog import Place, replay_key

_INDEXES_REMEMBERED = 16

END_TYPES = frozenset({"RunCompleted", "RunFailed", "RunCancelled"})

Places = Callable[[int], Sequence[Place]]
"""The places of a run's records that were appended after this position of the log."""


class Order:
    """One order of records, in columns: a run may have millions."""

    def __init__(self, *, is_fixed: bool) -> None:
        self.is_fixed = is_fixed
        self.appended = array("q")  # position of appending, by which the log gives the record
        self.timestamp_ms = array("q")
        self.value_bytes = array("q")
        self._type = array("i")
        self._types: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.appended)

    def extend(self, places: Iterable[Place]) -> None:
        for place in places:
            self.appended.append(place.position)
            self.timestamp_ms.append(place.timestamp_ms)
            self.value_bytes.append(place.value_bytes)
            self._type.append(self._types.setdefault(place.type, len(self._types)))

    def codes(self, types: Iterable[str]) -> frozenset[int]:
        """How this order numbers these types; those it has not met yet included."""
        return frozenset(self._types.setdefault(name, len(self._types)) for name in types)

    def has_type(self, position: int, codes: frozenset[int]) -> bool:
        return self._type[position] in codes

    def appended_of(self, end: int, types: Iterable[str]) -> list[int]:
        """Where in the log the records of these types lie, of those before this position, in order."""
        # A copy: an array that others look into cannot grow.
        kinds = np.frombuffer(self._type[:end].tobytes(), dtype=np.intc)
        found = np.flatnonzero(np.isin(kinds, list(self.codes(types))))
        return [self.appended[at] for at in found.tolist()]

    def position_at(self, at_ms: int) -> int:
        """Of the first record said at this time or later; the end where there is none."""
        if self.is_fixed:
            return bisect_left(self.timestamp_ms, at_ms)
        return next((index for index, said_ms in enumerate(self.timestamp_ms) if said_ms >= at_ms), len(self))


class RunIndex:
    """The newest order of a run's records. A viewer that reads an older one goes on to the end of it."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._last_appended = 0
        self._lock = threading.Lock()
        self.order = Order(is_fixed=False)

    def refresh(self) -> None:
        """Learn of what was appended since."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        new = self._places(self._last_appended)
        if not new:
            return
        self._last_appended = new[-1].position
        is_first = len(self.order) == 0
        if not self.order.is_fixed:
            self.order.extend(sorted(new, key=replay_key) if is_first else new)
        if self.order.is_fixed or any(place.type in END_TYPES for place in new):
            # Asked for anew rather than remembered: this happens once or twice in a run's life.
            fixed = Order(is_fixed=True)
            fixed.extend(sorted(self._places(0), key=replay_key))
            self._last_appended = max(fixed.appended)
            self.order = fixed


class RunPlaces(Protocol):
    """What an index is made from."""

    def keys_of(self, run_id: str) -> tuple[str, str]:
        """The keys of a run's records: its own and its trace's. Raises Refused."""

    def places(self, keys: Sequence[str], after_position: int = 0) -> list[Place]: ...


class RunIndexes:
    """The indexes of the runs that are looked at: viewers and routes share them, so that a position is one moment.

    Thread-safe; blocking.
    """

    def __init__(self, log: RunPlaces) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._indexes: OrderedDict[tuple[str, str], RunIndex] = OrderedDict()

    def of(self, run_id: str) -> RunIndex:
        """A run's index, up to date. Raises Refused."""
        return self.of_keys(self._log.keys_of(run_id))

    def of_keys(self, keys: tuple[str, str]) -> RunIndex:
        """As `of`. keys: of the run's records."""
        with self._lock:
            found = self._indexes.get(keys)
            if found is None:
                found = self._indexes[keys] = RunIndex(lambda after: self._log.places(keys, after))
                while len(self._indexes) > _INDEXES_REMEMBERED:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(keys)
        found.refresh()
        return found
