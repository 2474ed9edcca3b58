"""The `cascade` command. Every command has --json, one clear sentence on bad input, and a non-zero exit with it."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from cascade_schemas.events import Refine
from cascade_schemas.gpu import UnknownGpu, known_gpus, load_gpu
from cascade_schemas.model import ModelSpec, UnknownModel, UnsupportedModel, load_model
from cascade_schemas.routing import EVEN
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.status import Status

from services.ingest.growing import Growth, follow
from services.ingest.requests import BaselineError, prompts_from_baseline
from services.ingest.synthesis import Workload
from services.kernels.sass_traces.kernelslist import BadTrace, read_kernelslist
from services.runtime.embedded import Embedded, HomeInUse, wall_clock_ms
from services.runtime.engine import Engine, ImportOptions, Refused, Report
from services.runtime.local import LocalEngine
from services.runtime.remote import RemoteEngine, ServerFile, left_token, read_server_file
from services.runtime.settings import BadSetting, Settings
from services.simworker.calibration.measured import FOLDER, NoGpu, NothingLearned, constants_of
from services.simworker.calibration.validate import InvalidPairs, validate
from services.simworker.simulators.base import KernelSimulator
from services.simworker.simulators.catalog import simulators
from services.start import SASS_HELP, add_sass_arguments, sass
from services.tables import (
    gpu_table,
    measured_text,
    run_table,
    simulators_table,
    sql_table,
    trace_summary,
    validation_table,
    what_if_text,
)

SAMPLES = {
    "opt-125m": ("k22_vllm0.32_cpu_opt-125m_steps", "facebook/opt-125m"),
    "llama-3.2-1b": ("k23_vllm0.32_cpu_llama-3.2-1b_steps", "meta-llama/Llama-3.2-1B"),
}
"""Bundled recordings by the name after `sample:`, with the architecture they were recorded with."""

DEFAULT_GPUS = ("a100_sxm_80gb", "l4", "l40s", "rtx_4090", "h100_sxm", "h200_sxm", "b200_sxm", "mi300x")


class BadInput(Exception):
    """Something the user said cannot be done; the message is the sentence to show."""


_MENDABLE = (
    BadInput,
    BadSetting,
    BaselineError,
    HomeInUse,
    InvalidPairs,
    NoGpu,
    NothingLearned,
    Refused,
    UnknownGpu,
    UnknownModel,
    UnsupportedModel,
)

_screen = Console(stderr=True)
_out = Console(width=None if sys.stdout.isatty() else 160)


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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; say nothing more
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
    sub.add_argument("--follow", action="store_true", help="wait for files that are still being written")
    _add_trace_options(sub)

    sub = command("run", _run, "Predict how a trace would run on other GPUs.")
    sub.add_argument("trace", metavar="TRACE", help="a trace id, a file to import first, or sample:opt-125m")
    sub.add_argument("--gpu", action="append", default=[], metavar="ID[:KEY=VALUE,…]", help="repeat for several")
    sub.add_argument("--simulator", default="analytic")
    sub.add_argument(
        "--refine-with",
        metavar="SIMULATOR",
        help="then simulate the kernels that make most of the uncertainty again, with sass or accelsim",
    )
    sub.add_argument(
        "--refine-share", type=float, default=0.9, metavar="SHARE", help="of the variance that can be refined (0.9)"
    )
    sub.add_argument("--refine-limit", type=int, default=16, metavar="N", help="kernels per GPU at most (16)")
    _add_trace_options(sub)

    sub = command("synth", _synth, "Make a trace from a model's architecture, marked synthesized; with --gpu, run it.")
    sub.add_argument("--model", required=True, metavar="FILE.json|NAME")
    sub.add_argument("--gpu", action="append", default=[], metavar="ID[:KEY=VALUE,…]", help="repeat for several")
    sub.add_argument("--prompts", default="512", metavar="N,N,…", help="prompt tokens per request")
    sub.add_argument("--output-tokens", type=int, default=8, metavar="N")
    sub.add_argument("--batched-tokens", type=int, default=8192, metavar="N", help="the engine's token budget per step")
    sub.add_argument("--tp", type=int, default=1, metavar="N", help="tensor parallel size")
    sub.add_argument("--simulator", default="analytic")
    sub.add_argument("--name", metavar="N", help="how to call the trace")
    _add_routing(sub)

    sub = command("what-if", _what_if, "A trace's times on one config at once, without keeping a run.")
    sub.add_argument("trace", metavar="TRACE")
    sub.add_argument("--gpu", required=True, metavar="ID[:KEY=VALUE,…]")

    sub = command("simulators", _simulators_of, "What each simulator of a refined run says of the same kernels.")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--gpu", metavar="LABEL", help="only this GPU of the run")

    sub = command("cancel", _cancel, "Withdraw a run that has not ended.")
    sub.add_argument("run", metavar="RUN")

    sub = command("replay", _replay, "Print a run's events in order, or verify its answer against them.")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("--verify", action="store_true", help="fold the events anew and compare state hashes")

    sub = command("validate", _validate, "Score predictions on measured pairs of GPUs, beside two baselines.")
    sub.add_argument("pairs", type=Path, metavar="PAIRS.parquet")

    sub = command(
        "calibrate", _calibrate, "Fit constants: all of them to latency tables, or one GPU's to a sweep of it."
    )
    source = sub.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="FOLDER", help="refit all; holds silicon/calibration/*.parquet")
    source.add_argument("--measure", action="store_true", help="time kernels on this machine's GPU for under a minute")
    sub.add_argument("--gpu", metavar="ID", help="with --measure: which known GPU this is, where its name does not say")
    sub.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where constants are written; default: the program's own, or with --measure those of this installation",
    )

    sub = command(
        "sql", _sql, "Ask the tables: one SELECT over traces, runs, configs, steps, kernels, families, simulations."
    )
    sub.add_argument("statement", metavar="SELECT")
    sub.add_argument("--limit", type=int, default=1000, metavar="ROWS")

    sub = command("export", _export, "Write a run as a file that another viewer opens.")
    sub.add_argument("run", metavar="RUN")
    sub.add_argument("file", type=Path, metavar="FILE")
    sub.add_argument("--to", choices=("perfetto",), default="perfetto")

    add_sass_arguments(command("sass", sass, SASS_HELP))

    sub = command("serve", _serve, "Serve the page, REST and WebSocket until interrupted; other commands then use it.")
    sub.add_argument("--host", default="127.0.0.1", help="who may connect: 127.0.0.1 is this machine alone")
    sub.add_argument("--port", type=int, default=8321, help="a busy one is passed over for the next free one")
    sub.add_argument("--kafka", metavar="HOST:PORT", help="serve a cluster: its broker; CASCADE_HOME is the cluster's")

    sub = command("gpus", _gpus, "List the known GPUs, or one with its numbers.")
    sub.add_argument("name", nargs="?", metavar="NAME")
    return parser


def _add_trace_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--model", metavar="FILE.json|NAME", help="the served model: a config.json or a known name")
    sub.add_argument("--source-gpu", metavar="ID", help="the GPU it was recorded on, where the file does not say")
    sub.add_argument("--name", metavar="N", help="how to call the trace")
    sub.add_argument("--prompts", metavar="N,N,…", help="prompt tokens per request, or a baseline.json")
    _add_routing(sub)


def _add_routing(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--routing", default=EVEN, metavar="even|zipf:S", help="how tokens are spread over experts (even)")


class _Opened:
    """`with _Opened(settings) as engine`: the process that serves this home, else this one."""

    def __init__(self, settings: Settings) -> None:
        server = read_server_file(settings.home)
        self._engine: Engine = RemoteEngine(server) if server else LocalEngine(open_embedded(settings))

    def __enter__(self) -> Engine:
        return self._engine

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._engine.close()


def open_embedded(settings: Settings) -> Embedded:
    return Embedded(settings, _simulators(settings), now_ms=wall_clock_ms)


def _simulators(settings: Settings) -> dict[str, KernelSimulator]:
    return simulators(
        settings.thread_count,
        settings.home,
        settings.artifacts_uri,
        accelsim=settings.accelsim_runs,
        now_s=time.monotonic,
    )


# --- import -----------------------------------------------------------------------------------------------------


def _import(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.follow:
        _follow([Path(name) for name in arguments.files if not name.startswith("sample:")])
    paths, options = _sources(arguments.files, arguments)
    with _Opened(settings) as engine:
        report = _imported(engine, paths, options)
    _print(arguments, report, trace_summary)
    return 0


def _follow(paths: Sequence[Path]) -> None:
    for path in paths:
        with _screen.status(f"following {path.name}") as status:

            def seen(growth: Growth, name: str = path.name, status: Status = status) -> None:
                status.update(f"following {name}: {growth.size_bytes / 1e6:.1f} MB")

            try:
                growth = follow(path, time.monotonic, time.sleep, seen)
            except FileNotFoundError as error:
                raise BadInput(str(error)) from error
        if not growth.is_whole:
            print(f"cascade: {path.name} has stopped growing; importing what there is", file=sys.stderr)


def _imported(engine: Engine, paths: Sequence[Path], options: ImportOptions) -> Report:
    with _screen.status(f"importing {', '.join(path.name for path in paths)}"):
        return engine.import_files(paths, options)


def _sources(names: Sequence[str], arguments: argparse.Namespace) -> tuple[list[Path], ImportOptions]:
    model: ModelSpec | None = load_model(arguments.model) if arguments.model else None
    prompts = _prompts(arguments.prompts)
    paths: list[Path] = []
    for name in names:
        if not name.startswith("sample:"):
            path = Path(name)
            if path.is_dir():
                paths.extend(_folder(path))
                continue
            if not path.is_file():
                raise BadInput(f"{name}: no such file")
            paths.append(path)
            continue
        path, options = sample(name.removeprefix("sample:"))
        paths.append(path)
        model = model or options.model
        prompts = prompts or options.prompts
    # A folder's own name says more than its list's, which is always the same.
    folder = next((Path(name).resolve().name for name in names if Path(name).is_dir()), "")
    return paths, ImportOptions(arguments.name or folder, model, arguments.source_gpu, prompts, arguments.routing)


def _folder(folder: Path) -> list[Path]:
    """A folder of SASS traces: its list and what is listed."""
    try:
        listed = read_kernelslist(folder)
    except BadTrace as error:
        raise BadInput(f"{error}; a folder to import is one that the Accel-Sim tracer wrote") from error
    return [listed.path, *dict.fromkeys(listed.files)]


def sample(name: str) -> tuple[Path, ImportOptions]:
    """A bundled recording and how it is imported."""
    if name not in SAMPLES:
        raise BadInput(f"sample:{name}: the bundled samples are {', '.join(f'sample:{known}' for known in SAMPLES)}")
    stem, architecture = SAMPLES[name]
    folder = Path(str(files("services") / "samples"))
    prompts = prompts_from_baseline(folder / f"{stem}.baseline.json")[0]
    return folder / f"{stem}.pt.trace.json.gz", ImportOptions(model=load_model(architecture), prompts=prompts)


def _prompts(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    if Path(text).is_file():
        return prompts_from_baseline(Path(text))[0]
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise BadInput(f"--prompts {text!r}: give token counts such as 512,1200 or a baseline.json")
    return tuple(int(part) for part in parts)


# --- run --------------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    gpus = arguments.gpu or list(DEFAULT_GPUS)
    is_file = arguments.trace.startswith("sample:") or Path(arguments.trace).is_file()
    if not is_file and arguments.routing != EVEN:
        raise BadInput(f"--routing {arguments.routing}: it is how a file is read; give the file, not an imported trace")
    source = _sources([arguments.trace], arguments) if is_file else None
    with _Opened(settings) as engine:
        trace_id = _imported(engine, *source)["trace_id"] if source else arguments.trace
        return _run_and_print(engine, trace_id, gpus, arguments, _refine(arguments))


def _refine(arguments: argparse.Namespace) -> Refine | None:
    if not arguments.refine_with:
        return None
    if not 0 < arguments.refine_share <= 1:
        raise BadInput(f"--refine-share {arguments.refine_share:g}: give a share above 0 and at most 1, such as 0.9")
    if not 1 <= arguments.refine_limit <= 1024:
        raise BadInput(f"--refine-limit {arguments.refine_limit}: give 1 to 1024 kernels per GPU")
    share_ppm = max(1, round(arguments.refine_share * 1e6))
    return Refine(simulator=arguments.refine_with, share_ppm=share_ppm, task_limit=arguments.refine_limit)


class _LiveProgress:
    """Live bars while a run works: per config how many of its tasks are simulated."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, console=_screen)
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, configs: Sequence[Report]) -> None:
        for config in configs:
            if config["config_id"] not in self._bars:
                self._bars[config["config_id"]] = self._progress.add_task(config["label"], total=None)
            bar = self._bars[config["config_id"]]
            done = config["simulated"] + config["refined"]
            self._progress.update(bar, completed=done, total=config["total"] + config["refining"])


