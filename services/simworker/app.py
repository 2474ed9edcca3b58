"""A simworker in a cluster: `python -m services.simworker.app`. Owns partitions of work.<simulator>."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

from services.runtime.artifacts import ArtifactStore
from services.runtime.cluster import ClusterSettings, leave_in_order, prepare, say
from services.runtime.kafka import KafkaService, tail
from services.simworker.reactor import Simworker
from services.simworker.simulators.catalog import simulators


async def main(settings: ClusterSettings) -> None:
    await prepare(settings.bootstrap)
    known = simulators(settings.settings.thread_count, settings.settings.home)
    worker = Simworker(
        known,
        worker=f"simworker-{settings.instance}",
        now_ms=lambda: time.time_ns() // 1_000_000,
        cache=ArtifactStore(settings.settings.home / "artifacts"),
    )
    service = KafkaService(
        "simworker",
        worker,
        settings.bootstrap,
        [f"work.{name}" for name in known],
        ("KernelSimulationRequested",),
        instance=settings.instance,
        session_timeout_ms=settings.session_timeout_ms,
    )
    leave_in_order(service.stop)
    cancellations = asyncio.create_task(_hear_of_cancellations(settings.bootstrap, worker))
    say("simworker_started", instance=settings.instance, kafka=settings.bootstrap)
    try:
        await service.run()
    finally:
        cancellations.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancellations


async def _hear_of_cancellations(bootstrap: str, worker: Simworker) -> None:
    """Every worker reads all of `runs`, outside any group: whoever has the work must know."""
    async for events in tail(bootstrap, ("runs",), "simworker", ("RunCancelled",)):
        for event in events:
            worker.restore(event)


if __name__ == "__main__":
    asyncio.run(main(ClusterSettings.from_environ(os.environ)))
