"""/ws: a run's records as they are said, or again from its log: from a place, at a speed, paused, sought.

Control goes as JSON text frames, records as binary frames of one Arrow stream each. A binary frame costs the viewer one
credit; without credit nothing is read, so a slow viewer costs no memory and holds nobody up: the log keeps everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from services.gateway.backend import RunLog
from services.gateway.bodies import (
    CREDITS_LIMIT,
    At,
    Control,
    Credit,
    Pause,
    Position,
    Resume,
    Seek,
    Speed,
    Subscribe,
    parse_control,
)
from services.gateway.positions import Order, RunIndex, RunIndexes
from services.runtime.engine import Refused
from services.runtime.eventlog import StoredRecord

CREDITS_AT_START = 8
RECORDS_PER_FRAME = 256
BYTES_PER_FRAME = 1 << 20
CONTROL_BYTES_LIMIT = 16 << 10
VIEWERS_LIMIT = 64
IDLE_LIMIT_S = 900.0
_FILTERED_AT_ONCE = 65_536  # positions looked at without giving others a turn

FRAME = pa.schema(
    [
        pa.field("position", pa.int32(), nullable=False),
        pa.field("timestamp_ms", pa.float64(), nullable=False),  # exact to 2^53, and no BigInt in a browser
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("type", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("value", pa.binary(), nullable=False),  # JSON, or the columnar event's own Arrow stream
    ]
)


def encode_frame(positions: Sequence[int], records: Sequence[StoredRecord]) -> bytes:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(positions, pa.int32()),
            pa.array([float(one.timestamp_ms) for one in records], pa.float64()),
            pa.array([one.topic for one in records]).dictionary_encode(),
            pa.array([one.record.headers["type"] for one in records]).dictionary_encode(),
            pa.array([one.record.value for one in records], pa.binary()),
        ],
        schema=FRAME,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, FRAME) as writer:
        writer.write_batch(batch)
    return cast("bytes", sink.getvalue().to_pybytes())


# --- deciding what comes next: a value and the time in, no socket ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Say:
    """A control frame."""

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Send:
    """A frame of the records at these positions."""

    positions: list[int]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes, or until this many seconds have passed."""

    seconds: float | None = None


