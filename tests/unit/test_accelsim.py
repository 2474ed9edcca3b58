"""The user's own Accel-Sim, driven: against a program that prints and ends as it does, in every way it is known to."""

import gzip
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from services.simworker.simulators.accelsim.driver import AccelSim, NotUsable
from services.simworker.simulators.accelsim.failures import Ended, failure_of
from services.simworker.simulators.accelsim.output import Output
from services.simworker.simulators.accelsim.process import Limits

FAKE = Path(__file__).resolve().parents[1] / "fakes" / "accel_sim.py"
CONFIG = {
    "gpgpu_clock_domains": "1132:1132:1132:3500",
    "gpgpu_n_clusters": "4",
    "gpgpu_n_mem": "16",
    "gpgpu_shader_core_pipeline": "1536:32",
    "gpgpu_shmem_size": "102400",
    "gpgpu_cache:dl1": "S:4:128:64,L:T:m:L:L,A:512:8,16:0,32",
    "gpgpu_cache:dl2": "S:64:128:16,L:B:m:L:P,A:192:4,32:0,32",
    "specialized_unit_4": "1,4,4,4,4,UDP",
    "gpgpu_kernel_launch_latency": "5000",
}
BODY = (
    "#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = 2\n"
    "0000 ffffffff 1 R1 MOV 0 0 0\n0010 ffffffff 0 EXIT 0 0 0\n#END_TB\n"
)


def kernel_text(body=BODY, grid="(1,1,1)", shared=0, binary=80, tracer=5):
    return (
        f"-kernel name = k\n-kernel id = 1\n-grid dim = {grid}\n-block dim = (32,1,1)\n-shmem = {shared}\n-nregs = 16\n"
        f"-binary version = {binary}\n-cuda stream id = 0\n-accelsim tracer version = {tracer}\n"
        f"-enable lineinfo = 0\n\n#traces format = x\n{body}"
    )


@pytest.fixture
def place(tmp_path):
    class Place:
        home = tmp_path / "home"
        binary = tmp_path / "accel-sim.out"
        config = tmp_path / "config"
        traces = tmp_path / "my traces; with $HOME"

        def write_config(self, **options):
            self.config.mkdir(exist_ok=True)
            text = "".join(f"-{name} {value}\n" for name, value in (CONFIG | options).items())
            (self.config / "gpgpusim.config").write_text(text)
            (self.config / "trace.config").write_text("-trace_opcode_latency_initiation_int 4,2\n")

        def write_kernel(self, name="kernel-1.traceg", **facts):
            self.traces.mkdir(exist_ok=True)
            (self.traces / name).write_text(kernel_text(**facts))
            return self.traces / name

        def driver(self, limits=None):
            return AccelSim(
                self.binary, self.config, self.home, environ=self.environ, now_s=time.monotonic, limits=limits
            )

    found = Place()
    found.environ = dict(os.environ)
    found.binary.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n")
    found.binary.chmod(0o755)
    found.write_config()
    return found


def test_a_kernel_is_simulated_without_launch_latency_and_its_log_kept_whole(place):
    path = place.write_kernel()
    heard = []
    report = place.driver().simulate(path, lambda file, line: heard.append((file, line)))
    assert report["cycles"] == 102  # what the stand-in counts: 100 and two instructions, no latency
    assert report["warp_instructions"] == 2
    assert report["dram_read_bytes"] == 7 * 32
    assert (path.name, "gpu_sim_cycle = 102") in heard
    log = gzip.decompress((place.home / "accelsim" / report["log"]).read_bytes()).decode()
    assert "exit detected" in log
    assert [line.name for line in place.home.iterdir() if line.name.startswith("accelsim-")] == []


def test_a_result_is_kept_under_what_fixes_it_and_found_again(place):
    count = place.home.parent / "count"
    place.environ |= {"FAKE_ACCELSIM": "count", "FAKE_ACCELSIM_COUNT": str(count)}
    first, second = place.write_kernel(), place.write_kernel("kernel-2.traceg", grid="(2,1,1)", body=BODY * 2)
    place.driver().simulate(first)
    reports = place.driver().simulate_all([first, second], 2)  # as after a crash: the first is not run again
    assert [report["is_cached"] for report in reports] == [True, False]
    assert count.read_text() == "xx"
    place.write_config(dram_latency="99")  # another machine
    assert not place.driver().simulate(first)["is_cached"]
    (place.home / "accelsim").joinpath(next((place.home / "accelsim").glob("*.json")).name).write_text("{cut")
    place.write_config()
    assert all(report["cycles"] for report in place.driver().simulate_all([first, second], 1))


