"""What callers get: JSON with the values it has no word for as text, and the shapes that OpenAPI describes."""

from __future__ import annotations

from typing import Any

import orjson
from cascade_schemas.gpu import GpuSpec
from pydantic import BaseModel
from starlette.responses import Response

from services.runtime.engine import SqlRows

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_SERIALIZE_NUMPY


def answer(value: Any, status: int = 200) -> Response:
    """Decimals, times and bytes as the command line's --json prints them."""
    return Response(orjson.dumps(value, default=str, option=_OPTIONS), status, media_type="application/json")


def rows_answer(found: SqlRows) -> Response:
    rows = [[row[name] for name in found.names] for row in found.rows]
    return answer({"names": found.names, "rows": rows, "is_truncated": found.is_truncated})


def shape(model: type[BaseModel], status: int = 200) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: what a route answers. The answers themselves are the engine's reports; a test holds them to this."""
    return {
        status: {"model": model},
        "4XX": {"model": Error, "description": "One sentence with the value and the way out"},
    }


# --- shapes ---------------------------------------------------------------------------------------------------


class Error(BaseModel):
    error: str
    rule: str | None = None  # of a refused statement
    position: int | None = None  # in its text


class Health(BaseModel):
    status: str  # ok or failed
    error: str | None = None  # why, with status 503
    version: str


class About(BaseModel):
    version: str
    simulators: list[str]
    models: list[str]
    samples: list[str]
    upload_bytes_limit: int


class Gpu(BaseModel):
    spec: GpuSpec
    config_id: str
    programming_class: str
    aliases: list[str]
    sources: dict[str, str]


class Gpus(BaseModel):
    gpus: list[Gpu]


class Models(BaseModel):
    models: list[dict[str, Any]]


class TraceSummary(BaseModel):
    trace_id: str
    name: str | None
    status: str
    provenance: str | None
    tool: str | None
    source_gpu: str | None
    engine: str | None
    engine_version: str | None
    model: str | None
    ranks: int | None
    world_size: int | None
    is_truncated: bool | None
    reason: str | None
    kernels: int | None
    started_at: str | None


class ListedTrace(TraceSummary):
    uploaded_at_ms: int | None


class Traces(BaseModel):
    traces: list[ListedTrace]


class TracedStep(BaseModel):
    step: int
    phase: str
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    kernels: int


class TraceReport(TraceSummary):
    signatures: int | None
    tasks: int | None
    launches: int | None
    launchless_kernels: int | None
    sass_tasks: int | None
    steps: list[TracedStep]
    quality: dict[str, Any] | None


class TraceAsked(BaseModel):
    trace_id: str


class Interval(BaseModel):
    p10: float
    p90: float


class Estimate(Interval):
    value: float


class Best(Estimate):
    gpu: str
    metric: str


class ListedRun(BaseModel):
    run_id: str
    trace_id: str
    name: str | None
    simulator: str
    status: str
    failed_count: int | None
    state_hash: str | None
    reason: str | None
    trace_name: str | None
    provenance: str | None
    source_gpu: str | None
    model_name: str | None
    requested_at_ms: int | None
    config_count: int
    best: Best | None


class Runs(BaseModel):
    runs: list[ListedRun]
    total: int
    statuses: dict[str, int]


class RunAsked(BaseModel):
    run_id: str


class PredictedStep(BaseModel):
    step: int
    phase: str
    context_requests: int | None
    context_tokens: int | None
    generation_requests: int | None
    generation_tokens: int | None
    duration_ms: Estimate
    gpu_ms: float
    measured_gpu_ms: float | None
    coverage: float | None
    launches: int


class Accuracy(BaseModel):
    kernels: int
    median_ape: float | None
    mape: float | None
    weighted_error: float | None
    total_error: float | None
    roofline_mape: float | None
    ttft_error: float | None = None  # of the forward prediction, against the real job without a profiler
    tpot_error: float | None = None
    measured_ttft_ms: float | None = None
    measured_tpot_ms: float | None = None


class ConfigReport(BaseModel):
    gpu: str
    gpu_name: str
    config_id: str
    provenance: str | None
    kernel_time_ms: float | None
    kernel_time_interval_ms: Interval | None
    prefill_step_ms: Estimate | None
    decode_step_ms: Estimate | None
    steps: list[PredictedStep]
    ttft_ms: Estimate | None
    tpot_ms: Estimate | None
    ttft_request: int | None
    ttft_prompt_tokens: int | None
    coverage: float | None
    error: Accuracy | None
    assumptions: list[str]
    infeasible: str | None
    reason: str


