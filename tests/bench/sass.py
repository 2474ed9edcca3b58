"""Instruction level: lines read and warp instructions simulated per second of one core; Accel-Sim's own CPU beside it."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from services.kernels.sass_traces.containers import BLOCK_BYTES
from services.simworker.simulators.sass.jit import use_cache

if TYPE_CHECKING:  # what is imported here is compiled
    from services.simworker.simulators.sass.machine import Machine
    from services.simworker.simulators.sass.reading import KernelTrace

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
        f"{16 * pc % 8192:04x} ffffffff 1 R{8 + pc % 16} FFMA 3 R2 R3 R{8 + pc % 16} 0 0 \n" for pc in range(count)
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel-1.traceg"
        header = "-grid dim = (1,1,1)\n-block dim = (32,1,1)\n-binary version = 80\n-accelsim tracer version = 5\n#\n"
        file.write_text(f"{header}#BEGIN_TB\nwarp = 0\ninsts = {count}\n{lines}#END_TB\n")
        compile_core()
        start = time.process_time()
        read_kernel(file)
        print(f"read: {count / 1e6 / (time.process_time() - start):.1f} M lines/s (a loop of 512 FFMA, plain text)")

        _large(Path(folder), Path(folder) / "large")

    data = Path(os.environ.get("CASCADE_SHARED", ROOT.parent / "shared")) / "data" / "accelsim"
    if not data.is_dir():
        print(f"{data}: not here, so nothing is compared with Accel-Sim")
        return
    _alone(data)
    kept = ROOT / "build" / "sass"
    recorded = json.loads((data / "results.json").read_text())["results"]
    folders = [data / "traces" / FOLDERS.get(name, name) for name in recorded]
    _all_read([folder for folder in folders if folder.is_dir()])
    _all_simulated(data, recorded)
    ours = theirs = long_instructions = all_ours = all_instructions = 0.0
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
            all_ours += report["cpu_seconds"]
            all_instructions += was["total_warp_insts"]
            if was["cpu_seconds"] >= 5:
                ours += report["cpu_seconds"]
                long_instructions += was["total_warp_insts"]
                theirs += was["cpu_seconds"]
    print(
        f"runs of 5 CPU s or more: {theirs:.0f} s by Accel-Sim, {ours:.2f} s here: {theirs / ours:.0f}x,"
        f" {long_instructions / ours / 1e6:.2f} M warp instructions/s; all {all_instructions / 1e6:.1f} M of all runs:"
        f" {all_instructions / all_ours / 1e6:.2f} M/s"
    )


def _alone(data: Path) -> None:
    """Reading and simulating apart, the best of three: what each takes of a set that computes and of one that copies.

    Beside reading out of xz what the library that unpacks alone takes of it: nobody reads such a file faster.
    """
    from services.kernels.sass_traces.kernelslist import read_kernelslist
    from services.simworker.simulators.sass.machine import machine_of
    from services.simworker.simulators.sass.options import read_options
    from services.simworker.simulators.sass.simulator import Simulation

    machine = machine_of(read_options(data / "logs" / "configs" / "A100_tang"))
    for name in ("hand_ffma", "hand_hmma", "flashinfer-singledecode", "vectoradd-mgpusim", "hand_copy_4MB"):
        kernels, read = _read_alone(read_kernelslist(data / "traces" / name).files)
        instructions = sum(len(kernel.instructions) for kernel in kernels) / 1e6
        making_s = _least_s(partial(Simulation, machine))
        simulating_s = _least_s(partial(_simulate, machine, kernels)) - making_s
        print(
            f"{name}: {read.said}, {instructions / simulating_s:.2f} M warp instructions/s simulated on A100_tang, whose "
            f"tables are made in {making_s * 1e3:.1f} ms"
        )


class _Read(NamedTuple):
    """What reading takes, in seconds, the best of three."""

    lines: float  # millions
    text_s: float  # of CPU
    packed_s: float  # by the clock
    packed_cpu_s: float
    unpacking_s: float  # by the library alone, by the clock

    @property
    def said(self) -> str:
        return (
            f"{self.lines / self.text_s:.1f} M lines/s of text, {self.lines / self.packed_s:.1f} out of xz by the clock, "
            f"unpacked by a thread of its own (unpacking alone {self.lines / self.unpacking_s:.1f}; "
            f"{self.lines / self.packed_cpu_s:.1f} per CPU second of both)"
        )


def _read_alone(files: Sequence[Path]) -> tuple[list[KernelTrace], _Read]:
    from services.simworker.simulators.sass.reading import read_kernel

    kernels = [read_kernel(file) for file in files]
    with tempfile.TemporaryDirectory() as folder:
        texts = [Path(folder) / f"kernel-{number}.traceg" for number in range(len(files))]
        for file, text in zip(files, texts, strict=True):
            _unpack(file, text)
        text_s = _least_s(partial(_each, read_kernel, texts))
    return kernels, _Read(
        sum(kernel.line_count for kernel in kernels) / 1e6,
        text_s,
        _least_s(partial(_each, read_kernel, files), time.perf_counter),
        _least_s(partial(_each, read_kernel, files)),
        _least_s(partial(_each, _unpack, files), time.perf_counter),
    )


def _all_read(folders: Sequence[Path]) -> None:
    """All sets together."""
    from services.kernels.sass_traces.kernelslist import read_kernelslist

    each = [_read_alone(read_kernelslist(folder).files)[1] for folder in folders]
    print(f"all {len(each)} recorded sets read: {_Read(*map(sum, zip(*each, strict=True))).said}")


def _all_simulated(data: Path, recorded: dict[str, dict[str, dict[str, Any]]]) -> None:
    """All recorded runs without reading and without making a machine's tables: what simulating alone takes of them."""
    from services.kernels.sass_traces.kernelslist import read_kernelslist
    from services.simworker.simulators.sass.machine import machine_of
    from services.simworker.simulators.sass.options import read_options
    from services.simworker.simulators.sass.reading import read_kernel

    instructions = simulating_s = making_s = 0.0
    for name, configs in recorded.items():
        folder = data / "traces" / FOLDERS.get(name, name)
        if not folder.is_dir():
            continue
        kernels = [read_kernel(file) for file in read_kernelslist(folder).files]
        for config, was in configs.items():
            if not was["completed"]:
                continue
            machine = machine_of(read_options(data / "logs" / "configs" / config))
            made_s, run_s = zip(*(_simulating_s(machine, kernels) for _ in range(3)), strict=True)
            simulating_s += min(run_s)
            making_s += min(made_s)
            instructions += was["total_warp_insts"] / 1e6
    print(
        f"all recorded runs simulated, nothing read: {instructions:.1f} M warp instructions in {simulating_s:.2f} CPU s, "
        f"{instructions / simulating_s:.2f} M/s; with tables made anew for each ({making_s:.2f} s) "
        f"{instructions / (simulating_s + making_s):.2f} M/s"
    )


