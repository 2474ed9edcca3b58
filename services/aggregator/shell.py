"""How the aggregator's decisions reach the log and its store, in the one order that loses nothing.

Answers are published before rows and positions are committed. A crash in between publishes them again: they are equal,
and whoever reads them keeps the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cascade_schemas.events import AnyEvent, RecordDeadLettered

from services.aggregator.reactor import Aggregator
from services.aggregator.state_hash import state_hash
from services.aggregator.store import Position, Store

TOPICS = ("predictions", "catalog", "runs", "results")
"""Read in this order. Predictions first: after the loss of the store, a run that ended is known before its results
are read again, and is not answered anew by newer code."""

Publish = Callable[[Sequence[AnyEvent]], None]


@dataclass(frozen=True, slots=True)
class Delivered:
    """An event with its place in the log."""

    topic: str
    partition: int
    offset: int
    event: AnyEvent | None  # None: an unknown type; RecordDeadLettered: could not be read, to be said so


class _Held:
    """Where partitions are to be read from after a restart: results that came before their run's request are in memory
    alone, and a stored position beyond them would lose them.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self._from: dict[str, dict[Position, int]] = {}  # run -> partitions, each with the offset of its first batch

    def hold(self, one: Delivered, position: int) -> None:
        """`position`: where the batch began, for rows of many records may be one event, at the last of them."""
        run_id = getattr(one.event, "run_id", None)
        if run_id is not None and self._aggregator.is_awaiting(run_id):
            self._from.setdefault(run_id, {}).setdefault((one.topic, one.partition), position)

    def stored(self, moved: Mapping[Position, int], reached: Mapping[Position, int]) -> dict[Position, int]:
        """The positions to be stored, of `moved` and of what waits no longer; `reached`: where each was before."""
        came = [run_id for run_id in self._from if not self._aggregator.is_awaiting(run_id)]
        released = {place for run_id in came for place in self._from.pop(run_id)}
        positions = {place: reached[place] for place in released if place not in moved} | dict(moved)
        for held in self._from.values():
            for place, offset in held.items():
                if place in positions:
                    positions[place] = min(positions[place], offset)
        return positions


class FollowerShell:
    """Folds what a cluster's aggregator and its services have said into a store of its own, and says nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._aggregator = Aggregator(store)
        self._held = _Held(self._aggregator)
        self._positions = store.positions()

    def next_offset(self, topic: str) -> int:
        return self._positions.get((topic, 0), 0)

    def deliver(self, delivered: Iterable[Delivered]) -> None:
        """Fold and commit, rows and positions together."""
        moved: dict[Position, int] = {}
        for one in delivered:
            place = (one.topic, one.partition)
            moved[place] = one.offset + 1
            if one.event is not None and not isinstance(one.event, RecordDeadLettered):
                self._aggregator.restore(one.event)
                self._held.hold(one, self._positions.get(place, 0))
        self._store.commit(self._aggregator.taken_rows(), self._held.stored(moved, self._positions))
        self._positions |= moved
        self._aggregator.forget_ended()


class AggregatorShell:
    """Not thread-safe: one thread delivers. Positions live in the store; a log's own commits are ignored."""

    def __init__(self, store: Store, publish: Publish) -> None:
        self._store = store
        self._publish = publish
        self._aggregator = Aggregator(store)
        self._held = _Held(self._aggregator)
        self._positions = store.positions()
        open_runs = store.query("select run_id from runs where status = 'running' order by run_id")
        self._aggregator.touch([row["run_id"] for row in open_runs])

    def next_offset(self, topic: str, partition: int = 0) -> int:
        return self._positions.get((topic, partition), 0)

    def deliver(self, delivered: Iterable[Delivered]) -> bool:
        """React to what was read, publish, commit. True where anything was new or said."""
        moved: dict[Position, int] = {}
        answers: list[AnyEvent] = []
        for one in delivered:
            place = (one.topic, one.partition)
            if one.offset < moved.get(place, self._positions.get(place, 0)):
                continue  # read twice, after a rebalance or a restart
            moved[place] = one.offset + 1
            if isinstance(one.event, RecordDeadLettered):
                answers.append(one.event)
            elif one.event is not None:
                answers.extend(self._aggregator.react(one.event))
                self._held.hold(one, self._positions.get(place, 0))
        answers.extend(self._aggregator.settle())
        if answers:
            self._publish(answers)
        rows = self._aggregator.taken_rows()
        if rows or moved:
            self._store.commit(rows, self._held.stored(moved, self._positions))
            self._positions |= moved
        ended = self._end_runs()
        return bool(moved or answers or ended)

    def _end_runs(self) -> bool:
        """Close runs whose rows are all committed, under the hash of exactly those rows."""
        finished = self._aggregator.finished()
        for end in finished:
            hashed = end.model_copy(update={"state_hash": state_hash(self._store, end.run_id)})
            self._publish([hashed])
            self._aggregator.restore(hashed)
        if finished:
            list(self._aggregator.settle())
            self._store.commit(self._aggregator.taken_rows(), {})
        return bool(finished)
