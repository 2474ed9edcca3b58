"""Step mode is cheap enough to leave on while a real job is measured."""

import json
import subprocess
import sys

from tests.vllm.conftest import ROOT


def test_a_step_with_the_hook_takes_hardly_longer_than_one_without(model, capsys):
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.cost", str(model)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"steps_on"')))
    low, high = found["interval"]
    with capsys.disabled():
        print(
            f"\nstep mode: hook on ÷ off {found['ratio']:.4f} (95 % {low:.4f}–{high:.4f}), {found['steps_on']} steps each;"
            f" median step {found['median_step_ms']:.2f} ms, the hook's own CPU time {found['own_cpu_us']:.0f} µs"
            f" = {found['own_cpu_ratio']:.2%}"
        )
    assert found["steps_on"] >= 1000
    assert found["steps_off"] >= 1000
    assert found["interval"][1] <= 1.05, found
    assert found["own_cpu_ratio"] <= 0.02, found
