"""A vLLM with the same class paths and no model: workers that sleep, a scheduler that chunks prompts.

`fake_modules()` are put into sys.modules by the tests; `tests/vllm` holds the real engine to the same contract.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: list[int] | None
    num_computed_tokens: int = 0
    prompt_embeds: Any = None


@dataclass
class CachedRequestData:
    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    finished_req_ids: set[str] = field(default_factory=set)

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


def worker_module() -> ModuleType:
    """A fresh `vllm.v1.worker.gpu_worker`: its class can be hooked and thrown away."""
    module = ModuleType("vllm.v1.worker.gpu_worker")

    class Worker:
        def __init__(self, rank: int = 0, world_size: int = 1, step_s: float = 0.0, config: Any = None) -> None:
            self.rank = self.local_rank = rank
            self.parallel_config = SimpleNamespace(world_size=world_size)
            self.model_config = SimpleNamespace(model="facebook/opt-125m", hf_config=config or opt_config())
            self.step_s = step_s
            self.executed: list[SchedulerOutput] = []
            self.is_shut_down = False

        def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
            self.executed.append(scheduler_output)
            if self.step_s:
                time.sleep(self.step_s)
            return None if scheduler_output.total_num_scheduled_tokens else "empty"

        def sample_tokens(self, grammar_output: Any) -> str:
            return "sampled"

        def shutdown(self) -> None:
            self.is_shut_down = True

    module.Worker = Worker
    return module


def opt_config() -> Any:
    values = {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 768, "ffn_dim": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 50272, "max_position_embeddings": 2048,
        "activation_function": "relu", "torch_dtype": "float16", "word_embed_proj_dim": 768,
        "do_layer_norm_before": True, "enable_bias": True,
    }  # fmt: skip
    return SimpleNamespace(to_dict=lambda: values)


class FakeLLM:
    """Schedules as vLLM does (running first, then waiting, within a budget of tokens) and calls every rank's worker."""

    def __init__(
        self, worker_class: Any, world_size: int = 1, budget: int = 64, step_s: float = 0.0, engine: int = 0
    ) -> None:
        """engine: which of a data-parallel job's."""
        self.workers = [worker_class(rank, world_size, step_s) for rank in range(world_size)]
        for worker in self.workers:
            worker.parallel_config.data_parallel_index = engine
        self._budget = budget
        self._count = 0

    def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[Any, ...] = ()) -> list[Any]:
        missing = [worker for worker in self.workers if not hasattr(worker, method)]
        if missing:
            raise RuntimeError(f"Call to collective_rpc method failed: 'Worker' object has no attribute '{method}'")
        return [getattr(worker, method)(*args) for worker in self.workers]

    def generate(self, prompts: list[int], output_tokens: int = 4) -> list[Any]:
        """prompts: their lengths."""
        requests = [f"req-{self._count + place}" for place in range(len(prompts))]
        self._count += len(prompts)
        computed = dict.fromkeys(requests, 0)
        generated = dict.fromkeys(requests, 0)
        length = dict(zip(requests, prompts, strict=True))
        started: set[str] = set()
        finished: set[str] = set()
        while any(count < output_tokens for count in generated.values()):
            budget = self._budget
            new, cached, scheduled = [], CachedRequestData(), {}
            live = [request for request in requests if generated[request] < output_tokens]
            for request in sorted(live, key=lambda request: request not in started):
                count = min(budget, length[request] - computed[request] or 1)
                if count <= 0:
                    continue
                budget -= count
                scheduled[request] = count
                if request in started:
                    cached.req_ids.append(request)
                    cached.num_computed_tokens.append(computed[request])
                else:
                    new.append(NewRequestData(request, list(range(length[request]))))
                    started.add(request)
            self.step(SchedulerOutput(new, cached, scheduled, finished))
            finished = set()
            for request, count in scheduled.items():
                computed[request] += count
                if computed[request] >= length[request]:
                    generated[request] += 1
                    length[request] = max(length[request], computed[request])
                    if generated[request] >= output_tokens:
                        finished.add(request)
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * output_tokens)], metrics=None) for _ in prompts
        ]

    def step(self, output: SchedulerOutput) -> None:
        for worker in self.workers:
            if worker.execute_model(output) is None:
                worker.sample_tokens(None)
