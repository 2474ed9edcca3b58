"""The `cascade` command. Every command has --json, one clear sentence on bad input, and a non-zero exit with it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from cascade_schemas.events import AnyEvent, KernelsSimulated, KernelTaskTraced, RunRequested
from cascade_schemas.gpu import InvalidConfig, UnknownGpu, known_gpus, load_gpu
from cascade_schemas.model import ModelSpec, UnknownModel, UnsupportedModel, load_model
from rich.console import Console

from services.aggregator import queries
from services.aggregator.export import write_perfetto
from services.aggregator.jail import Jail, Limits, SqlRefused
from services.ingest import admission
from services.ingest.requests import prompts_from_baseline
from services.runtime.embedded import Embedded, HomeInUse, wall_clock_ms
from services.runtime.settings import BadSetting, Settings
from services.simworker.simulators.catalog import simulators
from services.tables import gpu_table, run_table, sql_table, trace_summary

SAMPLES = {
    "opt-125m": ("k22_vllm0.32_cpu_opt-125m_steps", "facebook/opt-125m"),
    "llama-3.2-1b": ("k23_vllm0.32_cpu_llama-3.2-1b_steps", "meta-llama/Llama-3.2-1B"),
}
"""Bundled recordings by the name after `sample:`, with the architecture they were recorded with."""

DEFAULT_GPUS = (
    "a100_sxm_80gb",
    "l4",
    "l40s",
    "rtx_4090",
    "h100_sxm",
    "h200_sxm",
    "b200_sxm",
    "mi300x",
)


class BadInput(Exception):
    """Something the user said cannot be done; the message is the sentence to show."""


_MENDABLE = (
    BadInput,
    BadSetting,
    InvalidConfig,
    UnknownGpu,
    UnknownModel,
    UnsupportedModel,
    HomeInUse,
    admission.BadRequest,
    queries.UnknownRun,
    queries.UnknownTrace,
    SqlRefused,
)

_screen = Console(stderr=True)
_out = Console(soft_wrap=False, width=None if sys.stdout.isatty() else 110)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        settings = Settings.from_environ(os.environ)
        command: Callable[[argparse.Namespace, Settings], int] = arguments.command
        return command(arguments, settings)
    except _MENDABLE as error:
        print(f"cascade: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cascade: interrupted; what was acknowledged is kept and goes on at the next start", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cascade", description="Trace once, simulate everywhere.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace, Settings], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=run)
        sub.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        return sub

    sub = command("import", _import, "Import profiler files: ranks of one job, or a trace with its graph capture.")
    sub.add_argument("files", nargs="+", metavar="FILE", help="a profiler's file, or sample:opt-125m")
    _add_trace_options(sub)

    sub = command("run", _run, "Predict how a trace would run on other GPUs.")
    sub.add_argument("trace", metavar="TRACE", help="a trace id, a file to import first, or sample:opt-125m")
    sub.add_argument("--gpu", action="append", default=[], metavar="ID[:KEY=VALUE,…]", help="repeat for several")
    sub.add_argument("--simulator", default="analytic")
    _add_trace_options(sub)

    sub = command("replay", _replay, "Print a run's events in order, or verify its answer against them.")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--verify", action="store_true", help="fold the events anew and compare state hashes")

    sub = command("sql", _sql, "Ask the tables: one SELECT over traces, runs, configs, steps, kernels, families.")
    sub.add_argument("statement", metavar="SELECT")
    sub.add_argument("--limit", type=int, default=1000, metavar="ROWS")

    sub = command("export", _export, "Write a run as a file that another viewer opens.")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("file", type=Path, metavar="FILE")
    sub.add_argument("--to", choices=("perfetto",), default="perfetto")

    sub = command("gpus", _gpus, "List the known GPUs, or one with its numbers.")
    sub.add_argument("name", nargs="?", metavar="NAME")
    return parser


def _add_trace_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--model", metavar="FILE.json|NAME", help="the served model: a config.json or a known name")
    sub.add_argument("--source-gpu", metavar="ID", help="the GPU it was recorded on, where the file does not say")
    sub.add_argument("--name", metavar="N", help="how to call the trace")
    sub.add_argument("--prompts", metavar="N,N,…", help="prompt tokens per request, or a baseline.json")


def open_engine(settings: Settings) -> Embedded:
    return Embedded(settings, simulators(settings.thread_count), now_ms=wall_clock_ms)


# --- import -----------------------------------------------------------------------------------------------------


def _import(arguments: argparse.Namespace, settings: Settings) -> int:
    engine = open_engine(settings)
    try:
        trace_id = _imported(engine, arguments.files, arguments)
        report = queries.trace_report(engine.store, trace_id)
    finally:
        engine.close()
    _print(arguments, report, trace_summary)
    return 0


def _imported(engine: Embedded, names: Sequence[str], arguments: argparse.Namespace) -> str:
    """The trace's id, once it is whole. Raises BadInput where it was rejected."""
    paths, model, prompts = _sources(names, arguments)
    with _screen.status(f"importing {', '.join(path.name for path in paths)}"):
        artifacts = [engine.store_artifact(path) for path in paths]
        upload = admission.upload(
            artifacts,
            name=arguments.name or _trace_name(paths),
            model=model,
            source_gpu=arguments.source_gpu,
            prompts=prompts,
        )
        trace_id = engine.upload(upload)
        engine.pump()
    report = queries.trace_report(engine.store, trace_id)
    if report["status"] == "rejected":
        raise BadInput(report["reason"])
    return trace_id


