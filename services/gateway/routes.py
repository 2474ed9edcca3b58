"""REST under /api: each route asks the engine one question; what it refuses, the caller reads as one sentence."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio.from_thread
import anyio.to_thread
from cascade_schemas.events import Refine
from cascade_schemas.gpu import aliases, figure_sources, known_gpus, load_gpu
from cascade_schemas.model import known_models, load_model
from fastapi import APIRouter, Query, Request
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from services.gateway import answers
from services.gateway.answers import answer, rows_answer, shape
from services.gateway.backend import Backend
from services.gateway.bodies import RunBody, SampleBody, SqlBody, WhatIfAskedBody, import_options
from services.gateway.multipart import next_chunk, read_parts
from services.runtime.artifacts import UploadTooLarge
from services.runtime.engine import ImportOptions, Refused, Report, RunFilters

FORM_SLACK_BYTES = 4 << 20  # of a form beside its files

First = Annotated[int, Query(alias="from", ge=0, le=2**53)]
Count = Annotated[int, Query(ge=1, le=10_000)]

Text = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class Sample:
    """A bundled recording and how it is imported."""

    path: Path
    options: ImportOptions


def routes(
    backend: Backend, *, version: str, upload_bytes_limit: int, scratch: Path, samples: Mapping[str, Sample]
) -> APIRouter:
    """Blocking routes run in a pool of threads; only the upload's bytes pass through the event loop."""
    api = APIRouter(prefix="/api")

    def unless_stopped(report: Report, underway: str) -> Response:
        """The report; whoever waits for one that will never be over is told."""
        if report["status"] == underway and (why := backend.failure):
            return answer({"error": why}, 503)
        return answer(report)

    @api.get("/health", responses=shape(answers.Health))
    def health() -> Response:
        why = backend.failure
        said = {"status": "failed", "error": why} if why else {"status": "ok"}
        return answer({**said, "version": version}, 503 if why else 200)

    @api.get("/about", responses=shape(answers.About))
    def about() -> Response:
        return answer(
            {
                "version": version,
                "simulators": sorted(backend.simulators),
                "models": known_models(),
                "samples": list(samples),
                "upload_bytes_limit": upload_bytes_limit,
            }
        )

    # --- GPUs and models --------------------------------------------------------------------------------------

    @api.get("/gpus", responses=shape(answers.Gpus))
    def gpus() -> Response:
        return answer({"gpus": [_gpu(name) for name in known_gpus()]})

    @api.get("/gpus/{name}", responses=shape(answers.Gpu))
    def gpu(name: str) -> Response:
        return answer(_gpu(name))

    @api.get("/models", responses=shape(answers.Models))
    def models() -> Response:
        return answer({"models": [load_model(name).model_dump(mode="json") for name in known_models()]})

    # --- traces -----------------------------------------------------------------------------------------------

    @api.get("/traces", responses=shape(answers.Traces))
    def traces() -> Response:
        return answer({"traces": backend.traces()})

    @api.post(
        "/traces",
        status_code=202,
        responses=shape(answers.TraceAsked, 202),
        openapi_extra={"requestBody": {"content": {"multipart/form-data": {"schema": _UPLOAD_SCHEMA}}}},
    )
    async def upload(request: Request) -> Response:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > upload_bytes_limit + FORM_SLACK_BYTES:
            raise UploadTooLarge(
                f"{declared} bytes are more than the limit of {upload_bytes_limit}; set CASCADE_UPLOAD_MIB"
            )
        chunks = aiter(request.stream())

        def read_chunk() -> bytes:
            return anyio.from_thread.run(next_chunk, chunks)

        def received() -> str:
            return _received(backend, request.headers.get("content-type", ""), read_chunk, upload_bytes_limit)

        trace_id = await anyio.to_thread.run_sync(received)
        return answer({"trace_id": trace_id}, 202)

    @api.post("/samples", status_code=202, responses=shape(answers.TraceAsked, 202))
    def sample(body: SampleBody) -> Response:
        """Import a bundled recording."""
        if body.name not in samples:
            raise Refused(f"{body.name!r} is no bundled sample; there are {', '.join(samples)}")
        chosen = samples[body.name]
        with chosen.path.open("rb") as recording:
            artifact = backend.receive(recording, chosen.path.name, upload_bytes_limit)
        return answer({"trace_id": backend.request_import([artifact], chosen.options)}, 202)

    @api.get("/traces/{trace_id}", responses=shape(answers.TraceReport))
    def trace(trace_id: str) -> Response:
        return unless_stopped(backend.trace_report(trace_id), "importing")

    # --- runs -------------------------------------------------------------------------------------------------

    @api.get("/runs", responses=shape(answers.Runs))
    def runs(
        q: Text = "", status: Text = "", provenance: Text = "", first: First = 0, count: Count | None = None
    ) -> Response:
        """Newest first; without a count all of them."""
        return answer(backend.runs_page(RunFilters(q, status, provenance), first, count))

    @api.post("/runs", status_code=202, responses=shape(answers.RunAsked, 202))
    def start(body: RunBody) -> Response:
        refine = None if body.refine is None else Refine(**body.refine.model_dump())
        run_id = backend.start_run(body.trace_id, body.gpus, body.simulator, body.name, refine)
        return answer({"run_id": run_id}, 202)

    @api.get("/runs/{run_id}", responses=shape(answers.RunReport))
    def run(run_id: str) -> Response:
        return answer(backend.run_report(run_id))

    @api.get("/runs/{run_id}/progress", responses=shape(answers.Progress))
    def progress(run_id: str) -> Response:
        return unless_stopped(backend.run_progress(run_id), "running")

    @api.post("/runs/{run_id}/cancel", status_code=202, responses=shape(answers.Cancelled, 202))
    def cancel(run_id: str) -> Response:
        backend.cancel_run(run_id)
        return answer({"run_id": run_id, "status": backend.run_progress(run_id)["status"]}, 202)

    @api.post("/runs/{run_id}/verify", responses=shape(answers.Verification))
    def verify(run_id: str) -> Response:
        return answer(backend.verify_run(run_id))

    @api.get("/runs/{run_id}/kernels", responses=shape(answers.Kernels))
    def kernels(
        run_id: str,
        config: str | None = None,
        sort: str = "duration_ns",
        descending: bool = True,
        first: First = 0,
        count: Count = 1000,
    ) -> Response:
        return answer(backend.kernels(run_id, config, sort=sort, is_descending=descending, first=first, count=count))

    @api.get("/runs/{run_id}/events", responses=shape(answers.Events))
    def events(run_id: str, first: First = 0, count: Count = 1000) -> Response:
        return answer({"events": backend.events_page(run_id, first, count)})

    @api.get("/runs/{run_id}/perfetto", response_class=FileResponse)
    def perfetto(run_id: str) -> Response:
        folder = Path(tempfile.mkdtemp(prefix="open-export-", dir=scratch))
        try:
            path = folder / f"cascade-{run_id}.perfetto.json"
            event_count = backend.export_perfetto(run_id, path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return FileResponse(
            path,
            media_type="application/json",
            filename=path.name,
            headers={"x-event-count": str(event_count)},
            background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
        )

    # --- questions ----------------------------------------------------------------------------------------------

    @api.post("/sql", responses=shape(answers.Rows))
    def sql(body: SqlBody) -> Response:
        return rows_answer(backend.sql(body.sql, body.limit))

    @api.post("/what-if", responses=shape(answers.WhatIf))
    def what_if(body: WhatIfAskedBody) -> Response:
        if not body.steps:
            return answer(backend.screens.what_if_totals(body.trace, body.config))
        return answer(backend.what_if(body.trace, body.config))

    return api


def _gpu(name: str) -> Report:
    spec = load_gpu(name)
    return {
        "spec": spec.model_dump(mode="json"),
        "config_id": spec.config_id,
        "programming_class": spec.programming_class,
        "aliases": aliases(spec.gpu),
        "sources": figure_sources(spec.gpu),
    }


def _received(backend: Backend, content_type: str, read_chunk: Any, bytes_limit: int) -> str:
    """The upload's trace id. The limit holds for all files of one upload together."""
    fields: dict[str, str] = {}
    artifacts = []
    left_bytes = bytes_limit
    for part in read_parts(content_type, read_chunk):
        if part.file_name is None:
            fields[part.name] = part.text()
        elif part.file_name:  # an empty file input has none
            artifact = backend.receive(part.body(), part.file_name, left_bytes)
            left_bytes -= artifact.size_bytes
            artifacts.append(artifact)
    return backend.request_import(artifacts, import_options(fields))


_UPLOAD_SCHEMA = {
    "type": "object",
    "required": ["files"],
    "properties": {
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
        "name": {"type": "string"},
        "model": {"type": "string", "description": "a known name, or a config.json's text"},
        "source_gpu": {"type": "string"},
        "prompts": {"type": "string", "description": "prompt tokens per request: 512,1200"},
        "routing": {"type": "string", "description": "of tokens to experts: even, or zipf:1"},
    },
}
