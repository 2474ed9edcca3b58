"""Where the profiler SDK sends what it records: numbered batches, POSTed while the job runs."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from services.gateway.answers import answer, shape
from services.gateway.backend import Backend

TraceId = Annotated[str, Path(pattern="^[0-9a-f]{8,32}$", description="made by whoever records")]
Rank = Annotated[int, Path(ge=0, le=65_535)]
Batch = Annotated[
    int, Query(ge=0, le=2**53, description="counts up from 0; a number that was taken is not taken again")
]
Sender = Annotated[str, Header(alias="cascade-sender", max_length=64, description="the process that counts")]


class Taken(BaseModel):
    taken: int


def recordings(backend: Backend) -> APIRouter:
    """One route; the body is an Arrow stream of records (cascade_schemas.recording)."""
    api = APIRouter(prefix="/api")

    @api.post(
        "/recordings/{trace_id}/{rank}",
        responses=shape(Taken),
        openapi_extra={"requestBody": {"content": {"application/vnd.apache.arrow.stream": {}}}},
    )
    async def take(request: Request, trace_id: TraceId, rank: Rank, batch: Batch, sender: Sender = "") -> Response:
        body = await request.body()
        taken = await anyio.to_thread.run_sync(backend.record, trace_id, rank, sender, batch, body)
        return answer({"taken": taken})

    return api
