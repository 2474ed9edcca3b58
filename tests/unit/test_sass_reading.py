"""SASS traces are read as the tracer means them, in every container, and what is broken is named by file, line, value."""

import lzma
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.kernels.sass_traces.kernelslist import BadTrace, read_kernelslist
from services.simworker.simulators.sass import lines, opcodes
from services.simworker.simulators.sass.kept import read_or_recall
from services.simworker.simulators.sass.reading import read_kernel, read_text

HEADER = (
    "-kernel name = k\n-kernel id = 1\n-grid dim = ({ctas},1,1)\n-block dim = (32,1,1)\n-shmem = 0\n-nregs = 16\n"
    "-binary version = {binary}\n-cuda stream id = 0\n-shmem base_addr = 0x00007f0000000000\n"
    "-local mem base_addr = 0x00007f0001000000\n-nvbit version = 1.7\n-accelsim tracer version = {version}\n"
    "-enable lineinfo = {lineinfo}\n\n#traces format = …\n\n"
)


def text_of(*instructions, version=5, binary=80, lineinfo=0, ctas=1):
    body = "".join(f"{line}\n" for line in instructions)
    head = HEADER.format(version=version, binary=binary, lineinfo=lineinfo, ctas=ctas)
    return f"{head}#BEGIN_TB\n\nthread block = 0,0,0\n\nwarp = 0\ninsts = {len(instructions)}\n{body}\n#END_TB\n"


def words_of(instruction, **options):
    """(class, words of memory) of one instruction."""
    trace = read_text(text_of(instruction, **options))
    return int(trace.instructions[0]) & lines.CLASS_MASK, trace.memory.tolist()


def runs_of(instruction, **options):
    """(first sector, count, whether the lanes cover them) of each run."""
    words = words_of(instruction, **options)[1]
    assert words[0] == len(words) - 1
    return [(word >> 8, word & 0x7F, not word & lines.PARTIAL) for word in words[1:]]


def test_registers_and_immediate_are_kept():
    trace = read_text(text_of("0000 ffffffff 1 R7 IMAD 3 R255 R1 R2 0 9", "0010 ffffffff 0 EXIT 0 0 0"))
    record = int(trace.instructions[0])
    fields = [record >> lines.DST_SHIFT + 9 * index & lines.REGISTER_MASK for index in range(5)]
    assert fields == [8, 256, 2, 3, 0]  # numbers + 1; RZ is register 255, as it is to Accel-Sim
    assert record >> lines.IMMEDIATE_SHIFT & 31 == 9
    assert trace.thread_instructions == 64


def test_base_and_stride_give_a_run_of_whole_sectors():
    assert runs_of("0 ffffffff 1 R4 LDG.E 1 R4 4 1 0x7fb000000000 4 0") == [(0x7FB000000000 >> 5, 4, True)]


def test_a_run_that_ends_within_a_sector_says_so():
    first = 0x7FB000000010 >> 5
    assert runs_of("0 0000000f 0 STG.E 2 R6 R9 4 1 0x7fb000000010 4 0") == [(first, 1, False)]
    assert runs_of("0 0000ffff 0 STG.E 2 R6 R9 4 1 0x7fb000000010 4 0") == [
        (first, 1, False),
        (first + 1, 1, True),
        (first + 2, 1, False),
    ]


def test_large_strides_touch_a_sector_each():
    assert [run[0] for run in runs_of("0 0000000f 1 R4 LDG.E 1 R4 4 1 0x7fb000000000 256 0")] == [
        (0x7FB000000000 >> 5) + 8 * lane for lane in range(4)
    ]


def test_a_hole_in_the_mask_ends_the_stride():
    assert sum(count for _, count, _ in runs_of("0 0000ff0f 1 R4 LDG.E 1 R4 4 1 0x7fb000000000 32 0")) == 4


