"""The engine in this process: an Embedded pipeline with reports read from its store."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from cascade_schemas.events import Refine
from cascade_schemas.gpu import InvalidConfig, UnknownGpu
from cascade_schemas.model import UnknownModel, UnsupportedModel

from services.aggregator import queries
from services.aggregator.compare import Incomparable
from services.aggregator.export import write_perfetto
from services.aggregator.jail import Jail, Limits, SqlRefused
from services.ingest import admission
from services.runtime.artifacts import UnknownArtifact, UploadTooLarge
from services.runtime.curves import NoCurve
from services.runtime.embedded import Embedded
from services.runtime.engine import ImportOptions, OnProgress, Refused, Report, SqlRows, SqlTable
from services.runtime.eventlog import StoredRecord
from services.simworker.calibration.accuracy_map import NoErrorMap

_POLL_S = 0.1

P = ParamSpec("P")
R = TypeVar("R")

_MISTAKES = (
    admission.BadRequest,
    queries.UnknownTrace,
    queries.UnknownRun,
    UnknownGpu,
    InvalidConfig,
    UnknownModel,
    UnsupportedModel,
    UnknownArtifact,
    UploadTooLarge,
    SqlRefused,
    Incomparable,
    NoCurve,
    NoErrorMap,
)


def refusing(method: Callable[P, R]) -> Callable[P, R]:
    """A caller's mistake leaves as Refused, with its sentence."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except _MISTAKES as mistake:
            sentence = str(mistake.args[0] if mistake.args else mistake)
            raise Refused(sentence, getattr(mistake, "details", None)) from mistake

    return wrapped


class LocalEngine:
    """`is_served`: the pipeline runs in threads of its own; else waiting for something does the work."""

    def __init__(self, embedded: Embedded, *, is_served: bool = False) -> None:
        self.embedded = embedded
        self._is_served = is_served
        self._jail: Jail | None = None
        if is_served:
            embedded.start()

    def close(self) -> None:
        if self._jail is not None:
            self._jail.close()
        self.embedded.close()

    @refusing
    def import_files(self, paths: Sequence[Path], options: ImportOptions) -> Report:
        artifacts = [self.embedded.store_artifact(path) for path in paths]
        upload = admission.upload(
            artifacts,
            name=options.name or trace_name(paths[0]),
            model=options.model,
            source_gpu=options.source_gpu,
            prompts=options.prompts,
            routing=options.routing,
        )
        trace_id = self.embedded.upload(upload)
        self._work_until(lambda: self._trace_has_ended(trace_id))
        report = queries.trace_report(self.embedded.store, trace_id)
        if report["status"] == "rejected":
            raise Refused(report["reason"])
        return report

    @refusing
    def start_run(
        self, trace_id: str, gpus: Sequence[str], simulator: str, name: str = "", refine: Refine | None = None
    ) -> str:
        run_id = uuid.uuid4().hex[:12]
        return self.embedded.request_run(run_id, trace_id, gpus, simulator=simulator, name=name, refine=refine)

    @refusing
    def wait_run(self, run_id: str, on_progress: OnProgress | None = None) -> Report:
        def is_over() -> bool:
            if on_progress is not None:
                on_progress(queries.run_progress(self.embedded.store, run_id))
            return queries.run_status(self.embedded.store, run_id) not in ("running", None)

        self._work_until(is_over)
        return queries.run_report(self.embedded.store, run_id)

    @refusing
    def cancel_run(self, run_id: str) -> None:
        self.embedded.cancel_run(run_id)

    def traces(self) -> list[Report]:
        return queries.traces(self.embedded.store)

    @refusing
    def trace_report(self, trace_id: str) -> Report:
        return queries.trace_report(self.embedded.store, trace_id)

    def runs(self) -> list[Report]:
        return queries.runs(self.embedded.store)

    @refusing
    def run_report(self, run_id: str) -> Report:
        return queries.run_report(self.embedded.store, run_id)

    @refusing
    def what_if(self, trace_id: str, config: str) -> Report:
        return self.embedded.what_if(trace_id, config)

    @refusing
    def verify_run(self, run_id: str) -> Report:
        verification = self.embedded.verify_run(run_id)
        return {
            "run_id": run_id,
            "equal": verification.is_equal,
            "logged": verification.logged,
            "stored": verification.stored,
            "replayed": verification.replayed,
        }

    @refusing
    def events(self, run_id: str) -> Iterator[Report]:
        report = queries.run_report(self.embedded.store, run_id)
        keys = [run_id, str(report["trace"]["trace_id"])]
        return (event_report(position, stored) for position, stored in enumerate(self.embedded.log.read_keys(keys)))

    @refusing
    def sql(self, statement: str, row_limit: int) -> SqlRows:
        found = self.sql_table(statement, row_limit)
        return SqlRows(found.table.column_names, found.table.to_pylist(), found.is_truncated)

    @refusing
    def sql_table(self, statement: str, row_limit: int) -> SqlTable:
        if self._jail is None:
            self._jail = Jail(self.embedded.store, self.embedded.settings.home)
        result = self._jail.query(statement, Limits(rows=row_limit))
        return SqlTable(result.table, result.is_truncated)

    @refusing
    def export_perfetto(self, run_id: str, path: Path) -> int:
        return write_perfetto(self.embedded.store, run_id, path)

    def _trace_has_ended(self, trace_id: str) -> bool:
        return queries.trace_status(self.embedded.store, trace_id) in ("complete", "rejected")

    def _work_until(self, is_done: Callable[[], bool]) -> None:
        """Threads are waited for; without them the work is done here, one service's step at a time."""
        while not is_done():
            if self._is_served:
                if why := self.embedded.failure:
                    raise RuntimeError(why)
                time.sleep(_POLL_S)
            elif not self.embedded.step():
                if is_done():
                    return
                raise RuntimeError("nothing is left to do, and yet it is not done")


def event_report(position: int, stored: StoredRecord) -> Report:
    """An event's place and headers, without its rows."""
    return {
        "position": position,
        "timestamp_ms": stored.timestamp_ms,
        "topic": stored.topic,
        "offset": stored.offset,
        **stored.record.headers,
    }


def trace_name(path: Path) -> str:
    """The file's name without what every profiler appends."""
    return path.name.split(".json")[0].removesuffix(".pt.trace").removesuffix(".cascade-trace")
