"""Ingest in a cluster: `python -m services.ingest.app`. Imports uploads; the one that owns `runs` also plans."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cascade_schemas.events import AnyEvent, ArtifactRef, RunCompleted, RunFailed

from services.ingest.plan import Planner
from services.ingest.reactor import Ingest
from services.runtime.artifacts import ArtifactStore
from services.runtime.cluster import ClusterSettings, leave_in_order, prepare, say
from services.runtime.kafka import KafkaService, Publisher, event_of, read_to_end, tail
from services.runtime.reactor import Reactor

PLANNED = ("KernelTaskTraced", "RunRequested", "RunCancelled")


async def main(settings: ClusterSettings) -> None:
    await prepare(settings.bootstrap)
    artifacts = ArtifactStore(settings.settings.home / "artifacts")

    @contextlib.contextmanager
    def named(refs: Sequence[ArtifactRef]) -> Iterator[list[Path]]:
        with tempfile.TemporaryDirectory(prefix="cascade-open-") as folder:
            yield artifacts.named(refs, Path(folder))

    def service(name: str, reactor: Reactor, topics: Sequence[str], types: Sequence[str]) -> KafkaService:
        return KafkaService(
            name,
            reactor,
            settings.bootstrap,
            topics,
            types,
            instance=settings.instance,
            session_timeout_ms=settings.session_timeout_ms,
        )

    ingest = service("ingest", Ingest(named), ("uploads",), ("TraceUploaded",))
    planner = PlannerLeadership(settings)
    leave_in_order(ingest.stop, planner.stop)
    say("ingest_started", instance=settings.instance, kafka=settings.bootstrap)
    await asyncio.gather(ingest.run(), planner.run())


class PlannerLeadership:
    """Plans while it owns the only partition of `runs`; a new owner plans every unfinished run again from the start.

    Work that was asked for twice is simulated twice, with equal results; work that was never asked for would be lost.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self._member = KafkaService(
            "planner",
            _Nothing(),
            settings.bootstrap,
            ("runs",),
            ("none",),  # the leader reads runs itself, from their beginning
            instance=settings.instance,
            session_timeout_ms=settings.session_timeout_ms,
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
        bootstrap = self._settings.bootstrap
        planner = Planner()
        async for record in read_to_end(bootstrap, ("predictions",)):
            event = event_of(record, "planner", ("RunCompleted", "RunFailed"))
            if isinstance(event, RunCompleted | RunFailed):
                planner.forget(event.run_id)
        say("planner_leads", instance=self._settings.instance)
        publisher = Publisher(bootstrap)
        await publisher.start()
        try:
            await self._plan(planner, publisher)
        finally:
            await publisher.stop()

    async def _plan(self, planner: Planner, publisher: Publisher) -> None:
        async for events in tail(self._settings.bootstrap, ("catalog", "runs"), "planner", PLANNED):
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
    asyncio.run(main(ClusterSettings.from_environ(os.environ)))