def test_deltas_are_relative_to_the_lane_before():
    assert [run[:2] for run in runs_of("0 0000000f 1 R4 LDG.E.128 1 R4 16 2 0x7fb000001000 16 -4096 16 0")] == [
        (0x7FB000000010 >> 5, 2),
        (0x7FB000001000 >> 5, 1),
    ]


def test_lists_need_no_order():
    assert [run[0] for run in runs_of("0 00000003 1 R4 LDG.E 1 R4 4 0 0x7fb000001000 0x7fb000000000 0")] == [
        0x7FB000000000 >> 5,
        0x7FB000001000 >> 5,
    ]


def test_predicated_off_accesses_touch_nothing():
    kind, words = words_of("0 00000000 1 R4 LDG.E 1 R4 4 2 0x0 0")
    assert (kind, words) == (opcodes.LOAD, [])


def test_bank_conflicts_count_words_per_bank_of_the_lanes_base_addresses():
    assert words_of("0 ffffffff 1 R4 LDS 1 R4 4 1 0x0 4 0")[1] == [1]
    assert words_of("0 ffffffff 1 R4 LDS.128 1 R4 16 1 0x0 16 0")[1] == [4]
    assert words_of("0 ffffffff 1 R4 LDS 1 R4 4 1 0x0 128 0")[1] == [32]
    assert words_of("0 ffffffff 1 R4 LDS 1 R4 4 1 0x0 0 0")[1] == [1]  # one word is broadcast
    # LDSM.16's lanes give rows of 16 B; Accel-Sim counts the base addresses, whatever the width.
    assert words_of("0 ffffffff 1 R4 LDSM.16.M88.4 1 R4 2 1 0x0 16 0")[1] == [4]


def test_generic_accesses_are_told_apart_by_their_address():
    assert words_of("0 1 1 R4 LD.E 1 R4 4 1 0x7f0000000100 4 0")[0] == opcodes.SHARED_LOAD
    assert words_of("0 1 1 R4 LD.E 1 R4 4 1 0x7e0000000000 4 0")[0] == opcodes.LOAD
    assert words_of("0 1 0 ST.E 2 R4 R5 4 1 0x7f0000000100 4 0")[0] == opcodes.SHARED_STORE


def test_lineinfo_and_version_6_fields_are_passed_over():
    plain = runs_of("0 ffffffff 1 R4 LDG.E 1 R4 4 1 0x7fb000000000 4 0")
    assert runs_of("17 0 ffffffff 1 R4 LDG.E 1 R4 4 1 0x7fb000000000 4 0", lineinfo=1) == plain
    assert runs_of("0 ffffffff 1 R4 LDG.E 2 R4 UR4 4 1 0x7fb000000000 4 0 0 NoVal", version=6) == plain
    assert words_of("0 ffffffff 1 R24 HGMMA.64x64x16.F32 1 UR4 1 0 0 0 NoVal", version=6, binary=90)[0] == opcodes.GMMA


def test_bulk_copies_touch_their_bytes():
    runs = runs_of(
        "0 1 0 UTMALDG.2D 1 UR4 4 0x400 0 4096 0 3 2 0x7fb000000000 0x7fb000010000 0 0 NoVal", version=6, binary=90
    )
    assert [run[:2] for run in runs] == [(0x7FB000000000 >> 5, 64), (0x7FB000010000 >> 5, 64)]


def test_lanes_that_go_on_after_their_exit_are_mended_and_named():
    trace = read_text(text_of("0 ff 0 EXIT 0 0 0", "10 01 1 R1 MOV 0 0 0", "20 01 0 EXIT 0 0 0"))
    assert "lanes 0 go on after an EXIT" in trace.exit_mask
    assert read_text(text_of("0 fe 0 EXIT 0 0 0", "10 01 0 EXIT 0 0 0")).exit_mask == ""


