"""What the forms read and return: GPUs as columns of shape (configs, 1), tasks as rows of shape (1, tasks).

Times are microseconds, rates bytes or FLOP per microsecond: then a form reads as its formula, and no factor of 10^6
hides in it. Every form is monotone: no term grows with a rate or shrinks with a size. Where candidates compete (tiles,
splits) the fastest is taken from a list that depends on neither, which keeps the minimum monotone too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cascade_schemas.gpu import L2_BYTES_PER_CLK_PER_SM, GpuSpec, UnknownGpu, load_gpu

from services.kernels.work import Floats

Parameters = Mapping[str, Floats]
"""A form's constants by name, each of shape (configs, 1): every GPU has its own."""


@dataclass(frozen=True, slots=True)
class GpuColumns:
    sm: Floats
    # SMs of the GPU whose constants are used. DRAM's rate for one CTA was measured there, as a share of its bandwidth
    # per SM; a chip with more SMs (an override) does not serve each CTA slower, so the share stays tied to this count.
    sm_calibrated: Floats
    # Cycles of the constants' GPU per cycle of this one: 1 unless an override moves the clock. Constants in µs that
    # are spent issuing or waiting on the chip are cycles at heart.
    cycle: Floats
    dram_bytes_per_us: Floats
    l2_bytes: Floats
    l2_bytes_per_us_per_sm: Floats
    mufu_per_us_per_sm: Floats
    fp32_flop_per_us: Floats
    link_bytes_per_us: Floats
    link_gpu_count: Floats
    pcie_bytes_per_us: Floats

    @classmethod
    def of(cls, gpus: Sequence[GpuSpec]) -> GpuColumns:
        def column(values: Sequence[float]) -> Floats:
            return np.array(values, dtype=np.float64)[:, None]

        clk = [gpu.boost_hz / 1e6 for gpu in gpus]
        return cls(
            sm=column([gpu.sm_count for gpu in gpus]),
            sm_calibrated=column([_as_calibrated(gpu).sm_count for gpu in gpus]),
            cycle=column([_as_calibrated(gpu).boost_hz / gpu.boost_hz for gpu in gpus]),
            dram_bytes_per_us=column([gpu.dram_bytes_per_s / 1e6 for gpu in gpus]),
            l2_bytes=column([gpu.l2_bytes for gpu in gpus]),
            l2_bytes_per_us_per_sm=column([L2_BYTES_PER_CLK_PER_SM * c for c in clk]),
            mufu_per_us_per_sm=column([gpu.mufu_per_clk_per_sm * c for gpu, c in zip(gpus, clk, strict=True)]),
            fp32_flop_per_us=column([gpu.fp32_flop_per_s / 1e6 for gpu in gpus]),
            link_bytes_per_us=column([gpu.link_bytes_per_s / 1e6 for gpu in gpus]),
            link_gpu_count=column([gpu.link_gpu_count for gpu in gpus]),
            pcie_bytes_per_us=column([gpu.pcie_bytes_per_s / 1e6 for gpu in gpus]),
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Microseconds of shape (configs, tasks): the time, and what each limit alone would take."""

    total: Floats
    tensor: Floats
    dram: Floats
    l2: Floats
    issue: Floats
    launch: Floats
    unsure: Floats | None = None  # sigma of ln of the total that the form itself does not tell, beside its constants'

    def times(self, factor: Floats) -> Limits:
        of_time = (self.total, self.tensor, self.dram, self.l2, self.issue, self.launch)
        total, tensor, dram, l2, issue, launch = (one * factor for one in of_time)
        return Limits(total, tensor, dram, l2, issue, launch, self.unsure)


def cold_share(bytes_between_reuses: Floats, l2_bytes: Floats) -> Floats:
    """Which share of the bytes comes from DRAM: none while all that is touched between two uses fits L2, all at twice
    that.
    """
    return np.clip(bytes_between_reuses / l2_bytes - 1.0, 0.0, 1.0)


def overlapped(g: Floats, *terms: Floats) -> Floats:
    """The longest limit, plus the share `g` of the others that it does not hide."""
    longest, together = terms[0], terms[0]
    for term in terms[1:]:
        longest = np.maximum(longest, term)
        together = together + term
    return longest + g * (together - longest)


def _as_calibrated(gpu: GpuSpec) -> GpuSpec:
    """The chip without overrides."""
    try:
        return load_gpu(gpu.gpu)
    except UnknownGpu:
        return gpu
