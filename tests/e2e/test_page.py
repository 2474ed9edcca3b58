"""The page in a real browser, served by a real process."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.processes import cascade, serving, start_server
from tests.factories import kineto_trace

MANY = [f"h100_sxm:dram_gbps={2000 + 20 * number}" for number in range(160)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("e2e") / "home") as server:
        yield server


@pytest.fixture(scope="module")
def example(browser, server):
    """The first thing a newcomer does, in an empty home."""
    return browser.run("example", server)


def test_the_address_loses_its_token(example, server):
    assert server.token not in example["address"]


def test_the_examples_tiles_fill_without_moving(example):
    assert len(example["tiles"]) == 8
    assert all(done == total > 0 for done, total in example["rings"])
    assert all("TPOT" in tile and "ms" in tile for tile in example["tiles"])
    assert example["shifts"]["sum"] < 0.01, example["shifts"]
    assert example["headline"].startswith("Shortest TPOT")


def test_the_table_shows_what_the_server_says(example, server):
    report = server.ask("GET", f"runs/{example['run']}")
    assert len(example["table"]) == len(report["configs"])
    shown = {row.splitlines()[0] + row for row in example["table"]}
    for config in report["configs"]:
        ttft = f"{config['ttft_ms']['value']:.3g}"
        assert any(ttft in row for row in shown), (config["gpu"], ttft, shown)


def test_where_the_numbers_are_from_is_on_the_page(example):
    assert example["badge"] >= 1


def test_the_log_shows_what_the_simulators_said(example, server):
    report = server.ask("GET", f"runs/{example['run']}")
    said = server.ask("GET", f"runs/{example['run']}/log/{report['configs'][0]['config_id']}")
    assert said["lines"][0] in example["log"]


def test_scrubbing_back_and_to_the_end_shows_the_same(browser, server, example):
    found = browser.run("scrub", server, run=example["run"])
    assert found["middle"]["table"] != found["before"]["table"]
    assert "at=" in found["middle"]["address"]
    assert found["start"]["moment"].startswith("record 0 of")
    assert found["after"] == found["before"]
    assert found["again"]["table"] == found["middle"]["table"]  # a moment is an address
    assert found["ended"]["table"] == found["before"]["table"]


def test_the_log_is_played_and_moved_through_by_keyboard(browser, server, example):
    found = browser.run("keyboard", server, run=example["run"])
    assert found["home"].startswith("record 0 of")
    assert found["one"].startswith("record 1 of")
    assert "all known" in found["end"]
    assert "all known" in found["played"]


def test_a_wrong_token_is_refused_and_the_right_one_let_in(browser, server, example):
    found = browser.run("denied", server, run=example["run"])
    assert found["wrong"]["status"] == 401
    assert "token" in found["wrong"]["text"]
    assert found["cookiesBefore"] == 0
    assert "opt-125m" in found["heading"]
    assert server.token not in found["address"]


def test_a_trace_is_uploaded_and_run_from_the_page(browser, server, tmp_path):
    trace = kineto_trace(tmp_path / "job.json")
    found = browser.run("upload", server, trace=str(trace))
    assert "kernels" in found["imported"]
    assert "holiday.png" in found["refused"]
    assert "--gpu h100_sxm --gpu h100_sxm:dram_gbps=6000" in found["cli"]
    assert "magic" in found["mistake"]
    assert len(found["table"]) == 2


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_screen_is_accessible_in_both_themes(browser, server, example, theme):
    found = browser.run("screens", server, run=example["run"], theme=theme)
    serious = {
        screen: [one for one in violations if one["impact"] in {"serious", "critical"}]
        for screen, violations in found.items()
    }
    assert serious == {screen: [] for screen in found}


def test_a_page_outlives_its_server(browser, tmp_path):
    home = tmp_path / "home"
    trace = kineto_trace(tmp_path / "job.json", step_count=4)
    server = start_server(home)
    restarted = None
    try:
        imported = json.loads(cascade(home, "import", str(trace), "--json").stdout)
        body = {"trace_id": imported["trace_id"], "gpus": MANY}
        process = browser.start("reconnect", server, body=body)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"]
        server.process.kill()
        server.process.wait()
        time.sleep(1)
        restarted = start_server(home, port=int(server.url.rsplit(":", 1)[1]))
        assert restarted.url == server.url
        found = browser.finish(process)
        assert found["shown"] == len(MANY)
        assert len(found["table"]) == len(MANY)
    finally:
        for one in (server, restarted):
            if one is not None and one.process.poll() is None:
                one.stop()
