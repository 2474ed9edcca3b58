"""docs/accuracy.md as tables."""

import pytest

from services.simworker.calibration.accuracy_map import NoErrorMap, accuracy_map

PAGE = """# Accuracy

About `it`.

## Aims

Some *words*.

| kernels | aim | h100 | aim | l40s |
|---|---|---|---|---|
| gemm | 4.5 | 3.2 | 6.0 | **7.1** |
| moe | 8.0 | **9.0** | - | – |

More of them:

| op | n |
|---|---|
| gemm | 3 |

And the rest.
"""


def test_a_page_is_tables_with_what_misses_its_aim(tmp_path):
    page = tmp_path / "accuracy.md"
    page.write_text(PAGE)
    found = accuracy_map(page)
    assert found["about"] == "About it."
    (section,) = found["sections"]
    assert (section["title"], section["text"]) == ("Aims", "And the rest.")
    table, more = section["tables"]
    assert (table["text"], more["text"]) == ("Some words.", "More of them:")
    assert table["rows"] == [["gemm", 4.5, 3.2, 6.0, 7.1], ["moe", 8.0, 9.0, None, None]]
    assert table["missed"] == [[0, 4], [1, 2]]


def test_of_the_shipped_page_every_figure_above_its_aim_is_marked():
    aims = accuracy_map()["sections"][0]["tables"][0]
    assert "aim" in aims["columns"]
    for row, cells in enumerate(aims["rows"]):
        aim = None
        for place, name in enumerate(aims["columns"]):
            if name == "aim":
                aim = cells[place]
            elif isinstance(cells[place], float) and aim is not None and cells[place] < aim:
                assert [row, place] not in aims["missed"], cells


def test_an_installation_without_the_page_says_so(tmp_path):
    with pytest.raises(NoErrorMap, match="make accuracy"):
        accuracy_map(tmp_path / "accuracy.md")
