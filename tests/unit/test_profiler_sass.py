"""A tracer's files: told finished from growing, each distinct launch once, sent while the job runs, bounded on disk."""

import hashlib
import lzma
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cascade_profiler import arming, cli, nvbit, saying, vllm
from cascade_profiler.destinations import BadDestination, DestinationAway, DestinationRefused
from cascade_profiler.orders import Orders
from cascade_profiler.recorder import Batch
from cascade_profiler.sass_windows import SassWindows, Switch
from cascade_profiler.shipment import FileRefused, FolderStore, GatewayStore, Job, Sent, Shipment, store_of

from tests.factories import fake_simulators
from tests.fakes.sass_tracer import name_of, raw_kernel
from tests.fakes.vllm_engine import FakeLLM, worker_module
from tests.served import TOKEN, served

ROOT = Path(__file__).resolve().parents[2]
JOB = [sys.executable, "-m", "tests.fakes.sass_tracer"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    saying.forget()
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path / "no-server-here"))
    monkeypatch.setenv(arming.VARIABLE, "armed")
    monkeypatch.chdir(ROOT)


@pytest.fixture
def tracer(tmp_path):
    path = tmp_path / "tracer_tool.so"
    path.write_bytes(b"\x7fELF")
    return path


def traced(tracer, output, *options, job):
    """Run cascade-trace around a job under the fake tracer; its status."""
    whole = ["--collector", "nvbit", "--tracer", str(tracer), "--output", str(output), *options, "--", *JOB, *job]
    return cli.main(whole)


# --- finished or not --------------------------------------------------------------------------------------------------


def test_a_file_is_finished_when_the_next_is_listed_or_its_statistics_are_whole(tmp_path):
    watched = nvbit.Finished(tmp_path)
    for number in (1, 2, 3):
        (tmp_path / f"kernel-{number}.trace").write_text("x")
    listed, stats = tmp_path / "kernelslist", tmp_path / "stats.csv"
    listed.write_text("MemcpyHtoD,0x7f00,4\nkernel-1.trace\n")
    assert list(watched.look()) == []
    listed.write_text("MemcpyHtoD,0x7f00,4\nkernel-1.trace\nkernel-2.tr")  # half a line
    assert list(watched.look()) == []
    listed.write_text("MemcpyHtoD,0x7f00,4\nkernel-1.trace\nkernel-2.trace\n")
    assert [path.name for path in watched.look()] == ["kernel-1.trace"]
    row = "kernel-2.trace, _Z1kv, 1, 1, 1, 1, 32, 1, 1, 32, "
    stats.write_text(row)
    assert list(watched.look()) == []
    stats.write_text(row + "40, 40\n")
    assert [path.name for path in watched.look()] == ["kernel-2.trace"]
    assert [path.name for path in watched.unfinished()] == ["kernel-3.trace"]
    assert [path.name for path in watched.look(is_over=True)] == ["kernel-3.trace"]
    assert list(watched.look(is_over=True)) == []


def test_without_a_list_a_file_that_grows_is_not_finished(tmp_path):
    clock = [0.0]
    watched = nvbit.Finished(tmp_path, now_s=lambda: clock[0])
    for number in (1, 2, 10):
        (tmp_path / f"kernel-{number}.trace").write_text("x")
    assert list(watched.look()) == []
    clock[0] = 1.0
    (tmp_path / "kernel-1.trace").write_text("xx")
    assert list(watched.look()) == []
    clock[0] = 2.5
    assert [path.name for path in watched.look()] == ["kernel-2.trace"]
    clock[0] = 9.0
    assert [path.name for path in watched.look()] == ["kernel-1.trace"]
    assert [path.name for path in watched.look(is_over=True)] == ["kernel-10.trace"]


