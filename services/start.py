"""Where the `cascade` program starts. Every command is `cli.py`'s; `sass` is here, for it needs a compiler and hardly
anything else, and the imports of the other commands would take longer than its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from services.runtime.settings import BadSetting, Settings


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


def sass(arguments: argparse.Namespace, settings: Settings) -> int:
    """`cascade sass`; 2 where a kernel has no answer."""
    from services.simworker.simulators.sass.jit import CompilerMissing, use_cache  # noqa: PLC0415

    try:
        # Compiled code goes where the state goes; where a module is compiled is decided when it is imported.
        use_cache(settings.home / "numba")
    except CompilerMissing as error:
        return _refused(error)
    from services.simworker.simulators.sass.command import BadInput, simulate_folder  # noqa: PLC0415

    try:
        report = simulate_folder(arguments.traces, arguments.config, time.process_time, settings.home / "sass")
    except BadInput as error:
        return _refused(error)
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        from rich.console import Console  # noqa: PLC0415

        from services.tables import sass_table  # noqa: PLC0415

        Console(width=None if sys.stdout.isatty() else 110).print(sass_table(report))
    for kernel in report["kernels"]:
        if "error" in kernel:
            print(f"cascade: {kernel['error']}", file=sys.stderr)
    return 2 if any(kernel["cycles"] is None for kernel in report["kernels"]) else 0


def _refused(error: Exception) -> int:
    print(f"cascade: {error}", file=sys.stderr)
    return 2
