"""REST: what it takes, what it refuses, and that it never shows more than one sentence of why."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as fuzz_settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from services.gateway import answers
from services.gateway.app import create_app
from services.gateway.multipart import read_parts
from services.gateway.routes import Sample
from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions, Refused
from services.runtime.served import ServedEngine
from tests.factories import FakeSimulator, fake_simulators, kineto_trace, settings

TOKEN = "the-token-of-this-server"
LIMIT_BYTES = 200_000


class PatientSimulator(FakeSimulator):
    """Waits at each call until it is let go on."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.is_held = False

    def simulate(self, work, gpus):
        while self.is_held:
            time.sleep(0.01)
        return super().simulate(work, gpus)


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    folder = tmp_path_factory.mktemp("web") / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Cascade</title>")
    (folder / "assets" / "index-abc.js").write_text("let a = 1")
    (folder.parent / "secret.txt").write_text("secret")
    (folder / "way-out").symlink_to(folder.parent / "secret.txt")
    return folder


@pytest.fixture(scope="module")
def simulators():
    return fake_simulators() | {"patient": PatientSimulator("patient")}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def engine(home, simulators):
    engine = ServedEngine(Embedded(settings(home), simulators, now_ms=wall_clock_ms))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def client(engine, home, web, tmp_path_factory):
    app = create_app(
        engine,
        token=TOKEN,
        host="127.0.0.1",
        port=8321,
        version="1.2.3",
        upload_bytes_limit=LIMIT_BYTES,
        scratch=home,
        web=web,
        samples={"small": Sample(kineto_trace(tmp_path_factory.mktemp("sample") / "small.json"), ImportOptions())},
    )
    with TestClient(
        app,
        base_url="http://127.0.0.1:8321",
        headers={"Authorization": f"Bearer {TOKEN}"},
        raise_server_exceptions=False,
        follow_redirects=False,
    ) as client:
        yield client


