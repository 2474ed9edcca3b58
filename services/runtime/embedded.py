"""The whole pipeline in one process: the same reactors as a cluster, on the SQLite log, without a broker."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from cascade_schemas.codec import MalformedEvent, decode, encode
from cascade_schemas.events import AnyEvent, ArtifactRef, Refine, RunCancelled, RunRequested, TraceUploaded
from cascade_schemas.partition import TASKS_PER_BATCH

from services.aggregator import queries
from services.aggregator.reactor import Aggregator
from services.aggregator.shell import TOPICS as AGGREGATOR_TOPICS
from services.aggregator.shell import AggregatorShell, Delivered
from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store
from services.ingest import admission
from services.ingest.live import RECORDED_TYPES, SILENCE_LIMIT_MS, LiveIngest
from services.ingest.plan import Planner
from services.ingest.reactor import Ingest
from services.runtime.artifacts import open_artifacts
from services.runtime.curves import Axis
from services.runtime.deadletters import dead_letter_of
from services.runtime.eventlog import EventLog, StoredRecord
from services.runtime.reactor import Reactor
from services.runtime.settings import Settings
from services.runtime.whatif import WhatIf
from services.simworker.reactor import Simworker
from services.simworker.simulators.base import KernelSimulator, Selective

log = logging.getLogger("cascade")

_RECORDS_PER_READ = 64
_EVENTS_PER_APPEND = 256
_IDLE_WAIT_S = 0.5


class HomeInUse(RuntimeError):
    """Another process has this CASCADE_HOME open."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a service reads, and which past events of it its memory is made of."""

    topic: str
    read_types: tuple[str, ...]
    restored_types: tuple[str, ...] = ()
    records_per_read: int = _RECORDS_PER_READ  # fewer where one takes long: answers and cancellations come in between


class Service(Protocol):
    """What a thread of the process works on."""

    name: str

    def step(self) -> bool:
        """One turn; False where there was nothing to do."""


class LogService:
    """A reactor between two ends of the log: reads, reacts, and appends answers with its new position."""

    def __init__(self, name: str, reactor: Reactor, subscriptions: Sequence[Subscription], shell: Embedded) -> None:
        self.name = name
        self._reactor = reactor
        self._subscriptions = subscriptions
        self._shell = shell
        self._next = {s.topic: shell.log.committed(name, s.topic) for s in subscriptions}
        for subscription in subscriptions:
            self._restore(subscription)

    def _restore(self, subscription: Subscription) -> None:
        offset, end = 0, self._next[subscription.topic]
        while subscription.restored_types and offset < end:
            types = subscription.restored_types
            stored = self._shell.log.read(subscription.topic, offset, _RECORDS_PER_READ, types=types)
            for one in stored:
                if one.offset < end and (event := self._shell.event_of(one, self.name)) is not None:
                    self._reactor.restore(event)
            if not stored:
                return
            offset = stored[-1].offset + 1

    def step(self) -> bool:
        """Answer one read of each topic; False where there was nothing to read."""
        worked = False
        for subscription in self._subscriptions:
            topic = subscription.topic
            stored = self._shell.log.read(topic, self._next[topic], subscription.records_per_read)
            if not stored:
                continue
            worked = True
            self._note(stored)
            moved = {topic: stored[-1].offset + 1}
            pending: list[AnyEvent] = []
            for answer in self._answers(stored, subscription.read_types):
                pending.append(answer)
                if len(pending) >= _EVENTS_PER_APPEND:
                    self._shell.publish(pending)
                    pending = []
            self._shell.publish(pending, commit=(self.name, moved))
            self._next |= moved
        return worked

    def _note(self, stored: Sequence[StoredRecord]) -> None:
        """For those who must know when something was said."""

    def _answers(self, stored: Sequence[StoredRecord], read_types: tuple[str, ...]) -> Iterator[AnyEvent]:
        for one in stored:
            if one.record.headers.get("type") not in read_types:
                continue  # not decoded: launches alone are most of a catalog's bytes
            event = self._shell.event_of(one, self.name)
            if event is not None:
                yield from self._reactor.react(event)
        yield from self._reactor.settle()


