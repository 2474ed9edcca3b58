"""Records on disk while their destination is away, in order, and bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cascade_schemas.codec import Record
from cascade_schemas.recording import RecordStream, read_batches

_HEADER_BYTES = 256  # about what a record takes beside its value


class Spool:
    """A record stream that is read from its beginning once the destination is back, then deleted."""

    def __init__(self, path: Path, bytes_limit: int) -> None:
        self.path = path
        self._bytes_limit = bytes_limit
        self._stream: RecordStream | None = None
        self._held_bytes = 0
        self._sent_batches = 0

    @property
    def is_empty(self) -> bool:
        return self._held_bytes == 0

    def append(self, records: Sequence[Record], timestamp_ms: int) -> bool:
        """False where there is no room, or no disk."""
        size = sum(len(record.value) + _HEADER_BYTES for record in records)
        if self._held_bytes + size > self._bytes_limit:
            return False
        try:
            if self._stream is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._stream = RecordStream(self.path)
            self._stream.append(records, timestamp_ms)
        except OSError:
            return False
        self._held_bytes += size
        return True

    def waiting(self) -> Iterator[list[Record]]:
        """Batches not yet sent, oldest first; a batch counts as sent when the next one is asked for."""
        for place, records in enumerate(read_batches(self.path) if not self.is_empty else ()):
            if place >= self._sent_batches:
                yield records
                self._sent_batches = place + 1

    def clear(self) -> None:
        """Everything was sent."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self.path.unlink(missing_ok=True)
        self._held_bytes = self._sent_batches = 0

    def close(self) -> None:
        """Leave what is held on disk, to be sent by `cascade-trace --resume`."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self.is_empty:
            self.path.unlink(missing_ok=True)
