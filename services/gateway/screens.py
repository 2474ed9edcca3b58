"""REST for the page's screens: the timeline's tables, and what its charts and drawers ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from fastapi import APIRouter, Query
from pyarrow import csv
from starlette.responses import Response

from services.gateway import answers
from services.gateway.answers import answer, shape
from services.gateway.bodies import TABLE_ROWS_LIMIT, SqlExportBody, SqlTableBody, WhatIfBody
from services.gateway.positions import RunIndexes
from services.runtime.engine import Report, SqlTable

LAUNCH_COUNT_LIMIT = 262_144
ARROW = "application/vnd.apache.arrow.stream"

Axis = Literal["context", "batch"]
First = Annotated[int, Query(alias="from", ge=0, le=2**53)]
Moment = Annotated[int | None, Query(ge=0, le=2**53, description="a position of the run's log: as known then")]

# What a run's state is made of.
STATE_TYPES = (
    "RunRequested",
    "KernelsSimulated",
    "KernelsPredicted",
    "StepsPredicted",
    "RequestPredicted",
    "AccuracyMeasured",
    "RefinementChosen",
)


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

    def simulations(self, run_id: str, config_id: str, task_id: str) -> Report: ...

    def known_errors(self, run_id: str) -> Report: ...

    def compare(self, asked: Sequence[str], base: str | None) -> Report: ...

    def what_if_totals(self, trace_id: str, config: str) -> Report: ...

    def what_if_sweep(self, trace_id: str, config: str) -> Report: ...

    def curves(self, run_id: str, axis: Axis) -> Report: ...

    def sql_schema(self) -> Report: ...

    def provenances(self) -> list[str]: ...

    def accuracy(self) -> Report: ...

    def profile(self, trace_id: str) -> pa.Table: ...

    def histogram(self, trace_id: str, task_id: str) -> Report: ...

    def work(self, trace_id: str) -> pa.Table: ...

    def log_lines(self, run_id: str, config_id: str, first: int, count: int, said: Sequence[int] | None) -> Report: ...

    def log_search(
        self, run_id: str, config_id: str, text: str, first: int, limit: int, said: Sequence[int] | None
    ) -> Report: ...

    def state_hash(self, run_id: str, said: Sequence[int]) -> str: ...


class Database(Protocol):
    def sql_table(self, statement: str, row_limit: int) -> SqlTable: ...


def screen_routes(screens: Screens, database: Database, indexes: RunIndexes) -> APIRouter:
    api = APIRouter(prefix="/api")

    def said_before(run_id: str, at: int | None) -> Sequence[int] | None:
        """Where the log lines lie that were said before a position of a run's log; None: all of them, for now."""
        return None if at is None else indexes.of(run_id).order.appended_of(at, ("SimulatorLogged",))

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

    @api.get("/traces/{trace_id}/profile", response_class=Response, responses=_ARROW_ANSWER)
    def profile(trace_id: str) -> Response:
        """Launches per task in each of 48 equal parts of the steps."""
        return arrow_answer(screens.profile(trace_id), {"cache-control": "no-store"})

    @api.get("/traces/{trace_id}/tasks/{task}/histogram", responses=shape(answers.Histogram))
    def histogram(trace_id: str, task: str) -> Response:
        """How long the launches of one kernel took where they were recorded."""
        return answer(screens.histogram(trace_id, task))

    @api.get("/traces/{trace_id}/work", response_class=Response, responses=_ARROW_ANSWER)
    def work(trace_id: str) -> Response:
        """Per task what one launch computes and moves."""
        return arrow_answer(screens.work(trace_id), {"cache-control": "no-store"})

    @api.get("/runs/{run_id}/durations/{config}", response_class=Response, responses=_ARROW_ANSWER)
    def durations(run_id: str, config: str) -> Response:
        """One row per task that has a result so far."""
        return arrow_answer(screens.durations(run_id, config), {"cache-control": "no-store"})

    @api.get("/runs/{run_id}/configs/{config}/tasks/{task}/explain", responses=shape(answers.Receipt))
    def explain(run_id: str, config: str, task: str) -> Response:
        """Why this number: lines that multiply and add to it."""
        return answer(screens.explain(run_id, config, task))

    @api.get("/runs/{run_id}/configs/{config}/tasks/{task}/simulations", responses=shape(answers.Simulations))
    def simulations(run_id: str, config: str, task: str) -> Response:
        """What each simulator says of one kernel on one GPU, side by side with what was measured."""
        return answer(screens.simulations(run_id, config, task))

    @api.get("/runs/{run_id}/known-errors", responses=shape(answers.KnownErrors))
    def known_errors(run_id: str) -> Response:
        """Per config the nearest GPU that was measured, its error, and how often intervals held on its class."""
        return answer(screens.known_errors(run_id))

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
        run_id: str,
        config: str,
        first: First = 0,
        count: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        at: Moment = None,
    ) -> Response:
        return answer(screens.log_lines(run_id, config, first, count, said_before(run_id, at)))

    @api.get("/runs/{run_id}/log/{config}/search", responses=shape(answers.LogMatches))
    def log_search(
        run_id: str,
        config: str,
        q: Annotated[str, Query(min_length=1, max_length=1000)],
        first: First = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        at: Moment = None,
    ) -> Response:
        return answer(screens.log_search(run_id, config, q, first, limit, said_before(run_id, at)))

    @api.get("/runs/{run_id}/state", responses=shape(answers.State))
    def state(run_id: str, at: Moment = None) -> Response:
        """The state hash of what the first `at` records of a run's log say, folded anew; at the end, the run's own."""
        order = indexes.of(run_id).order
        end = len(order) if at is None else min(at, len(order))
        found = screens.state_hash(run_id, order.appended_of(end, STATE_TYPES))
        return answer({"position": end, "record_count": len(order), "state_hash": found})

    # --- database and error map -------------------------------------------------------------------------------

    @api.get("/accuracy", responses=shape(answers.ErrorMap))
    def accuracy() -> Response:
        """The build's error map."""
        return answer(screens.accuracy())

    @api.get("/sql/schema", responses=shape(answers.SqlSchema))
    def sql_schema() -> Response:
        return answer(screens.sql_schema())

    @api.post("/sql/table", response_class=Response, responses=_ARROW_ANSWER)
    def sql_table(body: SqlTableBody) -> Response:
        """One SELECT's rows as an Arrow stream; x-cascade-truncated: there were more than the limit."""
        found = database.sql_table(body.sql, body.limit)
        headers = {"x-cascade-truncated": str(int(found.is_truncated)), "cache-control": "no-store"}
        return arrow_answer(browser_table(found.table), headers)

    @api.post("/sql/export", response_class=Response)
    def sql_export(body: SqlExportBody) -> Response:
        """One SELECT's rows as a file that says what they rest on."""
        found = database.sql_table(body.sql, TABLE_ROWS_LIMIT)
        return export_answer(found, body.format, screens.provenances())

    return api


