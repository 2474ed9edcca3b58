"""A kernel in parts: paused, cancelled, read as it goes on, sampled by waves or SMs, or taken over from an equal one."""

import lzma
import struct
import threading

import numpy as np
import pytest
import zstandard

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.kernels.sass_traces.kernelslist import BadTrace
from services.simworker.simulators.sass import core, simulator
from services.simworker.simulators.sass.command import simulate_folder
from services.simworker.simulators.sass.machine import machine_of
from services.simworker.simulators.sass.reading import KernelReader, KernelTrace, open_reader, read_kernel, read_text
from services.simworker.simulators.sass.sampling import MEASURED, Sampler, digest_of, part_of
from services.simworker.simulators.sass.simulator import Simulation
from tests.unit.test_sass_reading import HEADER
from tests.unit.test_sass_simulator import CHAIN, EXIT, MACHINE, trace_of

LOAD = "0030 ffffffff 1 R4 LDG.E 1 R2 4 1 0x7fb000{0:06x} 4 0"
USE = "0040 ffffffff 1 R5 FFMA 3 R4 R4 R4 0 0"


def streaming_text(ctas, *, warps=4, loads=8, broken_after=None):
    """Each CTA loads so many lines of its own; those after `broken_after` cannot be read."""
    head = HEADER.format(version=5, binary=80, lineinfo=0, ctas=ctas).replace("(32,1,1)", f"({32 * warps},1,1)")
    blocks = []
    for cta in range(ctas):
        lines = [LOAD.format((cta * loads + n) * 128) for n in range(loads)] + [USE, *[CHAIN] * 20, EXIT]
        if broken_after is not None and cta > broken_after:
            lines[0] = "0030 ffffffff 1 R4 NOSUCH 0 0 0"
        body = "".join(f"{line}\n" for line in lines)
        blocks.append(
            "#BEGIN_TB\n" + "".join(f"warp = {n}\ninsts = {len(lines)}\n{body}" for n in range(warps)) + "#END_TB\n"
        )
    return head + "".join(blocks)


@pytest.fixture
def machine():
    return machine_of(MACHINE)


def test_who_watches_hears_of_thread_blocks_and_cycles_and_changes_nothing(machine, monkeypatch):
    trace = trace_of(*[[CHAIN] * 50 + [EXIT]] * 8, ctas=40)
    alone = Simulation(machine).run(trace)
    monkeypatch.setattr(simulator, "PAUSE_WORK", 1000)
    heard = []
    assert Simulation(machine).run(trace, heard.append).told == alone.told
    assert [one.ctas_done for one in heard] == sorted(one.ctas_done for one in heard)
    assert len(heard) >= 10
    assert heard[-1].warp_instructions < alone.count(core.INSTRUCTIONS) == 40 * 8 * 51
    assert 0 < heard[0].cycles < heard[-1].cycles <= alone.cycles
    assert "of 40 thread blocks" in heard[-1].line()


def test_what_a_watch_raises_ends_the_kernel(machine, monkeypatch):
    monkeypatch.setattr(simulator, "PAUSE_WORK", 1000)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Simulation(machine).run(trace_of(*[[CHAIN] * 50 + [EXIT]] * 8, ctas=40), stop)


def test_a_kernel_read_as_it_goes_on_is_the_same_kernel_in_less_memory(tmp_path, machine, monkeypatch):
    file = tmp_path / "kernel-1.traceg.xz"
    file.write_bytes(lzma.compress(streaming_text(600).encode()))
    whole = Simulation(machine).run(read_kernel(file))
    monkeypatch.setattr(simulator, "RECORD_BYTES_LIMIT", 100_000)
    largest = 0

    class Measured(KernelReader):
        def let_go(self, next_cta, running):
            nonlocal largest
            largest = max(largest, self.record_bytes)
            return super().let_go(next_cta, running)

    monkeypatch.setattr("services.simworker.simulators.sass.reading.KernelReader", Measured)
    in_parts = Simulation(machine).run(open_reader(file))
    assert in_parts.told == whole.told
    assert in_parts.thread_instructions == whole.thread_instructions
    assert 0 < largest < whole.count(core.INSTRUCTIONS) * 8


