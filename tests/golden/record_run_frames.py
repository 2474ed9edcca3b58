"""Records what /ws sends of whole runs, with the server's report of each: read by the page's tests and by ours.

    .venv/bin/python -m tests.golden.record_run_frames      after the schema grew, or to show other events

Each file: gzip over frames, each behind its length (u32, little endian); beside it the report as JSON.
"""

from __future__ import annotations

import gzip
import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

from services.cli import sample
from services.gateway.live import Send, View, encode_frame
from services.gateway.positions import RunIndex
from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions
from services.runtime.served import ServedEngine
from services.simworker.simulators.catalog import simulators
from tests.factories import kineto_trace, settings

FOLDER = Path(__file__).resolve().parents[2] / "web" / "src" / "store" / "golden"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        engine = ServedEngine(Embedded(settings(home / "home"), simulators(2), now_ms=wall_clock_ms))
        try:
            path, options = sample("opt-125m")
            record(engine, "recorded-on-cpu", path, options, ["h100_sxm", "l4"])
            path = kineto_trace(home / "job.json", step_count=3)
            record(engine, "measured", path, ImportOptions(name="job"), ["h100_sxm:dram_gbps=6000", "mi300x"])
        finally:
            engine.close()


def record(engine: ServedEngine, name: str, path: Path, options: ImportOptions, gpus: Sequence[str]) -> None:
    trace_id = engine.import_files([path], options)["trace_id"]
    report = engine.wait_run(engine.start_run(trace_id, gpus, "analytic"))
    keys = engine.keys_of(report["run_id"])
    index = RunIndex(lambda after: engine.places(keys, after))
    index.refresh()
    with gzip.GzipFile(FOLDER / f"{name}.frames.gz", "wb", mtime=0) as out:
        view = View(index, credits=10_000)
        while isinstance(turn := view.turn(0.0), Send):
            records = engine.read_positions([index.order.appended[at] for at in turn.positions])
            frame = encode_frame(turn.positions, records)
            out.write(struct.pack("<I", len(frame)) + frame)
    (FOLDER / f"{name}.report.json").write_text(json.dumps(report, indent=1) + "\n")


def read_frames(path: Path) -> list[bytes]:
    whole = gzip.decompress(path.read_bytes())
    frames, at = [], 0
    while at < len(whole):
        (size,) = struct.unpack_from("<I", whole, at)
        frames.append(whole[at + 4 : at + 4 + size])
        at += 4 + size
    return frames


if __name__ == "__main__":
    main()
