"""A job in a process of its own: the fake engine on the fake GPU, hooked as vLLM's plugin would hook it.

python -m tests.fakes.job STEPS STEP_S [kill|leave]
"""

import os
import signal
import sys
import time

import cascade_profiler_plugin

from tests.fakes.torch_profiler import FakeTorch
from tests.fakes.vllm_engine import FakeLLM, worker_module


def main(step_count: int, step_s: float, end: str) -> None:
    fake = sys.modules["torch"] = FakeTorch()
    module = worker_module()
    execute = module.Worker.execute_model

    def execute_model(self, output):
        fake.work(3, rows=max(output.total_num_scheduled_tokens, 1))
        return execute(self, output)

    module.Worker.execute_model = execute_model
    sys.modules["vllm.v1.worker.gpu_worker"] = module
    cascade_profiler_plugin.register()
    llm = FakeLLM(module.Worker, step_s=step_s)
    llm.generate([100, 10], output_tokens=step_count - 1)
    if end == "kill":
        time.sleep(1.0)  # what was recorded has been sent
        os.kill(os.getpid(), signal.SIGKILL)
    if end != "leave":
        for worker in llm.workers:
            worker.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
