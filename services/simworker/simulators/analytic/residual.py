"""What a GPU's own table says beyond the form: a factor on its times, interpolated over shapes.

ln(measured ÷ form) on a grid of log2 of the sizes, linear in between. It reads shapes and the name of the GPU whose
table it is, no parameter of a chip: an override moves the form and keeps the factor, so that a better chip is never
slower. Where the table ends the factor returns to 1.
"""

from __future__ import annotations

import base64
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.kernels.work import Floats, WorkTable
from services.simworker.simulators.analytic import shapes
from services.simworker.simulators.quantities import busiest_rows

RESOLUTION = 1 / 100
"""Of ln(measured ÷ form): nodes are stored as int8."""

SPREAD_RESOLUTION = 1 / 25
"""Of ln of what a shape's sigma is to the table's: nodes are stored as int8."""

SIGMA_MIN = 0.01
"""No two runs are alike."""

BAND = 0.045
"""From size to greater size, form times factor may fall by twice this: less than a tenth, with rounding."""

_STEPS_ALONG = 1  # stored are differences along this axis (they wrap): a third smaller
_FADE_OCTAVES = 2.0  # beyond the last node; a guess: the next size and the one after still resemble the last measured

AXES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "moe": ("m", "n", "k", "experts_hit", "experts", "topk", "skew"),
    "decode": ("requests", "keys", "kv_heads", "group", "width", "windowed"),
    "mla": ("requests", "keys", "heads"),
    "prefill": ("requests", "queries", "kv_heads", "group", "width", "windowed", "history"),
    "collective": ("ranks", "bytes"),
    "rowwise": ("rows", "row_bytes"),
}
"""Per form; all are log2 of their quantity, except windowed: 0 or 1."""

GROWING: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "moe": ("m", "n", "k", "experts_hit"),
    "decode": ("requests", "keys"),
    "mla": ("requests", "keys"),
    "prefill": ("requests", "queries"),
    "collective": ("bytes",),
    "rowwise": ("rows", "row_bytes"),
}
"""More of these is never faster, within a tenth."""


@dataclass(frozen=True, slots=True)
class Residual:
    """One GPU's table of one form and variant."""

    nodes: tuple[Floats, ...]  # per axis, ascending
    values: NDArray[np.int8]  # flat, the last axis fastest; in units of RESOLUTION
    sigmas: tuple[float, ...]  # with the factor applied, on rows left out; bins as those of the form's sigmas
    copies: float  # of the weights or the cache that the table's benchmark rotated
    l2_kept_bytes: float  # what of them L2 kept
    spread: NDArray[np.int8] | None = None  # as values, of ln(sigma ÷ sigmas); in units of SPREAD_RESOLUTION

    def mesh(self) -> Floats:
        return mesh_of(self.nodes)


def mesh_of(nodes: Sequence[Floats]) -> Floats:
    """Every point of a grid, the last axis fastest: (axes, points)."""
    return np.array([axis.ravel() for axis in np.meshgrid(*nodes, indexing="ij")])


def coordinates(form: str, work: WorkTable) -> Floats:
    """(axes, tasks)"""
    columns: list[NDArray[Any]]
    if form == "gemm":
        rows = shapes.gemm_rows(work)
        columns = [rows.m, rows.n, rows.k]
    elif form == "moe":
        rows = shapes.moe_rows(work)
        skew = busiest_rows(work) / np.maximum(rows.m, 1e-9)  # of the busiest expert to the mean of those hit
        columns = [work["m"], rows.n, rows.k, rows.matrices, work["experts"], work["topk"], skew]
    elif form == "decode":
        decode = shapes.decode_rows(work)
        kv_heads = np.maximum(work["kv_heads"], 1)
        columns = [
            decode.units / kv_heads, decode.keys, kv_heads, decode.heads_per_unit, decode.width, 1 + decode.windowed,
        ]  # fmt: skip
    elif form == "mla":
        mla = shapes.mla_rows(work)
        columns = [mla.units, mla.keys, mla.heads_per_unit]
    elif form == "prefill":
        chunks = shapes.prefill_rows(work)
        history = np.where(work["window"] > 0, chunks.queries_mean, chunks.keys / chunks.requests)
        columns = [
            chunks.requests, chunks.queries_mean, chunks.kv_heads, chunks.heads / chunks.kv_heads, chunks.width,
            1.0 + (work["window"] > 0), history / np.maximum(chunks.queries_mean, 1),
        ]  # fmt: skip
    elif form == "collective":
        collective = shapes.collective_rows(work)
        columns = [collective.ranks, collective.message_bytes]
    else:
        passing, _ = shapes.rowwise_rows(work)
        rows_ = np.maximum(work["rows"], 1)[None, :]
        columns = [rows_, passing.moved_bytes / rows_]
    sizes = np.array([np.broadcast_to(c, (1, work.count))[0] for c in columns], dtype=np.float64)
    answer: Floats = np.log2(np.maximum(sizes, 2.0**-10))
    return answer


