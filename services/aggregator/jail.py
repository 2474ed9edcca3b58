"""User SQL: one SELECT over a copy of the store, in a process of its own that can neither write nor read elsewhere.

DuckDB's own limits do not hold alone (repeat('x', 2000000000) ignores its memory limit and its interrupt), so the
kernel's do: address space, CPU seconds, and no byte written to any file.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from services.aggregator.store import Store


class SqlRefused(ValueError):
    """The statement is not one that may run here, or failed; one sentence.

    `details`: the rule that refused it, and the position in its text where that shows, None where it is not one place.
    """

    def __init__(self, sentence: str, rule: str = "limit", position: int | None = None) -> None:
        super().__init__(sentence)
        self.details = {"rule": rule, "position": position}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one statement may use."""

    rows: int = 100_000
    memory_bytes: int = 2 << 30
    cpu_s: int = 20
    wall_s: int = 30
    sql_bytes: int = 64 << 10
    result_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class SqlResult:
    """Rows of a statement; `is_truncated`: there were more than the limit."""

    table: pa.Table
    is_truncated: bool


class Jail:
    """Runs statements over a snapshot of the store that is renewed when the store has changed."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = Path(tempfile.mkdtemp(prefix="sql-", dir=folder))
        self._lock = threading.Lock()
        self._snapshot: Path | None = None
        self._snapshot_version = -1

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def query(self, sql: str, limits: Limits = Limits()) -> SqlResult:
        """Rows of exactly one SELECT. Raises SqlRefused with the reason."""
        if len(sql.encode()) > limits.sql_bytes:
            raise SqlRefused(f"the statement is longer than {limits.sql_bytes} bytes")
        snapshot = self._fresh_snapshot()
        request = json.dumps({"database": str(snapshot), "sql": sql, "limits": vars_of(limits)})
        command = [sys.executable, "-I", "-c", "from services.aggregator.jail import prisoner; prisoner()"]
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, the statement goes in by stdin
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(self._folder)},
            cwd=self._folder,
        )
        try:
            out, err = process.communicate(request.encode(), timeout=limits.wall_s)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise SqlRefused(f"stopped after {limits.wall_s} s; ask for less at once") from error
        if process.returncode != 0:
            raise _verdict(process.returncode, err.decode(errors="replace"), limits)
        with pa.ipc.open_stream(pa.py_buffer(out)) as reader:
            table = reader.read_all()
        return SqlResult(table.slice(0, limits.rows), table.num_rows > limits.rows)

    def _fresh_snapshot(self) -> Path:
        with self._lock:
            version = self._store.version
            if self._snapshot is None or self._snapshot_version != version:
                path = self._folder / f"{version}.duckdb"
                self._store.copy_to(path)
                if self._snapshot is not None:
                    self._snapshot.unlink(missing_ok=True)  # who has it open keeps it
                self._snapshot, self._snapshot_version = path, version
            return self._snapshot


def vars_of(limits: Limits) -> dict[str, int]:
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}


def _verdict(code: int, said: str, limits: Limits) -> SqlRefused:
    if code == -24 or "CPU" in said:  # SIGXCPU
        return SqlRefused(f"stopped after {limits.cpu_s} s of computing; ask for less at once", "time")
    lines = [line for line in said.strip().splitlines() if line]
    if code == _REFUSED and lines:
        refused = json.loads(lines[-1])
        return SqlRefused(refused["said"], refused["rule"], refused["position"])
    if "MemoryError" in said or code in (-6, -9, -11) or "bad_alloc" in said:
        return SqlRefused(
            f"the statement needs more than {limits.memory_bytes >> 20} MiB; ask for less at once", "memory"
        )
    return SqlRefused(f"the statement failed: {lines[-1] if lines else f'exit code {code}'}", "failure")


_REFUSED = 3


def prisoner() -> None:
    """The jailed process: limits first, then the statement from stdin, rows as an Arrow stream to stdout."""
    request = json.load(sys.stdin)
    limits = Limits(**request["limits"])
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    # The soft limit ends in SIGXCPU, which can be told from being killed for memory.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        table = _select(request["database"], request["sql"], limits)
    except (duckdb.Error, MemoryError, SqlRefused, pa.ArrowException) as error:
        text = str(error).strip() or type(error).__name__
        details = {"rule": "statement", "position": position_in(request["sql"], text)}
        if isinstance(error, SqlRefused):
            details = error.details
        elif isinstance(error, MemoryError | duckdb.OutOfMemoryException):
            text = f"the statement needs more than {limits.memory_bytes >> 20} MiB; ask for less at once"
            details = {"rule": "memory", "position": None}
        sys.stderr.write(json.dumps({"said": " ".join(text.split()), **details}))
        sys.stderr.flush()
        os._exit(_REFUSED)
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as writer:
        writer.write_table(table)
    sys.stdout.buffer.flush()


def position_in(sql: str, said: str) -> int | None:
    """Where the caret under DuckDB's excerpt of the statement points, as an offset in its text."""
    found = re.search(r"LINE (\d+): (.*)\n( *)\^", said)
    if found is None:
        return None
    lines = sql.splitlines(keepends=True)
    number, excerpt = int(found[1]), found[2]
    if number > len(lines):
        return None
    column = len(found[3]) - len(f"LINE {number}: ")
    shown = excerpt.removeprefix("...").removesuffix("...")
    start = lines[number - 1].find(shown)
    if start < 0:
        return None
    cut = len("...") if excerpt.startswith("...") else 0
    return sum(map(len, lines[: number - 1])) + start + max(column - cut, 0)


def _select(database: str, sql: str, limits: Limits) -> pa.Table:
    connection = duckdb.connect(
        database,
        read_only=True,
        config={
            "enable_external_access": False,
            "python_enable_replacements": False,
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "threads": 1,
            "memory_limit": f"{limits.memory_bytes // 2 >> 20}MiB",
            "max_temp_directory_size": "0KiB",
            "lock_configuration": True,
        },
    )
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        second = statements[1].query.strip() if len(statements) > 1 else ""
        position = sql.find(second, len(statements[0].query)) if second else 0
        raise SqlRefused(
            f"refused: {len(statements)} statements; send exactly one SELECT", "one statement", max(position, 0)
        )
    kind = statements[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        start = len(sql) - len(sql.lstrip())
        raise SqlRefused(f"refused: {kind.name} is not allowed here; send one SELECT", "SELECT only", start)
    # One row more than allowed tells that there were more.
    reader: Any = connection.execute(statements[0]).to_arrow_reader(10_000)
    batches, count = [], 0
    for batch in reader:
        batches.append(batch)
        count += batch.num_rows
        if count > limits.rows:
            break
    return pa.Table.from_batches(batches, schema=reader.schema).slice(0, limits.rows + 1)
