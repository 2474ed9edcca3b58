"""A job under Accel-Sim's tracer: raw files of a real format, a list and statistics as each kernel is opened and closed.

python -m tests.fakes.sass_tracer KERNELS SECONDS_EACH [kill|fail] writes into TRACES_FOLDER. Kernels repeat: of three in
a row the third is the first again.
"""

import os
import signal
import sys
import time
from pathlib import Path

HEADER = (
    "-kernel name = {name}\n-kernel id = {number}\n-grid dim = (1,1,1)\n-block dim = (32,1,1)\n-shmem = 0\n-nregs = 16\n"
    "-binary version = 80\n-cuda stream id = 0\n-shmem base_addr = 0x00007f0000000000\n"
    "-local mem base_addr = 0x00007f0001000000\n-nvbit version = 1.7\n-accelsim tracer version = 5\n"
    "-enable lineinfo = 0\n\n#traces format = threadblock_x threadblock_y threadblock_z warpid_tb PC mask …\n\n"
)


def raw_kernel(name, number=1, instructions=40):
    """A whole file: one warp of one block."""
    lines = [f"0 0 0 0 {16 * n:04x} ffffffff 1 R8 FFMA 3 R2 R4 R8 0 0\n" for n in range(instructions)]
    return (HEADER.format(name=name, number=number) + "".join(lines) + "0 0 0 0 0800 ffffffff 0 EXIT 0 0 0\n").encode()


def name_of(number):
    return f"_Z{len(f'kernel{place}')}kernel{place}Pf" if (place := _place(number)) else ""


def _place(number):
    """1, 2, 1, 4, 5, 4, …"""
    return number - 2 if number % 3 == 0 else number


def main(count, each_s, end=""):
    folder = Path(os.environ["TRACES_FOLDER"])
    listed, stats = (folder / "kernelslist").open("a"), (folder / "stats.csv").open("a")
    for number in range(1, count + 1):
        file = f"kernel-{number}.trace"
        print(file, file=listed, flush=True)
        print(f"{file}, {name_of(number)}, 1, 1, 1, 1, 32, 1, 1, 32, ", end="", file=stats, flush=True)
        whole = raw_kernel(name_of(number), number, instructions=400)
        with (folder / file).open("wb", buffering=0) as out:
            for part in range(4):
                out.write(whole[part * len(whole) // 4 : (part + 1) * len(whole) // 4])
                time.sleep(each_s / 4)
                if end == "kill" and number == count and part == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
        print("401, 401", file=stats, flush=True)
    if end == "fail":
        raise SystemExit(9)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:])
