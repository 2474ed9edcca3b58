"""Kernels simulated in part: some waves of thread blocks, some SMs, or one of several equal kernels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from services.kernels.sass_traces.header import KernelHeader
from services.simworker.simulators.sass import core
from services.simworker.simulators.sass.kept import recall, recall_or_open
from services.simworker.simulators.sass.machine import Machine
from services.simworker.simulators.sass.reading import KernelTrace, read_part
from services.simworker.simulators.sass.simulator import (
    KernelResult,
    Sampled,
    Simulation,
    Watch,
    reading_check,
    report_of,
)
from services.simworker.simulators.sass.state import UNIT, numbers_of

MODES: Final = ("off", "waves", "sms", "kernels", "auto")
"""auto: waves and kernels, whose errors are the smaller ones."""

WAVES: Final = 4  # at least, before a steady rest is taken for granted
WAVES_WORTH_IT: Final = 6  # a kernel of fewer is simulated whole
SMS: Final = 16
DRAM_BOUND_SHARE: Final = 0.5  # of what DRAM could move: above it fewer SMs say nothing about all


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """Of sampled against full runs of the same kernels, in cycles; tests/accuracy/test_sass_sampling.py measures it."""

    mean: float
    worst: float
    kernels: int


MEASURED: Final = {
    "waves": MeasuredError(0.0108, 0.0747, 38),
    "sms": MeasuredError(0.0281, 0.1541, 15),
    "kernels": MeasuredError(0.0, 0.0, 42),
}


class Sampler:
    """A machine that simulates kernel after kernel, each as far as `mode` wants."""

    def __init__(self, machine: Machine, mode: str) -> None:
        assert mode in MODES
        self.machine = machine
        self._mode = mode
        self._full = Simulation(machine)
        self._parts: dict[tuple[int, int], Simulation] = {}  # by SMs and channels: each has its own L2
        self._seen: dict[bytes, list[KernelResult]] = {}

    def run(self, path: Path, keep: Path | None, watch: Watch | None) -> tuple[KernelResult, tuple[str, ...]]:
        """A kernel's file, and warnings about it. Raises BadTrace, and whatever `watch` raises."""
        if self._mode == "sms":
            return self._run_on_few(path, keep, watch)
        by_waves = self._mode in {"waves", "auto"}
        source = recall_or_open(
            path, keep, lambda header: by_waves and self._has_many_waves(header), reading_check(watch, path.name)
        )
        if isinstance(source, KernelTrace) and self._mode in {"kernels", "auto"}:
            return self._run_once(source, watch), source.warnings
        result = self._full.run(source, watch, sampled_waves=self._waves(source.header) if by_waves else 0)
        return result, source.warnings

    def _has_many_waves(self, header: KernelHeader) -> bool:
        resident, _ = self.machine.resident_ctas(header)
        return resident > 0 and header.cta_count >= WAVES_WORTH_IT * resident * self.machine.sm_count

    def _waves(self, header: KernelHeader) -> int:
        return WAVES if self._has_many_waves(header) else 0

    def _run_once(self, trace: KernelTrace, watch: Watch | None) -> KernelResult:
        """The first kernel of its kind finds cold caches, the second one warm ones; so will those after it."""
        key = digest_of(trace)
        seen = self._seen.setdefault(key, [])
        if len(seen) == 2:
            known = seen[1]
            deadlock = known.deadlock if known.cycles is None else trace.exit_mask
            return replace(known, file=trace.file, header=trace.header, deadlock=deadlock, sampled=equal_to(known))
        result = self._full.run(trace, watch, sampled_waves=self._waves(trace.header) if self._mode == "auto" else 0)
        seen.append(result)
        return result

    def _run_on_few(self, path: Path, keep: Path | None, watch: Watch | None) -> tuple[KernelResult, tuple[str, ...]]:
        """What the sampled SMs do not run is not read, where a kept trace or the file's own index allows that."""
        check = reading_check(watch, path.name)
        source = recall(path, keep) or read_part(path, self._on_few, check) or recall_or_open(path, keep, check=check)
        if isinstance(source, KernelTrace):
            result = self._result_of_few(source, watch)
            if result is not None:
                return result, source.warnings
            if source.cta_count < source.header.cta_count:
                source = recall_or_open(path, keep, check=check)
        return self._full.run(source, watch), source.warnings

    def _on_few(self, header: KernelHeader) -> list[bool] | None:
        """Whether each thread block runs on a sampled SM; None where no SMs are sampled."""
        active = min(self.machine.sm_count, header.cta_count)
        if active < 2 * SMS:
            return None
        return [number % active < SMS for number in range(header.cta_count)]

    def _result_of_few(self, trace: KernelTrace, watch: Watch | None) -> KernelResult | None:
        """Of a whole trace or of its sampled thread blocks; None where fewer SMs say nothing about all."""
        header = trace.header
        sampled_ctas = self._on_few(header)
        if sampled_ctas is None or trace.cta_rank.any():
            return None
        wanted = np.flatnonzero(sampled_ctas)
        machine = part_of(self.machine, min(self.machine.sm_count, header.cta_count))
        part = self._parts.setdefault((machine.sm_count, machine.channels), Simulation(machine))
        is_whole = trace.cta_count == header.cta_count
        result = part.run(trace.only(wanted) if is_whole else trace, watch)
        if result.cycles is None or _dram_share(result, machine) > DRAM_BOUND_SHARE:
            return None
        sampled = Sampled("sms", len(wanted), header.cta_count, 0.0)
        thread_instructions = round(trace.thread_instructions * header.cta_count / trace.cta_count)
        return replace(result, header=header, thread_instructions=thread_instructions, sampled=sampled)


def equal_to(known: KernelResult) -> Sampled:
    """What a result is that was taken over from an equal kernel's."""
    count = known.header.cta_count
    return Sampled("kernels", known.sampled.cta_count if known.sampled else count, count, 0.0)


def digest_of(trace: KernelTrace) -> bytes:
    """Equal for kernels that a simulation cannot tell apart: same records, same need of registers and memory."""
    header = trace.header
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((header.registers, header.shared_memory_bytes, header.warps_per_cta)).encode())
    for column in trace.code:
        digest.update(column.data)
    return digest.digest()


def part_of(machine: Machine, active: int) -> Machine:
    """`SMS` of a machine's `active` SMs, with their share of channels and rates, and all of L2's capacity."""
    wanted = machine.channels * SMS / active
    channels = max(1, round(wanted))
    rate = wanted / channels
    return replace(
        machine,
        sm_count=SMS,
        channels=channels,
        l2_sets=max(1, round(machine.l2_sets * machine.channels / channels)),
        l2_hz=machine.l2_hz * rate,
        dram_atom_clocks=machine.dram_atom_clocks / rate,
    )


def _dram_share(result: KernelResult, machine: Machine) -> float:
    moved = result.told[core.DRAM_READS] + result.told[core.DRAM_WRITES]
    numbers = numbers_of(machine, 1)
    return moved * numbers.dram_cost / UNIT / numbers.channels / max(result.cycles or 0, 1)


def sampled_report(result: KernelResult) -> dict[str, Any]:
    """One kernel for `--json`; a sampled one says so, and what is known of its error."""
    report = report_of(result)
    sampled = result.sampled
    if sampled is None:
        return report
    measured = MEASURED[sampled.kind]
    return report | {
        "sampled": {
            "by": sampled.kind,
            "thread_blocks": sampled.cta_count,
            "of_thread_blocks": sampled.of_ctas,
            "wave_change": sampled.change,
            "measured_error": {"mean": measured.mean, "worst": measured.worst, "kernels": measured.kernels},
        }
    }
