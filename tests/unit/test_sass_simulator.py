"""Cycles of tiny kernels, to the cycle, and the same from plain Python as from compiled code."""

import importlib
import sys

import numpy as np
import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.kernels.sass_traces.kernelslist import BadTrace
from services.simworker.simulators.sass import core, jit
from services.simworker.simulators.sass.command import BadInput, simulate_folder
from services.simworker.simulators.sass.machine import machine_of
from services.simworker.simulators.sass.reading import read_text
from services.simworker.simulators.sass.simulator import Simulation, report_of
from tests.unit.test_sass_machine import TINY
from tests.unit.test_sass_reading import HEADER

QUIET = {"trace_opcode_latency_initiation_sp": "4,1", "trace_opcode_latency_initiation_int": "4,2"}
MACHINE = TINY | QUIET | {"gpgpu_num_sched_per_core": "4", "gpgpu_num_reg_banks": "32"}
CHAIN = "0010 ffffffff 1 R8 FFMA 3 R2 R4 R8 0 0"  # each waits for the one before
EXIT = "0020 ffffffff 0 EXIT 0 0 0"


def trace_of(*warps, ctas=1):
    cta = "".join(
        f"warp = {n}\ninsts = {len(lines)}\n" + "".join(f"{x}\n" for x in lines) for n, lines in enumerate(warps)
    )
    head = HEADER.format(version=5, binary=80, lineinfo=0, ctas=ctas).replace("(32,1,1)", f"({32 * len(warps)},1,1)")
    return read_text(head + f"#BEGIN_TB\n{cta}#END_TB\n" * ctas)


def cycles_of(*warps, options=None, **others):
    result = Simulation(machine_of(MACHINE | (options or {}))).run(trace_of(*warps, **others))
    assert result.cycles is not None
    return result.cycles


def test_a_dependent_instruction_issues_five_cycles_after_the_latency():
    longer = cycles_of([CHAIN] * 101 + [EXIT]) - cycles_of([CHAIN] * 1 + [EXIT])
    assert longer == 100 * (4 + 5)


def test_two_sources_in_one_bank_cost_a_cycle():
    longer = cycles_of([CHAIN] * 101 + [EXIT], options={"gpgpu_num_reg_banks": "8"})
    assert longer - cycles_of([CHAIN, EXIT], options={"gpgpu_num_reg_banks": "8"}) == 100 * (4 + 6)


def test_independent_instructions_follow_at_the_initiation_interval():
    free = [f"0010 ffffffff 1 R{8 + n % 16} IMAD 1 R2 0 0" for n in range(160)]
    assert cycles_of([*free, EXIT]) == pytest.approx(2 * 160, abs=25)


def test_warps_of_one_scheduler_share_its_pipe():
    free = [f"0010 ffffffff 1 R{8 + n % 16} IMAD 1 R2 0 0" for n in range(160)]
    one, other = cycles_of(*[[*free, EXIT]] * 4), cycles_of(*[[*free, EXIT]] * 8)
    assert other / one == pytest.approx(2, rel=0.1)


def test_bank_conflicts_hold_the_load_store_unit():
    easy = [f"0010 ffffffff 1 R{8 + n % 16} LDS 1 R2 4 1 0x0 4 0" for n in range(64)]
    hard = [line.replace("0x0 4", "0x0 128") for line in easy]
    assert cycles_of([*hard, EXIT]) - cycles_of([*easy, EXIT]) == pytest.approx(64 * 31, rel=0.02)


def test_a_second_kernel_finds_what_the_first_left_in_l2_but_not_in_l1():
    simulation = Simulation(machine_of(MACHINE | {"gpgpu_flush_l1_cache": "1"}))
    load = trace_of(["0010 ffffffff 1 R4 LDG.E 1 R2 4 1 0x7fb000000000 4 0", "0020 ffffffff 1 R5 MOV 1 R4 0 0", EXIT])
    cold, warm = report_of(simulation.run(load)), report_of(simulation.run(load))
    assert (cold["l2_read_hits"], warm["l2_read_hits"]) == (0, 4)
    assert warm["l1_read_hits"] == 0
    assert warm["cycles"] < cold["cycles"] - 40


