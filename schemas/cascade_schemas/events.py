"""Every fact that Cascade's services tell each other: topic, key and meaning.

An event is said once, by its one owner, and never changed. Constructing one refuses unknown fields; decoding ignores
them (codec.py), so that an older reader survives a newer writer. Events grow by fields with defaults.
"""

from __future__ import annotations

from operator import not_
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import ConfigDict, Field, field_validator

from cascade_schemas import batches
from cascade_schemas.gpu import GpuSpec
from cascade_schemas.model import ModelSpec
from cascade_schemas.task import KernelSignature, KernelTask, Lengths, Value

Provenance = Literal["measured", "recorded-on-cpu", "synthesized"]

TOPICS = ("uploads", "traces", "catalog", "runs", "work", "results", "predictions", "dead_letters")
"""In replay order: records of one millisecond are read in this order of topics."""


class Event(Value):
    """A fact. `type` tells which; `topic` where it is said; `key` which records keep their order among each other."""

    topic: ClassVar[str]
    key_field: ClassVar[str]
    type: str

    @property
    def key(self) -> str:
        return str(getattr(self, self.key_field))


class ColumnarEvent(Event):
    """An event whose rows travel as one Arrow record batch of `row_schema`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    row_schema: ClassVar[pa.Schema]
    rows: Annotated[Any, Field(exclude=True, repr=False)]  # pa.RecordBatch; pyarrow ships no types

    @field_validator("rows")
    @classmethod
    def _conform(cls, rows: Any) -> Any:
        if not isinstance(rows, pa.RecordBatch):
            raise ValueError(f"rows must be an Arrow record batch, not {type(rows).__name__}")  # noqa: TRY004 - pydantic
        return batches.conform(rows, cls.row_schema)


# --- uploads --------------------------------------------------------------------------------------------------


class ArtifactRef(Value):
    """A stored file: content-addressed, so the digest is its identity."""

    digest: str  # SHA-256, 64 hex digits
    name: str  # the file's own name, without folders
    size_bytes: int


class TraceUploaded(Event):
    """Someone handed over a profiler's files and asked for their import."""

    topic: ClassVar[str] = "uploads"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["TraceUploaded"] = "TraceUploaded"
    trace_id: str
    artifacts: tuple[ArtifactRef, ...]  # ranks of one job, or a trace with its graph-capture companion
    name: str
    model: ModelSpec | None = None
    source_gpu: str | None = None  # a GPU id; None: as the file says
    prompts: Lengths = ()  # prompt tokens per request, where the uploader knows them
    routing: Annotated[str, Field(exclude_if=not_)] = ""
    """How tokens are spread over experts: "" evenly, else zipf:EXPONENT."""


# --- traces: what the profiler SDK streams while the job runs ---------------------------------------------------


class CollectorFound(Value):
    """One way to record kernels, and what came of trying it in the job's process."""

    name: str  # torch, cupti, nsys, nvbit, steps
    state: Literal["used", "usable", "absent", "failed"]
    said: str = ""  # one sentence: what was found, or the way out
    is_validated: bool = False  # whether this collector has ever run on the hardware it is for


class RecordingStarted(Event):
    """The profiler of one rank began, and this is the job it records: a whitelist, never an environment or a path."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["RecordingStarted"] = "RecordingStarted"
    trace_id: str
    rank: int
    rank_count: int  # ranks that will say TraceEnded
    name: str
    provenance: Provenance
    tool: str
    origin_unix_ns: int  # what all times count from, the same for all ranks
    began_ns: int = 0  # when this rank's recording began, counted from there
    clock_error_ns: int = 0  # how far this rank's times may be from unix time
    world_size: int = 1
    gpu_name: str = ""  # as the driver says it
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    dram_bytes: int | None = None
    source_gpu: str | None = None  # a GPU id, where the user said it
    routing: Annotated[str, Field(exclude_if=not_)] = ""  # as of TraceUploaded
    model: ModelSpec | None = None
    engine: str = ""
    engine_version: str = ""
    collectors: tuple[CollectorFound, ...] = ()
    capture_count: int = 0  # GraphCaptured of this rank that follow


class GraphCaptured(ColumnarEvent):
    """The engine captured its graphs for one batch size: the launches that a replay repeats, in order."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    row_schema: ClassVar[pa.Schema] = batches.CAPTURED_LAUNCHES
    type: Literal["GraphCaptured"] = "GraphCaptured"
    trace_id: str
    rank: int
    capture: int  # counts from 0
    text: str  # `capture_32_FULL`
    batch_size: int  # tokens
    graph_count: int  # one for the whole step, or one per piece of it


