"""What simulators said, by line number: an index over the log's records, grown as they come."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cascade_schemas.codec import decode
from cascade_schemas.events import SimulatorLogged

from services.runtime.engine import Report
from services.runtime.eventlog import EventLog

_RUNS_REMEMBERED = 8
_RECORDS_PER_READ = 64


@dataclass
class _ConfigLines:
    """Records of one config: the number of each one's first line, and its position in the log."""

    first: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    total: int = 0


@dataclass
class _RunLines:
    configs: dict[str, _ConfigLines] = field(default_factory=dict)
    last_position: int = 0


class LogLines:
    """Lines of runs' simulators. Thread-safe."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, _RunLines] = OrderedDict()

    def page(self, run_id: str, config_id: str, first: int, count: int, said: Sequence[int] | None = None) -> Report:
        """Lines first to first + count; `total` counts all so far.

        said: positions in the log of the records that count, in order; None: all of them.
        """
        known = self._known(run_id, config_id, said)
        lines = [text for _, text in self._from(known, first, min(first + count, known.total))]
        return {"first": first, "total": known.total, "lines": lines}

    def search(
        self, run_id: str, config_id: str, text: str, first: int, limit: int, said: Sequence[int] | None = None
    ) -> Report:
        """Lines from `first` on that hold the text, capitals or not, until the limit is reached.

        `next`: where to go on, None where the end was reached.
        """
        known = self._known(run_id, config_id, said)
        wanted = text.casefold()
        matches: list[Report] = []
        for number, line in self._from(known, first, known.total):
            if wanted in line.casefold():
                if len(matches) == limit:
                    return {"matches": matches, "total": known.total, "next": number}
                matches.append({"line": number, "text": line})
        return {"matches": matches, "total": known.total, "next": None}

    def _from(self, known: _ConfigLines, first: int, end: int) -> Iterator[tuple[int, str]]:
        """(number, line) of lines first to end."""
        begin = max(bisect_right(known.first, first) - 1, 0)
        stop = bisect_right(known.first, end - 1)
        for at in range(begin, stop, _RECORDS_PER_READ):
            part = slice(at, min(at + _RECORDS_PER_READ, stop))
            for number, stored in zip(known.first[part], self._log.read_positions(known.position[part]), strict=True):
                event = decode(stored.record.headers, stored.record.value)
                assert isinstance(event, SimulatorLogged)
                for place, line in enumerate(_lines(event), start=number):
                    if first <= place < end:
                        yield place, line

    def _known(self, run_id: str, config_id: str, said: Sequence[int] | None) -> _ConfigLines:
        """A copy that stays as it is while new lines come."""
        with self._lock:
            run = self._runs.setdefault(run_id, _RunLines())
            self._runs.move_to_end(run_id)
            while len(self._runs) > _RUNS_REMEMBERED:
                self._runs.popitem(last=False)
            self._grow(run_id, run)
            known = run.configs.get(config_id, _ConfigLines())
            # Records of one topic are ordered as they were appended, so that those said by a moment come first.
            count = len(known.first) if said is None else len(set(said).intersection(known.position))
            total = known.total if count == len(known.first) else known.first[count]
            return _ConfigLines(known.first[:count], known.position[:count], total)

    def _grow(self, run_id: str, run: _RunLines) -> None:
        places = self._log.places([run_id], run.last_position)
        said = [place.position for place in places if place.type == "SimulatorLogged"]
        for at in range(0, len(said), _RECORDS_PER_READ):
            part = said[at : at + _RECORDS_PER_READ]
            for position, stored in zip(part, self._log.read_positions(part), strict=True):
                event = decode(stored.record.headers, stored.record.value)
                if isinstance(event, SimulatorLogged):
                    config = run.configs.setdefault(event.config_id, _ConfigLines())
                    config.first.append(config.total)
                    config.position.append(position)
                    config.total += len(_lines(event))
        if places:
            run.last_position = places[-1].position


def _lines(event: SimulatorLogged) -> tuple[str, ...]:
    if not event.left_out_line_count:
        return event.lines
    return (*event.lines, f"… {event.left_out_line_count} lines were left out")