def wait_for(ask, is_done, seconds=20):
    deadline = time.monotonic() + seconds
    while not is_done(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def uploaded(client, *files, **fields):
    return client.post("/api/traces", files=[("files", file) for file in files], data=fields)


@pytest.fixture(scope="module")
def trace_id(client, tmp_path_factory):
    body = kineto_trace(tmp_path_factory.mktemp("trace") / "job.json").read_bytes()
    response = uploaded(client, ("job.json", body), name="a job")
    assert response.status_code == 202
    found = response.json()["trace_id"]
    assert client.get(f"/api/traces/{found}").status_code == 200  # known from the moment it is acknowledged
    wait_for(lambda: client.get(f"/api/traces/{found}").json(), lambda report: report["status"] == "complete")
    return found


@pytest.fixture(scope="module")
def run_id(client, trace_id):
    body = {"trace_id": trace_id, "gpus": ["h100_sxm", "l4"]}
    response = client.post("/api/runs", json=body)
    assert response.status_code == 202
    found = response.json()["run_id"]
    wait_for(lambda: client.get(f"/api/runs/{found}/progress").json(), lambda p: p["status"] == "completed")
    return found


def is_sentence(response):
    said = response.json()["error"]
    assert isinstance(said, str)
    assert said
    assert "\n" not in said
    assert "Traceback" not in said
    assert 'File "' not in said
    return said


# --- answers --------------------------------------------------------------------------------------------------------


def test_the_description_lists_every_route(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {
        "/api/health", "/api/about", "/api/gpus", "/api/gpus/{name}", "/api/models", "/api/traces",
        "/api/traces/{trace_id}", "/api/samples", "/api/runs", "/api/runs/{run_id}", "/api/runs/{run_id}/progress",
        "/api/runs/{run_id}/state", "/api/runs/{run_id}/known-errors", "/api/traces/{trace_id}/tasks/{task}/histogram",
        "/api/runs/{run_id}/cancel", "/api/runs/{run_id}/verify", "/api/runs/{run_id}/kernels",
        "/api/runs/{run_id}/log/{config}", "/api/runs/{run_id}/events", "/api/runs/{run_id}/perfetto", "/api/sql",
        "/api/what-if", "/api/traces/{trace_id}/layout", "/api/traces/{trace_id}/launches",
        "/api/runs/{run_id}/durations/{config}", "/api/runs/{run_id}/log/{config}/search",
        "/api/runs/{run_id}/configs/{config}/tasks/{task}/explain", "/api/compare", "/api/what-if/sweep",
        "/api/runs/{run_id}/configs/{config}/tasks/{task}/simulations",
        "/api/traces/{trace_id}/profile", "/api/traces/{trace_id}/work", "/api/runs/{run_id}/curves",
        "/api/accuracy", "/api/sql/schema", "/api/sql/table", "/api/sql/export", "/api/recordings/{trace_id}/{rank}",
        "/api/artifacts/{digest}", "/api/imports",
    } == set(paths)  # fmt: skip


def test_lists_are_what_the_description_says(client, trace_id, run_id):
    shapes = {
        "about": answers.About,
        "gpus": answers.Gpus,
        "gpus/h100_sxm": answers.Gpu,
        "models": answers.Models,
        "traces": answers.Traces,
        "runs": answers.Runs,
        f"runs/{run_id}": answers.RunReport,
        f"runs/{run_id}/progress": answers.Progress,
        f"runs/{run_id}/kernels": answers.Kernels,
        f"runs/{run_id}/events": answers.Events,
        f"traces/{trace_id}": answers.TraceReport,
    }
    for path, shape in shapes.items():
        shape.model_validate_json(client.get(f"/api/{path}").content)


def test_the_run_list_is_newest_first_with_the_fastest_config(client, run_id):
    listed = client.get("/api/runs").json()["runs"]
    times = [run["requested_at_ms"] for run in listed]
    assert times == sorted(times, reverse=True)
    mine = next(run for run in listed if run["run_id"] == run_id)
    assert mine["config_count"] == 2
    assert mine["best"]["gpu"] in {"h100_sxm", "l4"}
    assert mine["best"]["p10"] <= mine["best"]["value"] <= mine["best"]["p90"]


def test_kernels_are_paged_and_sorted(client, run_id):
    config = client.get(f"/api/runs/{run_id}").json()["configs"][0]["config_id"]
    asked = f"/api/runs/{run_id}/kernels?config={config}"
    whole = client.get(asked).json()
    assert whole["total"] == len(whole["kernels"])
    durations = [row["duration_ns"] for row in whole["kernels"]]
    assert durations == sorted(durations, reverse=True)
    page = client.get(f"{asked}&from=1&count=2").json()
    assert page["kernels"] == whole["kernels"][1:3]
    assert page["total"] == whole["total"]
    names = [row["name"] for row in client.get(f"{asked}&sort=name&descending=false").json()["kernels"]]
    assert names == sorted(names)


@pytest.mark.parametrize("sort", ["nothing", "name; drop table runs", "1", "name--"])
def test_kernels_are_sorted_by_their_columns_only(client, run_id, sort):
    response = client.get(f"/api/runs/{run_id}/kernels", params={"sort": sort})
    assert response.status_code == 400
    is_sentence(response)


def test_the_log_of_a_config_is_read_by_line_number(client, run_id):
    config = client.get(f"/api/runs/{run_id}").json()["configs"][0]["config_id"]
    found = client.get(f"/api/runs/{run_id}/log/{config}").json()
    assert found["total"] == len(found["lines"]) >= 1
    assert client.get(f"/api/runs/{run_id}/log/{config}?from={found['total']}").json()["lines"] == []


def test_events_are_paged_in_replay_order(client, run_id):
    whole = client.get(f"/api/runs/{run_id}/events?count=10000").json()["events"]
    assert client.get(f"/api/runs/{run_id}/events?from=3&count=4").json()["events"] == whole[3:7]


def test_a_run_is_cancelled_while_it_works(client, trace_id, simulators):
    simulators["patient"].is_held = True
    try:
        body = {"trace_id": trace_id, "gpus": ["t4"], "simulator": "patient"}
        found = client.post("/api/runs", json=body).json()["run_id"]
        assert client.get(f"/api/runs/{found}/progress").json()["status"] == "running"
        assert client.post(f"/api/runs/{found}/cancel").status_code == 202
        status = wait_for(lambda: client.get(f"/api/runs/{found}").json()["status"], lambda s: s != "running")
        assert status == "cancelled"
    finally:
        simulators["patient"].is_held = False
    assert client.get(f"/api/runs/{found}").json()["status"] == "cancelled"


def test_a_sample_is_imported_by_name(client):
    found = client.post("/api/samples", json={"name": "small"})
    assert found.status_code == 202
    assert client.post("/api/samples", json={"name": "../../etc/passwd"}).status_code == 400


def test_an_export_is_a_download_that_leaves_nothing_behind(client, run_id, home):
    response = client.get(f"/api/runs/{run_id}/perfetto")
    assert len(response.json()["traceEvents"]) == int(response.headers["x-event-count"])
    assert "attachment" in response.headers["content-disposition"]
    assert list(home.glob("open-export-*")) == []


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/runs/nothing", None, 404),
        ("GET", "/api/runs/nothing/progress", None, 404),
        ("GET", "/api/runs/nothing/kernels", None, 404),
        ("GET", "/api/runs/nothing/log/nothing", None, 404),
        ("GET", "/api/runs/nothing/events", None, 404),
        ("GET", "/api/runs/nothing/perfetto", None, 404),
        ("POST", "/api/runs/nothing/cancel", None, 404),
        ("POST", "/api/runs/nothing/verify", None, 404),
        ("GET", "/api/traces/nothing", None, 404),
        ("GET", "/api/gpus/h1000", None, 404),
        ("GET", "/api/nothing", None, 404),
        ("GET", "/api", None, 404),
        ("DELETE", "/api/runs", None, 405),
        ("POST", "/api/runs", {"trace_id": "nothing", "gpus": ["h100_sxm"]}, 404),
        ("POST", "/api/runs", {"trace_id": "x", "gpus": []}, 422),
        ("POST", "/api/runs", {"trace_id": "x", "gpus": ["l4"], "gpu": "l4"}, 422),
        ("POST", "/api/runs", {"gpus": ["l4"]}, 422),
        ("POST", "/api/what-if", {"trace": "nothing", "config": "l4"}, 404),
        ("POST", "/api/sql", {"sql": "select 1", "limit": 0}, 422),
        ("POST", "/api/sql", {"sql": "select 1; drop table run_ends"}, 400),
        ("POST", "/api/sql", {"sql": "copy runs to 'x.csv'"}, 400),
        ("POST", "/api/sql", {"sql": "select * from read_text('/etc/passwd')"}, 400),
        ("POST", "/api/sql", {"sql": "attach 'x.db'"}, 400),
        ("POST", "/api/sql", {"sql": "selec 1"}, 400),
    ],
)  # fmt: skip
def test_mistakes_are_answered_with_one_sentence(client, method, path, body, status):
    response = client.request(method, path, json=body)
    assert response.status_code == status, response.text
    is_sentence(response)