@pytest.mark.parametrize(
    "instruction, complaint",
    [
        ("0 fffffffff 0 EXIT 0 0 0", "'fffffffff' is no mask of 32 lanes"),
        ("0 ffffffff 2 R1 R2 MOV 0 0 0", "'2' is no count"),
        ("0 ffffffff 1 Q1 MOV 0 0 0", "'Q1' is no register"),
        ("0 ffffffff 1 R256 MOV 0 0 0", "'R256' is no register"),
        ("0 ffffffff 0 BLORP 0 0 0", "BLORP is no instruction"),
        ("0 ffffffff 0 HGMMA 0 0 0", "HGMMA is no instruction of sm_80"),
        ("0 ffffffff 1 R1 LDG.E 0 4 7 0x0 0", "'7' is no address mode"),
        ("0 ffffffff 1 R1 LDG.E 0 4 1 zero 4 0", "'zero' is no address"),
        ("0 ffffffff 1 R1 LDG.E 0 x 1 0x0 4 0", "'x' is no number of bytes"),
    ],
)
def test_a_bad_instruction_is_named_by_line_and_value(instruction, complaint):
    with pytest.raises(BadTrace, match="text, line 23: ") as caught:
        read_text(text_of(instruction))
    assert complaint in str(caught.value)


def test_every_container_gives_the_same_records(shared):
    formats = shared / "data" / "accelsim" / "traces" / "formats"
    plain = read_kernel(formats / "v5-traceg" / "kernel-1.traceg")
    for name in ("v6-traceg", "v5-tracez", "v6-tracez", "raw-v5", "raw-v6"):
        (file,) = read_kernelslist(formats / name).files
        other = read_kernel(file)
        for column in ("instructions", "memory", "warp_start", "warp_memory", "warp_index", "cta_warp"):
            assert np.array_equal(getattr(plain, column), getattr(other, column)), (name, column)


def test_a_fifo_is_read_while_it_is_written(tmp_path):
    fifo = tmp_path / "kernel-1.traceg"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_text(text_of("0 ff 0 EXIT 0 0 0")))
    writer.start()
    assert len(read_kernel(fifo).instructions) == 1
    writer.join()


def test_a_kept_trace_is_the_trace_until_the_file_changes(tmp_path):
    file = tmp_path / "kernel-1.traceg"
    file.write_text(text_of("0 ff 0 EXIT 0 0 0", "10 01 1 R1 LDG.E 0 4 1 0x7fb000000000 4 0"))
    read, kept = (read_or_recall(file, tmp_path / "kept") for _ in range(2))
    assert (kept.header, kept.exit_mask) == (read.header, read.exit_mask)
    for column in ("instructions", "memory", "warp_start", "warp_memory", "warp_index", "cta_warp"):
        assert np.array_equal(getattr(read, column), getattr(kept, column)), column
    file.write_text(text_of("0 ff 0 EXIT 0 0 0"))
    assert len(read_or_recall(file, tmp_path / "kept").instructions) == 1


def test_a_cut_xz_is_said_to_be_cut(tmp_path):
    file = tmp_path / "kernel-1.traceg.xz"
    file.write_bytes(lzma.compress(text_of("0 ff 0 EXIT 0 0 0").encode())[:-12])
    with pytest.raises(BadTrace, match=r"kernel-1.traceg.xz: its compressed data is broken or cut"):
        read_kernel(file)


GOOD = text_of(
    "0000 ffffffff 1 R1 MOV 0 0 0",
    "0010 0000ffff 1 R4 LDG.E.128 1 R4 16 2 0x7fb000001000 16 -4096 16 16 16 16 16 16 16 16 16 16 16 16 16 16 0",
    "0020 ffffffff 1 R5 LDS 1 R4 4 1 0x10 4 0",
    "0030 ffffffff 0 DEPBAR.LE 0 0 1",
    "0040 ffffffff 0 EXIT 0 0 0",
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_to_a_trace_breaks_the_reader(data):
    damaged = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(("set", "cut", "insert", "drop"))):
            case "set":
                damaged[at] = data.draw(st.integers(0, 255))
            case "cut":
                del damaged[at + 1 :]
            case "insert":
                damaged[at:at] = data.draw(st.binary(max_size=8))
            case "drop":
                del damaged[at : at + data.draw(st.integers(1, 40))]
        if not damaged:
            return
    try:
        read_text(damaged.decode("latin-1"))
    except BadTrace as error:
        assert "text" in str(error)


