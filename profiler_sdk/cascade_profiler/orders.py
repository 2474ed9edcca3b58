"""What the processes of a job are told to record: JSON, over the engine's own calls or in the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from cascade_profiler.arming import TOKEN_VARIABLE, VARIABLE


class Goal(NamedTuple):
    """How well sampling wants to know the mean time of each kind of step."""

    target_ratio: float = 0.02  # half of the 95 % interval ÷ the mean
    count_limit: int = 24  # profiled steps of a kind; one that is not known by then is left at that


_GOAL = Goal()


@dataclass(frozen=True, slots=True)
class Orders:
    """What the processes of a job are told to record, and where it goes. Travels as JSON."""

    trace_id: str
    name: str
    destination: str
    origin_unix_ns: int
    mode: str = "kernels"  # "steps": engine steps and host times alone; "sass": a tracer outside records instructions
    collector: str = ""  # torch, cupti, nsys; "": the first that works
    model: Mapping[str, Any] | None = None  # a ModelSpec
    source_gpu: str = ""
    routing: str = ""  # of tokens to experts: "" evenly, else zipf:EXPONENT
    token: str = field(default="", repr=False)
    spool_folder: str = ""  # "": the system's folder for temporary files
    is_sampling: bool = False  # profile steps only until their times are known well enough
    goal: Goal = _GOAL  # of sampling
    host_profile: Mapping[str, Any] | None = None  # of a run before, without a profiler
    memory_bytes_limit: int = 64 << 20
    spool_bytes_limit: int = 1 << 30

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """Ignores what a newer version says beyond this one."""
        known = {one.name for one in fields(cls)}
        said = {name: value for name, value in json.loads(text).items() if name in known}
        return cls(**said | {"goal": Goal(*said.get("goal", ()))})

    def with_token(self, environ: Mapping[str, str]) -> Orders:
        return self if self.token else replace(self, token=environ.get(TOKEN_VARIABLE, ""))


def standing_orders(environ: Mapping[str, str] | None = None) -> Orders | None:
    """What a process is to record from its first step on; None where it is to wait for `trace`."""
    found = os.environ if environ is None else environ
    text = found.get(VARIABLE, "")
    if not text.startswith("{"):
        return None
    # The token is a variable of its own, so that orders can be shown.
    return Orders.from_json(text).with_token(found)
