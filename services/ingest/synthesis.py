"""A trace without a recording: the engine steps and ops of a workload, written from the model's architecture.

What vLLM's scheduler would do with prompts that all arrive at once (decodes first, then the running prefill, then the
next prompt, up to the token budget), and per step the ops its model code calls. Everything made here is marked
`synthesized`: no engine ran, nothing was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from cascade_schemas.model import ModelSpec
from cascade_schemas.task import Value
from pydantic import Field

from services.ingest.derive import TracedOp
from services.ingest.imported import ImportedStep, Phase

_Count = Annotated[int, Field(ge=1, le=1_000_000)]
_Op = Callable[..., TracedOp]
_Linear = Callable[..., TracedOp]


class Workload(Value):
    """What to synthesize. `cascade_synthesis` is the version of this form, and how a file of it is told."""

    cascade_synthesis: Annotated[int, Field(ge=1, le=1)] = 1
    model: ModelSpec
    prompt_tokens: Annotated[tuple[_Count, ...], Field(min_length=1, max_length=1024)]
    output_tokens: Annotated[int, Field(ge=1, le=4096)] = 8
    batched_tokens_limit: Annotated[int, Field(ge=16, le=1_000_000)] = 8192
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1


def steps_of(workload: Workload) -> list[ImportedStep]:
    """The engine's steps until every request has its output. Steps have no time: `start_ns` is their number."""
    prefilled = [0] * len(workload.prompt_tokens)
    generated = [0] * len(workload.prompt_tokens)
    steps: list[ImportedStep] = []
    while any(count < workload.output_tokens for count in generated):
        steps.append(_step(workload, prefilled, generated, number=len(steps)))
    return steps


def _step(workload: Workload, prefilled: list[int], generated: list[int], number: int) -> ImportedStep:
    """One step; moves the requests' counts."""
    budget = workload.batched_tokens_limit
    decodes, chunks = [], []
    for request, prompt in enumerate(workload.prompt_tokens):
        if prefilled[request] == prompt and generated[request] < workload.output_tokens and budget > 0:
            decodes.append(request)
            budget -= 1
    for request, prompt in enumerate(workload.prompt_tokens):
        chunk = min(prompt - prefilled[request], budget)
        if chunk > 0:
            chunks.append((request, chunk))
            budget -= chunk
    q_lengths = [1] * len(decodes) + [chunk for _, chunk in chunks]
    # A decode attends to its prompt and all it has generated, the token it is given now included.
    kv_lengths = [workload.prompt_tokens[request] + generated[request] for request in decodes]
    kv_lengths += [prefilled[request] + chunk for request, chunk in chunks]
    for request in decodes:
        generated[request] += 1
    for request, chunk in chunks:
        prefilled[request] += chunk
        generated[request] += prefilled[request] == workload.prompt_tokens[request]
    phase = Phase.MIXED if decodes and chunks else Phase.PREFILL if chunks else Phase.DECODE
    return ImportedStep(
        phase=phase,
        start_ns=number,
        duration_ns=0,
        context_requests=len(chunks),
        context_tokens=sum(chunk for _, chunk in chunks),
        generation_requests=len(decodes),
        generation_tokens=len(decodes),
        q_lengths=tuple(q_lengths),
        kv_lengths=tuple(kv_lengths),
        request_indexes=(*decodes, *(request for request, _ in chunks)),
    )


def ops_of(workload: Workload, step: ImportedStep, sampled_count: int) -> Iterator[TracedOp]:
    """The framework ops of one rank's step, in order; `sampled_count` rows reach lm_head."""
    model, tp = workload.model, workload.tensor_parallel
    dtype, tokens, hidden = model.dtype, sum(step.q_lengths), model.hidden
    rows = (tokens, hidden)

    def op(name: str, *shapes: tuple[int, ...], dtypes: tuple[str, ...] = ()) -> TracedOp:
        return TracedOp(name, shapes, dtypes or (dtype,) * len(shapes))

    def linear(features_in: int, features_out: int, *, bias: bool = False, of_rows: int = tokens) -> TracedOp:
        product = (of_rows, features_in), (features_in, features_out)
        return op("aten::addmm", (features_out,), *product) if bias else op("aten::mm", *product)

    def norm(*, adds_residual: bool) -> Iterator[TracedOp]:
        if model.norm == "rms":
            name = "_C::fused_add_rms_norm" if adds_residual else "_C::rms_norm"
            yield op(name, rows, rows, (hidden,))
            return
        if adds_residual:
            yield op("aten::add", rows, rows)
        yield op("aten::layer_norm", rows, (hidden,), (hidden,))

    def reduced() -> Iterator[TracedOp]:
        if tp > 1:
            yield op("vllm::all_reduce", rows)

    heads, kv_heads = model.heads // tp, max(1, model.kv_heads // tp)
    q, kv = (tokens, heads, model.head_dim), (tokens, kv_heads, model.head_dim)
    yield op("aten::embedding", (model.vocab // tp, hidden), (tokens,), dtypes=(dtype, "int64"))
    if model.learned_positions:
        yield op("aten::embedding", (model.learned_positions, hidden), (tokens,), dtypes=(dtype, "int64"))
        yield op("aten::add", rows, rows)
    for layer in range(model.layers):
        yield from norm(adds_residual=layer > 0)
        yield linear(hidden, (heads + 2 * kv_heads) * model.head_dim, bias=model.qkv_bias)
        if not model.learned_positions:
            flat_q, flat_k = (tokens, heads * model.head_dim), (tokens, kv_heads * model.head_dim)
            cache = (model.max_positions, model.head_dim)
            dtypes = ("int64", dtype, dtype, "", dtype)
            yield op("_C::rotary_embedding", (tokens,), flat_q, flat_k, (), cache, dtypes=dtypes)
        yield op("vllm::unified_kv_cache_update", kv, kv)
        yield op("vllm::unified_attention_with_output", q, kv, kv, q)
        yield linear(heads * model.head_dim, hidden, bias=model.o_bias)
        yield from reduced()
        yield from norm(adds_residual=True)
        yield from _mlp(workload, op, linear, tokens)
        yield from reduced()
    yield from norm(adds_residual=True)
    if sampled_count < tokens:
        yield op("aten::index", rows)
    yield linear(hidden, model.vocab // tp, of_rows=sampled_count)
    logits = (sampled_count, model.vocab)
    if tp > 1:
        yield op("vllm::all_gather", (sampled_count, model.vocab // tp))
    yield op("aten::copy_", logits, logits, dtypes=("fp32", dtype))
    yield op("aten::argmax", logits, dtypes=("fp32",))


def _mlp(workload: Workload, op: _Op, linear: _Linear, tokens: int) -> Iterator[TracedOp]:
    model, tp = workload.model, workload.tensor_parallel
    if model.experts:
        yield linear(model.hidden, model.experts, bias=model.router_bias)
        yield op("vllm::moe_forward", (tokens, model.hidden), (tokens, model.experts))
        return
    inner = model.intermediate // tp
    yield linear(model.hidden, inner * (2 if model.gated else 1), bias=model.mlp_bias)
    if model.gated:
        yield op(f"_C::{model.activation}_and_mul", (tokens, inner), (tokens, 2 * inner))
    else:
        yield op(f"aten::{model.activation}", (tokens, inner))
    yield linear(inner, model.hidden, bias=model.mlp_bias)
