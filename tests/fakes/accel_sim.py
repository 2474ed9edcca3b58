"""Stands in for accel-sim.out 1.3 in trace mode: the same arguments, lines and ends, for every failure it is known to have.

What is wrong with an input it finds by looking, as the real one does; what no input shows (a deadlock, a hang, memory)
is asked for by FAKE_ACCELSIM. Its cycles are a count of lines: nothing here is a simulation.
"""

import lzma
import os
import re
import sys
import time
from pathlib import Path

KNOWN = {"35", "60", "61", "70", "75", "80", "86"}
UNKNOWN_TO_AMPERE = ("HGMMA", "SYNCS", "UTMA")


def abort(stderr):
    # What was printed and not flushed is lost, as with the real one: over a terminal each line is flushed.
    print(stderr, file=sys.stderr, flush=True)
    os.abort()


def options_of(arguments):
    options, listed, configs, index = {}, "", [], 0
    while index < len(arguments):
        name, value = arguments[index], arguments[index + 1]
        if name == "-trace":
            listed = value
        elif name == "-config":
            configs.append(value)
            try:
                text = re.sub(r"#[^\n]*", "", Path(value).read_text())
            except OSError:
                print(f"\n\nGPGPU-Sim ** ERROR: Cannot open config file '{value}'", file=sys.stderr)
                sys.exit(1)
            options |= dict(re.findall(r"^-([\w:]+)\s+(\S.*?)\s*$", text, re.MULTILINE))
        else:
            options[name[1:]] = value
        index += 2
    for name in options:
        if "bogus" in name:
            print(f"\n\nGPGPU-Sim ** ERROR: Unknown Option: '-{name}'", file=sys.stderr)
            sys.exit(1)
    return options, listed


def text_of(path):
    if path.suffix == ".xz":
        try:
            return lzma.decompress(path.read_bytes()).decode()
        except lzma.LZMAError:
            print(f"xz: {path}: Unexpected end of input", file=sys.stderr, flush=True)
            return "cut"
    if path.suffix != ".traceg":
        abort("terminate called after throwing an instance of 'std::runtime_error'\n  what():  Unsupported file type!")
    if not path.exists():
        print(f"cat: {path}: No such file or directory", file=sys.stderr, flush=True)
        return ""
    return path.read_text()


def run_kernel(path, uid, options, totals):
    text = text_of(path)
    print(f"Processing kernel {path}")
    header, _, body = text.partition("#BEGIN_TB")
    said = dict(re.findall(r"^-(.*?) = (.*)$", header, re.MULTILINE))
    for key, value in said.items():
        print(f"-{key} = {value}")
    version = said.get("binary version", "0")
    if text == "cut" or (text and not text.endswith("\n")):
        version = version if version != "0" else "80"
    elif version not in KNOWN:
        print(f"unsupported binary version: {version}")
        sys.exit(0)
    print(f"Header info loaded for kernel command : {path}")
    print(f"launching kernel name: {said.get('kernel name')} uid: {uid} cuda_stream_id: 0")
    print(f"GPGPU-Sim uArch: Shader 0 bind to kernel {uid} '{said.get('kernel name')}'")
    if text == "cut":
        abort("accel-sim.out: trace_parser.cc:457: readLine: Assertion `line.back() == '\\n'' failed.")
    shared, have = int(said["shmem"]), int(options.get("gpgpu_shmem_size", "98304"))
    print(
        f"GPGPU-Sim uArch: CTA/core = {have // shared if shared else 16}, limited by: {'shmem' if shared else 'threads'}"
    )
    if shared > have:
        print("GPGPU-Sim uArch: ERROR ** Kernel requires more resources than shader has.")
        os.abort()
    if "cluster id" in body:
        abort("terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check")
    if any(word in body for word in UNKNOWN_TO_AMPERE):
        word = next(word for word in UNKNOWN_TO_AMPERE if word in body)
        print(f"ERROR:  undefined instruction : {word}.X Opcode: {word}")
        abort('trace_driven.cc:209: Assertion `0 && "undefined instruction"\' failed.')
    if options.get("gpgpu_memory_partition_indexing") == "2" and options.get("gpgpu_n_mem") not in {"8", "16", "32"}:
        abort(
            'hashing.cc:88: Assertion `"\\nmemory_partition_indexing error: The number of channels should be" failed.'
        )
    if " UMOV " in body and options.get("specialized_unit_4", "0")[0] != "1":
        abort("shader.cc:1486: Assertion `spec_id < m_shader->m_config->m_specialized_unit.size()' failed.")
    blocks = re.findall(r"thread block = (.*)", body)
    for block in blocks:
        print(f"thread block = {block}")
    if not text.endswith("\n"):
        abort("accel-sim.out: trace_parser.cc:457: readLine: Assertion `line.back() == '\\n'' failed.")
    x, y, z = map(int, re.findall(r"\d+", said["grid dim"]))
    if len(blocks) < x * y * z:
        abort("trace_driven.cc:82: get_start_trace_pc(): Assertion `warp_traces.size() > 0' failed.")
    misbehave(options)
    counted = len(re.findall(r"^[0-9a-f]{4,} ", body, re.MULTILINE))
    totals["warp"] += counted
    cycles = 100 + counted + int(options.get("gpgpu_kernel_launch_latency", "0"))
    print(f"Destroy streams for kernel {uid}: size 0\nkernel_name = {said['kernel name']} \nkernel_launch_uid = {uid} ")
    print(f"gpu_sim_cycle = {cycles}\ngpu_sim_insn = {32 * counted}\ngpu_ipc =       {32 * counted / cycles:.4f}")
    print(f"gpu_occupancy = -nan% \ngpgpu_n_tot_w_icount = {totals['warp']}\ntotal dram reads = 7")