def test_names_of_every_tracer_are_known(tmp_path):
    names = [
        "kernel-1.trace",
        "kernel-2-ctx_0x55d0.trace.xz",
        "kernel-3-ctx_0x55d0-layer.0.trace.xz",
        "kernel-4.tracez",
    ]
    for name in [*names, "kernelslist", "kernel-1.traceg", "kernel-x.trace"]:
        (tmp_path / name).write_bytes(b"x")
    assert [path.name for path in nvbit.Finished(tmp_path).look(is_over=True)] == names


def test_launches_of_one_header_are_one_signature(tmp_path):
    plain, again, other, packed, cut = (tmp_path / f"kernel-{n}.trace{'.xz' if n == 4 else ''}" for n in range(1, 6))
    plain.write_bytes(raw_kernel("_Z1kv", 1))
    again.write_bytes(raw_kernel("_Z1kv", 7, instructions=90))
    other.write_bytes(raw_kernel("_Z1kv", 1).replace(b"(32,1,1)", b"(64,1,1)"))
    packed.write_bytes(lzma.compress(raw_kernel("_Z1kv", 3)))
    cut.write_bytes(raw_kernel("_Z1kv", 3)[:30])
    assert nvbit.signature_of(plain) == nvbit.signature_of(again) == nvbit.signature_of(packed)
    assert len({nvbit.signature_of(path) for path in (plain, other, cut)}) == 3
    packed.write_bytes(b"not xz")
    assert nvbit.signature_of(packed) == (packed.name,)


# --- on the way -----------------------------------------------------------------------------------------------------


class Away:
    """A store that is away for so many calls."""

    def __init__(self, calls):
        self.calls, self.names = calls, []

    def send(self, path, name):
        self.calls -= 1
        if self.calls >= 0:
            raise DestinationAway("nobody there")
        self.names.append(name)
        return Sent(name, hashlib.sha256(path.read_bytes()).hexdigest())

    def finish(self, files, job):
        return f"{len(files)} files of {job.name}"


def files_in(folder, count, size=1000):
    folder.mkdir(exist_ok=True)
    paths = [folder / f"kernel-{number}.trace" for number in range(1, count + 1)]
    for path in paths:
        path.write_bytes(raw_kernel(path.stem) + b"\n" * size)
    return paths


def test_a_store_that_is_away_gets_everything_in_order_when_it_is_back(tmp_path, capsys):
    clock = [0.0]
    store = Away(calls=3)
    shipment = Shipment(tmp_path / "out", store, 1 << 30, now_s=lambda: clock[0])
    for path in files_in(tmp_path / "out", 4):
        shipment.take(path)
        shipment.pump()
    assert store.names == []
    assert shipment.unsent_count == 4

    def sleep(seconds):
        clock[0] += seconds

    assert shipment.finish(Job("job"), 60.0, sleep) == "5 files of job"
    assert store.names == ["kernel-1.trace", "kernel-2.trace", "kernel-3.trace", "kernel-4.trace", "kernelslist"]
    assert 1.0 + 2.0 + 4.0 <= clock[0] < 9.0  # it waited longer each time
    assert capsys.readouterr().err.count("nobody there") == 1


def test_a_store_that_stays_away_leaves_the_files_and_says_where(tmp_path):
    shipment = Shipment(tmp_path / "out", Away(calls=10**6), 1 << 30)
    for path in files_in(tmp_path / "out", 2):
        shipment.take(path)
    said = shipment.finish(Job("job"), 0.0)
    assert "2 files were not sent" in said
    assert str(tmp_path / "out") in said
    assert len(list((tmp_path / "out").glob("kernel-*"))) == 2


