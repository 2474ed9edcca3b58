"""What `cascade sass` answers: every kernel of a folder on one machine, and the CPU time it took."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.kernels.sass_traces.kernelslist import BadTrace, read_kernelslist
from services.simworker.simulators.sass.kept import sweep
from services.simworker.simulators.sass.machine import PIPES, Machine, machine_of
from services.simworker.simulators.sass.options import BadConfig, read_options
from services.simworker.simulators.sass.sampling import Sampler, sampled_report
from services.simworker.simulators.sass.simulator import Watch, compile_core


class BadInput(ValueError):
    """A folder or a config that cannot be used; the message is the sentence to show."""


def simulate_folder(
    traces: Path,
    config: str,
    cpu_seconds: Callable[[], float],
    keep: Path | None = None,
    *,
    sample: str = "off",
    watch: Watch | None = None,
) -> dict[str, Any]:
    """`cpu_seconds` is the process's CPU clock; `keep` a folder for traces as arrays; `sample` one of `sampling.MODES`.

    A kernel that cannot be read has an error and no cycles; the others go on, as in processes of their own.
    """
    try:
        machine = machine_named(config)
        listed = read_kernelslist(traces)
    except (BadConfig, BadTrace) as error:
        raise BadInput(str(error)) from error
    compile_core()
    start = cpu_seconds()
    sampler = Sampler(machine, sample)
    kernels: list[dict[str, Any]] = []
    warnings: list[str] = []
    for path in listed.files:
        try:
            result, said = sampler.run(path, keep, watch)
            kernels.append(sampled_report(result))
        except BadTrace as error:
            kernels.append({"name": "", "file": path.name, "cycles": None, "error": str(error)})
            continue
        warnings += [warning for warning in said if warning not in warnings]
    if keep is not None:
        sweep(keep)
    warnings += [f"the config has no {name}; its instructions take 4 cycles" for name in _missed(machine, kernels)]
    return {
        "sample": sample,
        "kernels": kernels,
        "warnings": warnings,
        "cycles": sum(kernel["cycles"] or 0 for kernel in kernels),
        "cpu_seconds": round(cpu_seconds() - start, 6),
        "start_cpu_seconds": round(start, 6),
    }


def machine_named(config: str) -> Machine:
    """From a folder of Accel-Sim's options, or generated from a GPU with overrides."""
    if Path(config).is_dir():
        return machine_of(read_options(Path(config)))
    # Only here: a folder of options needs none of the GPUs' files.
    from cascade_schemas.gpu import InvalidConfig, UnknownGpu, parse_config  # noqa: PLC0415

    from services.simworker.simulators.sass.generated import machine_of_gpu  # noqa: PLC0415

    try:
        return machine_of_gpu(parse_config(config).gpu)
    except (InvalidConfig, UnknownGpu) as error:
        raise BadInput(f"--config {config}: is no folder, and {error}") from error


def _missed(machine: Machine, kernels: list[dict[str, Any]]) -> list[str]:
    """Special units that were needed and are not there."""
    used = {name for kernel in kernels for name in kernel.get("pipe_busy_cycles", ())}
    return [f"specialized_unit_{name[8:]}" for name in PIPES if name in machine.absent and name in used]
