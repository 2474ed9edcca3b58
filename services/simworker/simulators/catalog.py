"""Which simulators there are, by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from services.runtime.artifacts import open_artifacts
from services.runtime.settings import AccelSimSettings
from services.simworker.calibration.measured import constants_of
from services.simworker.simulators.accelsim.run import AccelSimSimulator
from services.simworker.simulators.analytic.simulator import AnalyticSimulator
from services.simworker.simulators.base import KernelSimulator
from services.simworker.simulators.roofline import RooflineSimulator
from services.simworker.simulators.sass.run import SassSimulator


def simulators(
    thread_count: int,
    home: Path | None = None,
    artifacts_uri: str = "",
    *,
    accelsim: AccelSimSettings | None = None,
    now_s: Callable[[], float] | None = None,
) -> dict[str, KernelSimulator]:
    """All simulators of this installation; each may use so many threads.

    `home` is where artifacts are and constants of measured GPUs: without it there are no SASS traces to simulate, and
    without numba no `sass`. `accelsim` needs a clock for its limits. Raises BadCalibration.
    """
    found: dict[str, KernelSimulator] = {
        "analytic": AnalyticSimulator(thread_count, constants_of(home)),
        "roofline": RooflineSimulator(),
    }
    if home is not None and importlib.util.find_spec("numba") is not None:
        found["sass"] = SassSimulator(
            open_artifacts(home / "artifacts", artifacts_uri).path,
            thread_count,
            lambda: _compile(home / "numba"),
            home / "sass",
        )
        if accelsim is not None and now_s is not None:
            found["accelsim"] = AccelSimSimulator(
                accelsim, open_artifacts(home / "artifacts", artifacts_uri).path, thread_count, home, now_s
            )
    return found


def _compile(folder: Path) -> None:
    """Compiled code is kept with the state; where is decided before anything compiled is imported."""
    from services.simworker.simulators.sass.jit import use_cache  # noqa: PLC0415

    use_cache(folder)
    from services.simworker.simulators.sass.simulator import compile_core  # noqa: PLC0415

    compile_core()