def _simulating_s(machine: Machine, kernels: Sequence[KernelTrace]) -> tuple[float, float]:
    """CPU seconds of making a machine's tables and of simulating."""
    from services.simworker.simulators.sass.simulator import Simulation

    start = time.process_time()
    simulation = Simulation(machine)
    made = time.process_time()
    for kernel in kernels:
        simulation.run(kernel)
    return made - start, time.process_time() - made


def _least_s(work: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of the best of three, of CPU where no other clock is asked: by that, of twelve, for others take turns."""
    taken = []
    for _ in range(3 if clock is time.process_time else 12):
        start = clock()
        work()
        taken.append(clock() - start)
    return min(taken)


def _unpack(file: Path, to: Path | None = None) -> None:
    with lzma.open(file) as stream, (to or Path(os.devnull)).open("wb") as out:
        while block := stream.read(BLOCK_BYTES):
            out.write(block)


def _each(work: Callable[[Path], object], files: Sequence[Path]) -> None:
    for file in files:
        work(file)


def _simulate(machine: Machine, kernels: Sequence[KernelTrace]) -> None:
    from services.simworker.simulators.sass.simulator import Simulation

    simulation = Simulation(machine)
    for kernel in kernels:
        simulation.run(kernel)


def _large(home: Path, traces: Path) -> None:
    """A kernel of 2 GB of text through the program itself: its time and its memory."""
    traces.mkdir()
    (traces / "kernelslist.g").write_text("kernel-1.traceg\n")
    stride = " ".join(["16"] * 31)
    kinds = (
        "{pc:04x} ffffffff 1 R{r} LDG.E.128.CONSTANT 2 R2 R3 16 1 0x{address:x} 16 0\n",
        "{pc:04x} ffffffff 1 R{r} FFMA 3 R4 R5 R6 0 0\n",
        "{pc:04x} ffffffff 1 R{r} IMAD.WIDE 3 R4 R5 R6 0 0\n",
        "{pc:04x} ffffffff 0 STG.E.128 2 R2 R{r} 16 2 0x{address:x} " + stride + " 0\n",
    )
    warps = []
    for warp in range(8):
        lines = [
            kinds[n % 4].format(pc=16 * n, r=8 + n % 64, address=0x7F0000000000 + warp * 65536 + n * 512)
            for n in range(128)
        ]
        warps.append(f"warp = {warp}\ninsts = 129\n{''.join(lines)}0800 ffffffff 0 EXIT 0 0 0\n")
    body = f"#BEGIN_TB\n{''.join(warps)}#END_TB\n"
    ctas = 2_000_000_000 // len(body) + 1
    with (traces / "kernel-1.traceg").open("w") as file:
        file.write(
            f"-grid dim = ({ctas},1,1)\n-block dim = (256,1,1)\n-binary version = 80\n-accelsim tracer version = 5\n"
            "-nregs = 32\n#\n"
        )
        for _ in range(ctas):
            file.write(body)
    size = (traces / "kernel-1.traceg").stat().st_size
    command = [
        str(Path(sys.executable).with_name("cascade")),
        "sass",
        str(traces),
        "--config",
        "a100_sxm_80gb",
        "--json",
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"CASCADE_HOME": str(home)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    _, _, usage = os.wait4(process.pid, 0)
    print(
        f"a kernel of {size / 1e9:.1f} GB: {usage.ru_maxrss / 1024:.0f} MiB resident at most, "
        f"{report['cpu_seconds']:.0f} CPU s, {report['kernels'][0]['warp_instructions'] / 1e6:.1f} M warp instructions"
    )
