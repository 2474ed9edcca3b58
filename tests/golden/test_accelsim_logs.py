"""Recorded output of the real Accel-Sim 1.3: every number is read as it was counted, every end explained as it was."""

import gzip
import json
import lzma

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.kernels.sass_traces.kernelslist import read_kernelslist
from services.simworker.simulators.accelsim.failures import Ended, failure_of
from services.simworker.simulators.accelsim.output import Output
from services.simworker.simulators.accelsim.preflight import obstacle, prepare
from services.simworker.simulators.sass.machine import machine_of
from services.simworker.simulators.sass.options import read_options
from services.simworker.simulators.sass.reading import read_kernel

ENDS = {
    "badop": "unknown_opcode",
    "badopt": "bad_config",
    "badxz": "cut_trace",
    "bigshm": "cta_too_large",
    "bv89": "unsupported_binary_version",
    "bv90": "unsupported_binary_version",
    "empty": "nothing_simulated",
    "gridmore": "incomplete_grid",
    "launch0": None,
    "liveness_example": None,
    "maxcyc": "cycle_limit",
    "missing_cfg": "bad_config",
    "missing_kernel": "missing_trace",
    "missing_kl": "bad_list",
    "nonl": "cut_trace",
    "ok": None,
    "tracez": "unsupported_file",
    "trunc": "incomplete_grid",
    "v6text": "unsupported_text_version",
    "wrongext": "unsupported_file",
}
COUNTED = {
    "gpu_sim_cycle": "gpu_sim_cycle",
    "gpu_sim_insn": "gpu_sim_insn",
    "gpgpu_n_tot_w_icount": "gpgpu_n_tot_w_icount",
    "L1D_total_cache_accesses": "L1D_total_cache_accesses",
    "L2_total_cache_accesses": "L2_total_cache_accesses",
    "L2_total_cache_misses": "L2_total_cache_misses",
    "total dram reads": "total_dram_reads",
    "total dram writes": "total_dram_writes",
    "gpgpu_n_shmem_bkconflict": "gpgpu_n_shmem_bkconflict",
}


@pytest.fixture(scope="module")
def accelsim(shared):
    return shared / "data" / "accelsim"


def read_log(folder):
    output = Output()
    with gzip.open(folder / "stdout.log.gz", "rt", errors="replace") as file:
        for line in file:
            output.feed(line)
    output.close()
    stderr = folder / "stderr.log"
    text = stderr.read_text(errors="replace") if stderr.exists() else ""
    return output, Ended(int((folder / "exit_code").read_text()), "itself", text)


def test_the_whole_catalogue_is_recorded(accelsim):
    assert {folder.name for folder in (accelsim / "logs" / "failures").iterdir()} == set(ENDS)


@pytest.mark.parametrize("name", ENDS)
def test_each_recorded_end_has_its_reason(accelsim, name):
    output, ended = read_log(accelsim / "logs" / "failures" / name)
    failure = failure_of(ended, output, 1)
    assert (failure and failure.code) == ENDS[name], failure


def test_every_statistic_of_every_recorded_run_is_read(accelsim):
    recorded = json.loads((accelsim / "results.json").read_text())["results"]
    kernels = 0
    for name, configs in recorded.items():
        for config, run in configs.items():
            folder = accelsim / "logs" / "runs" / name / config
            if not (folder / "stdout.log.gz").exists():
                continue
            output, ended = read_log(folder)
            failure = failure_of(ended, output, len(run["kernels"]) or 1)
            assert (failure is None) == run["completed"], (name, config, failure)
            finished = [kernel for kernel in output.kernels if kernel.is_finished]
            assert len(finished) == len(run["kernels"])
            for kernel, known in zip(finished, run["kernels"], strict=True):
                kernels += 1
                assert kernel.name == known["kernel_name"]
                for ours, theirs in COUNTED.items():
                    if theirs in known:
                        assert kernel.counters[ours] == known[theirs], (name, config, kernel.uid, ours)
    assert kernels > 325


def test_what_was_recorded_to_abort_is_found_beforehand(accelsim):
    """Configs that lack a unit, or hash over 160 sub-partitions, or have too small an SM."""
    recorded = json.loads((accelsim / "results.json").read_text())["results"]
    folders = {
        "vectoradd": "vectoradd-mgpusim",
        "fi-decode": "flashinfer-singledecode",
        "fi-prefill": "flashinfer-prefill",
    }
    for name, folder in folders.items():
        trace = read_kernel(read_kernelslist(accelsim / "traces" / folder).files[0])
        for config, run in recorded[name].items():
            machine = machine_of(read_options(accelsim / "logs" / "configs" / config))
            found = obstacle(trace, machine, is_version_2=False)
            assert (found is None) == run["completed"], (name, config, found)


def test_mended_masks_are_those_that_made_the_recorded_set_end(accelsim, tmp_path):
    mended = 0
    for path in read_kernelslist(accelsim / "traces" / "nn-onestep").files:
        trace = read_kernel(path)
        folder = tmp_path / path.name
        folder.mkdir()
        changes = prepare(path, trace, folder, is_version_2=False)
        if not changes:
            assert (folder / "kernel-1.traceg.xz").resolve() == path.resolve()
            continue
        mended += 1
        assert changes == ("EXIT masks mended",)
        written = (folder / "kernel-1.traceg").read_text()
        known = lzma.decompress((accelsim / "traces" / "nn-onestep-exitfixed" / path.name).read_bytes()).decode()
        assert body_of(written) == body_of(known)
    assert mended == 15  # of the 18 files that the repaired copy changes, those that are listed


def body_of(text):
    return [line.split() for line in text.partition("#traces format")[2].splitlines()[1:] if line.strip()]
