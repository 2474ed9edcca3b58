"""Ingest in a cluster: `python -m services.ingest.app`. Imports uploads and follows traces that are being recorded; the
one that owns `runs` also plans.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cascade_schemas.events import AnyEvent, ArtifactRef, RunCompleted, RunFailed

from services.ingest.live import RECORDED_TYPES, SILENCE_LIMIT_MS, LiveIngest
from services.ingest.plan import Planner
from services.ingest.reactor import Ingest
from services.runtime.artifacts import open_artifacts
from services.runtime.cluster import ClusterSettings, leave_in_order, observed, prepare, run_program, say
from services.runtime.kafka import KafkaService, Publisher, event_of, read_to_end, tail
from services.runtime.observe import Observed
from services.runtime.reactor import Reactor

PLANNED = ("KernelTaskTraced", "RunRequested", "RunCancelled", "RefinementChosen")
_RECORDED_PER_READ = 512  # each is followed in a millisecond


async def main(settings: ClusterSettings) -> None:
    figures = observed("ingest", settings)
    await prepare(settings.broker)
    artifacts = open_artifacts(settings.settings.home / "artifacts", settings.settings.artifacts_uri)

    @contextlib.contextmanager
    def named(refs: Sequence[ArtifactRef]) -> Iterator[list[Path]]:
        with tempfile.TemporaryDirectory(prefix="cascade-open-") as folder:
            yield artifacts.named(refs, Path(folder))

    def service(name: str, reactor: Reactor, topics: Sequence[str], types: Sequence[str]) -> KafkaService:
        return KafkaService(
            name,
            reactor,
            settings.broker,
            topics,
            types,
            instance=settings.instance,
            session_timeout_ms=settings.session_timeout_ms,
            observed=figures,
        )

    ingest = service("ingest", Ingest(named), ("uploads",), ("TraceUploaded",))
    planner = PlannerLeadership(settings, figures)
    live = LiveTraces(settings, figures)
    leave_in_order(ingest.stop, live.stop, planner.stop)
    say("ingest_started", instance=settings.instance, kafka=settings.broker.bootstrap)
    await asyncio.gather(ingest.run(), live.run(), planner.run())


class LiveTraces(KafkaService):
    """Follows the traces of the partitions it owns. A new owner folds them anew from their beginning: what is said
    again has the same identities, and what was half known to the one before is known to nobody else.
    """

    def __init__(self, settings: ClusterSettings, figures: Observed) -> None:
        self._settings = settings
        self._live = LiveIngest()
        self._heard_ms: dict[str, int] = {}
        self._owned_since_ms = 0
        super().__init__(
            "live",
            self._live,
            settings.broker,
            ("traces",),
            RECORDED_TYPES,
            instance=settings.instance,
            session_timeout_ms=settings.session_timeout_ms,
            records_per_read=_RECORDED_PER_READ,
            observed=figures,
            on_assigned=self._assigned,
        )

    async def _assigned(self, assigned: set[Any]) -> None:
        self._live = self._reactor = LiveIngest()
        self._heard_ms = {}
        self._owned_since_ms = _now_ms()
        async for record in read_to_end(self._settings.broker, ("catalog",)):
            event = event_of(record, "live", ("TraceCompleted", "TraceRejected"))
            if event is not None:
                self._live.restore(event)
        if assigned:
            await self._consumer.seek_to_beginning(*assigned)

    def _note(self, record: Any) -> None:
        self._heard_ms[(record.key or b"").decode(errors="replace")] = record.timestamp

    async def _rest(self) -> None:
        now_ms = _now_ms()
        for trace_id in self._live.open_traces():
            # Nobody could be heard before the partition was ours.
            heard_ms = max(self._heard_ms.get(trace_id, 0), self._owned_since_ms)
            if now_ms - heard_ms >= SILENCE_LIMIT_MS:
                await self._publisher.publish(list(self._live.abandon(trace_id)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PlannerLeadership:
    """Plans while it owns the only partition of `runs`; a new owner plans every unfinished run again from the start.

    Work that was asked for twice is simulated twice, with equal results; work that was never asked for would be lost.
    """

    def __init__(self, settings: ClusterSettings, figures: Observed) -> None:
        self._settings = settings
        self._member = KafkaService(
            "planner",
            _Nothing(),
            settings.broker,
            ("runs",),
            ("none",),  # the leader reads runs itself, from their beginning
            instance=settings.instance,
            session_timeout_ms=settings.session_timeout_ms,
            observed=figures,
            on_assigned=self._changed,
        )
        self._leading: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self._member.stop()

    async def run(self) -> None:
        try:
            await self._member.run()
        finally:
            await self._resign()

    async def _changed(self, assigned: set[object]) -> None:
        await self._resign()
        if assigned:
            self._leading = asyncio.create_task(self._lead())

    async def _resign(self) -> None:
        if self._leading is not None:
            self._leading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._leading
            self._leading = None

    async def _lead(self) -> None:
        broker = self._settings.broker
        planner = Planner()
        async for record in read_to_end(broker, ("predictions",)):
            event = event_of(record, "planner", ("RunCompleted", "RunFailed"))
            if isinstance(event, RunCompleted | RunFailed):
                planner.forget(event.run_id)
        say("planner_leads", instance=self._settings.instance)
        publisher = Publisher(broker)
        await publisher.start()
        try:
            await self._plan(planner, publisher)
        finally:
            await publisher.stop()

    async def _plan(self, planner: Planner, publisher: Publisher) -> None:
        async for events in tail(self._settings.broker, ("catalog", "runs", "predictions"), "planner", PLANNED):
            answers: list[AnyEvent] = [answer for event in events for answer in planner.react(event)]
            answers.extend(planner.settle())
            await publisher.publish(answers)


class _Nothing:
    """A member of a group that only wants to know whether it owns the partition."""

    def react(self, event: AnyEvent) -> Iterator[AnyEvent]:  # noqa: ARG002 - a Reactor's shape
        yield from ()

    def settle(self) -> Iterator[AnyEvent]:
        yield from ()

    def restore(self, event: AnyEvent) -> None:
        pass


if __name__ == "__main__":
    raise SystemExit(run_program(lambda settings: asyncio.run(main(settings)), os.environ))
