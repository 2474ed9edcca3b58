"""Instruction level: lines read and warp instructions simulated per second of one core; Accel-Sim's own CPU beside it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from services.simworker.simulators.sass.jit import use_cache

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "vectoradd": "vectoradd-mgpusim",
    "fi-decode": "flashinfer-singledecode",
    "fi-prefill": "flashinfer-prefill",
    "fi-gemm": "flashinfer-gemm",
    "nnfix": "nn-onestep-exitfixed",
}


def run() -> None:
    use_cache(ROOT / "build" / "numba")
    from services.simworker.simulators.sass.command import simulate_folder
    from services.simworker.simulators.sass.reading import read_kernel
    from services.simworker.simulators.sass.simulator import compile_core

    count = 2_000_000
    lines = "".join(
        f"{pc % 4096:04x} ffffffff 1 R{8 + pc % 16} FFMA 3 R2 R3 R{8 + pc % 16} 0 0 \n" for pc in range(count)
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel-1.traceg"
        header = "-grid dim = (1,1,1)\n-block dim = (32,1,1)\n-binary version = 80\n-accelsim tracer version = 5\n#\n"
        file.write_text(f"{header}#BEGIN_TB\nwarp = 0\ninsts = {count}\n{lines}#END_TB\n")
        compile_core()
        start = time.process_time()
        read_kernel(file)
        print(f"read: {count / 1e6 / (time.process_time() - start):.1f} M lines/s (FFMA, plain text)")

    data = Path(os.environ.get("CASCADE_SHARED", ROOT.parent / "shared")) / "data" / "accelsim"
    if not data.is_dir():
        print(f"{data}: not here, so nothing is compared with Accel-Sim")
        return
    kept = ROOT / "build" / "sass"
    recorded = json.loads((data / "results.json").read_text())["results"]
    ours = theirs = 0.0
    for name, configs in recorded.items():
        folder = data / "traces" / FOLDERS.get(name, name)
        for config, was in configs.items():
            if not folder.is_dir() or not was["completed"]:
                continue
            report = simulate_folder(folder, str(data / "logs" / "configs" / config), time.process_time, kept)
            rate = was["total_warp_insts"] / report["cpu_seconds"] / 1e6
            print(
                f"{name:17}{config:20}{report['cpu_seconds'] * 1e3:8.1f} ms"
                f"{was['cpu_seconds'] / report['cpu_seconds']:8.0f}x{rate:7.2f} M warp instructions/s, reading included"
            )
            if was["cpu_seconds"] >= 5:
                ours += report["cpu_seconds"]
                theirs += was["cpu_seconds"]
    print(f"runs of 5 CPU s or more: {theirs:.0f} s by Accel-Sim, {ours:.2f} s here: {theirs / ours:.0f}x")