class LiveService(LogService):
    """Traces that are being recorded, and the clock that ends one whose job has fallen silent."""

    def __init__(self, shell: Embedded) -> None:
        self._live = LiveIngest()
        self._started_ms = shell.now_ms()
        self._heard_ms: dict[str, int] = {}
        ended = ("TraceCompleted", "TraceRejected")
        subscriptions = (
            Subscription("catalog", ended, ended),
            Subscription("traces", RECORDED_TYPES, RECORDED_TYPES),
        )
        super().__init__("live", self._live, subscriptions, shell)

    def step(self) -> bool:
        worked = super().step()
        now_ms = self._shell.now_ms()
        for trace_id in self._live.open_traces():
            # Nobody could be heard before the start: a server that was down has not been listening.
            heard_ms = max(self._heard_ms.get(trace_id, 0), self._started_ms)
            if not worked and now_ms - heard_ms >= SILENCE_LIMIT_MS:
                self._shell.publish(list(self._live.abandon(trace_id)))
                worked = True
        return worked

    def _note(self, stored: Sequence[StoredRecord]) -> None:
        for one in stored:
            if one.topic == "traces":
                self._heard_ms[one.record.key] = one.timestamp_ms


class AggregatorService:
    """The aggregator on the embedded log; its positions are the store's."""

    name = "aggregator"

    def __init__(self, store: Store, shell: Embedded) -> None:
        self._shell = shell
        self._aggregator = AggregatorShell(store, shell.publish)
        self._is_first = True

    def step(self) -> bool:
        delivered: list[Delivered] = []
        for topic in AGGREGATOR_TOPICS:
            stored = self._shell.log.read(topic, self._aggregator.next_offset(topic), _RECORDS_PER_READ * 4)
            delivered.extend(Delivered(topic, 0, s.offset, self._shell.event_of(s, self.name)) for s in stored)
            if topic == "predictions" and stored:
                break  # all of them before anything else: see AggregatorShell
        is_first, self._is_first = self._is_first, False
        return self._aggregator.deliver(delivered) if delivered or is_first else False


