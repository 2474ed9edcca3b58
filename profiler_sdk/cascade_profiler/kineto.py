"""What torch's profiler (Kineto) recorded during some steps, as rows of those steps.

Two sources say the same: the profiler's own result in the process that ran it, and the trace file it writes. A kernel
belongs to the step in which it was launched, never to the one during which the GPU ran it.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cascade_profiler.rows import Launches, LaunchFacts, OpFacts, Ops

_CALLS = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"))
_COPIES = frozenset(("gpu_memcpy", "gpu_memset"))
_ANNOTATION = "user_annotation"
_ON_HOST = _CALLS | {"cpu_op", _ANNOTATION}
_EVENT_KINDS = _CALLS | _COPIES | {"cpu_op", "kernel", _ANNOTATION}


class Seen(NamedTuple):
    """One event of the profiler; times in ns of unix time."""

    kind: str  # cpu_op, kernel, gpu_memcpy, gpu_memset, cuda_runtime, cuda_driver, user_annotation, …
    name: str
    start_ns: int
    duration_ns: int
    thread: int  # of the host; a stream for what ran on the GPU
    correlation: int  # 0: none
    args: dict[str, Any]


class StepSpan(NamedTuple):
    """When a step began on the host; it lasts until the next one begins."""

    step: int
    start_ns: int  # unix


@dataclass(slots=True)
class StepRows:
    """What the profiler saw of one step."""

    launches: Launches = field(default_factory=Launches)
    ops: Ops = field(default_factory=Ops)


@dataclass(slots=True)
class Window:
    """What it saw of all steps of a window, and what belongs to none."""

    steps: dict[int, StepRows]
    outside: Launches
    opaque_graph_count: int = 0  # graph launches that left no kernel behind


def window_rows(seen: Iterable[Seen], spans: Sequence[StepSpan], origin_unix_ns: int) -> Window:
    """Rows per step, sorted by start; times from the trace's start."""
    calls: dict[int, Seen] = {}
    ops: list[Seen] = []
    gpu: list[Seen] = []
    for event in seen:
        if event.kind in _CALLS:
            if event.correlation:
                calls.setdefault(event.correlation, event)
        elif event.kind == "cpu_op":
            ops.append(event)
        elif event.kind != _ANNOTATION:
            gpu.append(event)
    ops.sort(key=lambda op: (op.start_ns, -op.duration_ns))
    op_of_call = innermost(ops, list(calls.values()))
    builder = _Builder(spans, origin_unix_ns)
    replayed: set[int] = set()
    for event in sorted(gpu, key=lambda one: one.start_ns):
        call = calls.get(event.correlation)
        is_graph = call is not None and "GraphLaunch" in call.name
        if is_graph:
            replayed.add(event.correlation)
        # The op around a graph launch is not the op of each of its kernels.
        op = None if call is None or is_graph else op_of_call.get(event.correlation)
        builder.launch(event, call, op, is_graph=is_graph)
    for op in ops:
        builder.op(op)
    window = builder.window
    graph_calls = {correlation for correlation, call in calls.items() if "GraphLaunch" in call.name}
    window.opaque_graph_count = len(graph_calls - replayed)
    return window


class Capture(NamedTuple):
    """The graphs that the engine captured for one batch size; per graph its launches in order."""

    text: str  # `capture_32_FULL`
    batch_size: int  # tokens
    graphs: list[list[LaunchFacts]]  # a name of "": the call does not say (CUDA)


_CAPTURE = re.compile(r"capture_(\d{1,12})_[A-Za-z]\w*")


def captures_of(seen: Iterable[Seen]) -> list[Capture]:
    """The captures in a recording of graphs being captured, by start. Launches before and between them are warm-ups."""
    annotations: list[tuple[Seen, int]] = []
    calls: list[Seen] = []
    ops: list[Seen] = []
    for event in seen:
        if event.kind in _CALLS:
            calls.append(event)
        elif event.kind == "cpu_op":
            ops.append(event)
        elif event.kind == _ANNOTATION and (match := _CAPTURE.match(event.name)):
            annotations.append((event, int(match[1])))
    ops.sort(key=lambda op: (op.start_ns, -op.duration_ns))
    calls.sort(key=lambda call: call.start_ns)
    begins = [call.start_ns for call in calls if "BeginCapture" in call.name]
    ends = [call.start_ns for call in calls if "EndCapture" in call.name]
    launches = [call for call in calls if _launches_kernel(call.name)]
    op_of_call = innermost(ops, launches)
    starts = [call.start_ns for call in launches]
    found = []
    for annotation, batch_size in sorted(annotations, key=lambda one: one[0].start_ns):
        end_ns = _end_ns(annotation)
        windows = [
            (begin, end)
            for begin, end in zip(begins, ends, strict=False)
            if annotation.start_ns <= begin <= end_ns and begin <= end
        ] or [(annotation.start_ns, end_ns)]
        graphs = [
            [
                _captured_facts(call, op_of_call.get(call.correlation))
                for call in launches[bisect_left(starts, begin) : bisect_right(starts, end)]
            ]
            for begin, end in windows
        ]
        found.append(Capture(annotation.name[:80], batch_size, graphs))
    return found


