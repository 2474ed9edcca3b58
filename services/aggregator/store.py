"""The aggregator's DuckDB file: rows and log positions in one transaction, and states restored from rows."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from cascade_schemas.batches import LAUNCHES, RESULTS
from cascade_schemas.events import (
    HostProfileMeasured,
    KernelTaskTraced,
    RefinementChosen,
    RunRequested,
    StepTraced,
    TraceCompleted,
    TraceRejected,
    TraceStarted,
)
from cascade_schemas.task import KernelTask

from services.aggregator.run_state import Results, RunState, TraceState

Position = tuple[str, int]  # topic, partition

_WITHOUT_KEY = "launches"  # millions of rows, let in once by TraceState.add_launches: an index would only cost

_SAID_ONCE = frozenset({"simulated_kernels", "refined_kernels"})
"""What Results.add has let in: `or ignore` triples an insert's cost, and is for a key that is there all the same."""

_ANSWERS = {
    "predicted_kernels": "run_id, config_id, task_id",
    "predicted_steps": "run_id, config_id, step",
    "predicted_requests": "run_id, config_id, request",
    "accuracy": "run_id, config_id",
}
"""What a refined run says twice, with their keys: the second answer replaces the first, in whatever order they come."""


def is_disk_full(error: BaseException) -> bool:
    """The file could not grow: no room, or more than its owner may have. It must be opened anew before it is used."""
    said = str(error)
    return isinstance(error, duckdb.Error) and any(
        words in said for words in ("No space left on device", "Disk quota exceeded", "File too large")
    )


def _is_any(rows: pa.Table, name: str) -> bool:
    """Whether the column is there and true somewhere: a statement that finds nothing costs as much as one that does."""
    return name in rows.column_names and bool(pc.any(rows[name]).as_py())


