"""Runs on a cluster: tasks simulated, results stored and pushed, and how a program that was away catches up."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import psutil
import pyarrow as pa
from aiokafka import AIOKafkaProducer
from cascade_schemas.events import (
    AnyEvent,
    KernelSimulationRequested,
    KernelsSimulated,
    KernelTaskTraced,
    LaunchesTraced,
    RunCompleted,
    RunConfig,
    RunRequested,
    StepTraced,
    TraceCompleted,
    TraceStarted,
)
from cascade_schemas.gpu import known_gpus, parse_config
from websockets.sync.client import connect

from services.runtime.kafka import RECORD_BYTES_LIMIT, Outgoing, event_of, follow, outgoing, read_to_end
from services.runtime.remote import ServerFile, read_server_file
from services.simworker.reactor import Simworker
from services.simworker.simulators.catalog import simulators
from tests.bench.scale import TASK_COUNT, make_tasks
from tests.cluster.conftest import ROOT, Cluster, free_port
from tests.cluster.test_scale import free_ports

_T = TypeVar("_T")
TRACE = "bench-trace"
STEPS = 20  # each launches every task once
WORKERS = 4
CONFIGS_OF_A_RUN = 256
CONFIGS_PUSHED = 16
RESULTS_PER_S = 1000
PUSHED_S, PUSHED_BEFORE_S = 30.0, 10.0  # the broker's own code is compiled while it runs
AWAY_S = 15.0
WAIT_S = 400.0


def simulate(cluster: Cluster) -> None:
    """Tasks per second of one to four simworkers on work that waits for them; the planner's rate beside it."""
    _read.clear()
    cluster.publish(*trace_events())
    cluster.start("ingest")
    ports = free_ports(WORKERS)
    for count in range(1, WORKERS + 1):
        cluster.start(
            "simworker",
            str(count),
            CASCADE_SESSION_TIMEOUT_MS="120000",
            CASCADE_OBSERVE=f"127.0.0.1:{ports[count - 1]}",
        )
        for port in ports[:count]:
            _until(lambda port=port: _is_ready(port))
        time.sleep(5)  # partitions are dealt again
        if count == 1:
            _simulated_s(cluster, "warm", configs(8, first=5000))
        workers = [process for (service, _), process in cluster.processes.items() if service == "simworker"]
        cpu_s = [_cpu_s(process) for process in workers]
        planned_s, simulated_s = _simulated_s(
            cluster, f"of-{count}", configs(CONFIGS_OF_A_RUN, first=1000 + count * 300)
        )
        tasks = CONFIGS_OF_A_RUN * TASK_COUNT
        print(
            f"{count} simworkers: {tasks / simulated_s / 1e3:.0f} k tasks/s ({tasks} tasks of {CONFIGS_OF_A_RUN} configs in"
            f" {simulated_s:.1f} s; planned at {tasks / planned_s / 1e3:.0f} k tasks/s),"
            f" {tasks / (sum(map(_cpu_s, workers)) - sum(cpu_s)) / 1e3:.0f} k tasks per CPU second of theirs",
            flush=True,
        )


def _simulated_s(cluster: Cluster, run_id: str, of: Sequence[RunConfig]) -> tuple[float, float]:
    """(seconds to plan the run, seconds from the first worker's waking to the last result)."""
    workers = [process for (service, _), process in cluster.processes.items() if service == "simworker"]
    for process in workers:
        process.send_signal(signal.SIGSTOP)
    asked_unix_s = time.time()
    cluster.publish(request(run_id, of))
    wanted = len(of) * TASK_COUNT
    planned = _records_until(cluster, "work.analytic", "KernelSimulationRequested", wanted, since_unix_s=asked_unix_s)
    woken_unix_s = time.time()
    for process in workers:
        process.send_signal(signal.SIGCONT)
    done = _records_until(cluster, "results", "KernelsSimulated", wanted, since_unix_s=woken_unix_s)
    return planned - asked_unix_s, done - woken_unix_s


def _records_until(cluster: Cluster, topic: str, kind: str, row_count: int, *, since_unix_s: float) -> float:
    """Unix time of the record with which so many rows are there, as the records' own times tell it; each is read once."""

    async def look() -> float:
        rows, last, leaving = 0, 0.0, asyncio.Event()
        deadline = time.monotonic() + WAIT_S
        async for batch in follow(cluster.broker, (topic,), lambda *place: _read.get(place, 0), leaving):
            for record in batch:
                _read[record.topic, record.partition] = record.offset + 1
                headers = dict(record.headers)
                if headers.get("type") == kind.encode() and record.timestamp / 1e3 >= since_unix_s - 0.002:
                    rows, last = rows + int(headers["count"]), max(last, record.timestamp / 1e3)
            if rows >= row_count:
                leaving.set()
            elif not batch:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{rows} of {row_count} rows are in {topic} after {WAIT_S:.0f} s")
                await asyncio.sleep(0.2)
        return last

    return asyncio.run(look())