def misbehave(options):
    wanted = os.environ.get("FAKE_ACCELSIM", "")
    if wanted == "deadlock":
        print(
            "GPGPU-Sim uArch: ERROR ** deadlock detected: last writeback core 15 @ gpu_sim_cycle 5486 "
            "(+ gpu_tot_sim_cycle 0) (94514 cycles ago)"
        )
        abort("")
    elif wanted == "replay":
        abort("DEADLOCK detected - warp stuck in replay region")
    elif wanted == "syncs":
        print("Error: SYNCS without register values")
        sys.exit(1)
    elif wanted == "sleep":
        for cycle in range(10_000):
            print(f"GPGPU-Sim Cycle {cycle}: LIVENESS - uArch: inst.: {cycle} (ipc= 1.0, occ=25.0000% [32 / 128])")
            time.sleep(0.01)
    elif wanted == "spin":
        while True:
            pass
    elif wanted == "memory":
        try:
            bytearray(1 << 40)
        except MemoryError:
            abort("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc")
    elif wanted == "maxcyc":
        print("GPGPU-Sim: ** break due to reaching the maximum cycles (or instructions) **")
    elif wanted == "segv":
        os.kill(os.getpid(), 11)
    elif wanted == "killed":
        os.kill(os.getpid(), 9)
    elif wanted == "quiet":
        sys.exit(0)
    elif wanted == "environment":
        print("Error: SYNCS " + ("has the token" if "CASCADE_TOKEN" in os.environ else "has no token"))
    elif wanted == "count":
        with Path(os.environ["FAKE_ACCELSIM_COUNT"]).open("a") as file:
            file.write("x")
    del options


def main(arguments):
    print("Accel-Sim [build fake]\n\n        *** GPGPU-Sim Simulator Version 4.2.0  [build fake] ***\n")
    options, listed = options_of(arguments)
    for name, value in options.items():
        print(f"-{name}                    {value} # an option")
    print("GPGPU-Sim uArch: clock freqs: 1132000000.000000:1132000000.000000:1132000000.000000:3500500000.000000")
    path = Path(listed)
    if not path.exists():
        print(f"Unable to open file: {listed}")
        sys.exit(1)
    totals = {"warp": 0}
    kernels = [line for line in path.read_text().splitlines() if line.startswith("kernel")]
    for uid, line in enumerate(kernels, 1):
        run_kernel(path.parent / line, uid, options, totals)
    print("GPGPU-Sim: *** simulation thread exiting ***\nGPGPU-Sim: *** exit detected ***")


if __name__ == "__main__":
    main(sys.argv[1:])
