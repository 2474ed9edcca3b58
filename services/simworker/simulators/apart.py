"""A slow simulator in a process of its own, so that a run that is withdrawn is withdrawn in the middle of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from cascade_schemas.gpu import GpuSpec

from services.kernels.work import WorkTable
from services.runtime.executor import Execution, Executor, WorkerLost
from services.simworker.simulators.base import KernelSimulator, Predictions, Talking, refused
from services.simworker.simulators.catalog import simulators

_LINE_LENGTH = 1000  # characters; 4 bytes each at most, and a pipe takes 4 KiB in one piece


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
        self._hear: Callable[[int, str], None] = lambda config, line: None  # noqa: ARG005 - nobody listens yet

    def listen(self, hear: Callable[[int, str], None]) -> None:
        """From now on call with what the simulator says in its process, if it says anything."""
        self._hear = hear

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions:
        """Raises Cancelled after `cancel`. A kernel under which its process ends twice is refused with that reason."""
        hear = self._hear
        self._running = self._executor.watch(lambda said: hear(*said), _simulate, *self._place, self.name, work, gpus)
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
    say: Callable[[tuple[int, str]], None],
    thread_count: int,
    home: Path,
    artifacts_uri: str,
    name: str,
    work: WorkTable,
    gpus: Sequence[GpuSpec],
) -> Predictions:
    simulator = _known(thread_count, home, artifacts_uri)[name]
    if isinstance(simulator, Talking):
        simulator.listen(lambda config, line: say((config, line[:_LINE_LENGTH])))
    return simulator.simulate(work, gpus)


@cache
def _known(thread_count: int, home: Path, artifacts_uri: str) -> dict[str, KernelSimulator]:
    """Once per process: what a simulator has compiled it keeps."""
    return simulators(thread_count, home, artifacts_uri)
