"""What step mode costs: one engine in one process, the hook on and off in alternating blocks, as `python -m`.

Prints one JSON object: the median ratio of a step with the hook to one without, its bootstrap 95 % interval, and the
hook's own CPU time beside the median step. Two blocks that follow each other are a pair, so that a slow minute of the
machine is in both; pairs are added until the interval is narrow, whatever it says.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.vllm.conftest import build, generate

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

BLOCK_STEPS = 20
PAIRS_LEAST, PAIRS_LIMIT, PAIRS_AT_ONCE = 50, 300, 10
WIDTH = 0.03  # of the interval
RESAMPLES = 2000
OUTPUT_TOKENS = 700
OWN_STEPS = 200


def main(model: Path) -> None:
    import cascade_profiler
    from cascade_profiler import vllm as hook

    llm = build(model)
    steps = _Steps(llm.llm_engine)
    generate(llm, (20,), 20)
    with cascade_profiler.trace(llm, destination=f"file://{model}/steps", mode="steps"):
        tracer = hook._seat.tracer
        pairs: list[Pair] = []
        interval = (0.0, float("inf"))
        while len(pairs) < PAIRS_LEAST or (interval[1] - interval[0] > WIDTH and len(pairs) < PAIRS_LIMIT):
            for _ in range(PAIRS_AT_ONCE):
                times: dict[bool, list[float]] = {}
                for is_on in (
                    (True, False) if len(pairs) % 2 else (False, True)
                ):  # contexts grow: neither is always first
                    hook._seat.tracer = tracer if is_on else None
                    times[is_on] = [steps.next_s() for _ in range(BLOCK_STEPS)]
                pairs.append(Pair(times[True], times[False]))
            interval = _interval(pairs)
        spent_ns = [0]
        hook._seat.tracer = _Measured(tracer, hook._seat, spent_ns)
        for _ in range(OWN_STEPS):
            steps.next_s()
        hook._seat.tracer = tracer
    median_s = statistics.median(step for pair in pairs for step in pair.off_s)
    print(
        json.dumps(
            {
                "steps_on": len(pairs) * BLOCK_STEPS,
                "steps_off": len(pairs) * BLOCK_STEPS,
                "median_step_ms": median_s * 1e3,
                "ratio": _ratio(pairs),
                "interval": interval,
                "own_cpu_us": spent_ns[0] / OWN_STEPS / 1e3,
                "own_cpu_ratio": spent_ns[0] / OWN_STEPS / 1e9 / median_s,
            }
        )
    )


class Pair(NamedTuple):
    """Two blocks that follow each other."""

    on_s: list[float]
    off_s: list[float]


class _Steps:
    """Decode steps of eight requests, for ever."""

    def __init__(self, engine: Any) -> None:
        from vllm import SamplingParams

        self._engine = engine
        self._params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
        self._count = 0

    def next_s(self) -> float:
        """How long the next one took."""
        if not self._engine.has_unfinished_requests():
            for place in range(8):
                prompt = {"prompt_token_ids": [11 + place] * 8}
                self._engine.add_request(f"cost-{self._count}-{place}", prompt, self._params)
            self._count += 1
            self._engine.step()  # the prefill is no decode step
        began = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - began


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


def _ratio(pairs: list[Pair]) -> float:
    """Of all pairs the middle one: median step with the hook ÷ median step without."""
    return statistics.median(statistics.median(pair.on_s) / statistics.median(pair.off_s) for pair in pairs)


def _interval(pairs: list[Pair]) -> tuple[float, float]:
    """Bootstrap over pairs, whose steps are not independent: 95 % of the medians of resamples."""
    chance = random.Random(1)
    ratios = [_ratio([pair]) for pair in pairs]
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
