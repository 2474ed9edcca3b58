"""Boosted trees over a form, for kernels whose table no grid can hold: expert GEMMs have five sizes and few rows each.

Fused MoE kernels are tuned shape by shape, so what is learned jumps between neighbours; a grid wide enough for five
sizes smooths that away (A100: 14.6 % on a grid, 5.8 % by trees). The trees are learned by calibration/residual.py and
evaluated with numpy alone. That more rows, columns, depth or experts hit never make a kernel faster by more than a
tenth is held here: the answer stays within the band of other trees, which were learned so that they never fall as a
size or the form grows.
"""

from __future__ import annotations

import base64
import lzma
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.kernels.work import Floats, WorkTable
from services.simworker.simulators.analytic.residual import (
    AXES,
    BAND,
    GROWING,
    coordinates,
    faded,
    like_the_table,
)

_FORM = "moe"
_GROWING = len(GROWING[_FORM])  # the first axes
# As stored: the type, and steps per unit. Thresholds lie close to sizes that tile exactly, and are kept as they are.
_STORED: Mapping[str, tuple[str, float]] = {
    "feature": ("i1", 1), "threshold": ("<f4", 1), "left": ("i1", 1), "right": ("i1", 1), "value": ("<i2", 4_000),
}  # fmt: skip

FormUs = Callable[[WorkTable], Floats]
"""The form's time per task on the GPU as it is sold, in µs: (tasks,)."""


@dataclass(frozen=True, slots=True)
class Trees:
    """Arrays of (trees, nodes); a leaf is its own child."""

    feature: NDArray[np.int8]
    threshold: NDArray[np.float32]  # at most: to the left
    left: NDArray[np.int8]
    right: NDArray[np.int8]
    value: NDArray[np.float32]  # of leaves: ln(measured ÷ form)

    def sum_at(self, inputs: Floats) -> Floats:
        """(features, tasks) -> (tasks,)"""
        trees, nodes = self.feature.shape
        feature, threshold = self.feature.ravel(), self.threshold.ravel()
        left, right = self.left.ravel(), self.right.ravel()
        first = np.arange(trees)[:, None] * nodes
        task = np.arange(inputs.shape[1])[None, :]
        at = np.broadcast_to(first, (trees, inputs.shape[1]))
        while True:
            below = inputs[feature[at], task] <= threshold[at]
            child = first + np.where(below, left[at], right[at])
            if (child == at).all():
                total: Floats = self.value.ravel()[at].sum(axis=0, dtype=np.float64)
                return total
            at = child


@dataclass(frozen=True, slots=True)
class Rising:
    """What never falls as m, n, k or the form's time grows: a share of the form, and trees that were held so."""

    trees: Trees
    slope: float  # share of ln of the form's time that is not left to the trees' steps

    def ln_us(self, x: Floats, form_ln: Floats) -> Floats:
        """x: log2 sizes (axes, tasks)"""
        total: Floats = self.slope * form_ln + self.trees.sum_at(rising_features(x, form_ln))
        return total


@dataclass(frozen=True, slots=True)
class Forest:
    """One GPU's trees of one variant of expert GEMMs."""

    trees: Trees
    nodes: tuple[Floats, ...]  # log2 of sizes that were measured, per axis: the first and the last, and some between
    sm_count: float  # of the GPU that was measured: waves are counted with it
    sigmas: tuple[float, ...]
    copies: float
    l2_kept_bytes: float
    rising: Rising
    spread: Trees | None = None  # of log2 sizes: ln(sigma ÷ sigmas)

    def evaluate(self, work: WorkTable, form_us: FormUs) -> tuple[Floats, Floats, Floats]:
        """The factor's ln, how much of it is the table's, from 0 to 1, and ln of what sigma is to the table's: per
        task.
        """
        x = coordinates(_FORM, work)
        inside = np.array([np.clip(position, n[0], n[-1]) for n, position in zip(self.nodes, x, strict=True)])
        ln = self._held(inside, work, form_us)
        share = like_the_table(self.copies, self.l2_kept_bytes, _FORM, work)
        lowered = share
        for axis, (nodes, position) in enumerate(zip(self.nodes, x, strict=True)):
            above, below = position - nodes[-1], nodes[0] - position
            fade = faded(np.maximum(above, below))
            share = share * fade
            lowered = lowered * (faded(above) if axis < _GROWING else fade)
        spread = self.spread.sum_at(inside) if self.spread is not None else np.zeros(work.count)
        return ln * np.where(ln < 0, lowered, share), share, spread

    def learned(self, x: Floats) -> Floats:
        """What the trees say at log2 sizes (axes, tasks), not held yet."""
        return self.trees.sum_at(features(_FORM, x, self.sm_count))

    def _held(self, x: Floats, work: WorkTable, form_us: FormUs) -> Floats:
        if x.shape[1] == 0:
            return np.zeros(0)
        form_ln = np.log(form_us(self._work_at(work, x)))
        total = form_ln + self.learned(x)
        near = self.rising.ln_us(x, form_ln)
        return np.asarray(np.clip(total, near - BAND, near + BAND) - form_ln)

    def _work_at(self, work: WorkTable, x: Floats) -> WorkTable:
        """Tasks of the kernel that was measured, of other sizes."""
        first = work.take(np.zeros(x.shape[1], dtype=np.intp))
        sizes = {name: 2.0**position for name, position in zip(AXES[_FORM], x, strict=True)}
        busiest = sizes.pop("skew") * sizes["m"] * sizes["topk"] / sizes["experts_hit"]
        copies = np.full(x.shape[1], self.copies)
        return first.replaced({**sizes, "rows_busiest_expert": busiest, "weight_copies": copies})