def _launches_kernel(api: str) -> bool:
    return "Launch" in api and "Graph" not in api and "HostFunc" not in api


def _captured_facts(call: Seen, op: Seen | None) -> LaunchFacts:
    args = call.args  # ROCm says the kernel and its configuration there, CUDA nothing
    shapes, dtypes = arguments(op.args.get("Input Dims"), op.args.get("Input type")) if op is not None else (None, None)
    return LaunchFacts(
        name=str(args.get("kernel") or ""),
        grid=_dims(args.get("grid")),
        block=_dims(args.get("block")),
        shared_memory_bytes=_maybe(args.get("shared memory")),
        op=op.name if op is not None else None,
        operand_dtypes=dtypes,
        operand_shapes=shapes,
    )


def innermost(ranges: Sequence[Seen], points: Sequence[Seen]) -> dict[int, Seen]:
    """Per point (by its correlation) the shortest range of its thread around it. ranges: by start, outer first."""
    found: dict[int, Seen] = {}
    by_thread: dict[int, list[Seen]] = {}
    for one in ranges:
        by_thread.setdefault(one.thread, []).append(one)
    asked: dict[int, list[Seen]] = {}
    for point in points:
        asked.setdefault(point.thread, []).append(point)
    for thread, those in asked.items():
        candidates = by_thread.get(thread, [])
        stack: list[Seen] = []
        at = 0
        for point in sorted(those, key=lambda one: one.start_ns):
            while at < len(candidates) and candidates[at].start_ns <= point.start_ns:
                opened = candidates[at]
                while stack and _end_ns(stack[-1]) < opened.start_ns:
                    stack.pop()
                stack.append(opened)
                at += 1
            while stack and _end_ns(stack[-1]) < point.start_ns:
                stack.pop()
            if stack:
                found[point.correlation] = stack[-1]
    return found


class _Builder:
    """Appends events to the rows of their steps; equal facts get one number."""

    def __init__(self, spans: Sequence[StepSpan], origin_unix_ns: int) -> None:
        self._origin_unix_ns = origin_unix_ns
        self._steps = [span.step for span in spans]
        self._starts = [span.start_ns for span in spans]
        self.window = Window({span.step: StepRows() for span in spans}, Launches())
        self._numbers: dict[tuple[int, Any], int] = {}  # (which rows, facts) -> index

    def launch(self, event: Seen, call: Seen | None, op: Seen | None, *, is_graph: bool) -> None:
        rows = self._rows_at(call.start_ns if call is not None else None)
        launches = rows.launches if rows is not None else self.window.outside
        args = event.args
        launches.fact.append(self._number(launches.facts, _launch_facts(event, call, op)))
        launches.start_ns.append(event.start_ns - self._origin_unix_ns)
        launches.duration_ns.append(event.duration_ns)
        launches.stream.append(_whole(args.get("stream"), event.thread) % 2**31)
        launches.graph.append(event.correlation if is_graph else None)
        launches.graph_node.append(_whole(args.get("graph node id"), 0) or None)
        launches.host_launch_ns.append(None if call is None else call.start_ns - self._origin_unix_ns)

    def op(self, event: Seen) -> None:
        rows = self._rows_at(event.start_ns)
        if rows is None:
            return
        shapes, dtypes = arguments(event.args.get("Input Dims"), event.args.get("Input type"))
        rows.ops.fact.append(self._number(rows.ops.facts, OpFacts(event.name, dtypes, shapes)))
        rows.ops.start_ns.append(event.start_ns - self._origin_unix_ns)
        rows.ops.duration_ns.append(event.duration_ns)
        rows.ops.thread.append(event.thread)

    def _rows_at(self, unix_ns: int | None) -> StepRows | None:
        place = bisect_right(self._starts, unix_ns) - 1 if unix_ns is not None else -1
        return self.window.steps[self._steps[place]] if place >= 0 else None

    def _number(self, facts: list[Any], fact: Any) -> int:
        key = (id(facts), fact)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(facts)
            facts.append(fact)
        return number


