"""Kineto traces: what torch.profiler and libkineto write, as JSON, plain or packed, from 2021 to 2026, NVIDIA and AMD.

Read: kernels, memcpy and memset of the GPU; the runtime and driver calls that launched them; framework ops with their
shapes; step and capture annotations; of the top level only what `_METADATA_KEYS` lists. Everything else (python
frames, flow arrows, memory samples, process names, environment dumps, unknown keys) is skipped without being parsed.

A file is read in chunks. Event boundaries are found by a pattern, events of unneeded categories are jumped over, the
others are parsed in batches: strictly; if that fails event by event; if that fails leniently (inf, NaN, N/A, control
characters, bytes that are no UTF-8). An event that still cannot be read is dropped and counted. Only compact columns
stay in memory.

Times: `ts` and `dur` are microseconds, integer or fractional, absolute or relative to `baseTimeNanoseconds`.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from services.ingest.assemble import (
    Annotation,
    Collective,
    DeviceFacts,
    GpuColumns,
    LaunchColumns,
    LaunchConfig,
    OpColumns,
    OpFacts,
    RawTrace,
)
from services.ingest.imported import QualityReport
from services.ingest.importers.rejection import TraceRejected
from services.ingest.reading import ReadState, read_chunks

_BATCH_BYTES = 1 << 19
_CHECKED_EVENT_BYTES_LIMIT = 1 << 20
_LENGTH_US_LIMIT = 1e12  # eleven days
_END_CHECKS_LIMIT = 8  # of one event: a list of objects inside args looks like the end of the events
_KEY_TRIES_LIMIT = 4  # of a top-level key whose value does not parse
_HEADER_BYTES_LIMIT = 1 << 26
_VERDICT_LIMIT = 100_000  # distinct (category, name) seen; python frames alone can have tens of thousands
_EVENT_BYTES_LIMIT = 1 << 23  # larger than any event seen by a factor of 1000; a file with one is broken there

# A boundary lies between two events, or behind the last one. In valid JSON `}, {"ph":` cannot stand inside a string
# (its quote would be escaped), only in an array of objects inside args, which the fallback puts together again.
# Possessive quantifiers: a megabyte of blanks must not be tried in a million ways.
_BOUNDARY = re.compile(
    rb"\}\s*+(?:(?:,\s*+)?\{\s*+\""
    rb"(?:ph\"\s*+:\s*+\"(\w)\"(?:\s*+,\s*+\"cat\"\s*+:\s*+\"([\w ,]*+)\""
    rb"(?:\s*+,\s*+\"name\"\s*+:\s*+\"([^\"\\]{0,48}))?)?"
    rb"|(?:name|cat|pid|tid|ts|dur|args|s|bp)\"\s*+:)"
    rb"|(\])\s*+[,}])"
)
_EVENTS_KEY = re.compile(rb"\"traceEvents\"\s*+:\s*+\[")
_AFTER_EVENTS = re.compile(
    rb"\}\s*+\]\s*+(?:\}\s*+\Z|,\s*+\"(?:schemaVersion|deviceProperties|traceName|displayTimeUnit|baseTimeNanoseconds"
    rb"|distributedInfo|\w*_version|with_\w+|record_shapes|profile_memory|trace_id|metadata)\")"
)
_METADATA_KEYS = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "vllm_version")
_NOT_A_NUMBER = re.compile(r"(?<=:)\s*[-+]?(?:inf(?:inity)?|nan|n/a)(?=\s*[,}\]])", re.IGNORECASE)
# Only when that was not enough: it may also hit a word of a name.
_NOT_A_NUMBER_IN_LIST = re.compile(r"(?<=[\[,])\s*[-+]?(?:inf(?:inity)?|nan|n/a)(?=\s*[,\]])", re.IGNORECASE)

# What an event of unexpected form can raise while it is taken apart.
_MALFORMED = (LookupError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)

_KERNEL, _COPY, _LAUNCH, _OP, _ANNOTATION, _OTHER = range(6)
_KINDS = {
    "kernel": _KERNEL,
    "gpu_memcpy": _COPY, "gpu_memset": _COPY, "memcpy": _COPY, "memset": _COPY,
    "cuda_runtime": _LAUNCH, "cuda_driver": _LAUNCH, "runtime": _LAUNCH, "driver": _LAUNCH, "hip_runtime": _LAUNCH,
    "privateuse1_runtime": _LAUNCH,
    "cpu_op": _OP, "operator": _OP,
    "user_annotation": _ANNOTATION,
}  # fmt: skip
_NOTHING: dict[str, Any] = {}

# Runtime calls that never put work on the GPU: most of the calls of a busy host (25,773 cudaEventQuery in one file).
_IDLE_CALL = re.compile(
    rb"(?:cuda|hip|cu)(?:Event|Get|Set|Peek|Device|Func|Pointer|Occupancy|Driver|Ctx|Module(?!Launch)|Stream(?!BeginCapture|EndCapture)"
    rb"|Malloc|Free|Host|ThreadExchange)"
)
# Ops that only look at a tensor in another way; what they call to move data is an op of its own.
_VIEW_OPS = frozenset(
    b"aten::" + name
    for name in (
        b"view", b"as_strided", b"slice", b"empty", b"empty_strided", b"empty_like", b"new_empty", b"select", b"narrow",
        b"transpose", b"t", b"permute", b"expand", b"unsqueeze", b"squeeze", b"detach", b"detach_", b"alias", b"chunk",
        b"split", b"split_with_sizes", b"unbind", b"_unsafe_view", b"_reshape_alias", b"reshape", b"flatten",
        b"resolve_conj", b"resolve_neg", b"lift_fresh", b"promote_types", b"result_type", b"unflatten", b"view_as",
        b"is_nonzero", b"item",
    )
)  # fmt: skip


def read_kineto(path: Path, on_progress: Callable[[ReadState, int], None] | None = None) -> RawTrace:
    """One Kineto file in columns."""
    state = ReadState()
    events = _Events()
    header, tail = _feed(path, state, events, on_progress)
    events.finish()
    quality = events.quality
    quality.is_truncated = quality.is_truncated or state.is_damaged
    metadata = _metadata(header + b"\n" + tail)
    return events.raw(metadata)


def _feed(
    path: Path, state: ReadState, events: _Events, on_progress: Callable[[ReadState, int], None] | None
) -> tuple[bytes, bytes]:
    """Drive the chunks through the scanner; returns the text before and behind the events."""
    chunks = read_chunks(path, state)
    header, buffer = _header(chunks)
    tail: list[bytes] = []
    searched = 0
    while True:
        end = events.scan(buffer, searched)
        if events.is_ended:
            tail.append(buffer[end:])
            break
        buffer = buffer[end:]
        if len(buffer) > _EVENT_BYTES_LIMIT:
            events.quality.dropped_event_count += 1
            buffer = b"}"
        if on_progress:
            on_progress(state, events.event_count)
        chunk = next(chunks, b"")
        if not chunk:
            tail.append(events.close(buffer))
            break
        # What was searched once holds no boundary except one that its last brace may begin.
        searched = max(buffer.rfind(b"}"), 0)
        buffer += chunk
    size = sum(map(len, tail))
    for chunk in chunks:
        size += len(chunk)
        if size <= _HEADER_BYTES_LIMIT:
            tail.append(chunk)
    return header, b"".join(tail)


def _header(chunks: Iterator[bytes]) -> tuple[bytes, bytes]:
    """(text before the events, the events' text, led by a brace as if an event had just closed)."""
    head = bytearray()
    for chunk in chunks:
        searched = max(len(head) - 64, 0)  # the key may lie across two chunks
        head += chunk
        if not searched and (bare := bytes(head).lstrip(b"\xef\xbb\xbf \t\r\n")).startswith(b"["):
            return b"", b"}," + bare[1:]
        if match := _EVENTS_KEY.search(head, searched):
            return bytes(head[: match.start()]), b"}," + bytes(head[match.end() :])
        if len(head) > _HEADER_BYTES_LIMIT:
            break
    if not head.strip():
        raise TraceRejected("the file is empty: record again and wait until the profiler has written it")
    raise TraceRejected(
        "the file is JSON without a traceEvents list, so it is no profiler trace: "
        "give the file that torch.profiler exported (…pt.trace.json.gz)"
    )


class _Events:
    """Scans text for events, parses the needed ones and keeps them as columns."""

    def __init__(self) -> None:
        self.quality = QualityReport()
        self.event_count = 0
        self.is_ended = False
        self.pieces: list[bytes] = []
        self.piece_bytes = 0
        self.end_checks = 0  # of the event at hand
        self.verdicts: dict[tuple[bytes | None, ...], bool] = {}
        # One row of floats per event; every number in a trace that we keep is exact in a float64.
        self.gpu = array("d")  # ts, dur, device, stream, correlation, external, config, is_kernel, graph node
        self.calls = array("d")  # ts, thread, correlation, external, api, config
        self.op_rows = array("d")  # ts, dur, thread, external, op
        self.annotations: list[tuple[float, float, int, str]] = []
        self.threads: dict[tuple[Any, Any], int] = {}
        self.configs: dict[_ConfigKey | LaunchConfig, int] = {}
        self.apis: dict[str, int] = {}
        self.ops: dict[tuple[str, bytes], int] = {}
        self.kinds: dict[str, int] = dict(_KINDS)

    # Scanning

    def scan(self, text: bytes, searched: int) -> int:
        """Take all complete events of `text`, which begins with the brace before one; returns where the last begins."""
        verdicts, pieces = self.verdicts, self.pieces
        first = _BOUNDARY.match(text)
        if first and first.group(4):
            self.is_ended = True
            self._parse()
            return 1
        start = 0  # the brace before the event at hand
        keep_from = 0 if first is None or self._is_wanted(first.group(1, 2, 3)) else -1  # of the run of wanted events
        count = 0
        for match in _BOUNDARY.finditer(text, max(searched, 1)):
            at = match.start()
            key = match.group(1, 2, 3)
            wanted = verdicts.get(key)
            if wanted is None:
                if match.group(4):
                    if not self._ends_events(text, start, at):
                        continue
                    if keep_from >= 0:
                        pieces.append(text[keep_from + 1 : at + 1])
                    self.event_count += count + 1
                    self.is_ended = True
                    self._parse()
                    return at + 1
                if len(verdicts) > _VERDICT_LIMIT:
                    verdicts.clear()
                wanted = self._is_wanted(key)
                if key[0] is not None:  # the key of a closing bracket has nothing in it either
                    verdicts[key] = wanted
            if wanted:
                if keep_from < 0:
                    keep_from = at
            elif keep_from >= 0:
                pieces.append(text[keep_from + 1 : at + 1])
                self.piece_bytes += at - keep_from
                keep_from = -1
            count += 1
            start = at
            self.end_checks = 0
        if 0 <= keep_from < start:  # the last event may be incomplete
            pieces.append(text[keep_from + 1 : start + 1])
            self.piece_bytes += start - keep_from
        self.event_count += count
        if self.piece_bytes >= _BATCH_BYTES:
            self._parse()
        return start

    def close(self, text: bytes) -> bytes:
        """The file has ended without closing its list, or only with `]`: read the last event if it is whole."""
        body = text[1:].lstrip(b", \t\r\n")
        if not body.startswith(b"{"):
            self.is_ended = body.startswith(b"]")
            self.quality.is_truncated = not self.is_ended
            self._parse()
            return body
        self._parse()
        event, rest = _first_object(body)
        if event is None:
            self.quality.is_truncated = True
            self.quality.dropped_event_count += 1
            return body
        self.event_count += 1
        self._take_all([event])
        rest = rest.lstrip(" \t\r\n")
        self.is_ended = rest.startswith("]")
        self.quality.is_truncated = not self.is_ended
        return rest.encode()

    def finish(self) -> None:
        self._parse()
        self.quality.event_count = self.event_count

    def _is_wanted(self, key: tuple[bytes | Any, ...]) -> bool:
        phase, category, name = key
        if phase is None:
            return True  # an order of keys not foreseen: parse to see
        if phase != b"X":
            return False
        if category is None:
            return True
        kind = self.kinds.get(category.decode("ascii", "replace").lower(), _OTHER)
        if kind == _OTHER:
            return b"runtime" in category or b"driver" in category
        if name is not None and kind == _LAUNCH:
            return _IDLE_CALL.match(name) is None
        return not (kind == _OP and name in _VIEW_OPS)

    def _ends_events(self, text: bytes, start: int, at: int) -> bool:
        """Whether `}]` at `at` closes the list of events rather than a list inside an event."""
        if _AFTER_EVENTS.match(text, at):
            return True
        self.end_checks += 1
        if at - start > _CHECKED_EVENT_BYTES_LIMIT or self.end_checks > _END_CHECKS_LIMIT:
            return False
        event = text[start + 1 : at + 1].lstrip(b", \t\r\n")
        whole = _whole_object(event)
        return not event or (whole is not None and "ph" in whole)

    # Parsing

    def _parse(self) -> None:
        if not self.pieces:
            return
        text = b"".join(self.pieces).strip(b", \t\r\n")
        self.pieces.clear()
        self.piece_bytes = 0
        try:
            events = orjson.loads(b"[" + text + b"]")
        except orjson.JSONDecodeError:
            events = self._salvage(text)
        self._take_all(events)

    def _salvage(self, text: bytes) -> list[Any]:
        """Event by event; what looks like a boundary inside an event is tried as part of it."""
        text = b"}" + text
        cuts = [match.start() for match in _BOUNDARY.finditer(text) if not match.group(4)]
        if not cuts or cuts[0] != 0:
            cuts.insert(0, 0)
        cuts.append(len(text) - 1)
        events: list[Any] = []
        at = 0
        while at < len(cuts) - 1:
            event = None
            for parts in range(1, min(8, len(cuts) - 1 - at) + 1):
                piece = text[cuts[at] + 1 : cuts[at + parts] + 1].strip(b", \t\r\n")
                event = self._lenient(piece)
                if event is not None:
                    at += parts
                    break
                if parts == 1 and not _is_open(piece):
                    break  # its braces are balanced: more text will not mend it
            if event is None:
                self.quality.dropped_event_count += 1
                at += 1
            else:
                events.append(event)
        return events

    def _lenient(self, piece: bytes) -> Any:
        try:
            return orjson.loads(piece)
        except orjson.JSONDecodeError:
            pass
        text = piece.decode("utf-8", "replace")
        for pattern in (_NOT_A_NUMBER, _NOT_A_NUMBER_IN_LIST):
            text, count = pattern.subn(" null", text)
            if not count and pattern is _NOT_A_NUMBER_IN_LIST:
                break
            try:
                event = json.loads(text, strict=False)
            except (ValueError, RecursionError):
                continue
            self.quality.non_finite_count += count
            return event
        return None

    # Keeping

    def _take_all(self, events: list[Any]) -> None:
        kinds = self.kinds
        gpu, calls, op_rows, ops, threads = self.gpu, self.calls, self.op_rows, self.ops, self.threads
        configs = self.configs
        dumps = orjson.dumps
        for event in events:
            kind = -1
            try:
                kind = kinds.get(event["cat"], -1)
                if kind == _OP:
                    get = (event.get("args") or _NOTHING).get
                    dims = get("Input Dims") or get("Input dims")
                    key = (event["name"], dumps((dims, get("Input type"))) if dims else b"")
                    op = ops.get(key)
                    if op is None:
                        op = ops[_checked_op(key)] = len(ops)
                    thread = (event.get("pid"), event["tid"])
                    number = threads.get(thread)
                    if number is None:
                        number = threads[thread] = len(threads)
                    op_rows.extend((event["ts"], event["dur"], number, get("External id", -1), op))
                elif kind == _KERNEL:
                    args = event.get("args") or {}
                    config = _kernel_config(event["name"], args)
                    index = configs.get(config)
                    if index is None:
                        index = self._new_config(config)
                    get = args.get
                    stream = get("stream")
                    gpu.extend((
                        event["ts"], event["dur"], get("device", -1),
                        _stream(event) if stream is None else stream, get("correlation", 0),
                        get("External id", -1), index, 1, get("graph node id", 0),
                    ))  # fmt: skip
                elif kind == _LAUNCH:
                    self._take_call(event)
                elif event.get("ph") == "X":
                    self._take_rare(event)
            except _MALFORMED:
                _trim(gpu, _GPU_WIDTH)
                _trim(calls, _CALL_WIDTH)
                _trim(op_rows, _OP_WIDTH)
                self._take_again(event)

    def _take_call(self, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        name = event["name"]
        api = self.apis.get(name)
        if api is None:
            if not isinstance(name, str):
                raise TypeError(name)
            api = self.apis[name] = len(self.apis)
        config = -1
        kernel = args.get("kernel")
        if kernel is not None:  # ROCm puts the launch configuration on the call
            launched = _kernel_config(kernel, args)
            known = self.configs.get(launched)
            config = self._new_config(launched) if known is None else known
        elif "src" in args:
            moved = LaunchConfig(name, moved_bytes=_integer(args.get("size", args.get("bytes"))))
            config = self.configs.setdefault(moved, len(self.configs))
        thread = (event.get("pid"), event["tid"])
        number = self.threads.setdefault(thread, len(self.threads))
        get = args.get
        self.calls.extend((event["ts"], number, get("correlation", 0), get("External id", -1), api, config))

    def _new_config(self, config: _ConfigKey) -> int:
        self.configs[_checked_config(LaunchConfig(*config))] = index = len(self.configs)
        return index

    def _take_rare(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        if not isinstance(category, str):
            return
        kind = self.kinds.get(category.lower())
        if kind is None:
            # `cuda_runtime, cuda_driver` and runtimes of other back ends.
            kind = _LAUNCH if "runtime" in category or "driver" in category else _OTHER
        if category not in self.kinds and len(self.kinds) < 1000:
            self.kinds[category] = kind
            if kind in (_OP, _KERNEL, _LAUNCH):
                self._take_all([event])
                return
        if kind == _COPY:
            args = event.get("args") or {}
            config = LaunchConfig(_text(event["name"]), moved_bytes=_integer(args.get("bytes")), is_copy=True)
            index = self.configs.setdefault(config, len(self.configs))
            get = args.get
            stream = get("stream")
            self.gpu.extend((
                event["ts"], event["dur"], get("device", -1),
                _stream(event) if stream is None else stream, get("correlation", 0),
                get("External id", -1), index, 0, get("graph node id", 0),
            ))  # fmt: skip
        elif kind == _ANNOTATION:
            thread = (event.get("pid"), event["tid"])
            number = self.threads.setdefault(thread, len(self.threads))
            self.annotations.append(
                (_number(event["ts"]), _number(event["dur"]), number, _text(event["name"])),
            )

    def _take_again(self, event: Any) -> None:
        """An event that did not fit: numbers may be text, ids may be spelled otherwise. Else it is dropped."""
        if isinstance(event, dict) and event.get("ph", "X") != "X":
            return  # names of processes, flow arrows: nothing is lost
        mended = _mended(event)
        if mended is None:
            self.quality.dropped_event_count += 1
            return
        lengths = len(self.gpu), len(self.calls), len(self.op_rows)
        try:
            kind = self.kinds.get(mended["cat"], _OTHER)
            if kind == _LAUNCH:
                self._take_call(mended)
            elif kind in (_OP, _KERNEL):
                self._take_all([{**mended, "mended": True}])
            else:
                self._take_rare(mended)
        except _MALFORMED:
            for rows, length in zip((self.gpu, self.calls, self.op_rows), lengths, strict=True):
                del rows[length:]
            self.quality.dropped_event_count += 1

    # Columns

    def raw(self, metadata: dict[str, Any]) -> RawTrace:
        """The columns in integer nanoseconds from the file's first event."""
        gpu = _table(self.gpu, _GPU_WIDTH, self.quality)
        calls = _table(self.calls, _CALL_WIDTH, self.quality)
        ops = _table(self.op_rows, _OP_WIDTH, self.quality)
        for rows in (gpu, ops):
            rows[rows[:, 1] > _LENGTH_US_LIMIT, 1] = -1
        annotations = [a for a in self.annotations if -1e15 < a[0] < 2.3e15 and a[1] < _LENGTH_US_LIMIT]
        firsts = [float(rows[:, 0].min()) for rows in (gpu, calls, ops) if len(rows)] + [a[0] for a in annotations]
        # Whole microseconds, so that subtracting it from any time is exact.
        origin_us = math.floor(min(firsts, default=0.0))

        def ns(column: NDArray[np.float64]) -> NDArray[np.int64]:
            return np.rint((column - origin_us) * 1000).astype(np.int64)

        def length_ns(column: NDArray[np.float64]) -> NDArray[np.int64]:
            return np.rint(column * 1000).astype(np.int64)

        def integers(column: NDArray[np.float64]) -> NDArray[np.int64]:
            return column.astype(np.int64)

        base_ns = metadata.get("baseTimeNanoseconds")
        is_absolute = not base_ns and 1e15 < origin_us < 1e16  # microseconds since 1970: 2001 to 2286
        device_ids = sorted({int(d) for d in gpu[:, 2]}) if len(gpu) else []
        return RawTrace(
            tool="kineto",
            gpu=GpuColumns(
                start_ns=ns(gpu[:, 0]), duration_ns=length_ns(gpu[:, 1]), device=integers(gpu[:, 2]),
                stream=integers(gpu[:, 3]), correlation=integers(gpu[:, 4]), external=integers(gpu[:, 5]),
                config=integers(gpu[:, 6]), is_kernel=gpu[:, 7] > 0, graph_node=integers(gpu[:, 8]),
            ),
            calls=LaunchColumns(
                start_ns=ns(calls[:, 0]), thread=integers(calls[:, 1]), correlation=integers(calls[:, 2]),
                external=integers(calls[:, 3]), api=integers(calls[:, 4]), config=integers(calls[:, 5]),
            ),
            op_rows=OpColumns(
                start_ns=ns(ops[:, 0]), end_ns=ns(ops[:, 0] + np.maximum(ops[:, 1], 0)), thread=integers(ops[:, 2]),
                external=integers(ops[:, 3]), op=integers(ops[:, 4]),
            ),
            annotations=[
                Annotation(round((ts - origin_us) * 1000), round((ts + max(dur, 0) - origin_us) * 1000), thread, text)
                for ts, dur, thread, text in annotations
            ],
            configs=[config for config in self.configs if isinstance(config, LaunchConfig)],
            apis=list(self.apis),
            ops=[OpFacts(name, arguments) for name, arguments in self.ops],
            quality=self.quality,
            device=_device(metadata, device_ids),
            origin_unix_ns=(int(base_ns) if base_ns else 0) + origin_us * 1000 if base_ns or is_absolute else None,
            rank=_small(metadata.get("distributedInfo"), "rank"),
            world_size=_small(metadata.get("distributedInfo"), "world_size"),
            engine_version=metadata.get("vllm_version", ""),
        )  # fmt: skip


_GPU_WIDTH, _CALL_WIDTH, _OP_WIDTH = 9, 6, 5


def _table(rows: array[float], width: int, quality: QualityReport) -> NDArray[np.float64]:
    table = np.frombuffer(rows, dtype=np.float64).reshape(-1, width) if rows else np.empty((0, width))
    ids = table[:, 1:]
    ids[~(np.abs(ids) < 2**53)] = -1  # not exact in a float, so they can join nothing; a length is then negative
    # Microseconds since 1970 until 2042; what lies beyond is no time, and sums of ns stay within int64.
    sane = (table[:, 0] > -1e15) & (table[:, 0] < 2.3e15)
    quality.dropped_event_count += int((~sane).sum())
    return table[sane]


def _trim(rows: array[float], width: int) -> None:
    surplus = len(rows) % width
    if surplus:
        del rows[-surplus:]


# The fields of a LaunchConfig; as a plain tuple it finds the one kept, and is made in a tenth of the time.
_ConfigKey = tuple[str, Any, Any, None, Any, Any, None, Collective | None, bool]


def _kernel_config(name: str, args: dict[str, Any]) -> _ConfigKey:
    get = args.get
    grid, block = get("grid"), get("block")
    return (
        name,
        (grid[0], grid[1], grid[2]) if grid else None,
        (block[0], block[1], block[2]) if block else None,
        None,
        get("registers per thread"),
        get("shared memory"),
        None,
        _collective(args) if "Collective name" in args else None,
        False,
    )


def _checked_config(config: LaunchConfig) -> LaunchConfig:
    """A configuration seen for the first time: names are text and sizes integers, or the event is malformed."""
    sizes = (*(config.grid or ()), *(config.block or ()), config.registers, config.shared_memory_bytes)
    if not isinstance(config.name, str) or not all(
        size is None or (type(size) is int and 0 <= size < 1 << 32) for size in sizes
    ):
        raise TypeError(config)
    return config


def _collective(args: dict[str, Any]) -> Collective:
    return Collective(
        _text(args["Collective name"]),
        _integer(args.get("In msg nelems")) or 0,
        _integer(args.get("Out msg nelems")) or 0,
        str(args.get("dtype", "")),
        _integer(args.get("Group size")) or 0,
    )


def _checked_op(key: tuple[str, bytes]) -> tuple[str, bytes]:
    if not isinstance(key[0], str):
        raise TypeError(key)
    return key


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _number(value: Any) -> float:
    return float(value)


def _stream(event: dict[str, Any]) -> int:
    """The stream as the track it is drawn on: 7, or `stream 7` in the oldest files."""
    digits = re.search(r"\d{1,9}", str(event.get("tid")))
    return int(digits[0]) if digits else -1


def _integer(value: Any) -> int | None:
    """An integer that may be written as text; None where there is none."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 1 << 62 else None


def _mended(event: Any) -> dict[str, Any] | None:
    """The event with numbers for text (`"12.5"`, `"stream 7"`) and today's spelling of ids; None if it has no time."""
    if not isinstance(event, dict) or event.get("mended"):
        return None
    args = event.get("args")
    args = dict(args) if isinstance(args, dict) else {}
    mended = {**event, "args": args}
    try:
        if not isinstance(event["name"], str):
            return None
        mended["cat"] = str(event["cat"]).lower()
        mended["ts"] = float(event["ts"])
        mended["dur"] = float(event["dur"])
        mended["tid"] = str(event.get("tid"))
        mended["pid"] = str(event.get("pid"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    args["stream"] = _stream({"tid": args.get("stream", event.get("tid"))})
    for key, missing in (("device", -1), ("correlation", 0), ("External id", -1), ("graph node id", 0)):
        number = _integer(args.get(key))
        args[key] = missing if number is None else number
    for key in ("registers per thread", "shared memory"):
        size = _integer(args.get(key))
        args[key] = size if size is not None and size < 1 << 32 else None
    for key in ("grid", "block"):
        value = args.get(key)
        sizes = [_integer(part) for part in value] if isinstance(value, list) and len(value) == 3 else []
        args[key] = sizes if sizes and all(size is not None and size < 1 << 32 for size in sizes) else None
    return mended


# Top level


def _metadata(text: bytes) -> dict[str, Any]:
    """The listed top-level values; a key is looked for in the text, so that broken neighbours do not matter."""
    found: dict[str, Any] = {}
    words = text.decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    for key in _METADATA_KEYS:
        for match in islice(re.finditer(rf'"{key}"\s*+:\s*+', words), _KEY_TRIES_LIMIT):
            try:
                value, _ = decoder.raw_decode(words, match.end())
            except (ValueError, RecursionError):
                continue
            found.setdefault(key, value)
            break
    base = found.get("baseTimeNanoseconds")
    if base is not None:
        number = _integer(base)
        found["baseTimeNanoseconds"] = number if number and number < 1 << 61 else None
    version = found.get("vllm_version")
    found["vllm_version"] = version if isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version) else ""
    return found


def _device(metadata: dict[str, Any], used: list[int]) -> DeviceFacts:
    """The properties of the GPU the kernels ran on; with AMD's agent numbers, which match no id, of the first GPU."""
    listed = metadata.get("deviceProperties")
    devices = [d for d in listed if isinstance(d, dict)] if isinstance(listed, list) else []
    if not devices:
        return DeviceFacts()
    chosen = next((d for d in devices if d.get("id") in used), devices[0])
    name, major, minor = chosen.get("name"), _integer(chosen.get("computeMajor")), _integer(chosen.get("computeMinor"))
    return DeviceFacts(
        name=name[:100] if isinstance(name, str) else "",
        compute_capability=(major, minor) if major is not None and minor is not None else None,
        sm_count=_integer(chosen.get("numSms")),
        dram_bytes=_integer(chosen.get("totalGlobalMem")),
    )


def _small(value: Any, key: str) -> int | None:
    number = _integer(value.get(key)) if isinstance(value, dict) else None
    return number if number is not None and number < 1_000_000 else None


def _whole_object(text: bytes) -> Any:
    event, rest = _first_object(text)
    return event if event is not None and not rest.strip() else None


def _first_object(text: bytes) -> tuple[Any, str]:
    words = text.decode("utf-8", "replace")
    try:
        event, end = json.JSONDecoder(strict=False).raw_decode(words)
    except (ValueError, RecursionError):
        words = _NOT_A_NUMBER.sub(" null", words)
        try:
            event, end = json.JSONDecoder(strict=False).raw_decode(words)
        except (ValueError, RecursionError):
            return None, ""
    return (event, words[end:]) if isinstance(event, dict) else (None, "")


def _is_open(piece: bytes) -> bool:
    return piece.count(b"{") > piece.count(b"}")
