"""The built-in SASS simulator as a run's simulator: tasks that name a recorded trace, on any GPU."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from cascade_schemas.gpu import GpuSpec
from numpy.typing import NDArray

from services.kernels.sass_traces.kernelslist import BadTrace
from services.kernels.work import WorkTable
from services.runtime.executor import Cancelled, InThreads
from services.simworker.simulators.base import BOUNDS, FAILED_NS, Z90, Predictions

if TYPE_CHECKING:  # what is imported here is compiled
    from services.simworker.simulators.sass.simulator import KernelResult, Progress

SIGMA = 0.35
"""Of ln(hardware ÷ simulated). Published errors of stock Accel-Sim against hardware are 13 to 32 % on average (its own
release notes for H100, arXiv 2503.20481 for Ampere); we add ours against it. No trace of ours has a measured time."""

SECTOR_BYTES = 32
_RESULTS_REMEMBERED = 4096
_BOUND_SHARE = 0.5  # of the kernel's time that a limit must explain to be called what binds it


class SassSimulator:
    """Each launch alone, with cold caches. Cycles become time at the boost clock; the machine is the datasheet's."""

    name = "sass"
    version = "2"
    calibration_digest = ""

    def __init__(
        self, open_artifact: Callable[[str], Path], thread_count: int, prepare: Callable[[], None], keep: Path
    ) -> None:
        """`prepare` sets up the compiler before its first use; `keep` is a folder for traces as arrays."""
        self._open_artifact = open_artifact
        self._thread_count = thread_count
        self._prepare = prepare
        self._keep = keep
        self._withdrawn = threading.Event()  # of the call that is under way
        self._hear: Callable[[int, str], None] = lambda config, line: None  # noqa: ARG005 - nobody listens yet
        self._results: dict[tuple[bytes, str], KernelResult] = {}  # by digest of the records, and GPU

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions:
        """Refuses tasks without a trace, and traces that cannot run, each with its reason. Cancelled after `cancel`."""
        withdrawn = self._withdrawn = threading.Event()
        digests = [str(digest) for digest in work.text("sass")]
        table = _Table(len(gpus), len(digests))
        if any(digests):
            self._prepare()
        for task, digest in enumerate(digests):
            if not digest:
                table.refuse(task, "no_sass_trace")
            else:
                self._simulate(task, digest, gpus, table, withdrawn)
        return table.predictions(self._log_of(table, gpus))

    def listen(self, hear: Callable[[int, str], None]) -> None:
        """From now on call with the index of a GPU and how far its kernel is, a tenth of its thread blocks each."""
        self._hear = hear

    def cancel(self) -> None:
        """End what is simulated now, within its kernel; called from another thread."""
        self._withdrawn.set()

    def _simulate(
        self,
        task: int,
        digest: str,
        gpus: Sequence[GpuSpec],
        table: _Table,
        withdrawn: threading.Event,
    ) -> None:
        # Late: what is imported here is compiled, and most runs never ask for it.
        from services.simworker.simulators.sass.generated import machine_of_gpu  # noqa: PLC0415
        from services.simworker.simulators.sass.kept import recall_or_open  # noqa: PLC0415
        from services.simworker.simulators.sass.reading import KernelReader, open_reader  # noqa: PLC0415
        from services.simworker.simulators.sass.sampling import digest_of  # noqa: PLC0415
        from services.simworker.simulators.sass.simulator import Simulation, report_of  # noqa: PLC0415

        def check() -> None:
            if withdrawn.is_set():
                raise Cancelled("the run was cancelled")

        def watcher(config: int, name: str) -> Callable[[Progress], None]:
            tenths = 0

            def watch(progress: Progress) -> None:
                nonlocal tenths
                check()
                done = 10 * progress.ctas_done // max(progress.cta_count, 1)
                if done > tenths:
                    tenths = done
                    self._hear(config, replace(progress, file=name).line())

            return watch

        try:
            path = self._open_artifact(digest)
            trace = recall_or_open(path, self._keep, check=check)
        except (BadTrace, LookupError) as error:
            table.refuse(task, f"sass_trace_unusable: {error}")
            return
        # Every kernel finds cold caches, so that equal ones take equal time.
        digest_of_records = b"" if isinstance(trace, KernelReader) else digest_of(trace)

        def on(config: int) -> None:
            gpu = gpus[config]
            key = (digest_of_records, gpu.model_dump_json())
            try:
                result = self._results.get(key) if digest_of_records else None
                if result is None:
                    # A kernel that is read as it goes on is read for each config.
                    source = open_reader(path) if isinstance(trace, KernelReader) else trace
                    result = Simulation(machine_of_gpu(gpu)).run(source, watcher(config, trace.header.name[:120]))
                    self._remember(key, result)
                result = replace(result, file=trace.file, header=trace.header)
            except BadTrace as error:
                table.refuse(task, f"does_not_fit: {error}", config)
                return
            if result.cycles is None:
                table.refuse(task, f"deadlock: {result.deadlock}", config)
                return
            table.fill(config, task, gpu, report_of(result), _reason(result.header.binary_version, gpu))

        executor = InThreads(self._thread_count)
        try:
            for execution in [executor.start(on, config) for config in range(len(gpus))]:
                execution.result()
        except BaseException:
            withdrawn.set()  # who is interrupted does not wait for the other configs
            raise
        finally:
            executor.close()

    def _remember(self, key: tuple[bytes, str], result: KernelResult) -> None:
        if len(self._results) >= _RESULTS_REMEMBERED:
            self._results.clear()
        self._results[key] = result

    def _log_of(self, table: _Table, gpus: Sequence[GpuSpec]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(table.lines[config]) for config in range(len(gpus)))