def evaluate(residual: Residual, form: str, work: WorkTable) -> tuple[Floats, Floats, Floats]:
    """The factor's ln, how much of it is the table's, from 0 to 1, and ln of what sigma is to the table's: per task."""
    x = coordinates(form, work)
    share = like_the_table(residual.copies, residual.l2_kept_bytes, form, work)
    lowered, raised = share, share
    if form == "gemm":
        # Cold kernels of which only hot ones were measured: small, and mostly launch. A factor below one that set in
        # where the measured ones grow cold would make more work faster; it holds for all, with the form's interval.
        lowered = (shapes.gemm_rows(work).matrices[0] <= 1).astype(np.float64)
    for name, nodes, position in zip(AXES[form], residual.nodes, x, strict=True):
        above, below = position - nodes[-1], nodes[0] - position
        fade = faded(np.maximum(above, below))
        share = share * fade
        # A kernel that is mostly launch stands still as its size grows: there a factor that faded would make more work
        # faster. It is held, and only the interval is the form's again.
        growing = name in GROWING[form]
        lowered = lowered * (faded(above) if growing else fade)
        raised = raised * (faded(below) if growing and form == "rowwise" else fade)
    if residual.spread is None:
        ln = interpolated(residual.nodes, residual.values, x) * RESOLUTION
        spread = np.zeros(work.count)
    else:
        ln, spread = interpolated(residual.nodes, np.stack([residual.values, residual.spread]), x)
        ln, spread = ln * RESOLUTION, spread * SPREAD_RESOLUTION
    return ln * np.where(ln < 0, lowered, raised), share, spread


def faded(octaves: Floats) -> Floats:
    """1 inside the table, 0 two octaves beyond it."""
    share: Floats = np.clip(1 - octaves / _FADE_OCTAVES, 0, 1)
    return share


def interpolated(axes: Sequence[Floats], values: NDArray[Any], x: Floats) -> Floats:
    """Linear between the nodes of a flat table (the last axis fastest), held beyond them: x is (axes, tasks). Of
    several tables, (tables, nodes), all at once: (tables, tasks).
    """
    count = x.shape[1]
    corners: list[tuple[tuple[NDArray[np.intp], Floats], ...]] = []
    stride = values.shape[-1]
    for nodes, position in zip(axes, x, strict=True):
        stride //= nodes.size
        if nodes.size == 1:
            continue
        low = np.clip(np.searchsorted(nodes, position, side="right") - 1, 0, nodes.size - 2)
        part = np.clip((position - nodes[low]) / (nodes[low + 1] - nodes[low]), 0, 1)
        corners.append(((low * stride, 1 - part), ((low + 1) * stride, part)))
    total: Floats = np.zeros((*values.shape[:-1], count))
    for corner in product(*corners):
        index = np.zeros(count, dtype=np.intp)
        weight: Floats = np.ones(count)
        for offset, part in corner:
            index += offset
            weight = weight * part
        total += weight * values[..., index]
    return total


def like_the_table(table_copies: float, l2_kept_bytes: float, form: str, work: WorkTable) -> Floats:
    """1 where the task finds L2 as the benchmark did: what a hot kernel taught says nothing about the cold one."""
    if form in {"gemm", "moe"}:
        rows = shapes.gemm_rows(work) if form == "gemm" else shapes.moe_rows(work)
        once, copies = rows.matrices * rows.n * rows.k * rows.w_bytes, rows.weight_copies
    elif form in {"decode", "mla"}:
        keys = shapes.decode_rows(work) if form == "decode" else shapes.mla_rows(work)
        once, copies = keys.units * keys.keys * keys.key_bytes, keys.kv_copies
    else:
        return np.ones(work.count)
    always = np.isinf(copies)
    there = np.clip(once * table_copies / l2_kept_bytes - 1, 0, 1)
    here = np.where(always, 1.0, np.clip(once * np.where(always, 0, copies) / l2_kept_bytes - 1, 0, 1))
    share: Floats = 1 - np.abs(here - there)[0]
    return share * (rows.matrices[0] <= 1) if form == "gemm" else share  # batched products were never measured


def from_json(stored: Mapping[str, Any]) -> Residual:
    nodes = tuple(np.array(axis, dtype=np.float64) for axis in stored["nodes"])
    spread = _unpacked(stored["spread"], nodes) if "spread" in stored else None
    values = _unpacked(stored["values"], nodes)
    return Residual(nodes, values, tuple(stored["sigmas"]), stored["copies"], stored["l2_kept_bytes"], spread)


def to_json(residual: Residual) -> dict[str, Any]:
    return {
        "nodes": [[round(float(node), 4) for node in axis] for axis in residual.nodes],
        "sigmas": list(residual.sigmas),
        "copies": residual.copies,
        "l2_kept_bytes": residual.l2_kept_bytes,
        "values": _packed(residual.values, residual.nodes),
        **({"spread": _packed(residual.spread, residual.nodes)} if residual.spread is not None else {}),
    }


def _unpacked(text: str, nodes: Sequence[Floats]) -> NDArray[np.int8]:
    steps = np.frombuffer(lzma.decompress(base64.b64decode(text)), dtype=np.int8)
    return np.cumsum(steps.reshape([axis.size for axis in nodes]), axis=_STEPS_ALONG, dtype=np.int8).ravel()


def _packed(values: NDArray[np.int8], nodes: Sequence[Floats]) -> str:
    steps = np.diff(values.reshape([axis.size for axis in nodes]), axis=_STEPS_ALONG, prepend=np.int8(0))
    return base64.b64encode(lzma.compress(steps.astype(np.int8).tobytes(), preset=9)).decode("ascii")
