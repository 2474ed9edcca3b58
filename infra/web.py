"""The page: build it, check it, test it. Node comes from PATH where new enough, else from the wheel in .venv.

    infra/web.py build            build web/dist
    infra/web.py ensure           the same, only where it is absent or older than its sources; installs what that needs
    infra/web.py check            types and lint
    infra/web.py test [JUNIT]     unit tests, with a report where a path is given
    infra/web.py lock             renew package-lock.json, which names no host

Only the standard library.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from setup import node_environ

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
BUILT = WEB / "dist" / "index.html"
SOURCES = ("src", "public", "index.html", "package-lock.json", "tsconfig.json", "vite.config.ts")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["build"]:
            return build()
        case ["ensure"]:
            return ensure()
        case ["check", *_]:
            return node_tool("tsc", "--noEmit") or node_tool("eslint", ".")
        case ["test", *rest]:
            report = ["--reporter=default", "--reporter=junit", f"--outputFile.junit={rest[0]}"] if rest else []
            return node_tool("vitest", "run", *report)
        case ["lock"]:
            return lock()
    print(__doc__, file=sys.stderr)
    return 2


def ensure() -> int:
    if BUILT.exists() and BUILT.stat().st_mtime >= newest_source():
        return 0
    installed = subprocess.run([sys.executable, str(ROOT / "infra" / "setup.py"), "run", "web"], check=False)
    return installed.returncode or build()


def build() -> int:
    return node_tool("vite", "build", "--logLevel", "warn")


def newest_source() -> float:
    files = (path for name in SOURCES for path in (WEB / name, *(WEB / name).rglob("*")) if path.is_file())
    return max(path.stat().st_mtime for path in files)


def node_tool(name: str, *arguments: str) -> int:
    program = WEB / "node_modules" / ".bin" / name
    if not program.exists():
        print("web: the page's packages are not installed; run: make web", file=sys.stderr)
        return 2
    return subprocess.run([str(program), *arguments], cwd=WEB, env=node_environ(), check=False).returncode


def lock() -> int:
    """Without what npm writes of where it found each package and of who may be paid for it."""
    command = ["npm", "install", "--package-lock-only", "--no-audit", "--no-fund", "--silent"]
    made = subprocess.run(command, cwd=WEB, env=node_environ(), check=False)
    path = WEB / "package-lock.json"
    content = json.loads(path.read_text())
    for package in content["packages"].values():
        package.pop("funding", None)
        package.pop("resolved", None)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return made.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
