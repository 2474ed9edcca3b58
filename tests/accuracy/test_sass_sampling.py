"""Kernels simulated in part against the same kernels simulated whole: the errors that a sampled result states."""

import json
import statistics
from dataclasses import replace

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.kernels.sass_traces.kernelslist import read_kernelslist
from services.simworker.simulators.sass.machine import machine_of
from services.simworker.simulators.sass.options import read_options
from services.simworker.simulators.sass.reading import read_kernel
from services.simworker.simulators.sass.sampling import MEASURED, WAVES, WAVES_WORTH_IT, Sampler
from services.simworker.simulators.sass.simulator import Simulation
from tests.accuracy.test_sass_against_accelsim import HARDWARE

FEW_SMS = (1, 2, 4, 8, 16)  # of a machine, with its channels in proportion: recorded grids are no more than three waves


@pytest.fixture(scope="module")
def sets(shared):
    """name -> (kernels as files, kernels, machine of each config that completed)."""
    data = shared / "data" / "accelsim"
    found = {}
    for name, configs in json.loads((data / "results.json").read_text())["results"].items():
        folder = data / "traces" / HARDWARE.get(name, name)
        machines = [
            machine_of(read_options(data / "logs" / "configs" / config))
            for config, run in configs.items()
            if run["completed"]
        ]
        if folder.is_dir() and machines:
            files = read_kernelslist(folder).files
            found[name] = files, [read_kernel(file) for file in files], machines
    return found


def check(kind, pairs):
    """(cycles in part, cycles whole) of each kernel: what was measured is what every sampled result says of itself."""
    errors = [abs(part / whole - 1) for part, whole in pairs]
    said = MEASURED[kind]
    assert len(errors) == said.kernels
    assert statistics.mean(errors) == pytest.approx(said.mean, abs=0.0005)
    assert max(errors) == pytest.approx(said.worst, abs=0.0005)


def test_waves_are_off_by_what_their_results_say(sets):
    pairs = []
    thread_blocks = [0, 0]
    for _, kernels, machines in sets.values():
        for machine in machines:
            for sms in FEW_SMS:
                small = replace(machine, sm_count=sms, channels=max(1, machine.channels * sms // machine.sm_count))
                for kernel in kernels:
                    if kernel.cta_count < WAVES_WORTH_IT * small.resident_ctas(kernel.header)[0] * sms:
                        continue
                    part = Simulation(small).run(kernel, sampled_waves=WAVES)
                    if part.sampled is not None:
                        pairs.append((part.cycles, Simulation(small).run(kernel).cycles))
                        thread_blocks[0] += part.sampled.cta_count
                        thread_blocks[1] += kernel.cta_count
    check("waves", pairs)
    assert thread_blocks[0] < 0.55 * thread_blocks[1]


def test_some_sms_are_off_by_what_their_results_say(sets):
    check("sms", list(in_part(sets, "sms")))


def test_equal_kernels_are_off_by_what_their_results_say(sets):
    check("kernels", list(in_part(sets, "kernels")))


def in_part(sets, mode):
    """Kernel after kernel, as a command has them."""
    for files, kernels, machines in sets.values():
        for machine in machines:
            sampler, whole = Sampler(machine, mode), Simulation(machine)
            for file, kernel in zip(files, kernels, strict=True):
                part, full = sampler.run(file, None, None)[0], whole.run(kernel)
                if part.sampled is not None:
                    yield part.cycles, full.cycles