def test_a_kernel_read_as_it_goes_on_that_turns_out_cut_is_refused(tmp_path, machine):
    file = tmp_path / "kernel-1.traceg"
    text = streaming_text(600)
    file.write_text(text[: len(text) * 3 // 4])
    with pytest.raises(BadTrace, match="so it was cut"):
        Simulation(machine).run(open_reader(file))


def test_steady_waves_are_taken_for_granted_and_only_their_thread_blocks_are_read(tmp_path, machine):
    file = tmp_path / "kernel-1.traceg"
    file.write_text(streaming_text(2000, broken_after=1000))
    text = streaming_text(2000)
    (tmp_path / "whole.traceg").write_text(text)
    whole = Simulation(machine).run(read_kernel(tmp_path / "whole.traceg"))
    part = Simulation(machine).run(open_reader(file), sampled_waves=4)
    assert part.sampled is not None
    assert part.sampled.cta_count < 500
    assert part.cycles == pytest.approx(whole.cycles, rel=0.03)
    assert part.count(core.INSTRUCTIONS) == whole.count(core.INSTRUCTIONS)
    assert part.thread_instructions == pytest.approx(whole.thread_instructions, rel=0.01)
    with pytest.raises(BadTrace, match="NOSUCH"):
        Simulation(machine).run(open_reader(file))


def test_waves_that_differ_are_all_simulated(machine):
    """Eight thread blocks fit on the machine: eight slow ones, eight fast ones, and so on."""
    text = streaming_text(80, warps=8, loads=0)
    head, *blocks = text.split("#BEGIN_TB")
    slow = [
        block.replace("insts = 22", "insts = 82").replace(EXIT, "\n".join([CHAIN] * 60 + [EXIT])) for block in blocks
    ]
    mixed = [slow[n] if n // 8 % 2 else blocks[n] for n in range(80)]
    alike, differing = (read_text("#BEGIN_TB".join([head, *some])) for some in (slow, mixed))
    assert Simulation(machine).run(alike, sampled_waves=4).sampled is not None
    assert Simulation(machine).run(differing, sampled_waves=4).sampled is None


def test_some_thread_blocks_of_a_kernel_are_the_kernel_of_these(machine):
    trace = trace_of([CHAIN, LOAD.format(0), USE, EXIT], [CHAIN] * 3 + [EXIT], ctas=9)
    some = trace.only(np.array([1, 4, 7]))
    same = trace_of([CHAIN, LOAD.format(0), USE, EXIT], [CHAIN] * 3 + [EXIT], ctas=3)
    for column in ("instructions", "memory", "warp_start", "warp_memory", "warp_index", "cta_warp", "cta_rank"):
        assert np.array_equal(getattr(some, column), getattr(same, column)), column


def test_a_part_of_the_sms_has_their_part_of_the_rates_and_all_of_the_cache():
    machine = machine_of(MACHINE | {"gpgpu_n_clusters": "100", "gpgpu_n_mem": "40"})
    part = part_of(machine, 100)
    assert (part.sm_count, part.channels) == (16, 6)
    assert part.channels / part.dram_atom_clocks == pytest.approx(machine.channels / machine.dram_atom_clocks * 0.16)
    assert part.channels * part.l2_sets == pytest.approx(machine.channels * machine.l2_sets, rel=0.1)


@pytest.fixture
def folder(tmp_path):
    traces = tmp_path / "traces"
    traces.mkdir()
    text = streaming_text(12)
    for number in (1, 2, 3, 4):
        (traces / f"kernel-{number}.traceg").write_text(text.replace("kernel id = 1", f"kernel id = {number}"))
    (traces / "kernelslist.g").write_text("".join(f"kernel-{number}.traceg\n" for number in (1, 2, 3, 4)))
    return traces


def test_equal_kernels_are_simulated_cold_and_warm_and_then_taken_over(folder):
    ours = simulate_folder(folder, "a100_sxm_80gb", lambda: 0.0, sample="kernels")["kernels"]
    whole = simulate_folder(folder, "a100_sxm_80gb", lambda: 0.0)["kernels"]
    assert [kernel["cycles"] for kernel in ours] == [kernel["cycles"] for kernel in whole]
    assert ["sampled" in kernel for kernel in ours] == [False, False, True, True]
    assert ours[3]["sampled"]["by"] == "kernels"
    assert ours[3]["sampled"]["measured_error"]["worst"] == MEASURED["kernels"].worst
    assert ours[3]["file"] == "kernel-4.traceg"


def test_kernels_that_differ_in_an_address_are_not_equal():
    one, other = (trace_of([LOAD.format(address), USE, EXIT]) for address in (0, 128))
    assert digest_of(one) == digest_of(trace_of([LOAD.format(0), USE, EXIT])) != digest_of(other)


def test_a_kept_trace_of_any_size_is_sampled_alike(tmp_path, machine, monkeypatch):
    file = tmp_path / "kernel-1.traceg"
    file.write_text(streaming_text(2000))
    sampler = Sampler(machine, "auto")
    fresh, _ = sampler.run(file, None, None)
    read_kernel(file)
    Sampler(machine, "off").run(file, tmp_path / "kept", None)
    monkeypatch.setattr("services.simworker.simulators.sass.kept.MAPPED_BYTES", 1)
    kept, _ = Sampler(machine, "auto").run(file, tmp_path / "kept", None)
    assert kept.cycles == fresh.cycles
    assert (kept.sampled, fresh.sampled.kind) == (fresh.sampled, "waves")


def tracez(file, text):
    """The text as the container has it: each warp's lines alone, found by an index at the end."""
    head, *blocks = text.split("#BEGIN_TB")
    body = head.partition("\n\n")[0].encode() + b"\0" + struct.pack("<II", 0, 2048)
    pack = zstandard.ZstdCompressor()
    index = struct.pack("<I", len(blocks))
    for number, block in enumerate(blocks):
        warps = block.replace("#END_TB\n", "").split("warp = ")[1:]
        index += struct.pack("<11I", number, 0, 0, number, 0, 0, 0, 0, 0, 0, len(warps))
        for warp in warps:
            lines = warp.split("\n", 2)[2].removesuffix("\n")
            count = lines.count("\n") + 1
            packed = pack.compress(lines.encode())
            index += struct.pack("<IIQI", count, 1, len(body), count)
            body += struct.pack("<III", count, 1, len(packed)) + packed
    file.write_bytes(body + index + struct.pack("<Q", len(body)))
    return file


@pytest.fixture
def unpacked(monkeypatch):
    """The parts of containers that are decompressed from now on."""
    seen = []
    original = zstandard.ZstdDecompressor

    class Counting:
        def __init__(self, **options):
            self.inner = original(**options)

        def decompress(self, packed, **options):
            seen.append(packed)
            return self.inner.decompress(packed, **options)

    monkeypatch.setattr(zstandard, "ZstdDecompressor", Counting)
    return seen


def test_a_tracez_is_opened_only_as_far_as_the_sample_goes(tmp_path, machine, unpacked):
    file = tracez(tmp_path / "kernel-1.tracez", streaming_text(2000))
    part = Simulation(machine).run(open_reader(file), sampled_waves=4)
    assert part.sampled is not None
    assert len(unpacked) <= 4 * (part.sampled.cta_count + 200)  # of 4 × 2000 warps


def test_several_threads_simulate_at_once_and_alike(machine):
    trace = trace_of(*[[CHAIN] * 50 + [EXIT]] * 8, ctas=40)
    results: list[int | None] = []
    threads = [threading.Thread(target=lambda: results.append(Simulation(machine).run(trace).cycles)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert isinstance(trace, KernelTrace)


def many_sms():
    return machine_of(MACHINE | {"gpgpu_n_clusters": "40", "gpgpu_n_mem": "20"})


@pytest.mark.parametrize("ctas", [400, 5])
def test_a_tracez_is_opened_only_for_the_thread_blocks_of_the_sampled_sms(tmp_path, unpacked, ctas):
    text = streaming_text(ctas, loads=0)
    plain = tmp_path / "kernel-1.traceg"
    plain.write_text(text)
    whole, _ = Sampler(many_sms(), "sms").run(plain, None, None)
    file = tracez(tmp_path / "kernel-1.tracez", text)
    part, _ = Sampler(many_sms(), "sms").run(file, tmp_path / "kept", None)
    assert (part.cycles, part.told, part.sampled) == (whole.cycles, whole.told, whole.sampled)
    assert part.thread_instructions == whole.thread_instructions
    sampled_ctas = 160 if ctas == 400 else ctas
    assert (whole.sampled.cta_count if whole.sampled else ctas) == sampled_ctas
    assert len(unpacked) == 4 * sampled_ctas  # warps
    assert (tmp_path / "kept").exists() == (whole.sampled is None)  # a part is not kept as if it were the kernel


def test_a_kernel_that_sampled_sms_say_nothing_about_is_read_whole_after_all(tmp_path):
    text = streaming_text(400, loads=1)
    plain = tmp_path / "kernel-1.traceg"
    plain.write_text(text)
    file = tracez(tmp_path / "kernel-1.tracez", text)
    results = [Sampler(many_sms(), "sms").run(path, None, None)[0] for path in (plain, file)]
    assert results[0].sampled is None
    assert results[0].told == results[1].told == Simulation(many_sms()).run(read_kernel(plain)).told


def test_an_index_that_lacks_a_sampled_thread_block_is_told(tmp_path):
    text = streaming_text(400, loads=0).replace("grid dim = (400,1,1)", "grid dim = (440,1,1)")
    with pytest.raises(BadTrace, match="has 160 thread blocks of the 176 that were looked for"):
        Sampler(many_sms(), "sms").run(tracez(tmp_path / "kernel-1.tracez", text), None, None)
