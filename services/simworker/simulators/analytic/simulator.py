"""The default simulator: recognised work, forms with limits, constants fitted per GPU, an interval on every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from cascade_schemas.gpu import GpuSpec, UnknownGpu, load_gpu
from numpy.typing import NDArray

from services.kernels.correction import relation
from services.kernels.work import Family, Floats, Library, Math, WorkFrom, WorkTable
from services.simworker.calibration.constants import Constants, Group, shipped_constants
from services.simworker.simulators.analytic import attention, shapes
from services.simworker.simulators.analytic.collective import collective
from services.simworker.simulators.analytic.columns import GpuColumns, Limits, Parameters
from services.simworker.simulators.analytic.gemm import gemm
from services.simworker.simulators.analytic.learned import Learned, evaluate
from services.simworker.simulators.analytic.residual import SIGMA_MIN
from services.simworker.simulators.analytic.rowwise import rowwise
from services.simworker.simulators.base import BOUNDS, Z90, Predictions
from services.simworker.simulators.roofline import flop_rate

# Arrays of one call: (configs, tasks) numbers of 8 bytes. 16 Ki of them, a dozen arrays at a time, stay in a core's L2.
_CELLS_PER_CALL = 16_384
_TASKS_PER_CALL = 2_048

OVER_PCIE = "over_pcie"
"""The variant of collectives' constants for GPUs without NVLink or its like: the stated default link."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Tasks of one form and variant: they are computed together."""

    form: str
    variant: str
    math: str
    index: NDArray[np.intp]
    work: WorkTable


