"""Real processes and a real browser. What is missing is installed where this may be done, else said with its command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
            subprocess.run(command, check=False, capture_output=True, timeout=500)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("NOT RUN: no Chromium; run: sudo apt-get install -y chromium")
    return found


@pytest.fixture(scope="session")
def page_is_built() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "setup.py"), "web"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("NOT RUN: the page's packages could not be installed; run: make web")
    built = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "web.py"), "ensure"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.fixture(scope="session")
def browser(chromium: str, page_is_built: None) -> Browser:
    return Browser(chromium)
