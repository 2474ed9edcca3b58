"""What Accel-Sim would abort on after minutes, found before it starts; and what makes a trace readable to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from services.kernels.sass_traces.containers import open_kernel
from services.kernels.sass_traces.header import KernelHeader
from services.simworker.simulators.accelsim.failures import Failure
from services.simworker.simulators.sass.lines import CLASS_MASK
from services.simworker.simulators.sass.machine import PIPES, Machine
from services.simworker.simulators.sass.reading import KernelTrace

BINARY_VERSIONS = frozenset({35, 60, 61, 70, 75, 80, 86})
BINARY_VERSIONS_2 = BINARY_VERSIONS | {90}
"""What 1.3 and 2.0 have opcode tables for; of another one they say so, and end with exit code 0."""

HASHED_SLICES = frozenset({16, 32, 64})
HASHED_INDEXING = 2  # IPOLY

UNITS = {"spec_op_1": "BRA", "spec_op_2": "TEX", "spec_op_3": "TENSOR", "spec_op_4": "UDP", "spec_op_5": "GMMA"}


def obstacle(trace: KernelTrace, machine: Machine, *, is_version_2: bool) -> Failure | None:
    """Why this kernel cannot run on this config; None where nothing known stands against it."""
    header = trace.header
    known = BINARY_VERSIONS_2 if is_version_2 else BINARY_VERSIONS
    if header.binary_version not in known:
        return Failure(
            "unsupported_binary_version",
            f"does not know the code of sm_{header.binary_version}, only of {', '.join(map(str, sorted(known)))}; "
            "--simulator sass reads it",
        )
    resident, by = machine.resident_ctas(header)
    if resident < 1:
        return Failure("cta_too_large", f"one thread block needs more {by} than an SM of this config has")
    slices = machine.channels * machine.slices_per_channel
    if machine.partition_indexing == HASHED_INDEXING and slices not in HASHED_SLICES:
        return Failure(
            "partition_hashing",
            f"the config hashes addresses over {slices} sub-partitions, which works for 16, 32 and 64 only; set "
            "-gpgpu_memory_partition_indexing 0",
        )
    used = np.unique(trace.instructions & np.uint64(CLASS_MASK))
    for pipe in (PIPES[kind] for kind in used.tolist() if kind < len(PIPES)):
        if pipe in machine.absent:
            number = pipe[8:]
            return Failure(
                "missing_unit",
                f"the trace needs the special unit {UNITS[pipe]}, which the config lacks; add "
                f"-specialized_unit_{number} and -trace_opcode_latency_initiation_{pipe}, and read its times with "
                "care: the config was made for an older class",
            )
    return None


def prepare(path: Path, trace: KernelTrace, folder: Path, *, is_version_2: bool) -> tuple[str, ...]:
    """Write `kernelslist.g` and the kernel under a plain name into `folder`; what had to be changed, in words.

    Copies to the GPU are left out: 1.3 cuts their addresses to 32 bits, so that they only cost time.
    """
    changes: list[str] = []
    if trace.exit_mask:
        changes.append("EXIT masks mended")
    if trace.header.tracer_version >= 6 and not is_version_2:
        changes.append("cluster lines left out")
    is_text = path.name.endswith((".traceg", ".traceg.xz"))
    if not is_text and not (is_version_2 and path.name.endswith(".tracez") and not trace.exit_mask):
        changes.append("written as text")
    if changes:
        name = "kernel-1.traceg"
        with (folder / name).open("wb") as out:
            out.writelines(_rewritten(path, has_clusters=is_version_2))
    else:
        name = "kernel-1" + path.name[path.name.index(".trace") :]
        (folder / name).symlink_to(path.resolve())  # through a plain name: it is opened by a shell
    (folder / "kernelslist.g").write_text(f"{name}\n")
    return tuple(changes)


def _rewritten(path: Path, *, has_clusters: bool) -> Iterator[bytes]:
    header, _, blocks = open_kernel(path)
    yield _header_text(header)
    warp: list[bytes] = []
    for line in _lines(blocks):
        if line[:1].isalnum() and not line.startswith((b"thread block", b"cluster", b"warp", b"insts")):
            warp.append(line)
            continue
        yield from mended(warp, header)
        warp = []
        if line.startswith(b"cluster") and not has_clusters:
            continue
        if line.startswith(b"#traces format"):
            continue
        yield line
    yield from mended(warp, header)


def mended(warp: list[bytes], header: KernelHeader) -> list[bytes]:
    """A warp's lines, each EXIT without the lanes that later instructions still use (NVBit leaves them in)."""
    mask_at = 2 if header.has_line_numbers else 1
    opcode_at = mask_at + 2
    later = 0
    lines = list(warp)
    for index in range(len(lines) - 1, -1, -1):
        words = lines[index].split(maxsplit=opcode_at + 2)
        if len(words) <= opcode_at:
            continue
        mask = int(words[mask_at], 16)
        # EXIT has no destination, so that its opcode follows the count of none.
        if words[mask_at + 1] == b"0" and words[opcode_at].partition(b".")[0] == b"EXIT" and mask & later:
            words[mask_at] = b"%08x" % (mask & ~later)
            lines[index] = b" ".join(words).rstrip() + b"\n"
        later |= mask
    return lines


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        whole = (rest + block).split(b"\n")
        rest = whole.pop()
        for line in whole:
            if line.strip():
                yield line + b"\n"


def _header_text(header: KernelHeader) -> bytes:
    said = {
        "kernel name": header.name,
        "kernel id": header.kernel_id,
        "grid dim": "({},{},{})".format(*header.grid),
        "block dim": "({},{},{})".format(*header.block),
        "shmem": header.shared_memory_bytes,
        "nregs": header.registers,
        "binary version": header.binary_version,
        "cuda stream id": header.stream,
        "shmem base_addr": f"0x{header.shared_base:016x}",
        "local mem base_addr": f"0x{header.local_base:016x}",
        "nvbit version": "as traced",
        "accelsim tracer version": header.tracer_version,
        "enable lineinfo": int(header.has_line_numbers),
    }
    text = "".join(f"-{key} = {value}\n" for key, value in said.items())
    return f"{text}\n#traces format = [line_num] PC mask dest_num [reg_dests] opcode src_num [reg_srcs] ...\n".encode()
