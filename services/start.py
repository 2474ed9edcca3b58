"""Where the `cascade` program starts. Every command is `cli.py`'s; `sass` is here, for it needs a compiler and hardly
anything else, and the imports of the other commands would take longer than its answer.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from services.runtime.settings import BadSetting, Settings

if TYPE_CHECKING:  # what is imported here is compiled
    from services.simworker.simulators.sass.simulator import Progress


def main(argv: Sequence[str] | None = None) -> int:
    said = sys.argv[1:] if argv is None else argv
    if list(said[:1]) == ["sass"]:
        parser = argparse.ArgumentParser(prog="cascade sass", description=SASS_HELP)
        add_sass_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        try:
            return sass(parser.parse_args(said[1:]), Settings.from_environ(os.environ))
        except BadSetting as error:
            return _refused(error)
    from services import cli  # noqa: PLC0415

    return cli.main(said)


SASS_HELP = "Simulate a folder of SASS traces instruction by instruction."


def add_sass_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", type=Path, metavar="TRACE_DIR", help="holds kernelslist.g and what it lists")
    parser.add_argument(
        "--config",
        required=True,
        metavar="CONFIG_DIR|GPU",
        help="a folder with gpgpusim.config and trace.config, or a GPU as in `run --gpu`",
    )
    parser.add_argument(
        "--simulator",
        choices=("sass", "accelsim", "both"),
        default="sass",
        help="sass: the built-in one; accelsim: your own installation, found through CASCADE_ACCELSIM; both: compared",
    )
    parser.add_argument(
        "--sample",
        choices=("off", "waves", "sms", "kernels", "auto"),
        default="off",
        help="simulate a part of each kernel and say so beside it: waves of thread blocks until they are steady, 16 of "
        "the SMs, each of several equal kernels twice; auto: waves and kernels (docs/sampling.md has their errors)",
    )
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help="processes of Accel-Sim at once")
    parser.add_argument("--time-limit", type=_positive, default=3600, metavar="S", help="seconds per Accel-Sim kernel")
    parser.add_argument("--memory-limit", type=_positive, default=8192, metavar="MIB", help="per Accel-Sim process")
    parser.add_argument(
        "--log",
        action="store_true",
        help="print Accel-Sim's own lines as they come, and how far a kernel is, to standard error",
    )


def sass(arguments: argparse.Namespace, settings: Settings) -> int:
    """`cascade sass`; 2 where a kernel has no answer."""
    from services.simworker.simulators.sass.jit import CompilerMissing, use_cache  # noqa: PLC0415

    try:
        # Compiled code goes where the state goes; where a module is compiled is decided when it is imported.
        use_cache(settings.home / "numba")
    except CompilerMissing as error:
        return _refused(error)
    from services.simworker.simulators.accelsim.command import side_by_side  # noqa: PLC0415
    from services.simworker.simulators.sass.command import BadInput, simulate_folder  # noqa: PLC0415

    gc.freeze()  # to look through the compiler's modules for garbage takes longer than many a kernel
    try:
        reports = []
        if arguments.simulator != "accelsim":
            kept = settings.home / "sass"
            watch = _shown(sys.stderr) if sys.stderr.isatty() or arguments.log else None
            reports.append(
                simulate_folder(
                    arguments.traces,
                    arguments.config,
                    time.process_time,
                    kept,
                    sample=arguments.sample,
                    watch=watch,
                )
            )
        if arguments.simulator != "sass":
            reports.append(_by_accelsim(arguments, settings))
    except BadInput as error:
        return _refused(error)
    report = side_by_side(*reports) if arguments.simulator == "both" else reports[0]
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        from rich.console import Console  # noqa: PLC0415

        from services.tables import sass_comparison_table, sass_table  # noqa: PLC0415

        table = sass_comparison_table if arguments.simulator == "both" else sass_table
        Console(width=None if sys.stdout.isatty() else 110).print(table(report))
    kernels = [kernel for one in reports for kernel in one["kernels"]]
    for kernel in kernels:
        if "error" in kernel:
            print(f"cascade: {kernel['error']}", file=sys.stderr)
    return 2 if any(kernel["cycles"] is None for kernel in kernels) else 0


def _shown(out: TextIO) -> Callable[[Progress], None]:
    """Writes how far a kernel is, at most once a second; on a terminal over the line before."""
    last_s = time.monotonic()
    end = "\r" if out.isatty() else "\n"

    def show(progress: Progress) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= 1:
            last_s = time.monotonic()
            print(f"{progress.line():<79}", end=end, file=out, flush=True)

    return show


def _by_accelsim(arguments: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    from services.simworker.simulators.accelsim.command import simulate_folder  # noqa: PLC0415
    from services.simworker.simulators.accelsim.process import Limits  # noqa: PLC0415

    def hear(file: str, line: str) -> None:
        # A heartbeat a second, and when a kernel begins: progress without the thousands of other lines.
        if arguments.log or "LIVENESS - uArch: inst" in line or line.startswith(("launching kernel", "gpu_sim_cycle")):
            print(f"{file}: {line}", file=sys.stderr)

    return simulate_folder(
        arguments.traces,
        Path(arguments.config),
        settings.accelsim,
        settings.home,
        environ=os.environ,
        now_s=time.monotonic,
        limits=Limits(arguments.time_limit, arguments.memory_limit << 20),
        process_count=arguments.jobs,
        on_line=hear,
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from 1 to 1000000")
    return int(text)


def _refused(error: Exception) -> int:
    print(f"cascade: {error}", file=sys.stderr)
    return 2
