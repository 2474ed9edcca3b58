"""A data-parallel job: two engines in processes of their own behind one front end, as `vllm serve -dp 2` builds them."""

from __future__ import annotations

import asyncio
import sys

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

ENGINES = 2
OUTPUT_TOKENS = 6


async def main(model: str) -> None:
    arguments = AsyncEngineArgs(
        model=model, data_parallel_size=ENGINES, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True,
        dtype="bfloat16", max_model_len=512, max_num_seqs=8, enable_prefix_caching=False,
    )  # fmt: skip
    engine = AsyncLLM.from_engine_args(arguments)
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True, detokenize=False)

    async def one(number: int) -> None:
        prompt = {"prompt_token_ids": [10 + number] * (20 + number)}
        async for _ in engine.generate(prompt, params, request_id=f"{number}", data_parallel_rank=number % ENGINES):
            pass

    await asyncio.gather(*(one(number) for number in range(4)))
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
