"""One workload that was recorded on two GPUs: each recording predicts the other. Neither's times are in any fit."""

import json

import pytest

from services.cli import main

RECORDED = {
    "h100_sxm": "k07_hf_h100_qwen1.5-0.5b_prefill.json.gz",
    "mi300x": "k08_hf_mi300x_qwen1.5-0.5b_prefill.json.gz",
}
WITHIN = 0.15


def said(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def ids(shared, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path))
    folder = shared / "data" / "traces" / "kineto"
    return {gpu: said(capsys, "import", str(folder / name))["trace_id"] for gpu, name in RECORDED.items()}


def gpu_ms_of_step(capsys, trace_id):
    """As recorded: the step's kernels, without gaps."""
    sql = f"select sum(duration_ns) / 1e6 as ms from launches where trace_id = '{trace_id}' and step >= 0"
    return said(capsys, "sql", sql)[0]["ms"]


@pytest.mark.parametrize(("source", "target"), [("mi300x", "h100_sxm"), ("h100_sxm", "mi300x")])
def test_gpu_time_of_the_step_is_what_the_other_recording_has(ids, capsys, source, target):
    predicted = said(capsys, "run", ids[source], "--gpu", target)["configs"][0]["steps"][0]["gpu_ms"]
    measured = gpu_ms_of_step(capsys, ids[target])
    assert abs(predicted / measured - 1) <= WITHIN, (predicted, measured)
