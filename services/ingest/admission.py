"""What a user asks for, checked before it becomes an event: each refusal is one sentence with the way out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from cascade_schemas.events import ArtifactRef, Refine, RunConfig, RunRequested, TraceUploaded
from cascade_schemas.gpu import load_gpu, parse_config
from cascade_schemas.ids import text_digest
from cascade_schemas.model import ModelSpec
from cascade_schemas.partition import TASKS_PER_BATCH
from cascade_schemas.routing import BadRouting
from cascade_schemas.task import Lengths

from services.kernels.routing import Routing

IMPORTER_VERSION = "1"
"""Part of a trace's identity: a trace imported by other rules is another trace."""

CONFIGS_LIMIT = 256


class BadRequest(ValueError):
    """A request that cannot be taken as it is."""


def upload(
    artifacts: Sequence[ArtifactRef],
    *,
    name: str,
    model: ModelSpec | None,
    source_gpu: str | None,
    prompts: Lengths = (),
    routing: str = "",
) -> TraceUploaded:
    """The same files with the same options are the same trace. Raises BadRequest, UnknownGpu."""
    if not artifacts:
        raise BadRequest("no file was given; name at least one profiler file")
    gpu = load_gpu(source_gpu).gpu if source_gpu else None
    try:
        routed = Routing.of(routing)
    except BadRouting as error:
        raise BadRequest(str(error)) from error
    options = [model.model_dump_json() if model else "", gpu or "", json.dumps(prompts), IMPORTER_VERSION]
    if routed.exponent:
        options.append(str(routed))
    trace_id = text_digest(*(f"{artifact.name}:{artifact.digest}" for artifact in artifacts), *options)
    return TraceUploaded(
        trace_id=trace_id, artifacts=tuple(artifacts), name=name, model=model, source_gpu=gpu, prompts=prompts,
        routing=str(routed) if routed.exponent else "",
    )  # fmt: skip


def run(
    run_id: str,
    trace_id: str,
    gpus: Iterable[str],
    *,
    simulator: str,
    simulators: Iterable[str],
    source_gpu: str | None,
    name: str = "",
    refine: Refine | None = None,
) -> RunRequested:
    """A run over configs as the user wrote them, the source GPU added. Raises BadRequest, UnknownGpu, InvalidConfig."""
    known = sorted(simulators)
    if simulator not in known:
        raise BadRequest(f"simulator {simulator!r} is not known; known: {', '.join(known)}{_missing(simulator)}")
    if refine is not None:
        _check_refining(refine, simulator, known)
    configs: dict[str, RunConfig] = {}
    for text in gpus:
        parsed = parse_config(text)
        config_id = parsed.gpu.config_id
        configs.setdefault(
            config_id,
            RunConfig(config_id=config_id, label=parsed.label, gpu=parsed.gpu, replicas=parsed.replicas),
        )
    if not configs:
        raise BadRequest("no GPU was given; name at least one, for example --gpu h100_sxm")
    if len(configs) > CONFIGS_LIMIT:
        raise BadRequest(f"{len(configs)} GPUs are more than one run takes ({CONFIGS_LIMIT}); ask in several runs")
    if source_gpu is not None:
        source = load_gpu(source_gpu)
        configs.setdefault(
            source.config_id,
            RunConfig(config_id=source.config_id, label=source.gpu, gpu=source, is_requested=False),
        )
    return RunRequested(
        run_id=run_id, trace_id=trace_id, configs=tuple(configs.values()), simulator=simulator, name=name, refine=refine
    )


def _check_refining(refine: Refine, simulator: str, known: Iterable[str]) -> None:
    slow = [name for name in known if name not in TASKS_PER_BATCH]
    if refine.simulator not in slow:
        there = f"it can be {' or '.join(slow)}" if slow else "no simulator of instructions is installed here"
        raise BadRequest(f"a run cannot be refined with {refine.simulator!r}; {there}{_missing(refine.simulator)}")
    if refine.simulator == simulator:
        raise BadRequest(f"a run of {simulator!r} cannot be refined with itself; start with 'analytic'")


def _missing(simulator: str) -> str:
    """What would make it known, where that is a setting."""
    if simulator != "accelsim":
        return ""
    return (
        "; accelsim needs CASCADE_ACCELSIM (your accel-sim.out) and CASCADE_ACCELSIM_CONFIGS (a folder with"
        " GPU_ID/gpgpusim.config and GPU_ID/trace.config)"
    )
