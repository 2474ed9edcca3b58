"""The source correction: what a kernel's measured time on the source GPU says about the target (SIMULATION 3.3).

A kernel that the model misjudges on the source it misjudges on the target too, as far as both run the same code.
`alpha` is how far.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from cascade_schemas.gpu import GpuSpec

from services.kernels.work import Family, Floats

# Beyond a factor of two the model and the measurement are not about the same work; more correction would be noise.
_FACTOR_LIMIT = 2.0


def corrected(model_target: Floats, model_source: Floats, measured_source: Floats, alpha: Floats | float) -> Floats:
    """Times in any one unit. With alpha 1 on the source itself it is the measured time: there is no limit then."""
    target, source, measured = (np.asarray(x, dtype=np.float64) for x in (model_target, model_source, measured_source))
    power = np.asarray(alpha, dtype=np.float64)
    residual = power * np.log(measured / source)
    limit = np.where(power == 1, np.inf, np.log(_FACTOR_LIMIT))
    result: Floats = target * np.exp(np.clip(residual, -limit, limit))
    return result


def alpha(source: GpuSpec, target: GpuSpec, family: str, *, runs_code: bool = False) -> float:
    """Share of the source's residual that the target inherits, from 0 to 1.

    The table was measured on the analytic model, whose constants are fitted per GPU: little of what it misses on one
    it misses on another. A simulator that runs the traced code (`runs_code`) has no such constants: it is wrong on both
    by what it does not model, and only the ratio of its cycles counts (SIMULATION 4.6). Across classes of tensor cores
    the target would not run that code, and nothing is inherited.
    """
    if runs_code:
        return 0.0 if relation(source, target) == "other_class" else 1.0
    return _value("alpha", source, target, family)


def sigma_factor(source: GpuSpec, target: GpuSpec, family: str, *, runs_code: bool = False) -> float:
    """What the correction leaves of a prediction's sigma: all of it where nobody measured what is left."""
    return 1.0 if runs_code else _value("sigma_factor", source, target, family)


def relation(source: GpuSpec, target: GpuSpec) -> str:
    """How much of the code and of the chip the two share."""
    if source == target:
        return "same"
    if source.compute_capability == target.compute_capability and source.architecture == target.architecture:
        # One die at one clock (H100 and H200): whatever does not wait for DRAM takes the same time.
        same_sms = source.sm_count == target.sm_count and source.boost_hz == target.boost_hz
        return "same_die" if same_sms else "same_capability"
    return "same_class" if source.programming_class == target.programming_class else "other_class"


def _value(what: str, source: GpuSpec, target: GpuSpec, family: str) -> float:
    how = relation(source, target)
    if how == "same":
        return 1.0
    table = _table()[what]
    by_relation = table.get(str(family), table["*"])
    return float(by_relation[how])


@cache
def _table() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(
        files("services.kernels").joinpath("correction.json").read_text(encoding="utf-8")
    )
    assert stored["alpha"][str(Family.UNKNOWN)]["other_class"] == 1.0, (
        "an unknown kernel is known by its measurement alone"
    )
    return stored
