"""The datasheet baseline: the longer of FLOP ÷ peak rate and bytes ÷ peak bandwidth, and nothing learned from hardware.

Everything is shown beside it, so that a better number is seen to be better. Its interval is not calibrated: a kernel is
hardly ever faster than the datasheet, and small ones are many times slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cascade_schemas.gpu import GpuSpec
from numpy.typing import NDArray

from services.kernels.work import Family, Floats, Math, Strings, WorkTable
from services.simworker.simulators.base import BOUNDS, Predictions
from services.simworker.simulators.quantities import quantities

_P90_OVER_VALUE = 4.0


class RooflineSimulator:
    name = "roofline"
    version = "1"
    calibration_digest = ""

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions:
        amount = quantities(work)
        math = work.text("math")
        rates, lacking = flop_rates(math, gpus)
        linked = work.text("family") == Family.COLLECTIVE
        dram_per_s = _column([gpu.dram_bytes_per_s for gpu in gpus])
        link_per_s = _column([gpu.link_bytes_per_s or gpu.pcie_bytes_per_s for gpu in gpus])
        tensor_s = amount.flop[None, :] / rates
        dram_s = np.where(
            linked[None, :], amount.link_bytes / link_per_s, (amount.read_bytes + amount.write_bytes) / dram_per_s
        )
        seconds = np.maximum(tensor_s, dram_s)
        duration = np.maximum(np.rint(seconds * 1e9), 1).astype(np.int64)
        nothing = np.zeros_like(duration)
        reasons = ("datasheet", "datasheet;dtype_fallback", "datasheet;no_work_known")
        reason = np.where(seconds == 0, 2, np.where(lacking & (tensor_s > 0), 1, 0)).astype(np.int16)
        dram_bound = np.where(linked, BOUNDS.index("link"), BOUNDS.index("dram"))[None, :]
        return Predictions(
            duration_ns=duration,
            p10_ns=duration,
            p90_ns=np.rint(duration * _P90_OVER_VALUE).astype(np.int64),
            tensor_ns=np.rint(tensor_s * 1e9).astype(np.int64),
            dram_ns=np.rint(dram_s * 1e9).astype(np.int64),
            l2_ns=nothing,
            issue_ns=nothing,
            launch_ns=nothing,
            bound=np.where(tensor_s >= dram_s, BOUNDS.index("tensor"), dram_bound).astype(np.uint8),
            sigma=np.full(duration.shape, np.log(_P90_OVER_VALUE) / 1.2816, dtype=np.float32),
            reason=reason,
            reasons=reasons,
        )


def flop_rates(math: Strings, gpus: Sequence[GpuSpec]) -> tuple[Floats, NDArray[np.bool_]]:
    """Per (config, task) the rate its arithmetic runs at, and whether that is a fallback for a dtype the GPU lacks."""
    rates = np.empty((len(gpus), len(math)))
    lacking = np.zeros(rates.shape, dtype=bool)
    for name in set(math):
        columns = math == name
        for row, gpu in enumerate(gpus):
            rate, missing = flop_rate(str(name), gpu)
            rates[row, columns] = rate
            lacking[row, columns] = missing
    return rates, lacking


def flop_rate(math: str, gpu: GpuSpec) -> tuple[float, bool]:
    """A dtype without an arithmetic unit is computed after conversion: tf32 as fp32, the others as bf16."""
    if math == Math.NONE:
        return float(gpu.fp32_flop_per_s), False
    rate = gpu.flop_per_s(math)
    if rate > 0:
        return float(rate), False
    return float(gpu.fp32_flop_per_s if math in {Math.TF32, Math.FP64} else gpu.bf16_flop_per_s), True


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)[:, None]