@dataclass
class View:
    """Where one viewer is in one run."""

    index: RunIndex
    types: tuple[str, ...] = ()
    order: Order = field(init=False)
    next: int = 0
    credits: int = CREDITS_AT_START
    speed: float | None = None
    is_paused: bool = False
    pending: list[dict[str, Any]] = field(default_factory=list)
    _end_said_at: int = -1  # length of the order when its end was said
    _anchor: tuple[float, int] | None = None  # wall seconds and log ms that pacing counts from

    def __post_init__(self) -> None:
        self.order = self.index.order

    def go_to(self, place: Position | At | str, seek_id: int | None = None) -> None:
        """Go on from there, in the newest order."""
        self.order = self.index.order
        match place:
            case Position():
                self.next = min(place.position, len(self.order))
            case At():
                self.next = self.order.position_at(place.at_ms)
            case _:
                self.next = 0
        self._end_said_at = -1
        self._anchor = None
        if seek_id is not None:
            # Only the newest of many seeks is answered: scrubbing never queues.
            self.pending = [message for message in self.pending if message["op"] != "at"]
            self.pending.append({"op": "at", "id": seek_id, **self._place()})

    def set_speed(self, speed: float | None) -> None:
        self.speed, self._anchor = speed, None

    def set_paused(self, *, is_paused: bool) -> None:
        self.is_paused, self._anchor = is_paused, None

    def hello(self, run_id: str, trace_id: str) -> dict[str, Any]:
        return {
            "op": "hello",
            "run": run_id,
            "trace": trace_id,
            "first_ms": self.order.timestamp_ms[0] if len(self.order) else None,
            "last_ms": self.order.timestamp_ms[-1] if len(self.order) else None,
            "is_complete": self.order.is_fixed,
            **self._place(),
        }

    def turn(self, now_s: float) -> Say | Send | Wait:
        """What to do now; called again after it was done."""
        if self.pending:
            return Say(self.pending.pop(0))
        if self.next >= len(self.order):
            return self._at_end()
        if self.is_paused or self.credits <= 0:
            return Wait()
        due_ms = self._due_ms(now_s)
        if due_ms is not None and self.order.timestamp_ms[self.next] > due_ms:
            assert self.speed is not None
            return Wait((self.order.timestamp_ms[self.next] - due_ms) / 1000 / self.speed)
        positions = self._frame(due_ms)
        if not positions:
            return Wait(0.0)  # everything looked at was filtered out; others first
        self.credits -= 1
        return Send(positions)

    def _at_end(self) -> Say | Wait:
        if self.order is not self.index.order:
            # The live order has been read to its end and the fixed one stands: positions may differ from here on.
            self.order = self.index.order
            self.next = len(self.order)
            self._end_said_at = -1
            return Say({"op": "fixed", **self._place()})
        if self._end_said_at == len(self.order):
            return Wait()
        self._end_said_at = len(self.order)
        return Say({"op": "end" if self.order.is_fixed else "live", **self._place()})

    def _frame(self, due_ms: float | None) -> list[int]:
        order, codes = self.order, self.order.codes(self.types) if self.types else None
        positions: list[int] = []
        size_bytes = 0
        stop = min(len(order), self.next + _FILTERED_AT_ONCE)
        while self.next < stop and len(positions) < RECORDS_PER_FRAME:
            if due_ms is not None and order.timestamp_ms[self.next] > due_ms:
                break
            if codes is None or order.has_type(self.next, codes):
                size_bytes += order.value_bytes[self.next]
                if positions and size_bytes > BYTES_PER_FRAME:
                    break
                positions.append(self.next)
            self.next += 1
        return positions

    def _due_ms(self, now_s: float) -> float | None:
        """Log time up to which records may be sent now; None: all of them."""
        if self.speed is None:
            return None
        if self._anchor is None:
            self._anchor = (now_s, self.order.timestamp_ms[self.next])
        wall_s, log_ms = self._anchor
        return log_ms + (now_s - wall_s) * 1000 * self.speed

    def _place(self) -> dict[str, Any]:
        count = len(self.order)
        at_ms = self.order.timestamp_ms[min(self.next, count - 1)] if count else None
        return {"position": self.next, "at_ms": at_ms, "record_count": count}


# --- viewers --------------------------------------------------------------------------------------------------------


class Hub:
    """Who watches what. Lives on the event loop; only `_appended` is called from elsewhere."""

    def __init__(self, log: RunLog, indexes: RunIndexes) -> None:
        self.log = log
        self.viewers: set[_Viewer] = set()
        self._indexes = indexes
        self._refreshing = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.log.listen(self._appended)

    def _appended(self, keys: set[str]) -> None:
        loop = self._loop
        if loop is not None and self.viewers and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, keys)

    def _wake(self, keys: set[str]) -> None:
        for viewer in self.viewers:
            if not keys.isdisjoint(viewer.keys):
                viewer.is_behind = True
                viewer.changed.set()

    async def index(self, keys: tuple[str, str]) -> RunIndex:
        """A run's index, up to date; shared by all who watch it."""
        async with self._refreshing:
            return await asyncio.to_thread(self._indexes.of_keys, keys)

    async def refresh(self, index: RunIndex) -> None:
        async with self._refreshing:
            await asyncio.to_thread(index.refresh)


@dataclass(eq=False)
class _Viewer:
    """One socket."""

    socket: WebSocket
    hub: Hub
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    # Bounded: one that only talks waits until it has been answered.
    controls: asyncio.Queue[Control] = field(default_factory=lambda: asyncio.Queue(64))
    refusal: str = ""
    keys: tuple[str, str] | tuple[()] = ()
    is_behind: bool = False
    view: View | None = None
    active_s: float = field(default_factory=time.monotonic)


async def serve_viewer(socket: WebSocket, hub: Hub) -> None:
    await socket.accept()
    if len(hub.viewers) >= VIEWERS_LIMIT:
        await _refuse(socket, 1013, f"{VIEWERS_LIMIT} viewers are connected already; close one")
        return
    viewer = _Viewer(socket, hub)
    hub.viewers.add(viewer)
    listening = asyncio.create_task(_listen(viewer))
    try:
        await _speak(viewer)
    except (WebSocketDisconnect, RuntimeError):
        # RuntimeError: the socket was closed between a look at it and a word to it.
        if socket.client_state is WebSocketState.CONNECTED and socket.application_state is WebSocketState.CONNECTED:
            raise
    finally:
        listening.cancel()
        hub.viewers.discard(viewer)


