"""All tests, then one table: passed, failed, skipped and why.

As root or with CI=true a missing tool, and a skip for an absent ../shared that is there, are failures; on a user's
machine they are listed as NOT RUN with the command that would allow them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
SUITES = ("unit", "contract", "architecture", "golden", "simulation", "cluster", "accuracy", "e2e")
ONE_PROCESS = ("architecture", "cluster", "e2e")  # short, or itself many processes on this machine


@dataclass
class Suite:
    """What one group of tests came to."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # reason -> count
    failures: list[str] = field(default_factory=list)  # the tests' names
    elapsed_s: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", action="store_true")
    arguments = parser.parse_args()
    is_strict = os.environ.get("CI") == "true" or os.geteuid() == 0
    REPORTS.mkdir(parents=True, exist_ok=True)
    suites = [] if arguments.long else [checks()]
    marker = "long" if arguments.long else "not long"
    suites += [python_suite(name, marker) for name in SUITES if has_tests(ROOT / "tests" / name)]
    if not arguments.long and (ROOT / "web" / "package.json").exists():
        suites.append(web_suite(is_strict))
    return report(suites, is_strict)


def has_tests(folder: Path) -> bool:
    return any(folder.rglob("test_*.py"))


def checks() -> Suite:
    """Formatting, lint and types are a promise like any other."""
    suite = Suite("check")
    began = time.monotonic()
    for command in (["ruff", "format", "--check", "."], ["ruff", "check", "."], ["mypy"]):
        done = subprocess.run([str(ROOT / ".venv" / "bin" / command[0]), *command[1:]], cwd=ROOT, check=False)
        suite.passed += done.returncode == 0
        suite.failed += done.returncode != 0
    suite.elapsed_s = time.monotonic() - began
    return suite


def python_suite(name: str, marker: str) -> Suite:
    junit = REPORTS / f"{name}.xml"
    junit.unlink(missing_ok=True)
    began = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "-q", f"tests/{name}", "-m", marker, f"--junitxml={junit}"]
    if name not in ONE_PROCESS:
        pytest += ["-n", "logical", "--maxprocesses", "4", "--dist", "loadscope"]
    code = subprocess.run(pytest, cwd=ROOT, check=False).returncode
    suite = Suite(name, elapsed_s=time.monotonic() - began)
    if junit.exists():
        read_junit(junit, suite)
    # 5: no test matched the marker. Anything else that is not 0 with no failed case is a crash of the suite itself.
    if code not in (0, 5) and not suite.failed:
        suite.failed += 1
    return suite


def web_suite(is_strict: bool) -> Suite:
    """Unit tests, lint and types of the page. Node comes with `make web` where it is absent."""
    suite = Suite("web")
    began = time.monotonic()
    setup = [sys.executable, str(ROOT / "infra" / "setup.py"), "web"]
    if subprocess.run(setup, check=False).returncode != 0:
        if is_strict:
            suite.failed += 1
        else:
            suite.skipped["NOT RUN: the page's packages could not be installed; run: make web"] += 1
        return suite
    junit = REPORTS / "web.xml"
    junit.unlink(missing_ok=True)
    for script in ("check", "test"):
        command = [sys.executable, str(ROOT / "infra" / "web.py"), script, str(junit)]
        done = subprocess.run(command, check=False)
        if script == "check" or done.returncode != 0:
            suite.passed += done.returncode == 0
            suite.failed += done.returncode != 0
    if junit.exists():
        read_junit(junit, suite)
    suite.elapsed_s = time.monotonic() - began
    return suite


def read_junit(path: Path, suite: Suite) -> None:
    failed_before = suite.failed
    for case in ET.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            suite.failed += 1
            suite.failures.append(f"{case.get('classname')}::{case.get('name')}")
        elif skipped is not None:
            suite.skipped[skipped.get("message") or "no reason given"] += 1
        else:
            suite.passed += 1
    if failed_before and suite.failed > failed_before:
        suite.failed -= failed_before  # the runner's exit code and its cases are one failure, not two


def report(suites: list[Suite], is_strict: bool) -> int:
    is_shared_there = bool(os.environ.get("CASCADE_SHARED")) or (ROOT.parent / "shared").is_dir()
    refused = 0
    print(f"\n{'suite':14}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for suite in suites:
        count = sum(suite.skipped.values())
        print(f"{suite.name:14}{suite.passed:8}{suite.failed:8}{count:9}{suite.elapsed_s:9.0f}")
    for suite in suites:
        for reason, count in suite.skipped.items():
            needs_shared = "shared" in reason.lower()
            is_refused = is_strict and (reason.startswith("NOT RUN") or (needs_shared and is_shared_there))
            refused += count if is_refused else 0
            print(f"  {'REFUSED SKIP' if is_refused else 'skipped'} {suite.name} x{count}: {reason}")
        for name in suite.failures:
            print(f"  FAILED {name}")
    passed = sum(suite.passed for suite in suites)
    failed = sum(suite.failed for suite in suites) + refused
    skipped = sum(sum(suite.skipped.values()) for suite in suites) - refused
    columns = shutil.get_terminal_size().columns
    print("-" * min(columns, 48))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    raise SystemExit(main())
