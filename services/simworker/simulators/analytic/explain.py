"""One prediction taken apart: the limits before and the factor after, in numbers that give the prediction again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cascade_schemas.gpu import GpuSpec

from services.kernels.work import WorkTable
from services.simworker.simulators.analytic.columns import GpuColumns
from services.simworker.simulators.analytic.forest import Forest
from services.simworker.simulators.analytic.simulator import (
    AnalyticSimulator,
    _compute,
    _parts,
    _Prepared,
    limits_of,
    table_for,
)
from services.simworker.simulators.quantities import Quantities, quantities

LIMITS = ("tensor", "dram", "l2", "issue", "launch")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of one task on one GPU. Times in nanoseconds, before the table's factor where not said otherwise."""

    form: str
    variant: str  # of the constants that were used
    level: str  # whose constants: "gpu:h100_sxm", "cc:9.0", "class:wgmma"
    total_ns: float
    limits_ns: dict[str, float]  # tensor, dram, l2, issue, launch: what each alone would take
    factor: float  # what the GPU's own table says beyond the form; 1 where there is none
    is_by_trees: bool  # the factor: by boosted trees, else from a grid
    forward_ns: int  # total · factor, rounded: what the simulator says
    form_sigma: float  # of ln(measured ÷ predicted) on rows left out of the fit
    work: Quantities


def explain(simulator: AnalyticSimulator, work: WorkTable, gpu: GpuSpec) -> Explanation:
    """work: exactly one task."""
    assert work.count == 1, work.count
    (part,) = _parts(work)
    constants = simulator.constants
    ready = _Prepared.of(constants, part, [gpu])
    columns = GpuColumns.of([gpu])
    parameters = {name: column[:1] for name, column in ready.parameters.items()}
    before = limits_of(constants, part.form, parameters, columns, ready.flop_per_us, part.work)
    one = slice(0, 1)
    after, sigma = _compute(constants, part, ready, columns, one, one)
    learned = ready.residual_row
    table = table_for(constants, part.form, ready.variants[0], gpu, ready.groups[0])
    factor = float(np.exp(ready.residual_ln[learned, one])[0, 0]) if learned.any() else 1.0
    return Explanation(
        form=part.form,
        variant=ready.variants[0],
        level=ready.groups[0].level,
        total_ns=float(before.total[0, 0]) * 1e3,
        limits_ns={name: float(getattr(before, name)[0, 0]) * 1e3 for name in LIMITS},
        factor=factor,
        is_by_trees=isinstance(table, Forest),
        forward_ns=max(int(np.rint(after.total[0, 0] * 1e3)), 1),
        form_sigma=float(sigma[0, 0]),
        work=quantities(work),
    )
