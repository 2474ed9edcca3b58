"""The timeline, the log and the lists at size, in a real browser. What is timed is printed by `make bench`, not judged here:
a slow machine is no mistake of the page. What is judged: that all of it is there, right, and within bounds of memory."""

from __future__ import annotations

import json

import pytest

from tests.bench.timeline import wait_until_complete
from tests.e2e import large
from tests.e2e.measuring import figures, latency
from tests.e2e.processes import serving

FIRST_VIEW_BYTES_LIMIT = 350_000
HEAP_MB_LIMIT = 500
LINES = 200_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("large") / "home"
    large.seed(home, launches=100_000)
    large.seed_runs(home, runs=300)
    large.seed_log(home, run_id="run-0000", lines=LINES)
    with serving(home) as server:
        wait_until_complete(server, large.RUN, 300)
        yield server


def test_the_first_view_needs_little_script(chromium, page_is_built, server):
    assert figures(chromium, server, "scripts")["bytes"] <= FIRST_VIEW_BYTES_LIMIT


def test_a_long_trace_is_drawn_zoomed_and_panned_within_its_memory(chromium, page_is_built, server):
    found = figures(chromium, server, "timeline", run=large.RUN, frames=40)
    assert found["firstPaintMs"] > 0
    assert found["page"]["zoom"]["n"] > 0
    assert found["drawMs"]["zoom"]["n"] > 0, "nothing was drawn anew while zooming"
    assert found["heapMb"]["workerCount"] == 1
    assert found["heapMb"]["page"] + found["heapMb"]["workers"] < HEAP_MB_LIMIT


def test_a_long_log_shows_the_right_lines_wherever_one_scrolls_and_finds_one(chromium, page_is_built, server):
    found = figures(chromium, server, "log", run="run-0000", frames=40, wanted=LINES - 7)
    assert found["seen"]["start"].startswith("1 line 0 of")
    assert found["seen"]["end"] == f"{LINES} line {LINES - 1} of the simulator"
    number, text = found["seen"]["middle"].split(" ", 1)
    assert text == f"line {int(number) - 1} of the simulator"
    assert found["search"]["line"].strip() == f"line {LINES - 7}"


def test_many_runs_are_listed(chromium, page_is_built, server):
    assert figures(chromium, server, "list", frames=40)["said"] == "301 runs"


def test_a_viewer_that_reads_nothing_holds_nobody_up(chromium, page_is_built):
    found = latency(chromium, seconds=5, events_per_s=200)
    assert found["eventToPixelMs"]["n"] > 0, json.dumps(found)