class AnalyticSimulator:
    name = "analytic"
    version = "5"

    def __init__(self, thread_count: int = 2, constants: Constants | None = None) -> None:
        self._constants = constants or shipped_constants()
        self._thread_count = max(thread_count, 1)

    @property
    def constants(self) -> Constants:
        return self._constants

    @property
    def calibration_digest(self) -> str:
        return self._constants.digest

    def simulate(self, work: WorkTable, gpus: Sequence[GpuSpec]) -> Predictions:
        parts = _parts(work)
        answer = _Answer(self._constants, work, gpus)
        calls = [
            (part, rows, tasks)
            for part in parts
            for tasks in _ranges(part.index.size, _TASKS_PER_CALL)
            for rows in _ranges(len(gpus), max(1, _CELLS_PER_CALL // max(tasks.stop - tasks.start, 1)))
        ]
        columns = GpuColumns.of(gpus)
        prepared = {id(part): _Prepared.of(self._constants, part, gpus) for part in parts}

        def compute(call: tuple[_Part, slice, slice]) -> None:
            part, rows, tasks = call
            answer.put(part, rows, tasks, *_compute(self._constants, part, prepared[id(part)], columns, rows, tasks))

        if self._thread_count > 1 and len(calls) > 1:
            with ThreadPoolExecutor(self._thread_count) as pool:
                list(pool.map(compute, calls))
        else:
            for call in calls:
                compute(call)
        return answer.predictions({id(part): prepared[id(part)] for part in parts}, parts)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a part needs of every GPU, as columns."""

    groups: list[Group]
    variants: list[str]
    parameters: dict[str, Floats]
    sigmas: Floats  # (configs, bins)
    flop_per_us: Floats  # (configs, 1)
    lacking: NDArray[np.bool_]  # (configs,): the GPU lacks the arithmetic
    # What tables say beyond the form, one row per measured GPU and a first one that says nothing: (rows, tasks).
    residual_ln: Floats
    residual_share: Floats
    residual_spread_ln: Floats
    residual_sigmas: Floats  # (rows, bins)
    residual_row: NDArray[np.intp]  # (configs,)

    @classmethod
    def of(cls, constants: Constants, part: _Part, gpus: Sequence[GpuSpec]) -> _Prepared:
        rates = [flop_rate(part.math, gpu) for gpu in gpus]
        lacking = np.array([missing for _, missing in rates], dtype=np.bool_)
        # A fallback runs the bf16 kernels over dequantised operands.
        found = [
            constants.group(part.form, _variant_on(gpu, part, missing), gpu)
            for gpu, missing in zip(gpus, lacking, strict=True)
        ]
        groups = [group for _, group in found]
        names = groups[0].parameters.keys() if groups else ()
        learned, row = _residuals(constants, part, gpus, found)
        return cls(
            groups=groups,
            variants=[variant for variant, _ in found],
            parameters={name: np.array([[g.parameters[name]] for g in groups], dtype=np.float64) for name in names},
            sigmas=np.array([g.sigmas for g in groups], dtype=np.float64),
            flop_per_us=np.array([[rate / 1e6] for rate, _ in rates], dtype=np.float64),
            lacking=lacking,
            residual_ln=np.array([factor[0] for factor, _ in learned]),
            residual_share=np.array([factor[1] for factor, _ in learned]),
            residual_spread_ln=np.array([factor[2] for factor, _ in learned]),
            residual_sigmas=np.array([sigmas for _, sigmas in learned], dtype=np.float64),
            residual_row=row,
        )


def _residuals(
    constants: Constants, part: _Part, gpus: Sequence[GpuSpec], found: Sequence[tuple[str, Group]]
) -> tuple[list[tuple[tuple[Floats, Floats, Floats], Sequence[float]]], NDArray[np.intp]]:
    """Per measured GPU once, however many configs are overrides of it."""
    nothing = np.zeros(part.index.size)
    learned: list[tuple[tuple[Floats, Floats, Floats], Sequence[float]]] = [
        ((nothing, nothing, nothing), [0.0] * (1 + len(constants.sigma_bins_us)))
    ]
    rows: dict[str, int] = {}
    for gpu, (variant, group) in zip(gpus, found, strict=True):
        if gpu.gpu in rows:
            continue
        if part.form == "mixed":
            rows[gpu.gpu] = len(learned)
            learned.append((_of_parts(constants, part, gpu), group.sigmas))
            continue
        # Kernels that stand in for others are not those of the table.
        residual = table_for(constants, part.form, variant, gpu, group) if variant == part.variant else None
        rows[gpu.gpu] = 0
        if residual is not None:
            rows[gpu.gpu] = len(learned)
            own = group.level == f"gpu:{gpu.gpu}"
            form_us = partial(form_us_as_sold, constants, part.form, group.parameters, gpu.gpu)
            ln, share, spread = evaluate(residual, part.form, part.work, form_us)
            learned.append(((ln, share, spread), residual.sigmas) if own else ((ln, share, nothing), group.sigmas))
    return learned, np.array([rows[gpu.gpu] for gpu in gpus], dtype=np.intp)


def _of_parts(constants: Constants, part: _Part, gpu: GpuSpec) -> tuple[Floats, Floats, Floats]:
    """What the tables of both kinds of attention say of a mixed step's parts, as a factor on the whole. No table has
    such steps: sigma stays that of the forms.
    """
    nothing = np.zeros(part.index.size)
    chunks, decodes = shapes.mixed_rows(part.work)
    there = chunks.requests[0] > 0, decodes.units[0] > 0
    before: list[Floats] = []
    after: list[Floats] = []
    for form, work, is_there in zip(("prefill", "decode"), shapes.mixed_parts(part.work), there, strict=True):
        variant, own = constants.group(form, part.variant, gpu)
        table = table_for(constants, form, variant, gpu, own) if variant == part.variant else None
        if table is None:
            return nothing, nothing, nothing
        limits = limits_as_sold(constants, form, own.parameters, gpu.gpu, work)
        ln = evaluate(table, form, work, partial(form_us_as_sold, constants, form, own.parameters, gpu.gpu))[0]
        times = np.where(is_there, (limits.total - limits.launch)[0], 0.0), limits.launch[0]
        before += times
        after += (us * np.where(is_there, np.exp(ln), 1.0) for us in times)
    whole = [
        attention.together(one, other, np.maximum(floor, beside))[0] for one, floor, other, beside in (before, after)
    ]
    return np.log(whole[1] / whole[0]), nothing, nothing


def table_for(constants: Constants, form: str, variant: str, gpu: GpuSpec, group: Group) -> Learned | None:
    """The GPU's own, or that of another with the same die and the same constants (A100 in its four packages).

    Each of H100 and H200 predicted by the other's constants: its table brings GEMM from 5.0 to 4.6 %, prefill from 7.7
    to 5.0, decode from 4.5 to 3.0, MoE from 23 to 20. A table of another die of one capability (A40, RTX A6000) made
    GEMM worse by 2 points: none is taken.
    """
    own = constants.residuals.get((form, variant, gpu.gpu))
    if own is not None and group.level == f"gpu:{gpu.gpu}":
        return own
    try:
        sold = load_gpu(gpu.gpu)
    except UnknownGpu:
        return None
    for form_, variant_, name in constants.residuals:
        if (form_, variant_) == (form, variant) and relation(load_gpu(name), sold) == "same_die":
            _, relative = constants.group(form, variant, load_gpu(name))
            if relative.level == f"gpu:{name}" and relative.parameters == group.parameters:
                return constants.residuals[form, variant, name]
    return None


class _Answer:
    """The arrays that calls fill, each its own cells."""

    def __init__(self, constants: Constants, work: WorkTable, gpus: Sequence[GpuSpec]) -> None:
        shape = (len(gpus), work.count)
        self._constants, self._work, self._gpus = constants, work, gpus
        self._times = {name: np.zeros(shape) for name in ("total", "tensor", "dram", "l2", "issue", "launch")}
        self._sigma = np.zeros(shape)

    def put(self, part: _Part, rows: slice, tasks: slice, limits: Limits, sigma: Floats) -> None:
        cells = (rows, part.index[tasks])
        for name, array in self._times.items():
            array[cells] = getattr(limits, name)
        self._sigma[cells] = sigma

    def predictions(self, prepared: dict[int, _Prepared], parts: Sequence[_Part]) -> Predictions:
        rules = self._constants.rules["extra_sigma"]["value"]
        sigma = self._sigma
        extra = np.array([[rules["what_if"] if _is_what_if(gpu) else 0.0] for gpu in self._gpus]).reshape(-1, 1)
        source = np.array([rules["work_from"][str(w)] for w in self._work.text("work_from")])[None, :]
        lacking = np.zeros(sigma.shape)
        for part in parts:
            lacking[:, part.index] = np.where(prepared[id(part)].lacking, rules["dtype_fallback"], 0.0)[:, None]
        pcie = _over_pcie(self._work, self._gpus)
        sigma = np.sqrt(
            sigma**2 + extra**2 + source**2 + lacking**2 + np.where(pcie, rules["pcie_not_measured"], 0.0) ** 2
        )
        reason, reasons = self._reasons(prepared, parts, pcie)

        total = self._times["total"]
        assert np.isfinite(total).all(), "a form returned no number"
        duration = np.maximum(np.rint(total * 1e3), 1)
        spread = np.exp(Z90 * sigma)

        def ns(name: str) -> NDArray[np.int64]:
            return np.rint(self._times[name] * 1e3).astype(np.int64)

        tensor, dram, l2, issue, launch = (ns(n) for n in ("tensor", "dram", "l2", "issue", "launch"))
        bound = np.argmax(np.stack([tensor, dram, l2, issue, launch]), axis=0).astype(np.uint8)
        linked = (self._work.text("family") == Family.COLLECTIVE)[None, :] & (bound == BOUNDS.index("dram"))
        return Predictions(
            duration_ns=duration.astype(np.int64),
            p10_ns=np.maximum(np.floor(duration / spread), 1).astype(np.int64),
            p90_ns=np.ceil(duration * spread).astype(np.int64),
            tensor_ns=tensor,
            dram_ns=dram,
            l2_ns=l2,
            issue_ns=issue,
            launch_ns=launch,
            bound=np.where(linked, BOUNDS.index("link"), bound).astype(np.uint8),
            sigma=sigma.astype(np.float32),
            reason=reason,
            reasons=reasons,
        )

    def _reasons(
        self, prepared: dict[int, _Prepared], parts: Sequence[_Part], pcie: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int16], tuple[str, ...]]:
        words: dict[str, int] = {}
        codes = np.zeros(self._sigma.shape, dtype=np.int16)
        native = self._constants.rules["native_libraries"]["value"]
        for part in parts:
            ready = prepared[id(part)]
            work = part.work
            family = work.text("family")
            kinds, kind_of = np.unique(
                np.array(
                    [
                        f"{a}|{b}|{c}"
                        for a, b, c in zip(family, work.text("library"), work.text("work_from"), strict=True)
                    ]
                ),
                return_inverse=True,
            )
            for row, gpu in enumerate(self._gpus):
                base = [_level_text(ready.groups[row].level)]
                if ready.variants[row] not in {part.variant, OVER_PCIE}:
                    base.append(f"as_{ready.variants[row]}")
                if ready.lacking[row]:
                    base.append("dtype_fallback")
                if _is_what_if(gpu):
                    base.append("what_if")
                texts = [";".join([*base, *_task_reasons(kind, gpu, native)]) for kind in kinds]
                plain = np.array([words.setdefault(text, len(words)) for text in texts], dtype=np.int16)
                row_codes = plain[kind_of]
                over = pcie[row, part.index]
                if over.any():
                    linked = np.array(
                        [words.setdefault(f"{t};pcie_not_measured", len(words)) for t in texts], dtype=np.int16
                    )
                    row_codes = np.where(over, linked[kind_of], row_codes)
                codes[row, part.index] = row_codes
        return codes, tuple(words) or ("",)


def _compute(
    constants: Constants, part: _Part, ready: _Prepared, columns: GpuColumns, rows: slice, tasks: slice
) -> tuple[Limits, Floats]:
    gpu = GpuColumns(*(getattr(columns, name)[rows] for name in GpuColumns.__slots__))
    p: Parameters = {name: column[rows] for name, column in ready.parameters.items()}
    flop_per_us = ready.flop_per_us[rows]
    work = part.work.take(np.arange(tasks.start, tasks.stop))
    limits = limits_of(constants, part.form, p, gpu, flop_per_us, work)
    learned = ready.residual_row[rows]
    if learned.any():
        limits = limits.times(np.exp(ready.residual_ln[learned, tasks]))
    bins = np.searchsorted(np.array(constants.sigma_bins_us), limits.total)
    sigma = np.take_along_axis(ready.sigmas[rows], bins, axis=1)
    if learned.any():
        there = np.take_along_axis(ready.residual_sigmas[learned], bins, axis=1)
        there = np.maximum(there * np.exp(ready.residual_spread_ln[learned, tasks]), SIGMA_MIN)
        sigma = sigma + ready.residual_share[learned, tasks] * (there - sigma)
    if limits.unsure is not None:
        sigma = np.hypot(sigma, limits.unsure)
    if part.form == "rowwise":
        _, guessed = shapes.rowwise_rows(work)
        sigma = np.where(guessed > 0, np.maximum(sigma, constants.rules["extra_sigma"]["value"]["guessed_work"]), sigma)
    return limits, sigma


def limits_of(
    constants: Constants, form: str, p: Parameters, gpu: GpuColumns, flop_per_us: Floats, work: WorkTable
) -> Limits:
    """One form on rows of tasks: what the simulator runs, and what the fit fits."""
    if form == "gemm":
        return gemm(p, gpu, flop_per_us, shapes.gemm_rows(work), constants.candidates["gemm"])
    if form == "moe":
        return gemm(p, gpu, flop_per_us, shapes.moe_rows(work), constants.candidates["gemm"])
    splits = [count for (count,) in constants.candidates["key_splits"]]
    if form == "decode":
        return attention.decode(p, gpu, flop_per_us, shapes.decode_rows(work), splits)
    if form == "mla":
        return attention.decode(p, gpu, flop_per_us, shapes.mla_rows(work), splits)
    if form == "prefill":
        return attention.prefill(p, gpu, flop_per_us, shapes.prefill_rows(work))
    if form == "mixed":
        return attention.mixed(p, gpu, flop_per_us, *shapes.mixed_rows(work), splits)
    if form == "collective":
        rows = shapes.collective_rows(work)
        linked = (gpu.link_bytes_per_us > 0) & (rows.ranks <= gpu.link_gpu_count)
        return collective(p, np.where(linked, gpu.link_bytes_per_us, gpu.pcie_bytes_per_us), rows)
    assert form == "rowwise", form
    rows_, _ = shapes.rowwise_rows(work)
    return rowwise(p, gpu, rows_)


def form_us_as_sold(
    constants: Constants, form: str, parameters: Mapping[str, float], gpu: str, work: WorkTable
) -> Floats:
    """One form by one set of constants on a GPU without overrides, in µs: (tasks,)."""
    total: Floats = limits_as_sold(constants, form, parameters, gpu, work).total[0]
    return total


def limits_as_sold(
    constants: Constants, form: str, parameters: Mapping[str, float], gpu: str, work: WorkTable
) -> Limits:
    """The same with what makes it up: (1, tasks)."""
    spec = load_gpu(gpu)
    p = {name: np.array([[value]]) for name, value in parameters.items()}
    flop_per_us = np.array([[flop_rate(str(work.text("math")[0]), spec)[0] / 1e6]])
    return limits_of(constants, form, p, GpuColumns.of([spec]), flop_per_us, work)


def form_and_variant(
    family: str, math: str, kind: str, w_bits: float, kv_bits: float, collective_name: str, library: str
) -> tuple[str, str]:
    """Which form predicts a task, and which set of its constants."""
    if family in {Family.GEMM, Family.MOE_GEMM}:
        form = "gemm" if family == Family.GEMM else "moe"
        if math in {Math.BF16, Math.NONE} and 0 < w_bits < 16:
            return form, "w4" if w_bits < 8 else "w8"
        if math == Math.FP8 and library == Library.DEEPGEMM:
            return form, "fp8_block"
        return form, str(math) if math != Math.NONE else "bf16"
    kv = "kv8" if 0 < kv_bits < 16 else "kv16"
    if family == Family.ATTENTION_PREFILL:
        return "prefill", kv
    if family == Family.ATTENTION_MIXED:
        return "mixed", kv
    if family == Family.ATTENTION_DECODE:
        return "decode", kv
    if family == Family.MLA:
        return "mla", kv
    if family == Family.COLLECTIVE:
        own_kernel = library in {Library.CUSTOM_ALLREDUCE, Library.MULTIMEM}
        return "collective", "all_reduce:custom" if own_kernel else collective_name or "all_reduce"
    measured_alone = family in {Family.QUANTISE, Family.KV_WRITE}
    return "rowwise", str(family) if measured_alone or not kind else f"{family}:{kind}"


def _parts(work: WorkTable) -> list[_Part]:
    keys: dict[tuple[str, str, str], list[int]] = {}
    seen: dict[tuple[str, ...], tuple[str, str, str]] = {}
    columns = (
        work.text("family"),
        work.text("math"),
        work.text("kind"),
        work["w_bits"],
        work["kv_bits"],
        work.text("collective"),
        work.text("library"),
    )
    for index, raw in enumerate(zip(*columns, strict=True)):
        key = seen.get(raw)
        if key is None:
            form, variant = form_and_variant(*raw)
            math = raw[1]
            used = math if form in {"gemm", "moe"} and math != Math.NONE else "bf16" if form != "rowwise" else "fp32"
            key = seen[raw] = (form, variant, str(used))
        keys.setdefault(key, []).append(index)
    return [
        _Part(form, variant, math, np.array(index), work.take(np.array(index)))
        for (form, variant, math), index in keys.items()
    ]


def _variant_on(gpu: GpuSpec, part: _Part, lacking: bool) -> str:
    """The constants that a GPU would need: without a link all collectives go over PCIe, without a dtype over bf16."""
    if part.form == "collective" and gpu.link_bytes_per_s == 0:
        return OVER_PCIE
    weights_only = part.variant in {"w4", "w8"}
    return "bf16" if lacking and part.form in {"gemm", "moe"} and not weights_only else part.variant


def _task_reasons(kind: str, gpu: GpuSpec, native: dict[str, dict[str, str]]) -> list[str]:
    family, library, work_from = kind.split("|")
    reasons = []
    home = native.get(family, {}).get(gpu.programming_class)
    retargetable = native.get(family, {}).values()
    if home and library in retargetable and library != home:
        reasons.append(f"library:{library}->{home}")
    if family == Family.UNKNOWN:
        reasons.append("unknown_kernel")
    if work_from in {WorkFrom.GRID, WorkFrom.NOTHING}:
        reasons.append(f"work_from_{work_from}")
    return reasons


def _level_text(level: str) -> str:
    return level.replace("gpu:", "calibrated:", 1)


def _over_pcie(work: WorkTable, gpus: Sequence[GpuSpec]) -> NDArray[np.bool_]:
    """Whose collective leaves NVLink or its like: the host decides how fast that is."""
    collective_ = (work.text("family") == Family.COLLECTIVE)[None, :]
    beyond = np.array([[g.link_gpu_count if g.link_bytes_per_s else 0] for g in gpus]).reshape(-1, 1)
    over: NDArray[np.bool_] = collective_ & (work["ranks"][None, :] > beyond) & (work["ranks"][None, :] > 1)
    return over


def _is_what_if(gpu: GpuSpec) -> bool:
    try:
        return load_gpu(gpu.gpu) != gpu
    except UnknownGpu:
        return True


def _ranges(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
