"""Cycles against recorded runs of the real Accel-Sim 1.3, launch latency removed from both."""

import json
import statistics
from collections import defaultdict

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.kernels.sass_traces.kernelslist import read_kernelslist
from services.simworker.simulators.sass.machine import machine_of
from services.simworker.simulators.sass.options import read_options
from services.simworker.simulators.sass.reading import read_kernel
from services.simworker.simulators.sass.simulator import Simulation

HARDWARE = {  # recorded on a GPU; the others are made by hand to strain one part each
    "vectoradd": "vectoradd-mgpusim",
    "fi-decode": "flashinfer-singledecode",
    "fi-prefill": "flashinfer-prefill",
    "fi-gemm": "flashinfer-gemm",
    "nnfix": "nn-onestep-exitfixed",
}
KNOWN_WORST = {("hand_ffma", "SM75_RTX2060", 1)}  # -30 %: DEVIATIONS.md


@pytest.fixture(scope="module")
def errors(shared):
    """(set, config) -> per kernel (simulated, recorded) cycles, of all runs that completed and whose set is stored."""
    data = shared / "data" / "accelsim"
    recorded = json.loads((data / "results.json").read_text())["results"]
    found = defaultdict(list)
    for name, configs in recorded.items():
        folder = data / "traces" / HARDWARE.get(name, name)
        if not folder.is_dir():
            continue
        traces = None
        for config, run in configs.items():
            if not run["completed"]:
                continue
            traces = traces or [read_kernel(file) for file in read_kernelslist(folder).files]
            simulation = Simulation(machine_of(read_options(data / "logs" / "configs" / config)))
            for trace, kernel in zip(traces, run["kernels"], strict=True):
                found[name, config].append((simulation.run(trace).cycles, kernel["cycles_minus_launch"]))
    assert sum(map(len, found.values())) == 325
    return found


def relative(pairs):
    return sum(simulated for simulated, _ in pairs) / sum(recorded for _, recorded in pairs) - 1


def test_sets_recorded_on_hardware_are_within_five_percent_on_average(errors):
    of_pairs = {key: relative(pairs) for key, pairs in errors.items() if key[0] in HARDWARE}
    assert statistics.mean(map(abs, of_pairs.values())) <= 0.05, of_pairs


def test_all_pairs_are_within_eight_percent_on_average_and_none_above_twenty_five(errors):
    of_pairs = {key: relative(pairs) for key, pairs in errors.items()}
    assert statistics.mean(map(abs, of_pairs.values())) <= 0.08, of_pairs
    assert max(map(abs, of_pairs.values())) <= 0.25, of_pairs


def test_kernels_are_within_five_percent_in_the_median_and_fifteen_at_the_95th_percentile(errors):
    of_kernels = sorted(abs(relative([pair])) for pairs in errors.values() for pair in pairs)
    assert statistics.median(of_kernels) <= 0.02
    assert of_kernels[int(0.95 * len(of_kernels))] <= 0.15


def test_the_worst_kernels_are_the_known_ones(errors):
    worst = {
        (*key, index)
        for key, pairs in errors.items()
        for index, pair in enumerate(pairs)
        if abs(relative([pair])) > 0.25
    }
    assert worst == KNOWN_WORST