def test_a_bug_is_not_shown(client, engine, monkeypatch):
    monkeypatch.setattr(engine, "runs", lambda: 1 / 0)
    response = client.get("/api/runs")
    assert response.status_code == 500
    assert "division" not in is_sentence(response)


def test_a_body_that_fits_no_memory_is_refused(client):
    response = client.post("/api/sql", content=b'{"sql": "' + b"x" * (3 << 20) + b'"}')
    assert response.status_code == 413
    is_sentence(response)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(["trace_id", "gpus", "simulator", "name", "sql", "limit", "trace", "config", "x"])


@given(
    path=st.sampled_from(["/api/runs", "/api/sql", "/api/what-if", "/api/samples"]),
    body=JSON | st.dictionaries(FIELDS, JSON, max_size=5),
)
@fuzz_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_answered_or_refused(client, path, body):
    response = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        is_sentence(response)


@given(
    path=st.sampled_from(["/api/runs", "/api/sql", "/api/traces"]),
    body=st.binary(max_size=300),
    kind=st.sampled_from(["application/json", "text/plain", "multipart/form-data; boundary=b", "multipart/form-data"]),
)
@fuzz_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_answered_or_refused(client, path, body, kind):
    response = client.post(path, content=body, headers={"content-type": kind})
    assert 400 <= response.status_code < 500, response.text
    is_sentence(response)


# --- uploads --------------------------------------------------------------------------------------------------------


def artifacts(home):
    return sorted(path.relative_to(home).as_posix() for path in (home / "artifacts").rglob("*") if path.is_file())


def test_an_upload_over_the_limit_leaves_nothing(client, trace_id, home):
    before = artifacts(home)
    response = uploaded(client, ("big.json", b"x" * (LIMIT_BYTES + 1)))
    assert response.status_code == 413
    assert str(LIMIT_BYTES) in is_sentence(response)
    assert artifacts(home) == before


