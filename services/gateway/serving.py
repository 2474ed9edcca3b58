"""The server process: bind, say where, serve until told to stop."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

PORT = 8321
_PORTS_TRIED = 50
_CLOSING_LIMIT_S = 20.0


class CannotBind(OSError):
    """No address to listen on; the message says which was tried."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on this port, or on the next free one. Raises CannotBind."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + _PORTS_TRIED, 65_536)):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise CannotBind(f"cannot listen on {host}:{candidate} ({error.strerror or error})") from error
            continue
        return listener
    raise CannotBind(f"no free port on {host} from {port} to {port + _PORTS_TRIED - 1}; name another with --port")


def serve(
    app: ASGIApp, listener: socket.socket, on_ready: Callable[[], None], must_end: Callable[[], bool] = lambda: False
) -> None:
    """Until SIGINT or SIGTERM, or until it must end, which is asked ten times a second.

    A second signal ends the process at once (the log has everything acknowledged).
    """
    config = uvicorn.Config(
        app,
        ws="websockets-sansio",
        ws_per_message_deflate=False,  # 5 to 60 times slower, and Arrow frames gain little
        ws_max_size=64 << 10,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        proxy_headers=False,
    )
    _Server(config, on_ready, must_end).run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn raises its signals again when it is done, which would skip everything after it."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], must_end: Callable[[], bool]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._must_end = must_end

    async def on_tick(self, counter: int) -> bool:
        return self._must_end() or await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.freeze()  # what is loaded stays: to look through it all again stops viewers for a third of a second
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self.should_exit = True


@contextlib.contextmanager
def closing_in_time() -> Iterator[None]:
    """Closing waits for a service's step; an import of gigabytes is rather done again than waited for."""

    def give_up() -> None:
        print(
            "cascade: stopped in the middle of a step; it is done again at the next start", file=sys.stderr, flush=True
        )
        os._exit(0)

    timer = threading.Timer(_CLOSING_LIMIT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