_read: dict[tuple[str, int], int] = {}  # next offset of what `_records_until` has seen; of the one cluster of a part


def aggregate(cluster: Cluster) -> None:
    """Results per second through the Faust aggregator into DuckDB, in records of many tasks and of one; and catching up."""
    _read.clear()
    cluster.publish(*trace_events())
    cluster.start("ingest")
    (port,) = free_ports(1)
    cluster.start("aggregator", CASCADE_OBSERVE=f"127.0.0.1:{port}", CASCADE_SESSION_TIMEOUT_MS="60000")
    _until(lambda: _is_ready(port))
    _until(lambda: _lag(port) == 0)
    for name, config_count, rows_per_record in (("warm", 2, 1024), ("many", 128, 1024), ("one", 8, 1)):
        results = _results_of(cluster, f"aggregate-{name}", configs(config_count, first=10_000 + config_count))
        records = list(_cut(results, rows_per_record))
        aggregator = cluster.processes["aggregator", "1"]
        before, cpu_s = _stored(port), _cpu_s(aggregator)
        aggregator.send_signal(signal.SIGSTOP)
        asyncio.run(_send(cluster.bootstrap, records))
        began_s, began_unix_s = time.monotonic(), time.time()
        aggregator.send_signal(signal.SIGCONT)
        _until(lambda before=before, records=records: _stored(port) >= before + len(records), poll_s=0.1)
        stored_s = time.monotonic() - began_s
        ended_s = _ended_unix_s(cluster, f"aggregate-{name}") - began_unix_s
        rows = sum(event.rows.num_rows for event in results)
        if name != "warm":
            print(
                f"aggregator, {rows_per_record} results a record: {rows / stored_s:.0f} results/s,"
                f" {len(records) / stored_s:.0f} records/s into DuckDB ({rows} in {stored_s:.1f} s; run predicted and ended"
                f" after {ended_s:.1f} s, {rows / (_cpu_s(aggregator) - cpu_s):.0f} results per CPU second, predictions"
                " included)",
                flush=True,
            )
    _catch_up(cluster, port)


def _catch_up(cluster: Cluster, port: int) -> None:
    results = _results_of(cluster, "away", configs(CONFIGS_PUSHED, first=20_000))
    records = list(_cut(results, 1))[: int(RESULTS_PER_S * (AWAY_S + 25))]
    sender = multiprocessing.get_context("spawn").Process(
        target=_send_paced, args=(cluster.bootstrap, [tuple(one) for one in records], RESULTS_PER_S)
    )
    cluster.processes["aggregator", "1"].terminate()
    cluster.processes["aggregator", "1"].wait(60)
    sender.start()
    time.sleep(AWAY_S)
    began_s = time.monotonic()
    cluster.start("aggregator", CASCADE_OBSERVE=f"127.0.0.1:{port}", CASCADE_SESSION_TIMEOUT_MS="60000")
    _until(lambda: _is_ready(port), poll_s=0.1)
    ready_s = time.monotonic() - began_s
    _until(lambda: _lag(port) == 0, poll_s=0.1)
    caught_up_s = time.monotonic() - began_s
    is_under_load = sender.is_alive()
    sender.join()
    print(
        f"aggregator away for {AWAY_S:.0f} s at {RESULTS_PER_S} results/s (one a record): ready {ready_s:.1f} s after its"
        f" start, lag 0 after {caught_up_s:.1f} s, {'the load going on' if is_under_load else 'after the load had ended'}",
        flush=True,
    )


