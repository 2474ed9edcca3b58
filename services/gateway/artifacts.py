"""Files stored one by one under their digest while a job still writes the next, and imported together at the end."""

from __future__ import annotations

import hashlib
import io
from typing import Annotated, BinaryIO, cast

import anyio.from_thread
import anyio.to_thread
from cascade_schemas.events import ArtifactRef
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from services.gateway.answers import TraceAsked, answer, shape
from services.gateway.backend import Backend
from services.gateway.bodies import ArtifactsBody, import_options
from services.gateway.multipart import next_chunk, raw_body
from services.runtime.artifacts import UploadTooLarge
from services.runtime.engine import Refused

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the body")]
Name = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^/\\\x00-\x1f]+$", description="the file's own")]


class Stored(BaseModel):
    digest: str
    name: str
    size_bytes: int


def artifacts(backend: Backend, upload_bytes_limit: int) -> APIRouter:
    """Two routes: a file, whose body is the request's; and the import of files that were sent so."""
    api = APIRouter(prefix="/api")

    @api.put(
        "/artifacts/{digest}",
        status_code=201,
        responses=shape(Stored, 201),
        openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
    )
    async def store(request: Request, digest: Digest, name: Name) -> Response:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > upload_bytes_limit:
            raise UploadTooLarge(
                f"{declared} bytes are more than the limit of {upload_bytes_limit}; set CASCADE_UPLOAD_MIB"
            )
        chunks = aiter(request.stream())

        def received() -> ArtifactRef:
            body = _Checked(raw_body(lambda: anyio.from_thread.run(next_chunk, chunks)), digest)
            return backend.receive(cast("BinaryIO", body), name, upload_bytes_limit)

        return answer((await anyio.to_thread.run_sync(received)).model_dump(), 201)

    @api.post("/imports", status_code=202, responses=shape(TraceAsked, 202))
    def imported(body: ArtifactsBody) -> Response:
        """Import what was sent before: the files of one job, each once."""
        fields = {name: getattr(body, name) for name in ("name", "model", "source_gpu")}
        found = [backend.stored(one.digest, one.name) for one in body.artifacts]
        return answer({"trace_id": backend.request_import(found, import_options(fields))}, 202)

    return api


class _Checked(io.RawIOBase):
    """A body that ends well only if it is what its digest says: the store keeps nothing of one that does not."""

    def __init__(self, body: BinaryIO, digest: str) -> None:
        self._body = body
        self._wanted = digest
        self._seen = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._body.read(size)
        self._seen.update(chunk)
        if not chunk and (found := self._seen.hexdigest()) != self._wanted:
            raise Refused(
                f"the body's SHA-256 is {found}, not {self._wanted}; it was changed on its way: send it again"
            )
        return chunk
