"""Hopper's instructions on hand-made v6 traces, each against a computed expectation; no real trace was ever at hand."""

import sys

import numpy as np
import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.kernels.sass_traces.kernelslist import BadTrace
from services.simworker.simulators.sass import core, lines, opcodes
from services.simworker.simulators.sass.machine import machine_of
from services.simworker.simulators.sass.reading import read_text
from services.simworker.simulators.sass.simulator import Simulation
from tests.unit.test_sass_reading import HEADER, words_of
from tests.unit.test_sass_simulator import MACHINE, plain_core

GMMA_UNIT = {"specialized_unit_5": "1,4,128,4,4,GMMA", "trace_opcode_latency_initiation_spec_op_5": "128,32"}
HOPPER = MACHINE | GMMA_UNIT | {"gpgpu_n_clusters": "4", "gpgpu_shmem_size": "65536"}
CHAIN = "0010 ffffffff 1 R8 FFMA 3 R2 R4 R8 0 0 0 NoVal"
EXIT = "0020 ffffffff 0 EXIT 0 0 0 0 NoVal"
WAIT = "0030 ffffffff 0 SYNCS.PHASECHK.TRANS64.TRYWAIT 1 R2 8 1 0x400 0 0 0 NoVal"
WGMMA = "0040 ffffffff 1 R24 HGMMA.64x{n}x16.F32 1 UR4 {commit} 0 0 0 NoVal"
ALL_DONE = "0050 ffffffff 0 WARPGROUP.DEPBAR.LE 0 0 0 0 NoVal"
COPY = "0060 00000001 0 UTMALDG.2D 1 UR4 4 0x400 {cast} {bytes} 0 3 1 0x7fb000{at:06x} 0 0 NoVal"


def trace_of(warp, *, ctas=1, cluster=1, shared_bytes=0):
    head = HEADER.format(version=6, binary=90, lineinfo=0, ctas=ctas).replace("shmem = 0", f"shmem = {shared_bytes}")
    body = f"warp = 0\ninsts = {len(warp)}\n" + "".join(f"{line}\n" for line in warp)
    return read_text(
        head
        + "".join(
            f"#BEGIN_TB\nthread block = {n},0,0\ncluster id = {n // cluster},0,0\ncluster cta = {n % cluster},0,0\n"
            f"cluster rank = {n % cluster}\n{body}#END_TB\n"
            for n in range(ctas)
        )
    )


def run(warp, *, options=None, **others):
    result = Simulation(machine_of(HOPPER | (options or {}))).run(trace_of(warp, **others))
    assert result.cycles is not None
    return result


def cycles_of(warp, **others):
    return run(warp, **others).cycles


def test_a_product_holds_its_unit_as_long_as_its_columns_take():
    for n, cycles in ((64, 32), (128, 64), (256, 128)):  # of a config that says 32 cycles, for 64 columns
        nine, one = ([WGMMA.format(n=n, commit=0)] * count + [EXIT] for count in (9, 1))
        assert cycles_of(nine) - cycles_of(one) == 8 * cycles, n


def test_what_follows_a_product_waits_only_where_its_group_is_awaited():
    product = [WGMMA.format(n=64, commit=1)]
    chain = [CHAIN] * 20
    alone = cycles_of([*chain, EXIT])
    beside = cycles_of([*product, *chain, EXIT])
    after = cycles_of([*product, ALL_DONE, *chain, EXIT])
    assert beside <= alone + 5
    assert after == pytest.approx(alone + 128 + 5, abs=5)


def test_copies_and_products_are_awaited_apart():
    copy = "0070 ffffffff 0 LDGSTS.E.128 2 R2 R4 16 1 0x7fb000000000 16 0 0 NoVal"
    commit = "0080 ffffffff 0 LDGDEPBAR 0 0 0 0 NoVal"
    both = [copy, commit, WGMMA.format(n=64, commit=1), ALL_DONE, EXIT]
    alone = [WGMMA.format(n=64, commit=1), ALL_DONE, EXIT]
    chain = [CHAIN] * 40
    # The copy takes longer than the product: who waits for products does not wait for it.
    assert cycles_of([*both[:4], *chain, EXIT]) <= cycles_of([*alone[:2], *chain, EXIT]) + 10