def test_sent_files_make_room_under_the_cap_and_unsent_ones_never_do(tmp_path):
    paths = files_in(tmp_path / "out", 6, size=10_000)
    size = paths[0].stat().st_size
    shipment = Shipment(tmp_path / "out", Away(calls=0), 2 * size + size // 2)
    for path in paths[:4]:
        shipment.take(path)
    shipment.pump()
    assert [path.exists() for path in paths] == [False] * 4 + [True] * 2
    assert not shipment.is_full
    stuck = Shipment(tmp_path / "out", Away(calls=10**6), size)
    for path in paths[4:]:
        stuck.take(path)
    stuck.pump()
    assert stuck.is_full
    assert all(path.exists() for path in paths[4:])


def test_what_the_store_refuses_stays_and_is_said_once(tmp_path, capsys):
    class Refusing(Away):
        def send(self, path, name):
            raise DestinationRefused("the token is missing or wrong")

    shipment = Shipment(tmp_path / "out", Refusing(0), 1 << 30)
    for path in files_in(tmp_path / "out", 3):
        shipment.take(path)
        shipment.pump()
    assert "3 files were not sent" in shipment.finish(Job("job"), 60.0)
    assert capsys.readouterr().err.count("token") == 1


def test_a_file_that_is_too_large_is_left_out_of_the_list_and_the_others_are_sent(tmp_path, capsys):
    class Small(Away):
        def send(self, path, name):
            if name == "kernel-2.trace":
                raise FileRefused("more than the limit")
            if name == "kernelslist":
                self.listed = path.read_text()
            return super().send(path, name)

    store = Small(calls=0)
    shipment = Shipment(tmp_path / "out", store, 1 << 30)
    for path in files_in(tmp_path / "out", 3):
        shipment.take(path)
    assert shipment.finish(Job("job"), 60.0) == "3 files of job"
    assert store.listed == "kernel-1.trace\nkernel-3.trace\n"
    assert [path.name for path in shipment.left_out] == ["kernel-2.trace"]
    assert (tmp_path / "out" / "kernel-2.trace").exists()
    assert "kernel-2.trace is left out: more than the limit" in capsys.readouterr().err


def test_a_gateway_that_refuses_is_heard_also_in_the_middle_of_a_large_file(tmp_path):
    path = tmp_path / "kernel-1.trace"
    path.write_bytes(raw_kernel("_Z1kv") + b"\n" * (8 << 20))
    with served(tmp_path / "home", fake_simulators(), upload_bytes_limit=1 << 20) as server:
        with pytest.raises(DestinationRefused, match="token"):
            GatewayStore(server.url, "another").send(path, path.name)
        store = GatewayStore(server.url, TOKEN)
        with pytest.raises((FileRefused, DestinationAway), match=r"CASCADE_UPLOAD_MIB|does not answer"):
            store.send(path, path.name)
        path.write_bytes(raw_kernel("_Z1kv"))
        assert store.send(path, path.name).digest == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(DestinationAway, match="does not answer"):
        GatewayStore(server.url, TOKEN).send(path, path.name)


def test_addresses_that_keep_no_files_are_refused(tmp_path):
    assert isinstance(store_of("http://127.0.0.1:9", ""), GatewayStore)
    folder = store_of(f"file://{tmp_path}/job", "")
    assert isinstance(folder, FolderStore)
    assert folder.folder == tmp_path / "job.sass"
    for address in ("kafka://localhost:9092", "memory://", "http://", "file:///"):
        with pytest.raises(BadDestination, match="keeps no files"):
            store_of(address, "")


# --- around a job -----------------------------------------------------------------------------------------------------


def test_files_are_at_the_gateway_before_the_job_ends_and_are_a_trace_afterwards(tmp_path, tracer, capfd):
    with served(tmp_path / "home", fake_simulators()) as server:
        folder = server.engine.embedded.artifacts.folder
        count_during = []

        def watch():
            while len(count_during) < 100 and not done.is_set():
                count_during.append(sum(path.is_file() for path in folder.rglob("*")))
                time.sleep(0.05)

        done = threading.Event()
        watcher = threading.Thread(target=watch)
        environ = {"CASCADE_TOKEN": TOKEN}
        command = [sys.executable, "-m", "cascade_profiler", "--collector", "nvbit", "--tracer", str(tracer), "--to"]
        command += [server.url, "--name", "traced", "--output", str(tmp_path / "out"), "--", *JOB, "8", "0.5"]
        process = subprocess.Popen(command, env={**os.environ, **environ}, stderr=subprocess.PIPE, text=True)
        watcher.start()
        said = process.communicate(timeout=60)[1]
        done.set()
        watcher.join()
        assert process.returncode == 0, said
        assert any(0 < count < 7 for count in count_during)  # six kernels and the list
        assert "2 launches repeated others" in said
        (trace,) = server.engine.traces()
        assert f"trace {trace['trace_id']}" in said
        deadline = time.monotonic() + 20
        while (report := server.engine.trace_report(trace["trace_id"]))["status"] != "complete":
            assert time.monotonic() < deadline, report
            time.sleep(0.05)
        assert (report["name"], report["launches"], report["tasks"]) == ("traced", 8, 6)


def test_a_file_destination_gets_them_beside_the_recording_ready_to_be_imported(tmp_path, tracer, capfd):
    from services.ingest.importers.accelsim import is_sass_file, read_sass

    assert traced(tracer, tmp_path / "out", "--to", f"file://{tmp_path}/job", job=("5", "0.01")) == 0
    folder = tmp_path / "job.sass"
    assert f"cascade import {folder}" in capfd.readouterr().err
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == ["kernel-1.trace", "kernel-2.trace", "kernel-4.trace", "kernel-5.trace", "kernelslist"]
    assert all(is_sass_file(name) for name in kept)
    placed = [(path, SimpleNamespace(name=path.name, digest=path.name)) for path in folder.iterdir()]
    imported = read_sass(placed)
    assert [imported.tasks[task].sass for task in imported.launches.task] == [
        "kernel-1.trace", "kernel-2.trace", "kernel-1.trace", "kernel-4.trace", "kernel-5.trace",
    ]  # fmt: skip


def test_without_a_store_the_folder_is_whole_by_itself(tmp_path, tracer, capfd):
    from services.kernels.sass_traces.kernelslist import read_kernelslist

    assert traced(tracer, tmp_path / "out", job=("3", "0.01")) == 0
    assert f"cascade sass {tmp_path / 'out'}" in capfd.readouterr().err
    listed = read_kernelslist(tmp_path / "out")
    assert [path.name for path in listed.files] == ["kernel-1.trace", "kernel-2.trace", "kernel-1.trace"]


def test_a_job_that_is_killed_leaves_its_finished_kernels_and_not_the_open_one(tmp_path, tracer, capfd):
    assert traced(tracer, tmp_path / "out", "--to", f"file://{tmp_path}/job", job=("5", "0.05", "kill")) == 137
    said = capfd.readouterr().err
    assert "kernel-5.trace was being written" in said
    kept = sorted(path.name for path in (tmp_path / "job.sass").glob("kernel-*"))
    assert kept == ["kernel-1.trace", "kernel-2.trace", "kernel-4.trace"]
    whole = raw_kernel(name_of(4), 4, instructions=400)
    assert (tmp_path / "job.sass" / "kernel-4.trace").read_bytes() == whole


def test_the_exit_status_is_the_jobs_and_what_was_closed_is_kept(tmp_path, tracer):
    assert traced(tracer, tmp_path / "out", "--to", f"file://{tmp_path}/job", job=("2", "0.01", "fail")) == 9
    assert len(list((tmp_path / "job.sass").glob("kernel-*"))) == 2


def test_a_full_disk_stops_the_job_unless_what_was_sent_makes_room(tmp_path, tracer, capfd):
    size = len(raw_kernel(name_of(1), 1, instructions=400))
    cap = ["--disk-gib", str(3 * size / 2**30)]
    began = time.monotonic()
    assert traced(tracer, tmp_path / "out", *cap, job=("60", "0.5")) == 2
    assert time.monotonic() - began < 25
    assert "larger than" in capfd.readouterr().err
    assert traced(tracer, tmp_path / "roomy", *cap, "--to", f"file://{tmp_path}/job", job=("8", "0.5")) == 0
    assert len(list((tmp_path / "job.sass").glob("kernel-*"))) == 6
    assert nvbit.folder_bytes(tmp_path / "roomy") <= 4 * size


def test_a_tracer_that_wrote_nothing_is_said(tmp_path, tracer, capfd):
    whole = ["--collector", "nvbit", "--tracer", str(tracer), "--output", str(tmp_path / "o"), "--", "true"]
    assert cli.main(whole) == 2
    assert "left no finished file" in capfd.readouterr().err


def test_a_tracer_that_is_no_library_is_refused_before_the_job_begins(tmp_path, capfd):
    tracer = tmp_path / "tracer_tool.so"
    tracer.write_text("#!/bin/sh\n")
    whole = ["--collector", "nvbit", "--tracer", str(tracer), "--output", str(tmp_path / "o"), "--"]
    assert cli.main([*whole, sys.executable, "-c", f"open('{tmp_path}/ran', 'w')"]) == 2
    assert "is no shared library" in capfd.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_the_environment_says_which_kernels(tmp_path, tracer):
    environ = nvbit.job_environ({"A": "1"}, tracer, tmp_path / "traces", ["flash_fwd", "gemm"])
    assert environ["CUDA_INJECTION64_PATH"] == str(tracer)
    assert environ["DYNAMIC_KERNEL_RANGE"] == "1-@.*flash_fwd.*,.*gemm.*"
    assert nvbit.job_environ({}, tracer, tmp_path)["ACTIVE_FROM_START"] == "0"


# --- windows in the job -----------------------------------------------------------------------------------------------


def batch(tokens, context):
    return Batch((0,), (tokens,), (context,), (10,))


def torch_of(calls):
    profiler = SimpleNamespace(start=lambda: calls.append("start"), stop=lambda: calls.append("stop"))
    return SimpleNamespace(cuda=SimpleNamespace(profiler=profiler))


def test_the_tracer_is_switched_by_its_own_functions_where_it_has_them():
    calls = []
    library = SimpleNamespace(
        enable_nvbit_instrumentation=lambda: calls.append("on"),
        disable_nvbit_instrumentation=lambda: calls.append("off"),
    )
    environ = {"CUDA_INJECTION64_PATH": "/tracer_tool.so"}
    for load in (lambda _: library, lambda _: SimpleNamespace(), _no_library):
        switch = Switch(torch_of(calls), environ, load)
        switch.turn(is_on=True)
        switch.turn(is_on=False)
    assert calls == ["on", "off", "start", "stop", "start", "stop"]


def _no_library(_):
    raise OSError("cannot open shared object file")


def test_one_step_of_each_kind_is_traced_in_a_job_that_is_ordered_to(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(vllm, "_seat", vllm._Seat())
    monkeypatch.setitem(sys.modules, "torch", torch_of(calls))
    monkeypatch.setenv(arming.VARIABLE, Orders("sass", "job", "memory://", 1, mode="sass").to_json())
    module = worker_module()
    execute = module.Worker.execute_model

    def execute_model(self, output):
        calls.append(output.total_num_scheduled_tokens)
        return execute(self, output)

    module.Worker.execute_model = execute_model
    vllm.hook(module)
    llm = FakeLLM(module.Worker)
    llm.generate([60], output_tokens=6)
    llm.generate([60], output_tokens=3)
    llm.workers[0].shutdown()
    assert calls == ["start", 60, "stop", "start", 1, "stop", 1, 1, 1, 1, 60, 1, 1]
    assert vllm._seat.has_profiled


def test_a_step_that_no_sampling_follows_is_ended_too():
    calls = []
    windows = SassWindows(Switch(torch_of(calls), {}))
    windows.before_execute(batch(10, 10))
    windows.after_execute(batch(10, 10), 0, is_over=True)
    windows.before_execute(Batch((), (), (), ()))
    windows.before_execute(batch(1, 500))
    windows.stop(1.0)
    assert calls == ["start", "stop", "start", "stop"]
