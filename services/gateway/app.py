"""The gateway as one ASGI application: REST, /ws, the page, and the guard before all of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from cascade_schemas.gpu import InvalidConfig, UnknownGpu
from cascade_schemas.model import UnknownModel, UnsupportedModel
from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from services.gateway.answers import answer
from services.gateway.artifacts import artifacts
from services.gateway.auth import Guard, error, known_hosts
from services.gateway.backend import Backend
from services.gateway.bodies import first_error
from services.gateway.live import Hub, serve_viewer
from services.gateway.pages import page
from services.gateway.positions import RunIndexes
from services.gateway.recordings import recordings
from services.gateway.routes import Sample, routes
from services.gateway.screens import screen_routes
from services.runtime.artifacts import UploadTooLarge
from services.runtime.engine import Refused

log = logging.getLogger("cascade")


def create_app(
    backend: Backend,
    *,
    token: str,
    host: str,
    port: int,
    version: str,
    upload_bytes_limit: int,
    scratch: Path,
    web: Path,
    samples: Mapping[str, Sample],
) -> FastAPI:
    """host, port: what the server is bound to; scratch: a folder for exports; web: the built page."""
    indexes = RunIndexes(backend)
    hub = Hub(backend, indexes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        hub.start()
        yield

    # Its own documentation pages load scripts from elsewhere; the description itself is at /api/openapi.json.
    app = FastAPI(
        title="Cascade",
        version=version,
        description='Trace once, simulate everywhere. Errors are {"error": one sentence}.',
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.include_router(
        routes(backend, version=version, upload_bytes_limit=upload_bytes_limit, scratch=scratch, samples=samples)
    )
    app.include_router(screen_routes(backend.screens, backend, indexes))

    app.include_router(recordings(backend))
    app.include_router(artifacts(backend, upload_bytes_limit))

    @app.websocket("/ws")
    async def live(socket: WebSocket) -> None:
        await serve_viewer(socket, hub)

    @app.get("/{path:path}", include_in_schema=False)
    def web_page(path: str) -> Response:
        if path == "api" or path.startswith("api/"):
            return error(404, f"there is no /{path[:100]}; /api/openapi.json lists what there is")
        return page(web, path)

    _answer_errors_with_sentences(app)
    hosts, is_open_bind = known_hosts(host)
    app.add_middleware(Guard, token=token, hosts=hosts, is_open_bind=is_open_bind, port=port)
    return app


def _answer_errors_with_sentences(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, refusal: Exception) -> Response:
        if isinstance(refusal.__cause__, UploadTooLarge):
            return error(413, str(refusal))
        status = 404 if isinstance(refusal.__cause__, LookupError) else 400
        details = refusal.details if isinstance(refusal, Refused) else {}
        return answer({"error": str(refusal), **details}, status) if details else error(status, str(refusal))

    @app.exception_handler(UploadTooLarge)
    async def too_large(_: Request, refusal: Exception) -> Response:
        return error(413, str(refusal))

    @app.exception_handler(UnknownGpu)
    async def unknown_gpu(request: Request, refusal: Exception) -> Response:
        return error(404 if request.method == "GET" else 400, str(refusal))

    async def bad_value(_: Request, refusal: Exception) -> Response:
        return error(400, str(refusal))

    for mistake in (InvalidConfig, UnknownModel, UnsupportedModel):
        app.add_exception_handler(mistake, bad_value)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, RequestValidationError)
        return error(422, first_error(refusal.errors()))

    @app.exception_handler(HTTPException)
    async def http(_: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, HTTPException)
        response = error(refusal.status_code, str(refusal.detail))
        response.headers.update(refusal.headers or {})
        return response

    @app.exception_handler(Exception)
    async def bug(request: Request, _: Exception) -> Response:
        log.error("request_failed method=%s path=%s", request.method, request.url.path)
        return error(500, "the server failed to answer this; its own output says why")
