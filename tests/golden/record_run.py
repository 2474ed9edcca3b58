"""Writes tests/golden/runs/*.cascade: whole runs as their logs hold them. Run by hand when the contract has grown.

    .venv/bin/python -m tests.golden.record_run

Old recordings stay: every later version must still read them and fold them to the hash they ended with.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from cascade_schemas.codec import SCHEMA_VERSION
from cascade_schemas.model import load_model
from cascade_schemas.recording import RecordedRecord, write_recording

from services.ingest import admission
from services.ingest.requests import prompts_from_baseline
from services.runtime.embedded import Embedded
from services.simworker.simulators.catalog import simulators
from tests.factories import Clock, kineto_trace, settings

RUNS = Path(__file__).parent / "runs"
SAMPLES = Path(__file__).resolve().parents[2] / "services" / "samples"


def main() -> None:
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stem = "k22_vllm0.32_cpu_opt-125m_steps"
        prompts, _ = prompts_from_baseline(SAMPLES / f"{stem}.baseline.json")
        record("sample", Path(folder) / "a", SAMPLES / f"{stem}.pt.trace.json.gz", "opt-125m", prompts)
        record("measured", Path(folder) / "b", kineto_trace(Path(folder) / "small.json", step_count=4), None, ())


def record(name: str, home: Path, trace: Path, model: str | None, prompts: tuple[int, ...]) -> None:
    engine = Embedded(settings(home), simulators(1), now_ms=Clock())
    upload = admission.upload(
        [engine.store_artifact(trace)],
        name=name,
        model=load_model(model) if model else None,
        source_gpu=None,
        prompts=prompts,
    )
    engine.upload(upload)
    engine.pump()
    engine.request_run("golden", upload.trace_id, ["h100_sxm", "l4", "h100_sxm:dram_gbps=6000"])
    engine.pump()
    keys = ["golden", upload.trace_id]
    records = [RecordedRecord(0, s.offset, s.timestamp_ms, s.record) for s in engine.log.read_keys(keys)]
    path = RUNS / f"{name}_v{SCHEMA_VERSION}.cascade"
    print(f"{path.name}: {write_recording(path, records)} records")
    engine.close()


if __name__ == "__main__":
    main()
