"""Trace a vLLM job while it runs.

    import cascade_profiler                     # before the LLM is built: its processes will listen
    llm = vllm.LLM(model="facebook/opt-125m")
    with cascade_profiler.trace(llm, destination="http://127.0.0.1:8765", model="facebook/opt-125m"):
        llm.generate(prompts)

Nothing here raises into the job: what cannot be done is said once, on standard error, and the job goes on.
Only the standard library is imported until something is traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cascade_profiler.arming import arm

if TYPE_CHECKING:
    from cascade_profiler.session import baseline, trace
    from cascade_profiler.surveying import survey
    from cascade_profiler.vllm import LLM

__all__ = ["LLM", "arm", "baseline", "survey", "trace"]

_PLACES = {"trace": "session", "baseline": "session", "survey": "surveying", "LLM": "vllm"}

arm()


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"cascade_profiler has no {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module  # noqa: PLC0415 - importing the package stays cheap

    return getattr(import_module(f"cascade_profiler.{_PLACES[name]}"), name)
