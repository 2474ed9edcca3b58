"""The cluster on a real broker of this machine: what each program does in a second, beside what Kafka's client alone does.

Rates depend on the machine and on who else works on it, so cores and load are printed; ratios are of one run. Parts, where
named (`CASCADE_BENCH=workers python -m tests.bench cluster`): recordings, workers, aggregator, push.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

from services.runtime.cluster import prepare
from services.runtime.kafka import Broker
from tests.bench.cluster_recordings import follow_recordings
from tests.bench.cluster_runs import aggregate, push, simulate
from tests.cluster.conftest import Cluster, free_port, load_broker

PARTS = {"recordings": follow_recordings, "workers": simulate, "aggregator": aggregate, "push": push}


def run() -> None:
    wanted = os.environ.get("CASCADE_BENCH", "").split() or list(PARTS)
    kafka = load_broker()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            kafka.install()
        except (OSError, kafka.BrokerError) as error:
            print(f"NOT RUN, no broker here ({error})")
            return
        for name in wanted:
            load = os.getloadavg()[0]
            print(f"-- {name}: {os.cpu_count()} cores for all of it, load average {load:.1f} before", flush=True)
            data, home = place / f"kafka-{name}", place / f"home-{name}"
            home.mkdir()
            cluster = Cluster(kafka.start(data, free_port()), home)
            try:
                asyncio.run(prepare(Broker(cluster.bootstrap)))
                PARTS[name](cluster)
            finally:
                for process in cluster.processes.values():
                    process.send_signal(signal.SIGCONT)
                cluster.stop()
                kafka.stop(data)
