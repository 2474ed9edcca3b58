"""Runs asked for while everything that can go wrong goes wrong; in the end each has the one right answer.

    python -m tests.cluster.chaos [--seconds 1800] [--seed N]

Killed at once: services, by SIGKILL, and the broker, in order. Stopped for longer than a session: any service. Said again:
what is in the log already. Put between: records that are no events. 0 lost, 0 doubled, 0 different, or it exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from aiokafka import AIOKafkaProducer

from services.aggregator import queries
from services.ingest import admission
from services.runtime.embedded import Embedded
from services.simworker.simulators.catalog import simulators
from tests.cluster.conftest import Cluster, free_port, load_broker
from tests.factories import Clock, kineto_trace, settings

SERVICES = (
    ("ingest", "1"),
    ("ingest", "2"),
    ("simworker", "1"),
    ("simworker", "2"),
    ("aggregator", "1"),
    ("aggregator", "2"),
)
GPU_SETS = (("h100_sxm",), ("l4", "b200_sxm"), ("h100_sxm:dram_gbps=6000", "a100_sxm_80gb", "mi300x"))
SESSION_S = 3.0
SETTLE_LIMIT_S = 240.0


class Chaos:
    """One cluster on a broker of its own, its load, and what is done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kafka = load_broker()
        self.kafka.install()
        self.data = folder / "kafka"
        self.port = free_port()
        home = folder / "home"
        home.mkdir()
        self.cluster = Cluster(self.kafka.start(self.data, self.port), home)
        self.traces = [kineto_trace(folder / f"t{n}.json", step_count=3 + n, layers=2 + n) for n in range(3)]
        self.expected: dict[str, str] = {}  # run -> state hash
        self.done = Counter[str]()
        self._answers = self._embedded_answers(folder)

    def _embedded_answers(self, folder: Path) -> dict[tuple[int, int], str]:
        """State hash per (trace, set of GPUs), from one process that nothing happens to."""
        engine = Embedded(settings(folder / "embedded"), simulators(2), now_ms=Clock())
        answers = {}
        for number, path in enumerate(self.traces):
            upload = admission.upload([engine.store_artifact(path)], name=path.stem, model=None, source_gpu=None)
            engine.upload(upload)
            engine.pump()
            for which, gpus in enumerate(GPU_SETS):
                run_id = f"{number}-{which}"
                engine.request_run(run_id, upload.trace_id, gpus)
                engine.pump()
                answers[number, which] = queries.run_report(engine.store, run_id)["state_hash"]
        engine.close()
        return answers

    def start(self) -> None:
        for service, instance in SERVICES:
            self.cluster.start(service, instance)

    def close(self) -> None:
        for process in self.cluster.processes.values():
            process.send_signal(signal.SIGCONT)
        self.cluster.stop()
        self.kafka.stop(self.data)

    # --- load -------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """A run, now and then before its trace."""
        number, which = self.chance.randrange(len(self.traces)), self.chance.randrange(len(GPU_SETS))
        run_id = f"run-{len(self.expected)}"
        upload = self.cluster.upload(self.traces[number])
        request = admission.run(
            run_id,
            upload.trace_id,
            GPU_SETS[which],
            simulator="analytic",
            simulators=("analytic",),
            source_gpu="a100_sxm_80gb",
        )
        events = [upload, request]
        self.chance.shuffle(events)
        self.cluster.publish(*events)
        self.expected[run_id] = self._answers[number, which]

    # --- what goes wrong --------------------------------------------------------------------------------------

    def disturb(self) -> None:
        kinds = (self.kill, self.kill, self.kill, self.pause, self.say_again, self.poison, self.restart_broker)
        kind = self.chance.choice(kinds)
        kind()
        self.done[kind.__name__] += 1

    def kill(self) -> None:
        service, instance = self.chance.choice(SERVICES)
        self.cluster.kill(service, instance)
        time.sleep(self.chance.uniform(0, 2))
        self.cluster.start(service, instance)

    def pause(self) -> None:
        process = self.cluster.processes[self.chance.choice(SERVICES)]
        process.send_signal(signal.SIGSTOP)
        time.sleep(SESSION_S + 2)
        process.send_signal(signal.SIGCONT)

    def say_again(self) -> None:
        topic = self.chance.choice(("catalog", "runs", "results"))
        known = [
            event for event in self.cluster.events(topic) if event is not None and event.type != "RecordDeadLettered"
        ]
        if known:
            first = self.chance.randrange(len(known))
            self.cluster.publish(*known[first : first + 50])

    def poison(self) -> None:
        async def send() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self.cluster.bootstrap)
            await producer.start()
            try:
                headers = [("type", b"KernelsSimulated"), ("schema_version", b"1")]
                await producer.send_and_wait("results", b"\xff not an event", key=b"poison", headers=headers)
            finally:
                await producer.stop()

        asyncio.run(send())

    def restart_broker(self) -> None:
        self.kafka.stop(self.data)
        time.sleep(self.chance.uniform(0, 3))
        self.kafka.start(self.data, self.port)

    # --- the end ----------------------------------------------------------------------------------------------

    def revive(self) -> None:
        """Services may give up when the broker is away; whoever runs them starts them again, as here."""
        for key in SERVICES:
            process = self.cluster.processes.get(key)
            if process is None or process.poll() is not None:
                self.done["revived"] += 1
                self.cluster.start(*key)

    def differences(self) -> list[str]:
        """Waits until every run has ended; what is lost, doubled or different, in sentences."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while time.monotonic() < deadline:
            self.revive()
            ends: dict[str, set[str]] = {}
            for event in self.cluster.events("predictions"):
                if event is not None and event.type in {"RunCompleted", "RunFailed"}:
                    ends.setdefault(event.run_id, set()).add(getattr(event, "state_hash", event.type))
            if set(self.expected) <= set(ends):
                break
            time.sleep(1)
        found = [f"{run_id} has not ended" for run_id in self.expected if run_id not in ends]
        for run_id, hashes in ends.items():
            if run_id in self.expected and hashes != {self.expected[run_id]}:
                found.append(f"{run_id} ended as {sorted(hashes)}, not as {self.expected[run_id]}")
        return found


def run_chaos(folder: Path, seed: int, seconds: float, *, is_loud: bool = False) -> list[str]:
    """Differences after so much time of load and disturbances; [] where every answer is the right one."""
    chaos = Chaos(folder, seed)
    try:
        chaos.start()
        began = time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds:
            chaos.ask()
            chaos.disturb()
            chaos.revive()
            if is_loud:
                print(f"{elapsed:6.0f} s  {len(chaos.expected)} runs asked for; {dict(chaos.done)}", flush=True)
        found = chaos.differences()
        if is_loud or found:
            print(f"seed {seed}: {len(chaos.expected)} runs, {dict(chaos.done)}, {len(found)} differences", flush=True)
        return found
    finally:
        chaos.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # a broker that is away is no news here
    with tempfile.TemporaryDirectory() as folder:
        found = run_chaos(Path(folder), arguments.seed, arguments.seconds, is_loud=True)
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
