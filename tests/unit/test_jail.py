import pytest

from services.aggregator.jail import Jail, Limits, SqlRefused
from services.aggregator.store import Store


@pytest.fixture(scope="module", params=["file", "memory"])
def jail(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("jail")
    store = Store(folder / "c.duckdb" if request.param == "file" else None)
    store.db.execute("insert into run_requests values ('r1', 't1', 'first', 'analytic', '{}')")
    store.version += 1
    jail = Jail(store, folder)
    yield jail
    jail.close()


def test_one_select_gives_its_rows(jail):
    result = jail.query("select run_id, name from run_requests")
    assert result.table.to_pylist() == [{"run_id": "r1", "name": "first"}]
    assert not result.is_truncated


@pytest.mark.parametrize("sql", ["describe runs", "from runs", "explain select 1", "select * from kernels"])
def test_reading_statements_of_other_forms_are_allowed(jail, sql):
    assert jail.query(sql).table.num_columns


@pytest.mark.parametrize(
    "sql",
    [
        "select 1; select 2",
        "",
        "delete from run_requests",
        "drop table run_requests",
        "create temp table x as select 1",
        "insert into run_requests values ('r2', 't', 'n', 's', '{}')",
        "copy run_requests to 'out.csv'",
        "copy (select 1) to '/dev/stdout'",
        "export database 'x'",
        "attach 'other.db'",
        "install httpfs",
        "load httpfs",
        "set memory_limit='100GB'",
        "pragma database_list",
        "call pragma_version()",
        "checkpoint",
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/*')",
        "select * from sys.path",
        "select getenv('PATH')",
        "pivot run_requests on name using count(*)",
        "select * from no_such_table",
        "selec 1",
    ],
)
def test_everything_else_is_refused_in_one_sentence(jail, sql):
    with pytest.raises(SqlRefused) as refusal:
        jail.query(sql)
    assert refusal.value.args[0]
    assert "\n" not in refusal.value.args[0]
    assert "Traceback" not in refusal.value.args[0]


def test_a_statement_that_never_ends_is_stopped(jail):
    with pytest.raises(SqlRefused, match="stopped after"):
        jail.query("select count(*) from range(10000000000) a, range(1000) b", Limits(cpu_s=1, wall_s=10))


def test_a_statement_that_eats_memory_is_stopped(jail):
    with pytest.raises(SqlRefused, match="MiB"):
        jail.query("select length(repeat('x', 4000000000))", Limits(memory_bytes=1 << 30))


def test_more_rows_than_the_limit_are_cut_and_said(jail):
    result = jail.query("select * from range(1000)", Limits(rows=10))
    assert (result.table.num_rows, result.is_truncated) == (10, True)


def test_a_too_long_statement_is_refused(jail):
    with pytest.raises(SqlRefused, match="longer than"):
        jail.query("select 1" + " " * 100_000)


def test_rows_committed_later_are_seen(jail):
    jail._store.db.execute("insert into run_requests values ('r9', 't1', 'later', 'analytic', '{}')")
    jail._store.version += 1
    rows = jail.query("select run_id from run_requests order by run_id").table.to_pylist()
    assert {"run_id": "r9"} in rows