def arrow_answer(table: pa.Table, headers: dict[str, str]) -> Response:
    """The table as one Arrow IPC stream, its dictionaries whole."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return Response(sink.getvalue().to_pybytes(), media_type=ARROW, headers=headers)


def browser_table(table: pa.Table) -> pa.Table:
    """Numbers as float64, whatever is neither number nor text as text: what a page can draw without thinking."""
    columns = []
    for column in table.columns:
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            columns.append(column.cast(pa.float64(), safe=False))
        elif pa.types.is_boolean(kind) or pa.types.is_string(kind):
            columns.append(column)
        elif pa.types.is_nested(kind) or pa.types.is_binary(kind):
            columns.append(
                pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())])
            )
        else:
            columns.append(column.cast(pa.string()))
    return pa.table(columns, names=_unique(table.column_names))


def _unique(names: list[str]) -> list[str]:
    """Columns of one name are told apart by a number."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return unique


def export_answer(found: SqlTable, kind: str, provenances: list[str]) -> Response:
    """CSV says it in a comment on its first line, Parquet in its metadata; both open in DuckDB as they are.

    Without a comma the comment is one cell of a spreadsheet, above the names of the columns.
    """
    about = f"Cascade; simulated times of traces that are {' and '.join(provenances) or 'none yet'}"
    if found.is_truncated:
        about += f"; cut off after {found.table.num_rows} rows"
    table = found.table.rename_columns(_unique(found.table.column_names))
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        described = table.replace_schema_metadata({"cascade_provenance": about})
        pq.write_table(described, sink)
    else:
        sink.write(f"# {about}\n".encode())
        csv.write_csv(browser_table(table) if _has_nested(table) else table, sink)
    media = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}[kind]
    headers = {"content-disposition": f'attachment; filename="cascade.{kind}"', "cache-control": "no-store"}
    return Response(sink.getvalue().to_pybytes(), media_type=media, headers=headers)


def _has_nested(table: pa.Table) -> bool:
    return any(pa.types.is_nested(field.type) for field in table.schema)


_ARROW_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {ARROW: {"schema": {"type": "string", "format": "binary"}}}},
    "4XX": {"model": answers.Error},
}
