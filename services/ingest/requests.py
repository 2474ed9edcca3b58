"""Who did what in each step: the engine's schedule, replayed from the prompts.

An engine's annotation counts requests and tokens per step and names nobody. With the prompts' lengths the rest
follows from vLLM's scheduling rules (V1 scheduler): running requests first, in the order they were admitted, one new
token each once their prompt is done and the rest of their prompt otherwise; then waiting ones, first come first
served, as far as the token budget of the step goes. A request is never interrupted here: a trace with preemptions or
with prefix-cache hits contradicts the prompts, and steps from the contradiction on keep only what they said themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cascade_schemas.task import Lengths

from services.ingest.imported import ImportedStep


class BaselineError(ValueError):
    """A baseline file that does not say what requests it measured."""


def reconstruct(steps: Sequence[ImportedStep], prompts: Lengths, outputs: Lengths = ()) -> list[ImportedStep]:
    """The steps with q_lengths, kv_lengths and request_indexes filled in, per rank; lengths already known stay.

    `outputs`, where known, is how many tokens each request generated; without it, when a step decodes fewer requests
    than are running, those that have generated most are taken to have finished.
    """
    filled = list(steps)
    for rank in sorted({step.rank for step in steps}):
        schedule = _Schedule(prompts, outputs)
        for index, step in enumerate(steps):
            if step.rank == rank:
                filled[index] = _filled(step, schedule) if prompts else _from_annotation(step)
    return filled


def first_steps(steps: Sequence[ImportedStep], request_count: int, rank: int = 0) -> tuple[int | None, ...]:
    """Per request, the index of the first step that worked on it; None where the trace does not show it."""
    first: list[int | None] = [None] * request_count
    for index, step in enumerate(steps):
        for request in step.request_indexes if step.rank == rank else ():
            if first[request] is None:
                first[request] = index
    return tuple(first)


def prefill_ends(steps: Sequence[ImportedStep], prompts: Lengths, rank: int = 0) -> tuple[int | None, ...]:
    """Per request, the index of the step that ended its prefill, that is, emitted its first token."""
    ends: list[int | None] = [None] * len(prompts)
    for index, step in enumerate(steps):
        if step.rank != rank:
            continue
        for request, kv in zip(step.request_indexes, step.kv_lengths, strict=True):
            if ends[request] is None and kv >= prompts[request]:
                ends[request] = index
    return tuple(ends)


def prompts_from_baseline(path: str | Path) -> tuple[Lengths, Lengths]:
    """(prompt tokens, output tokens) per request of a baseline file as record_vllm_cpu.py writes it."""
    try:
        requests = json.loads(Path(path).read_text(encoding="utf-8"))["requests"]
        return (
            tuple(int(request["prompt_tokens"]) for request in requests),
            tuple(int(request["output_tokens"]) for request in requests),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise BaselineError(
            f"{path}: expected an object with `requests`, each with prompt_tokens and output_tokens ({error!r})"
        ) from error


@dataclass(slots=True)
class _Running:
    request: int
    computed: int = 0  # tokens in the KV cache
    generated: int = 0


class _Schedule:
    """The scheduler's state between steps."""

    def __init__(self, prompts: Lengths, outputs: Lengths) -> None:
        self.prompts, self.outputs = prompts, outputs
        self.running: list[_Running] = []
        self.waiting = list(range(len(prompts)))
        self.is_lost = False  # the trace contradicted the prompts

    def take(self, step: ImportedStep) -> list[tuple[int, int, int]] | None:
        """(request, q, kv) of each request of the step, in the engine's order; None once the trace contradicts us."""
        decoding = self._decoding(step.generation_requests)
        if self.is_lost or decoding is None:
            self.is_lost = True
            return None
        tokens_each, odd = divmod(step.generation_tokens, max(step.generation_requests, 1))
        chunks = self._chunks(step.context_requests, step.context_tokens)
        if odd or chunks is None:  # unequal speculation per request, or a prompt that had less to do than its length
            self.is_lost = True
            return None
        done: list[tuple[int, int, int]] = []
        for entry in self.running:
            q = tokens_each if entry.request in decoding else chunks.get(entry.request, 0)
            if q == 0:
                continue
            entry.computed += q
            if entry.computed >= self.prompts[entry.request]:
                entry.generated += 1
            done.append((entry.request, q, entry.computed))
        if self.outputs:
            self.running = [entry for entry in self.running if entry.generated < self.outputs[entry.request]]
        return done

    def _decoding(self, count: int) -> set[int] | None:
        candidates = [entry for entry in self.running if entry.computed >= self.prompts[entry.request]]
        if len(candidates) < count:
            return None
        # Those with the most output are the ones that can have reached their limit; ties: the first admitted.
        finished = sorted(candidates, key=lambda entry: -entry.generated)[: len(candidates) - count]
        gone = {entry.request for entry in finished}
        self.running = [entry for entry in self.running if entry.request not in gone]
        return {entry.request for entry in candidates if entry.request not in gone}

    def _chunks(self, count: int, tokens: int) -> dict[int, int] | None:
        """Prompt tokens per request: the step's budget is what was scheduled, so only the last one can be cut short."""
        partial = [entry for entry in self.running if entry.computed < self.prompts[entry.request]]
        while len(partial) < count and self.waiting:
            entry = _Running(self.waiting.pop(0))
            self.running.append(entry)
            partial.append(entry)
        chunks: dict[int, int] = {}
        left = tokens
        for entry in partial[:count]:
            chunks[entry.request] = min(self.prompts[entry.request] - entry.computed, left)
            left -= chunks[entry.request]
        is_consistent = left == 0 and len(chunks) == count and all(chunks.values())
        return chunks if is_consistent else None


