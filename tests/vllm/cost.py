"""What step mode costs: one engine in one process, the hook on and off in alternating blocks, as `python -m`.

Prints one JSON object: the median ratio of a step with the hook to one without, its bootstrap 95 % interval, and the
hook's own CPU time beside the median step.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

from tests.vllm.conftest import build, generate

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

BLOCK_STEPS = 20
BLOCKS = 50
RESAMPLES = 2000


def main(model: Path) -> None:
    import cascade_profiler
    from cascade_profiler import vllm as hook
    from vllm import SamplingParams

    llm = build(model)
    engine = llm.llm_engine
    params = SamplingParams(max_tokens=700, temperature=0, ignore_eos=True, detokenize=False)
    generate(llm, (20,), 20)
    with cascade_profiler.trace(llm, destination=f"file://{model}/steps", mode="steps"):
        tracer = hook._seat.tracer
        times: dict[bool, list[list[float]]] = {True: [], False: []}
        spent_ns, hooked_steps = [0], 0
        number = 0
        for block in range(2 * BLOCKS):
            is_on = block % 2 == 0
            hook._seat.tracer = tracer if is_on else None
            steps = []
            for _ in range(BLOCK_STEPS):
                if not engine.has_unfinished_requests():
                    for place in range(8):
                        prompt = {"prompt_token_ids": [11 + place] * 8}
                        engine.add_request(f"cost-{number}-{place}", prompt, params)
                    number += 1
                    engine.step()  # the prefill is no decode step
                began = time.perf_counter()
                engine.step()
                steps.append(time.perf_counter() - began)
            times[is_on].append(steps)
        hook._seat.tracer = measured = _Measured(tracer, hook._seat, spent_ns)
        for _ in range(200):
            engine.step()
            hooked_steps += 1
        hook._seat.tracer = measured.tracer
    on = [step for block in times[True] for step in block]
    off = [step for block in times[False] for step in block]
    pairs = list(zip(times[True], times[False], strict=True))  # neighbours in time: a slow minute is in both
    low, high = _interval(pairs)
    print(
        json.dumps(
            {
                "steps_on": len(on),
                "steps_off": len(off),
                "median_step_ms": statistics.median(off) * 1e3,
                "ratio": _ratio(pairs),
                "interval": [low, high],
                "own_cpu_us": spent_ns[0] / hooked_steps / 1e3,
                "own_cpu_ratio": spent_ns[0] / hooked_steps / 1e9 / statistics.median(off),
            }
        )
    )


class _Measured:
    """The tracer and the schedule with the CPU time of the model's thread spent in them."""

    def __init__(self, tracer, seat, spent_ns):
        self.tracer = tracer
        self._spent_ns = spent_ns
        batch = seat.schedule.batch
        seat.schedule.batch = lambda output: self._timed(batch, output)

    def before_execute(self, *args):
        return self._timed(self.tracer.before_execute, *args)

    def after_execute(self, *args, **kwargs):
        return self._timed(self.tracer.after_execute, *args, **kwargs)

    def after_sample(self):
        return self._timed(self.tracer.after_sample)

    def _timed(self, function, *args, **kwargs):
        began = time.thread_time_ns()
        found = function(*args, **kwargs)
        self._spent_ns[0] += time.thread_time_ns() - began
        return found


Pair = tuple[list[float], list[float]]


def _ratio(pairs: list[Pair]) -> float:
    """Median step with the hook ÷ median step without."""
    return statistics.median(t for on, _ in pairs for t in on) / statistics.median(t for _, off in pairs for t in off)


def _interval(pairs: list[Pair]) -> tuple[float, float]:
    """Bootstrap over pairs of blocks, whose steps are not independent: 95 % of the ratios of resamples."""
    chance = random.Random(1)
    ratios = sorted(_ratio(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
