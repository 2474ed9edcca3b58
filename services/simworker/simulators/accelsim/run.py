"""The user's own Accel-Sim as a run's simulator: one process per kernel and GPU, on the config the user has for it."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cascade_schemas.gpu import GpuSpec, UnknownGpu, load_gpu

from services.kernels.sass_traces.kernelslist import BadTrace
from services.kernels.work import WorkTable
from services.runtime.executor import Cancelled, InThreads
from services.runtime.settings import AccelSimSettings
from services.simworker.simulators.base import BOUNDS, FAILED_NS, Z90, Predictions
from services.simworker.simulators.sass.options import OPTION_FILES, BadConfig

SIGMA = 0.32
"""Of ln(hardware ÷ simulated): the larger of the published average errors of stock Accel-Sim against hardware, 13 to
32 % (its own release notes for H100, arXiv 2503.20481 for Ampere)."""

SECTOR_BYTES = 32
_BOUND_SHARE = 0.5  # of the kernel's time that a limit must explain to be called what binds it
_TERMS = ("tensor", "dram", "l2", "issue", "launch")


class AccelSimSimulator:
    """Each launch alone, with cold caches. Cycles become time at the boost clock; the machine is the user's config."""

    name = "accelsim"
    version = "1"

    def __init__(
        self,
        place: AccelSimSettings,
        open_artifact: Callable[[str], Path],
        thread_count: int,
        home: Path,
        now_s: Callable[[], float],
    ) -> None:
        """`home` keeps results and whole logs."""
        self._place = place
        self._open_artifact = open_artifact
        self._thread_count = thread_count
        self._home = home
        self._now_s = now_s
        self._hear: Callable[[int, str], None] = lambda config, line: None  # noqa: ARG005 - nobody listens yet
        self._lock = threading.Lock()
        self._drivers: dict[str, Any] = {}  # by GPU: one that is under way, or was, and can be ended
        self._withdrawn = threading.Event()

    @property
    def calibration_digest(self) -> str:
        """Of the program and of every config: what a user changes there is another simulator."""
        whole = hashlib.sha256()
        files = [self._place.binary, *sorted(self._place.configs.glob("*/*.config"))]
        for path in files:
            whole.update(f"{path.parent.name}/{path.name}\n".encode())
            if path.is_file():
                with path.open("rb") as file:
                    whole.update(hashlib.file_digest(file, "sha256").digest())
        return whole.hexdigest()[:16]

    def obstacle(self, gpu: GpuSpec) -> str:
        """Why it has nothing to simulate this GPU by, in one sentence; "" where it has."""
        try:
            is_stock = load_gpu(gpu.gpu).config_id == gpu.config_id
        except UnknownGpu:
            is_stock = False
        if not is_stock:
            return f"accelsim simulates GPUs by configs of their own, and {gpu.name} has overrides; sass takes them"
        folder = self._place.configs / gpu.gpu
        lacking = [name for name in OPTION_FILES if not (folder / name).is_file()]
        if lacking:
            return f"accelsim has no config for {gpu.gpu}: CASCADE_ACCELSIM_CONFIGS needs {gpu.gpu}/{lacking[0]}"
        return ""

    def listen(self, hear: Callable[[int, str], None]) -> None:
        """From now on call with the index of a GPU and a line of its process, from whatever thread reads it."""
        self._hear = hear

    def cancel(self) -> None:
        """End every process within a poll's time; called from another thread."""
        self._withdrawn.set()
        with self._lock:
            drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            driver.cancel()

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions:
        """Refuses what it cannot do, each with its reason. Raises Cancelled after `cancel`."""
        withdrawn = self._withdrawn = threading.Event()
        digests = [str(digest) for digest in work.text("sass")]
        reports: list[list[dict[str, Any]]] = [[{} for _ in digests] for _ in gpus]

        def on(config: int) -> None:
            for task, digest in enumerate(digests):
                if not withdrawn.is_set():
                    reports[config][task] = self._report(config, gpus[config], digest, withdrawn)

        executor = InThreads(self._thread_count)
        try:
            for execution in [executor.start(on, config) for config in range(len(gpus))]:
                execution.result()
        finally:
            executor.close()
        if withdrawn.is_set():
            raise Cancelled("the run was cancelled")
        return _predictions(reports, gpus)

    def _report(self, config: int, gpu: GpuSpec, digest: str, withdrawn: threading.Event) -> dict[str, Any]:
        """In the driver's shape; `refused` says why there is none."""
        # Late: what is imported here is compiled, and most runs never ask for it.
        from services.simworker.simulators.accelsim.driver import AccelSim, NotUsable  # noqa: PLC0415

        if not digest:
            return {"refused": "no_sass_trace"}
        if why := self.obstacle(gpu):
            return {"refused": f"no_accelsim_config: {why}"}
        try:
            path = self._open_artifact(digest)
            driver = self._drivers.get(gpu.gpu)
            if driver is None:
                driver = AccelSim(
                    self._place.binary,
                    self._place.configs / gpu.gpu,
                    self._home,
                    environ=dict(self._place.environ),
                    now_s=self._now_s,
                )
                with self._lock:
                    if withdrawn.is_set():  # while it was probed, when there was nothing to end yet
                        return {"refused": "cancelled"}
                    self._drivers[gpu.gpu] = driver
            report: dict[str, Any] = driver.simulate(path, lambda _, line: self._hear(config, line))
        except (BadConfig, NotUsable) as error:
            return {"refused": f"accelsim_not_usable: {error}"}
        except (BadTrace, LookupError) as error:
            return {"refused": f"sass_trace_unusable: {error}"}
        if report["cycles"] is None:
            return {"refused": f"{report['failure']}: {report['error']}"}
        return report


