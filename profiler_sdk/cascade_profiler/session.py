"""Tracing an offline `LLM`: what the user's own process does. The recording itself happens in the workers."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade_profiler import vllm
from cascade_profiler.arming import TOKEN_VARIABLE
from cascade_profiler.destinations import BadDestination, destination_of
from cascade_profiler.hostprofile import read_profile, with_front_end
from cascade_profiler.orders import Goal, Orders
from cascade_profiler.saying import forget, say

_GOAL = Goal()
_UNARMED = (
    "this LLM was built before it could be traced: put `import cascade_profiler` above the line that builds it, or use"
    " cascade_profiler.LLM; nothing is recorded, the job goes on"
)


@dataclass(slots=True)
class Trace:
    """One trace. `reports`: what each rank recorded, once it has ended."""

    trace_id: str
    destination: str
    is_recording: bool = False
    reports: list[dict[str, Any]] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)  # of a memory:// destination, all ranks


@dataclass(slots=True)
class Baseline:
    """Times of a run without a profiler."""

    profile: dict[str, Any] = field(default_factory=dict)
    _outputs: list[Any] = field(default_factory=list)

    def take(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """Use the front end's own times of these requests; gives them back."""
        self._outputs.extend(outputs)
        return outputs

    def save(self, path: str | Path) -> None:
        """Write the profile, to be given to a trace in another process."""
        whole = Path(path)
        partial = whole.with_name(f".{whole.name}.partial")
        partial.write_text(json.dumps(self.profile), encoding="utf-8")
        partial.replace(whole)


@contextmanager
def trace(
    llm: Any,
    *,
    destination: str = "",
    model: str = "",
    name: str = "",
    mode: str = "kernels",
    collector: str = "",
    source_gpu: str = "",
    routing: str = "",
    token: str = "",
    sample: bool | Goal = False,
    host_profile: str | Path | Mapping[str, Any] | None = None,
    spool_folder: str = "",
) -> Iterator[Trace]:
    """Record what the LLM does inside the block. Whatever fails here is said once and leaves the block undisturbed.

    destination: kafka://…, http(s)://… (the gateway), file:///folder/name, memory://; "": the Cascade server of this
    machine, else a file in the current folder. model: a known name or a config.json. mode: "kernels" or "steps".
    routing: how tokens are spread over experts, which no profiler tells: "even" or "zipf:EXPONENT".
    sample: profile a few steps of each kind, until a Goal is reached. host_profile: a Baseline's profile, or the file
    it was saved to.
    """
    forget()
    orders = _orders(
        destination=destination, model=model, name=name, mode=mode, collector=collector, source_gpu=source_gpu,
        routing=routing, token=token, is_sampling=bool(sample), goal=sample if isinstance(sample, Goal) else Goal(),
        host_profile=host_profile, spool_folder=spool_folder,
    )  # fmt: skip
    found = Trace(orders.trace_id if orders else "", orders.destination if orders else "")
    if orders is not None:
        _start(llm, orders, found)
    try:
        yield found
    finally:
        if found.is_recording:
            _stop(llm, found)


@contextmanager
def baseline(llm: Any) -> Iterator[Baseline]:
    """Measure host times of what the LLM does inside the block. Only in a process that no profiler has run in."""
    forget()
    orders = Orders(secrets.token_hex(8), "baseline", "memory://", time.time_ns(), mode="steps")
    found = Trace(orders.trace_id, orders.destination)
    measured = Baseline()
    _start(llm, orders, found)
    try:
        yield measured
    finally:
        if found.is_recording:
            _stop(llm, found)
            measured.profile = _profile_of(found, measured._outputs)  # noqa: SLF001 - its own