def _sources(
    names: Sequence[str], arguments: argparse.Namespace
) -> tuple[list[Path], ModelSpec | None, tuple[int, ...]]:
    model = load_model(arguments.model) if arguments.model else None
    prompts = _prompts(arguments.prompts)
    paths: list[Path] = []
    for name in names:
        if not name.startswith("sample:"):
            path = Path(name)
            if not path.is_file():
                raise BadInput(f"{name}: no such file")
            paths.append(path)
            continue
        stem, architecture = _sample(name.removeprefix("sample:"))
        folder = Path(str(files("services") / "samples"))
        paths.append(folder / f"{stem}.pt.trace.json.gz")
        model = model or load_model(architecture)
        prompts = prompts or prompts_from_baseline(folder / f"{stem}.baseline.json")[0]
    return paths, model, prompts


def _sample(name: str) -> tuple[str, str]:
    if name not in SAMPLES:
        raise BadInput(f"sample:{name}: the bundled samples are {', '.join(f'sample:{known}' for known in SAMPLES)}")
    return SAMPLES[name]


def _prompts(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    if Path(text).is_file():
        return prompts_from_baseline(Path(text))[0]
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise BadInput(f"--prompts {text!r}: give token counts such as 512,1200 or a baseline.json")
    return tuple(int(part) for part in parts)


def _trace_name(paths: Sequence[Path]) -> str:
    return paths[0].name.split(".json")[0].removesuffix(".pt.trace")


# --- run --------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    gpus = arguments.gpu or list(DEFAULT_GPUS)
    engine = open_engine(settings)
    try:
        trace_id = _known_trace(engine, arguments)
        run_id = uuid.uuid4().hex[:12]
        with _Progress(engine):
            engine.request_run(run_id, trace_id, gpus, simulator=arguments.simulator)
            engine.pump()
        report = queries.run_report(engine.store, run_id)
    finally:
        engine.close()
    _print(arguments, report, run_table)
    return 1 if report["status"] == "failed" else 0


def _known_trace(engine: Embedded, arguments: argparse.Namespace) -> str:
    text = arguments.trace
    if text.startswith("sample:") or Path(text).is_file():
        return _imported(engine, [text], arguments)
    engine.pump()
    queries.trace_report(engine.store, text)
    return str(text)


class _Progress:
    """Live lines while a run works: per config how many of its tasks are simulated."""

    def __init__(self, engine: Embedded) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415 - slow import

        self._engine = engine
        self._progress = Progress(TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), console=_screen)
        self._bars: dict[str, Any] = {}
        self._task_count = 0

    def __enter__(self) -> None:
        self._engine.listeners.append(self._listen)
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._engine.listeners.remove(self._listen)
        self._progress.stop()

    def _listen(self, events: Sequence[AnyEvent]) -> None:
        for event in events:
            match event:
                case KernelTaskTraced():
                    self._task_count += 1
                case RunRequested():
                    sql = "select count(*) as n from tasks where trace_id = ?"
                    total = self._engine.store.query(sql, [event.trace_id])[0]["n"]
                    for config in event.configs:
                        self._bars[config.config_id] = self._progress.add_task(config.label, total=total or None)
                case KernelsSimulated() if event.config_id in self._bars:
                    self._progress.advance(self._bars[event.config_id], event.rows.num_rows)