class LaunchesRecorded(ColumnarEvent):
    """A profiler delivered finished kernel launches of one rank."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    row_schema: ClassVar[pa.Schema] = batches.RECORDED_LAUNCHES
    type: Literal["LaunchesRecorded"] = "LaunchesRecorded"
    trace_id: str
    rank: int
    first_seq: int


class OpsRecorded(ColumnarEvent):
    """A profiler delivered finished framework ops of one rank that runs without a GPU."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    row_schema: ClassVar[pa.Schema] = batches.RECORDED_OPS
    type: Literal["OpsRecorded"] = "OpsRecorded"
    trace_id: str
    rank: int
    first_seq: int


class StepRecorded(Event):
    """The engine ran one step on one rank, and all of its launches or ops that will ever be sent have been sent."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["StepRecorded"] = "StepRecorded"
    trace_id: str
    rank: int
    step: int
    start_ns: int
    duration_ns: int  # on the host
    request_ids: tuple[int, ...]  # numbered in order of first appearance; never the engine's own ids
    q_lengths: Lengths
    kv_lengths: Lengths
    prompt_tokens: Lengths = ()  # of each request; 0: it began before the trace
    launch_count: int | None = None  # rows of LaunchesRecorded; None: no profiler ran during this step
    op_count: int | None = None  # rows of OpsRecorded


class HostProfileRecorded(Event):
    """A fresh, unprofiled process measured host and step times of the same workload."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["HostProfileRecorded"] = "HostProfileRecorded"
    trace_id: str
    step_host_ns: tuple[int, ...]  # until the host has issued the step's work: in execute_model
    step_gpu_ns: tuple[int, ...]  # between two events on the GPU; 0: not measured
    ttft_ns: tuple[int, ...] = ()  # per request; 0: not measured
    tpot_ns: tuple[int, ...] = ()
    step_gap_ns: tuple[int, ...] = ()  # from the end of the step before to this one's start
    step_context_tokens: tuple[int, ...] = ()  # what the step worked on: equal steps are compared
    step_generation_tokens: tuple[int, ...] = ()
    step_gpu_absent: str = ""  # why step_gpu_ns is 0


class TraceHeartbeat(Event):
    """The profiled job is alive and has sent this much."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["TraceHeartbeat"] = "TraceHeartbeat"
    trace_id: str
    rank: int
    sent_launch_count: int
    dropped_launch_count: int


class TraceEnded(Event):
    """The profiler of one rank stopped and has sent everything it will ever send."""

    topic: ClassVar[str] = "traces"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["TraceEnded"] = "TraceEnded"
    trace_id: str
    rank: int
    launch_count: int
    step_count: int
    dropped_launch_count: int
    op_count: int = 0
    notes: tuple[str, ...] = ()  # what the profiler could not do, one sentence each


# --- catalog: traces as ingest understood them ------------------------------------------------------------------


class TraceStarted(Event):
    """Ingest began to read a trace, and this is what it is a trace of."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["TraceStarted"] = "TraceStarted"
    trace_id: str
    name: str
    provenance: Provenance
    tool: str
    source_gpu: str | None  # a GPU id; None: unknown, or recorded without a GPU
    gpu_name: str = ""  # as the profiler says it
    model: ModelSpec | None = None
    engine: str = ""
    engine_version: str = ""
    rank_count: int = 1
    world_size: int = 1
    started_at: str = ""  # RFC 3339, UTC
    prompts: Lengths = ()