def push(cluster: Cluster) -> None:
    """From a result's publication to its frame at a viewer's WebSocket, at 1,000 results a second."""
    _read.clear()
    cluster.publish(*trace_events())
    cluster.start("ingest")
    cluster.start("aggregator")
    gateway = _start_gateway(cluster)
    try:
        server = _until(lambda: read_server_file(cluster.home))
        assert server is not None
        for rows_per_record in (1, 10):
            run_id = f"push-{rows_per_record}"
            results = _results_of(cluster, run_id, configs(CONFIGS_PUSHED, first=30_000 + rows_per_record))
            per_s = RESULTS_PER_S / rows_per_record
            records = list(_cut(results, rows_per_record))[: int(per_s * (PUSHED_BEFORE_S + PUSHED_S))]
            context = multiprocessing.get_context("spawn")
            heard: multiprocessing.SimpleQueue[list[float]] = context.SimpleQueue()
            viewer = context.Process(target=_watch, args=(server, run_id, len(records), heard))
            viewer.start()
            assert heard.get() == []  # subscribed
            before_s = _cpu_s(gateway), _cpu_s(cluster.processes["aggregator", "1"])
            gc.freeze()
            _send_paced(cluster.bootstrap, [tuple(one) for one in records], per_s)
            heard_ms = heard.get()
            before_ms = sorted(heard_ms[: int(per_s * PUSHED_BEFORE_S)])
            latencies = sorted(heard_ms[len(before_ms) :])
            viewer.join()
            after_s = _cpu_s(gateway), _cpu_s(cluster.processes["aggregator", "1"])
            each_ms = [(b - a) / len(records) * 1e3 for a, b in zip(before_s, after_s, strict=True)]
            at = [latencies[int(len(latencies) * share)] for share in (0.5, 0.95, 0.99)]
            print(
                f"result to viewer, {RESULTS_PER_S} results/s in records of {rows_per_record}: p50 {at[0]:.0f} ms, p95"
                f" {at[1]:.0f} ms, p99 {at[2]:.0f} ms, worst {latencies[-1]:.0f} ms over {len(latencies)} records (goal p95"
                f" < 250 ms), p95 of the first {PUSHED_BEFORE_S:.0f} s {before_ms[int(len(before_ms) * 0.95)]:.0f} ms; gateway {each_ms[0]:.2f} and aggregator {each_ms[1]:.2f} CPU ms a record; load average"
                f" {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    finally:
        gateway.terminate()
        gateway.wait(60)


def _start_gateway(cluster: Cluster) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from services.start import main; raise SystemExit(main())"]
    serve = ["serve", "--kafka", cluster.bootstrap, "--port", str(free_port())]
    environ = {**os.environ, "CASCADE_HOME": str(cluster.home), "CASCADE_INSTANCE": "1"}
    with (cluster.home / "gateway.log").open("ab") as log:
        return subprocess.Popen([*command, *serve], cwd=ROOT, env=environ, stdout=log, stderr=log)


def _watch(server: ServerFile, run_id: str, record_count: int, heard: multiprocessing.SimpleQueue[list[float]]) -> None:
    """Milliseconds from each record's time to its frame, by the one clock of this machine."""
    address = f"{server.url.replace('http', 'ws')}/ws"
    with connect(address, additional_headers={"Authorization": f"Bearer {server.token}"}, max_size=None) as socket:
        while True:
            socket.send(json.dumps({"op": "subscribe", "run": run_id, "from": "live", "types": ["KernelsSimulated"]}))
            if json.loads(socket.recv())["op"] == "hello":
                break
            time.sleep(0.2)
        heard.put([])
        gc.freeze()  # its own pauses are not the gateway's
        latencies: list[float] = []
        while len(latencies) < record_count:
            message = socket.recv(timeout=WAIT_S)
            if isinstance(message, bytes):
                now_ms = time.time() * 1e3
                times = pa.ipc.open_stream(message).read_all().column("timestamp_ms")
                latencies += (now_ms - np.asarray(times)).tolist()
                socket.send(json.dumps({"op": "credit", "count": 1}))
    heard.put(latencies)


# --- what is simulated, and what comes of it ------------------------------------------------------------------


def trace_events() -> Iterator[AnyEvent]:
    """A trace of 2,000 distinct tasks as ingest would say it."""
    tasks = make_tasks()
    yield TraceStarted(trace_id=TRACE, name="bench", provenance="synthesized", tool="bench", source_gpu=None)
    for task in tasks:
        yield KernelTaskTraced(
            trace_id=TRACE, task_id=task.task_id, signature_id=task.signature.signature_id, task=task
        )
    ids = pa.array([task.task_id for task in tasks])
    count = len(tasks)
    for step in range(STEPS):
        yield StepTraced(
            trace_id=TRACE, rank=0, step=step, phase="decode", start_ns=step, duration_ns=1, context_requests=0,
            context_tokens=0, generation_requests=1, generation_tokens=1, kernel_count=count,
        )  # fmt: skip
        seq = np.arange(step * count, (step + 1) * count)
        yield LaunchesTraced(
            trace_id=TRACE,
            rank=0,
            first_seq=step * count,
            rows=pa.RecordBatch.from_arrays(
                [
                    pa.array(np.zeros(count, dtype=np.int32)),
                    pa.array(seq),
                    pa.DictionaryArray.from_arrays(pa.array(np.arange(count, dtype=np.int32)), ids),
                    pa.array(seq),
                    pa.nulls(count, pa.int64()),
                    pa.array(np.full(count, 7, dtype=np.int32)),
                    pa.array(np.full(count, step, dtype=np.int32)),
                    pa.nulls(count, pa.int64()),
                    pa.nulls(count, pa.int64()),
                    pa.array(np.ones(count, dtype=np.bool_)),
                ],
                schema=LaunchesTraced.row_schema,
            ),
        )
    yield TraceCompleted(
        trace_id=TRACE, is_truncated=False, launch_count=STEPS * count, kernel_count=STEPS * count, signature_count=4,
        task_count=count, step_count=STEPS, launchless_count=0, quality={},
    )  # fmt: skip


def configs(count: int, *, first: int) -> list[RunConfig]:
    """GPUs that no other run asks for, so that nothing is answered from what was kept."""
    names = known_gpus()
    found = []
    for number in range(first, first + count):
        config = parse_config(f"{names[number % len(names)]}:dram_gbps={500 + number}")
        found.append(RunConfig(config_id=config.config_id, label=f"{config.gpu.gpu} {number}", gpu=config.gpu))
    return found


def request(run_id: str, of: Sequence[RunConfig]) -> RunRequested:
    return RunRequested(run_id=run_id, trace_id=TRACE, configs=tuple(of), simulator="analytic")


def _results_of(cluster: Cluster, run_id: str, of: Sequence[RunConfig]) -> list[KernelsSimulated]:
    """The run's real results, simulated here from the work that the planner asks for, and not said yet."""
    began_unix_s = time.time()
    cluster.publish(request(run_id, of))
    _records_until(
        cluster, "work.analytic", "KernelSimulationRequested", len(of) * TASK_COUNT, since_unix_s=began_unix_s
    )
    worker = Simworker(simulators(2), worker="bench", now_ms=lambda: 0)

    async def work() -> list[AnyEvent | None]:
        return [event_of(record, "bench") async for record in read_to_end(cluster.broker, ("work.analytic",))]

    for event in asyncio.run(work()):
        if isinstance(event, KernelSimulationRequested) and event.run_id == run_id:
            list(worker.react(event))
    return [event for event in worker.settle() if isinstance(event, KernelsSimulated)]


def _cut(results: Sequence[KernelsSimulated], rows_per_record: int) -> Iterator[Outgoing]:
    for event in results:
        for first in range(0, event.rows.num_rows, rows_per_record):
            yield outgoing(event.model_copy(update={"rows": event.rows.slice(first, rows_per_record)}))


async def _send(bootstrap: str, records: Sequence[Outgoing], per_s: float | None = None) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        acks="all",
        max_request_size=RECORD_BYTES_LIMIT,
        linger_ms=2,
    )
    await producer.start()
    waiting = []
    began_s = time.monotonic()
    for number, record in enumerate(records):
        if per_s is not None and (early_s := began_s + number / per_s - time.monotonic()) > 0:
            await asyncio.sleep(early_s)
        waiting.append(await producer.send(record.topic, record.value, record.key, headers=record.headers))
    await asyncio.gather(*waiting)
    await producer.stop()


