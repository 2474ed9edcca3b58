"""`cascade-trace -- COMMAND`: run a vLLM command with its workers recording; `--resume` sends what an outage left."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascade_profiler import nsys, nvbit
from cascade_profiler.arming import TOKEN_VARIABLE, VARIABLE
from cascade_profiler.collect import found_collectors
from cascade_profiler.destinations import BadDestination, DestinationAway, DestinationRefused, destination_of
from cascade_profiler.hostprofile import read_profile
from cascade_profiler.orders import Orders
from cascade_profiler.session import nearest_server, new_orders
from cascade_profiler.shipment import Job, Shipment, store_of

_USAGE = "cascade-trace [options] -- COMMAND …"
_SHIP_TIMEOUT_S = 120.0  # once the job has ended


class Mistake(Exception):
    """What the caller asked cannot be done; one sentence with the way out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of the command that was traced; 2 for a mistake in the call."""
    whole = list(sys.argv[1:] if arguments is None else arguments)
    own, command = (whole[: whole.index("--")], whole[whole.index("--") + 1 :]) if "--" in whole else (whole, [])
    options = _parser().parse_args(own)
    try:
        if options.check:
            return _check(options)
        if options.resume:
            return _resume(options)
        if not command:
            raise Mistake(f"no command was given; write: {_USAGE}")
        if options.collector == "nsys":
            return _under_nsys(options, command)
        if options.collector == "nvbit":
            return _under_nvbit(options, command)
        return _traced(options, command)
    except (Mistake, ValueError, BadDestination, OSError, nsys.NsysUnusable, nvbit.TracerUnusable) as error:
        print(f"cascade-trace: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cascade-trace", usage=_USAGE, description=__doc__)
    parser.add_argument("--to", default="", help="kafka://…, http(s)://…, file:///folder/name; default: this machine's"
                        " Cascade server, else a file here")  # fmt: skip
    parser.add_argument("--model", default="", help="a known name or a config.json; default: what the engine loads")
    parser.add_argument("--name", default="", help="of the trace")
    parser.add_argument("--source-gpu", default="", help="a GPU id; default: what the driver says")
    parser.add_argument(
        "--routing", default="", metavar="even|zipf:S", help="how tokens are spread over experts (even)"
    )
    parser.add_argument("--token", default="", help=f"of the Cascade server; default: {TOKEN_VARIABLE}")
    parser.add_argument("--steps", action="store_true", help="engine steps and host times alone, no profiler")
    parser.add_argument("--sample", action="store_true", help="profile a few steps of each kind, then stop")
    parser.add_argument("--baseline", action="store_true", help="run the command twice: first without a profiler")
    parser.add_argument("--host-profile", default="", help="a file that cascade_profiler.baseline saved")
    parser.add_argument("--collector", default="", help="torch, cupti, nsys, nvbit; default: the first that works")
    parser.add_argument("--tracer", default="", help="nvbit: tracer_tool.so")
    parser.add_argument("--output", default="", help="nsys, nvbit: where their files go")
    parser.add_argument("--kernel", action="append", default=[], help="nvbit: a kernel's name, or a part of it")
    parser.add_argument(
        "--disk-gib", type=float, default=20.0, help="nvbit: of files not sent yet; beyond it the job is stopped"
    )
    parser.add_argument("--check", action="store_true", help="say which profilers work here")
    parser.add_argument("--resume", default="", help="a spool file: send what it holds with --to")
    return parser


# --- in the workers ------------------------------------------------------------------------------------------------


def _traced(options: argparse.Namespace, command: Sequence[str]) -> int:
    if options.baseline and options.host_profile:
        raise Mistake("--baseline measures a host profile and --host-profile brings one; give one of them")
    profile: Mapping[str, Any] | None = read_profile(Path(options.host_profile)) if options.host_profile else None
    orders = new_orders(
        destination=options.to, model=options.model, name=options.name or _name(command),
        mode="steps" if options.steps else "kernels", collector=options.collector, source_gpu=options.source_gpu,
        routing=options.routing, token=options.token, is_sampling=options.sample, host_profile=profile,
    )  # fmt: skip
    if options.baseline:
        orders = replace(orders, host_profile=_measured(orders, command))
    print(f"cascade-trace: trace {orders.trace_id} goes to {orders.destination}", file=sys.stderr)
    status = _run(command, orders)
    if orders.destination.startswith("file:"):
        files = f"{orders.destination.removeprefix('file://')}.rank*.cascade-trace"
        print(f"cascade-trace: import it with: cascade import {files}", file=sys.stderr)
    return status


def _measured(orders: Orders, command: Sequence[str]) -> Mapping[str, Any] | None:
    """The host profile of the command in a process of its own, without a profiler."""
    print("cascade-trace: first without a profiler, for host times", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="cascade-baseline-") as folder:
        status = _run(command, replace(orders, mode="steps", destination=f"file://{folder}/baseline", token=""))
        if status:
            raise Mistake(f"the command failed with exit code {status} before it was traced")
        profile = _profile_in(Path(folder) / "baseline.rank0.cascade-trace")
    if profile is None:
        print("cascade-trace: no step was seen without the profiler; host times stay unknown", file=sys.stderr)
    return profile


def _profile_in(path: Path) -> Mapping[str, Any] | None:
    from cascade_schemas.codec import decode  # noqa: PLC0415 - only for a baseline
    from cascade_schemas.events import HostProfileRecorded  # noqa: PLC0415
    from cascade_schemas.recording import read_stream  # noqa: PLC0415

    if not path.exists():
        return None
    for record in read_stream(path):
        event = decode(record.headers, record.value)
        if isinstance(event, HostProfileRecorded):
            return event.model_dump(mode="json", exclude={"type", "trace_id"})
    return None


def _run(command: Sequence[str], orders: Orders) -> int:
    environ = {**os.environ, VARIABLE: replace(orders, token="").to_json()}
    if orders.token:
        environ[TOKEN_VARIABLE] = orders.token
    return _status(command, environ)


def _status(command: Sequence[str], environ: Mapping[str, str]) -> int:
    try:
        process = subprocess.Popen(list(command), env=dict(environ))  # noqa: S603 - the user's own command
    except FileNotFoundError as error:
        raise Mistake(f"{command[0]!r} is no program here; write: {_USAGE}") from error
    while True:
        try:
            return _as_shells_say(process.wait())
        except KeyboardInterrupt:
            continue  # it was told too; its workers send what they have


def _as_shells_say(status: int) -> int:
    """Killed by signal 9: 137."""
    return status if status >= 0 else 128 - status


def _name(command: Sequence[str]) -> str:
    """The command as far as it says what it is: `vllm bench latency`. Never its arguments."""
    words = [Path(command[0]).name]
    for word in command[1:3]:
        if not word.isidentifier():
            break
        words.append(word)
    return " ".join(words)


# --- around the command --------------------------------------------------------------------------------------------


def _under_nsys(options: argparse.Namespace, command: Sequence[str]) -> int:
    program = nsys.find_nsys()
    print("cascade-trace: nsys: not validated on hardware", file=sys.stderr)
    folder = Path(options.output or tempfile.mkdtemp(prefix="cascade-nsys-"))
    folder.mkdir(parents=True, exist_ok=True)
    report, sqlite = folder / "job.nsys-rep", folder / "job.sqlite"
    environ = nsys.job_environ(os.environ)
    status = _status(nsys.profile_command(program, report.with_suffix(""), command), environ)
    if not report.exists():
        raise Mistake(f"nsys left no report (exit code {status}); its own output says why")
    if _status(nsys.export_command(program, report, sqlite), environ) or not sqlite.exists():
        raise Mistake(f"nsys could not export {report}; export it with: nsys export --type sqlite {report}")
    nsys.strip_private(sqlite)
    print(f"cascade-trace: import it with: cascade import {sqlite}", file=sys.stderr)
    return status


def _under_nvbit(options: argparse.Namespace, command: Sequence[str]) -> int:
    if not options.tracer:
        raise Mistake("--collector nvbit needs --tracer /path/to/tracer_tool.so")
    name = options.name or _name(command)
    shipped_to, token = (options.to, options.token) if options.to else nearest_server()
    store = store_of(shipped_to, token or os.environ.get(TOKEN_VARIABLE, "")) if shipped_to else None
    print("cascade-trace: nvbit: not validated on hardware", file=sys.stderr)
    folder = Path(options.output or tempfile.mkdtemp(prefix="cascade-nvbit-"))
    folder.mkdir(parents=True, exist_ok=True)
    environ = nvbit.job_environ(os.environ, Path(options.tracer), folder, options.kernel)
    if not options.kernel:
        environ[VARIABLE] = Orders("sass", name, "memory://", time.time_ns(), mode="sass").to_json()
    watched = nvbit.Finished(folder)
    shipment = Shipment(folder, store, int(options.disk_gib * 2**30))
    process = subprocess.Popen(command, env=environ)  # noqa: S603 - the user's own command
    while (status := _ended(process)) is None:
        _ship(watched.look(), shipment)
        if shipment.is_full:
            process.terminate()
            process.wait()
            said = shipment.finish(Job(name, options.model, options.source_gpu), 0.0)
            raise Mistake(
                f"the traces are larger than {options.disk_gib} GiB; trace fewer kernels with --kernel NAME, or give"
                f" more with --disk-gib; {said}"
            )
    _ship(watched.look(is_over=status == 0), shipment)
    for path in watched.unfinished():
        print(f"cascade-trace: {path.name} was being written when the job ended; it is left out", file=sys.stderr)
    if not shipment.names:
        raise Mistake(f"the tracer left no finished file (exit code {status}); its own output says why")
    said = shipment.finish(Job(name, options.model, options.source_gpu), _SHIP_TIMEOUT_S)
    if shipment.repeated_count:
        print(f"cascade-trace: {shipment.repeated_count} launches repeated others and were left out", file=sys.stderr)
    print(f"cascade-trace: {said}", file=sys.stderr)
    return status


def _ship(finished: Iterable[Path], shipment: Shipment) -> None:
    for path in finished:
        name, size_mib = path.name, path.stat().st_size / 2**20
        if shipment.take(path):
            print(f"cascade-trace: {name} is finished, {size_mib:.1f} MiB", file=sys.stderr)
    shipment.pump()


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return _as_shells_say(process.wait(1.0))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        return None  # interrupted: the job was told too, and what it has closed is still sent


# --- the rest ------------------------------------------------------------------------------------------------------


def _check(options: argparse.Namespace) -> int:
    """What works here: the first that is "used" records by default, one that is "found" only where it is asked for."""
    outside: dict[str, Callable[[], str]] = {
        "nsys": lambda: _version(nsys.version_command(nsys.find_nsys())),
        "nvbit": lambda: nvbit.checked(Path(options.tracer)),
    }
    works = False
    if options.collector not in outside:
        chosen, found = found_collectors(options.collector)
        works = chosen is not None
        for one in found:
            print(f"{one.name:8}{one.state:9}{one.said}")
    for name, look in outside.items():
        if options.collector not in ("", name):
            continue
        try:
            print(f"{name:8}{'found':9}{look()}; not validated on hardware")
            works = works or options.collector == name
        except (nsys.NsysUnusable, nvbit.TracerUnusable) as reason:
            print(f"{name:8}{'absent':9}{reason}")
    return 0 if works else 1


def _version(command: Sequence[str]) -> str:
    """What a program says it is. Raises NsysUnusable where it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - found by us
    except (OSError, subprocess.TimeoutExpired) as error:
        raise nsys.NsysUnusable(f"{command[0]} does not run ({error}); install it anew") from error
    if done.returncode:
        raise nsys.NsysUnusable(f"{' '.join(command)} ends with exit code {done.returncode}; install it anew")
    return done.stdout.strip().partition("\n")[0] or command[0]