def _reason(binary_version: int, gpu: GpuSpec) -> str:
    major, minor = gpu.compute_capability or (0, 0)
    same = binary_version // 10 == major
    own = "" if same else f";code_of_sm_{binary_version}_on_sm_{major}{minor}"
    return f"sass:not_validated_on_hardware;cold_caches{own}"


class _Table:
    """Predictions in the making; rows are configs, columns tasks. Threads write different rows."""

    def __init__(self, configs: int, tasks: int) -> None:
        shape = (configs, tasks)
        self.duration_ns = np.full(shape, FAILED_NS, dtype=np.int64)
        self.parts = {name: np.zeros(shape, dtype=np.int64) for name in ("tensor", "dram", "l2", "issue", "launch")}
        self.cycles = np.full(shape, -1, dtype=np.int64)
        self.bound = np.full(shape, BOUNDS.index("none"), dtype=np.uint8)
        self.reason: list[list[str]] = [[""] * tasks for _ in range(configs)]
        self.lines: list[list[str]] = [[] for _ in range(configs)]
        self.statistics = [[""] * tasks for _ in range(configs)]

    def refuse(self, task: int, reason: str, config: int | None = None) -> None:
        for row in range(len(self.reason)) if config is None else (config,):
            self.reason[row][task] = reason

    def fill(self, config: int, task: int, gpu: GpuSpec, report: dict[str, object], reason: str) -> None:
        cycles = _number(report, "cycles")
        ns_per_cycle = 1e9 / gpu.boost_hz
        duration = max(1, round(cycles * ns_per_cycle))
        busy = report["pipe_busy_cycles"]
        assert isinstance(busy, dict)
        sub_cores = gpu.sm_count * 4
        arithmetic = max((count for name, count in busy.items() if name != "memory"), default=0)
        moved = _number(report, "dram_read_bytes") + _number(report, "dram_write_bytes")
        sectors = _number(report, "l2_read_sectors") + _number(report, "l2_write_sectors")
        limits = {
            "tensor": arithmetic / sub_cores * ns_per_cycle,
            "dram": moved / gpu.dram_bytes_per_s * 1e9,
            "l2": sectors * SECTOR_BYTES / gpu.l2_bytes_per_s * 1e9 if gpu.l2_bytes_per_s else 0.0,
            "issue": _number(report, "warp_instructions") / sub_cores * ns_per_cycle,
        }
        for name, value in limits.items():
            self.parts[name][config, task] = round(value)
        largest = max(limits, key=lambda name: limits[name])
        # Where no rate explains half of the time, warps wait for each other and for latencies: that is issue.
        bound = largest if limits[largest] >= _BOUND_SHARE * duration else "issue"
        self.bound[config, task] = BOUNDS.index(bound)
        self.duration_ns[config, task] = duration
        self.cycles[config, task] = cycles
        self.reason[config][task] = reason
        self.lines[config].append(_line(report))
        counted = {name: value for name, value in report.items() if name not in {"name", "file"}}
        self.statistics[config][task] = json.dumps(counted, sort_keys=True)

    def predictions(self, log: tuple[tuple[str, ...], ...]) -> Predictions:
        reasons = tuple(dict.fromkeys(reason for row in self.reason for reason in row))
        codes = {reason: code for code, reason in enumerate(reasons)}
        reason = np.array([[codes[reason] for reason in row] for row in self.reason], dtype=np.int16)
        spread = math.exp(Z90 * SIGMA)
        has_time = self.duration_ns != FAILED_NS

        def scaled(factor: float) -> NDArray[np.int64]:
            return np.where(has_time, np.rint(self.duration_ns * factor), FAILED_NS).astype(np.int64)

        return Predictions(
            duration_ns=self.duration_ns,
            p10_ns=scaled(1 / spread),
            p90_ns=scaled(spread),
            tensor_ns=self.parts["tensor"],
            dram_ns=self.parts["dram"],
            l2_ns=self.parts["l2"],
            issue_ns=self.parts["issue"],
            launch_ns=self.parts["launch"],
            bound=self.bound,
            sigma=np.full(self.duration_ns.shape, SIGMA, dtype=np.float32),
            reason=reason,
            reasons=reasons,
            tier="B",
            sm_cycles=self.cycles,
            log=log,
            statistics=tuple(tuple(row) for row in self.statistics),
        )


def _number(report: dict[str, object], name: str) -> int:
    value = report[name]
    assert isinstance(value, int)
    return value


def _line(report: dict[str, object]) -> str:
    """One line of the run's log: what a user wants to know of a kernel first."""
    stalls = report["stall_cycles"]
    assert isinstance(stalls, dict)
    total = sum(stalls.values())
    waits = ", ".join(f"{name} {count / total:.0%}" for name, count in stalls.items() if total and count)
    reads, hits = _number(report, "l2_read_sectors"), _number(report, "l2_read_hits")
    l2 = f"{hits / reads:.0%}" if reads else "none"
    moved = _number(report, "dram_read_bytes") + _number(report, "dram_write_bytes")
    return (
        f"{str(report['name'])[:120]}: {_number(report, 'cycles'):,} cycles, {_number(report, 'warp_instructions'):,} "
        f"warp instructions, IPC {report['ipc']}, {_number(report, 'ctas_per_sm')} CTAs per SM "
        f"(limited by {report['limited_by']}), L2 read hits {l2}, DRAM {moved / 1e6:.2f} MB; waits: {waits or 'none'}"
    )