class RefinedConfig(BaseModel):
    gpu: str
    config_id: str
    sentence: str | None
    chosen: int
    done: int
    failed: int
    taken: int
    left: list[dict[str, Any]]
    kernels: list[dict[str, Any]]


class Refinement(BaseModel):
    simulator: str
    share: float
    limit: int
    configs: list[RefinedConfig]


class RunReport(BaseModel):
    run_id: str
    status: str
    simulator: str
    state_hash: str | None
    reason: str | None
    failed_kernels: int | None
    trace: dict[str, Any]
    configs: list[ConfigReport]
    source: ConfigReport | None
    refinement: Refinement | None


class ConfigProgress(BaseModel):
    label: str
    config_id: str
    is_requested: bool
    simulated: int
    failed: int
    total: int
    refining: int
    refined: int


class Progress(BaseModel):
    run_id: str
    status: str
    configs: list[ConfigProgress]


class Cancelled(BaseModel):
    run_id: str
    status: str


class Verification(BaseModel):
    run_id: str
    equal: bool
    logged: str
    stored: str
    replayed: str


class Kernels(BaseModel):
    run_id: str
    total: int
    kernels: list[dict[str, Any]]


class LogLines(BaseModel):
    first: int
    total: int
    lines: list[str]


class HistogramBin(BaseModel):
    low_ns: float
    high_ns: float
    count: int


class Histogram(BaseModel):
    launch_count: int
    measured_count: int
    median_ns: float | None
    bins: list[HistogramBin]


class KnownError(BaseModel):
    config_id: str
    nearest: str | None
    kin: str | None
    mean_ape: float | None
    row_count: int
    nominal_coverage: float
    coverage: float | None
    coverage_row_count: int


class KnownErrors(BaseModel):
    configs: list[KnownError]


class State(BaseModel):
    position: int
    record_count: int
    state_hash: str


class LogMatch(BaseModel):
    line: int
    text: str


class LogMatches(BaseModel):
    matches: list[LogMatch]
    total: int
    next: int | None


class Gaps(BaseModel):
    graph_ns: int
    eager_ns: int


class LaidOutTask(BaseModel):
    index: int
    task_id: str
    signature: str
    name: str
    op: str
    shape: str
    family: str
    launch_count: int
    measured_ns: int | None


class LaidOutStep(BaseModel):
    rank: int
    step: int
    phase: str | None
    first: int
    last: int
    context_tokens: int | None
    generation_tokens: int | None
    requests: int | None


class Layout(BaseModel):
    trace_id: str
    launches: int
    is_complete: bool
    gaps: Gaps
    tasks: list[LaidOutTask]
    steps: list[LaidOutStep]
    ranks: list[int]
    streams: list[int]


class ReceiptInput(BaseModel):
    name: str
    value: float | str
    unit: str
    source: str


class ReceiptLine(BaseModel):
    kind: str
    label: str
    formula: str
    inputs: list[ReceiptInput]
    value_ns: float | None
    factor: float | None
    source: str
    is_largest: bool


class Receipt(BaseModel):
    run_id: str
    config_id: str
    task_id: str
    gpu: str
    gpu_name: str
    name: str
    family: str
    bound: str
    tier: str
    reason: str
    provenance: str | None
    launch_count: int | None
    value_ns: int | None
    p10_ns: int | None
    p90_ns: int | None
    forward_ns: int | None
    roofline_ns: int | None
    measured_ns: int | None
    error_ppm: int | None
    simulator: str
    simulator_version: str | None
    calibration_digest: str | None
    is_reproduced: bool
    lines: list[ReceiptLine]


class Simulation(BaseModel):
    run_id: str
    simulator: str
    simulator_version: str | None
    stands: bool
    duration_ns: int | None
    p10_ns: int | None
    p90_ns: int | None
    bound: str
    tier: str
    reason: str
    tensor_ns: int | None
    dram_ns: int | None
    l2_ns: int | None
    issue_ns: int | None
    launch_ns: int | None
    sm_cycles: int | None
    statistics: dict[str, Any] | None


