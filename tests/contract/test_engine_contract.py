"""One set of questions, the same answers: from the engine in this process and from the one that serves over REST."""

from __future__ import annotations

import json

import pytest

from services.gateway import answers
from services.runtime.embedded import Embedded
from services.runtime.engine import ImportOptions, Refused
from services.runtime.local import LocalEngine
from services.runtime.remote import RemoteEngine
from tests.factories import Clock, fake_simulators, kineto_trace, settings
from tests.served import served


@pytest.fixture(scope="module", params=["local", "remote"])
def engine(request, tmp_path_factory):
    """One engine for all questions of a kind; a test brings what it counts."""
    home = tmp_path_factory.mktemp("home")
    if request.param == "local":
        local = LocalEngine(Embedded(settings(home), fake_simulators(), now_ms=Clock()))
        yield local
        local.close()
        return
    with served(home, fake_simulators()) as server:
        remote = RemoteEngine(server.file)
        yield remote
        remote.close()


@pytest.fixture(scope="module")
def trace(engine, tmp_path_factory):
    return engine.import_files(
        [kineto_trace(tmp_path_factory.mktemp("trace") / "job.json")], ImportOptions(name="a job")
    )


@pytest.fixture(scope="module")
def run(engine, trace):
    return engine.wait_run(engine.start_run(trace["trace_id"], ["h100_sxm", "l4:dram_gbps=600"], "analytic"))


def as_json(value):
    return json.loads(json.dumps(value, default=str))


def test_an_import_is_reported_and_listed(engine, trace):
    assert trace["status"] == "complete"
    assert trace["name"] == "a job"
    assert trace["source_gpu"] == "a100_sxm_80gb"
    assert engine.trace_report(trace["trace_id"]) == trace
    assert [one["name"] for one in engine.traces() if one["trace_id"] == trace["trace_id"]] == ["a job"]


def test_importing_twice_is_one_trace(engine, trace, tmp_path):
    again = engine.import_files([kineto_trace(tmp_path / "job.json")], ImportOptions(name="a job"))
    assert again == trace
    assert len([one for one in engine.traces() if one["name"] == "a job"]) == 1


def test_a_run_has_every_config_and_its_source(engine, run):
    assert run["status"] == "completed"
    assert [config["gpu"] for config in run["configs"]] == ["h100_sxm", "l4:dram_gbps=600"]
    assert run["source"]["gpu"] == "a100_sxm_80gb"
    assert all(config["kernel_time_ms"] > 0 for config in run["configs"])
    assert run["run_id"] in {one["run_id"] for one in engine.runs()}


def test_progress_is_told_until_all_is_simulated(engine, trace):
    seen = []
    engine.wait_run(engine.start_run(trace["trace_id"], ["h100_sxm"], "analytic"), seen.extend)
    last = {one["label"]: one for one in seen}
    assert last["h100_sxm"]["simulated"] == last["h100_sxm"]["total"] == trace["tasks"]


def test_what_if_gives_exactly_the_numbers_of_a_run(engine, run):
    for config in run["configs"]:
        answer = engine.what_if(run["trace"]["trace_id"], config["gpu"])
        for name in ("kernel_time_ms", "kernel_time_interval_ms", "steps", "ttft_ms", "tpot_ms", "config_id"):
            assert answer[name] == config[name], name


def test_the_log_verifies(engine, run):
    answer = engine.verify_run(run["run_id"])
    assert answer["equal"]
    assert answer["logged"] == run["state_hash"]


def test_events_come_in_replay_order_and_end_with_the_run(engine, run):
    events = list(engine.events(run["run_id"]))
    assert [event["position"] for event in events] == list(range(len(events)))
    assert [event["timestamp_ms"] for event in events] == sorted(event["timestamp_ms"] for event in events)
    assert events[-1]["type"] == "RunCompleted"
    assert events[0]["type"] == "TraceUploaded"


