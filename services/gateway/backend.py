"""What the gateway asks of whoever holds traces, runs and the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol

from cascade_schemas.events import ArtifactRef

from services.gateway.screens import Screens
from services.runtime.engine import Engine, ImportOptions, Report, RunFilters, SqlTable
from services.runtime.eventlog import Place, StoredRecord


class RunLog(Protocol):
    """The records of runs, for viewers. Methods may be called from any thread."""

    def keys_of(self, run_id: str) -> tuple[str, str]:
        """The keys of a run's records: its own and its trace's. Raises Refused."""

    def places(self, keys: Sequence[str], after_position: int = 0) -> list[Place]: ...

    def read_positions(self, positions: Sequence[int]) -> list[StoredRecord]: ...

    def listen(self, listener: Callable[[set[str]], None]) -> None:
        """Call with the keys of records each time some were appended, from whatever thread did it."""


class Backend(Engine, RunLog, Protocol):
    """Blocking calls from any thread; every one raises Refused on a caller's mistake."""

    @property
    def failure(self) -> str:
        """A sentence where a service has stopped and will not go on, else ""."""

    @property
    def simulators(self) -> tuple[str, ...]: ...

    def receive(self, body: BinaryIO, name: str, bytes_limit: int) -> ArtifactRef: ...

    def stored(self, digest: str, name: str) -> ArtifactRef:
        """What was received before, under a name."""

    def record(self, trace_id: str, rank: int, sender: str, batch: int, body: bytes) -> int:
        """Take what a profiler sent; how many events were new."""

    def request_import(self, artifacts: Sequence[ArtifactRef], options: ImportOptions) -> str: ...

    def runs_page(self, filters: RunFilters, first: int, count: int | None) -> Report: ...

    def sql_table(self, statement: str, row_limit: int) -> SqlTable: ...

    def run_progress(self, run_id: str) -> Report: ...

    def kernels(
        self, run_id: str, config_id: str | None, *, sort: str, is_descending: bool, first: int, count: int
    ) -> Report: ...

    def events_page(self, run_id: str, first: int, count: int) -> list[Report]: ...

    @property
    def screens(self) -> Screens: ...
