"""Steps' rows as record batches, with what is remembered of steps before."""

from cascade_profiler.rows import FactColumns, Launches, LaunchFacts, capture_batch, launch_batches
from cascade_schemas.batches import CAPTURED_LAUNCHES, RECORDED_LAUNCHES


def step_of(names, count=6, first_ns=0):
    rows = Launches(facts=[LaunchFacts(name, grid=(place + 1, 1, 1)) for place, name in enumerate(names)])
    for place in range(count):
        rows.fact.append(place % len(names))
        rows.start_ns.append(first_ns + place * 10)
        rows.duration_ns.append(7)
        rows.stream.append(3)
        rows.graph.append(None)
        rows.graph_node.append(None)
        rows.host_launch_ns.append(None)
    return rows


def made(rows, known, first_seq=0, step=0):
    return [row for batch in launch_batches(rows, first_seq, step, known) for row in batch.to_pylist()]


def test_what_is_remembered_changes_no_row():
    known = FactColumns()
    steps = [step_of([f"kernel{n % 20}", "other"], 5 + n % 3, n) for n in range(90)]  # more kinds than are remembered
    steps += [step_of(["other", "kernel1"]), step_of(["kernel1", "other"])]  # the same places, other facts
    for number, rows in enumerate(steps):
        assert made(rows, known, number * 10, number) == made(rows, FactColumns(), number * 10, number)


def test_rows_of_a_remembered_step_have_their_own_times_and_numbers():
    known = FactColumns()
    made(step_of(["a", "b"]), known)
    rows = made(step_of(["a", "b"], first_ns=500), known, first_seq=6, step=1)
    assert [row["seq"] for row in rows] == [6, 7, 8, 9, 10, 11]
    assert [row["start_ns"] for row in rows] == [500, 510, 520, 530, 540, 550]
    assert {row["step"] for row in rows} == {1}
    assert [row["name"] for row in rows] == ["a", "b"] * 3
    assert [row["grid"] for row in rows] == [[1, 1, 1], [2, 1, 1]] * 3


def test_a_long_step_is_several_batches_and_an_empty_one_none():
    parts = list(launch_batches(step_of(["a"], 5000), 0, 0, FactColumns()))
    assert [part.num_rows for part in parts] == [4096, 904]
    assert parts[1].column("seq")[0].as_py() == 4096
    assert all(part.schema.equals(RECORDED_LAUNCHES) for part in parts)
    assert not made(Launches(), FactColumns())


def test_a_capture_of_nothing_has_its_columns():
    batch = capture_batch([])
    assert batch.num_rows == 0
    assert batch.schema.equals(CAPTURED_LAUNCHES)
