"""Recorded frames of /ws fold into the recorded report. The page's own fold is held to the same files (web/src/store)."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from cascade_schemas.codec import decode

from services.aggregator import queries
from services.aggregator.reactor import Aggregator
from services.aggregator.state_hash import state_hash
from services.aggregator.store import Store
from tests.golden.record_run_frames import FOLDER, read_frames


@pytest.mark.parametrize("name", ["recorded-on-cpu", "measured"])
def test_recorded_frames_fold_into_the_recorded_report(name):
    report = json.loads((FOLDER / f"{name}.report.json").read_text())
    store = Store(None)
    aggregator = Aggregator(store)
    for frame in read_frames(FOLDER / f"{name}.frames.gz"):
        with pa.ipc.open_stream(frame) as reader:
            for row in reader.read_all().to_pylist():
                aggregator.restore(decode({"type": row["type"]}, row["value"]))
    store.commit(aggregator.taken_rows(), {})
    try:
        assert json.loads(json.dumps(queries.run_report(store, report["run_id"]))) == report
        assert state_hash(store, report["run_id"]) == report["state_hash"]
    finally:
        store.close()