class Embedded:
    """One CASCADE_HOME, open and locked. `pump` runs everything in the caller's thread, `start` in threads.

    `artifacts`: their folder, where it is not the home's own.
    """

    def __init__(
        self,
        settings: Settings,
        simulators: dict[str, KernelSimulator],
        now_ms: Callable[[], int],
        *,
        artifacts: Path | None = None,
        open_log: Callable[[Path], EventLog] = EventLog,
        open_store: Callable[[Path], Store] = Store,
    ) -> None:
        settings.home.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_home(settings.home)
        _sweep(settings.home)
        self.settings = settings
        self.simulators = tuple(simulators)
        self._known = simulators
        self.now_ms = now_ms
        self.listeners: list[Callable[[Sequence[AnyEvent]], None]] = []
        self.log = open_log(settings.home / "events.sqlite")
        self.artifacts = open_artifacts(artifacts or settings.home / "artifacts", settings.artifacts_uri)
        self.store = open_store(settings.home / "cascade.duckdb")
        self._what_if = WhatIf(self.store, simulators)
        self._stop = threading.Event()
        self._stopped_by = ""  # the service that failed
        self._threads: list[threading.Thread] = []
        self.services: list[Service] = self._own_services(simulators)

    def _own_services(self, simulators: dict[str, KernelSimulator]) -> list[Service]:
        ended = ("TraceCompleted", "TraceRejected")
        tasks, requests, cancelled = ("KernelTaskTraced",), ("RunRequested", "RunCancelled"), ("RunCancelled",)
        choices = ("RefinementChosen",)
        return [
            LogService(
                "ingest",
                Ingest(self._named),
                (Subscription("catalog", ended, ended), Subscription("uploads", ("TraceUploaded",))),
                self,
            ),
            LiveService(self),
            LogService(
                "planner",
                Planner(),
                (
                    Subscription("catalog", tasks, tasks),
                    Subscription("runs", requests, requests),
                    Subscription("predictions", choices, choices),
                ),
                self,
            ),
            *self._simworkers(simulators, cancelled),
            AggregatorService(self.store, self),
        ]

    def _simworkers(self, simulators: dict[str, KernelSimulator], cancelled: tuple[str, ...]) -> Iterator[Service]:
        """One worker for all fast simulators; each slow one has its own, which works kernel by kernel."""
        fast = {name: simulator for name, simulator in simulators.items() if name in TASKS_PER_BATCH}
        for name in ("simworker", *(name for name in simulators if name not in fast)):
            own = fast if name == "simworker" else {name: simulators[name], "roofline": simulators["roofline"]}
            read = tuple(fast) if name == "simworker" else (name,)
            per_read = _RECORDS_PER_READ if name == "simworker" else 1
            worker = Simworker(own, worker="embedded", now_ms=self.now_ms, cache=self.artifacts, say=self.publish)
            self.listeners.append(partial(_withdraw, worker))
            yield LogService(
                name if name == "simworker" else f"simworker-{name}",
                worker,
                (
                    Subscription("runs", cancelled, cancelled),
                    *(
                        Subscription(f"work.{simulator}", ("KernelSimulationRequested",), records_per_read=per_read)
                        for simulator in read
                    ),
                ),
                self,
            )

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.log.close()
        self.store.close()
        self._lock.close()

    def publish(self, events: Sequence[AnyEvent], *, commit: tuple[str, dict[str, int]] | None = None) -> None:
        """Append events to the log, all or none, and tell listeners of them."""
        if not events and commit is None:
            return
        self.log.append([encode(event) for event in events], timestamp_ms=self.now_ms(), commit=commit)
        for listener in self.listeners:
            listener(events)

    def event_of(self, stored: StoredRecord, service: str) -> AnyEvent | None:
        """The record's event; a malformed record is put aside once, with its reason, and None returned."""
        try:
            return decode(stored.record.headers, stored.record.value)
        except MalformedEvent as error:
            value = stored.record.value
            self.publish([dead_letter_of(service, stored.topic, 0, stored.offset, value, str(error))])
            return None

    def step(self) -> bool:
        """One turn of every service, in the caller's thread; False where nothing waited."""
        return any([service.step() for service in self.services])  # noqa: C419 - every service gets its turn

    def pump(self) -> None:
        """Work until nothing waits."""
        while self.step():
            pass

    def start(self) -> None:
        """Work in one thread per service until `close`."""
        for service in self.services:
            thread = threading.Thread(target=self._serve, args=(service,), name=f"cascade-{service.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, service: Service) -> None:
        seen = -1
        while not self._stop.is_set():
            seen_before = seen
            seen = self.log.wait(seen_before, 0.0)
            try:
                worked = service.step()
            except Exception:
                # A bug must not look like an idle service: say it, and stop the process's claim to be healthy.
                log.exception("service_failed service=%s", service.name)
                self._stopped_by = self._stopped_by or service.name
                self._stop.set()
                raise
            if not worked:
                self.log.wait(seen, _IDLE_WAIT_S)

    # --- what users ask for -----------------------------------------------------------------------------------

    def store_artifact(self, path: Path) -> ArtifactRef:
        with path.open("rb") as body:
            return self.artifacts.put(body, path.name)

    def upload(self, upload: TraceUploaded) -> str:
        """Ask for an import, unless the same files with the same options were imported before."""
        if not self.store.query("select 1 from trace_ends where trace_id = ?", [upload.trace_id]):
            self.publish([upload])
        return upload.trace_id

    def request_run(
        self,
        run_id: str,
        trace_id: str,
        gpus: Sequence[str],
        *,
        simulator: str = "analytic",
        name: str = "",
        refine: Refine | None = None,
    ) -> str:
        """Ask for a run. Raises BadRequest, UnknownGpu, InvalidConfig, UnknownTrace."""
        trace = queries.trace_report(self.store, trace_id)
        if trace["status"] == "rejected":
            raise admission.BadRequest(f"trace {trace_id} was rejected: {trace['reason']}")
        request = admission.run(
            run_id,
            trace_id,
            gpus,
            simulator=simulator,
            simulators=self.simulators,
            source_gpu=trace["source_gpu"],
            name=name,
            refine=refine,
        )
        if refine is not None and trace["status"] == "complete" and not trace["sass_tasks"]:
            raise admission.BadRequest(
                f"trace {trace_id} has no SASS trace of any kernel, so {refine.simulator} has nothing to refine; import"
                " the profile together with the folder of SASS traces of the same job"
            )
        self._check_gpus(request)
        self.publish([request])
        return run_id

    def _check_gpus(self, request: RunRequested) -> None:
        for name in (request.simulator, request.refine.simulator if request.refine else ""):
            simulator = self._known.get(name)
            if isinstance(simulator, Selective):
                for config in request.configs:
                    if why := simulator.obstacle(config.gpu):
                        raise admission.BadRequest(why)

    def cancel_run(self, run_id: str) -> None:
        """Withdraw a run; one that has ended stays as it is. Raises UnknownRun."""
        status = queries.run_status(self.store, run_id)  # alone: a report of hundreds of configs takes seconds
        if status is None:
            raise queries.UnknownRun(f"no run {run_id!r}; `cascade run TRACE --gpu ID` starts one and prints its id")
        if status == "running":
            self.publish([RunCancelled(run_id=run_id)])

    def what_if(self, trace_id: str, config_text: str, *, has_steps: bool = True) -> queries.Report:
        """A config's answer from the analytic simulator, without a run and without an event.

        Raises UnknownTrace, UnknownGpu, InvalidConfig, BadRequest.
        """
        return self._what_if.answer(trace_id, self._what_if_request(trace_id, config_text), has_steps=has_steps)

    def what_if_sweep(self, trace_id: str, config_text: str) -> queries.Report:
        """The same for six knobs of the config at nine values each."""
        return self._what_if.sweep(trace_id, self._what_if_request(trace_id, config_text))

    def curves(self, run_id: str, axis: Axis) -> queries.Report:
        """A decode step over context or batch on the run's configs. Raises UnknownRun, NoCurve, BadRequest."""
        run = self.store.load_run(run_id)
        if run is None:
            raise queries.UnknownRun(f"no run {run_id!r}; `cascade run TRACE --gpu ID` starts one and prints its id")
        trace_id = run.request.trace_id
        if queries.trace_status(self.store, trace_id) != "complete":
            raise admission.BadRequest(f"trace {trace_id} is not complete; curves need a whole one")
        configs = [config for config in run.request.configs if config.is_requested]
        return {"run_id": run_id} | self._what_if.curves(trace_id, configs, axis)

    def _what_if_request(self, trace_id: str, config_text: str) -> RunRequested:
        status, source_gpu = queries.trace_source(self.store, trace_id)
        if status != "complete":
            raise admission.BadRequest(f"trace {trace_id} is {status}; a what-if needs a complete one")
        return admission.run(
            "what-if",
            trace_id,
            [config_text],
            simulator="analytic",
            simulators=self.simulators,
            source_gpu=source_gpu,
        )

    def verify_run(self, run_id: str) -> Verification:
        """Fold the run's events into an empty store and compare state hashes. Raises UnknownRun."""
        report = queries.run_report(self.store, run_id)
        keys = [run_id, str(report["trace"]["trace_id"])]
        replayed = replay(self.log, keys)
        try:
            return Verification(
                logged=report["state_hash"] or "",
                stored=state_hash(self.store, run_id),
                replayed=state_hash(replayed, run_id),
            )
        finally:
            replayed.close()

    @property
    def failure(self) -> str:
        """A sentence where a service has stopped and will not go on, else ""."""
        if not self._stopped_by:
            return ""
        return (
            f"the {self._stopped_by} has stopped, and nothing new is worked out; what was recorded is kept."
            " The server's log says why it stopped; a restart goes on from there"
        )

    @contextlib.contextmanager
    def _named(self, artifacts: Sequence[ArtifactRef]) -> Iterator[list[Path]]:
        """Artifacts under their original names, as links in a temporary folder."""
        with tempfile.TemporaryDirectory(dir=self.settings.home, prefix="open-") as folder:
            yield self.artifacts.named(artifacts, Path(folder))


@dataclass(frozen=True, slots=True)
class Verification:
    """Three state hashes of one run that must be one."""

    logged: str  # said when the run ended
    stored: str  # of the rows in the store now
    replayed: str  # of the rows that its events give today

    @property
    def is_equal(self) -> bool:
        return self.logged == self.stored == self.replayed != ""


def replay(event_log: EventLog, keys: Sequence[str]) -> Store:
    """An in-memory store holding what the events of these keys say; the caller closes it."""
    return fold(event_log.read_keys(keys))


def fold(records: Iterable[StoredRecord]) -> Store:
    """An in-memory store holding what these records say; the caller closes it."""
    store = Store(None)
    aggregator = Aggregator(store)
    for stored in records:
        with contextlib.suppress(MalformedEvent):  # put aside when it was first read
            event = decode(stored.record.headers, stored.record.value)
            if event is not None:
                aggregator.restore(event)
    store.commit(aggregator.taken_rows(), {})
    return store


def _withdraw(worker: Simworker, events: Sequence[AnyEvent]) -> None:
    """A worker in the middle of a kernel hears at once who wants it no more; in its turn it reads it in the log."""
    for event in events:
        if isinstance(event, RunCancelled):
            worker.restore(event)


def _sweep(home: Path) -> None:
    """Remove what a killed process was in the middle of; the home is locked, so nobody else is."""
    for leftover in (*home.glob("open-*"), *home.glob("sql-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in (home / "artifacts").glob("incoming-*"):
        leftover.unlink(missing_ok=True)


def _lock_home(home: Path) -> IO[str]:
    handle = (home / "lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        handle.close()
        raise HomeInUse(
            f"{home} is in use by process {owner}; stop it, or set CASCADE_HOME to another folder"
        ) from error
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