class Simulations(BaseModel):
    run_id: str
    config_id: str
    task_id: str
    gpu: str
    name: str
    launch_count: int | None
    measured_ns: int | None
    value_ns: int | None
    p10_ns: int | None
    p90_ns: int | None
    roofline_ns: int | None
    refinement: str | None
    why: str
    simulations: list[Simulation]


class Difference(BaseModel):
    field: str
    values: list[str | None]
    is_fatal: bool


class ComparedVersion(BaseModel):
    v: str
    run_id: str
    config_id: str
    label: str
    gpu: str
    gpu_name: str
    trace_id: str
    trace_name: str | None
    model_name: str | None
    simulator: str
    ttft_ns: int | None
    ttft_p10_ns: int | None
    ttft_p90_ns: int | None
    tpot_ns: int | None
    tpot_p10_ns: int | None
    tpot_p90_ns: int | None
    kernel_time_ns: int | None
    coverage_ppm: int | None
    provenance: str | None
    infeasible: str | None
    status: str


class Bar(BaseModel):
    label: str
    delta_ns: int


class Comparison(BaseModel):
    v: str
    place: int
    start_ns: int | None
    end_ns: int | None
    delta_ns: int | None
    ratio: Estimate | None
    waterfall: list[Bar]
    verdict: str
    sentence: str


class ComparedCell(BaseModel):
    count: int
    total_ns: int | None
    duration_ns: float | None
    bound: str
    delta_ns: int | None
    ratio: Estimate | None


class ComparedKernel(BaseModel):
    key: str
    name: str | None
    op: str | None
    shape: str
    family: str
    versions: list[ComparedCell | None]


class Comparisons(BaseModel):
    base: int
    matched_by: str
    is_comparable: bool
    differs: list[Difference]
    metric: str
    versions: list[ComparedVersion]
    comparisons: list[Comparison]
    kernels: list[ComparedKernel]


class Events(BaseModel):
    events: list[dict[str, Any]]


class Rows(BaseModel):
    names: list[str]
    rows: list[list[Any]]
    is_truncated: bool


class WhatIf(BaseModel):
    gpu: str
    config_id: str
    infeasible: str | None
    kernel_time_ms: float | None = None
    kernel_time_interval_ms: Interval | None = None
    prefill_step_ms: Estimate | None
    decode_step_ms: Estimate | None
    steps: list[PredictedStep]
    ttft_ms: Estimate | None = None
    tpot_ms: Estimate | None = None
    coverage: float | None = None
    assumptions: list[str] = []
    bound_by: dict[str, float]


class SweepAnswer(BaseModel):
    value_ms: float
    p10_ms: float
    p90_ms: float
    kernel_time_ms: float
    bound_by: dict[str, float]


class SweepPoint(SweepAnswer):
    factor: float
    value: float


class NextBottleneck(BaseModel):
    value: float
    family: str
    bound: str
    was: str


class SweptKnob(BaseModel):
    name: str
    words: str
    unit: str
    stock: float
    points: list[SweepPoint]
    elasticity: float | None
    next: NextBottleneck | None
    sentence: str


class Sweep(BaseModel):
    gpu: str
    config_id: str
    metric: str
    base: SweepAnswer
    knobs: list[SweptKnob]


class CurvePoint(BaseModel):
    value_ms: float
    p10_ms: float
    p90_ms: float
    is_extrapolated: bool
    infeasible: str | None


class Curve(BaseModel):
    gpu: str
    gpu_name: str
    config_id: str
    points: list[CurvePoint]


class TracedRange(BaseModel):
    low: float
    high: float


class Curves(BaseModel):
    run_id: str
    axis: str
    x: list[float]
    traced: TracedRange
    step: int
    requests: int
    context_tokens: int
    configs: list[Curve]


class SqlColumn(BaseModel):
    name: str
    type: str
    about: str | None


class SqlView(BaseModel):
    name: str
    about: str | None
    columns: list[SqlColumn]


class SqlSchema(BaseModel):
    tables: list[SqlView]


class ErrorTable(BaseModel):
    text: str  # before it
    columns: list[str]
    rows: list[list[str | float | None]]
    missed: list[list[int]]  # [row, column] of what misses its aim


class ErrorSection(BaseModel):
    title: str
    text: str  # after its tables
    tables: list[ErrorTable]


class ErrorMap(BaseModel):
    about: str
    sections: list[ErrorSection]
