"""The command line: one sentence and exit code 2 on bad input, one JSON document with --json."""

import json

import pytest

from services.cli import main
from tests.factories import kineto_trace


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def trace(tmp_path):
    return str(kineto_trace(tmp_path / "small.json"))


def printed(capsys, *arguments):
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


BAD = {
    "no such file": ["import", "nothing.json"],
    "no such trace": ["run", "0123456789abcdef"],
    "unknown sample": ["run", "sample:gpt-7"],
    "unknown gpu": ["run", "TRACE", "--gpu", "z9000"],
    "unknown override": ["run", "TRACE", "--gpu", "h100_sxm:colour=3"],
    "absurd override": ["run", "TRACE", "--gpu", "h100_sxm:dram_gbps=-5"],
    "unknown simulator": ["run", "TRACE", "--simulator", "crystal-ball"],
    "unknown model": ["import", "TRACE", "--model", "gpt-12"],
    "unknown source gpu": ["import", "TRACE", "--source-gpu", "abacus"],
    "bad prompts": ["import", "TRACE", "--prompts", "many"],
    "bad routing": ["import", "TRACE", "--routing", "lopsided"],
    "routing of what is imported": ["run", "0123456789abcdef", "--routing", "zipf:1.2"],
    "no such run": ["replay", "nothing"],
    "no such run to verify": ["replay", "nothing", "--verify"],
    "no such run to export": ["export", "nothing", "out.json"],
    "no such folder": ["export", "nothing", "no/such/folder/out.json"],
    "not one select": ["sql", "drop table runs"],
    "no rows": ["sql", "select 1", "--limit", "0"],
    "no such pairs": ["validate", "pairs.parquet"],
    "no tables to fit": ["calibrate", "--data", "."],
    "no such gpu": ["gpus", "abacus"],
    "no such trace to ask about": ["what-if", "nothing", "--gpu", "h100_sxm"],
    "heads that do not divide": ["synth", "--model", "opt-125m", "--tp", "7"],
    "no output": ["synth", "--model", "opt-125m", "--output-tokens", "0"],
    "no such run to cancel": ["cancel", "nothing"],
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence_and_a_code(arguments, trace, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main([trace if argument == "TRACE" else argument for argument in arguments])
    captured = capsys.readouterr()
    assert code == 2
    complaint = [line for line in captured.err.splitlines() if line.startswith("cascade: ")]
    assert len(complaint) == 1, captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_a_bad_setting_names_variable_and_value(monkeypatch, capsys):
    monkeypatch.setenv("CASCADE_THREADS", "lots")
    assert main(["gpus"]) == 2
    assert "CASCADE_THREADS='lots'" in capsys.readouterr().err


def test_import_says_what_the_issue_promises(trace, capsys):
    code, report = printed(capsys, "import", trace)
    assert code == 0
    assert set(report) >= {"trace_id", "kernels", "signatures", "tasks", "launchless_kernels", "steps", "quality"}
    assert set(report["steps"][0]) >= {
        "phase", "context_requests", "context_tokens", "generation_requests", "generation_tokens", "kernels"
    }  # fmt: skip
    assert [step["phase"] for step in report["steps"]] == ["prefill", "decode"]
    assert report["source_gpu"] == "a100_sxm_80gb"


def test_importing_twice_is_one_trace(trace, capsys):
    _, first = printed(capsys, "import", trace)
    _, second = printed(capsys, "import", trace)
    assert first["trace_id"] == second["trace_id"]
    _, traces = printed(capsys, "sql", "select count(*) as n from traces")
    assert traces == [{"n": 1}]


def test_run_says_what_the_issue_promises(trace, capsys):
    code, report = printed(capsys, "run", trace, "--gpu", "h100_sxm", "--gpu", "a100_sxm_80gb")
    assert code == 0
    assert len(report["state_hash"]) == 64
    for config in report["configs"]:
        assert set(config) >= {
            "gpu", "kernel_time_ms", "steps", "ttft_ms", "tpot_ms", "coverage", "error", "assumptions", "reason"
        }  # fmt: skip
        ttft = config["ttft_ms"]
        assert ttft["p10"] <= ttft["value"] <= ttft["p90"]
    target, source = report["configs"]
    assert target["error"] is None
    assert source["error"]["roofline_mape"] > 0


def test_a_run_is_replayed_and_verified_until_a_row_is_altered(trace, home, capsys):
    import duckdb

    _, report = printed(capsys, "run", trace, "--gpu", "h100_sxm")
    code, verdict = printed(capsys, "replay", report["run_id"], "--verify")
    assert (code, verdict["equal"]) == (0, True)
    with duckdb.connect(str(home / "cascade.duckdb")) as database:
        database.execute("update predicted_steps set p90_ns = p90_ns + 1 where step = 1")
    code, verdict = printed(capsys, "replay", report["run_id"], "--verify")
    assert (code, verdict["equal"]) == (1, False)
    assert verdict["stored"] != verdict["logged"] == verdict["replayed"]


def test_export_writes_a_timeline_that_perfetto_reads(trace, tmp_path, capsys):
    _, report = printed(capsys, "run", trace, "--gpu", "h100_sxm", "--gpu", "l4")
    code, said = printed(capsys, "export", report["run_id"], str(tmp_path / "out.json"))
    assert code == 0
    written = json.loads((tmp_path / "out.json").read_text())
    events = written["traceEvents"]
    assert len(events) == said["events"]
    assert {event["pid"] for event in events} == {1, 2}
    kernels = [event for event in events if event["ph"] == "X" and event["tid"] != 0]
    assert len(kernels) == 2 * 8
    assert all(event["dur"] > 0 for event in kernels)
    assert written["otherData"]["provenance"] == "measured"


def test_what_if_gives_the_runs_numbers(trace, capsys):
    _, report = printed(capsys, "run", trace, "--gpu", "h100_sxm:dram_gbps=5000")
    _, answer = printed(capsys, "what-if", report["trace"]["trace_id"], "--gpu", "h100_sxm:dram_gbps=5000")
    (config,) = report["configs"]
    for name in ("kernel_time_ms", "ttft_ms", "tpot_ms", "steps", "prefill_step_ms", "decode_step_ms"):
        assert answer[name] == config[name], name


def test_nothing_is_left_outside_the_home(trace, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    printed(capsys, "run", trace, "--gpu", "h100_sxm")
    assert {path.name for path in set(tmp_path.iterdir()) - before} == {"home"}


def test_every_gpu_is_listed_with_its_numbers(capsys):
    code, specs = printed(capsys, "gpus")
    assert code == 0
    assert len(specs) >= 25
    assert all(spec["dram_bytes_per_s"] > 0 for spec in specs)
