"""Nsight Systems recordings as SQLite (`nsys export --type sqlite`), schema versions 2 and 3.

Read: kernels, memcpy, memset; the runtime calls that launched them; NVTX ranges (steps, and framework ops of
`torch.autograd.profiler.emit_nvtx`); GPU properties, session start, and how CUDA graphs were traced. Tables and columns
are created only when used and differ by version, so each is looked for. TARGET_INFO_SYSTEM_ENV, which holds the
machine's whole environment, is never read; neither are process names, paths, users and hosts.

One rank per process; ids are unique within a process only. With `--cuda-graph-trace=graph` (the default) kernels inside
CUDA graphs are not in the file: such graph launches are counted and named in a note.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from services.ingest.annotations import read_capture, read_step
from services.ingest.assemble import (
    Annotation,
    DeviceFacts,
    GpuColumns,
    LaunchColumns,
    LaunchConfig,
    OpColumns,
    OpFacts,
    RawTrace,
)
from services.ingest.imported import QualityReport
from services.ingest.importers.rejection import TraceRejected
from services.ingest.names import canonical_name
from services.ingest.reading import ReadState, read_chunks

_SQLITE = b"SQLite format 3\0"
_NEWEST_SCHEMA = 3
_ROWS = 65_536
_TEXT_BYTES_LIMIT = 1 << 16
# A recording of ten minutes exports in seconds; a query that runs longer than this is a hostile schema.
_STEPS_PER_CHECK = 1_000_000
_CHECKS_LIMIT = 2_000

_NVTX_OP = re.compile(r"([\w.]+(?:::[\w.]+)+)(?:, |\Z)")
_NVTX_SIZES = re.compile(r", sizes = (\[.*?\])(?:, [a-z_]+ = |\Z)")

Ints = NDArray[np.int64]


def read_nsys(path: Path, on_progress: Callable[[ReadState, int], None] | None = None) -> list[RawTrace]:
    """One RawTrace per process that used the GPU."""
    state = ReadState()
    with path.open("rb") as file:
        is_plain = file.read(len(_SQLITE)) == _SQLITE
    if is_plain:
        raws = _read_database(path)
        state.file_bytes_read = path.stat().st_size
    else:
        # SQLite wants to seek, so a packed file is unpacked beside the other temporary files first.
        with tempfile.TemporaryDirectory(prefix="cascade-nsys-") as folder:
            unpacked = Path(folder) / "trace.sqlite"
            with unpacked.open("wb") as out:
                for chunk in read_chunks(path, state):
                    out.write(chunk)
                    if on_progress:
                        on_progress(state, 0)
            raws = _read_database(unpacked)
    if state.is_damaged:
        raws[0].quality.is_truncated = True
    if on_progress:
        on_progress(state, sum(raw.quality.event_count for raw in raws))
    return raws


def _read_database(path: Path) -> list[RawTrace]:
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema=OFF")
            checks = iter(range(_CHECKS_LIMIT))
            connection.set_progress_handler(lambda: next(checks, None) is None, _STEPS_PER_CHECK)
            return _Database(connection).raws()
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise TraceRejected(
            f"the SQLite file cannot be read ({error}): export the recording again with `nsys export --type sqlite`"
        ) from error


class _Database:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        # Only real tables: a view in a foreign file could compute anything.
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.tables = {str(name) for (name,) in rows if re.fullmatch(r"\w+", str(name))}
        self.quality = QualityReport()
        self._known_strings: dict[int, str] | None = None

    def raws(self) -> list[RawTrace]:
        kernel_table = next(
            (t for t in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL") if t in self.tables), ""
        )
        if "StringIds" not in self.tables:
            raise TraceRejected(
                "the SQLite file has no StringIds table, so it is no Nsight Systems export: "
                "use `nsys export --type sqlite recording.nsys-rep`"
            )
        graphs_hidden = self._note_graphs()
        if not kernel_table:
            raise TraceRejected(
                "the recording has no table of CUDA kernels: "
                + (
                    "its kernels run inside CUDA graphs; record with `--cuda-graph-trace=node`"
                    if graphs_hidden
                    else "record with `nsys profile --trace=cuda,nvtx` while the model runs"
                )
            )
        self._note_schema()
        configs: dict[LaunchConfig, int] = {}
        kernels = self._kernels(kernel_table, configs)
        copies = self._copies(configs)
        rows = np.concatenate([kernels, copies])
        calls, apis = self._calls()
        op_rows, ops, annotations = self._ranges()
        origin = self._origin()
        devices = self._devices()
        raws = []
        for pid in np.unique(rows[:, 9]) if len(rows) else []:
            own = rows[rows[:, 9] == pid]
            own_calls = calls[calls[:, 4] == pid]
            own_ops = op_rows[op_rows[:, 4] == pid]
            quality = QualityReport(event_count=len(own) + len(own_calls) + len(own_ops))
            used = int(own[0, 2])
            raws.append(
                RawTrace(
                    tool="nsys-sqlite",
                    gpu=GpuColumns(
                        start_ns=own[:, 0], duration_ns=own[:, 1], device=own[:, 2], stream=own[:, 3],
                        correlation=own[:, 4], external=np.full(len(own), -1, dtype=np.int64), config=own[:, 5],
                        is_kernel=own[:, 6] > 0, graph_node=own[:, 7],
                    ),
                    calls=LaunchColumns(
                        start_ns=own_calls[:, 0], thread=own_calls[:, 1], correlation=own_calls[:, 2],
                        external=np.full(len(own_calls), -1, dtype=np.int64), api=own_calls[:, 3],
                        config=np.full(len(own_calls), -1, dtype=np.int64),
                    ),
                    op_rows=OpColumns(
                        start_ns=own_ops[:, 0], end_ns=own_ops[:, 1], thread=own_ops[:, 2],
                        external=np.full(len(own_ops), -1, dtype=np.int64), op=own_ops[:, 3],
                    ),
                    annotations=[a for a, of in annotations if of == pid],
                    configs=list(configs),
                    apis=list(apis),
                    ops=list(ops),
                    quality=quality,
                    device=devices.get(used) or next(iter(devices.values()), DeviceFacts()),
                    origin_unix_ns=origin,
                )
            )  # fmt: skip
        if not raws:
            raise TraceRejected(
                "the recording has a kernel table without rows: nothing ran on the GPU while nsys recorded; "
                "widen the capture range"
            )
        first = raws[0].quality
        first.notes.extend(self.quality.notes)
        first.dropped_event_count += self.quality.dropped_event_count
        first.opaque_graph_launch_count += self.quality.opaque_graph_launch_count
        return raws

    # Rows: start, duration, device, stream, correlation, config, is_kernel, graph node, unused, process

    def _kernels(self, table: str, configs: dict[LaunchConfig, int]) -> Ints:
        columns = self._columns(table)
        name = "demangledName" if "demangledName" in columns else "shortName" if "shortName" in columns else "name"
        wanted = (
            "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", name, "mangledName",
            "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "clusterX", "clusterY", "clusterZ",
            "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
        )  # fmt: skip
        names = self._strings()
        # nsys cuts demangled names at 483 characters: two kernels of one name are told apart by their mangled ones.
        spelled: dict[tuple[int, int], str] = {}
        owner: dict[str, int] = {}
        known: dict[tuple[int, ...], int] = {}
        out = []
        for block in self._numbers(table, columns, wanted):
            launch = np.empty((len(block), 10), dtype=np.int64)
            launch[:, 0], launch[:, 1] = block[:, 0], block[:, 1] - block[:, 0]
            launch[:, 2:5] = block[:, 2:5]
            launch[:, 6], launch[:, 7], launch[:, 8] = 1, np.maximum(block[:, 6], 0), 0
            launch[:, 9] = block[:, 5]
            distinct, inverse = np.unique(block[:, 7:], axis=0, return_inverse=True)
            numbers = []
            for row in distinct.tolist():
                key = tuple(row)
                if key not in known:
                    said, mangled = row[0], row[1]
                    if (said, mangled) not in spelled:
                        text = canonical_name(names.get(said) or names.get(mangled) or f"kernel {said}")
                        if owner.setdefault(text, mangled) != mangled and names.get(mangled):
                            text = names[mangled]
                        spelled[said, mangled] = text
                    shared = max(row[12], 0) + max(row[13], 0) if row[12] >= 0 or row[13] >= 0 else None
                    config = LaunchConfig(
                        spelled[said, mangled], _dim3(row[2:5]), _dim3(row[5:8]), _dim3(row[8:11]),
                        row[11] if row[11] >= 0 else None, shared,
                    )  # fmt: skip
                    known[key] = configs.setdefault(config, len(configs))
                numbers.append(known[key])
            launch[:, 5] = np.array(numbers, dtype=np.int64)[inverse.reshape(-1)]
            out.append(launch)
        return np.concatenate(out) if out else np.empty((0, 10), dtype=np.int64)

    def _copies(self, configs: dict[LaunchConfig, int]) -> Ints:
        kinds = self._labels("ENUM_CUDA_MEMCPY_OPER")
        out = [np.empty((0, 10), dtype=np.int64)]
        for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
            if table not in self.tables:
                continue
            wanted = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "bytes")
            columns = self._columns(table)
            for block in self._numbers(table, columns, (*wanted, "copyKind")):
                launch = np.zeros((len(block), 10), dtype=np.int64)
                launch[:, 0], launch[:, 1] = block[:, 0], block[:, 1] - block[:, 0]
                launch[:, 2:5] = block[:, 2:5]
                launch[:, 7], launch[:, 9] = np.maximum(block[:, 6], 0), block[:, 5]
                for index, (size, kind) in enumerate(block[:, 7:9].tolist()):
                    name = "Memset" if table.endswith("MEMSET") else f"Memcpy {kinds.get(kind, 'Unknown')}"
                    config = LaunchConfig(name, moved_bytes=size if size >= 0 else None, is_copy=True)
                    launch[index, 5] = configs.setdefault(config, len(configs))
                out.append(launch)
        return np.concatenate(out)

    def _calls(self) -> tuple[Ints, list[str]]:
        """Calls as start, thread, correlation, api, process."""
        out = [np.empty((0, 5), dtype=np.int64)]
        apis: dict[int, int] = {}
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
            if table not in self.tables:
                continue
            wanted = ("start", "globalTid", "correlationId", "nameId")
            for block in self._numbers(table, self._columns(table), wanted):
                names = [apis.setdefault(name, len(apis)) for name in block[:, 3].tolist()]
                out.append(
                    np.stack([block[:, 0], block[:, 1], block[:, 2], np.array(names), _process(block[:, 1])], axis=1)
                )
        strings = self._strings()
        return np.concatenate(out), [strings.get(name, "") for name in apis]

    def _ranges(self) -> tuple[Ints, list[OpFacts], list[tuple[Annotation, int]]]:
        """NVTX ranges: framework ops as start, end, thread, op, process; and the steps' annotations."""
        ops: dict[OpFacts, int] = {}
        rows: list[tuple[int, int, int, int, int]] = []
        annotations: list[tuple[Annotation, int]] = []
        if "NVTX_EVENTS" in self.tables:
            columns = self._columns("NVTX_EVENTS")
            strings = self._strings() if "textId" in columns else {}
            text = "text" if "text" in columns else "NULL"
            text_id = "textId" if "textId" in columns else "NULL"
            if {"start", "end", "globalTid"} <= columns:
                cursor = self.connection.execute(
                    f'SELECT CAST(start AS INTEGER), CAST("end" AS INTEGER), CAST(globalTid AS INTEGER), {text}, '  # noqa: S608
                    f'{text_id} FROM NVTX_EVENTS WHERE "end" IS NOT NULL AND start IS NOT NULL'
                )
                for start, end, thread, words, words_id in _fetched(cursor):
                    said = words if isinstance(words, str) else strings.get(words_id, "")
                    if not said or not _is_int64(start, end, thread):
                        continue
                    process = thread - thread % (1 << 24)
                    if match := _NVTX_OP.match(said):
                        op = ops.setdefault(_op(match[1], said), len(ops))
                        rows.append((start, end, thread, op, process))
                    elif read_step(said) or read_capture(said):
                        annotations.append((Annotation(start, end, thread, said), process))
        table = np.array(rows, dtype=np.int64) if rows else np.empty((0, 5), dtype=np.int64)
        return table, list(ops), annotations

    # Small facts

    def _note_graphs(self) -> bool:
        """Count graph launches whose kernels are not in the file; returns whether there are any."""
        count = 0
        if "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in self.tables:
            count = int(self.connection.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE").fetchone()[0])
        mode = self._value("META_DATA_CAPTURE", "CUDA_GRAPH_TRACE_OPTIONS:MODE") or ("Graph" if count else "")
        if mode.lower() == "graph":
            self.quality.opaque_graph_launch_count = count
            self.quality.notes.append(
                f"CUDA graphs were recorded as a whole (graph trace mode Graph, {count} graph launches), so kernels "
                "inside them are missing: record with `--cuda-graph-trace=node`."
            )
        return count > 0

    def _note_schema(self) -> None:
        version = self._value("META_DATA_EXPORT", "EXPORT_SCHEMA_VERSION") or ""
        major = re.match(r"\d{1,4}", version)
        if major and int(major[0]) > _NEWEST_SCHEMA:
            self.quality.notes.append(
                f"The export has schema version {version[:20]}, newer than those known here ({_NEWEST_SCHEMA}.x); "
                "columns were found by name."
            )

    def _origin(self) -> int | None:
        """Unix time of the recording's time zero."""
        columns = self._columns("TARGET_INFO_SESSION_START_TIME")
        if "utcEpochNs" not in columns:
            return None
        clock = "systemClockNs" if "systemClockNs" in columns else "0"
        row = self.connection.execute(
            f"SELECT CAST(utcEpochNs AS INTEGER), CAST({clock} AS INTEGER) FROM TARGET_INFO_SESSION_START_TIME LIMIT 1"  # noqa: S608
        ).fetchone()
        return row[0] - row[1] if row and _is_int64(*row) and 0 < row[0] - row[1] < 1 << 61 else None

    def _devices(self) -> dict[int, DeviceFacts]:
        columns = self._columns("TARGET_INFO_GPU")
        if not {"id", "name"} <= columns:
            return {}
        picked = [
            next((name for name in names if name in columns), "NULL")
            for names in (("computeMajor", "smMajor"), ("computeMinor", "smMinor"), ("smCount",), ("totalMemory",))
        ]
        found = {}
        for number, name, *facts in self.connection.execute(
            f"SELECT id, name, {', '.join(picked)} FROM TARGET_INFO_GPU LIMIT 64"  # noqa: S608
        ):
            major, minor, sms, memory = (fact if isinstance(fact, int) and fact >= 0 else None for fact in facts)
            capability = (major, minor) if major is not None and minor is not None else None
            if isinstance(number, int):
                found[number] = DeviceFacts(str(name or "")[:100], capability, sms, memory)
        return found

    def _value(self, table: str, name: str) -> str | None:
        if not {"name", "value"} <= self._columns(table):
            return None
        row = self.connection.execute(f"SELECT value FROM {table} WHERE name = ?", (name,)).fetchone()  # noqa: S608
        return str(row[0]) if row and row[0] is not None else None

    def _labels(self, table: str) -> dict[int, str]:
        if not {"id", "label"} <= self._columns(table):
            return {}
        rows = self.connection.execute(f"SELECT id, label FROM {table} LIMIT 1000")  # noqa: S608
        return {number: str(label)[:60] for number, label in rows if isinstance(number, int)}

    def _strings(self) -> dict[int, str]:
        if self._known_strings is None:
            rows = self.connection.execute("SELECT id, value FROM StringIds")
            self._known_strings = {
                number: text[:_TEXT_BYTES_LIMIT]
                for number, text in _fetched(rows)
                if isinstance(number, int) and isinstance(text, str)
            }
        return self._known_strings

    def _columns(self, table: str) -> set[str]:
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self.connection.execute(f"PRAGMA table_info({table})")}

    def _numbers(self, table: str, columns: set[str], wanted: tuple[str, ...]) -> Iterator[Ints]:
        """Blocks of rows as integers; a column that is not there, or a value that is NULL, is -1."""
        if not {"start", wanted[1]} <= columns:
            return
        picked = ", ".join(f'CAST(COALESCE("{name}", -1) AS INTEGER)' if name in columns else "-1" for name in wanted)
        cursor = self.connection.execute(f"SELECT {picked} FROM {table}")  # noqa: S608
        while rows := cursor.fetchmany(_ROWS):
            block = np.array(rows, dtype=np.int64)
            # Sums and differences of what is left stay within int64.
            is_sane = ((block[:, :2] > -(1 << 61)) & (block[:, :2] < 1 << 61)).all(axis=1)
            self.quality.dropped_event_count += int((~is_sane).sum())
            yield block[is_sane]


def _process(threads: Ints) -> Ints:
    """The process of a global thread id: its low 24 bits are the thread's own."""
    return (threads >> 24) << 24


def _fetched(cursor: sqlite3.Cursor) -> Iterator[Any]:
    while rows := cursor.fetchmany(_ROWS):
        yield from rows


def _dim3(values: list[int]) -> tuple[int, int, int] | None:
    x, y, z = values
    return (x, y, z) if min(x, y, z) > 0 else None


def _is_int64(*values: object) -> bool:
    return all(isinstance(value, int) and abs(value) < 1 << 61 for value in values)


def _op(name: str, text: str) -> OpFacts:
    sizes = _NVTX_SIZES.search(text)
    try:
        shapes = orjson.loads(sizes[1]) if sizes else None
    except orjson.JSONDecodeError:
        shapes = None
    return OpFacts(name, orjson.dumps((shapes, None)) if isinstance(shapes, list) else b"")