# --- replay, gpus -------------------------------------------------------------------------------------------------


def _replay(arguments: argparse.Namespace, settings: Settings) -> int:
    engine = open_engine(settings)
    try:
        engine.pump()
        if not arguments.verify:
            return _print_events(engine, arguments)
        verification = engine.verify_run(arguments.run)
    finally:
        engine.close()
    answer = {
        "run_id": arguments.run,
        "equal": verification.is_equal,
        "logged": verification.logged,
        "stored": verification.stored,
        "replayed": verification.replayed,
    }
    if arguments.json:
        print(json.dumps(answer, indent=1))
    elif verification.is_equal:
        print(f"run {arguments.run}: the log, the store and a fresh replay agree on {verification.logged}")
    else:
        print(
            f"run {arguments.run} DIFFERS: logged {verification.logged}, stored {verification.stored},"
            f" replayed {verification.replayed}"
        )
    return 0 if verification.is_equal else 1


def _print_events(engine: Embedded, arguments: argparse.Namespace) -> int:
    report = queries.run_report(engine.store, arguments.run)
    keys = [arguments.run, str(report["trace"]["trace_id"])]
    for position, stored in enumerate(engine.log.read_keys(keys)):
        line = {
            "position": position,
            "timestamp_ms": stored.timestamp_ms,
            "topic": stored.topic,
            "offset": stored.offset,
            **stored.record.headers,
        }
        print(json.dumps(line) if arguments.json else "  ".join(str(value) for value in line.values()))
    return 0


def _sql(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.limit < 1:
        raise BadInput(f"--limit {arguments.limit}: give at least 1")
    engine = open_engine(settings)
    jail = Jail(engine.store, settings.home)
    try:
        engine.pump()
        result = jail.query(arguments.statement, Limits(rows=arguments.limit))
    finally:
        jail.close()
        engine.close()
    rows = result.table.to_pylist()
    _print(arguments, rows, lambda _: sql_table(result.table.column_names, rows))
    if result.is_truncated:
        print(f"cascade: only the first {arguments.limit} rows are shown; --limit N shows more", file=sys.stderr)
    return 0


def _export(arguments: argparse.Namespace, settings: Settings) -> int:
    if not arguments.file.absolute().parent.is_dir():
        raise BadInput(f"{arguments.file}: its folder does not exist")
    engine = open_engine(settings)
    try:
        engine.pump()
        count = write_perfetto(engine.store, arguments.run, arguments.file)
    finally:
        engine.close()
    report = {"run_id": arguments.run, "file": str(arguments.file), "events": count}
    _print(arguments, report, lambda _: f"{count} events in {arguments.file}; open it at ui.perfetto.dev")
    return 0


def _gpus(arguments: argparse.Namespace, _: Settings) -> int:
    specs = [load_gpu(arguments.name)] if arguments.name else [load_gpu(name) for name in known_gpus()]
    report = [spec.model_dump(mode="json") for spec in specs]
    _print(arguments, report[0] if arguments.name else report, lambda _: gpu_table(specs))
    return 0


def _print(arguments: argparse.Namespace, report: Any, as_text: Callable[[Any], Any]) -> None:
    if arguments.json:
        print(json.dumps(report, indent=1, ensure_ascii=False, default=str))
    else:
        _out.print(as_text(report))
