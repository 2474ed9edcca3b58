"""What the cluster's four programs share: settings, topics, logs, and leaving in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from services.runtime.kafka import TopicSpec, ensure_topics, topic_specs
from services.runtime.observe import Observed, serve
from services.runtime.settings import BadSetting, Settings

TOPICS_FILE = Path(__file__).resolve().parents[2] / "infra" / "topics.yaml"
SIMULATORS = ("analytic", "roofline", "sass")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of one program of a cluster."""

    bootstrap: str
    instance: str  # of this program among its equals; static group membership rests on it
    session_timeout_ms: int
    settings: Settings
    observe: tuple[str, int] | None = None  # host and port of /health, /ready, /metrics; None: not served

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> ClusterSettings:
        bootstrap = environ.get("CASCADE_KAFKA", "127.0.0.1:19092")
        if ":" not in bootstrap:
            raise BadSetting(f"CASCADE_KAFKA={bootstrap!r}: must be host:port")
        timeout = environ.get("CASCADE_SESSION_TIMEOUT_MS", "10000")
        if not timeout.isdecimal() or not 2000 <= int(timeout) <= 300_000:
            raise BadSetting(f"CASCADE_SESSION_TIMEOUT_MS={timeout!r}: must be 2000 to 300000")
        instance = environ.get("CASCADE_INSTANCE", "0")
        return cls(bootstrap, instance, int(timeout), Settings.from_environ(environ), _observe(environ))


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


async def prepare(bootstrap: str) -> None:
    """Topics are there, with the partitions that their writers assume, before anything is read or written."""
    await ensure_topics(bootstrap, _specs())


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