def _resume(options: argparse.Namespace) -> int:
    """Send a spool in order; it is deleted when all of it has arrived."""
    from cascade_schemas.recording import MalformedRecording, read_batches  # noqa: PLC0415 - only here

    path = Path(options.resume)
    if not options.to:
        raise Mistake("--resume needs --to: where the records are to go")
    try:
        batches = read_batches(path)
        first = next(batches, None)
        if first is None:
            raise Mistake(f"{path.name} holds no record")
        rank = int(json.loads(first[0].value)["rank"]) if first[0].value.startswith(b"{") else _rank(first[0].value)
        token = options.token or os.environ.get(TOKEN_VARIABLE, "")
        destination = destination_of(options.to, trace_id=first[0].key, rank=rank, token=token)
        count = 0
        for records in (first, *batches):
            destination.send(records)
            count += len(records)
        destination.close()
    except (MalformedRecording, DestinationAway, DestinationRefused) as error:
        raise Mistake(f"{error}; the records stay in {path}") from error
    path.unlink()
    print(f"cascade-trace: {count} records sent", file=sys.stderr)
    return 0


def _rank(value: bytes) -> int:
    """Of a columnar record, from the event in its schema."""
    import pyarrow as pa  # noqa: PLC0415 - only here

    with pa.ipc.open_stream(value) as reader:
        return int(json.loads(reader.schema.metadata[b"event"])["rank"])
