"""Log append and replay rates, and how long an installed program takes to its first prediction."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cascade_schemas.codec import Record, decode, encode
from cascade_schemas.events import LaunchesTraced

from services.runtime.eventlog import EventLog
from tests.bench.scale import make_launches, make_tasks

ROOT = Path(__file__).resolve().parents[2]
SMALL_BYTES, SMALL_COUNT = 400, 100_000


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _small_records(Path(folder))
        _launch_batches(Path(folder))
    _first_prediction()


def _small_records(folder: Path) -> None:
    log = EventLog(folder / "small.sqlite")
    record = Record("results", "run", {"type": "SimulatorLogged", "schema_version": "1"}, b"x" * SMALL_BYTES)
    for size in (1, 100, 1000):
        count = SMALL_COUNT if size > 1 else 5000
        began = time.perf_counter()
        for _ in range(count // size):
            log.append([record] * size, timestamp_ms=1)
        elapsed_s = time.perf_counter() - began
        print(f"append {SMALL_BYTES}-byte records, {size} at once: {count / elapsed_s / 1e3:.0f} k records/s")
    began = time.perf_counter()
    read, offset = 0, 0
    while stored := log.read("results", offset, 1000):
        read += len(stored)
        offset = stored[-1].offset + 1
    print(f"read them back: {read / (time.perf_counter() - began) / 1e3:.0f} k records/s")
    log.close()


def _launch_batches(folder: Path) -> None:
    log = EventLog(folder / "launches.sqlite")
    rows = make_launches([task.task_id for task in make_tasks()])
    events = [LaunchesTraced(trace_id="t", rank=0, first_seq=n * 4096, rows=batch) for n, batch in enumerate(rows)]
    began = time.perf_counter()
    for event in events:
        log.append([encode(event)], timestamp_ms=1)
    appended_s = time.perf_counter() - began
    began = time.perf_counter()
    count = 0
    for stored in log.read_keys(["t"]):
        event = decode(stored.record.headers, stored.record.value)
        assert isinstance(event, LaunchesTraced)
        count += event.rows.num_rows
    replayed_s = time.perf_counter() - began
    size_bytes = sum(len(encode(event).value) for event in events)
    print(
        f"launches as Arrow batches of 4,096: append {count / appended_s / 1e6:.1f} M launches/s"
        f" ({size_bytes / appended_s / 1e6:.0f} MB/s), replay and decode {count / replayed_s / 1e6:.1f} M launches/s"
    )
    log.close()


def _first_prediction() -> None:
    command = [sys.executable, "-c", "from services.cli import main; raise SystemExit(main())", "run"]
    took = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as home:
            began = time.perf_counter()
            subprocess.run(
                [*command, "sample:opt-125m", "--json"],
                check=True,
                cwd=ROOT,
                env={**os.environ, "CASCADE_HOME": home},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            took.append(time.perf_counter() - began)
    print(f"first prediction of an installed program, 8 GPUs: {min(took):.1f} to {max(took):.1f} s  (goal < 5 s)")