@pytest.mark.parametrize(
    ("facts", "code", "says"),
    [
        ({"binary": 89}, "unsupported_binary_version", "sm_89"),
        ({"shared": 200_000}, "cta_too_large", "more shmem than an SM"),
        ({"body": BODY.replace("MOV 0 0", "HGMMA.64x64x16.F32 0 0")}, "cut_trace", "HGMMA"),
        ({"grid": "(4,1,1)"}, "cut_trace", "has 1 thread blocks where its grid 4x1x1 has 4"),
        ({"body": BODY.removesuffix("\n")}, "cut_trace", "without a newline"),
        ({"body": BODY.replace("insts = 2", "insts = 3")}, "cut_trace", "more instructions"),
    ],
)
def test_what_would_abort_is_found_before_it_starts(place, facts, code, says):
    path = place.write_kernel(**facts)
    place.environ |= {"FAKE_ACCELSIM": "count", "FAKE_ACCELSIM_COUNT": str(place.home.parent / "count")}
    report = place.driver().simulate(path)
    assert report["cycles"] is None
    assert report["failure"] == code
    assert says in report["error"]
    assert not (place.home.parent / "count").exists()


def test_a_config_without_a_needed_unit_is_named_beforehand(place):
    place.write_config(specialized_unit_4="0,4,4,4,4,UDP")
    path = place.write_kernel(body=BODY.replace("1 R1 MOV 0 0", "1 R1 UMOV 0 0"))
    report = place.driver().simulate(path)
    assert report["failure"] == "missing_unit"
    assert "special unit UDP" in report["error"]


def test_a_hashing_that_does_not_work_is_named_beforehand(place):
    place.write_config(gpgpu_memory_partition_indexing="2", gpgpu_n_mem="40")
    assert place.driver().simulate(place.write_kernel())["failure"] == "partition_hashing"


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ("deadlock", "deadlock"),
        ("replay", "replay_deadlock"),
        ("syncs", "barrier_values"),
        ("memory", "memory_limit"),
        ("maxcyc", "cycle_limit"),
        ("segv", "unknown"),
        ("killed", "memory_limit"),
        ("quiet", "unknown"),  # exit code 0 and nothing done
    ],
)
def test_each_way_to_fail_has_its_reason_and_keeps_no_result(place, wish, code):
    place.environ["FAKE_ACCELSIM"] = wish
    path = place.write_kernel()
    report = place.driver().simulate(path)
    assert (report["cycles"], report["failure"]) == (None, code)
    assert report["error"].startswith("kernel-1.traceg: Accel-Sim ")
    assert list((place.home / "accelsim").glob("*.json")) == []
    assert (place.home / "accelsim" / report["log"]).exists()


@pytest.mark.parametrize("wish", ["sleep", "spin"])
def test_a_kernel_that_takes_too_long_is_ended(place, wish):
    place.environ["FAKE_ACCELSIM"] = wish
    path = place.write_kernel()
    driver = place.driver(Limits(time_s=1.0))
    report = driver.simulate(path)
    assert report["failure"] == "time_limit"
    assert "raise --time-limit (1 of 1 thread blocks had been issued" in report["error"]


def test_cancelling_ends_what_runs_within_two_seconds(place):
    place.environ["FAKE_ACCELSIM"] = "sleep"
    paths = [place.write_kernel(), place.write_kernel("kernel-2.traceg", grid="(1,1,1)")]
    driver = place.driver()
    started = threading.Event()
    reports = []

    def hear(file, line):
        if "LIVENESS" in line:
            started.set()

    thread = threading.Thread(target=lambda: reports.extend(driver.simulate_all(paths, 1, hear)))
    thread.start()
    assert started.wait(30)
    asked = time.monotonic()
    driver.cancel()
    thread.join(30)
    assert time.monotonic() - asked < 2
    assert [report["failure"] for report in reports] == ["cancelled", "cancelled"]


