"""How tokens are spread over experts, where no trace tells it: what a user may say, and what comes of it."""

import json

import pytest
from cascade_schemas.events import ArtifactRef
from cascade_schemas.gpu import load_gpu
from cascade_schemas.model import load_model
from cascade_schemas.routing import BadRouting
from hypothesis import given, settings
from hypothesis import strategies as st

from services.cli import main
from services.ingest.admission import BadRequest, upload
from services.ingest.importers.synthesis import synthesized
from services.ingest.routed import routed
from services.ingest.synthesis import Workload
from services.kernels.routing import Routing
from services.kernels.work import Family, WorkTable
from services.kernels.work_of import work_of
from services.simworker.simulators.analytic.simulator import AnalyticSimulator

SKEWED = Routing.of("zipf:1.2")
FILE = ArtifactRef(digest="0" * 64, name="job.json", size_bytes=2)


def trace(model="qwen3-30b-a3b", tokens=16):
    return synthesized(Workload(model=load_model(model), prompt_tokens=(tokens,), output_tokens=1))


def expert_gemms(of):
    return [work for task in of.tasks if (work := work_of(task)).family == Family.MOE_GEMM]


@pytest.mark.parametrize(
    "text",
    ["lopsided", "zipf", "zipf:", "zipf:steep", "zipf:0", "zipf:9", "zipf:nan", "even:1"],
)
def test_a_routing_that_is_none_is_named_with_the_way_out(text):
    with pytest.raises(BadRouting, match="zipf:1") as refusal:
        Routing.of(text)
    assert repr(text) in str(refusal.value)
    with pytest.raises(BadRequest, match="zipf:1"):
        upload([FILE], name="job", model=None, source_gpu=None, routing=text)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 70_000), st.integers(1, 512), st.integers(1, 16), st.floats(0.01, 4.0))
def test_each_token_goes_to_topk_different_experts(tokens, experts, topk, exponent):
    rows = Routing(exponent).tokens_per_expert(tokens, experts, topk)
    if topk > experts:
        assert rows == ()
        return
    assert len(rows) == experts
    assert sum(rows) == tokens * topk
    assert rows[0] <= tokens
    assert list(rows) == sorted(rows, reverse=True)


@pytest.mark.parametrize(("experts", "topk"), [(8, 2), (128, 8), (256, 8), (512, 10)])
def test_more_tokens_hit_more_experts_and_load_the_busiest_more(experts, topk):
    before = (0, 0)
    for tokens in range(1, 600):
        rows = SKEWED.tokens_per_expert(tokens, experts, topk)
        after = sum(count > 0 for count in rows), rows[0]
        assert after[0] >= before[0]
        assert after[1] >= before[1]
        before = after


def test_skew_hits_fewer_experts_and_a_steeper_one_fewer_still():
    hit = [
        sum(count > 0 for count in Routing(exponent).tokens_per_expert(64, 128, 8)) for exponent in (0.1, 0.6, 1.2, 2.4)
    ]
    assert hit == sorted(hit, reverse=True)
    assert hit[0] > 1.3 * hit[2]


def test_expert_gemms_of_a_trace_get_their_rows_and_the_trace_says_so():
    plain, skewed = routed(trace(), Routing()), routed(trace(), SKEWED)
    assert any("spread evenly" in note for note in plain.quality.notes)
    assert any("zipf:1.2" in note for note in skewed.quality.notes)
    assert [task.task_id for task in plain.tasks] == [task.task_id for task in trace().tasks]
    for even, uneven in zip(expert_gemms(plain), expert_gemms(skewed), strict=True):
        assert uneven.m == even.m == 16
        assert uneven.flop == even.flop
        assert uneven.experts_hit < 0.8 * even.experts_hit
        assert uneven.rows_busiest_expert > 2 * even.rows_busiest_expert
    others = [
        (a.task_id, b.task_id)
        for a, b in zip(plain.tasks, skewed.tasks, strict=True) if work_of(a).family != Family.MOE_GEMM
    ]  # fmt: skip
    assert others
    assert all(one == other for one, other in others)


def test_a_trace_without_experts_says_that_routing_changes_nothing():
    dense = trace("opt-125m")
    assert routed(dense, Routing()) is dense
    assert "changes nothing" in routed(dense, SKEWED).quality.notes[-1]


def test_few_tokens_routed_unevenly_take_less_time():
    """Fewer experts are hit, so fewer weights are read: by 16 tokens of 128 experts two thirds as many."""
    gpus = [load_gpu(name) for name in ("h100_sxm", "b200_sxm", "mi300x")]
    simulator = AnalyticSimulator(1)
    even, uneven = (
        simulator.simulate(WorkTable.of(expert_gemms(routed(trace(), how))), gpus).duration_ns.sum(axis=1)
        for how in (Routing(), SKEWED)
    )
    assert (uneven < 0.9 * even).all()


@pytest.mark.parametrize(
    ("routing", "assumed"), [("even", "experts_routed_evenly"), ("zipf:1", "experts_routed_as_told")]
)
def test_a_run_says_what_it_assumed_of_routing(routing, assumed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CASCADE_HOME", str(tmp_path))
    arguments = ["synth", "--model", "qwen3-30b-a3b", "--prompts", "16", "--output-tokens", "1", "--gpu", "h100_sxm"]
    assert main([*arguments, "--routing", routing, "--json"]) == 0
    (config,) = json.loads(capsys.readouterr().out)["configs"]
    assert [name for name in config["assumptions"] if name.startswith("experts_")] == [assumed]


def test_a_routing_is_part_of_what_a_trace_is_and_even_routing_changes_no_identity():
    ids = [
        upload([FILE], name="job", model=None, source_gpu=None, routing=routing)
        for routing in ("", "even", "zipf:1.2", "zipf:1.20", "zipf:2")
    ]
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert len({event.trace_id for event in ids}) == 3
    assert "routing" not in ids[0].model_dump(mode="json")
    assert ids[2].model_dump(mode="json")["routing"] == "zipf:1.2"