def features(form: str, x: Floats, sm_count: float) -> Floats:
    """(features, tasks): the coordinates, and what tiles, waves and sizes make of them."""
    size = np.round(2.0**x, 6)  # whole sizes whole again: what follows jumps at them
    more: list[Floats] = []
    if form in {"gemm", "moe"}:
        m, n, k = size[:3]
        matrices = np.ones(m.shape)
        if form == "moe":
            matrices, experts, topk, skew = size[3:]
            m = m * topk / matrices
            more += [np.log2(matrices / experts), np.log2(skew * m)]
        more += [np.log2(n * k), np.log2(m * n), np.log2(matrices), m / (64 * np.ceil(m / 64))]
        more += [n / (128 * np.ceil(n / 128))]
        for rows, columns in ((128, 128), (256, 128), (64, 64), (128, 256)):
            load = matrices * np.ceil(m / rows) * np.ceil(n / columns) / sm_count
            more += [np.log2(load), np.ceil(load) / load]
    elif form in {"decode", "mla"}:
        units = size[0] * (size[2] if form == "decode" else 1)
        load = units / sm_count
        more += [np.log2(units), np.log2(units * size[1]), np.ceil(load) / load]
        if form == "decode":
            more += [x[2] + x[3], np.log2(units * size[1] * size[4]), x[0] + x[2] + x[3]]
    elif form == "prefill":
        heads = size[2] * size[3]
        load = size[0] * np.ceil(size[1] / 128) * heads / sm_count
        more += [np.log2(heads), x[0] + 2 * x[1] + np.log2(heads), np.log2(load), np.ceil(load) / load]
    else:
        more += [x[0] + x[1]]
    return np.array([*x, *more])


def rising_features(x: Floats, form_ln: Floats) -> Floats:
    """(features, tasks): the coordinates, the form's time, and what else never falls as m, n, k or experts hit grow."""
    rows, n, k, hit, _, topk, _ = np.round(2.0**x, 6)
    rows = rows * topk
    more = [np.log2(rows), np.log2(hit * n * k), np.log2(rows * n * k), np.log2(rows * n)]
    for tile_rows, columns in ((64, 128), (128, 128), (128, 256)):
        more.append(
            np.log2((rows / tile_rows + hit) * np.ceil(n / columns))
        )  # tiles, were each expert's last one empty
    return np.array([*x, form_ln, *more])


def from_json(stored: Mapping[str, Any]) -> Forest:
    rising = stored["rising"]
    return Forest(
        _unpacked(stored), nodes=tuple(np.array(axis) for axis in stored["nodes"]), sm_count=stored["sm_count"],
        sigmas=tuple(stored["sigmas"]), copies=stored["copies"], l2_kept_bytes=stored["l2_kept_bytes"],
        rising=Rising(_unpacked(rising), rising["slope"]),
        spread=_unpacked(stored["spread"]) if "spread" in stored else None,
    )  # fmt: skip


def _unpacked(stored: Mapping[str, Any]) -> Trees:
    shape = (stored["trees"], stored["nodes_per_tree"])
    raw = lzma.decompress(base64.b64decode(stored["values"]))
    arrays: dict[str, NDArray[Any]] = {}
    begin = 0
    for name, (kind, steps) in _STORED.items():
        size = shape[0] * shape[1] * np.dtype(kind).itemsize
        column = np.frombuffer(raw[begin : begin + size], dtype=kind).reshape(shape)
        arrays[name] = column if steps == 1 else (column / steps).astype(np.float32)
        begin += size
    return Trees(**arrays)


def to_json(forest: Forest) -> dict[str, Any]:
    return {
        "kind": "forest",
        "nodes": [[round(float(node), 4) for node in axis] for axis in forest.nodes],
        "sm_count": forest.sm_count,
        "sigmas": list(forest.sigmas),
        "copies": forest.copies,
        "l2_kept_bytes": forest.l2_kept_bytes,
        **_packed(forest.trees),
        "rising": {"slope": forest.rising.slope, **_packed(forest.rising.trees)},
        **({"spread": _packed(forest.spread)} if forest.spread is not None else {}),
    }


def _packed(trees: Trees) -> dict[str, Any]:
    count, nodes = trees.feature.shape
    raw = b"".join(
        (getattr(trees, name) if steps == 1 else np.rint(getattr(trees, name) * steps)).astype(kind).tobytes()
        for name, (kind, steps) in _STORED.items()
    )
    values = base64.b64encode(lzma.compress(raw, preset=9)).decode("ascii")
    return {"trees": count, "nodes_per_tree": nodes, "values": values}
