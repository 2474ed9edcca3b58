"""Import speed beside gunzip + orjson.loads of the same file in the same run, and memory on a 1 GB file."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path

import orjson

from services.ingest.importers import import_trace

SHARED = Path(os.environ.get("CASCADE_SHARED") or Path(__file__).resolve().parents[3] / "shared")
TRACES = SHARED / "data" / "traces" / "kineto"
FILES = {
    "k01": "k01_vllm_b200_gptoss_tp8_prefill_eager.json.gz",
    "k07": "k07_hf_h100_qwen1.5-0.5b_prefill.json.gz",
    "k11": "k11_a100_dlrm_cudagraph_nccl_intus.json.gz",
}
REPEATS = 3
BIG_BYTES = 1_000_000_000


def run() -> None:
    if not TRACES.is_dir():
        print("NOT RUN: needs the reference traces in ../shared, or CASCADE_SHARED")
        return
    for name, file in FILES.items():
        path = TRACES / file
        plain_bytes = len(gzip.decompress(path.read_bytes()))
        ours, theirs, events = [], [], 0
        for _ in range(REPEATS):
            began = time.perf_counter()
            events = import_trace([path]).quality.event_count
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            orjson.loads(gzip.decompress(path.read_bytes()))
            theirs.append(time.perf_counter() - began)
        best, reference = min(ours), min(theirs)
        print(
            f"{name}: import {plain_bytes / best / 1e6:.0f} MB/s, {events / best / 1e3:.0f} k events/s;"
            f" gunzip + orjson.loads {plain_bytes / reference / 1e6:.0f} MB/s; ratio {reference / best:.2f}"
            "  (goal 60 MB/s, 150 k events/s)"
        )
    _big_file()


def _big_file() -> None:
    """k07's events repeated with their times shifted until the JSON has 1 GB; imported in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.json"
        size_bytes = _write_big(path)
        context = multiprocessing.get_context("spawn")
        answers = context.SimpleQueue()
        worker = context.Process(target=_import_big, args=(str(path), answers))
        worker.start()
        worker.join()
        if answers.empty():
            print(f"1 GB file: the import died with exit code {worker.exitcode}")
            return
        elapsed_s, peak_bytes, kernels = answers.get()
    print(
        f"1 GB file ({size_bytes / 1e9:.2f} GB, {kernels} kernels): {size_bytes / elapsed_s / 1e6:.0f} MB/s,"
        f" peak RSS {peak_bytes / 2**20:.0f} MiB  (goal < 1 GB)"
    )


def _write_big(path: Path) -> int:
    trace = orjson.loads(gzip.decompress((TRACES / FILES["k07"]).read_bytes()))
    events = trace.pop("traceEvents")
    times = [event["ts"] for event in events if "ts" in event]
    period = max(times) - min(times) + 1000
    head = orjson.dumps(trace)[:-1]
    with path.open("wb") as out:
        out.write(head + b',"traceEvents":[')
        repeat = 0
        while out.tell() < BIG_BYTES:
            for event in events:
                moved = event | {"ts": event["ts"] + repeat * period} if "ts" in event else event
                args = moved.get("args")
                if isinstance(args, dict) and "correlation" in args:
                    # Ids are unique within a real file, however long it is.
                    moved = moved | {"args": args | {"correlation": args["correlation"] + repeat * 10_000_000}}
                out.write((b"," if repeat or event is not events[0] else b"") + b"\n" + orjson.dumps(moved))
            repeat += 1
        out.write(b"\n]}")
        return out.tell()


def _import_big(path: str, answers: multiprocessing.SimpleQueue[tuple[float, int, int]]) -> None:
    began = time.perf_counter()
    imported = import_trace([Path(path)])
    elapsed_s = time.perf_counter() - began
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answers.put((elapsed_s, peak_bytes, int(imported.launches.is_kernel.sum())))
