"""What a program of a cluster says of itself: counters for Prometheus, and whether it lives and is ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

ALIVE_WITHIN_S = 60.0
"""A loop that has not come round for so long hangs: a reactor runs in a thread, and never holds it up."""


class Observed:
    """One program's figures and state. Methods may be called from any thread."""

    def __init__(self, service: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self.service = service
        self._now_s = now_s
        self._seen_s: dict[str, float] = {}
        self._ready: dict[str, bool] = {}
        self.registry = CollectorRegistry()
        self._read = Counter(
            "cascade_records_read_total", "Records read from Kafka.", ["service", "topic"], registry=self.registry
        )
        self._published = Counter(
            "cascade_events_published_total", "Events published.", ["service", "type"], registry=self.registry
        )
        self._dead = Counter(
            "cascade_dead_letters_total", "Records put aside as unreadable.", ["service"], registry=self.registry
        )
        self._batch = Histogram(
            "cascade_batch_seconds",
            "From a batch's arrival to its commit.",
            ["service"],
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self._lag = Gauge(
            "cascade_lag_records",
            "Records of an owned partition that are not read yet.",
            ["service", "topic", "partition"],
            registry=self.registry,
        )

    def expect(self, part: str) -> None:
        """A part of the program that must live and be ready for the program to be so."""
        self._seen_s[part] = self._now_s()
        self._ready.setdefault(part, False)

    def seen(self, part: str, *, is_ready: bool) -> None:
        """The part's loop came round."""
        self._seen_s[part] = self._now_s()
        self._ready[part] = is_ready

    def read(self, topic: str, count: int) -> None:
        self._read.labels(self.service, topic).inc(count)

    def published(self, types: Iterable[str]) -> None:
        for kind in types:
            self._published.labels(self.service, kind).inc()
            if kind == "RecordDeadLettered":
                self._dead.labels(self.service).inc()

    def answered(self, seconds: float) -> None:
        self._batch.labels(self.service).observe(seconds)

    def lag(self, topic: str, partition: int, records: int) -> None:
        self._lag.labels(self.service, topic, str(partition)).set(records)

    def disown(self, topic: str, partition: int) -> None:
        """Another has the partition now; its lag is that one's to say."""
        self._lag.remove(self.service, topic, str(partition))

    @property
    def is_alive(self) -> bool:
        now_s = self._now_s()
        return all(now_s - seen_s < ALIVE_WITHIN_S for seen_s in self._seen_s.values())

    @property
    def is_ready(self) -> bool:
        return bool(self._ready) and self.is_alive and all(self._ready.values())


def serve(observed: Observed, host: str, port: int) -> ThreadingHTTPServer:
    """`/health`, `/ready` and `/metrics` in a thread of their own, so that a busy loop cannot hide. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._say(200, generate_latest(observed.registry), CONTENT_TYPE_LATEST)
            elif self.path in {"/health", "/ready"}:
                is_well = observed.is_alive if self.path == "/health" else observed.is_ready
                self._say(200 if is_well else 503, b"ok\n" if is_well else b"no\n", "text/plain")
            else:
                self._say(404, b"there are /health, /ready and /metrics\n", "text/plain")

        def _say(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A probe every few seconds is no news."""

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="cascade-observe", daemon=True).start()
    return server
