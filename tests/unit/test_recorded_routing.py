"""How tokens are routed, said where a job is recorded: it reaches the trace as importing with --routing does."""

import cascade_profiler
import pytest
from cascade_profiler import cli, session
from cascade_profiler.rows import FactColumns, Launches, LaunchFacts, launch_batches
from cascade_schemas.codec import encode
from cascade_schemas.events import ArtifactRef, KernelTaskTraced, LaunchesRecorded, TraceCompleted, TraceEnded
from cascade_schemas.model import load_model
from cascade_schemas.recording import RecordStream

from services.ingest.admission import upload
from services.ingest.importers.record_stream import events_of_streams
from services.ingest.importers.synthesis import synthesized
from services.ingest.live import LiveIngest
from services.ingest.synthesis import Workload
from services.kernels.routing import Routing
from services.kernels.work import Family
from services.kernels.work_of import work_of
from tests.recordings import RECORDED, recording_started, step_recorded

MODEL, TOKENS = load_model("qwen3-30b-a3b"), 16
FILE = ArtifactRef(digest="0" * 64, name="job.json", size_bytes=2)


def layer():
    """The kernels of one layer of a mixture of experts, as a profiler names them."""
    tasks = synthesized(Workload(model=MODEL, prompt_tokens=(TOKENS,), output_tokens=1)).tasks
    return list({task.task_id: task for task in tasks}.values())


def facts_of(task):
    """As a profiler says it: of an expert GEMM the kernel alone."""
    if work_of(task).family == Family.MOE_GEMM:
        return LaunchFacts("fused_moe_kernel", grid=(128, 1, 1), block=(128, 1, 1))
    return LaunchFacts(
        task.signature.name, grid=task.signature.grid or (16, 1, 1), block=task.signature.block or (128, 1, 1),
        op=task.op or "", operand_dtypes=tuple(o.dtype for o in task.operands),
        operand_shapes=tuple(o.shape for o in task.operands),
    )  # fmt: skip


def recorded(routing="", *, with_experts=True):
    """One step of a job."""
    kernels = [task for task in layer() if with_experts or work_of(task).family != Family.MOE_GEMM]
    rows = Launches(facts=[facts_of(task) for task in kernels])
    for place in range(len(kernels)):
        rows.fact.append(place)
        rows.start_ns.append(10_000 + 20_000 * place)
        rows.duration_ns.append(9_000)
        rows.stream.append(7)
        rows.graph.append(None)
        rows.graph_node.append(None)
        rows.host_launch_ns.append(6_000 + 20_000 * place)
    (batch,) = launch_batches(rows, 0, 0, FactColumns())
    return [
        recording_started(model=MODEL, routing=routing),
        LaunchesRecorded(trace_id=RECORDED, rank=0, first_seq=0, rows=batch),
        step_recorded(0, prompt=TOKENS, launch_count=len(kernels)),
        TraceEnded(trace_id=RECORDED, rank=0, launch_count=len(kernels), step_count=1, dropped_launch_count=0),
    ]


def catalog_of(events):
    live = LiveIngest()
    return [said for event in events for said in (*live.react(event), *live.settle())]


def expert_gemms(catalog):
    tasks = [event.task for event in catalog if isinstance(event, KernelTaskTraced)]
    return [task for task in tasks if work_of(task).family == Family.MOE_GEMM]


def notes(catalog):
    (end,) = [event for event in catalog if isinstance(event, TraceCompleted)]
    return end.quality["notes"]


def test_what_was_said_at_recording_reaches_the_rows_of_each_expert():
    even, skewed = catalog_of(recorded()), catalog_of(recorded("zipf:1.2"))
    assert expert_gemms(skewed)
    assert not any(task.tokens_per_expert for task in expert_gemms(even))
    for task in expert_gemms(skewed):
        work = work_of(task)
        expected = Routing.of("zipf:1.2").tokens_per_expert(TOKENS, MODEL.experts, MODEL.topk)
        assert task.tokens_per_expert == expected
        assert work.experts_hit < 0.8 * work_of(expert_gemms(even)[0]).experts_hit
    assert any("zipf:1.2" in note for note in notes(skewed))
    assert any("spread evenly" in note for note in notes(even))


def test_without_experts_it_changes_nothing_and_says_so():
    dense, asked = catalog_of(recorded(with_experts=False)), catalog_of(recorded("zipf:1", with_experts=False))
    assert dense[:-1] == asked[:-1]
    assert notes(asked) == [*notes(dense), "No expert GEMM is in the trace: routing zipf:1 changes nothing."]


def test_importing_a_recorded_file_with_a_routing_is_recording_with_it(tmp_path):
    stream = RecordStream(tmp_path / "job.rank0.cascade-trace")
    stream.append([encode(event) for event in recorded("zipf:3")], 0)
    stream.close()
    asked = upload([FILE], name="job", model=None, source_gpu=None, routing="zipf:1.2")
    found = list(events_of_streams(asked, [tmp_path / "job.rank0.cascade-trace"]))
    live = catalog_of(recorded("zipf:1.2"))
    assert [t.tokens_per_expert for t in expert_gemms(found)] == [t.tokens_per_expert for t in expert_gemms(live)]


def test_a_recording_with_a_routing_that_is_none_is_taken_as_even():
    catalog = catalog_of(recorded("lopsided"))
    assert not any(task.tokens_per_expert for task in expert_gemms(catalog))
    assert any("'lopsided'" in note and "even is assumed" in note for note in notes(catalog))


@pytest.mark.parametrize("text", ["lopsided", "zipf:0", "zipf:9"])
def test_a_bad_routing_is_one_sentence_and_nothing_is_recorded(text, capsys):
    with pytest.raises(ValueError, match="zipf:1") as refusal:
        session.new_orders(destination="memory://", routing=text)
    assert repr(text) in str(refusal.value)
    with cascade_profiler.trace(object(), destination="memory://", routing=text) as trace:
        pass
    said = capsys.readouterr().err
    assert repr(text) in said
    assert "nothing is recorded" in said
    assert not trace.is_recording
    assert cli.main(["--routing", text, "--to", "memory://", "--", "true"]) != 0
    assert repr(text) in capsys.readouterr().err


@pytest.mark.parametrize(("said", "ordered"), [("", ""), ("even", ""), ("zipf:1.20", "zipf:1.2")])
def test_orders_carry_it_in_one_spelling(said, ordered):
    orders = session.new_orders(destination="memory://", routing=said)
    assert orders.routing == ordered
    assert type(orders).from_json(orders.to_json()).routing == ordered