def _predictions(reports: Sequence[Sequence[dict[str, Any]]], gpus: Sequence[GpuSpec]) -> Predictions:
    shape = (len(gpus), len(reports[0]) if reports else 0)
    duration = np.full(shape, FAILED_NS, dtype=np.int64)
    cycles = np.full(shape, -1, dtype=np.int64)
    parts = {name: np.zeros(shape, dtype=np.int64) for name in _TERMS}
    bound = np.full(shape, BOUNDS.index("none"), dtype=np.uint8)
    reasons: list[str] = []
    code = np.zeros(shape, dtype=np.int16)
    for config, gpu in enumerate(gpus):
        for task, report in enumerate(reports[config]):
            reason = report.get("refused", "accelsim:config_not_validated_on_hardware;cold_caches")
            if reason not in reasons:
                reasons.append(reason)
            code[config, task] = reasons.index(reason)
            if "refused" in report:
                continue
            ns_per_cycle = 1e9 / gpu.boost_hz
            duration[config, task] = max(1, round(report["cycles"] * ns_per_cycle))
            cycles[config, task] = report["cycles"]
            limits = _limits(report, gpu, ns_per_cycle)
            for name, value in limits.items():
                parts[name][config, task] = round(value)
            largest = max(limits, key=lambda name: limits[name])
            is_rate = limits[largest] >= _BOUND_SHARE * duration[config, task]
            bound[config, task] = BOUNDS.index(largest if is_rate else "issue")
    spread = math.exp(Z90 * SIGMA)
    has_time = duration != FAILED_NS
    return Predictions(
        duration_ns=duration,
        p10_ns=np.where(has_time, np.rint(duration / spread), FAILED_NS).astype(np.int64),
        p90_ns=np.where(has_time, np.rint(duration * spread), FAILED_NS).astype(np.int64),
        tensor_ns=parts["tensor"],
        dram_ns=parts["dram"],
        l2_ns=parts["l2"],
        issue_ns=parts["issue"],
        launch_ns=parts["launch"],
        bound=bound,
        sigma=np.full(shape, SIGMA, dtype=np.float32),
        reason=code,
        reasons=tuple(reasons),
        tier="C",
        sm_cycles=cycles,
        log=tuple(tuple(_line(report) for report in of_config) for of_config in reports),
        statistics=tuple(tuple(_statistics(report) for report in of_config) for of_config in reports),
    )


def _limits(report: dict[str, Any], gpu: GpuSpec, ns_per_cycle: float) -> dict[str, float]:
    """What each rate alone would take, in ns; how busy its pipes were Accel-Sim does not say."""
    moved = report["dram_read_bytes"] + report["dram_write_bytes"]
    sectors = report["l2_read_sectors"] + report["l2_write_sectors"]
    return {
        "dram": moved / gpu.dram_bytes_per_s * 1e9,
        "l2": sectors * SECTOR_BYTES / gpu.l2_bytes_per_s * 1e9 if gpu.l2_bytes_per_s else 0.0,
        "issue": report["warp_instructions"] / (gpu.sm_count * 4) * ns_per_cycle,
    }


_COUNTED = (
    "cycles", "warp_instructions", "thread_instructions", "ipc", "ctas_per_sm", "limited_by", "l1_read_sectors",
    "l1_read_hits", "l1_write_sectors", "l2_read_sectors", "l2_read_hits", "l2_write_sectors", "l2_write_hits",
    "dram_read_bytes", "dram_write_bytes", "bank_conflict_cycles",
)  # fmt: skip


def _statistics(report: dict[str, Any]) -> str:
    """What depends on the trace and the config alone: not how long it took here, nor where its log is."""
    if "refused" in report:
        return ""
    return json.dumps({name: report[name] for name in _COUNTED if name in report}, sort_keys=True)


def _line(report: dict[str, Any]) -> str:
    if "refused" in report:
        return f"not simulated: {report['refused']}"
    changes = f"; for it {', '.join(report['changes'])}" if report.get("changes") else ""
    how = "kept from before" if report.get("is_cached") else f"{report['cpu_seconds']:.1f} CPU seconds"
    return (
        f"{str(report['name'])[:120]}: {report['cycles']:,} cycles, {report['warp_instructions']:,} warp instructions,"
        f" IPC {report['ipc']}, {how}{changes}; its whole output is kept as {report['log']}"
    )
