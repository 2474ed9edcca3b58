"""What `make run` does once the program is installed: the example's table first, then the page, then serving."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASCADE = ROOT / ".venv" / "bin" / "cascade"
SAMPLE = "sample:opt-125m"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--started", type=int, required=True, help="seconds since the epoch at which make began")
    parser.add_argument("--serve", default="1")
    parser.add_argument("--python", required=True)
    arguments = parser.parse_args()
    print(f"importing {SAMPLE} and simulating it on every default GPU", flush=True)
    done = subprocess.run([str(CASCADE), "run", SAMPLE], check=False)
    if done.returncode != 0:
        return done.returncode
    print(f"\nfrom `make run` to this table: {time.time() - arguments.started:.0f} s", flush=True)
    if arguments.serve == "0":
        print("next: make run serves the page too; or .venv/bin/cascade import YOUR_TRACE")
        return 0
    built = subprocess.run([arguments.python, str(ROOT / "infra" / "web.py"), "ensure"], check=False)
    if built.returncode != 0:
        print("the page could not be built; REST and WebSocket are served without it", file=sys.stderr)
    return subprocess.run([str(CASCADE), "serve"], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
