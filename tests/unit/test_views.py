import pytest

from services.aggregator.store import Store


@pytest.fixture(scope="module")
def columns():
    store = Store(None)
    return store.query(
        "select table_name, column_name, comment from duckdb_columns() where table_name in"
        " (select view_name from duckdb_views() where not internal)"
    )


def test_every_quantity_of_every_view_says_what_it_is(columns):
    silent = [
        f"{column['table_name']}.{column['column_name']}"
        for column in columns
        if column["column_name"].endswith(("_ns", "_ppm", "_count")) and not column["comment"]
    ]
    assert silent == []


def test_the_views_are_those_the_readme_names(columns):
    assert {column["table_name"] for column in columns} == {
        "traces", "runs", "configs", "kernels", "families", "steps", "simulations",
    }  # fmt: skip