class SignatureTraced(Event):
    """A launch configuration was seen for the first time in a trace."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["SignatureTraced"] = "SignatureTraced"
    trace_id: str
    signature_id: str
    signature: KernelSignature


class KernelTaskTraced(Event):
    """Distinct work was seen for the first time in a trace; from now on it can be simulated."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["KernelTaskTraced"] = "KernelTaskTraced"
    trace_id: str
    task_id: str
    signature_id: str
    task: KernelTask


class LaunchesTraced(ColumnarEvent):
    """Launches of one rank, in order of start; (trace, rank, seq) identifies each."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    row_schema: ClassVar[pa.Schema] = batches.LAUNCHES
    type: Literal["LaunchesTraced"] = "LaunchesTraced"
    trace_id: str
    rank: int
    first_seq: int


class StepTraced(Event):
    """The engine ran one step: one forward pass over one batch."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["StepTraced"] = "StepTraced"
    trace_id: str
    rank: int
    step: int
    phase: Literal["prefill", "decode", "mixed", "empty", "unknown"]
    start_ns: int
    duration_ns: int  # of the annotation on the host, under the profiler
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    kernel_count: int
    q_lengths: Lengths = ()
    kv_lengths: Lengths = ()
    request_indexes: Lengths = ()
    is_profiled: bool = True  # False: no profiler ran, so the step has no launches


class HostProfileMeasured(Event):
    """Host and step times of the same workload without a profiler: the only source of host time in predictions."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["HostProfileMeasured"] = "HostProfileMeasured"
    trace_id: str
    step_host_ns: tuple[int, ...]
    step_gpu_ns: tuple[int, ...]
    ttft_ns: tuple[int, ...] = ()
    tpot_ns: tuple[int, ...] = ()
    step_gap_ns: tuple[int, ...] = ()  # from the end of the step before to this one's start
    step_context_tokens: tuple[int, ...] = ()
    step_generation_tokens: tuple[int, ...] = ()
    step_gpu_absent: str = ""  # why step_gpu_ns is 0


class ArtifactStored(Event):
    """A large body was stored and can be fetched by its digest."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["ArtifactStored"] = "ArtifactStored"
    trace_id: str
    artifact: ArtifactRef
    kind: Literal["profile", "sass", "log", "cache"]


class TraceCompleted(Event):
    """The trace is whole, or all that will ever be known of it is."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["TraceCompleted"] = "TraceCompleted"
    trace_id: str
    is_truncated: bool
    launch_count: int  # copies included
    kernel_count: int
    signature_count: int
    task_count: int
    step_count: int
    launchless_count: int
    quality: dict[str, Any]  # the importer's QualityReport
    prompts: Lengths = ()  # prompt tokens per request, where only the whole trace tells


class TraceRejected(Event):
    """The files could not become a trace."""

    topic: ClassVar[str] = "catalog"
    key_field: ClassVar[str] = "trace_id"
    type: Literal["TraceRejected"] = "TraceRejected"
    trace_id: str
    name: str
    reason: str  # one sentence: the value and the way out


# --- runs -----------------------------------------------------------------------------------------------------


class RunConfig(Value):
    """One column of a run: a resolved GPU, and how many workers may share it."""

    config_id: str
    label: str  # as the user wrote it: h100_sxm:dram_gbps=6000
    gpu: GpuSpec
    replicas: int = 1
    is_requested: bool = True  # False: the source GPU, added because the correction needs it


class Refine(Value):
    """What is simulated again once a run's first answer is whole: the kernels that make most of its uncertainty."""

    simulator: str  # a slow one, that reads recorded instructions
    share_ppm: int = Field(default=900_000, ge=1, le=1_000_000)  # of the steps' variance that this simulator can reach
    task_limit: int = Field(default=16, ge=1, le=1024)  # per config


class RunRequested(Event):
    """Someone asked how a trace would run on these GPUs."""

    topic: ClassVar[str] = "runs"
    key_field: ClassVar[str] = "run_id"
    type: Literal["RunRequested"] = "RunRequested"
    run_id: str
    trace_id: str
    configs: tuple[RunConfig, ...]
    simulator: str
    name: str = ""
    refine: Refine | None = None  # None: the first answer is the last


