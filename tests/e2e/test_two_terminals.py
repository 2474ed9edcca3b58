"""One process serves a home; commands in other terminals use it. Killed, it goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import stat

import httpx

from tests.e2e.processes import cascade, serving, start_server, wait_for
from tests.factories import kineto_trace

MANY = [f"h100_sxm:dram_gbps={2000 + 20 * number}" for number in range(60)]


def test_commands_in_a_second_terminal_use_the_process_that_serves(tmp_path):
    home = tmp_path / "home"
    trace = kineto_trace(tmp_path / "job.json")
    with serving(home) as server:
        file = home / "server.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert json.loads(file.read_text())["token"] == server.token

        ran = cascade(home, "run", str(trace), "--gpu", "h100_sxm", "--gpu", "l4", "--json")
        assert ran.returncode == 0, ran.stderr
        report = json.loads(ran.stdout)
        assert server.ask("GET", f"runs/{report['run_id']}") == report

        verified = cascade(home, "replay", report["run_id"], "--verify", "--json")
        assert json.loads(verified.stdout)["equal"]
        events = cascade(home, "replay", report["run_id"], "--json").stdout.splitlines()
        assert json.loads(events[-1])["type"] == "RunCompleted"
        counted = cascade(home, "sql", "select count(*) as n from runs", "--json")
        assert json.loads(counted.stdout) == [{"n": 1}]
        asked = cascade(home, "what-if", report["trace"]["trace_id"], "--gpu", "l4", "--json")
        assert json.loads(asked.stdout)["tpot_ms"] == report["configs"][1]["tpot_ms"]
        assert cascade(home, "export", report["run_id"], str(tmp_path / "x.json")).returncode == 0
        refused = cascade(home, "run", "nothing", "--gpu", "l4")
        assert refused.returncode == 2
        assert "nothing" in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1

        second = cascade(home, "serve")
        assert second.returncode == 2
        assert server.url in second.stderr

        assert server.stop() == 0
        assert not file.exists()
    # Nobody serves now: the same commands open the home themselves and find the same things.
    again = cascade(home, "replay", report["run_id"], "--verify", "--json")
    assert json.loads(again.stdout)["equal"]


def test_a_busy_port_takes_the_next_free_one(tmp_path):
    with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        ports = [int(server.url.rsplit(":", 1)[1]) for server in (one, two)]
        assert ports[1] > ports[0]
        assert httpx.get(f"{two.url}/api/health").json()["status"] == "ok"


def test_ctrl_c_closes_cleanly(tmp_path):
    with serving(tmp_path / "home") as server:
        assert server.stop(signal.SIGINT) == 0
        assert not (tmp_path / "home" / "server.json").exists()


def test_a_killed_server_goes_on_with_its_runs_and_its_token(tmp_path):
    home = tmp_path / "home"
    trace = kineto_trace(tmp_path / "job.json")
    with serving(home) as server:
        imported = json.loads(cascade(home, "import", str(trace), "--json").stdout)
        body = {"trace_id": imported["trace_id"], "gpus": MANY}
        run_id = server.ask("POST", "runs", json=body)["run_id"]
        server.process.kill()
        server.process.wait()
    restarted = start_server(home)
    try:
        assert restarted.token == server.token  # pages that were open go on
        wait_for(lambda: restarted.ask("GET", f"runs/{run_id}/progress")["status"] == "completed")
        assert restarted.ask("POST", f"runs/{run_id}/verify")["equal"]
        assert len(restarted.ask("GET", f"runs/{run_id}")["configs"]) == len(MANY)
    finally:
        assert restarted.stop() == 0
    with serving(home) as fresh:
        assert fresh.token != server.token  # after a clean end a new one is made


def test_a_stale_server_file_is_no_server(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    (home / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "token": "x" * 20, "pid": gone}))
    assert json.loads(cascade(home, "sql", "select 1 as one", "--json").stdout) == [{"one": 1}]
