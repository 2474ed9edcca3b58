"""The engine of the process that serves: what the gateway asks beside what every command asks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cascade_schemas.codec import decode
from cascade_schemas.events import AnyEvent, ArtifactRef, RecordingStarted, Refine, RunRequested, TraceUploaded

from services.aggregator import queries
from services.ingest import admission
from services.runtime.embedded import Embedded
from services.runtime.engine import ImportOptions, Refused, Report, RunFilters, SqlTable
from services.runtime.eventlog import EventLog, Place, StoredRecord, replay_key
from services.runtime.local import LocalEngine, event_report, refusing, trace_name
from services.runtime.recordings import Recordings
from services.runtime.screens import Screens

_SEEN_WITHIN_S = 10.0
_POLL_S = 0.01
_HEAVY_AT_ONCE = 2
_HEAVY_WAIT_S = 60.0

KERNEL_COLUMNS = (
    "config_id", "gpu", "label", "task_id", "name", "op", "family", "bound", "tier", "reason", "operands_from",
    "launch_count", "duration_ns", "p10_ns", "p90_ns", "correction_ppm", "forward_ns", "roofline_ns", "measured_ns",
    "error_ppm", "tensor_ns", "dram_ns", "l2_ns", "issue_ns", "launch_ns", "is_requested", "provenance",
    "simulator", "refinement",
)  # fmt: skip


class ServedEngine(LocalEngine):
    """All methods may be called from any thread, many at once."""

    def __init__(self, embedded: Embedded) -> None:
        super().__init__(embedded, is_served=True)
        # Viewers read through a connection of their own: a slow disk read never holds up an append.
        self._reader = EventLog(embedded.log.path, is_read_only=True)
        self.screens = Screens(embedded, self._reader, trace_known=self.trace_known, run_known=self.run_progress)
        self._heavy = threading.BoundedSemaphore(_HEAVY_AT_ONCE)
        self._jail_lock = threading.Lock()
        self._uploads: dict[str, tuple[TraceUploaded, int]] = {}  # with the time of asking
        self._requests: dict[str, tuple[RunRequested, int]] = {}
        self._recordings_ms: dict[str, int] = {}  # when a trace that is recorded live was first heard of
        self._recordings = Recordings(embedded.publish)
        embedded.listeners.append(self._remember)
        for event, timestamp_ms in self._asked():
            self._learn(event, timestamp_ms)

    def close(self) -> None:
        self._reader.close()  # first: the last connection to close tidies the log's files, and this one may not write
        super().close()

    @property
    def failure(self) -> str:
        return self.embedded.failure

    @property
    def simulators(self) -> tuple[str, ...]:
        return self.embedded.simulators

    # --- traces -----------------------------------------------------------------------------------------------

    @refusing
    def receive(self, body: BinaryIO, name: str, bytes_limit: int) -> ArtifactRef:
        """Store a file that is being uploaded; one that is too large leaves nothing behind."""
        return self.embedded.artifacts.put(body, name, bytes_limit=bytes_limit)

    @refusing
    def stored(self, digest: str, name: str) -> ArtifactRef:
        size_bytes = self.embedded.artifacts.path(digest).stat().st_size
        return ArtifactRef(digest=digest, name=Path(name).name, size_bytes=size_bytes)

    @refusing
    def request_import(self, artifacts: Sequence[ArtifactRef], options: ImportOptions) -> str:
        """Ask for an import and return the trace's id at once."""
        upload = admission.upload(
            artifacts,
            name=options.name or (trace_name(Path(artifacts[0].name)) if artifacts else ""),
            model=options.model,
            source_gpu=options.source_gpu,
            prompts=options.prompts,
            routing=options.routing,
        )
        return self.embedded.upload(upload)

    def traces(self) -> list[Report]:
        """Newest first, those whose import has not begun to say anything included."""
        known = {report["trace_id"]: report for report in super().traces()}
        waiting = {trace_id: _importing(upload) for trace_id, (upload, _) in self._uploads.items()}
        reports = [
            report | {"uploaded_at_ms": self._heard_of_ms(trace_id)} for trace_id, report in (waiting | known).items()
        ]
        return sorted(reports, key=lambda report: -(report["uploaded_at_ms"] or 0))

    @refusing
    def trace_report(self, trace_id: str) -> Report:
        try:
            return queries.trace_report(self.embedded.store, trace_id)
        except queries.UnknownTrace:
            if trace_id not in self._uploads:
                raise
            upload, _ = self._uploads[trace_id]
            counts = ("kernels", "signatures", "tasks", "launches", "launchless_kernels", "sass_tasks")
            return _importing(upload) | dict.fromkeys(counts) | {"steps": [], "quality": None}

    def trace_known(self, trace_id: str) -> None:
        """Raises Refused where nobody has heard of the trace."""
        if trace_id not in self._uploads and queries.trace_status(self.embedded.store, trace_id) is None:
            self.trace_report(trace_id)

    def record(self, trace_id: str, rank: int, sender: str, batch: int, body: bytes) -> int:
        """Append what a profiler sent; one whose trace has ended is told so."""
        if queries.trace_status(self.embedded.store, trace_id) in ("complete", "rejected"):
            raise Refused(f"trace {trace_id} has ended; what is recorded from now on is a new trace")
        return self._recordings.take(trace_id, rank, sender, batch, body)

    # --- runs -------------------------------------------------------------------------------------------------

    @refusing
    def start_run(
        self, trace_id: str, gpus: Sequence[str], simulator: str, name: str = "", refine: Refine | None = None
    ) -> str:
        run_id = super().start_run(trace_id, gpus, simulator, name, refine)
        # Who asked will ask on: let the answer wait until the store has folded the request.
        deadline = time.monotonic() + _SEEN_WITHIN_S
        while queries.run_status(self.embedded.store, run_id) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return run_id

    def runs(self) -> list[Report]:
        """Newest first, each with its fastest config."""
        best = {row["run_id"]: row for row in self.embedded.store.query(_BEST_SQL)}
        reports = [self._listed(run, best.get(run["run_id"])) for run in super().runs()]
        return sorted(reports, key=lambda report: -(report["requested_at_ms"] or 0))

    def runs_page(self, filters: RunFilters, first: int, count: int | None) -> Report:
        """Runs that the filters let through, newest first; `total` of them, and how many there are of each status."""
        matching = [run for run in self.runs() if filters.lets_through(run)]
        last = None if count is None else first + count
        statuses = Counter(run["status"] for run in matching)
        return {"runs": matching[first:last], "total": len(matching), "statuses": dict(sorted(statuses.items()))}

    def _listed(self, run: Report, best: Report | None) -> Report:
        asked = self._requests.get(run["run_id"])
        return run | {
            "requested_at_ms": asked[1] if asked else None,
            "config_count": best["config_count"] if best else 0,
            "best": _best(best) if best and best["has_answer"] else None,
        }

    @refusing
    def run_progress(self, run_id: str) -> Report:
        status = queries.run_status(self.embedded.store, run_id)
        if status is None and run_id not in self._requests:
            raise queries.UnknownRun(f"no run {run_id!r}; `cascade run TRACE --gpu ID` starts one and prints its id")
        configs = queries.run_progress(self.embedded.store, run_id)
        return {"run_id": run_id, "status": status or "running", "configs": configs}

    @refusing
    def kernels(
        self, run_id: str, config_id: str | None, *, sort: str, is_descending: bool, first: int, count: int
    ) -> Report:
        """Rows of the view `kernels`; `total` counts all of them."""
        self.run_progress(run_id)
        if sort not in KERNEL_COLUMNS:
            raise Refused(f"sort={sort!r}: kernels are sorted by one of {', '.join(KERNEL_COLUMNS)}")
        where, parameters = "run_id = ?", [run_id]
        if config_id is not None:
            where, parameters = f"{where} and config_id = ?", [run_id, config_id]
        order = f"{sort} {'desc' if is_descending else 'asc'} nulls last, config_id, task_id"
        columns = ", ".join(KERNEL_COLUMNS)
        # Only names of our own columns are put into the text; whatever a caller says is a parameter.
        sql = f"select {columns} from kernels where {where} order by {order} limit ? offset ?"  # noqa: S608
        rows = self.embedded.store.query(sql, [*parameters, count, first])
        total = self.embedded.store.query(f"select count(*) as n from kernels where {where}", parameters)  # noqa: S608
        return {"run_id": run_id, "total": total[0]["n"], "kernels": rows}

    @refusing
    def sql_table(self, statement: str, row_limit: int) -> SqlTable:
        with self._jail_lock:
            if self._jail is None:
                super().sql_table("select 1", 1)  # makes the jail, once
        with self._few("statements"):
            return super().sql_table(statement, row_limit)

    @refusing
    def verify_run(self, run_id: str) -> Report:
        with self._few("verifications"):
            return super().verify_run(run_id)

    @refusing
    def events_page(self, run_id: str, first: int, count: int) -> list[Report]:
        """As `events`, without reading what comes before."""
        places = sorted(self._reader.places(self.keys_of(run_id)), key=replay_key)[first : first + count]
        return [
            event_report(first + index, stored)
            for index, stored in enumerate(self.read_positions([place.position for place in places]))
        ]

    # --- the log ----------------------------------------------------------------------------------------------

    @refusing
    def keys_of(self, run_id: str) -> tuple[str, str]:
        """The keys of a run's records: its own and its trace's."""
        if run_id in self._requests:
            return run_id, self._requests[run_id][0].trace_id
        return run_id, str(queries.run_report(self.embedded.store, run_id)["trace"]["trace_id"])

    def places(self, keys: Sequence[str], after_position: int = 0) -> list[Place]:
        return self._reader.places(keys, after_position)

    def read_positions(self, positions: Sequence[int]) -> list[StoredRecord]:
        return self._reader.read_positions(positions)

    def listen(self, listener: Callable[[set[str]], None]) -> None:
        """Call with the keys of records each time some were appended, in the thread that appended them."""
        self.embedded.listeners.append(lambda events: listener({event.key for event in events}))

    # --- memory of what was asked: the store knows it only after the aggregator's next turn ---------------------

    def _asked(self) -> Iterator[tuple[AnyEvent, int]]:
        asked = (("uploads", "TraceUploaded"), ("traces", "RecordingStarted"), ("runs", "RunRequested"))
        for topic, name in asked:
            offset = 0
            while stored := self._reader.read(topic, offset, 256, types=[name]):
                for one in stored:
                    event = decode(one.record.headers, one.record.value)
                    if event is not None:
                        yield event, one.timestamp_ms
                offset = stored[-1].offset + 1

    def _remember(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            self._learn(event, self.embedded.now_ms())

    def _learn(self, event: AnyEvent, timestamp_ms: int) -> None:
        if isinstance(event, TraceUploaded):
            self._uploads[event.trace_id] = (event, timestamp_ms)
        elif isinstance(event, RecordingStarted):
            self._recordings_ms.setdefault(event.trace_id, timestamp_ms)
        elif isinstance(event, RunRequested):
            self._requests[event.run_id] = (event, timestamp_ms)

    def _heard_of_ms(self, trace_id: str) -> int | None:
        if trace_id in self._uploads:
            return self._uploads[trace_id][1]
        return self._recordings_ms.get(trace_id)

    @contextmanager
    def _few(self, what: str) -> Iterator[None]:
        if not self._heavy.acquire(timeout=_HEAVY_WAIT_S):
            raise Refused(f"{_HEAVY_AT_ONCE} {what} are being worked on already; ask again in a moment")
        try:
            yield
        finally:
            self._heavy.release()


_BEST_SQL = """
    select c.run_id, count(*) over (partition by c.run_id) as config_count, c.label,
        tpot_ns is not null or ttft_ns is not null as has_answer,
        ttft_ns, ttft_p10_ns, ttft_p90_ns, tpot_ns, tpot_p10_ns, tpot_p90_ns
    from run_configs c left join predicted_requests q using (run_id, config_id) where c.is_requested
    qualify row_number() over (
        partition by c.run_id order by tpot_ns nulls last, ttft_ns nulls last, c.ordinal) = 1"""


def _best(row: Report) -> Report:
    """The answer of the config with the shortest TPOT, or TTFT where the trace has no decode."""
    metric = "tpot" if row["tpot_ns"] is not None else "ttft"
    return {
        "gpu": row["label"],
        "metric": metric,
        "value": row[f"{metric}_ns"] / 1e6,
        "p10": row[f"{metric}_p10_ns"] / 1e6,
        "p90": row[f"{metric}_p90_ns"] / 1e6,
    }


def _importing(upload: TraceUploaded) -> Report:
    """What is known of a trace before its import has said anything."""
    nothing = ("provenance", "tool", "engine", "engine_version", "ranks", "world_size", "is_truncated", "reason")
    return dict.fromkeys((*nothing, "kernels", "started_at")) | {
        "trace_id": upload.trace_id,
        "name": upload.name,
        "status": "importing",
        "source_gpu": upload.source_gpu,
        "model": upload.model.name if upload.model else None,
    }
