"""Whatever bytes come in, an import ends in a trace or in a refusal, soon, and in nothing else."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from services.ingest.imported import ImportedTrace, Phase
from services.ingest.importers import TraceRejected, import_trace
from tests.unit.test_importers_kineto import WHOLE
from tests.unit.test_importers_tables import GPU_TRACE, KERNEL_SUM, NCU_DETAILS, NCU_RAW, write_nsys

relaxed = settings(
    max_examples=2500, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def imports_or_refuses(folder: Path, *contents: bytes) -> None:
    paths = []
    for index, data in enumerate(contents):
        paths.append(folder / f"fuzzed{index}")
        paths[-1].write_bytes(data)
    try:
        trace = import_trace(paths)
    except TraceRejected as reason:
        refusal = str(reason)
    else:
        check(trace)
        return
    assert 10 < len(refusal) < 2000


def check(trace: ImportedTrace) -> None:
    """What every consumer of an import relies on."""
    launches = trace.launches
    count = len(launches.task)
    assert all(len(getattr(launches, name)) == count for name in launches.__slots__)
    assert ((launches.task >= 0) & (launches.task < len(trace.tasks))).all()
    assert ((launches.step >= -1) & (launches.step < len(trace.steps))).all()
    assert (launches.duration_ns >= -1).all()
    assert set(np.unique(launches.task).tolist()) == set(range(len(trace.tasks)))
    for rank in np.unique(launches.rank):
        assert (np.diff(launches.start_ns[launches.rank == rank]) >= 0).all()
    assert len({task.task_id for task in trace.tasks}) == len(trace.tasks)
    assert all(step.duration_ns >= 0 and step.phase in Phase for step in trace.steps)
    assert all(len(step.q_lengths) == len(step.kv_lengths) for step in trace.steps)


@given(st.binary(max_size=4000))
@example(b"\x1f\x8b")
@example(b"\x28\xb5\x2f\xfd")
@example(b"SQLite format 3\0")
@example(b"{")
@example(b"[")
@example(b'{"traceEvents": [')
@example(b'{"traceEvents": [' + b"[" * 100_000)
@example(b'{"traceEvents": [' + b'{"ph":' * 50_000)
@example(b'{"traceEvents": [}' + b" " * 300_000 + b"}")
@example(b'{"traceEvents": [{"ph": "X"' + b"}]," * 50_000)
@example(b'{"traceEvents": [1, null, "x", {}, [], {"ph": "X"}, {"ph": "X", "cat": "kernel"}]}')
@relaxed
def test_any_bytes(tmp_path, data):
    imports_or_refuses(tmp_path, data)


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """A sound file with pieces cut out, doubled or overwritten."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.integers(0, 200))
        match draw(st.sampled_from(("cut", "end", "double", "overwrite", "insert"))):
            case "cut":
                del data[at : at + length]
            case "end":
                del data[at:]
            case "double":
                data[at:at] = data[at : at + length]
            case "overwrite":
                data[at : at + 4] = draw(st.binary(min_size=1, max_size=4))
            case "insert":
                word = st.sampled_from(
                    (b"inf", b"N/A", b'"', b"\\", b"}", b"]", b"{", b",", b"-", b"1e999", b"null", b"\0")
                )
                data[at:at] = draw(word)
    return bytes(data)


@given(damaged(WHOLE.encode()), st.booleans())
@relaxed
def test_damaged_kineto(tmp_path, data, packed):
    imports_or_refuses(tmp_path, gzip.compress(data) if packed else data)


@given(damaged(gzip.compress(WHOLE.encode())))
@relaxed
def test_damaged_gzip(tmp_path, data):
    imports_or_refuses(tmp_path, data)


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("7") | st.just("stream 7")
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
argument_names = (
    "External id", "correlation", "stream", "device", "grid", "block", "registers per thread", "shared memory",
    "bytes", "kernel", "src", "size", "Input Dims", "Input type", "Collective name", "In msg nelems", "dtype",
    "Group size", "graph node id",
)  # fmt: skip
args = st.fixed_dictionaries({}, optional=dict.fromkeys(argument_names, values))
categories = st.sampled_from(
    (
        "kernel",
        "Kernel",
        "gpu_memcpy",
        "cuda_runtime",
        "cuda_driver",
        "cpu_op",
        "Operator",
        "user_annotation",
        "hip_runtime",
    )
)
names = st.sampled_from(
    ("f<4>(int)", "cudaLaunchKernel", "cudaGraphLaunch", "hipStreamBeginCapture", "hipStreamEndCapture", "aten::mm",
     "aten::embedding", "execute_context_1(4)_generation_2(2)", "step[DECODE bs=2]", "capture_8_FULL", "ProfilerStep#1",
     "execute_9_context_2(sq9sk20sqsq50sqsk90)_generation_1(sq1sk5sqsq1sqsk5)", "ncclDevKernel_AllReduce(x)",
     "vllm::unified_attention_with_output", "flash_fwd_kernel<1>")
)  # fmt: skip
times = st.integers(0, 500) | st.floats(0, 500) | values
odd_events = st.fixed_dictionaries(
    {"ph": st.just("X") | values, "cat": categories | values, "name": names | values, "ts": times, "dur": times},
    optional={"args": args | values, "tid": st.integers(0, 2) | values, "pid": values},
)


@given(st.lists(odd_events, max_size=25), st.lists(odd_events, max_size=10))
@relaxed
def test_events_of_any_form(tmp_path, first, second):
    for listed in ([first], [first, second]):
        imports_or_refuses(tmp_path, *(json.dumps({"traceEvents": events}).encode() for events in listed))


@given(
    st.dictionaries(
        st.sampled_from(("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "vllm_version")), values
    )
)
@relaxed
def test_metadata_of_any_form(tmp_path, top):
    listed = json.loads(WHOLE)["traceEvents"]
    imports_or_refuses(tmp_path, json.dumps({**top, "traceEvents": listed}).encode())


@pytest.mark.parametrize("table", [GPU_TRACE, KERNEL_SUM, NCU_DETAILS, NCU_RAW], ids=["trace", "sum", "details", "raw"])
def test_damaged_tables(tmp_path, table):
    @given(damaged(table.encode()))
    @relaxed
    def run(data):
        imports_or_refuses(tmp_path, data)

    run()


def test_damaged_databases(tmp_path):
    write_nsys(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()

    @given(damaged(whole))
    @relaxed
    def run(data):
        imports_or_refuses(tmp_path, data)

    run()


cells = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=6) | st.binary(max_size=6)


@given(
    st.lists(st.lists(cells, min_size=22, max_size=22), min_size=1, max_size=6), st.lists(cells, min_size=8, max_size=8)
)
@relaxed
def test_databases_with_values_of_any_type(tmp_path, kernels, other):
    path = tmp_path / "odd"
    path.unlink(missing_ok=True)
    write_nsys(path)
    with sqlite3.connect(path) as connection:
        for row in kernels:
            connection.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 22)})", row)
        connection.execute("INSERT INTO StringIds VALUES (?, ?)", other[:2])
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?)", other[:5])
        connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?, ?, ?, ?)", other[:6])
        connection.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = ?", other[6:7])
    connection.close()
    imports_or_refuses(tmp_path, path.read_bytes())


def test_samples_cut_anywhere(tmp_path, samples):
    data = gzip.decompress((samples / "k22_vllm0.32_cpu_opt-125m_steps.pt.trace.json.gz").read_bytes())
    for size in range(0, len(data), len(data) // 23):
        imports_or_refuses(tmp_path, data[:size])