class RunCancelled(Event):
    """Someone withdrew a run; what is not simulated yet never will be."""

    topic: ClassVar[str] = "runs"
    key_field: ClassVar[str] = "run_id"
    type: Literal["RunCancelled"] = "RunCancelled"
    run_id: str


# --- work -----------------------------------------------------------------------------------------------------


class KernelSimulationRequested(ColumnarEvent):
    """These tasks are to be simulated on this GPU; nothing else needs to be known to do it."""

    topic: ClassVar[str] = "work"
    key_field: ClassVar[str] = "config_id"
    row_schema: ClassVar[pa.Schema] = batches.TASKS
    type: Literal["KernelSimulationRequested"] = "KernelSimulationRequested"
    run_id: str
    config_id: str
    gpu: GpuSpec
    simulator: str
    shard: int = 0  # partition of the work topic, by cascade_schemas.partition


# --- results ----------------------------------------------------------------------------------------------------


class SimulatorStarted(Event):
    """A worker began to simulate a config of a run."""

    topic: ClassVar[str] = "results"
    key_field: ClassVar[str] = "run_id"
    type: Literal["SimulatorStarted"] = "SimulatorStarted"
    run_id: str
    config_id: str
    simulator: str
    simulator_version: str
    calibration_digest: str
    worker: str


class SimulatorLogged(Event):
    """A simulator said something while it worked."""

    topic: ClassVar[str] = "results"
    key_field: ClassVar[str] = "run_id"
    type: Literal["SimulatorLogged"] = "SimulatorLogged"
    run_id: str
    config_id: str
    first_line: int
    lines: tuple[str, ...]  # at most 64 KiB together
    left_out_line_count: int = 0


class KernelsSimulated(ColumnarEvent):
    """Forward predictions of tasks on one config; (run, config, task) identifies each row."""

    topic: ClassVar[str] = "results"
    key_field: ClassVar[str] = "run_id"
    row_schema: ClassVar[pa.Schema] = batches.RESULTS
    type: Literal["KernelsSimulated"] = "KernelsSimulated"
    run_id: str
    config_id: str
    simulator: str


class SimulatorFinished(Event):
    """A worker is done with what it had been given of a config."""

    topic: ClassVar[str] = "results"
    key_field: ClassVar[str] = "run_id"
    type: Literal["SimulatorFinished"] = "SimulatorFinished"
    run_id: str
    config_id: str
    simulated_count: int
    failed_count: int
    elapsed_ms: int


# --- predictions ------------------------------------------------------------------------------------------------


class KernelsPredicted(ColumnarEvent):
    """Final kernel times of a config: forward predictions with the source correction applied."""

    topic: ClassVar[str] = "predictions"
    key_field: ClassVar[str] = "run_id"
    row_schema: ClassVar[pa.Schema] = batches.KERNEL_PREDICTIONS
    type: Literal["KernelsPredicted"] = "KernelsPredicted"
    run_id: str
    config_id: str
    refined: bool = False  # True: said again, after kernels of the config were simulated again


class StepsPredicted(ColumnarEvent):
    """Times of all engine steps of a trace on one config."""

    topic: ClassVar[str] = "predictions"
    key_field: ClassVar[str] = "run_id"
    row_schema: ClassVar[pa.Schema] = batches.STEP_PREDICTIONS
    type: Literal["StepsPredicted"] = "StepsPredicted"
    run_id: str
    config_id: str
    assumptions: tuple[str, ...] = ()
    refined: bool = False  # True: said again, after kernels of the config were simulated again


class Estimate(Value):
    """A predicted time with its interval; all three in ns."""

    value_ns: int
    p10_ns: int
    p90_ns: int


class RequestPredicted(Event):
    """TTFT and TPOT of one request of the trace on one config; null with its reason where the trace lacks them."""

    topic: ClassVar[str] = "predictions"
    key_field: ClassVar[str] = "run_id"
    type: Literal["RequestPredicted"] = "RequestPredicted"
    run_id: str
    config_id: str
    request: int  # index in the trace; -1: the trace does not tell requests apart
    prompt_tokens: int | None
    ttft: Estimate | None
    ttft_reason: str = ""
    tpot: Estimate | None
    tpot_reason: str = ""
    infeasible: str = ""  # why no number can be given on this config
    refined: bool = False  # True: said again, after kernels of the config were simulated again


