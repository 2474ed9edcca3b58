"""The page composes launches' starts itself; this file's cases hold it to the aggregator's answer, to the nanosecond.

After a change of the rule, write the cases anew: `python -m tests.golden.test_timeline_composition`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from services.aggregator.compose import LaunchGaps
from services.aggregator.run_state import TraceColumns
from services.aggregator.timeline import timeline

CASES = Path(__file__).resolve().parents[2] / "web" / "src" / "canvas" / "golden" / "timeline.json"
GAPS = LaunchGaps(graph_gap_ns=1_217, eager_gap_ns=3_491, host_issue_ns=0)


def test_the_cases_that_the_page_is_held_to_are_the_aggregators_answers_of_today():
    assert json.loads(CASES.read_text()) == cases()


def cases() -> list[dict[str, Any]]:
    random = np.random.default_rng(20261129)
    return [
        case("one launch", random, launches=1, ranks=1, streams=1, steps=1, failed=0.0),
        case("one stream", random, launches=120, ranks=1, streams=1, steps=9, failed=0.0),
        case(
            "streams, launches outside of steps, failures",
            random,
            launches=400,
            ranks=1,
            streams=4,
            steps=7,
            failed=0.2,
        ),
        case("ranks, and steps that come back", random, launches=500, ranks=3, streams=2, steps=11, failed=0.1),
        case("no launch in any step", random, launches=5, ranks=1, streams=1, steps=0, failed=0.0),
    ]


def case(
    name: str, random: np.random.Generator, *, launches: int, ranks: int, streams: int, steps: int, failed: float
) -> dict[str, Any]:
    tasks = max(1, launches // 8)
    rank = np.sort(random.integers(0, ranks, launches))
    step = np.sort(random.integers(0, steps, launches)) if steps else np.full(launches, -1)
    for one in range(ranks):  # of each rank in order, with some outside of every step and some late
        rows = np.flatnonzero(rank == one)
        step[rows] = np.sort(step[rows])
    if steps > 1:
        step[random.random(launches) < 0.05] = -1
        step[random.random(launches) < 0.03] = 0
    task = random.integers(0, tasks, launches)
    task_duration = random.integers(500, 5_000_000, tasks)
    task_duration[random.random(tasks) < failed] = -1
    columns = TraceColumns(
        task_ids=[str(number) for number in range(tasks)],
        task=task,
        rank=rank,
        start_ns=np.arange(launches),
        duration_ns=np.full(launches, -1),
        stream=random.choice([7, 13, 20, 21][:streams], launches),
        step=step,
        graph=np.where(random.random(launches) < 0.5, 3, -1),
        host_launch_ns=np.full(launches, -1),
        is_kernel=np.ones(launches, dtype=np.bool_),
    )
    composed = timeline(columns, task_duration, GAPS)
    return {
        "name": name,
        "gaps": {"graph_ns": GAPS.graph_gap_ns, "eager_ns": GAPS.eager_gap_ns},
        "rank": columns.rank.tolist(),
        "stream": columns.stream.tolist(),
        "step": columns.step.tolist(),
        "task": columns.task.tolist(),
        "graph": columns.graph.tolist(),
        "task_duration_ns": task_duration.tolist(),
        "start_ns": composed.start_ns.tolist(),
        "step_start_ns": [[*key, value] for key, value in sorted(composed.step_start_ns.items())],
        "step_end_ns": [[*key, value] for key, value in sorted(composed.step_end_ns.items())],
    }


if __name__ == "__main__":
    CASES.parent.mkdir(parents=True, exist_ok=True)
    CASES.write_text(json.dumps(cases(), separators=(",", ":")) + "\n")