def new_orders(
    *,
    destination: str,
    model: str = "",
    name: str = "",
    mode: str = "kernels",
    collector: str = "",
    source_gpu: str = "",
    routing: str = "",
    token: str = "",
    is_sampling: bool = False,
    goal: Goal = _GOAL,
    host_profile: str | Path | Mapping[str, Any] | None = None,
    spool_folder: str = "",
) -> Orders:
    """Orders for a new trace. Raises ValueError with one sentence."""
    if mode not in ("kernels", "steps"):
        raise ValueError(f"mode={mode!r}: it is 'kernels' or 'steps'")
    trace_id = secrets.token_hex(8)
    spec = None
    if model:
        from cascade_schemas.model import load_model  # noqa: PLC0415 - only where a model is named

        spec = load_model(model).model_dump(mode="json")
    if source_gpu:
        from cascade_schemas.gpu import load_gpu  # noqa: PLC0415

        source_gpu = load_gpu(source_gpu).gpu
    if routing:
        from cascade_schemas.routing import as_said, exponent_of  # noqa: PLC0415

        routing = as_said(exponent_of(routing))
    profile: Mapping[str, Any] | None = None
    if host_profile is not None:
        profile = host_profile if isinstance(host_profile, Mapping) else read_profile(Path(host_profile))
    address, found_token = (destination, "") if destination else nearest_destination(name or "trace", trace_id)
    destination_of(address, trace_id=trace_id, rank=0).close()
    return Orders(
        trace_id=trace_id,
        name=name or (spec["name"] if spec else "vllm job"),
        destination=address,
        origin_unix_ns=time.time_ns(),
        mode=mode,
        collector=collector,
        model=spec,
        source_gpu=source_gpu,
        routing=routing,
        token=token or found_token or os.environ.get(TOKEN_VARIABLE, ""),
        is_sampling=is_sampling,
        goal=goal,
        host_profile=profile,
        spool_folder=spool_folder,
    )


def nearest_destination(name: str, trace_id: str) -> tuple[str, str]:
    """(address, token) of the Cascade server that runs on this machine, else a file in the current folder."""
    address, token = nearest_server()
    if address:
        return address, token
    safe = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
    return f"file://{Path.cwd() / f'{safe}-{trace_id[:6]}'}", ""


def nearest_server() -> tuple[str, str]:
    """(address, token) of the Cascade server that runs on this machine; ("", "") where none does."""
    home = Path(os.environ.get("CASCADE_HOME") or Path.home() / ".cascade")
    try:
        server = json.loads((home / "server.json").read_text(encoding="utf-8"))
        os.kill(int(server["pid"]), 0)
        return str(server["url"]), str(server["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", ""


def _orders(**options: Any) -> Orders | None:
    try:
        return new_orders(**options)
    except (ValueError, BadDestination, OSError) as error:
        say(f"{error}; nothing is recorded, the job goes on")
    except Exception as error:  # noqa: BLE001 - never into the job
        say(f"tracing could not begin ({type(error).__name__}: {error}); the job goes on")
    return None


def _start(llm: Any, orders: Orders, found: Trace) -> None:
    try:
        answers = vllm.rpc(llm)(vllm.START, args=(orders.to_json(),))
    except Exception as error:  # noqa: BLE001 - never into the job
        is_missing = vllm.START in str(error) or isinstance(error, AttributeError | NotImplementedError)
        say(_UNARMED if is_missing else f"tracing could not begin ({type(error).__name__}: {error}); the job goes on")
        return
    errors = [answer["error"] for answer in answers if answer.get("error")]
    if len(errors) < len(answers):
        found.is_recording = True
    for sentence in errors:
        say(sentence)


def _stop(llm: Any, found: Trace) -> None:
    found.is_recording = False
    try:
        found.reports = vllm.rpc(llm)(vllm.STOP)
        if found.destination.startswith("memory:"):
            from cascade_schemas.recording import read_stream  # noqa: PLC0415

            found.records = [
                record for packed in vllm.rpc(llm)(vllm.FETCH) if packed for record in read_stream(bytes(packed))
            ]
    except Exception as error:  # noqa: BLE001 - never into the job
        say(f"the trace could not be ended in order ({type(error).__name__}: {error}); it ends as truncated")
        return
    for sentence in dict.fromkeys(one for report in found.reports for one in report.get("said", ())):
        say(sentence)
    if found.destination.startswith("file:"):
        say(f"recorded; import it with: cascade import {found.destination.removeprefix('file://')}.rank*.cascade-trace")


def _profile_of(found: Trace, outputs: Sequence[Any]) -> dict[str, Any]:
    for report in found.reports:
        profile = report.get("host_profile")
        if report.get("rank") == 0 and profile:
            return with_front_end({k: v for k, v in profile.items() if k not in ("type", "trace_id")}, outputs)
    say("no baseline was measured: a profiler has run in this process before; measure it in a fresh one")
    return {}