ACCESSES = (
    "ffffffff 1 R8 LDG.E.128 1 R2 16 1 0x{address:x} 16 0 ",
    "ffffffff 1 R8 LDG.E 1 R2 4 1 0x{address:x} 4 0 ",
    "00ff00ff 0 STG.E.64 2 R4 R8 8 1 0x{address:x} 8 0 ",
    "ffffffff 0 LDGSTS.E.BYPASS.128 2 R4 R5 16 2 0x{address:x} " + "16 " * 15 + "-240 " + "16 " * 15 + "0 ",
    "ffffffff 1 R8 LDG.E 1 R2 4 2 0x{address:x} " + "4096 -32 " * 15 + "64 0 ",
    "ffffffff 1 R8 LDSM.16.M88.4 1 R5 2 2 0x{address:x} " + "64 " * 15 + "-944 " + "64 " * 15 + "0 ",
    "ffffffff 0 STS.128 2 R4 R8 16 1 0x{address:x} 32 0 ",
    "0000000f 1 R8 LDS 1 R5 4 0 0x{address:x} 0x10 0x20 0x30 0 ",
)


def test_an_access_that_is_known_by_its_pc_is_read_as_one_that_is_not():
    """Wherever it lies: at a sector's begin or not, and of other lanes in between."""
    addresses = [4096 + 128 * n for n in range(6)] + [4100, 4104, 4612, 36, 2, 8194, 32, 4096]
    bodies = [body.format(address=address) for body in ACCESSES for address in addresses]
    # A stride needs no number for each lane, so that others may take part.
    bodies = [
        body.replace("ffffffff", "0fffffff") if n % 5 == 4 and " 1 0x" in body else body
        for n, body in enumerate(bodies)
    ]
    padding = ["0000 ffffffff 0 NOP 0 0 0 "] * 60  # near a text's end nothing is compared at once

    def read(pc_of):
        lines = [f"{pc_of(n):04x} {body}" for n, body in enumerate(bodies)] + padding
        head = HEADER.format(version=5, binary=80, lineinfo=0, ctas=1)
        return read_text(f"{head}#BEGIN_TB\nwarp = 0\ninsts = {len(lines)}\n" + "\n".join(lines) + "\n#END_TB\n")

    known = read(lambda n: 16 * (n // len(addresses) + 1))
    unknown = read(lambda n: 16 * (n + 1))
    assert len(bodies) + len(padding) == len(known.instructions)
    assert np.array_equal(known.instructions, unknown.instructions)
    assert np.array_equal(known.memory, unknown.memory)
    assert known.thread_instructions == unknown.thread_instructions


def test_a_long_packed_text_is_read_as_it_is_unpacked_and_a_cut_one_is_told(tmp_path):
    body = "".join(f"{16 * n % 8192:04x} ffffffff 1 R8 FFMA 3 R2 R3 R8 0 0 \n" for n in range(30_000))
    head = HEADER.format(version=5, binary=80, lineinfo=0, ctas=1)
    packed = lzma.compress(f"{head}#BEGIN_TB\nwarp = 0\ninsts = 30000\n{body}#END_TB\n".encode())
    file = tmp_path / "kernel-1.traceg.xz"
    file.write_bytes(packed)
    assert len(read_kernel(file).instructions) == 30_000
    file.write_bytes(packed[:-200])
    with pytest.raises(BadTrace, match="its compressed data is broken or cut"):
        read_kernel(file)