def test_its_last_words_before_an_abort_are_heard(place):
    """Over a pipe they stay in a buffer; the pre-flight is passed by here to see the process itself."""
    place.write_config(gpgpu_shmem_size="1000")
    driver = place.driver()
    path = place.write_kernel(shared=2000)
    object.__setattr__(driver.machine, "shared_memory_bytes", 1 << 20)
    report = driver.simulate(path)
    assert report["failure"] == "cta_too_large"


def test_traces_that_it_cannot_read_are_rewritten_for_it(place):
    clusters = BODY.replace("warp = 0", "cluster id = 0,0,0\ncluster cta = 0,0,0\ncluster rank = 0\nwarp = 0")
    report = place.driver().simulate(place.write_kernel(body=clusters.replace(" 0\n", " 0 0\n"), tracer=6))
    assert report["changes"] == ["cluster lines left out"]
    assert report["cycles"] == 102


def test_the_token_stays_here(place):
    place.environ |= {"FAKE_ACCELSIM": "environment", "CASCADE_TOKEN": "not-for-others-0123456789"}
    report = place.driver().simulate(place.write_kernel())
    assert "has no token" in report["error"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda place: place.binary.unlink(), "is no program"),
        (lambda place: place.binary.chmod(0o644), "is no program"),
        (lambda place: place.binary.write_text("neither a script nor a binary"), "does not start"),
        (lambda place: place.write_config(gpgpu_bogus="1"), "the config's option -gpgpu_bogus is unknown to it"),
    ],
)
def test_an_installation_that_does_not_work_says_so_at_once(place, spoil, says):
    spoil(place)
    with pytest.raises(NotUsable, match=says):
        place.driver()


def test_any_output_is_read_without_raising():
    hypothesis = pytest.importorskip("hypothesis")
    pieces = [
        "launching kernel name: k uid: 1 cuda_stream_id: 0", "kernel_launch_uid = 1 ", "kernel_launch_uid = x",
        "gpu_sim_cycle = 12", "gpu_sim_cycle = -nan", "thread block = 0,0,0", "GPGPU-Sim: *** exit detected ***",
        "-grid dim = (1,2,3)", "-grid dim = (1,2", "GPGPU-Sim uArch: CTA/core = 0, limited by: shmem",
    ]  # fmt: skip

    @hypothesis.given(
        hypothesis.strategies.lists(
            hypothesis.strategies.one_of(hypothesis.strategies.sampled_from(pieces), hypothesis.strategies.text())
        ),
        hypothesis.strategies.integers(-20, 300),
        hypothesis.strategies.text(),
    )
    @hypothesis.settings(deadline=None, max_examples=200)
    def check(lines, exit_code, stderr):
        output = Output()
        for line in lines:
            output.feed(line)
        output.close()
        failure = failure_of(Ended(exit_code, "itself", stderr), output, 1)
        if failure is None:
            assert exit_code == 0
            assert output.has_exit_mark
            assert output.finished_count >= 1

    check()


def test_the_command_runs_either_simulator_and_compares_them(place, capsys, monkeypatch):
    from services import start

    place.write_kernel()
    (place.traces / "kernelslist.g").write_text("MemcpyHtoD,0x7fb0fc400000,200000\nkernel-1.traceg\n")
    monkeypatch.setenv("CASCADE_HOME", str(place.home))
    said = ["sass", str(place.traces), "--config", str(place.config), "--json"]
    monkeypatch.delenv("CASCADE_ACCELSIM", raising=False)
    assert start.main([*said, "--simulator", "accelsim"]) == 2
    assert "set CASCADE_ACCELSIM to its accel-sim.out" in capsys.readouterr().err
    monkeypatch.setenv("CASCADE_ACCELSIM", str(place.binary))
    assert start.main([*said, "--simulator", "accelsim"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [kernel["cycles"] for kernel in report["kernels"]] == [102]
    assert start.main([*said, "--simulator", "both"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["cycles_ratio"] == pytest.approx(kernel["sass"]["cycles"] / 102, abs=1e-6)
    assert start.main(["sass", str(place.traces), "--config", str(place.config), "--simulator", "both"]) == 0
    assert "Accel-Sim" in capsys.readouterr().out
