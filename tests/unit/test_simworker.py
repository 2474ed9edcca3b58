import pyarrow as pa
import pytest
from cascade_schemas.batches import tasks_batch
from cascade_schemas.events import KernelSimulationRequested, KernelsSimulated, RunCancelled, SimulatorFinished
from cascade_schemas.gpu import load_gpu

from services.runtime.artifacts import ArtifactStore
from services.simworker.reactor import Simworker, result_key
from tests.factories import Clock, FakeSimulator, kernel_task

TASKS = [kernel_task(index) for index in range(5)]


class Counting(FakeSimulator):
    """Remembers the shape of each call."""

    def __init__(self, name="analytic", version="1"):
        super().__init__(name)
        self.version = version
        self.calls = []

    def simulate(self, work, gpus):
        self.calls.append((len(gpus), work.count))
        return super().simulate(work, gpus)


def worker(simulator, cache=None):
    return Simworker({"analytic": simulator, "roofline": FakeSimulator("roofline")}, "w", Clock(), cache)


def request(gpu="h100_sxm", tasks=TASKS, run_id="run-1"):
    spec = load_gpu(gpu)
    return KernelSimulationRequested(
        run_id=run_id, config_id=spec.config_id, gpu=spec, simulator="analytic", rows=tasks_batch(tasks)
    )


def answers(simworker, *events):
    said = [answer for event in events for answer in simworker.react(event)]
    return said + list(simworker.settle())


def results(said):
    return [event for event in said if isinstance(event, KernelsSimulated)]


def test_what_waits_is_simulated_in_one_call_for_all_configs():
    simulator = Counting()
    said = answers(worker(simulator), *[request(gpu) for gpu in ("h100_sxm", "l4", "b200_sxm")])
    assert simulator.calls == [(3, 5)]
    assert [event.rows.column("task_id").to_pylist() for event in results(said)] == [[t.task_id for t in TASKS]] * 3


def test_results_do_not_depend_on_how_tasks_were_batched():
    whole = results(answers(worker(Counting()), request()))[0].rows
    simworker = worker(Counting())
    parts = results(answers(simworker, request(tasks=TASKS[:2]), request(tasks=TASKS[2:])))
    assert pa.Table.from_batches([part.rows for part in parts]).to_pylist() == whole.to_pylist()


def test_a_cancelled_run_is_not_simulated_even_when_its_work_waits():
    simulator = Counting()
    simworker = worker(simulator)
    said = answers(simworker, request(), request("l4", run_id="run-2"), RunCancelled(run_id="run-1"))
    assert {event.run_id for event in results(said)} == {"run-2"}
    assert answers(simworker, request()) == []


def test_a_result_comes_from_the_cache_equal_but_for_the_flag(tmp_path):
    simulator = Counting()
    cache = ArtifactStore(tmp_path)
    (first,) = results(answers(worker(simulator, cache), request()))
    (second,) = results(answers(worker(simulator, cache), request(run_id="run-2")))
    assert len(simulator.calls) == 1
    assert first.rows.drop_columns("is_cached").equals(second.rows.drop_columns("is_cached"))
    assert second.rows.column("is_cached").to_pylist() == [True] * 5
    assert first.rows.column("is_cached").to_pylist() == [False] * 5


@pytest.mark.parametrize("damage", [b"", b"ARROW1 and then nothing"])
def test_a_damaged_cache_entry_is_simulated_again(tmp_path, damage):
    simulator = Counting()
    cache = ArtifactStore(tmp_path)
    answers(worker(simulator, cache), request())
    (entry,) = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    entry.write_bytes(damage)
    answers(worker(simulator, cache), request())
    assert len(simulator.calls) == 2
    answers(worker(simulator, cache), request())
    assert len(simulator.calls) == 2


def test_another_version_or_config_or_task_is_another_key():
    ids = tuple(task.task_id for task in TASKS)
    keys = {
        result_key(Counting(), "c", ids),
        result_key(Counting(version="2"), "c", ids),
        result_key(Counting(), "d", ids),
        result_key(Counting(), "c", ids[:-1]),
        result_key(Counting("sass"), "c", ids),
    }
    assert len(keys) == 5


def test_the_worker_says_what_it_did():
    said = answers(worker(Counting()), request())
    (finished,) = [event for event in said if isinstance(event, SimulatorFinished)]
    assert (finished.simulated_count, finished.failed_count) == (5, 0)
    assert [event.type for event in said] == [
        "SimulatorStarted",
        "KernelsSimulated",
        "SimulatorLogged",
        "SimulatorFinished",
    ]
