"""Real processes: a server of its own home, commands beside it, and a browser that plays a scenario."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
CASCADE = Path(sys.executable).with_name("cascade")
BROWSE = Path(__file__).with_name("browse.mjs")
SCREENSHOTS = os.environ.get("CASCADE_SCREENSHOTS", "")  # a folder for pictures of every screen

sys.path.insert(0, str(ROOT / "infra"))
from setup import node_environ  # noqa: E402 - a script, not a package


@dataclass
class ServerProcess:
    """A `cascade serve` of its own home."""

    home: Path
    process: subprocess.Popen[str]
    url: str
    token: str

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def ask(self, method: str, path: str, **arguments: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        response = httpx.request(method, f"{self.url}/api/{path}", headers=headers, timeout=60, **arguments)
        assert response.is_success, response.text
        return response.json()


def environ_of(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CASCADE_")}
    return kept | {"CASCADE_HOME": str(home)}


def start_server(home: Path, port: int = 18_400) -> ServerProcess:
    process = subprocess.Popen(
        [str(CASCADE), "serve", "--json", "--port", str(port)],
        env=environ_of(home),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], 60)[0]:
        process.kill()
        process.wait()
        pytest.fail("the server said nothing for 60 s")
    said = json.loads(process.stdout.readline())
    return ServerProcess(home, process, said["url"], said["token"])


@contextlib.contextmanager
def serving(home: Path) -> Iterator[ServerProcess]:
    server = start_server(home)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def cascade(home: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """A command in another terminal."""
    command = [str(CASCADE), *arguments]
    return subprocess.run(command, env=environ_of(home), capture_output=True, text=True, timeout=timeout_s, check=False)


def wait_for(is_done: Any, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := is_done()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)
    return found


# --- the browser ------------------------------------------------------------------------------------------------------


@dataclass
class Browser:
    """Runs scenarios of browse.mjs against a server."""

    chromium: str

    def start(self, scenario: str, server: ServerProcess, **options: Any) -> subprocess.Popen[str]:
        given = {"url": server.url, "token": server.token, "chromium": self.chromium} | options
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            given["folder"] = SCREENSHOTS
        command = ["node", str(BROWSE), scenario, json.dumps(given)]
        return subprocess.Popen(command, env=node_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process: subprocess.Popen[str], *, timeout_s: float = 120) -> Any:
        """What the scenario found; fails with what the page showed where it did not get to its end."""
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            pytest.fail(f"the browser was not done after {timeout_s} s")
        assert out.strip(), err
        answer = json.loads(out.strip().splitlines()[-1])
        assert answer["ok"], f"{answer['error']}\nat {answer['address']}\n{answer['text']}\n{answer['complaints']}"
        assert answer["complaints"] == [], f"the browser's console is not empty: {answer['complaints']}"
        return answer["found"]

    def run(self, scenario: str, server: ServerProcess, **options: Any) -> Any:
        return self.finish(self.start(scenario, server, **options))
