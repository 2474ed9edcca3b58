"""A slow simulator in a process of its own, so that a run that is withdrawn is withdrawn in the middle of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cascade_schemas.gpu import GpuSpec

from services.kernels.work import WorkTable
from services.runtime.executor import Execution, Executor, WorkerLost
from services.simworker.simulators.base import KernelSimulator, Predictions, refused
from services.simworker.simulators.catalog import simulators


class Apart:
    """The simulator of this name in a process of `executor`; everything but where it works is the simulator's own."""

    def __init__(
        self, simulator: KernelSimulator, executor: Executor, thread_count: int, home: Path, artifacts_uri: str
    ) -> None:
        self.name, self.version = simulator.name, simulator.version
        self.calibration_digest = simulator.calibration_digest
        self._executor = executor
        self._place = (thread_count, home, artifacts_uri)
        self._running: Execution[Predictions] | None = None

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions:
        """Raises Cancelled after `cancel`. A kernel under which its process ends twice is refused with that reason."""
        self._running = self._executor.start(_simulate, *self._place, self.name, work, gpus)
        try:
            return self._running.result()
        except WorkerLost as error:
            return refused(len(gpus), work.count, f"worker_lost: {error}")
        finally:
            self._running = None

    def cancel(self) -> None:
        """End what is simulated now; called from another thread."""
        running = self._running
        if running is not None:
            running.cancel()


def _simulate(
    thread_count: int, home: Path, artifacts_uri: str, name: str, work: WorkTable, gpus: Sequence[GpuSpec]
) -> Predictions:
    return _known(thread_count, home, artifacts_uri)[name].simulate(work, gpus)


@cache
def _known(thread_count: int, home: Path, artifacts_uri: str) -> dict[str, KernelSimulator]:
    """Once per process: what a simulator has compiled it keeps."""
    return simulators(thread_count, home, artifacts_uri)
