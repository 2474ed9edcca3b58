"""Every broken trace that Accel-Sim aborts on, or worse passes over with exit code 0, gets one precise sentence."""

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.simworker.simulators.sass.command import simulate_folder

SENTENCES = {
    "bv90": "kernel-1.traceg, line 7: binary version 90 needs tracer version 6",
    "badop": "kernel-1.traceg, line 31: HGMMA.64x64x16.F32 is no instruction of sm_80; it came with sm_90",
    "bigshm": "kernel-1.traceg: one thread block needs 200000 B of shared memory, and an SM of this config has 102400",
    "trunc": "more instructions of the warp were announced, so it was cut",
    "nonl": "the file ends within '#END_TB' without a newline, so it was cut",
    "gridmore": "kernel-1.traceg: has 2 thread blocks where its grid 4x1x1 has 4",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_broken_trace_gets_a_sentence(shared, name):
    data = shared / "data" / "accelsim"
    report = simulate_folder(data / "traces" / "broken" / name, str(data / "logs/configs/SM86_RTX3070"), lambda: 0.0)
    (kernel,) = report["kernels"]
    assert kernel["cycles"] is None
    assert SENTENCES[name] in kernel["error"]


def test_the_wrong_exit_mask_is_named_and_mended(shared):
    data = shared / "data" / "accelsim"
    folder = data / "traces" / "broken" / "exit-mask-deadlock"
    (kernel,) = simulate_folder(folder, str(data / "logs/configs/SM86_RTX3070"), lambda: 0.0)["kernels"]
    assert kernel["cycles"] > 500
    assert kernel["deadlock"] == (
        "kernel-35.traceg.xz, line 146: lanes 0 go on after an EXIT whose mask named them (1 warps of the kernel have "
        "such masks), so that Accel-Sim 1.x deadlocks here"
    )


def test_a_set_that_deadlocks_in_accelsim_says_where(shared):
    data = shared / "data" / "accelsim"
    report = simulate_folder(data / "traces" / "nn-onestep", str(data / "logs/configs/SM75_RTX2060"), lambda: 0.0)
    deadlocked = [kernel["file"] for kernel in report["kernels"] if "deadlock" in kernel]
    assert deadlocked[0] == "kernel-35.traceg.xz"  # as recorded: 28 kernels end, the 29th never does
    assert len(deadlocked) == 15  # of the 18 files that the repaired copy changes, those that are listed
    assert all(kernel["cycles"] for kernel in report["kernels"])