def _send_paced(bootstrap: str, records: Sequence[tuple[object, ...]], per_s: float) -> None:
    asyncio.run(_send(bootstrap, [Outgoing(*one) for one in records], per_s))  # type: ignore[arg-type]


# --- looking on -----------------------------------------------------------------------------------------------


def _until(found: Callable[[], _T], poll_s: float = 0.2) -> _T:
    deadline = time.monotonic() + WAIT_S
    while not (value := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came of it within {WAIT_S:.0f} s")
        time.sleep(poll_s)
    return value


def _ended_unix_s(cluster: Cluster, run_id: str) -> float:
    async def look() -> float | None:
        async for record in read_to_end(cluster.broker, ("predictions",)):
            if record.key == run_id.encode() and ("type", b"RunCompleted") in record.headers:
                event = event_of(record, "bench")
                assert isinstance(event, RunCompleted)
                assert event.outcome == "completed"
                return float(record.timestamp) / 1e3
        return None

    found = _until(lambda: asyncio.run(look()), poll_s=1.0)
    assert found is not None
    return found


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _lag(port: int) -> float:
    """Records of all owned partitions that are not stored yet; infinite before anything is known."""
    lags = [float(value) for value in re.findall(r"^cascade_lag_records\{[^}]*\} (\S+)$", _metrics(port), re.MULTILINE)]
    return sum(lags) if lags else float("inf")


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """What the program has computed so far: other work on the machine is not in it."""
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def _stored(port: int) -> float:
    """Records of `results` that the aggregator has committed."""
    found = re.search(r'^cascade_records_read_total\{[^}]*topic="results"\} (\S+)$', _metrics(port), re.MULTILINE)
    return float(found[1]) if found else 0.0
