"""What the profiler expects of a vLLM, looked up in its sources: also of a version that cannot run here.

python -m tests.vllm.contract FOLDER says what a package's folder lacks.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

WORKER, OUTPUT = "v1/worker/gpu_worker.py", "v1/core/sched/output.py"
FIRST_RUNNER, SECOND_RUNNER = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/cudagraph_utils.py"

PARAMETERS = {
    (WORKER, "Worker.execute_model"): ["self", "scheduler_output"],
    (WORKER, "Worker.sample_tokens"): ["self", "grammar_output"],
    (SECOND_RUNNER, "CudaGraphManager.capture"): ["self", "create_forward_fn", "progress_bar_desc"],
}
TEXTS = {
    (WORKER, "Worker.shutdown"): ["def shutdown(self"],
    (WORKER, "Worker.compile_or_warm_up_model"): ["def compile_or_warm_up_model(self)"],
    (WORKER, "Worker"): ["self.model_runner.capture_model()"],
    (WORKER, "Worker.__init__"): ["self.profiler_config = "],
    (OUTPUT, "NewRequestData"): ["req_id: ", "prompt_token_ids: ", "num_computed_tokens: ", "prompt_embeds: "],
    (OUTPUT, "CachedRequestData"): ["req_ids: ", "num_computed_tokens: "],
    (OUTPUT, "SchedulerOutput"): [
        "scheduled_new_reqs: ", "scheduled_cached_reqs: ", "num_scheduled_tokens: ", "finished_req_ids: ",
    ],
    # The first model runner names the batch size by itself, around the pass that is captured.
    (FIRST_RUNNER, "GPUModelRunner._warmup_and_capture"): [
        "record_function", "f'capture_{desc.num_tokens}_{cudagraph_runtime_mode.name}'",
    ],
    (FIRST_RUNNER, "GPUModelRunner.capture_model"): ["capture_torch_profiler"],
    (SECOND_RUNNER, "CudaGraphManager.capture"): [
        "create_forward_fn(desc, warmup=True)", "forward_fn(CUDAGraphMode.PIECEWISE)", "desc.cg_mode",
    ],
    (SECOND_RUNNER, "BatchExecutionDescriptor"): ["cg_mode: ", "num_tokens: "],
    ("config/parallel.py", "ParallelConfig"): ["data_parallel_index: int", "world_size: int"],
    ("config/profiler.py", "ProfilerConfig"): [
        "profiler: ", "torch_profiler_dir: ", "torch_profiler_record_shapes: ", "capture_torch_profiler: ",
    ],
    ("plugins/__init__.py", ""): ["vllm.general_plugins"],
}  # fmt: skip


def lacking(folder: Path) -> list[str]:
    """What is not as expected in the folder of a vllm package; one line each."""
    found: list[str] = []
    for (file, name), wanted in PARAMETERS.items():
        function = _nodes(folder / file).get(name)
        if not isinstance(function, ast.FunctionDef):
            found.append(f"{file} has no {name}")
        elif (have := [argument.arg for argument in function.args.args]) != wanted:
            found.append(f"{name} takes {have}, not {wanted}")
    for (file, name), texts in TEXTS.items():
        node = _nodes(folder / file).get(name)
        text = ast.unparse(node) if node is not None else ""
        found += [f"{file}: {name} has no {wanted!r}" for wanted in texts if wanted not in text]
    return found


def _nodes(path: Path) -> dict[str, ast.AST]:
    """Classes, functions and methods by name, the module under ""."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, ast.AST] = {"": tree}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


if __name__ == "__main__":
    said = lacking(Path(sys.argv[1]))
    print("\n".join(said) or "everything is as expected")
    raise SystemExit(1 if said else 0)
