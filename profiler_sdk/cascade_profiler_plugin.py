"""vLLM calls `register` in every process of every job on this machine; it does nothing unless the job was armed."""

from __future__ import annotations

import os


def register() -> None:
    """Hook the workers of an armed job. Importing nothing of ours is what a job that is not armed pays."""
    if os.environ.get("CASCADE_TRACE", "0") in ("", "0"):
        return
    from cascade_profiler.vllm import install  # noqa: PLC0415 - see above

    install()
