"""Figures of the page from a real browser (measure.mjs)."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cascade_schemas.events import KernelTaskTraced, StepTraced, TraceStarted

from tests.bench.scale import make_tasks
from tests.e2e import large
from tests.e2e.processes import ROOT, node_environ
from tests.factories import fake_simulators
from tests.served import TOKEN, served

MEASURE = Path(__file__).with_name("measure.mjs")
EVENTS_PER_S = 1000
Measured = dict[str, Any]


def figures(chromium: str, server: Any, scenario: str, *, timeout_s: float = 300, **options: Any) -> Measured:
    """What a scenario of measure.mjs found at a server."""
    process = start(chromium, server.url, server.token, scenario, **options)
    out, err = process.communicate(timeout=timeout_s)
    return found_in(out, err)


def start(chromium: str, url: str, token: str, scenario: str, **options: Any) -> subprocess.Popen[str]:
    given = {"url": url, "token": token, "chromium": chromium} | options
    command = ["node", str(MEASURE), scenario, json.dumps(given)]
    return subprocess.Popen(command, env=node_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def found_in(out: str, err: str) -> Measured:
    assert out.strip(), err
    answer = json.loads(out.strip().splitlines()[-1])
    assert answer["ok"], f"{answer['error']}\nat {answer['address']}\n{answer['text'][:2000]}"
    assert answer["complaints"] == [], answer["complaints"]
    found = answer["found"]
    assert isinstance(found, dict)
    return found


def latency(chromium: str, *, seconds: float = 10, events_per_s: int = EVENTS_PER_S) -> Measured:
    """From an event's append to its pixel while so many come in each second; another viewer never reads."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with served(home, dict(fake_simulators()), web=ROOT / "web" / "dist") as server:
            embedded = server.engine.embedded
            embedded.publish(
                [
                    TraceStarted(
                        trace_id=large.TRACE,
                        name="steps that come in",
                        provenance="synthesized",
                        tool="x",
                        source_gpu=None,
                    ),
                    large.run_requested("growing", large.GPUS[:2]),
                ]
            )
            stop = threading.Event()
            said = threading.Thread(target=_speak, args=(embedded, stop, events_per_s), daemon=True)
            process = start(chromium, server.file.url, TOKEN, "latency", run="growing", seconds=seconds)
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                if '"ready"' in ready:
                    said.start()
                out, err = process.communicate(timeout=seconds + 120)
                return found_in(ready + out, err)
            finally:
                stop.set()
                if said.is_alive():
                    said.join(10)
                if process.poll() is None:
                    process.kill()


def _speak(embedded: Any, stop: threading.Event, events_per_s: int) -> None:
    """Steps of a trace at an even pace, forty times a second: 1,000 a second are 25 at once."""
    number, began = 0, time.monotonic()
    task = make_tasks()[0]
    embedded.publish(
        [
            KernelTaskTraced(
                trace_id=large.TRACE, task_id=task.task_id, signature_id=task.signature.signature_id, task=task
            )
        ]
    )
    while not stop.is_set():
        due = int((time.monotonic() - began) * events_per_s)
        if due > number:
            embedded.publish([_step(one) for one in range(number, due)])
            number = due
        time.sleep(0.025)


def _step(number: int) -> StepTraced:
    return StepTraced(
        trace_id=large.TRACE,
        rank=0,
        step=number % 500,  # a page that is told a step again has nothing more to keep
        phase="decode",
        start_ns=number * 1000,
        duration_ns=900,
        context_requests=0,
        context_tokens=0,
        generation_requests=1,
        generation_tokens=1,
        kernel_count=1,
    )
