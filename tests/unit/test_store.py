"""What one commit of the aggregator's store does: rows and positions, both or neither."""

import duckdb
import pyarrow as pa
import pytest

from services.aggregator.rows import rows_of
from services.aggregator.store import Store
from tests.factories import kernel_task, results

TASKS = [kernel_task(number) for number in range(4)]


def rows(first, count, duration_ns=7):
    said = rows_of([results("c", TASKS[first : first + count], [duration_ns] * count)])
    return {table: [part] for table, part in said.items()}


def stored(store):
    kept = store.query("select task_id, duration_ns from simulated_kernels")
    return {row["task_id"]: row["duration_ns"] for row in kept}


@pytest.fixture
def store():
    opened = Store(None)
    yield opened
    opened.close()


def test_positions_begin_and_move_together_with_rows(store):
    store.commit(rows(0, 2), {("results", 0): 2})
    store.commit(rows(2, 2), {("results", 0): 3, ("results", 1): 1, ("runs", 0): 9})
    assert store.positions() == {("results", 0): 3, ("results", 1): 1, ("runs", 0): 9}
    assert len(stored(store)) == 4


def test_a_row_that_is_there_already_stays_and_the_others_come_in(store):
    store.commit(rows(0, 2), {("results", 0): 2})
    store.commit(rows(1, 3, duration_ns=99), {("results", 0): 5})
    ids = [task.task_id for task in TASKS]
    assert stored(store) == dict(zip(ids, [7, 7, 99, 99], strict=True))
    assert store.positions() == {("results", 0): 5}


def test_what_cannot_be_stored_moves_no_position(store):
    wrong = {"simulated_kernels": [pa.table({"run_id": ["r"], "no_such_column": [1]})]}
    with pytest.raises(duckdb.Error):
        store.commit(rows(0, 1) | wrong, {("results", 0): 1})
    assert store.positions() == {}
    store.commit(rows(0, 1), {("results", 0): 1})
    assert store.positions() == {("results", 0): 1}
    assert len(stored(store)) == 1


def test_positions_go_on_in_a_file_that_is_opened_again(tmp_path):
    first = Store(tmp_path / "x.duckdb")
    first.commit({}, {("results", 0): 1})
    first.close()
    again = Store(tmp_path / "x.duckdb")
    again.commit({}, {("results", 0): 2, ("results", 1): 1})
    assert again.positions() == {("results", 0): 2, ("results", 1): 1}
    again.close()