def test_a_sector_written_in_part_is_fetched_when_it_is_read():
    simulation = Simulation(machine_of(MACHINE | {"gpgpu_flush_l1_cache": "1"}))
    simulation.run(trace_of(["0010 00000001 0 STG.E 2 R2 R3 4 1 0x7fb000000000 4 0", EXIT]))
    load = trace_of(["0010 00000001 1 R4 LDG.E 1 R2 4 1 0x7fb000000000 4 0", EXIT])
    assert report_of(simulation.run(load))["dram_read_bytes"] == 32


def test_async_copies_are_waited_for_by_group():
    copy = "0010 ffffffff 0 LDGSTS.E.128 2 R2 R4 16 1 0x7fb000{0:06x} 16 0"
    done = "0020 ffffffff 0 LDGDEPBAR 0 0 0"
    first = [copy.format(0), done]
    second = [copy.format(4096 * (n + 1)) for n in range(64)]
    late = cycles_of([*first, *second, done, "0030 ffffffff 0 DEPBAR.LE 0 0 0", *[CHAIN] * 50, EXIT])
    early = cycles_of([*first, *second, done, "0030 ffffffff 0 DEPBAR.LE 0 0 1", *[CHAIN] * 50, EXIT])
    assert early < late - 100


def test_a_barrier_releases_when_all_that_live_have_arrived():
    bar = "0010 ffffffff 0 BAR.SYNC 0 0 0"
    slow = [*[CHAIN] * 50, bar, EXIT]
    assert cycles_of(slow, [bar, *[CHAIN] * 50, EXIT]) > cycles_of([*[CHAIN] * 90, EXIT])
    assert cycles_of(slow, [EXIT]) > 0  # a warp that has left is not waited for


def test_ctas_beyond_an_sms_threads_wait_for_a_place():
    kernel = [[CHAIN] * 100 + [EXIT]] * 8  # 256 threads; 1024 fit on each of two SMs
    assert cycles_of(*kernel, ctas=9) > 1.7 * cycles_of(*kernel, ctas=8)


def test_a_thread_block_larger_than_an_sm_is_refused_with_both_sizes():
    with pytest.raises(BadTrace, match=r"one thread block needs 1056 threads, and an SM of this config has 1024"):
        Simulation(machine_of(MACHINE)).run(trace_of(*[[EXIT]] * 33))


def test_missing_inputs_get_one_sentence(tmp_path):
    with pytest.raises(BadInput, match="is no folder, and 'h900' is not a known GPU"):
        simulate_folder(tmp_path, "h900", lambda: 0.0)
    with pytest.raises(BadInput, match=r"has no kernelslist.g"):
        simulate_folder(tmp_path, "h100_sxm", lambda: 0.0)


def plain_core(monkeypatch):
    """The same module with nothing compiled."""
    monkeypatch.setattr(jit, "compiled", lambda function: function)
    monkeypatch.setattr(jit, "inner", lambda function: function)
    monkeypatch.setattr(jit, "merged", lambda function: function)
    name = core.__name__
    monkeypatch.delitem(sys.modules, name)
    plain = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, core)
    monkeypatch.setattr(sys.modules["services.simworker.simulators.sass"], "core", core)
    return plain


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scheduler", ["lrr", "gto"])
def test_compiled_code_says_what_plain_python_says(monkeypatch, seed, scheduler):
    chance = np.random.default_rng(seed)
    kinds = (
        CHAIN,
        "0010 ffffffff 1 R{a} IMAD 2 R{b} R{c} 0 0",
        "0010 ffffffff 1 R{a} HMMA.16816.F32 3 R{b} R{c} R{a} 0 0",
        "0010 ffffffff 1 R{a} LDG.E.128 1 R{b} 16 1 0x7fb0000{d:05x} 16 0",
        "0010 ffff0000 1 R{a} LDG.E 1 R{b} 4 1 0x7fb0000{d:05x} 260 0",
        "0010 ffffffff 0 STG.E.64 2 R{a} R{b} 8 1 0x7fb0000{d:05x} 8 0",
        "0010 ffffffff 1 R{a} LDS 1 R{b} 4 1 0x0 8 0",
        "0010 000000ff 1 R{a} ATOMG.E.ADD 2 R{b} R{c} 4 1 0x7fb0000{d:05x} 0 0",
        "0010 ffffffff 0 LDGSTS.E.128 2 R{a} R{b} 16 1 0x7fb0000{d:05x} 16 0",
        "0010 ffffffff 0 LDGDEPBAR 0 0 0",
        "0010 ffffffff 0 DEPBAR.LE 0 0 1",
    )

    def some():
        a, b, c = chance.integers(0, 40, 3)
        return kinds[chance.integers(len(kinds))].format(a=a, b=b, c=c, d=int(chance.integers(0, 1 << 14)) * 16)

    bar = "0010 ffffffff 0 BAR.SYNC 0 0 0"
    warps = [[*(some() for _ in range(12)), bar, *(some() for _ in range(8)), EXIT] for _ in range(5)]
    trace = trace_of(*warps, ctas=5)
    options = MACHINE | {"gpgpu_scheduler": scheduler, "gpgpu_l1_banks": "4"}
    compiled = Simulation(machine_of(options)).run(trace)
    plain = plain_core(monkeypatch)
    simulator = sys.modules[Simulation.__module__]
    monkeypatch.setattr(simulator, "core", plain)
    with np.errstate(over="ignore"):
        assert Simulation(machine_of(options)).run(trace).told == compiled.told, f"seed {seed}"


