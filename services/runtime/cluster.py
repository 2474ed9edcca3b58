"""What the cluster's four programs share: settings, topics, logs, and leaving in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from services.runtime.kafka import (
    Broker,
    BrokerRefused,
    TopicSpec,
    WrongTopic,
    ensure_topics,
    knock,
    topic_specs,
)
from services.runtime.observe import Observed, serve
from services.runtime.settings import BadSetting, Settings

TOPICS_FILE = Path(__file__).resolve().parents[2] / "infra" / "topics.yaml"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SIMULATORS = ("analytic", "roofline", "sass", "accelsim")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of one program of a cluster."""

    broker: Broker
    instance: str  # of this program among its equals; static group membership rests on it
    session_timeout_ms: int
    settings: Settings
    observe: tuple[str, int] | None = None  # host and port of /health, /ready, /metrics; None: not served

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> ClusterSettings:
        timeout = environ.get("CASCADE_SESSION_TIMEOUT_MS", "10000")
        if not timeout.isdecimal() or not 2000 <= int(timeout) <= 300_000:
            raise BadSetting(f"CASCADE_SESSION_TIMEOUT_MS={timeout!r}: must be 2000 to 300000")
        instance = environ.get("CASCADE_INSTANCE", "0")
        return cls(broker_of(environ), instance, int(timeout), Settings.from_environ(environ), _observe(environ))


def broker_of(environ: Mapping[str, str]) -> Broker:
    """From CASCADE_KAFKA and, for a broker that asks who comes, CASCADE_KAFKA_*. Raises BadSetting."""
    bootstrap = environ.get("CASCADE_KAFKA", "127.0.0.1:19092")
    if not all(":" in address for address in bootstrap.split(",")):
        raise BadSetting(f"CASCADE_KAFKA={bootstrap!r}: must be host:port, or several separated by commas")
    broker = Broker(
        bootstrap,
        protocol=environ.get("CASCADE_KAFKA_PROTOCOL", "PLAINTEXT"),
        mechanism=environ.get("CASCADE_KAFKA_MECHANISM", "PLAIN"),
        username=environ.get("CASCADE_KAFKA_USERNAME", ""),
        password=environ.get("CASCADE_KAFKA_PASSWORD", ""),
        ca_file=environ.get("CASCADE_KAFKA_CA_FILE", ""),
        certificate_file=environ.get("CASCADE_KAFKA_CERTIFICATE_FILE", ""),
        key_file=environ.get("CASCADE_KAFKA_KEY_FILE", ""),
    )
    if broker.protocol not in PROTOCOLS:
        raise BadSetting(f"CASCADE_KAFKA_PROTOCOL={broker.protocol!r}: must be one of {', '.join(PROTOCOLS)}")
    if broker.mechanism not in MECHANISMS:
        raise BadSetting(f"CASCADE_KAFKA_MECHANISM={broker.mechanism!r}: must be one of {', '.join(MECHANISMS)}")
    if broker.protocol.startswith("SASL") and not (broker.username and broker.password):
        raise BadSetting(f"{broker.protocol} needs CASCADE_KAFKA_USERNAME and CASCADE_KAFKA_PASSWORD")
    try:
        broker.ssl_context()
    except OSError as error:
        raise BadSetting(f"a file of CASCADE_KAFKA_*_FILE cannot be used: {error}") from error
    return broker


def _observe(environ: Mapping[str, str]) -> tuple[str, int] | None:
    text = environ.get("CASCADE_OBSERVE", "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise BadSetting(f"CASCADE_OBSERVE={text!r}: must be host:port")
    return host, int(port)


def observed(service: str, settings: ClusterSettings) -> Observed:
    """The program's figures, served where the settings say, and its log on standard error.

    Raises BadSetting where the port is taken.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("cascade").setLevel(logging.INFO)
    found = Observed(service)
    if settings.observe is not None:
        host, port = settings.observe
        try:
            serve(found, host, port)
        except OSError as error:
            raise BadSetting(f"CASCADE_OBSERVE={host}:{port}: cannot listen there ({error.strerror})") from error
    return found


async def prepare(broker: Broker) -> None:
    """Topics are there, with the partitions that their writers assume, before anything is read or written.

    Raises BrokerRefused, WrongTopic.
    """
    await knock(broker)
    await ensure_topics(broker, _specs())


def run_program(program: Callable[[ClusterSettings], None], environ: Mapping[str, str]) -> int:
    """A program from its environment to its exit code; what its starter can mend is said in one sentence."""
    gc.freeze()  # what is loaded stays: to look through it all again stops a program for a third of a second
    try:
        program(ClusterSettings.from_environ(environ))
    except (BadSetting, BrokerRefused, WrongTopic) as error:
        print(f"cascade: {error}", file=sys.stderr)
        return 2
    return 0


def say(event: str, **values: object) -> None:
    """One structured line per unit of work, for whoever collects standard error."""
    words = " ".join(f"{name}={value}" for name, value in values.items())
    print(f"{event} {words}".rstrip(), file=sys.stderr, flush=True)


def leave_in_order(*stops: Callable[[], None]) -> None:
    """SIGTERM and SIGINT finish the batch at hand instead of cutting it off."""
    loop = asyncio.get_running_loop()

    def stop_all() -> None:
        for stop in stops:
            stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_all)


def _specs() -> list[TopicSpec]:
    return topic_specs(yaml.safe_load(TOPICS_FILE.read_text())["topics"], SIMULATORS)


logging.getLogger("aiokafka").setLevel(logging.ERROR)  # rebalances are not errors