def test_sql_gives_rows_in_the_order_and_the_types_of_json(engine, run):
    found = engine.sql(
        "select label, count(*) as n, sum(duration_ns) as total, 1.5::decimal(5,2) as d, date '2026-01-02' as day,"
        " null as no"
        " from kernels where is_requested and label like 'l4%' or label = 'h100_sxm' group by label order by label",
        10,
    )
    rows = as_json(found.rows)
    assert found.names == ["label", "n", "total", "d", "day", "no"]
    assert [row["label"] for row in rows] == ["h100_sxm", "l4:dram_gbps=600"]
    assert rows[0]["d"] == "1.50"
    assert rows[0]["day"] == "2026-01-02"
    assert rows[0]["no"] is None
    assert not found.is_truncated
    assert engine.sql("select unnest(range(5)) as i", 3).is_truncated


def test_a_run_is_exported_whole(engine, run, tmp_path):
    path = tmp_path / "run.json"
    count = engine.export_perfetto(run["run_id"], path)
    assert len(json.loads(path.read_text())["traceEvents"]) == count > 0
    assert list(tmp_path.glob("*.partial")) == []


def test_a_cancelled_run_stays_cancelled_and_an_ended_one_stays_ended(engine, trace, run):
    engine.cancel_run(run["run_id"])
    assert engine.run_report(run["run_id"])["status"] == "completed"
    other = engine.start_run(trace["trace_id"], ["h100_sxm"], "analytic")
    engine.wait_run(other)
    engine.cancel_run(other)
    assert engine.run_report(other)["status"] == "completed"


def refusals():
    missing = "no-such-thing"
    return {
        "unknown trace": (lambda e, _: e.trace_report(missing), missing),
        "unknown run": (lambda e, _: e.run_report(missing), missing),
        "cancel of nothing": (lambda e, _: e.cancel_run(missing), missing),
        "events of nothing": (lambda e, _: list(e.events(missing)), missing),
        "verify nothing": (lambda e, _: e.verify_run(missing), missing),
        "run of an unknown trace": (lambda e, _: e.start_run(missing, ["h100_sxm"], "analytic"), missing),
        "unknown GPU": (lambda e, t: e.start_run(t, ["h1000"], "analytic"), "h1000"),
        "unknown override": (lambda e, t: e.start_run(t, ["h100_sxm:magic=2"], "analytic"), "magic"),
        "unknown simulator": (lambda e, t: e.start_run(t, ["h100_sxm"], "crystal-ball"), "crystal-ball"),
        "what-if of nothing": (lambda e, _: e.what_if(missing, "h100_sxm"), missing),
        "what-if on nothing": (lambda e, t: e.what_if(t, "h1000"), "h1000"),
        "two statements": (lambda e, _: e.sql("select 1; select 2", 10), "one SELECT"),
        "a write": (lambda e, _: e.sql("drop table run_ends", 10), "SELECT"),
    }


@pytest.mark.parametrize("what", refusals())
def test_refusals_are_one_sentence_with_the_value(engine, trace, what):
    ask, value = refusals()[what]
    with pytest.raises(Refused) as refusal:
        ask(engine, trace["trace_id"])
    assert value in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "Traceback" not in str(refusal.value)


def test_a_file_that_is_no_trace_is_refused_with_the_importers_reason(engine, tmp_path):
    path = tmp_path / "holiday.json"
    path.write_text("this is a picture of a beach")
    with pytest.raises(Refused):
        engine.import_files([path], ImportOptions())


def test_a_trace_of_several_files_is_one_trace(engine, tmp_path):
    paths = [kineto_trace(tmp_path / name) for name in ("rank0.json", "rank1.json")]
    try:
        report = engine.import_files(paths, ImportOptions(name="two ranks"))
    except Refused as refusal:  # two files of one rank are a contradiction that the importer may name
        assert "rank" in str(refusal)
    else:
        assert report["ranks"] >= 1


def test_reports_are_what_openapi_says(engine, trace, run):
    """The answers are the engine's reports as they are; this holds them to the shapes that callers are promised."""
    answers.TraceReport.model_validate(trace, strict=True)
    answers.RunReport.model_validate(run, strict=True)
    answers.WhatIf.model_validate(engine.what_if(trace["trace_id"], "h100_sxm"), strict=True)
    answers.Verification.model_validate(engine.verify_run(run["run_id"]), strict=True)
    for one in engine.traces():
        answers.TraceSummary.model_validate(one, strict=True)
