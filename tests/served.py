"""A gateway on 127.0.0.1 for tests, in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from services.gateway import serving
from services.gateway.app import create_app
from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.remote import ServerFile
from services.runtime.served import ServedEngine
from services.simworker.simulators.base import KernelSimulator
from tests.factories import settings

TOKEN = "a-token-that-only-tests-know"


@dataclass(frozen=True)
class Served:
    """A running server and what stands behind it."""

    file: ServerFile
    engine: ServedEngine
    home: Path

    @property
    def url(self) -> str:
        return self.file.url


@contextmanager
def served(
    home: Path, simulators: dict[str, KernelSimulator], *, upload_bytes_limit: int = 1 << 30, web: Path | None = None
) -> Iterator[Served]:
    engine = ServedEngine(Embedded(settings(home), simulators, now_ms=wall_clock_ms))
    listener = serving.bind("127.0.0.1", 18_321)
    port = listener.getsockname()[1]
    app = create_app(
        engine,
        token=TOKEN,
        host="127.0.0.1",
        port=port,
        version="test",
        upload_bytes_limit=upload_bytes_limit,
        scratch=home,
        web=web or home / "no-page",
        samples={},
    )
    config = uvicorn.Config(
        app, ws="websockets-sansio", ws_per_message_deflate=False, log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    ready = threading.Event()
    thread = threading.Thread(target=_run, args=(server, listener, ready), daemon=True)
    thread.start()
    assert ready.wait(20), "the server did not start"
    try:
        yield Served(ServerFile(f"http://127.0.0.1:{port}", TOKEN, 0), engine, home)
    finally:
        server.should_exit = True
        thread.join(20)
        engine.close()


def _run(server: uvicorn.Server, listener: object, ready: threading.Event) -> None:
    started = server.startup

    async def startup(sockets: object = None) -> None:
        await started(sockets)
        ready.set()

    server.startup = startup
    server.run(sockets=[listener])
