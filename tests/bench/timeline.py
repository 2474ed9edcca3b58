"""The page in a real Chromium, on a home with a million launches, a million log lines and a thousand runs."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e import large
from tests.e2e.measuring import Measured, figures, latency
from tests.e2e.processes import serving

LAUNCHES = 1_000_000
LOG_LINES = 1_000_000
RUNS = 1_000
SIGNATURES = 1_000


def run() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium here; install it with: sudo apt-get install -y chromium")
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        large.seed(home, launches=LAUNCHES)
        large.seed_runs(home, runs=RUNS)
        large.seed_log(home, run_id="run-0000", lines=LOG_LINES)
        with serving(home) as server:
            wait_until_complete(server, large.RUN)
            say("script of the first view, compressed", figures(chromium, server, "scripts"), goal="<= 350,000 bytes")
            say("1 M launches x 8 GPUs", figures(chromium, server, "timeline", run=large.RUN), goal="p95 < 33 ms")
            say("1 M log lines", figures(chromium, server, "log", run="run-0000"), goal="p95 < 33 ms")
            say("1,000 runs", figures(chromium, server, "list"), goal="< 300 ms")
            say(
                "what-if of 1 M launches, by slider",
                figures(chromium, server, "whatif", run=large.RUN),
                goal="< 100 ms",
            )
            say("seek", figures(chromium, server, "seek", run=large.RUN), goal="p95 < 50 ms")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        large.seed(home, launches=SIGNATURES * 10, tasks=SIGNATURES)
        with serving(home) as server:
            wait_until_complete(server, large.RUN)
            found = figures(chromium, server, "kernels", run=large.RUN)
            say("kernel table of 1,000 signatures", found, goal="each sort < 100 ms, scroll p95 < 33 ms")
    say("event to pixel, 1,000 events/s, a second viewer that reads nothing", latency(chromium), goal="p95 < 250 ms")


def wait_until_complete(server: Any, run_id: str, seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while server.ask("GET", f"runs/{run_id}/progress")["status"] == "running":
        if time.monotonic() > deadline:
            raise TimeoutError(f"{run_id} was not simulated within {seconds:.0f} s")
        time.sleep(1)


def say(what: str, found: Measured, *, goal: str) -> None:
    print(f"{what} (goal {goal}): {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    run()