class Store:
    """The one owner of the file. `path` None keeps everything in memory (replay, tests)."""

    def __init__(self, path: Path | None, *, thread_count: int = 2) -> None:
        self.db = duckdb.connect(str(path) if path else ":memory:", config={"threads": thread_count})
        for script in ("schema.sql", "comments.sql"):
            self.db.execute((files("services.aggregator") / script).read_text())
        self.path = path
        self.version = 0  # grows with each commit; what was copied at an equal version is still whole
        self._lock = threading.Lock()  # between commits and copies

    def close(self) -> None:
        self.db.close()

    def commit(self, rows: Mapping[str, Sequence[pa.Table]], positions: Mapping[Position, int]) -> None:
        """Insert rows that are not there yet and move the positions: both or neither."""
        with self._lock:
            self._commit(rows, positions)
            self.version += 1

    def _commit(self, rows: Mapping[str, Sequence[pa.Table]], positions: Mapping[Position, int]) -> None:
        try:
            self._write(rows, positions, said_once=_SAID_ONCE)
        except duckdb.ConstraintException:
            self._write(rows, positions, said_once=frozenset())

    def _write(
        self, rows: Mapping[str, Sequence[pa.Table]], positions: Mapping[Position, int], *, said_once: frozenset[str]
    ) -> None:
        self.db.execute("begin")
        try:
            for table, parts in rows.items():
                self._insert(table, pa.concat_tables(parts, promote_options="default"), is_new=table in said_once)
            self._move(positions)
            self.db.execute("commit")
        except BaseException:
            with contextlib.suppress(duckdb.Error):  # a commit that failed has ended the transaction by itself
                self.db.execute("rollback")
            raise

    def _move(self, positions: Mapping[Position, int]) -> None:
        """All in one statement: each costs milliseconds, and to replace a row costs more than to change it."""
        if not positions:
            return
        values = ", ".join(["(?, ?::integer, ?::bigint)"] * len(positions))
        parameters = [part for (topic, partition), at in positions.items() for part in (topic, partition, at)]
        sql = f"""update positions set next_offset = moved.next_offset
            from (values {values}) moved (topic, kafka_partition, next_offset)
            where positions.topic = moved.topic and positions.kafka_partition = moved.kafka_partition"""  # noqa: S608
        (count,) = self.db.execute(sql, parameters).fetchone() or (0,)
        if count < len(positions):  # a partition that was never read before
            self.db.execute(f"insert or ignore into positions values {values}", parameters)  # noqa: S608 - our own

    def _insert(self, table: str, incoming: pa.Table, *, is_new: bool) -> None:
        """Rows, with answers among them that stand in place of earlier ones; all names are our own.

        DuckDB finds `incoming` in here by its name: to register it costs as much as half the insert.
        """
        if table == _WITHOUT_KEY or is_new:
            self.db.execute(f"insert into {table} by name select * from incoming")  # noqa: S608
            return
        if table not in _ANSWERS or not _is_any(incoming, "refined"):
            self.db.execute(f"insert or ignore into {table} by name select * from incoming")  # noqa: S608
            return
        key = _ANSWERS[table]
        first = f"insert or ignore into {table} by name select * from incoming where not coalesce(refined, false)"  # noqa: S608
        again = f"insert or replace into {table} by name select distinct on ({key}) * from incoming where refined"  # noqa: S608
        self.db.execute(first)
        self.db.execute(again)

    def positions(self) -> dict[Position, int]:
        return {(topic, part): offset for topic, part, offset in self.db.execute("from positions").fetchall()}

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows as dicts; from any thread, beside the writer."""
        cursor = self.db.cursor()
        try:
            cursor.execute(sql, list(parameters))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            cursor.close()

    def arrow(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        cursor = self.db.cursor()
        try:
            return cursor.sql(sql, params=list(parameters)).to_arrow_table()
        finally:
            cursor.close()

    def copy_to(self, path: Path) -> None:
        """A file with everything committed so far, for readers that must not touch this one."""
        with self._lock:
            if self.path is not None:
                self.db.execute("checkpoint")
                shutil.copyfile(self.path, path)
                return
            (name,) = self.db.execute("select current_database()").fetchone() or ("memory",)
            self.db.execute(f"attach '{path}' as copied")
            self.db.execute(f"copy from database {name} to copied")
            self.db.execute("detach copied")

    # --- states ---------------------------------------------------------------------------------------------

    def load_trace(self, trace_id: str) -> TraceState:
        trace = TraceState(trace_id)
        by_id = [trace_id]
        for row in self.query("select event from trace_starts where trace_id = ?", by_id):
            trace.started = TraceStarted.model_validate_json(row["event"], extra="ignore")
        for row in self.query("select event, status from trace_ends where trace_id = ?", by_id):
            if row["status"] == "rejected":
                trace.rejected = TraceRejected.model_validate_json(row["event"], extra="ignore")
            else:
                trace.completed = TraceCompleted.model_validate_json(row["event"], extra="ignore")
        for row in self.query("select event from host_profiles where trace_id = ?", by_id):
            trace.host_profile = HostProfileMeasured.model_validate_json(row["event"], extra="ignore")
        for row in self.query("select task_id, signature_id, task from tasks where trace_id = ? order by rowid", by_id):
            trace.tasks[row["task_id"]] = KernelTaskTraced(
                trace_id=trace_id,
                task_id=row["task_id"],
                signature_id=row["signature_id"],
                task=KernelTask.model_validate_json(row["task"], extra="ignore"),
            )
        trace.steps = self.load_steps(trace_id)
        columns = ", ".join(LAUNCHES.names)
        launches = self.arrow(f"select {columns} from launches where trace_id = ? order by rank, seq", by_id)  # noqa: S608
        for batch in launches.cast(LAUNCHES).combine_chunks().to_batches():
            trace.launches.append(batch)
        trace.next_seq = {
            row["rank"]: row["n"]
            for row in self.query(
                "select rank, max(seq) + 1 as n from launches where trace_id = ? group by rank", by_id
            )
        }
        return trace

    def load_steps(self, trace_id: str) -> dict[tuple[int, int], StepTraced]:
        """By rank and step."""
        steps = {}
        for row in self.query("select * from trace_steps where trace_id = ? order by rank, step", [trace_id]):
            lengths = {
                name: tuple(json.loads(row.pop(name))) for name in ("q_lengths", "kv_lengths", "request_indexes")
            }
            steps[row["rank"], row["step"]] = StepTraced.model_validate(row | lengths)
        return steps

    def load_run(self, run_id: str) -> RunState | None:
        requests = self.query("select event from run_requests where run_id = ?", [run_id])
        if not requests:
            return None
        run = RunState.of(RunRequested.model_validate_json(requests[0]["event"], extra="ignore"))
        run.is_cancelled = bool(self.query("select 1 from run_cancellations where run_id = ?", [run_id]))
        run.is_ended = bool(self.query("select 1 from run_ends where run_id = ?", [run_id]))
        answers = self.query("select config_id, refined from accuracy where run_id = ?", [run_id])
        refined = {row["config_id"]: bool(row["refined"]) for row in answers}
        choices = self.query("select config_id, event from refinements where run_id = ?", [run_id])
        chosen = {row["config_id"]: row["event"] for row in choices}
        for config_id, config in run.configs.items():
            config.is_predicted = config_id in refined
            config.is_refined = refined.get(config_id, False)
            self._load_results(run_id, config_id, "simulated_kernels", config.first)
            if config_id in chosen:
                config.refinement = RefinementChosen.model_validate_json(chosen[config_id], extra="ignore")
                self._load_results(run_id, config_id, "refined_kernels", config.refined)
                config.taken = self._taken(run_id, config_id)
        return run

    def _load_results(self, run_id: str, config_id: str, table: str, into: Results) -> None:
        columns = ", ".join(RESULTS.names)
        sql = f"select {columns} from {table} where run_id = ? and config_id = ?"  # noqa: S608 - our names
        for batch in self.arrow(sql, [run_id, config_id]).cast(RESULTS).combine_chunks().to_batches():
            into.add(batch)

    def _taken(self, run_id: str, config_id: str) -> set[str]:
        sql = """select task_id from predicted_kernels
            where run_id = ? and config_id = ? and refined_by is not null"""
        return {str(row["task_id"]) for row in self.query(sql, [run_id, config_id])}

    def open_runs(self, trace_id: str) -> list[str]:
        """Runs of a trace that have no end yet."""
        sql = """select run_id from run_requests anti join run_ends using (run_id)
            where trace_id = ? and run_id not in (select run_id from run_cancellations) order by run_id"""
        return [row["run_id"] for row in self.query(sql, [trace_id])]
