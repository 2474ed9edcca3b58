"""Steps that repeat each other: what is kept of one gives each later one the tasks that it would have by itself."""

import numpy as np
import pyarrow as pa
import pytest
from cascade_profiler.rows import FactColumns, Launches, LaunchFacts, launch_batches
from cascade_schemas.model import load_model

from services.ingest.assemble import TaskTable
from services.ingest.imported import ImportedStep, Phase
from services.ingest.patterns import Patterns
from services.ingest.recorded import FactTable

MODEL = load_model("gpt-oss-20b")  # every other layer has a window: one attention kernel, two tasks
ATTENTION = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 128>>(Flash_fwd_params)"


def launches(layers=4):
    """A decode step as a profiler without shapes tells it."""
    facts = [
        LaunchFacts("void vllm::rms_norm_kernel<c10::BFloat16>(int)", grid=(2, 1, 1), block=(128, 1, 1)),
        LaunchFacts("nvjet_tst_64x8_64x16_2x1_v_bz_TNT", grid=(8, 1, 1), block=(128, 1, 1)),
        LaunchFacts(ATTENTION, grid=(2, 1, 8), block=(128, 1, 1)),
        LaunchFacts("Memcpy DtoH", moved_bytes=64, is_kernel=False),
    ]
    fact = [0, 1, 2, 1] * layers + [3]
    count = len(fact)
    none = [None] * count
    return Launches(facts, fact, list(range(count)), [1] * count, [7] * count, none, none, list(none))


def decode(kv):
    lengths = {"q_lengths": (1, 1), "kv_lengths": (kv, kv + 9)}
    return ImportedStep(Phase.DECODE, 0, 1, generation_requests=2, generation_tokens=2, **lengths)


def tasks_of(table, patterns, facts, step):
    (rows,) = launch_batches(launches(), 0, 0, FactColumns())
    pattern = patterns.of(facts.columns(rows), (), 2)
    found = patterns.tasks_of(pattern, step, MODEL, 1)
    return pattern, [table.tasks[number] for number in found.rows.tolist()]


def fresh():
    facts, table = FactTable(), TaskTable()
    return table, Patterns(facts, table), facts


def test_a_repeated_step_has_the_tasks_that_it_would_have_by_itself():
    kept = fresh()
    seen = [tasks_of(*kept, decode(kv)) for kv in (100, 101, 102, 101)]
    assert len({id(pattern) for pattern, _ in seen}) == 1
    for (_, tasks), kv in zip(seen, (100, 101, 102, 101), strict=True):
        _, alone = tasks_of(*fresh(), decode(kv))
        assert tasks == alone
        assert [task.task_id for task in tasks] == [task.task_id for task in alone]
    attention = [task for task in seen[1][1] if task.kv_lengths]
    assert {task.kv_lengths for task in attention} == {(101, 110)}
    assert len({task.task_id for task in attention}) == 2  # with and without a window
    assert all(task.operands_from == "solved" for task in attention)


def test_launches_outside_of_steps_take_nothing_from_a_step_that_looks_alike():
    kept = fresh()
    tasks_of(*kept, decode(100))
    _, outside = tasks_of(*kept, None)
    _, alone = tasks_of(*fresh(), None)
    assert outside == alone
    assert not any(task.kv_lengths or task.operands for task in outside)


def test_a_task_that_was_changed_has_an_identity_of_its_own():
    _, (task, *_) = tasks_of(*fresh(), decode(100))
    before = task.task_id
    changed = task.model_copy(update={"attributes": {"n": 5}})
    assert changed.task_id != before
    assert changed.task_id == type(task).model_validate(changed.model_dump()).task_id
    assert task.model_copy().task_id == before


@pytest.mark.parametrize("differing", ["grid", "op", "operand_shapes"])
def test_rows_that_say_something_else_have_another_number(differing):
    facts = FactTable()
    rows = launches()
    (first,) = launch_batches(rows, 0, 0, FactColumns())
    value = {"grid": (3, 1, 1), "op": "aten::mm", "operand_shapes": ((2, 64),)}[differing]
    rows.facts[1] = rows.facts[1]._replace(**{differing: value})
    (second,) = launch_batches(rows, 0, 1, FactColumns())
    one, other = facts.columns(first).fact, facts.columns(second).fact
    is_changed = np.array(rows.fact) == 1
    assert (one[~is_changed] == other[~is_changed]).all()
    if differing == "operand_shapes":  # of no op: nothing that is said of a launch
        assert (one == other).all()
    else:
        assert (one[is_changed] != other[is_changed]).all()
    again = pa.RecordBatch.from_pylist(second.to_pylist(), schema=second.schema)
    assert (facts.columns(again).fact == other).all()
