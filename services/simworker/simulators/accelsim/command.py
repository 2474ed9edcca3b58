"""What `cascade sass --simulator accelsim` answers, and how two simulators' reports stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from services.kernels.sass_traces.kernelslist import BadTrace, read_kernelslist
from services.simworker.simulators.accelsim.driver import AccelSim, NotUsable, OnLine
from services.simworker.simulators.accelsim.process import Limits
from services.simworker.simulators.sass.command import BadInput
from services.simworker.simulators.sass.options import OPTION_FILES, BadConfig


def simulate_folder(
    traces: Path,
    config: Path,
    binary: Path | None,
    home: Path,
    *,
    environ: Mapping[str, str],
    now_s: Callable[[], float],
    limits: Limits,
    process_count: int,
    on_line: OnLine,
) -> dict[str, Any]:
    """A report as the built-in simulator's. Raises BadInput where nothing can be run at all."""
    if binary is None:
        raise BadInput("--simulator accelsim: needs your own Accel-Sim; set CASCADE_ACCELSIM to its accel-sim.out")
    if not config.is_dir():
        raise BadInput(f"--config {config}: Accel-Sim needs a folder with {' and '.join(OPTION_FILES)}")
    try:
        listed = read_kernelslist(traces)
        driver = AccelSim(binary, config, home, environ=environ, now_s=now_s, limits=limits)
    except (BadConfig, BadTrace, NotUsable) as error:
        raise BadInput(str(error)) from error
    kernels = driver.simulate_all(list(listed.files), process_count, on_line)
    how = (
        "each kernel ran in a process of its own, so that none finds another's data in L2; the config's launch "
        f"latency of {driver.machine.launch_latency} cycles is not in the cycles"
    )
    return {
        "simulator": f"Accel-Sim, GPGPU-Sim {driver.installation.version}",
        "binary_digest": driver.installation.binary_digest,
        "kernels": kernels,
        "warnings": [how],
        "cycles": sum(kernel["cycles"] or 0 for kernel in kernels),
        "cpu_seconds": round(sum(kernel.get("cpu_seconds", 0.0) for kernel in kernels), 3),
        "start_cpu_seconds": 0.0,
    }


def side_by_side(built_in: dict[str, Any], real: dict[str, Any]) -> dict[str, Any]:
    """Two reports of one folder; `cycles_ratio` is the built-in simulator's cycles ÷ Accel-Sim's, null without both."""
    kernels = []
    for ours, theirs in zip(built_in["kernels"], real["kernels"], strict=True):
        has_both = ours["cycles"] and theirs["cycles"]
        kernels.append(
            {
                "name": ours["name"] or theirs["name"],
                "file": ours["file"],
                "cycles": ours["cycles"],
                "cycles_ratio": round(ours["cycles"] / theirs["cycles"], 6) if has_both else None,
                "sass": ours,
                "accelsim": theirs,
            }
        )
    return {
        "kernels": kernels,
        "warnings": [*built_in["warnings"], *real["warnings"]],
        "cycles": {"sass": built_in["cycles"], "accelsim": real["cycles"]},
        "cpu_seconds": {"sass": built_in["cpu_seconds"], "accelsim": real["cpu_seconds"]},
    }