def test_a_bulk_copy_takes_one_issue_slot_and_is_there_when_its_barrier_says_so():
    copy = COPY.format(cast=0, bytes=4096, at=0)
    shared = "0090 ffffffff 1 R9 LDS 1 R2 4 1 0x0 4 0 0 NoVal"
    without = run([copy, shared, *[CHAIN] * 4, EXIT])
    awaited = run([copy, WAIT, shared, *[CHAIN] * 4, EXIT])
    assert without.count(core.L2_READS) == awaited.count(core.L2_READS) == 128
    assert awaited.cycles > without.count(core.PIPE_BUSY + 9) + 128
    # The warp's own load does not queue behind the copy's 128 sectors in the load-store unit.
    assert without.count(core.PIPE_BUSY + 9) == 2


def test_a_wait_is_for_the_copies_that_complete_its_own_barrier():
    """A pipeline of two stages: who waits for the first goes on while the second, of 64 KB, still comes in."""
    small = COPY.format(cast=0, bytes=512, at=0)
    large = COPY.format(cast=0, bytes=65536, at=0x10000).replace("0x400", "0x408")
    other = WAIT.replace("0x400", "0x408")
    unnamed = "0030 ffffffff 0 SYNCS.PHASECHK.TRANS64.TRYWAIT 1 R2 0 0 0 NoVal"
    chain = [CHAIN] * 40
    first = cycles_of([small, large, WAIT, *chain, EXIT])
    assert cycles_of([small, large, other, *chain, EXIT]) > first + 300
    assert cycles_of([small, large, unnamed, *chain, EXIT]) == cycles_of([small, large, other, *chain, EXIT])
    assert cycles_of([small, large, WAIT, other, *chain, EXIT]) >= cycles_of([small, large, other, *chain, EXIT])


def test_a_multicast_reads_l2_once_and_replies_to_every_sm():
    """Both thread blocks copy; with the multicast each one's data goes to both, through ports of a sector in 4 cycles."""
    slow_ports = {"gpgpu_clock_domains": "1000:250:1000:500"}
    once, apart = (
        run([COPY.format(cast=cast, bytes=4096, at=0), WAIT, EXIT], ctas=2, cluster=2, options=slow_ports)
        for cast in ("1 0003", "0")
    )
    assert once.count(core.L2_READS) == apart.count(core.L2_READS) == 2 * 128
    assert once.cycles - apart.cycles == pytest.approx(128 * 4, abs=8)


def test_the_first_block_of_a_cluster_gets_what_it_copies_and_its_peers_wait_for_it():
    leader = "00a0 00000001 0 UTMALDG.2D 1 UR4 4 0x400 1 0003 4096 0 3 1 0x7fb000000000 0 0 NoVal"
    kernel = trace_of([leader, WAIT, EXIT], ctas=2, cluster=2)
    # The second block copies nothing itself: its line becomes one that accesses nothing.
    second = kernel.warp_start[1]
    kernel.instructions[second] &= ~np.uint64(lines.HAS_ACCESS | lines.MULTICAST)
    result = Simulation(machine_of(HOPPER)).run(kernel)
    assert result.count(core.L2_READS) == 128
    assert result.count(core.DONE_CTAS) == 2


def test_a_clusters_blocks_begin_together_on_one_gpc():
    """Four SMs of room for one block each: two clusters of two run at a time, the third waits for a whole pair."""
    long = [CHAIN] * 200 + [EXIT]
    big = {"gpgpu_shmem_size": "65536"}
    two = cycles_of(long, ctas=4, cluster=2, shared_bytes=65536, options=big)
    three = cycles_of(long, ctas=6, cluster=2, shared_bytes=65536, options=big)
    assert three == pytest.approx(2 * two, rel=0.02)
    whole = cycles_of(long, ctas=8, cluster=4, shared_bytes=65536, options=big)
    assert whole == pytest.approx(2 * two, rel=0.02)


def test_a_cluster_that_no_gpc_has_room_for_is_refused():
    with pytest.raises(BadTrace, match="a cluster has 8 thread blocks, and a GPC of this config has room for 4"):
        run([EXIT], ctas=8, cluster=8, shared_bytes=65536)


