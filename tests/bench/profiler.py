"""What the profiler publishes in a second on one core: into a file, into Kafka; and its memory with nobody there."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cascade_profiler.destinations import Destination, DestinationAway, File, Kafka
from cascade_profiler.recorder import Recorder, StepFacts
from cascade_profiler.rows import Launches, LaunchFacts
from cascade_profiler.spool import Spool
from cascade_schemas.codec import Record
from cascade_schemas.events import RecordingStarted

LAUNCHES_PER_STEP = 800  # of one decode step of a large model: 400 to 1500 (TRACES)
DISTINCT = 30
STEPS = 1250  # a million launches
REPEATS = 3


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rates = [_rate(lambda: File(place / f"{n}.cascade-trace"), STEPS) for n in range(REPEATS)]  # noqa: B023
        size = (place / "0.cascade-trace").stat().st_size
        print(
            f"into a file: {_shown(rates)}; {size / (STEPS * LAUNCHES_PER_STEP):.1f} bytes a launch"
            "  (goal 100 k launches/s/core)"
        )
        _into_kafka(place)
    _dead_destination()


def _rate(make: Callable[[], Destination], steps: int) -> tuple[float, float]:
    """(launches per second of CPU time, of wall time), from the collector's columns to the acknowledged record."""
    rows = _step_rows()
    recorder = Recorder(_started(), make(), None, memory_bytes_limit=1 << 30, heartbeat_s=1e9)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for step in range(steps):
        recorder.step(StepFacts(step, step * 10_000_000, 9_000_000, (0,), (1,), (100 + step,), (100,)), rows)
    delivery = recorder.end([], 600.0)
    cpu_s, wall_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
    assert recorder.counts.dropped_steps == 0
    assert not delivery.refused, delivery.refused
    assert delivery.lost_records == 0
    count = steps * LAUNCHES_PER_STEP
    return count / cpu_s, count / wall_s


def _into_kafka(place: Path) -> None:
    from tests.cluster.conftest import free_port, load_broker

    kafka = load_broker()
    try:
        kafka.install()
        address = kafka.start(place / "kafka", free_port())
    except (OSError, SystemExit) as error:
        print(f"into Kafka: NOT RUN, no broker here ({error})")
        return
    try:
        _create_topics(address)
        rates = [_rate(lambda: Kafka(address), STEPS) for _ in range(REPEATS)]
        print(f"into Kafka: {_shown(rates)}  (goal 50 k launches/s)")
    finally:
        kafka.stop(place / "kafka")


def _create_topics(address: str) -> None:
    import asyncio

    from services.runtime.cluster import prepare
    from services.runtime.kafka import Broker

    asyncio.run(prepare(Broker(address)))


class _Away:
    """Nobody there."""

    def send(self, records: list[Record]) -> None:
        raise DestinationAway("nobody there")

    def close(self) -> None:
        pass


def _dead_destination() -> None:
    """Two million launches at a destination that is never there: memory by its limit, the rest dropped and counted."""
    limit_bytes, spool_bytes = 16 << 20, 32 << 20
    rows = _step_rows()
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "spool", spool_bytes)
        recorder = Recorder(_started(), _Away(), spool, memory_bytes_limit=limit_bytes, heartbeat_s=1e9)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        slowest_s = 0.0
        for step in range(2 * STEPS):
            began_s = time.perf_counter()
            recorder.step(StepFacts(step, step * 10_000_000, 9_000_000, (0,), (1,), (100,), (100,)), rows)
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
            time.sleep(0.005)  # 160 k launches a second: three times a busy GPU
        held = recorder.outbox.waiting_bytes
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        counts = recorder.counts
        recorder.end([], 0.5)
        on_disk = spool.path.stat().st_size
    print(
        f"nobody there: {counts.steps} steps taken, {counts.dropped_steps} dropped and counted; queue {held / 2**20:.0f}"
        f" MiB of {limit_bytes / 2**20:.0f}, spool {on_disk / 2**20:.0f} MiB of {spool_bytes / 2**20:.0f}, peak RSS"
        f" +{grown:.0f} MiB; the longest the job waited: {slowest_s * 1e3:.1f} ms"
    )


def _step_rows() -> Launches:
    facts = [
        LaunchFacts(
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_" + "x" * 300 + f"{index}>",
            grid=(index + 1, 4, 1),
            block=(128, 1, 1),
            registers=128,
            shared_memory_bytes=49152,
            op="aten::mm",
            operand_dtypes=("c10::BFloat16", "c10::BFloat16"),
            operand_shapes=((8, 4096), (4096, 4096 + index)),
        )
        for index in range(DISTINCT)
    ]
    rows = Launches(facts=facts)
    for place in range(LAUNCHES_PER_STEP):
        rows.fact.append(place % DISTINCT)
        rows.start_ns.append(place * 12_000)
        rows.duration_ns.append(8_000 + place % 700)
        rows.stream.append(7)
        rows.graph.append(None)
        rows.graph_node.append(None)
        rows.host_launch_ns.append(place * 12_000 - 4_000)
    return rows


def _started() -> RecordingStarted:
    return RecordingStarted(
        trace_id="b" * 16, rank=0, rank_count=1, name="bench", provenance="measured", tool="bench", origin_unix_ns=1
    )


def _shown(rates: list[tuple[float, float]]) -> str:
    per_core, per_wall = sorted(rate[0] for rate in rates), sorted(rate[1] for rate in rates)
    middle = len(rates) // 2
    return (
        f"{per_core[middle] / 1e3:.0f} k launches/s of CPU time ({per_core[0] / 1e3:.0f}–{per_core[-1] / 1e3:.0f}),"
        f" {per_wall[middle] / 1e3:.0f} k/s of wall time"
    )