def test_the_limit_holds_for_all_files_of_an_upload_together(client, trace_id, home):
    before = artifacts(home)
    half = LIMIT_BYTES // 2 + 10
    response = uploaded(client, ("a.json", b"x" * half), ("b.json", b"y" * half))
    assert response.status_code == 413
    assert len(artifacts(home)) <= len(before) + 1  # the first file fitted; nothing of the second is there
    assert not list((home / "artifacts").glob("incoming-*"))


def test_an_announced_size_is_refused_before_it_is_sent(client):
    response = client.post(
        "/api/traces",
        content=b"",
        headers={"content-type": "multipart/form-data; boundary=b", "content-length": str(100 << 30)},
    )
    assert response.status_code == 413


def test_an_upload_that_is_cut_off_leaves_nothing(client, trace_id, home):
    before = artifacts(home)
    body = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n{"traceEvents": ['
    response = client.post("/api/traces", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert response.status_code == 400
    assert "cut off" in is_sentence(response)
    assert artifacts(home) == before


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"source_gpu": "h1000"}, "h1000"),
        ({"prompts": "many"}, "many"),
        ({"routing": "lopsided"}, "lopsided"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"model": "/etc/passwd.json"}, "/etc/passwd.json"),
        ({"model": "{not json"}, "JSON"),
        ({"model": "{}"}, ""),
        ({"modle": "opt-125m"}, "modle"),
    ],
)
def test_a_bad_option_is_named(client, fields, value):
    response = uploaded(client, ("job.json", b"{}"), **fields)
    assert response.status_code == 400
    assert value in is_sentence(response)


def test_an_upload_without_a_file_is_refused(client):
    response = client.post("/api/traces", files={"name": (None, b"only a name")})
    assert response.status_code == 400
    assert "file" in is_sentence(response)


def test_a_file_that_is_no_trace_becomes_a_rejected_one(client):
    found = uploaded(client, ("holiday.png", b"\x89PNG\r\n\x1a\n")).json()["trace_id"]
    report = wait_for(lambda: client.get(f"/api/traces/{found}").json(), lambda r: r["status"] != "importing")
    assert report["status"] == "rejected"
    assert report["reason"]
    response = client.post("/api/runs", json={"trace_id": found, "gpus": ["l4"]})
    assert response.status_code == 400
    is_sentence(response)


@given(
    files=st.lists(st.tuples(st.text("abc.é", min_size=1, max_size=8), st.binary(max_size=200)), max_size=4),
    cut=st.integers(1, 40),
)
def test_multipart_is_read_the_same_however_it_is_cut(files, cut):
    body = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\n%s\r\n' % (name.encode(), content)
        for name, content in files
    )
    body += b"--b--\r\n"
    chunks = iter([body[at : at + cut] for at in range(0, len(body), cut)])
    if any(b"\r\n--b" in b"\r\n" + content for _, content in files):
        return
    parts = read_parts("multipart/form-data; boundary=b", lambda: next(chunks, b""))
    assert [(part.file_name, part.body().read()) for part in parts] == files


def test_a_form_with_endless_parts_is_refused():
    part = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n1\r\n'
    with pytest.raises(Refused, match="at most"):
        [one.text() for one in read_parts("multipart/form-data; boundary=b", lambda: part)]


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_answers_every_address_of_its_own(client):
    for path in ("/", "/runs/abc", "/sql"):
        response = client.get(path)
        assert "<title>Cascade</title>" in response.text
        assert response.headers["cache-control"] == "no-cache"
    assert "immutable" in client.get("/assets/index-abc.js").headers["cache-control"]
    assert client.get("/assets/gone.js").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/assets/..%2f..%2fsecret.txt",
        "/assets/%2e%2e/%2e%2e/secret.txt",
        "/..%5csecret.txt",
        "/%2fetc%2fpasswd",
        "//etc/passwd",
        "/way-out",
        "/assets/%00",
        "/" + "a" * 5000,
    ],
)
def test_nothing_beside_the_page_is_served(client, path):
    response = client.get(f"http://127.0.0.1:8321{path}")
    assert "secret" not in response.text.replace("secret.txt", "")
    assert "root:" not in response.text
    assert response.status_code in {200, 404}


def test_without_a_built_page_the_way_to_build_it_is_said(client, web):
    index = web / "index.html"
    kept = index.read_text()
    index.unlink()
    try:
        assert "make web" in client.get("/").text
    finally:
        index.write_text(kept)