def _launch_facts(event: Seen, call: Seen | None, op: Seen | None) -> LaunchFacts:
    args = event.args
    said = call.args if call is not None else {}  # ROCm says grid and shared memory on the call
    is_kernel = event.kind not in _COPIES
    shapes: tuple[tuple[int, ...], ...] | None = None
    dtypes: tuple[str, ...] | None = None
    if op is not None and is_kernel:
        shapes, dtypes = arguments(op.args.get("Input Dims"), op.args.get("Input type"))
    return LaunchFacts(
        name=event.name,
        grid=_dims(args.get("grid") or said.get("grid")) if is_kernel else None,
        block=_dims(args.get("block") or said.get("block")) if is_kernel else None,
        cluster=_dims(args.get("cluster")),
        registers=_maybe(args.get("registers per thread")),
        shared_memory_bytes=_maybe(args.get("shared memory", said.get("shared memory"))),
        op=op.name if op is not None and is_kernel else None,
        operand_dtypes=dtypes,
        operand_shapes=shapes,
        moved_bytes=None if is_kernel else _maybe(args.get("bytes")),
        is_kernel=is_kernel,
        collective=args.get("Collective name") or None,
        collective_in=_maybe(args.get("In msg nelems")),
        collective_out=_maybe(args.get("Out msg nelems")),
        collective_dtype=args.get("dtype") if args.get("Collective name") else None,
        group_size=_maybe(args.get("Group size")),
    )


def arguments(shapes: Any, types: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Shape and type of every argument; a list of tensors gives one each, an argument that is no tensor ()."""
    found_shapes: list[tuple[int, ...]] = []
    found_types: list[str] = []
    words = types if isinstance(types, list) else []
    for index, shape in enumerate(shapes if isinstance(shapes, list) else []):
        word = words[index] if index < len(words) else ""
        if isinstance(shape, list) and shape and all(isinstance(part, list) for part in shape):
            kinds = word if isinstance(word, list) else [word] * len(shape)
            for part, kind in zip(shape, kinds, strict=False):
                found_shapes.append(tuple(_whole(size, 0) for size in part))
                found_types.append(str(kind))
        else:
            found_shapes.append(tuple(_whole(size, 0) for size in shape) if isinstance(shape, list) else ())
            found_types.append(word if isinstance(word, str) else "")
    return tuple(found_shapes), tuple(found_types)


# --- sources ----------------------------------------------------------------------------------------------------


def seen_in_process(events: Iterable[Any]) -> Iterator[Seen]:
    """Of `prof.profiler.kineto_results.events()`."""
    for event in events:
        kind = event.activity_type()
        if kind not in _EVENT_KINDS:
            continue
        if kind == "cpu_op":
            args = {"Input Dims": _shapes_of(event), "Input type": list(event.dtypes())}
        elif kind == _ANNOTATION:
            args = {}
        else:
            args = _read_args(event.metadata_json())
        yield Seen(
            kind,
            event.name(),
            event.start_ns(),
            event.duration_ns(),
            event.start_thread_id() if kind in _ON_HOST else event.device_resource_id(),
            event.correlation_id() if kind != "cpu_op" else 0,
            args,
        )


def seen_in_file(path: Path) -> Iterator[Seen]:
    """Of a trace file, packed or not. Raises ValueError, OSError where it cannot be read."""
    text = path.read_bytes()
    if text.startswith(b"\x1f\x8b"):
        text = gzip.decompress(text)
    whole = json.loads(text.decode(errors="replace"), strict=False)
    base_ns = int(whole.get("baseTimeNanoseconds") or 0)
    for event in whole.get("traceEvents", ()):
        kind = event.get("cat", "")
        if event.get("ph") != "X" or kind not in _EVENT_KINDS:
            continue
        args = event.get("args") or {}
        thread = event.get("tid")
        yield Seen(
            kind,
            str(event.get("name", "")),
            base_ns + round(float(event["ts"]) * 1000),
            round(float(event.get("dur", 0)) * 1000),
            thread if isinstance(thread, int) else 0,
            _whole(args.get("correlation"), 0) if kind != "cpu_op" else 0,
            args,
        )


def _shapes_of(event: Any) -> list[Any]:
    structured = getattr(event, "structured_input_shapes", None)
    found = structured() if structured is not None else None
    return list(found) if found else list(event.shapes())


def _read_args(text: str) -> dict[str, Any]:
    """The args of an event, which the profiler gives without the braces around them."""
    try:
        found = json.loads("{" + text.strip().rstrip(",") + "}", strict=False)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _end_ns(event: Seen) -> int:
    return event.start_ns + event.duration_ns


def _dims(value: Any) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(size, int) for size in value):
        return (value[0], value[1], value[2])
    return None


def _maybe(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**62 else None


def _whole(value: Any, other: int) -> int:
    found = _maybe(value)
    return other if found is None else found
