"""One Apache Kafka broker in KRaft mode on this machine, from jars: no Docker, no ZooKeeper.

    broker.py install                       jars into .kafka/lib (needs Java 17 and Maven)
    broker.py start DATA [--port 19092]     format on first use, start, wait until it answers; prints host:port
    broker.py stop DATA                     stop the broker that runs on DATA, by its process id

All of a broker's state is in its data folder: properties, log segments, broker.pid, broker.log.
"""

from __future__ import annotations

import argparse
import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / ".kafka" / "lib"
POM = Path(__file__).resolve().parent / "pom.xml"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
HEAP = "512m"


class BrokerError(RuntimeError):
    """The broker cannot be installed, started or stopped; one sentence."""


def install() -> None:
    """Copy the jars, unless the same pom.xml was installed before."""
    stamp = LIB / ".installed"
    wanted = POM.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    for tool, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(tool) is None:
            raise BrokerError(f"{tool} is missing; mend it with: sudo apt-get install {package}")
    shutil.rmtree(LIB, ignore_errors=True)
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={LIB}"]
    done = subprocess.run(["mvn", "-B", "-q", "-f", str(POM), goal, *options], check=False)
    if done.returncode != 0 or not list(LIB.glob("kafka_2.13-*.jar")):
        raise BrokerError(f"mvn could not fetch the jars of {POM.name} (exit code {done.returncode})")
    stamp.write_text(wanted)


def start(data: Path, port: int, more: Mapping[str, str] = MappingProxyType({}), users: Sequence[str] = ()) -> str:
    """The address of a broker that answers; one that already runs on `data` is left running.

    `more`: properties beside or instead of ours; `users`: as the storage tool's --add-scram takes them, at first use.
    """
    data.mkdir(parents=True, exist_ok=True)
    if (running := pid_of(data)) is not None:
        raise BrokerError(f"a broker runs on {data} already (process {running}); stop it first")
    properties = data / "server.properties"
    properties.write_text(server_properties(data / "segments", port, more))
    if not (data / "segments" / "meta.properties").exists():
        _format(properties, users)
    with (data / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            java_command("kafka.Kafka", str(properties)),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=data,
        )
    (data / "broker.pid").write_text(str(process.pid))
    _wait_until_it_answers(process, port, data)
    return f"127.0.0.1:{port}"


def stop(data: Path) -> None:
    """End the broker of `data`; it flushes and leaves in order, or is killed after STOP_LIMIT_S."""
    pid = pid_of(data)
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while pid_of(data) is not None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    (data / "broker.pid").unlink(missing_ok=True)


def pid_of(data: Path) -> int | None:
    """The process id of the broker that runs on `data`; None where none does."""
    try:
        pid = int((data / "broker.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if b"kafka.Kafka" in command else None  # else the number is another process's by now


def server_properties(segments: Path, port: int, more: Mapping[str, str] = MappingProxyType({})) -> str:
    """One node that is broker and controller; topics are never made by accident."""
    controller = port + 1
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(segments),
        "auto.create.topics.enable": "false",
        "message.max.bytes": str(16 << 20),
        "replica.fetch.max.bytes": str(16 << 20),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "2000",  # tests lose workers on purpose and do not wait long
    }
    return "".join(f"{key}={value}\n" for key, value in {**lines, **more}.items())


def _format(properties: Path, users: Sequence[str]) -> None:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    options = [word for user in users for word in ("--add-scram", user)]
    # One word: an id may begin with a dash, one in 64.
    identity = f"--cluster-id={cluster_id}"
    command = java_command("kafka.tools.StorageTool", "format", identity, "-c", str(properties), *options)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise BrokerError(f"the data folder could not be formatted: {done.stderr.strip().splitlines()[-1:]}")


def java_command(main_class: str, *arguments: str) -> list[str]:
    if not (LIB / ".installed").exists():
        raise BrokerError("the broker's jars are not installed; run: python3 infra/kafka/broker.py install")
    options = [f"-Xmx{HEAP}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return ["java", *options, "-cp", f"{LIB}/*", main_class, *arguments]


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, data: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            last = (data / "broker.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise BrokerError(f"the broker ended with exit code {process.returncode}: {last}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    process.kill()
    raise BrokerError(f"the broker did not answer on port {port} within {START_LIMIT_S:.0f} s; see {data}/broker.log")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install")
    for name in ("start", "stop"):
        sub = commands.add_parser(name)
        sub.add_argument("data", type=Path)
        if name == "start":
            sub.add_argument("--port", type=int, default=19092)
    arguments = parser.parse_args()
    try:
        if arguments.command == "install":
            install()
        elif arguments.command == "start":
            print(start(arguments.data.absolute(), arguments.port))
        else:
            stop(arguments.data.absolute())
    except BrokerError as error:
        print(f"broker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