async def _listen(viewer: _Viewer) -> None:
    """Control frames into the viewer, until it leaves or says something that cannot be understood."""
    while not viewer.refusal:
        message = await viewer.socket.receive()
        if message["type"] == "websocket.disconnect":
            viewer.refusal = "gone"
        else:
            await _hear(viewer, message)
        viewer.changed.set()


async def _hear(viewer: _Viewer, message: Any) -> None:
    text = message.get("text")
    if text is None:
        viewer.refusal = "control frames are JSON text"
    elif len(text) > CONTROL_BYTES_LIMIT:
        viewer.refusal = f"a control frame has at most {CONTROL_BYTES_LIMIT} bytes"
    else:
        try:
            control = parse_control(text)
        except Refused as refusal:
            viewer.refusal = str(refusal)
        else:
            await viewer.controls.put(control)
    viewer.active_s = time.monotonic()


async def _speak(viewer: _Viewer) -> None:
    """Everything that is sent is sent here, one thing after the other."""
    while True:
        viewer.changed.clear()
        while not viewer.controls.empty():
            await _obey(viewer, viewer.controls.get_nowait())
        if viewer.refusal:
            if viewer.refusal != "gone":
                await _refuse(viewer.socket, 1008, viewer.refusal)
            return
        if viewer.is_behind and viewer.view is not None:
            viewer.is_behind = False
            await viewer.hub.refresh(viewer.view.index)
        turn = viewer.view.turn(time.monotonic()) if viewer.view is not None else Wait()
        match turn:
            case Say():
                await viewer.socket.send_text(json.dumps(turn.message))
                viewer.active_s = time.monotonic()
            case Send():
                assert viewer.view is not None
                await viewer.socket.send_bytes(await _frame(viewer.hub.log, viewer.view.order, turn.positions))
                viewer.active_s = time.monotonic()
            case Wait():
                left_s = viewer.active_s + IDLE_LIMIT_S - time.monotonic()
                if left_s <= 0:
                    await _refuse(viewer.socket, 1000, "nothing was asked for a long time; connect again")
                    return
                seconds = left_s if turn.seconds is None else min(left_s, turn.seconds)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(viewer.changed.wait(), max(seconds, 0.0))


async def _frame(log: RunLog, order: Order, positions: list[int]) -> bytes:
    def read() -> bytes:
        return encode_frame(positions, log.read_positions([order.appended[position] for position in positions]))

    return await asyncio.to_thread(read)


async def _obey(viewer: _Viewer, control: Control) -> None:
    if isinstance(control, Subscribe):
        await _subscribe(viewer, control)
        return
    view = viewer.view
    if view is None:
        viewer.refusal = f"{control.op!r} before a subscription; subscribe to a run first"
        return
    match control:
        case Pause():
            view.set_paused(is_paused=True)
        case Resume():
            view.set_paused(is_paused=False)
        case Seek(position=int(position)):
            view.go_to(Position(position=position), control.id)
        case Seek():
            view.go_to(At(at_ms=control.at_ms or 0), control.id)
        case Speed():
            view.set_speed(control.value)
        case Credit():
            view.credits = min(view.credits + control.count, CREDITS_LIMIT)


async def _subscribe(viewer: _Viewer, asked: Subscribe) -> None:
    """An unknown run is said and forgiven: the viewer may ask for another."""
    try:
        keys = await asyncio.to_thread(viewer.hub.log.keys_of, asked.run)
    except Refused as refusal:
        await viewer.socket.send_text(json.dumps({"op": "error", "error": str(refusal)}))
        return
    viewer.keys = keys
    view = View(await viewer.hub.index(keys), tuple(asked.types))
    view.speed = None if asked.start == "live" else asked.speed
    view.go_to(asked.start)
    view.pending.append(view.hello(*keys))
    viewer.view = view


async def _refuse(socket: WebSocket, code: int, sentence: str) -> None:
    await socket.send_text(json.dumps({"op": "error", "error": sentence}))
    await socket.close(code, sentence[:120])
