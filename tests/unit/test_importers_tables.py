"""Exports of Nsight Systems and Nsight Compute, in the shapes that their versions write."""

from __future__ import annotations

import gzip
import re
import sqlite3
from pathlib import Path

import pytest

from services.ingest.imported import Phase
from services.ingest.importers import TraceRejected, import_trace

GPU_TRACE = """\
Processing [report.sqlite] with [cuda_gpu_trace.py]...
"Start (ns)","Duration (ns)","CorrId","GrdX","GrdY","GrdZ","BlkX","BlkY","BlkZ","Reg/Trd","StcSMem (MB)","DymSMem (MB)",\
"Bytes (MB)","Throughput (MBps)","SrcMemKd","DstMemKd","Device","Ctx","Strm","Name"
1000,200,11,4,1,1,128,1,1,32,0.001,0.002,,,,,"NVIDIA A100 (0)",1,7,"void f<(int)4>(T2 *)"
1300,200,12,4,1,1,128,1,1,32,0.001,0.002,,,,,"NVIDIA A100 (0)",1,7,"void f<(int)4>(T2 *)"
"2,000",50,13,,,,,,,,,,1.5,100.0,"Pinned","Device","NVIDIA A100 (0)",1,8,"[CUDA memcpy Host-to-Device]"
"""
KERNEL_SUM = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,601,3,200.3,200.0,200,201,0.5,"void f<(int)4>(T2 *)"
40.0,400,2,200.0,200.0,200,200,0.0,g(int)
"""
NCU_DETAILS = """\
==PROF== Connected to process 17
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description"
"0","17","python3","node-17","void f<4>(int)","1","7","(128, 1, 1)","(32, 4, 1)","0","9.0","SOL","Duration","us","1,006.75",
"0","17","python3","node-17","void f<4>(int)","1","7","(128, 1, 1)","(32, 4, 1)","0","9.0","SOL","DRAM","%","n/a",
"0","17","python3","node-17","void f<4>(int)","1","7","(128, 1, 1)","(32, 4, 1)","0","9.0","LS","Registers Per Thread",\
"register/thread","40",
"0","17","python3","node-17","void f<4>(int)","1","7","(128, 1, 1)","(32, 4, 1)","0","9.0","LS",\
"Dynamic Shared Memory Per Block","Kbyte/block","16.38",
"0","17","python3","node-17","void f<4>(int)","1","7","(128, 1, 1)","(32, 4, 1)","0","9.0","SOL","","","","Rule","INF","Text"
"1","17","python3","node-17","g(int)","1","7","(64, 1, 1)","(8, 1, 1)","0","9.0","SOL","Duration","ms","0.5",
"2","17","python3","node-17","h(int)","1","7","(64, 1, 1)","(8, 1, 1)","0","9.0","SOL","Duration","us","n/a",
"""
NCU_RAW = """\
"ID","Process ID","Kernel Name","Stream","Block Size","Grid Size","CC","gpu__time_duration.sum","launch__registers_per_thread"
"","","","","","","","usecond","register/thread"
"0","17","void f<4>(int)","7","(128, 1, 1)","(32, 4, 1)","9.0","6.75","40"
"1","17","void f<4>(int)","7","(128, 1, 1)","(32, 4, 1)","9.0","7.25","40"
"""

PROCESS, OTHER = 281_476_838_981_632, 281_476_855_758_848
KERNEL_COLUMNS = (
    "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName", "mangledName",
    "registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory",
    "dynamicSharedMemory", "graphNodeId", "clusterX", "clusterY", "clusterZ",
)  # fmt: skip


def kernel_row(
    start: int, correlation: int, process: int = PROCESS, name: int = 1, mangled: int = 2
) -> list[int | None]:
    return [
        start,
        start + 100,
        0,
        7,
        correlation,
        process,
        name,
        name,
        mangled,
        32,
        4,
        1,
        1,
        128,
        1,
        1,
        0,
        1024,
        None,
        2,
        1,
        1,
    ]


def write_nsys(
    path: Path, *, mode: str = "Node", columns: tuple[str, ...] = KERNEL_COLUMNS, schema: str = "3.25.0"
) -> None:
    """Two processes with the same correlation ids; the first annotates its steps."""
    strings = [
        "",
        "void f<(int)4>(T2 *)",
        "_Z1fILi4EEvPT0_",
        "cudaLaunchKernel_v7000",
        "cudaGraphLaunch_v10000",
        "_Z1fother",
    ]
    connection = sqlite3.connect(path)
    with connection:
        run = connection.execute
        run("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(strings)))
        run(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(columns)})".replace(" end", ' "end"'))
        rows = [
            kernel_row(1_500, 1), kernel_row(1_700, 2), kernel_row(2_500, 3), kernel_row(900, 99),
            kernel_row(1_600, 1, OTHER), kernel_row(1_800, 2, OTHER, mangled=5),
        ]  # fmt: skip
        kept = [[row[KERNEL_COLUMNS.index(name)] for name in columns] for row in rows]
        connection.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * len(columns))})", kept)
        run('CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId)')
        calls = [(1_010, 1), (1_210, 2), (2_010, 3)]
        for process in (PROCESS, OTHER):
            for start, correlation in calls:
                run(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 3)",
                    (start, start + 5, process + 1, correlation),
                )
        run('CREATE TABLE NVTX_EVENTS (start, "end", text, globalTid, textId)')
        ranges = [
            (1_000, 1_200, "execute_context_1(8)_generation_0(0)"), (2_000, 2_100, "execute_context_0(0)_generation_1(1)"),
            (1_005, 1_020, "aten::mm, seq = 3, op_id = 9, sizes = [[8, 16], [16, 4]], input_op_ids = [(1,0)]"),
            (1_205, 1_220, "aten::softmax, op_id = 10"), (1_000, None, "marker"),
        ]  # fmt: skip
        for start, end, text in ranges:
            run("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, NULL)", (start, end, text, PROCESS + 1))
        run("CREATE TABLE META_DATA_CAPTURE (name, value)")
        run("INSERT INTO META_DATA_CAPTURE VALUES ('CUDA_GRAPH_TRACE_OPTIONS:MODE', ?)", (mode,))
        run("CREATE TABLE META_DATA_EXPORT (name, value)")
        run("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', ?)", (schema,))
        if mode == "Graph":
            run('CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, "end")')
            run("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2), (3, 4)")
        run("CREATE TABLE TARGET_INFO_GPU (id, name, totalMemory, smCount, computeMajor, computeMinor)")
        run("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100', 85000000000, 132, 9, 0)")
        run("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs, systemClockNs)")
        run("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, 500)")
        run("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, value)")
        run("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('HF_TOKEN', 'hf_abcdefghijklmnopqrstuvwxyz')")
        run("CREATE TABLE PROCESSES (globalPid, pid, name)")
        run("INSERT INTO PROCESSES VALUES (1, 1, 'secretive')")
    connection.close()


def imported(folder: Path, text: str):
    path = folder / "any"
    path.write_text(text)
    return import_trace([path])


def test_an_nsys_database(tmp_path):
    write_nsys(tmp_path / "db")
    trace = import_trace([tmp_path / "db"])
    first = trace.launches.rank == 0
    assert trace.launches.start_ns[first].tolist() == [0, 600, 800, 1600]
    assert trace.launches.step[first].tolist() == [-1, 0, 0, 1]
    assert trace.launches.host_launch_ns[first].tolist() == [-1, 110, 310, 1110]
    assert [step.phase for step in trace.steps] == [Phase.PREFILL, Phase.DECODE, Phase.UNKNOWN]
    assert trace.quality.launchless_count == 1
    assert trace.metadata.gpu_name == "NVIDIA H100"
    assert (trace.metadata.compute_capability, trace.metadata.sm_count) == ((9, 0), 132)
    assert trace.metadata.started_at == "2023-11-14T22:13:20.000000Z"
    mm = next(task for task in trace.tasks if task.op == "aten::mm")
    assert [operand.shape for operand in mm.operands] == [(8, 16), (16, 4)]
    assert (mm.signature.name, mm.signature.grid, mm.signature.cluster) == ("f<4>", (4, 1, 1), (2, 1, 1))
    assert (mm.signature.registers, mm.signature.shared_memory_bytes) == (32, 1024)
    everything = repr(trace)
    assert "hf_" not in everything
    assert "secretive" not in everything


def test_names_cut_short_are_told_apart_by_their_mangled_ones(tmp_path):
    write_nsys(tmp_path / "db")
    trace = import_trace([tmp_path / "db"])
    assert {task.signature.name for task in trace.tasks} == {"f<4>", "_Z1fother"}


def test_a_packed_database(tmp_path):
    write_nsys(tmp_path / "db")
    (tmp_path / "packed").write_bytes(gzip.compress((tmp_path / "db").read_bytes()))
    first, second = (import_trace([tmp_path / name]) for name in ("db", "packed"))
    assert first.tasks == second.tasks
    assert (first.launches.start_ns == second.launches.start_ns).all()


def test_columns_of_older_versions_may_be_missing(tmp_path):
    columns = tuple(c for c in KERNEL_COLUMNS if not c.startswith(("cluster", "graph", "mangled")))
    write_nsys(tmp_path / "db", columns=columns, schema="2.4.1")
    trace = import_trace([tmp_path / "db"])
    assert len(trace.launches.task) == 6
    assert trace.tasks[0].signature.cluster is None
    assert trace.quality.notes == []


def test_a_newer_version_is_named(tmp_path):
    write_nsys(tmp_path / "db", schema="4.0.0")
    assert "schema version 4.0.0" in import_trace([tmp_path / "db"]).quality.notes[0]


def test_graphs_recorded_as_a_whole_are_counted(tmp_path):
    write_nsys(tmp_path / "db", mode="Graph")
    trace = import_trace([tmp_path / "db"])
    assert trace.quality.opaque_graph_launch_count == 2
    assert "--cuda-graph-trace=node" in trace.quality.notes[0]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("DROP TABLE StringIds", "no StringIds table"),
        ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "no table of CUDA kernels"),
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "a kernel table without rows"),
    ],
)
def test_databases_without_kernels_are_refused(tmp_path, statement, sentence):
    write_nsys(tmp_path / "db")
    connection = sqlite3.connect(tmp_path / "db")
    with connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(TraceRejected, match=sentence):
        import_trace([tmp_path / "db"])


def test_a_gpu_trace_table(tmp_path):
    trace = imported(tmp_path, GPU_TRACE)
    assert trace.metadata.tool == "nsys-gpu-trace-csv"
    assert trace.launches.start_ns.tolist() == [0, 300, 1000]
    assert trace.launches.is_kernel.tolist() == [True, True, False]
    assert trace.launches.stream.tolist() == [7, 7, 8]
    kernel, copy = trace.tasks
    assert (kernel.signature.name, kernel.signature.grid, kernel.signature.block) == ("f<4>", (4, 1, 1), (128, 1, 1))
    assert (kernel.signature.registers, kernel.signature.shared_memory_bytes) == (32, 3000)
    assert (copy.signature.name, copy.moved_bytes) == ("memcpy Host-to-Device", 3_000_000)
    assert trace.quality.launchless_count == 0
    assert "no host calls" in trace.quality.notes[0]


def test_a_kernel_summary(tmp_path):
    trace = imported(tmp_path, KERNEL_SUM)
    assert trace.metadata.tool == "nsys-kernel-sum-csv"
    assert [task.signature.name for task in trace.tasks] == ["f<4>", "g"]
    assert trace.launches.duration_ns.tolist() == [201, 200, 200, 200, 200]
    assert trace.launches.start_ns.tolist() == [0, 201, 401, 601, 801]
    assert trace.steps == []


def test_a_summary_of_too_many_launches_is_refused(tmp_path):
    with pytest.raises(TraceRejected, match="stands for 1000000002 launches"):
        imported(tmp_path, KERNEL_SUM.replace("601,3,", '601,"1,000,000,000",'))


def test_an_ncu_details_page(tmp_path):
    trace = imported(tmp_path, NCU_DETAILS)
    assert trace.metadata.tool == "ncu-csv"
    assert trace.metadata.compute_capability == (9, 0)
    assert trace.launches.duration_ns.tolist() == [1_006_750, 500_000]
    signature = trace.tasks[0].signature
    assert (signature.name, signature.grid, signature.block) == ("f<4>", (32, 4, 1), (128, 1, 1))
    assert (signature.registers, signature.shared_memory_bytes) == (40, 16_380)
    assert trace.quality.dropped_event_count == 1  # h has no duration
    assert "node-17" not in repr(trace)


def test_an_ncu_raw_page_has_its_units_below_the_header(tmp_path):
    trace = imported(tmp_path, NCU_RAW)
    assert trace.launches.duration_ns.tolist() == [6_750, 7_250]
    assert len(trace.tasks) == 1
    assert trace.tasks[0].signature.registers == 40


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GPU_TRACE[: GPU_TRACE.index("1000,200")], "has no row that can be read"),
        (KERNEL_SUM[: KERNEL_SUM.index("60.0")], "has no row with a name"),
        (re.sub(r'"(Duration)"', '"Other"', NCU_DETAILS), "none of the 3 kernels"),
        ("a,b\n1,2\n", "no trace format known here"),
    ],
)
def test_tables_without_what_is_needed_are_refused(tmp_path, text, sentence):
    with pytest.raises(TraceRejected, match=sentence):
        imported(tmp_path, text)
