"""The engine's graphs, recorded while it captures them: a replay tells neither ops nor shapes of its kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from cascade_profiler.collect import Collector
from cascade_profiler.kineto import Capture, Seen, captures_of
from cascade_profiler.saying import say


class CaptureWindow:
    """One session of a profiler around the capture of all graphs; it is read in a thread of its own meanwhile."""

    def __init__(self, collector: Collector) -> None:
        """Begins to record."""
        self._collector = collector
        self._found: list[Capture] = []
        self._reader: threading.Thread | None = None
        collector.start()

    def end(self) -> None:
        """The graphs have been captured."""
        read = self._collector.stop()
        self._reader = threading.Thread(target=self._read, args=(read,), name="cascade-captures", daemon=True)
        self._reader.start()

    def found(self) -> list[Capture]:
        """What was captured, by batch size; waits until it has been read."""
        if self._reader is not None:
            self._reader.join()
        return self._found

    def _read(self, read: Callable[[], Iterable[Seen]]) -> None:
        try:
            self._found = [capture for capture in captures_of(read()) if any(capture.graphs)]
        except Exception as error:  # noqa: BLE001 - foreign code: whatever it does, the job goes on
            say(f"the capture of graphs could not be read ({type(error).__name__}: {error}); shapes are solved instead")