def test_waits_for_a_busy_slice_do_not_feed_on_each_other():
    """All SMs write the same lines: they queue, and what they queue for is served at its rate, however many they are."""
    store = "00{:02x} ffffffff 0 STG.E.128 2 R2 R3 16 2 0x7f00000{:02x}000 " + " ".join(["16"] * 31) + " 0"
    lines = [store.format(n, n) for n in range(24)]
    many = MACHINE | {"gpgpu_n_clusters": "108", "gpgpu_n_mem": "40", "gpgpu_shader_cta": "32"}
    sectors = 249 * 8 * 24 * 16
    for ctas in (62, 124, 249):
        cycles = Simulation(machine_of(many)).run(trace_of(*[[*lines, EXIT]] * 8, ctas=ctas)).cycles
        assert cycles is not None
        assert cycles < sectors * ctas / 249, ctas  # one slice alone, a sector a cycle


def test_time_that_is_turned_back_changes_nothing(monkeypatch):
    """Caches have times of 32 bits; what L2 holds, and which of it was used last, stays."""
    store = "0010 ffffffff 0 STG.E.128 2 R2 R3 16 1 0x7fb000{0:06x} 16 0"
    load = "0010 ffffffff 1 R4 LDG.E.128 1 R2 16 1 0x7fb000{0:06x} 16 0"
    kernels = [
        trace_of([line.format(512 * (n * step % 301)) for n in range(120)] + [EXIT])
        for line, step in ((store, 1), (load, 3), (store, 7), (load, 5), (load, 1))
    ]
    # 32 KiB of L2, so that lines are put out.
    small = {"gpgpu_cache:dl2": "S:16:128:4,L:B:m:L:L,A:192:4,32:0,32", "gpgpu_flush_l1_cache": "1"}
    machine = machine_of(MACHINE | small)

    def told():
        simulation = Simulation(machine)
        return [simulation.run(kernel).told for kernel in kernels], simulation

    straight, _ = told()
    monkeypatch.setattr("services.simworker.simulators.sass.simulator.TURN_BACK_CYCLES", 1 << 16)
    turned, simulation = told()
    assert turned == straight
    assert simulation._base < 1 << 18
    assert straight[-1][core.DRAM_WRITES] + straight[-2][core.DRAM_WRITES] > 0


def test_a_kernel_of_more_cycles_than_can_be_counted_is_refused(monkeypatch):
    monkeypatch.setattr("services.simworker.simulators.sass.simulator.LAST_CYCLE", 1 << 17)
    monkeypatch.setattr("services.simworker.simulators.sass.simulator.PAUSE_WORK", 1000)
    with pytest.raises(BadTrace, match=r"takes more than [\d,]+ cycles"):
        Simulation(machine_of(MACHINE)).run(trace_of([CHAIN] * 30_000 + [EXIT]))
