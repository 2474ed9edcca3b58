"""What the page's screens ask over REST: shapes as described, tables as Arrow, one sentence where something is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from cascade_schemas.events import SimulatorLogged
from starlette.testclient import TestClient

from services.gateway import answers
from services.gateway.app import create_app
from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions
from services.runtime.served import ServedEngine
from services.simworker.simulators.catalog import simulators
from tests.factories import kineto_trace, settings

TOKEN = "the-token-of-this-server"
GPUS = ["a100_sxm_80gb", "h100_sxm", "l4", "h100_sxm:dram_gbps=6000"]


@dataclass(frozen=True)
class Page:
    """A page open on one finished run of a small measured trace."""

    client: TestClient
    engine: ServedEngine
    trace_id: str
    run_id: str
    configs: dict[str, str]  # label -> id

    def get(self, path: str, **query: Any) -> Any:
        response = self.client.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, status: int, **query: Any) -> str:
        response = self.client.get(path, params=query)
        assert response.status_code == status, response.text
        said = response.json()["error"]
        assert said
        assert "\n" not in said
        return str(said)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Iterator[Page]:
    home = tmp_path_factory.mktemp("home")
    engine = ServedEngine(Embedded(settings(home), simulators(1), now_ms=wall_clock_ms))
    app = create_app(
        engine,
        token=TOKEN,
        host="127.0.0.1",
        port=8321,
        version="1.2.3",
        upload_bytes_limit=1 << 20,
        scratch=home,
        web=home / "no-page",
        samples={},
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, base_url="http://127.0.0.1:8321", headers=headers, raise_server_exceptions=False) as client:
        trace = engine.import_files([kineto_trace(home / "job.json")], ImportOptions(name="a job"))
        run_id = engine.start_run(trace["trace_id"], GPUS, "analytic")
        report = engine.wait_run(run_id)
        configs = {config["gpu"]: config["config_id"] for config in report["configs"]}
        yield Page(client, engine, trace["trace_id"], run_id, configs)
    engine.close()


def table_of(response) -> pa.Table:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/vnd.apache.arrow.stream"
    with pa.ipc.open_stream(pa.py_buffer(response.content)) as reader:
        return reader.read_all()


# --- timeline -------------------------------------------------------------------------------------------------------


def test_a_layout_and_its_launches_agree(page):
    layout = page.get(f"/api/traces/{page.trace_id}/layout")
    answers.Layout.model_validate(layout)
    first = page.client.get(f"/api/traces/{page.trace_id}/launches?count=5")
    assert first.headers["x-cascade-launches"] == str(layout["launches"])
    assert "immutable" in first.headers["cache-control"]
    rest = page.client.get(f"/api/traces/{page.trace_id}/launches?from=5")
    assert table_of(first).num_rows == 5
    assert table_of(first).num_rows + table_of(rest).num_rows == layout["launches"]
    assert set(table_of(rest).column("task").to_pylist()) <= {task["index"] for task in layout["tasks"]}


def test_durations_of_every_config_cover_every_task(page):
    layout = page.get(f"/api/traces/{page.trace_id}/layout")
    for config_id in page.configs.values():
        table = table_of(page.client.get(f"/api/runs/{page.run_id}/durations/{config_id}"))
        assert table.column("task").to_pylist() == [task["index"] for task in layout["tasks"]]
        assert set(table.column("is_corrected").to_pylist()) == {1}


def test_a_profile_counts_every_launch_of_a_step_and_work_every_task(page):
    layout = page.get(f"/api/traces/{page.trace_id}/layout")
    counts = table_of(page.client.get(f"/api/traces/{page.trace_id}/profile")).to_pydict()
    for task in layout["tasks"]:
        mine = [n for t, n in zip(counts["task"], counts["count"], strict=True) if t == task["index"]]
        assert sum(mine) == task["launch_count"]
    work = table_of(page.client.get(f"/api/traces/{page.trace_id}/work")).to_pydict()
    assert work["task"] == [task["index"] for task in layout["tasks"]]
    assert all(flop > 0 for flop, task in zip(work["flop"], layout["tasks"], strict=True) if task["family"] == "gemm")
    assert all(moved > 0 for moved in work["moved_bytes"])


def test_what_nobody_knows_is_refused(page):
    assert "nope" in page.refused("/api/traces/nope/layout", 404)
    assert "nope" in page.refused("/api/traces/nope/launches", 404)
    assert "nope" in page.refused("/api/runs/nope/durations/x", 404)
    assert "'x'" in page.refused(f"/api/runs/{page.run_id}/durations/x", 404)
    assert "count" in page.refused(f"/api/traces/{page.trace_id}/launches", 422, count=262_145)


# --- log ------------------------------------------------------------------------------------------------------------


def test_a_million_lines_are_read_by_number_and_searched(page):
    config = page.configs["l4"]
    path = f"/api/runs/{page.run_id}/log/{config}"
    before = page.get(path, count=1)["total"]
    lines_per_event = 1000
    for first in range(0, 1_000_000, 100_000):
        page.engine.embedded.publish(
            [
                SimulatorLogged(
                    run_id=page.run_id,
                    config_id=config,
                    first_line=before + number,
                    lines=tuple(f"cycle {line}" for line in range(number, number + lines_per_event)),
                )
                for number in range(first, first + 100_000, lines_per_event)
            ]
        )
    assert page.get(path, count=1)["total"] == before + 1_000_000  # the index is made
    began = time.perf_counter()
    found = page.get(path, **{"from": before + 777_777}, count=3)
    assert time.perf_counter() - began < 1
    assert found["lines"] == ["cycle 777777", "cycle 777778", "cycle 777779"]
    matches = page.get(f"{path}/search", q="CYCLE 99999", **{"from": before + 500_000})
    assert [match["line"] - before for match in matches["matches"]] == list(range(999_990, 1_000_000))
    answers.LogMatches.model_validate(matches)
    some = page.get(f"{path}/search", q="cycle 12", limit=2)
    assert [match["text"] for match in some["matches"]] == ["cycle 12", "cycle 120"]
    assert (
        page.get(f"{path}/search", q="cycle 12", limit=1, **{"from": some["next"]})["matches"][0]["line"]
        == some["next"]
    )


def test_a_histogram_counts_every_measured_launch_of_a_kernel_once(page):
    layout = page.get(f"/api/traces/{page.trace_id}/layout")
    for task in layout["tasks"]:
        path = f"/api/traces/{page.trace_id}/tasks/{task['task_id']}/histogram"
        found = answers.Histogram.model_validate(page.get(path))
        assert found.launch_count == task["launch_count"]
        assert sum(one.count for one in found.bins) == found.measured_count == task["launch_count"]
        assert found.bins[0].low_ns <= found.median_ns <= found.bins[-1].high_ns
        assert all(one.low_ns < one.high_ns for one in found.bins)
        assert all(a.high_ns == b.low_ns for a, b in zip(found.bins, found.bins[1:], strict=False))
    assert "nothing" in page.refused(f"/api/traces/{page.trace_id}/tasks/nothing/histogram", 404)


def test_what_is_known_of_errors_is_said_for_every_gpu_of_a_run(page):
    found = answers.KnownErrors.model_validate(page.get(f"/api/runs/{page.run_id}/known-errors"))
    assert [one.config_id for one in found.configs] == list(page.configs.values())
    assert [one.kin for one in found.configs] == ["same", "same", "same_capability", "same_die"]
    assert all(one.row_count > 0 and one.mean_ape for one in found.configs)
    assert "nothing" in page.refused("/api/runs/nothing/known-errors", 404)


# --- a moment of a replay -------------------------------------------------------------------------------------------


def test_at_a_moment_of_a_replay_only_the_lines_said_before_it_are_known(page):
    run_id, config = page.run_id, page.configs["a100_sxm_80gb"]
    for first in range(0, 40, 10):
        lines = tuple(f"wave {line}" for line in range(first, first + 10))
        page.engine.embedded.publish([SimulatorLogged(run_id=run_id, config_id=config, first_line=first, lines=lines)])
    path = f"/api/runs/{run_id}/log/{config}"
    whole = page.get(path)
    end = page.get(f"/api/runs/{run_id}/state")["record_count"]
    looked_at = sorted({*range(0, end, max(end // 8, 1)), *range(max(end - 6, 0), end + 1)})  # the lines came last
    totals = {at: page.get(path, at=at)["total"] for at in looked_at}
    assert list(totals.values()) == sorted(totals.values())
    assert (totals[0], totals[end]) == (0, whole["total"])
    assert len(set(totals.values())) >= 5, "the lines came in at least four records"
    middle = next(at for at, total in totals.items() if 0 < total < whole["total"])
    assert page.get(path, at=middle)["lines"] == whole["lines"][: totals[middle]]
    assert page.get(f"{path}/search", q="wave 39", at=middle)["matches"] == []
    assert len(page.get(f"{path}/search", q="wave 39", at=end)["matches"]) == 1


def test_the_state_at_the_end_of_a_run_has_the_hash_that_the_run_ended_with(page):
    report = page.get(f"/api/runs/{page.run_id}")
    now = answers.State.model_validate(page.get(f"/api/runs/{page.run_id}/state"))
    assert now.state_hash == report["state_hash"]
    assert now.position == now.record_count
    hashes = [
        page.get(f"/api/runs/{page.run_id}/state", at=at)["state_hash"]
        for at in range(0, min(now.record_count, 105) + 1, 7)  # beyond it are the lines of other tests
    ]
    assert len(set(hashes)) > 3, "what is known grows"
    assert hashes[0] != now.state_hash
    beyond = page.get(f"/api/runs/{page.run_id}/state", at=10**6)
    assert beyond["state_hash"] == now.state_hash
    assert "nothing" in page.refused("/api/runs/nothing/state", 404, at=3)
    assert page.refused(f"/api/runs/{page.run_id}/state", 422, at=-1)


# --- what if --------------------------------------------------------------------------------------------------------


def swept(page, config):
    response = page.client.post("/api/what-if/sweep", json={"trace": page.trace_id, "config": config})
    assert response.status_code == 200, response.text
    return answers.Sweep.model_validate(response.json())


def test_a_sweep_passes_through_what_a_what_if_and_a_run_say(page):
    found = swept(page, "h100_sxm")
    run = page.get(f"/api/runs/{page.run_id}")
    (config,) = [config for config in run["configs"] if config["gpu"] == "h100_sxm"]
    assert found.metric == "tpot"
    assert found.base.value_ms == config["tpot_ms"]["value"]
    assert (found.base.p10_ms, found.base.p90_ms) == (config["tpot_ms"]["p10"], config["tpot_ms"]["p90"])
    assert [knob.name for knob in found.knobs] == [
        "sm",
        "clock_ghz",
        "tensor_tflops",
        "dram_gbps",
        "l2_mb",
        "link_gbps",
    ]
    for knob in found.knobs:
        assert [round(point.factor, 3) for point in knob.points] == [0.25, 0.354, 0.5, 0.707, 1, 1.414, 2, 2.828, 4]
        assert knob.points[4].value == knob.stock
        times = [point.value_ms for point in knob.points]
        assert times == sorted(times, reverse=True), f"more of {knob.name} is never slower"
        assert knob.sentence
    asked = page.client.post(
        "/api/what-if", json={"trace": page.trace_id, "config": f"h100_sxm:dram_gbps={found.knobs[3].points[6].value}"}
    ).json()
    assert found.knobs[3].points[6].value_ms == asked["tpot_ms"]["value"]


@pytest.mark.parametrize("config", ["l4", "a100_sxm_80gb", "h100_sxm:dram_gbps=6000"])
def test_a_what_if_without_steps_is_the_whole_one_but_for_them(page, config):
    question = {"trace": page.trace_id, "config": config}
    whole = page.client.post("/api/what-if", json=question).json()
    totals = page.client.post("/api/what-if", json=question | {"steps": False}).json()
    assert whole["steps"]
    assert totals == whole | {"steps": []}
    run = page.get(f"/api/runs/{page.run_id}")
    (same,) = [one for one in run["configs"] if one["gpu"] == config]
    names = ("kernel_time_ms", "ttft_ms", "tpot_ms", "prefill_step_ms", "decode_step_ms")
    assert {name: totals[name] for name in names} == {name: same[name] for name in names}


def test_a_chip_without_a_link_has_no_link_to_turn(page):
    link = swept(page, "l4").knobs[5]
    assert link.points == []
    assert "no link" in link.sentence


def test_a_knob_without_effect_says_so(page):
    assert "no kernel here is limited by link" in swept(page, "h100_sxm").knobs[5].sentence


# --- lists, database, error map -------------------------------------------------------------------------------------


def test_a_thousand_runs_are_listed_by_page_filter_and_status(page):
    store = page.engine.embedded.store
    for table in ("run_requests", "run_configs", "predicted_requests", "run_ends"):
        rows = [
            store.arrow(
                f"select ? as run_id, * exclude (run_id) from {table} where run_id = ?", [f"copy{n}", page.run_id]
            )
            for n in range(1000)
        ]
        store.commit({table: rows}, {})
    began = time.perf_counter()
    found = page.get("/api/runs", count=100)
    assert time.perf_counter() - began < 1
    answers.Runs.model_validate(found)
    assert len(found["runs"]) == 100
    assert found["total"] == 1001
    assert found["statuses"] == {"completed": 1001}
    assert found["runs"][0]["best"]["metric"] == "tpot"
    assert page.get("/api/runs", q="COPY99")["total"] == 11
    assert page.get("/api/runs", status="failed")["total"] == 0
    assert page.get("/api/runs", provenance="measured", count=5, **{"from": 998})["runs"][2]["run_id"]


def posted(page, path, body, status=200):
    response = page.client.post(path, json=body)
    assert response.status_code == status, response.text
    return response


def test_the_database_describes_itself(page):
    found = answers.SqlSchema.model_validate(page.get("/api/sql/schema"))
    kernels = next(table for table in found.tables if table.name == "kernels")
    assert kernels.about
    assert any(column.name == "duration_ns" and column.about for column in kernels.columns)


def test_rows_come_as_arrow_that_a_browser_reads(page):
    sql = (
        "select gpu, sum(duration_ns) as total, [1, 2] as list, true as yes, null as nothing from kernels group by gpu"
    )
    table = table_of(posted(page, "/api/sql/table", {"sql": sql}))
    assert table.num_rows == len({config.partition(":")[0] for config in GPUS})
    assert [str(field.type) for field in table.schema][:4] == ["string", "double", "string", "bool"]
    cut = posted(page, "/api/sql/table", {"sql": "from range(10)", "limit": 3})
    assert cut.headers["x-cascade-truncated"] == "1"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_export_says_what_it_rests_on_and_opens_in_duckdb(page, kind, tmp_path):
    response = posted(
        page, "/api/sql/export", {"sql": "select gpu, count(*) as n from kernels group by gpu", "format": kind}
    )
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(response.content)
    assert "attachment" in response.headers["content-disposition"]
    assert b"measured" in response.content
    assert duckdb.sql(f"select sum(n) from '{path}'").fetchall()[0][0] > 0


@pytest.mark.parametrize(
    ("sql", "rule", "pointed_at"),
    [
        ("select 1; drop table tasks", "one statement", "drop table tasks"),
        ("  copy tasks to 'x.csv'", "SELECT only", "copy tasks"),
        ("select\n  nothing_such from kernels", "statement", "nothing_such"),
        ("select 1 frm kernels x y", "statement", "kernels"),
        ("attach 'x.db'", "SELECT only", "attach"),
    ],
)
def test_a_refused_statement_names_the_rule_and_the_place(page, sql, rule, pointed_at):
    said = posted(page, "/api/sql/table", {"sql": sql}, 400).json()
    assert said["rule"] == rule
    assert sql[said["position"] :].startswith(pointed_at), said


def test_the_error_map_is_tables(page):
    found = answers.ErrorMap.model_validate(page.get("/api/accuracy"))
    aims, own = found.sections[:2]
    assert aims.tables[0].columns[:2] == ["kernels", "aim"]
    assert own.tables[0].columns[:3] == ["op", "variant", "GPU"]
    for table in (*aims.tables, *own.tables):
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(row[-1], float) for row in table.rows if row[-1] is not None)


def test_every_gpu_names_the_sources_of_its_figures(page):
    found = page.get("/api/gpus/h100")
    assert "datasheet" in found["sources"]["dram_bytes_per_s"]
