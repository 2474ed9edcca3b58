"""A refined run in a real browser: offered where it can be, watched while it upgrades, both simulators side by side."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from tests.e2e.processes import cascade, serving
from tests.factories import kineto_trace
from tests.unit.test_sass_reading import text_of

EXIT = "4000 ffffffff 0 EXIT 0 0 0"
KERNELS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("refined") / "home") as server:
        yield server


@pytest.fixture
def traces(tmp_path):
    """Kernels whose names say nothing, with their instructions: what an analytic guess is least sure of."""
    folder = tmp_path / "traces of a job"
    folder.mkdir()
    names = []
    for kernel in range(KERNELS):
        chain = [f"{16 * n:04x} ffffffff 1 R8 FFMA 3 R2 R4 R8 0 0" for n in range(200 * (kernel + 1))]
        name = f"kernel-{kernel + 1}.traceg"
        (folder / name).write_text(text_of(*chain, EXIT).replace("= k\n", f"= _Z7mystery{kernel}PKf\n"))
        names.append(name)
    (folder / "kernelslist.g").write_text("".join(f"{name}\n" for name in names))
    return folder


def said(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_is_refined_while_somebody_watches(browser, server, traces, tmp_path):
    trace = said(cascade(server.home, "import", str(traces), "--source-gpu", "a100_sxm_80gb", "--json"))["trace_id"]
    plain = said(cascade(server.home, "import", str(kineto_trace(tmp_path / "job.json")), "--json"))["trace_id"]
    # A new home compiles the simulator first, which takes a minute on a busy machine.
    started = browser.start("refined", server, trace=trace, plain=plain, theme="light")
    found = browser.finish(started, timeout_s=300)
    assert found["cli"].endswith("--gpu a100_sxm_80gb --gpu rtx_3090 --refine-with sass")
    report = server.ask("GET", f"runs/{found['run']}")
    assert report["status"] == "completed"
    for config in report["refinement"]["configs"]:
        assert config["done"] == config["chosen"] > 0
        ended = f"sass: {config['taken']} of {config['chosen']} kernels refined"
        assert any(mark.startswith(ended) for mark in found["seen"]), found["seen"]
    assert any(" done" in mark for mark in found["seen"]), found["seen"]  # seen on its way, too
    assert "sass" in found["tile"]
    assert found["state"].startswith("identical end state")
    for word in ("analytic", "stands", "cycles", "warp instructions", "waits longest for", "reason"):
        assert word in found["simulators"]
    assert "Sum" in found["receipt"]
