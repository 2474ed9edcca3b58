"""REST for the page's screens: the timeline's tables, and what its charts and drawers ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import pyarrow as pa
from fastapi import APIRouter, Query
from starlette.responses import Response

from services.gateway import answers
from services.gateway.answers import answer, shape
from services.gateway.bodies import WhatIfBody
from services.runtime.engine import Report

LAUNCH_COUNT_LIMIT = 262_144
ARROW = "application/vnd.apache.arrow.stream"

Axis = Literal["context", "batch"]
First = Annotated[int, Query(alias="from", ge=0, le=2**53)]


class LaunchRows(Protocol):
    """Some of a trace's launches as a table, how many are known by now, and whether there will be no more."""

    @property
    def table(self) -> pa.Table: ...
    @property
    def known_count(self) -> int: ...
    @property
    def is_complete(self) -> bool: ...


class Screens(Protocol):
    """Blocking calls from any thread; every one raises Refused on a caller's mistake."""

    def layout(self, trace_id: str) -> Report: ...

    def launches(self, trace_id: str, first: int, count: int) -> LaunchRows: ...

    def durations(self, run_id: str, config_id: str) -> pa.Table: ...

    def explain(self, run_id: str, config_id: str, task_id: str) -> Report: ...

    def compare(self, asked: Sequence[str], base: str | None) -> Report: ...

    def what_if_sweep(self, trace_id: str, config: str) -> Report: ...

    def curves(self, run_id: str, axis: Axis) -> Report: ...

    def log_lines(self, run_id: str, config_id: str, first: int, count: int) -> Report: ...

    def log_search(self, run_id: str, config_id: str, text: str, first: int, limit: int) -> Report: ...


def screen_routes(screens: Screens) -> APIRouter:
    api = APIRouter(prefix="/api")

    @api.get("/traces/{trace_id}/layout", responses=shape(answers.Layout))
    def layout(trace_id: str) -> Response:
        return answer(screens.layout(trace_id))

    @api.get("/traces/{trace_id}/launches", response_class=Response, responses=_ARROW_ANSWER)
    def launches(
        trace_id: str, first: First = 0, count: Annotated[int, Query(ge=1, le=LAUNCH_COUNT_LIMIT)] = LAUNCH_COUNT_LIMIT
    ) -> Response:
        """Rows by (rank, seq) as one Arrow stream; x-cascade-launches counts the rows known so far."""
        found = screens.launches(trace_id, first, count)
        kept = "private, immutable, max-age=31536000" if found.is_complete else "no-store"
        return arrow_answer(found.table, {"x-cascade-launches": str(found.known_count), "cache-control": kept})

    @api.get("/runs/{run_id}/durations/{config}", response_class=Response, responses=_ARROW_ANSWER)
    def durations(run_id: str, config: str) -> Response:
        """One row per task that has a result so far."""
        return arrow_answer(screens.durations(run_id, config), {"cache-control": "no-store"})

    @api.get("/runs/{run_id}/configs/{config}/tasks/{task}/explain", responses=shape(answers.Receipt))
    def explain(run_id: str, config: str, task: str) -> Response:
        """Why this number: lines that multiply and add to it."""
        return answer(screens.explain(run_id, config, task))

    @api.get("/compare", responses=shape(answers.Comparisons))
    def compare(v: Annotated[list[str], Query(max_length=100)], base: str | None = None) -> Response:
        """Two to eight RUN.CONFIG side by side, ratios against the base."""
        return answer(screens.compare(v, base))

    @api.post("/what-if/sweep", responses=shape(answers.Sweep))
    def what_if_sweep(body: WhatIfBody) -> Response:
        """Six knobs of a config at nine values each, and which bottleneck moves next."""
        return answer(screens.what_if_sweep(body.trace, body.config))

    @api.get("/runs/{run_id}/curves", responses=shape(answers.Curves))
    def curves(run_id: str, axis: Axis = "context") -> Response:
        """A decode step over context or batch on every config, with what was traced marked."""
        return answer(screens.curves(run_id, axis))

    @api.get("/runs/{run_id}/log/{config}", responses=shape(answers.LogLines))
    def log(
        run_id: str, config: str, first: First = 0, count: Annotated[int, Query(ge=1, le=10_000)] = 1000
    ) -> Response:
        return answer(screens.log_lines(run_id, config, first, count))

    @api.get("/runs/{run_id}/log/{config}/search", responses=shape(answers.LogMatches))
    def log_search(
        run_id: str,
        config: str,
        q: Annotated[str, Query(min_length=1, max_length=1000)],
        first: First = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> Response:
        return answer(screens.log_search(run_id, config, q, first, limit))

    return api


def arrow_answer(table: pa.Table, headers: dict[str, str]) -> Response:
    """The table as one Arrow IPC stream, its dictionaries whole."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW, headers=headers)


_ARROW_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {ARROW: {"schema": {"type": "string", "format": "binary"}}}},
    "4XX": {"model": answers.Error},
}
