"""What the command line and the gateway ask of Cascade, whichever process holds the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from cascade_schemas.events import Refine
from cascade_schemas.model import ModelSpec
from cascade_schemas.task import Lengths

Report = dict[str, Any]
OnProgress = Callable[[Sequence[Report]], None]
"""Called with one report per config: label, simulated, failed, total."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How files are to be read as one trace."""

    name: str = ""  # "": the first file's name
    model: ModelSpec | None = None
    source_gpu: str | None = None
    prompts: Lengths = ()
    routing: str = ""  # of tokens to experts: "" or even, zipf:EXPONENT


@dataclass(frozen=True, slots=True)
class SqlTable:
    """Rows of a statement as an Arrow table; `is_truncated`: there were more than the limit."""

    table: pa.Table
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class SqlRows:
    """Rows of a statement; `is_truncated`: there were more than the limit."""

    names: list[str]
    rows: list[Report]
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Which runs a list shows; "": all."""

    text: str = ""  # in a name, a model, a GPU's label or an id
    status: str = ""
    provenance: str = ""

    def lets_through(self, run: Report) -> bool:
        if self.status and run["status"] != self.status:
            return False
        if self.provenance and run["provenance"] != self.provenance:
            return False
        best = run["best"]["gpu"] if run["best"] else ""
        said = (run["name"], run["trace_name"], run["model_name"], run["run_id"], run["trace_id"], best)
        return self.text.casefold() in " ".join(filter(None, said)).casefold()


class Refused(ValueError):
    """The engine cannot do what was asked; one sentence with the value and the way out.

    `details`: what a screen can point at beside it, such as the position in a statement.
    """

    def __init__(self, sentence: str, details: Report | None = None) -> None:
        super().__init__(sentence)
        self.details: Report = details or {}


class Engine(Protocol):
    """Blocking calls; every one raises Refused on a caller's mistake."""

    def import_files(self, paths: Sequence[Path], options: ImportOptions) -> Report:
        """Import and wait until the trace is whole; its report."""

    def start_run(
        self, trace_id: str, gpus: Sequence[str], simulator: str, name: str = "", refine: Refine | None = None
    ) -> str: ...

    def wait_run(self, run_id: str, on_progress: OnProgress | None = None) -> Report:
        """The run's report once it has ended."""

    def cancel_run(self, run_id: str) -> None: ...

    def traces(self) -> list[Report]: ...

    def trace_report(self, trace_id: str) -> Report: ...

    def runs(self) -> list[Report]: ...

    def run_report(self, run_id: str) -> Report: ...

    def what_if(self, trace_id: str, config: str) -> Report:
        """A config's answer without a run: the same numbers, no event."""

    def verify_run(self, run_id: str) -> Report: ...

    def events(self, run_id: str) -> Iterator[Report]:
        """A run's events in replay order, without their rows."""

    def sql(self, statement: str, row_limit: int) -> SqlRows: ...

    def export_perfetto(self, run_id: str, path: Path) -> int:
        """Write the file whole or not at all; how many events it has."""

    def close(self) -> None: ...
