"""What the profiler SDK wrote to files instead of a live destination: one record stream per rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cascade_schemas.codec import MalformedEvent, decode
from cascade_schemas.events import AnyEvent, TraceUploaded
from cascade_schemas.recording import MalformedRecording, is_record_stream, read_stream

from services.ingest.importers.rejection import TraceRejected
from services.ingest.live import LiveTrace, Overrides, Recorded
from services.ingest.reading import read_head

_EVENTS_TOGETHER = 64  # of a few steps each: what waits is some tens of megabytes


def is_recorded(paths: Sequence[Path]) -> bool:
    """Whether every file is a record stream."""
    try:
        return bool(paths) and all(is_record_stream(read_head(path, 4096)) for path in paths)
    except OSError:
        return False  # said in the importer's words


def events_of_streams(upload: TraceUploaded, paths: Sequence[Path]) -> Iterator[AnyEvent]:
    """The catalog that live ingest would have made of the same records. Raises TraceRejected."""
    trace = LiveTrace(
        upload.trace_id,
        Overrides(upload.name, upload.model, upload.source_gpu, upload.routing, rank_count=len(paths)),
    )
    recorded_ids: set[str] = set()
    heard = 0
    for path in paths:
        try:
            for record in read_stream(path):
                event = decode(record.headers, record.value)
                if isinstance(event, Recorded):
                    recorded_ids.add(event.trace_id)
                    yield from trace.take(event.model_copy(update={"trace_id": upload.trace_id}))
                    heard += 1
                    if heard % _EVENTS_TOGETHER == 0:
                        yield from trace.settle()
        except (MalformedRecording, MalformedEvent) as error:
            raise TraceRejected(f"{path.name} cannot be read: {error}; record again") from error
        if len(recorded_ids) > 1:
            raise TraceRejected(f"the files are of {len(recorded_ids)} traces; import the ranks of one at a time")
    yield from trace.abandon(
        "The recording breaks off before the job said that it had ended: it was killed. The trace ends with the last"
        " whole step."
    )
