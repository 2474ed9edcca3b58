"""`cascade-trace` around vLLM's own benchmark: traced from its first step until its workers shut down."""

import subprocess
import sys

from cascade_profiler.cli import main
from cascade_schemas.codec import decode
from cascade_schemas.events import HostProfileRecorded, StepRecorded, TraceEnded
from cascade_schemas.recording import read_stream

from tests.vllm.conftest import ROOT


def test_vllm_bench_latency_is_traced_with_a_baseline_of_its_own(model, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    arguments = [
        sys.executable, "-m", "tests.vllm.bench_latency",
        "--model", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager",
        "--dtype", "bfloat16", "--max-model-len", "512", "--input-len", "100", "--output-len", "9", "--batch-size", "3",
        "--num-iters-warmup", "1", "--num-iters", "2",
    ]  # fmt: skip
    assert main(["--baseline", "--to", f"file://{tmp_path}/bench", "--", *arguments]) == 0
    events = [decode(r.headers, r.value) for r in read_stream(tmp_path / "bench.rank0.cascade-trace")]
    (end,) = [event for event in events if isinstance(event, TraceEnded)]
    steps = [event for event in events if isinstance(event, StepRecorded)]
    (profile,) = [event for event in events if isinstance(event, HostProfileRecorded)]
    ran = [step for step in steps if step.request_ids]
    token_count = 3 * 3 * (100 + 8)  # a warm-up and two iterations of three requests; the last token is not computed
    assert sum(sum(step.q_lengths) for step in ran) == token_count
    assert end.step_count == len(steps)
    assert all(step.op_count for step in ran)
    assert sum(profile.step_context_tokens) + sum(profile.step_generation_tokens) == token_count
    assert sum(time > 0 for time in profile.ttft_ns) == 9


def test_the_check_says_which_profilers_work_here():
    done = subprocess.run(
        [sys.executable, "-m", "cascade_profiler", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "torch   used" in done.stdout
