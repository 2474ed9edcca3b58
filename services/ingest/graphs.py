"""CUDA and HIP graph replays, joined with the trace of their capture.

A replayed graph is one launch and hundreds of kernels: no launch event, no framework op and no shapes per kernel, on
AMD not even a grid. The trace of the capture has all of that, once per batch size: between StreamBeginCapture and
StreamEndCapture, the launches in the order in which the replay runs them. Annotations `capture_32_FULL` say for which
batch size. On ROCm a captured launch names its kernel, so names are compared; on CUDA only their number can be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from services.ingest.annotations import read_capture
from services.ingest.assemble import Joined, LaunchConfig, OpFacts, RawTrace, find_steps, ops_of_calls, step_of_times
from services.ingest.names import canonical_name

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CapturedLaunch:
    """One node of a graph as it was captured."""

    config: LaunchConfig | None  # None on CUDA, where the call does not say
    op: OpFacts | None


@dataclass(frozen=True, slots=True)
class Capture:
    """All graphs captured for one batch size, in order; one for a full graph, one per piece for a piecewise one."""

    text: str
    batch_size: int
    graphs: tuple[tuple[CapturedLaunch, ...], ...]


class Replay(NamedTuple):
    """What one step launched: its tokens (0: unknown), and its graph launches in order, by correlation id."""

    tokens: int
    graphs: Sequence[int]


def is_capture(raw: RawTrace) -> bool:
    """Whether a trace shows graphs being captured rather than the model serving."""
    return any(read_capture(a.text) for a in raw.annotations) and not any(
        step.words.engine for step in find_steps(raw.annotations)
    )


def captures(raw: RawTrace) -> list[Capture]:
    """The captures in a trace."""
    calls = raw.calls
    begins = _calls_named(raw, "BeginCapture")
    ends = _calls_named(raw, "EndCapture")
    launches = [index for index, api in enumerate(raw.apis) if _launches_kernel(api)]
    rows = np.flatnonzero(np.isin(calls.api, launches))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    times = calls.start_ns[rows]
    op_row = ops_of_calls(raw)
    found = []
    for annotation in raw.annotations:
        words = read_capture(annotation.text)
        if words is None:
            continue
        windows = [
            (begin, end)
            for begin, end in zip(begins, ends, strict=False)
            if annotation.start_ns <= begin <= annotation.end_ns and begin <= end
        ] or [(annotation.start_ns, annotation.end_ns)]
        graphs = []
        for begin, end in windows:
            inside = rows[np.searchsorted(times, begin) : np.searchsorted(times, end, side="right")]
            graphs.append(tuple(_captured(raw, row, int(op_row[row])) for row in inside.tolist()))
        found.append(Capture(annotation.text[:80], words.batch_size, tuple(graphs)))
    return found


def join_captures(joint: Joined, known: Sequence[Capture]) -> None:
    """Give replayed kernels the op, shapes and launch configuration of their capture, where one fits."""
    raw = joint.raw
    replayed = np.unique(joint.graph[(joint.graph >= 0) & joint.gpu.is_kernel])
    if not len(replayed) or not known:
        return
    graph_rows = np.flatnonzero(np.isin(raw.calls.correlation, replayed))
    graph_rows = graph_rows[np.argsort(raw.calls.start_ns[graph_rows], kind="stable")]
    steps = find_steps(raw.annotations)
    step_of_row = step_of_times(steps, raw.calls.start_ns[graph_rows], raw.calls.thread[graph_rows])
    launches_of: dict[int, list[int]] = defaultdict(list)
    for row, step in zip(graph_rows.tolist(), step_of_row.tolist(), strict=True):
        launches_of[step].append(int(raw.calls.correlation[row]))
    replays = []
    for step, correlations in launches_of.items():
        words = steps[step].words if step >= 0 else None
        replays.append(Replay(words.context_tokens + words.generation_tokens if words else 0, correlations))
    join_replays(joint, known, replays)


def join_replays(joint: Joined, known: Sequence[Capture], replays: Iterable[Replay]) -> None:
    """As join_captures, for steps whose tokens and graph launches have been found already."""
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero((joint.graph >= 0) & joint.gpu.is_kernel).tolist():  # in order of start
        rows_of[int(joint.graph[row])].append(row)
    pen = _Pen(joint)
    quality = joint.raw.quality
    for replay in replays:
        by_size = sorted(known, key=lambda c: (c.batch_size < replay.tokens, c.batch_size))
        for place, correlation in enumerate(replay.graphs):
            rows = rows_of[correlation]
            reasons: list[str] = []
            for capture in by_size:
                pairs = _fit(joint, rows, capture, place, len(replay.graphs), reasons)
                if pairs:
                    for row, launch in pairs:
                        pen.write(row, launch, capture.batch_size)
                    break
            else:
                quality.capture_mismatch = quality.capture_mismatch or (
                    f"The capture trace does not fit and was not used: {reasons[0]}; "
                    "give the capture that was recorded by the same run."
                )


def _fit(
    joint: Joined, rows: list[int], capture: Capture, place: int, launch_count: int, reasons: list[str]
) -> list[tuple[int, CapturedLaunch]]:
    """Rows of one replay paired with the launches of its capture; empty, with a reason, where they do not agree."""
    if len(capture.graphs) != launch_count:
        reasons.append(f"{capture.text} has {len(capture.graphs)} graphs, the step launched {launch_count}")
        return []
    launches = capture.graphs[place]
    if len(launches) != len(rows):
        reasons.append(f"{capture.text} captured {len(launches)} launches where the replay ran {len(rows)} kernels")
        return []
    replayed = [canonical_name(joint.raw.configs[joint.gpu.config[row]].name) for row in rows]
    captured = [canonical_name(launch.config.name) if launch.config else None for launch in launches]
    if all(name is None or name == own for name, own in zip(captured, replayed, strict=True)):
        return list(zip(rows, launches, strict=True))
    if Counter(captured) == Counter(replayed):
        # Branches of a graph may run in another order than they were captured in.
        waiting: dict[str | None, list[CapturedLaunch]] = defaultdict(list)
        for name, launch in zip(captured, launches, strict=True):
            waiting[name].append(launch)
        return [(row, waiting[name].pop(0)) for name, row in zip(replayed, rows, strict=True)]
    differing = next(i for i, pair in enumerate(zip(captured, replayed, strict=True)) if pair[0] != pair[1])
    reasons.append(
        f"kernel {differing} of {capture.text} is {captured[differing]}, the replay ran {replayed[differing]}"
    )
    return []


class _Pen:
    """Writes captured facts into a Joined, each op and configuration once."""

    def __init__(self, joint: Joined) -> None:
        self.joint = joint
        self.ops = {facts: index for index, facts in enumerate(joint.raw.ops)}
        self.configs = {config: index for index, config in enumerate(joint.raw.configs)}

    def write(self, row: int, launch: CapturedLaunch, batch_size: int) -> None:
        joint = self.joint
        if launch.op is not None:
            joint.op[row] = _index(self.ops, joint.raw.ops, launch.op)
        own = joint.raw.configs[joint.gpu.config[row]]
        said = launch.config
        if said is not None:
            shared = own.shared_memory_bytes
            merged = own._replace(
                grid=own.grid or said.grid,
                block=own.block or said.block,
                shared_memory_bytes=said.shared_memory_bytes if shared is None else shared,
            )
            joint.gpu.config[row] = _index(self.configs, joint.raw.configs, merged)
        joint.from_capture[row] = True
        joint.captured_tokens[row] = batch_size


def _index(known: dict[_T, int], values: list[_T], value: _T) -> int:
    index = known.setdefault(value, len(values))
    if index == len(values):
        values.append(value)
    return index


def _captured(raw: RawTrace, row: int, op_row: int) -> CapturedLaunch:
    config = int(raw.calls.config[row])
    return CapturedLaunch(
        raw.configs[config] if config >= 0 else None,
        raw.ops[int(raw.op_rows.op[op_row])] if op_row >= 0 else None,
    )


def _calls_named(raw: RawTrace, part: str) -> list[int]:
    wanted = [index for index, api in enumerate(raw.apis) if part in api]
    return sorted(raw.calls.start_ns[np.isin(raw.calls.api, wanted)].tolist())


def _launches_kernel(api: str) -> bool:
    return "Launch" in api and "Graph" not in api and "HostFunc" not in api