def _filled(step: ImportedStep, schedule: _Schedule) -> ImportedStep:
    done = schedule.take(step)
    if done is None:
        return _from_annotation(step)
    requests, q, kv = zip(*done, strict=True) if done else ((), (), ())
    if step.q_lengths and step.kv_lengths:
        # The profiler said it itself; only the names are new, and only if they agree.
        agrees = sorted(zip(step.q_lengths, step.kv_lengths, strict=True)) == sorted(zip(q, kv, strict=True))
        return replace(step, q_lengths=q, kv_lengths=kv, request_indexes=requests) if agrees else step
    return replace(step, q_lengths=q, kv_lengths=kv, request_indexes=requests)


# vLLM's detailed annotation: sq = Σq, sk = Σ KV, sqsq = Σq², sqsk = Σ q·KV, per side.
_SUMS = r"\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
_DETAILED = re.compile(rf"execute_\d+_context_(\d+){_SUMS}_generation_(\d+){_SUMS}")
# A vLLM build that puts Σq² behind the tokens: execute_context_1(888_788544)_generation_0(0)
_SQUARED = re.compile(r"execute_context_1\((\d+)_(\d+)\)_generation_0\(0")


def _from_annotation(step: ImportedStep) -> ImportedStep:
    """What the annotation alone settles. Generation lengths are spread evenly: only their sum matters to a decode."""
    if step.q_lengths:
        return step
    detailed = _DETAILED.match(step.annotation)
    if detailed:
        contexts, sq, sk, _, _, generations, gq, gk, _, _ = (int(group) for group in detailed.groups())
        if contexts <= 1:  # of several contexts the sums do not tell the lengths
            q = (*_evenly(gq, generations), *_evenly(sq, contexts))
            return replace(step, q_lengths=q, kv_lengths=(*_evenly(gk, generations), *_evenly(sk, contexts)))
        return step
    squared = _SQUARED.match(step.annotation)
    if squared and int(squared[1]) ** 2 == int(squared[2]):
        return replace(step, q_lengths=(int(squared[1]),), kv_lengths=(int(squared[1]),))
    return step


def _evenly(total: int, count: int) -> Lengths:
    return tuple(total // count + (index < total % count) for index in range(count))