def _synth(arguments: argparse.Namespace, settings: Settings) -> int:
    model = load_model(arguments.model)
    try:
        workload = Workload(
            model=model,
            prompt_tokens=_prompts(arguments.prompts),
            output_tokens=arguments.output_tokens,
            batched_tokens_limit=arguments.batched_tokens,
            tensor_parallel=arguments.tp,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadInput(f"{first['loc'][0]}={first['input']}: {first['msg']}") from error
    name = arguments.name or f"synthesized {model.name}"
    with tempfile.TemporaryDirectory() as folder, _Opened(settings) as engine:
        path = Path(folder) / "workload.json"
        path.write_text(workload.model_dump_json())
        trace = _imported(engine, [path], ImportOptions(name, model, routing=arguments.routing))
        if not arguments.gpu:
            _print(arguments, trace, trace_summary)
            return 0
        return _run_and_print(engine, trace["trace_id"], arguments.gpu, arguments)


def _run_and_print(
    engine: Engine,
    trace_id: str,
    gpus: Sequence[str],
    arguments: argparse.Namespace,
    refine: Refine | None = None,
) -> int:
    run_id = engine.start_run(trace_id, gpus, arguments.simulator, refine=refine)
    with _LiveProgress() as progress:
        report = engine.wait_run(run_id, progress.show)
    _print(arguments, report, run_table)
    return 1 if report["status"] == "failed" else 0


def _simulators_of(arguments: argparse.Namespace, settings: Settings) -> int:
    with _Opened(settings) as engine:
        report = engine.run_report(arguments.run)  # refuses what is no run
        labels = [config["gpu"] for config in (*report["configs"], report["source"]) if config]
        if arguments.gpu and arguments.gpu not in labels:
            raise BadInput(f"--gpu {arguments.gpu}: run {arguments.run} has {', '.join(labels)}")
        rows = engine.sql(_SIMULATORS_SQL.format(run_id=report["run_id"]), 100_000).rows
    kernels: dict[tuple[str, str], Report] = {}
    for row in rows:
        if arguments.gpu in (None, row["gpu"]):
            key = (row["gpu"], row["task_id"])
            kernel = kernels.setdefault(key, {name: row.pop(name) for name in _KERNEL_NAMES} | {"simulations": []})
            said = {name: value for name, value in row.items() if name not in _KERNEL_NAMES}
            said["statistics"] = json.loads(said["statistics"]) if said["statistics"] else None
            kernel["simulations"].append(said)
    compared = [kernel for kernel in kernels.values() if len(kernel["simulations"]) > 1]
    if not compared:
        raise BadInput(
            f"run {arguments.run}: no kernel of it was simulated by two simulators;"
            " `cascade run TRACE --gpu ID --refine-with sass` makes a run where some are"
        )
    _print(arguments, compared, simulators_table)
    return 0


_KERNEL_NAMES = ("gpu", "task_id", "name", "measured_ns", "value_ns", "refinement")

_SIMULATORS_SQL = """
    select k.label as gpu, s.task_id, k.name, k.measured_ns, k.duration_ns as value_ns, k.refinement,
        s.simulator, s.stands, s.duration_ns, s.p10_ns, s.p90_ns, s.bound, s.tier, s.reason, s.tensor_ns, s.dram_ns,
        s.l2_ns, s.issue_ns, s.launch_ns, s.sm_cycles, s.statistics
    from simulations s join kernels k using (run_id, config_id, task_id)
    where run_id = '{run_id}' order by k.label, k.duration_ns * k.launch_count desc, s.task_id, s.tier"""


def _cancel(arguments: argparse.Namespace, settings: Settings) -> int:
    with _Opened(settings) as engine:
        engine.cancel_run(arguments.run)
        report = engine.wait_run(arguments.run)
    _print(arguments, report, lambda report: f"run {report['run_id']} is {report['status']}")
    return 0


def _what_if(arguments: argparse.Namespace, settings: Settings) -> int:
    with _Opened(settings) as engine:
        report = engine.what_if(arguments.trace, arguments.gpu)
    _print(arguments, report, what_if_text)
    return 0


# --- validate, calibrate ------------------------------------------------------------------------------------------


def _validate(arguments: argparse.Namespace, _: Settings) -> int:
    if not arguments.pairs.is_file():
        raise BadInput(f"{arguments.pairs}: no such file")
    with _screen.status(f"scoring {arguments.pairs.name}"):
        try:
            found = validate(arguments.pairs)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(f"{arguments.pairs}: cannot be read as a Parquet table of pairs: {reason}") from error
    rows = [row | {"refused": row["n"] if row["rows"] == "refused" else 0} for row in found]
    _print(arguments, rows, validation_table)
    return 0


def _calibrate(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.measure:
        return _calibrate_by_measuring(arguments, settings)
    if arguments.gpu:
        raise BadInput("--gpu goes with --measure: tables name their GPUs themselves")
    if not (arguments.data / "silicon" / "calibration").is_dir():
        raise BadInput(f"{arguments.data}: has no silicon/calibration folder with latency tables")
    try:
        from services.simworker.calibration import fit  # noqa: PLC0415 - needs scipy, which running Cascade does not
    except ImportError as error:
        raise BadInput(f"calibrating needs {error.name}: .venv/bin/pip install {error.name}") from error
    out = ["--out", str(arguments.out)] if arguments.out else []
    return fit.main(["--data", str(arguments.data), *out])


def _calibrate_by_measuring(arguments: argparse.Namespace, settings: Settings) -> int:
    try:
        from services.simworker.calibration.measure import measure_here  # noqa: PLC0415 - as fit
        from services.simworker.calibration.sweep import TorchClock  # noqa: PLC0415
    except ImportError as error:
        raise BadInput(f"calibrating needs {error.name}: .venv/bin/pip install {error.name}") from error
    folder = arguments.out or settings.home / FOLDER
    today = datetime.now(tz=UTC).date().isoformat()
    report = measure_here(
        TorchClock.open(), arguments.gpu, constants_of(settings.home), folder, today,
        lambda line: print(f"cascade: {line}", file=sys.stderr),
    )  # fmt: skip
    _print(arguments, report, measured_text)
    return 0


# --- replay, sql, export, gpus ------------------------------------------------------------------------------------


def _replay(arguments: argparse.Namespace, settings: Settings) -> int:
    with _Opened(settings) as engine:
        if not arguments.verify:
            for line in engine.events(arguments.run):
                print(json.dumps(line) if arguments.json else "  ".join(str(value) for value in line.values()))
            return 0
        answer = engine.verify_run(arguments.run)
    _print(arguments, answer, _verdict)
    return 0 if answer["equal"] else 1


def _verdict(answer: Report) -> str:
    if answer["equal"]:
        return f"run {answer['run_id']}: the log, the store and a fresh replay agree on {answer['logged']}"
    return (
        f"run {answer['run_id']} DIFFERS: logged {answer['logged'] or 'nothing'}, stored {answer['stored']},"
        f" replayed {answer['replayed']}"
    )


def _sql(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.limit < 1:
        raise BadInput(f"--limit {arguments.limit}: give at least 1")
    with _Opened(settings) as engine:
        result = engine.sql(arguments.statement, arguments.limit)
    _print(arguments, result.rows, lambda rows: sql_table(result.names, rows))
    if result.is_truncated:
        print(f"cascade: only the first {arguments.limit} rows are shown; --limit N shows more", file=sys.stderr)
    return 0


def _export(arguments: argparse.Namespace, settings: Settings) -> int:
    if not arguments.file.absolute().parent.is_dir():
        raise BadInput(f"{arguments.file}: its folder does not exist")
    with _Opened(settings) as engine:
        count = engine.export_perfetto(arguments.run, arguments.file)
    report = {"run_id": arguments.run, "file": str(arguments.file), "events": count}
    _print(arguments, report, lambda _: f"{count} events in {arguments.file}; open it at ui.perfetto.dev")
    return 0


# --- serve --------------------------------------------------------------------------------------------------------


def _serve(arguments: argparse.Namespace, settings: Settings) -> int:
    # Only here: importing the web framework takes longer than most commands.
    from services.gateway import serving  # noqa: PLC0415
    from services.gateway.app import create_app  # noqa: PLC0415
    from services.gateway.routes import Sample  # noqa: PLC0415
    from services.runtime.served import ServedEngine  # noqa: PLC0415

    if not 1 <= arguments.port <= 65_535:
        raise BadInput(f"--port {arguments.port}: give a number from 1 to 65535")
    if (other := read_server_file(settings.home)) is not None:
        raise BadInput(f"process {other.pid} serves {settings.home} already, at {other.url}")
    embedded = _open_replica(settings, arguments.kafka) if arguments.kafka else open_embedded(settings)
    engine = None

    def must_end() -> bool:
        """A copy of a cluster's log is made again by a new process; what one machine has is better shown than gone."""
        return bool(arguments.kafka and embedded.failure)

    try:
        # A server that was killed left its token behind: pages that were open go on with it.
        token = settings.token or left_token(settings.home) or secrets.token_urlsafe(32)
        listener = serving.bind(arguments.host, arguments.port)
        port = listener.getsockname()[1]
        url = f"http://{_shown_host(arguments.host)}:{port}"
        engine = ServedEngine(embedded)
        app = create_app(
            engine,
            token=token,
            host=arguments.host,
            port=port,
            version=version("cascade"),
            upload_bytes_limit=settings.upload_bytes_limit,
            scratch=settings.home,
            web=Path(__file__).resolve().parent.parent / "web" / "dist",
            samples={name: Sample(*sample(name)) for name in SAMPLES},
        )
        server = ServerFile(url, token, os.getpid())

        def ready() -> None:
            server.write(settings.home)
            if arguments.json:
                print(json.dumps({"url": url, "token": token, "pid": server.pid}), flush=True)
                return
            if port != arguments.port:
                print(f"port {arguments.port} is in use; serving on {port}")
            print(f"serving {settings.home} until interrupted\n")
            print(f"{url}/?token={token}\n.venv/bin/cascade import YOUR_TRACE", flush=True)

        serving.serve(app, listener, ready, must_end)
    except serving.CannotBind as error:
        raise BadInput(str(error)) from error
    finally:
        has_failed = must_end()
        (settings.home / "server.json").unlink(missing_ok=True)
        with serving.closing_in_time():
            (engine or embedded).close()
    if has_failed:
        print("cascade: the gateway's copy of the log stands still, so it ends; start it again", file=sys.stderr)
    return 1 if has_failed else 0


def _open_replica(settings: Settings, bootstrap: str) -> Embedded:
    # Only here: Kafka's client is part of a cluster's installation alone.
    try:
        from services.runtime.cluster import ClusterSettings, observed  # noqa: PLC0415
        from services.runtime.replica import ClusterUnreachable, Replica  # noqa: PLC0415
    except ImportError as error:
        raise BadInput(f"--kafka needs {error.name}; install it with: python3 infra/setup.py run cluster") from error
    cluster = ClusterSettings.from_environ({**os.environ, "CASCADE_KAFKA": bootstrap})
    known = _simulators(settings)
    try:
        return Replica(
            settings,
            known,
            wall_clock_ms,
            broker=cluster.broker,
            name=f"gateway-{cluster.instance}",
            observed=observed("gateway", cluster),
        )
    except ClusterUnreachable as error:
        raise BadInput(str(error)) from error


def _shown_host(host: str) -> str:
    """An address a browser on this machine can open."""
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 - shown, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


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
