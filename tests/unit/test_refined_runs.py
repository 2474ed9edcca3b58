"""A refined run end to end: a folder of SASS traces, the command line, receipts and REST, and the same answer again."""

import json

import pytest

pytest.importorskip("numba", reason="pip install -r infra/requirements/sass.txt")

from cascade_schemas.events import Refine

from services.cli import main
from services.gateway.screens import STATE_TYPES
from services.runtime.embedded import Embedded, wall_clock_ms
from services.runtime.engine import ImportOptions, Refused
from services.runtime.served import ServedEngine
from services.simworker.simulators.catalog import simulators
from tests.factories import kineto_trace, settings
from tests.unit.test_sass_runs import files, folder

GPU = "a100_sxm_80gb"
assert folder  # the fixture


@pytest.fixture
def engine(tmp_path):
    home = tmp_path / "home"
    opened = ServedEngine(Embedded(settings(home), simulators(2, home), now_ms=wall_clock_ms))
    yield opened
    opened.close()


def refined(engine, folder):
    trace = engine.import_files(files(folder), ImportOptions(source_gpu=GPU))
    run_id = engine.start_run(trace["trace_id"], [GPU, "rtx_3090"], "analytic", refine=Refine(simulator="sass"))
    return run_id, engine.wait_run(run_id)


def test_it_ends_with_both_results_of_each_kernel_and_verifies(engine, folder):
    run_id, report = refined(engine, folder)
    assert report["status"] == "completed"
    assert engine.verify_run(run_id)["equal"]
    for config in report["refinement"]["configs"]:
        assert config["done"] == config["chosen"] == 2
        assert config["sentence"].startswith("2 of 2 kernels go to sass")
        for kernel in config["kernels"]:
            assert kernel["first_ns"] > 0
            assert kernel["refined_ns"] > 0
            is_tighter = _width(kernel, "refined") < _width(kernel, "first")
            assert kernel["verdict"] == ("taken:tighter_interval" if is_tighter else "kept:tighter_interval")
            assert kernel["duration_ns"] == kernel["refined_ns" if is_tighter else "first_ns"]


def test_the_page_folds_a_moment_to_the_same_state(engine, folder):
    run_id, report = refined(engine, folder)
    places = [place for place in engine.places(engine.keys_of(run_id)) if place.type in STATE_TYPES]
    assert engine.screens.state_hash(run_id, [place.position for place in places]) == report["state_hash"]


def _width(kernel, which):
    return kernel[f"{which}_p90_ns"] / kernel[f"{which}_ns"]


def test_a_kernel_is_shown_by_each_simulator_and_its_receipt_is_of_the_one_that_stands(engine, folder):
    run_id, report = refined(engine, folder)
    config = report["refinement"]["configs"][0]
    for kernel in config["kernels"]:
        shown = engine.screens.simulations(run_id, config["config_id"], kernel["task_id"])
        assert [one["simulator"] for one in shown["simulations"]] == ["analytic", "sass"]
        assert shown["why"]
        analytic, sass = shown["simulations"]
        assert analytic["statistics"] is None
        assert sass["statistics"]["cycles"] == sass["sm_cycles"]
        assert [analytic["stands"], sass["stands"]].count(True) == 1
        receipt = engine.screens.explain(run_id, config["config_id"], kernel["task_id"])
        (standing,) = [one for one in shown["simulations"] if one["stands"]]
        assert (receipt["simulator"], receipt["forward_ns"]) == (standing["simulator"], standing["duration_ns"])
        assert receipt["simulator_version"] == standing["simulator_version"]
    with pytest.raises(Refused, match="has no result of task 'none'"):
        engine.screens.simulations(run_id, config["config_id"], "none")


def test_a_trace_without_instructions_is_not_refined_and_says_what_is_missing(engine, tmp_path):
    trace = engine.import_files([kineto_trace(tmp_path / "k.json")], ImportOptions())
    with pytest.raises(Refused, match="has no SASS trace of any kernel, so sass has nothing to refine"):
        engine.start_run(trace["trace_id"], [GPU], "analytic", refine=Refine(simulator="sass"))
    with pytest.raises(Refused, match="cannot be refined with 'roofline'; it can be sass"):
        engine.start_run(trace["trace_id"], [GPU], "analytic", refine=Refine(simulator="roofline"))


def test_the_command_refines_and_compares(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path / "other"))
    assert main(["import", str(folder), "--source-gpu", GPU, "--json"]) == 0
    trace_id = json.loads(capsys.readouterr().out)["trace_id"]
    assert main(["run", trace_id, "--gpu", GPU, "--refine-with", "sass", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["refinement"]["simulator"] == "sass"
    run_id = report["run_id"]
    assert main(["simulators", run_id, "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)
    assert {tuple(one["simulator"] for one in kernel["simulations"]) for kernel in kernels} == {("analytic", "sass")}
    assert main(["simulators", run_id]) == 0
    assert "sass" in capsys.readouterr().out
    for wrong, sentence in (
        (["simulators", "none"], "no run 'none'"),
        (["simulators", run_id, "--gpu", "l4"], f"--gpu l4: run {run_id} has {GPU}"),
        (
            ["run", trace_id, "--gpu", GPU, "--refine-with", "sass", "--refine-share", "2"],
            "--refine-share 2: give a share",
        ),
        (["run", trace_id, "--gpu", GPU, "--refine-with", "sass", "--refine-limit", "0"], "--refine-limit 0"),
        (["run", trace_id, "--gpu", GPU, "--refine-with", "analytic"], "cannot be refined with 'analytic'"),
    ):
        assert main(wrong) == 2
        assert sentence in capsys.readouterr().err
