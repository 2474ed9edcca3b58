"""The analytical screens in a real browser: what is refused, turned, explained and asked by keyboard."""

from __future__ import annotations

import json

import duckdb
import pytest

from tests.e2e.processes import cascade, serving
from tests.factories import kineto_trace

GPUS = ("a100_sxm_80gb", "l4", "l40s", "rtx_4090", "h100_sxm", "h200_sxm", "b200_sxm", "mi300x")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("screens") / "home") as server:
        yield server


def said(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def sample(server):
    """The bundled recording on eight GPUs: options for scenarios."""
    trace = said(cascade(server.home, "import", "sample:opt-125m", "--json"))["trace_id"]
    arguments = [part for gpu in GPUS for part in ("--gpu", gpu)]
    report = said(cascade(server.home, "run", trace, *arguments, "--json"))
    return {
        "trace": trace,
        "run": report["run_id"],
        "configs": [config["config_id"] for config in report["configs"]],
    }


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_no_screen_has_a_serious_fault(browser, server, sample, theme):
    found = browser.finish(
        browser.start("gallery", server, theme=theme, viewport={"width": 1200, "height": 760}, **sample), timeout_s=400
    )
    assert len(found) >= 17
    serious = {
        screen: [fault for fault in faults if fault["impact"] in {"serious", "critical"}]
        for screen, faults in found.items()
    }
    assert not any(serious.values()), serious


def test_a_service_that_has_stopped_is_said_to_whoever_waits(browser, tmp_path):
    home = tmp_path / "home"
    with serving(home):
        pass
    with duckdb.connect(home / "cascade.duckdb") as spoilt:
        spoilt.execute("alter table trace_steps drop column q_lengths")
    with serving(home) as server:
        done = cascade(home, "import", "sample:opt-125m")
        assert done.returncode == 2
        assert "the aggregator has stopped" in done.stderr
        found = browser.run("stopped", server)
    assert "The aggregator has stopped, and nothing new is worked out" in found["said"]
    assert not [fault for fault in found["faults"] if fault["impact"] in {"serious", "critical"}]


def test_statements_that_may_not_run_are_refused_with_rule_and_place(browser, server, sample, tmp_path):
    statements = ["select 1; select 2", "copy kernels to 'x.csv'", "attach 'x.db'", "select nothing_such from kernels"]
    found = browser.run("sql", server, statements=statements)
    rules = ["one statement", "SELECT only", "SELECT only", "statement"]
    for statement, rule in zip(statements, rules, strict=True):
        assert rule in found["refused"][statement]["said"]
    assert [found["refused"][statement]["marked"][0] for statement in statements] == [
        "select", "copy", "attach", "nothing_such",
    ]  # fmt: skip
    assert len(found["rows"]) == 1 + len(GPUS)
    path = tmp_path / "rows.csv"
    path.write_text(found["csv"])
    assert "recorded-on-cpu" in found["csv"]
    assert duckdb.sql(f"select one, two from '{path}'").fetchall() == [(1, 2)]


def test_a_turned_knob_re_predicts_and_is_kept_as_a_run(browser, server, sample):
    found = browser.run("whatif", server, run=sample["run"], base="a100_sxm_80gb")
    assert found["most"]["config"] == "a100_sxm_80gb:dram_gbps=8160"
    assert found["typed"]["config"] == "a100_sxm_80gb:dram_gbps=6000"
    assert "set=dram_gbps:6000" in found["address"]
    ratio = {name: float(found[name]["answer"].split("×")[0].split()[-1]) for name in ("most", "typed", "least")}
    assert ratio["most"] <= ratio["typed"] <= 1 < ratio["least"]
    assert any("DRAM-bound" in text or "L2-bound" in text for text in found["sentences"])
    kept = server.ask("GET", f"runs/{found['kept']}")
    assert [config["gpu"] for config in kept["configs"]] == ["a100_sxm_80gb", "a100_sxm_80gb:dram_gbps=6000"]


def test_a_receipt_says_why_on_each_gpu(browser, server, sample):
    found = browser.run("why", server, run=sample["run"])
    for text in (found["first"], found["second"]):
        assert all(word in text for word in ("Inputs", "Limits, each alone", "Sum", "Interval", "launch floor"))
    assert "why=" in found["address"]
    assert found["cells"] == found["heads"]  # of the last row, which was jumped to


def test_a_run_is_asked_for_by_keyboard_alone(browser, server, sample):
    found = browser.run("newrun", server, trace=sample["trace"])
    assert len(found["chosen"]) == 3
    assert found["impossible"]
    assert found["cli"].endswith("--gpu 'l4*2' --gpu l40s --gpu h100_sxm:dram_gbps=13400")
    report = server.ask("GET", f"runs/{found['run']}")
    assert [config["gpu"] for config in report["configs"]] == ["l4", "l40s", "h100_sxm:dram_gbps=13400"]


@pytest.fixture(scope="module")
def measured(server, tmp_path_factory):
    """A small measured trace on its own GPU and on two that nobody measured it on."""
    file = kineto_trace(tmp_path_factory.mktemp("measured") / "job.json")
    trace = said(cascade(server.home, "import", str(file), "--json"))["trace_id"]
    gpus = ("a100_sxm_80gb", "h200_sxm", "l4")
    report = said(cascade(server.home, "run", trace, *(part for gpu in gpus for part in ("--gpu", gpu)), "--json"))
    return {"trace": trace, "run": report["run_id"], "configs": [one["config_id"] for one in report["configs"]]}


def test_a_moment_of_a_replay_has_its_log_and_its_state(browser, server, sample):
    found = browser.run("moments", server, run=sample["run"])
    assert found["linked"].startswith("1")
    assert "tasks on" in found["linked"]
    assert found["again"] == found["end"]
    assert found["end"]["lines"] > 0
    assert found["end"]["hash"] == server.ask("GET", f"runs/{sample['run']}")["state_hash"][:8]
    assert found["early"] != found["end"]["hash"]


def test_lanes_are_gone_to_pinned_and_lined_up_by_address(browser, server, sample):
    found = browser.run("lanes", server, **sample)
    assert float(found["step"]["t0"]) < float(found["step"]["t1"])
    assert found["pinned"].startswith("A.")
    assert "align=kernel" in found["compare"]


def test_a_measured_kernel_shows_its_launches_and_each_gpu_what_was_measured_near_it(browser, server, measured):
    found = browser.run("beside", server, histogram="measured launch", **measured)
    assert "forward prediction" in found["kernel"]
    assert "nearest:" in found["gpus"]
    assert "this GPU" in found["gpus"]


def test_where_nothing_was_measured_it_says_so(browser, server, sample):
    found = browser.run("beside", server, histogram="No launch of it was measured", **sample)
    assert "mi300x" not in found["gpus"] or "another class" in found["gpus"]


@pytest.mark.parametrize("on", ["traces", "new"])
def test_a_trace_may_be_dropped_wherever_traces_are_listed(browser, server, tmp_path, on):
    found = browser.run("dropped", server, on=on, trace=str(kineto_trace(tmp_path / "job.json")))
    assert "kernels" in found["row"]