class AccuracyMeasured(Event):
    """How far the forward prediction of a config is from measured times; null ratios where nothing was measured."""

    topic: ClassVar[str] = "predictions"
    key_field: ClassVar[str] = "run_id"
    type: Literal["AccuracyMeasured"] = "AccuracyMeasured"
    run_id: str
    config_id: str
    kernel_count: int  # tasks compared
    median_ape_ppm: int | None = None
    mape_ppm: int | None = None
    weighted_error_ppm: int | None = None  # Σ|simulated − measured| ÷ Σ measured, over launches
    total_error_ppm: int | None = None  # signed, of the sum
    roofline_mape_ppm: int | None = None
    coverage_ppm: int
    reason: str = ""  # why the ratios are null
    measured_ttft_ns: int | None = None  # of the real, unprofiled job; the source GPU only
    measured_tpot_ns: int | None = None
    ttft_error_ppm: int | None = None  # signed, of the forward prediction
    tpot_error_ppm: int | None = None
    refined: bool = False  # True: said again, after kernels of the config were simulated again


class EscalatedTask(Value):
    """A kernel that is worth simulating again."""

    task_id: str
    share_ppm: int  # of the variance of all steps


class LeftTasks(Value):
    """Kernels that would be worth it and that the refining simulator cannot do, for one reason."""

    reason: str  # no_sass_trace, other_class, …
    task_count: int
    share_ppm: int  # of the variance of all steps, together


class RefinementChosen(Event):
    """A config's first answer is whole, and these of its kernels are simulated again by the refining simulator."""

    topic: ClassVar[str] = "predictions"
    key_field: ClassVar[str] = "run_id"
    type: Literal["RefinementChosen"] = "RefinementChosen"
    run_id: str
    config_id: str
    simulator: str
    tasks: tuple[EscalatedTask, ...]  # largest share first; none: the first answer stands
    left: tuple[LeftTasks, ...] = ()
    sentence: str  # what was chosen, and what was not and why


class RunCompleted(Event):
    """Every task of the run has a result or a failure on every config, and all predictions are made."""

    topic: ClassVar[str] = "predictions"
    key_field: ClassVar[str] = "run_id"
    type: Literal["RunCompleted"] = "RunCompleted"
    run_id: str
    outcome: Literal["completed", "completed_with_failures"]
    failed_count: int
    state_hash: str


class RunFailed(Event):
    """The run has no answer: its trace was rejected, or a config has no result at all."""

    topic: ClassVar[str] = "predictions"
    key_field: ClassVar[str] = "run_id"
    type: Literal["RunFailed"] = "RunFailed"
    run_id: str
    reason: str


class RecordDeadLettered(Event):
    """A service could not use a record, put it aside and went on."""

    topic: ClassVar[str] = "dead_letters"
    key_field: ClassVar[str] = "source_topic"
    type: Literal["RecordDeadLettered"] = "RecordDeadLettered"
    service: str
    source_topic: str
    source_partition: int
    source_offset: int
    reason: str
    record_base64: str = ""  # at most 64 KiB of the record


AnyEvent = (
    TraceUploaded
    | RecordingStarted
    | GraphCaptured
    | LaunchesRecorded
    | OpsRecorded
    | StepRecorded
    | HostProfileRecorded
    | TraceHeartbeat
    | TraceEnded
    | TraceStarted
    | SignatureTraced
    | KernelTaskTraced
    | LaunchesTraced
    | StepTraced
    | HostProfileMeasured
    | ArtifactStored
    | TraceCompleted
    | TraceRejected
    | RunRequested
    | RunCancelled
    | KernelSimulationRequested
    | SimulatorStarted
    | SimulatorLogged
    | KernelsSimulated
    | SimulatorFinished
    | KernelsPredicted
    | StepsPredicted
    | RequestPredicted
    | AccuracyMeasured
    | RefinementChosen
    | RunCompleted
    | RunFailed
    | RecordDeadLettered
)

EVENT_TYPES: dict[str, type[Event]] = {t.__name__: t for t in AnyEvent.__args__}
