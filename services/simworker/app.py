"""A simworker in a cluster: `python -m services.simworker.app`. Owns partitions of work.<simulator>."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence

from cascade_schemas.partition import TASKS_PER_BATCH

from services.runtime.artifacts import open_artifacts
from services.runtime.cluster import ClusterSettings, leave_in_order, observed, prepare, run_program, say
from services.runtime.executor import InProcesses
from services.runtime.kafka import RECORDS_PER_READ, Broker, KafkaService, Publisher, tail
from services.simworker.reactor import Simworker
from services.simworker.simulators.accelsim.run import AccelSimSimulator
from services.simworker.simulators.apart import Apart
from services.simworker.simulators.base import KernelSimulator
from services.simworker.simulators.catalog import simulators


async def main(settings: ClusterSettings) -> None:
    figures = observed("simworker", settings)
    await prepare(settings.broker)
    known = simulators(
        settings.settings.thread_count,
        settings.settings.home,
        settings.settings.artifacts_uri,
        accelsim=settings.settings.accelsim_runs,
        now_s=time.monotonic,
    )
    cache = open_artifacts(settings.settings.home / "artifacts", settings.settings.artifacts_uri)
    publisher = Publisher(settings.broker)
    await publisher.start()

    def member(name: str, simulators_of: dict[str, KernelSimulator], topics: list[str], per_read: int) -> KafkaService:
        worker = Simworker(
            simulators_of,
            worker=f"{name}-{settings.instance}",
            now_ms=lambda: time.time_ns() // 1_000_000,
            cache=cache,
            say=publisher.say,
        )
        workers.append(worker)
        return KafkaService(
            name,
            worker,
            settings.broker,
            topics,
            ("KernelSimulationRequested",),
            instance=settings.instance,
            session_timeout_ms=settings.session_timeout_ms,
            records_per_read=per_read,
            observed=figures,
        )

    workers: list[Simworker] = []
    executor = InProcesses(1)
    fast = {name: simulator for name, simulator in known.items() if name in TASKS_PER_BATCH}
    members = [member("simworker", fast, [f"work.{name}" for name in fast], RECORDS_PER_READ)]
    # A slow simulator takes one kernel at a time and never holds up the others.
    for name in known.keys() - fast.keys():
        place = (settings.settings.thread_count, settings.settings.home, settings.settings.artifacts_uri)
        # Whose work is in processes of its own has no need of another one, which would leave them behind.
        is_apart = isinstance(known[name], AccelSimSimulator)
        own = {name: known[name] if is_apart else Apart(known[name], executor, *place), "roofline": known["roofline"]}
        members.append(member(f"simworker-{name}", own, [f"work.{name}"], 1))
    leave_in_order(*(one.stop for one in members))
    cancellations = asyncio.create_task(_hear_of_cancellations(settings.broker, workers))
    say("simworker_started", instance=settings.instance, kafka=settings.broker.bootstrap)
    try:
        await asyncio.gather(*(one.run() for one in members))
    finally:
        executor.close()
        cancellations.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancellations
        await publisher.stop()


async def _hear_of_cancellations(broker: Broker, workers: Sequence[Simworker]) -> None:
    """Every worker reads all of `runs`, outside any group: whoever has the work must know."""
    async for events in tail(broker, ("runs",), "simworker", ("RunCancelled",)):
        for event in events:
            for worker in workers:
                # In a thread: it may have to wait for one that is in the middle of saying something by this loop.
                await asyncio.to_thread(worker.restore, event)


if __name__ == "__main__":
    raise SystemExit(run_program(lambda settings: asyncio.run(main(settings)), os.environ))