def test_another_blocks_shared_memory_is_180_cycles_farther():
    own = "00b0 ffffffff 1 R9 LD.E 1 R2 4 1 0x7f0000000100 4 0 0 NoVal"
    base = HEADER.replace("local mem base_addr = 0x00007f0001000000", "local mem base_addr = 0x00007f0100000000")
    use = "00c0 ffffffff 1 R9 FFMA 3 R9 R9 R9 0 0 0 NoVal"

    def cycles(line):
        text = base.format(version=6, binary=90, lineinfo=0, ctas=1)
        return (
            Simulation(machine_of(HOPPER))
            .run(read_text(f"{text}#BEGIN_TB\nwarp = 0\ninsts = 3\n{line}\n{use}\n{EXIT}\n#END_TB\n"))
            .cycles
        )

    peer = own.replace("0x7f0000000100", "0x7f0001000100")
    assert cycles(peer) - cycles(own) == core.DISTRIBUTED_CYCLES == 180
    stored = words_of("0 1 0 STAS.64 2 R4 R5 8 1 0x1000100 8 0 0 NoVal", version=6, binary=90)
    assert stored == (opcodes.SHARED_STORE, [1])


def test_a_loop_that_polls_is_one_wait():
    poll = [
        "00d0 00000000 0 REPLAY_START 0 0 0 0 NoVal",
        WAIT,
        "00e0 ffffffff 0 BRA 0 0 0 0 NoVal",
        WAIT,
        "00e0 ffffffff 0 BRA 0 0 0 0 NoVal",
        "00f0 00000000 0 REPLAY_END 0 0 0 0 NoVal",
    ]
    copy = COPY.format(cast=0, bytes=4096, at=0)
    replayed, once = trace_of([copy, *poll, CHAIN, EXIT]), trace_of([copy, WAIT, CHAIN, EXIT])
    assert replayed.instructions.tolist() == once.instructions.tolist()
    assert replayed.memory.tolist() == once.memory.tolist()


def test_instructions_that_change_registers_at_hand_take_an_issue_slot_and_nothing_else():
    line = "0100 ffffffff 0 USETMAXREG.DEALLOC.CTAPOOL 0 0 40 0 NoVal"
    assert cycles_of([line, *[CHAIN] * 20, EXIT]) <= cycles_of([*[CHAIN] * 20, EXIT]) + 2


def test_a_mask_that_is_none_is_named():
    with pytest.raises(BadTrace, match="'xyz' is no mask of a cluster's 16 thread blocks"):
        trace_of([COPY.format(cast="1 xyz", bytes=4096, at=0), EXIT])


def test_a_wait_with_an_address_leaves_the_words_to_those_that_access_memory():
    load = "0110 ffffffff 1 R9 LDG.E 1 R2 4 1 0x7fb000000000 4 0 0 NoVal"
    assert trace_of([WAIT, load, EXIT]).memory.tolist() == trace_of([load, EXIT]).memory.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_compiled_code_says_what_plain_python_says(monkeypatch, seed):
    chance = np.random.default_rng(seed)
    kinds = (
        CHAIN,
        WGMMA.format(n=128, commit=0),
        WGMMA.format(n=64, commit=1),
        ALL_DONE,
        WAIT,
        "0090 ffffffff 1 R9 LDS 1 R2 4 1 0x0 8 0 0 NoVal",
        "00b0 ffffffff 0 STAS.64 2 R4 R5 8 1 0x1000100 8 0 0 NoVal",
        "0110 ffffffff 1 R9 LDG.E 1 R2 4 1 0x7fb0000{at:05x} 4 0 0 NoVal",
        "0060 00000001 0 UTMALDG.2D 1 UR4 4 0x400 1 {cast:04x} 2048 0 3 1 0x7fb0000{at:05x} 0 0 NoVal",
        "0070 00000001 0 UTMASTG.2D 1 UR4 4 0x400 0 1024 0 3 1 0x7fb0010{at:05x} 0 0 NoVal",
    )

    def some():
        kind = kinds[chance.integers(len(kinds))]
        return kind.format(at=int(chance.integers(0, 1 << 10)) * 128, cast=int(chance.integers(1, 16)))

    trace = trace_of([*(some() for _ in range(24)), EXIT], ctas=48, cluster=4)
    machine = machine_of(HOPPER | {"gpgpu_n_clusters": "6"})
    compiled = Simulation(machine).run(trace)
    monkeypatch.setattr(sys.modules[Simulation.__module__], "core", plain_core(monkeypatch))
    monkeypatch.setattr(sys.modules[Simulation.__module__], "PAUSE_WORK", 97)  # going on changes nothing either
    with np.errstate(over="ignore"):
        assert Simulation(machine).run(trace).told == compiled.told, f"seed {seed}"
