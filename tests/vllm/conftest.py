"""The real vLLM engine on the CPU, in its own environment; Cascade itself runs as a server from ours."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

# Needs .venv-vllm: `make test-vllm`.
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]

ROOT = Path(__file__).resolve().parents[2]

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",  # threads that wait for each other measure the machine's other work
)

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 16384,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def pytest_collection_modifyitems(items):
    """An engine needs a minute to start on a quiet machine, and several on a busy one."""
    for item in items:
        item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A Llama of two layers and random weights; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def build(model, **options):
    import cascade_profiler

    return cascade_profiler.LLM(
        model=str(model), skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", max_model_len=1024,
        max_num_seqs=8, max_num_batched_tokens=128, enable_prefix_caching=False, **{"enforce_eager": True, **options},
    )  # fmt: skip


def generate(llm, prompts=(200, 40, 17), output_tokens=12, seed=0):
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True, detokenize=False)
    ids = [{"prompt_token_ids": [10 + (seed + 7 * i + j) % 1000 for j in range(n)]} for i, n in enumerate(prompts)]
    return llm.generate(ids, params, use_tqdm=False)


class Server:
    """`cascade serve` in a process of its own, on one port over all its lives."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port
        self.start()

    def start(self) -> None:
        environ = {**os.environ, "CASCADE_HOME": str(self.home), "CASCADE_TOKEN": "a-token-that-only-tests-know"}
        command = [str(ROOT / ".venv" / "bin" / "cascade"), "serve", "--port", str(self.port)]
        log = (self.home / "serve.log").open("ab")
        self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not self.answers():
            assert time.monotonic() < deadline, (self.home / "serve.log").read_text()[-2000:]
            time.sleep(0.2)

    def answers(self) -> bool:
        try:
            self.ask("about")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: object = None):
        request = urllib.request.Request(
            f"{self.url}/api/{path}", headers={"authorization": "Bearer a-token-that-only-tests-know"}
        )
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def trace(self, trace_id: str, status: str, timeout_s: float = 30.0):
        """The trace's report once it has this status."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = {one["trace_id"]: one for one in self.ask("traces")["traces"]}.get(trace_id)
            if found is not None and found["status"] == status:
                return self.ask(f"traces/{trace_id}")
            assert time.monotonic() < deadline, f"{trace_id} is {found and found['status']}, not {status}"
            time.sleep(0.3)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("home"), 18_655)
    yield running
    running.kill()
