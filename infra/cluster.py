"""A whole cluster on this machine, until interrupted: Kafka, ingest, simworkers, aggregator, gateway with the page.

    cluster.py [--home .cluster] [--kafka-port 19092] [--port 8321] [--simworkers 2] [--run-example]

Every process is ended by its id, in the order opposite to their start. Logs are in HOME, one file per program; what was
traced and run stays there too, and is there again at the next start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kafka import broker

ROOT = Path(__file__).resolve().parent.parent
CASCADE = ROOT / ".venv" / "bin" / "cascade"
STOP_LIMIT_S = 20.0
READY_LIMIT_S = 90.0


class Programs:
    """The processes of one cluster, by name."""

    def __init__(self, home: Path, address: str) -> None:
        self._home = home
        self._address = address
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str, command: list[str], instance: str) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "CASCADE_HOME": str(self._home),
            "CASCADE_KAFKA": self._address,
            "CASCADE_INSTANCE": instance,
        }
        with (self._home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._running.append((name, process))
        return process

    def ended(self) -> str | None:
        """The name of a program that has ended by itself."""
        return next((name for name, process in self._running if process.poll() is not None), None)

    def stop(self) -> None:
        for _, process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_LIMIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._running.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=ROOT / ".cluster")
    parser.add_argument("--kafka-port", type=int, default=19092)
    parser.add_argument("--port", type=int, default=8321)
    parser.add_argument("--simworkers", type=int, default=2)
    parser.add_argument("--example", action="store_true", help="run the bundled example, print its table, and stop")
    arguments = parser.parse_args()
    if arguments.simworkers < 1:
        parser.error(f"--simworkers {arguments.simworkers}: at least one is needed")
    home = arguments.home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    # A terminated starter must end what it started, as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        broker.install()
        print(f"starting Kafka on 127.0.0.1:{arguments.kafka_port}", flush=True)
        address = broker.start(home / "kafka", arguments.kafka_port)
    except broker.BrokerError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    programs = Programs(home, address)
    try:
        return _run(programs, arguments, home, address)
    except KeyboardInterrupt:
        print("\nstopping", flush=True)
        return 0
    finally:
        programs.stop()
        broker.stop(home / "kafka")


def _run(programs: Programs, arguments: argparse.Namespace, home: Path, address: str) -> int:
    service = [sys.executable, "-m"]
    programs.start("ingest-1", [*service, "services.ingest.app"], "1")
    for number in range(1, arguments.simworkers + 1):
        programs.start(f"simworker-{number}", [*service, "services.simworker.app"], str(number))
    programs.start("aggregator-1", [*service, "services.aggregator.app"], "1")
    serve = [str(CASCADE), "serve", "--kafka", address, "--port", str(arguments.port)]
    programs.start("gateway-1", serve, "1")
    server = _wait_for(home / "server.json", programs, home)
    if server is None:
        return 1
    print(
        f"cluster is up: Kafka, ingest, {arguments.simworkers} simworkers, aggregator, gateway; logs in {home}\n\n"
        f"{server['url']}/?token={server['token']}\n"
        f"CASCADE_HOME={home} .venv/bin/cascade run sample:opt-125m",
        flush=True,
    )
    if arguments.example:
        run = [str(CASCADE), "run", "sample:opt-125m"]
        return subprocess.run(run, env={**os.environ, "CASCADE_HOME": str(home)}, check=False).returncode
    while (gone := programs.ended()) is None:
        time.sleep(0.5)
    print(f"cluster: {gone} has ended; its log is {home / f'{gone}.log'}", file=sys.stderr)
    return 1


def _wait_for(path: Path, programs: Programs, home: Path) -> dict[str, str] | None:
    deadline = time.monotonic() + READY_LIMIT_S
    began = time.time()
    while time.monotonic() < deadline:
        if (gone := programs.ended()) is not None:
            print(f"cluster: {gone} did not start; its log is {home / f'{gone}.log'}", file=sys.stderr)
            return None
        if path.exists() and path.stat().st_mtime >= began - 1:
            found: dict[str, str] = json.loads(path.read_text())
            return found
        time.sleep(0.2)
    print(f"cluster: the gateway did not answer within {READY_LIMIT_S:.0f} s; see {home}", file=sys.stderr)
    return None


if __name__ == "__main__":
    raise SystemExit(main())
