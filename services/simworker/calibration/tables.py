"""Measured latencies as work and times: what the constants are fitted to, and what they are scored on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from cascade_schemas.gpu import UnknownGpu, load_gpu
from numpy.typing import NDArray

from services.kernels.work import Family, Floats, Library, Math, Work, WorkTable
from services.simworker.simulators.analytic.shapes import OP_2024

# The columns that say which shape was measured, per op of the tables of pairs.
SHAPE_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": (
        "batch", "new_tokens", "past_tokens", "heads", "kv_heads", "head_dim", "window_size",
    ),
    "attention_decode": (
        "batch", "new_tokens", "past_tokens", "heads", "kv_heads", "head_dim", "window_size",
    ),
    "elementwise": ("kind", "rows", "width"),
    "collective": ("collective", "num_gpus", "bytes"),
    "mla": ("heads", "batch", "new_tokens", "past_tokens"),
    "moe": ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"),
}  # fmt: skip

# The skewed rows: densities x**-1.2 of an expert's rows.
SKEWED, _SKEW = "power_law_1.2", 0.2
_ORDERS, _SEED = 64, 7

Columns = Mapping[str, NDArray[Any]]
Shape = tuple[Any, ...]


def is_left_out(columns: Sequence[str], shape: Shape) -> bool:
    """A fifth of all shapes, the same for every GPU, dtype and framework: no constant is fitted to them."""
    canonical = json.dumps(dict(zip(columns, shape, strict=True)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).digest()[0] % 5 == 0


def shapes_of(columns: Columns, op: str) -> list[Shape]:
    return list(zip(*(_plain(columns[name]) for name in SHAPE_COLUMNS[op]), strict=True))


def left_out(shapes: Sequence[Shape], op: str) -> NDArray[np.bool_]:
    known: dict[Shape, bool] = {}
    for shape in shapes:
        if shape not in known:
            known[shape] = is_left_out(SHAPE_COLUMNS[op], shape)
    return np.array([known[shape] for shape in shapes], dtype=np.bool_)


def pair_shapes(pairs: Path | None) -> dict[str, set[Shape]]:
    """The shapes that the table of pairs scores: they are never fitted to either."""
    if pairs is None or not pairs.exists():
        return {}
    columns = read_columns(pairs)
    return {
        op: set(shapes_of(select(columns, columns["op"] == op), op))
        for op in np.unique(columns["op"].astype(str))
        if op in SHAPE_COLUMNS
    }


@dataclass(frozen=True, slots=True)
class Companion:
    """A kernel that the measured time includes beside the one in question, with the constants that predict it."""

    form: str
    variant: str
    work: WorkTable


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of one GPU that one form and variant predict."""

    form: str
    variant: str
    gpu: str
    work: WorkTable
    measured_us: Floats
    resolution_us: float  # of the clock, or what launching adds: small times are trusted less
    cold: NDArray[np.bool_]
    left_out: NDArray[np.bool_]  # by the rule above
    scored: NDArray[np.bool_]  # occurs in the table of pairs
    companions: tuple[Companion, ...] = field(default=())
    op: str = ""
    columns: Columns = field(default_factory=dict)  # what the tables of pairs say of a shape

    @property
    def fitted(self) -> NDArray[np.bool_]:
        return ~self.left_out & ~self.scored

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Sample:
        return Sample(
            self.form, self.variant, self.gpu, self.work.take(index), self.measured_us[index], self.resolution_us,
            self.cold[index], self.left_out[index], self.scored[index],
            tuple(Companion(c.form, c.variant, c.work.take(index)) for c in self.companions), self.op,
            {name: column[index] for name, column in self.columns.items()},
        )  # fmt: skip


def read_samples(folder: Path) -> list[Sample]:
    """Every row of silicon/calibration that a form predicts, for the GPUs that are ours."""
    pairs = pair_shapes(folder / "silicon" / "pairs_dev.parquet")
    readers: tuple[Callable[[Path, dict[str, set[Shape]]], Iterable[Sample]], ...] = (
        _gemm_samples, _prefill_samples, _decode_samples, _rowwise_samples, _collective_samples, _mla_samples,
        _moe_samples,
    )  # fmt: skip
    return [s for reader in readers for s in reader(folder / "silicon" / "calibration", pairs) if s.measured_us.size]


def work_table(count: int, **columns: Any) -> WorkTable:
    """A table of `count` tasks: the columns given, as arrays or one value for all; the rest as Work leaves them."""
    plain = Work()
    numbers: dict[str, Floats] = {}
    texts: dict[str, NDArray[np.object_]] = {}
    for name in Work.__dataclass_fields__:
        value = columns.pop(name, getattr(plain, name))
        if isinstance(getattr(plain, name), str):
            texts[name] = np.array(
                [str(v) for v in value] if isinstance(value, np.ndarray) else [str(value)] * count, dtype=object
            )
        else:
            numbers[name] = np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)).copy()
    assert not columns, f"no such columns of work: {', '.join(columns)}"
    return WorkTable(numbers, texts)


def gemm_work(
    c: Columns, math: Math, a_bits: float, w_bits: float, copies: Any, library: Library = Library.UNKNOWN
) -> WorkTable:
    return work_table(
        len(c["m"]), family=Family.GEMM, math=math, work_from="shapes", m=c["m"], n=c["n"], k=c["k"],
        a_bits=a_bits, w_bits=w_bits, out_bits=32.0 if math == Math.FP32 else 16.0, weight_copies=copies,
        batch=c.get("batch", 1), library=library,
    )  # fmt: skip


QUANTISED: Mapping[str, tuple[Math, float, float]] = {
    "fp8": (Math.FP8, 8, 8), "fp8_block": (Math.FP8, 8, 8), "fp4": (Math.FP4, 4.5, 4.5), "int8": (Math.INT8, 8, 8),
    "w4": (Math.BF16, 16, 4), "w8": (Math.BF16, 16, 8),
}  # fmt: skip
"""Variant -> arithmetic, bits of an activation, bits of a weight: 4.5 are 4 and a scale of 8 for each 16."""


def quantised_gemm(variant: str, c: Columns, copies: Any) -> tuple[WorkTable, tuple[Companion, ...]]:
    math, a_bits, w_bits = QUANTISED[variant]
    work = gemm_work({name: c[name] for name in ("m", "n", "k")}, math, a_bits, w_bits, copies, _library(variant))
    if a_bits >= 16:
        return work, ()
    # The measured call quantises the activations first.
    moved = c["m"].astype(float) * c["k"] * (2 + a_bits / 8)
    quantise = work_table(
        len(moved), family=Family.QUANTISE, math=Math.NONE, work_from="shapes", rows=c["m"], read_bytes=moved
    )
    return work, (Companion("rowwise", "quantise", quantise),)


def _library(variant: str) -> Library:
    """FP8 scaled per block has kernels of its own, which only their library tells from other FP8."""
    return Library.DEEPGEMM if variant == "fp8_block" else Library.UNKNOWN


def attention_work(c: Columns, family: Family) -> WorkTable:
    batch, new, past = c["batch"].astype(float), c["new_tokens"].astype(float), c["past_tokens"].astype(float)
    window = c["window_size"].astype(float)
    seen = np.where(window > 0, window, np.inf)
    keys = np.minimum(past + new, seen + new - 1)
    # A query at position i sees min(i + 1, window) keys; summed over the new positions of one request.
    first, last = past + 1, past + new
    below = np.clip(seen - first + 1, 0, new)  # queries that see all keys before them
    full = np.where(np.isinf(seen), new, below)
    pairs = full * (first + first + full - 1) / 2 + np.where(
        np.isinf(seen), 0, (new - full) * np.where(np.isinf(seen), 0, seen)
    )
    return work_table(
        len(batch), family=family, math=Math.BF16, work_from="shapes", sequences=batch, q_tokens=batch * new,
        kv_tokens=batch * keys, qk_pairs=batch * pairs, q_longest=new, kv_longest=np.minimum(last, keys),
        heads=c["heads"],
        kv_heads=c["kv_heads"], head_dim=c["head_dim"], kv_bits=np.where(c["kv_dtype"].astype(str) == "fp8", 8.0, 16.0),
        window=window, kv_copies=1.0,
    )  # fmt: skip


def kv_write_work(c: Columns) -> WorkTable:
    """The kernel that stores new keys and values: attention's measured calls of vLLM and SGLang include it."""
    tokens = c["batch"].astype(float) * c["new_tokens"]
    values = 2 * tokens * c["kv_heads"] * c["head_dim"]
    kv_bytes = np.where(c["kv_dtype"].astype(str) == "fp8", 1.0, 2.0)
    return work_table(
        len(tokens), family=Family.KV_WRITE, math=Math.NONE, work_from="shapes",
        read_bytes=2 * values, write_bytes=kv_bytes * values, rows=tokens,
    )  # fmt: skip


def rowwise_work(c: Columns, kind: Any, moved_bytes: Floats, family: Any) -> WorkTable:
    return work_table(
        len(moved_bytes), family=family, math=Math.NONE, work_from="shapes", kind=kind, rows=c["rows"],
        read_bytes=moved_bytes, write_bytes=0.0,
    )  # fmt: skip


def collective_work(c: Columns) -> WorkTable:
    return work_table(
        len(c["bytes"]), family=Family.COLLECTIVE, math=Math.NONE, work_from="shapes", ranks=c["num_gpus"],
        message_bytes=c["bytes"],
        collective=np.array([COLLECTIVES.get(str(name), str(name)) for name in c["collective"]], dtype=object),
    )  # fmt: skip


def mla_work(c: Columns, kv_bits: float) -> WorkTable:
    batch, keys = c["batch"].astype(float), c["past_tokens"].astype(float) + 1
    return work_table(
        len(batch), family=Family.MLA, math=Math.BF16, work_from="shapes", sequences=batch, q_tokens=batch,
        kv_tokens=batch * keys, qk_pairs=batch * keys, kv_longest=keys, heads=c["heads"], kv_heads=1.0,
        head_dim=576.0, kv_bits=kv_bits, kv_copies=1.0,
    )  # fmt: skip


def moe_call(variant: str, c: Columns) -> tuple[WorkTable, tuple[Companion, ...]]:
    """Gate and up; then the activation, down, and the sum."""
    math, a_bits, w_bits = QUANTISED.get(variant, (Math.BF16, 16, 16))
    hidden, inter = c["hidden_size"].astype(float), c["inter_size"].astype(float) / c["moe_tp_size"]
    rows, hit, busiest = _routed(c)
    tokens = rows / c["topk"]
    common = {
        "family": Family.MOE_GEMM, "math": math, "work_from": "shapes", "m": tokens, "topk": c["topk"],
        "experts": c["num_experts"].astype(float) / c["moe_ep_size"], "experts_hit": hit,
        "rows_busiest_expert": busiest, "a_bits": a_bits, "w_bits": w_bits, "weight_copies": 1.0,
        "library": _library(variant),
    }  # fmt: skip
    first = work_table(len(hidden), **common, n=2 * inter, k=hidden)
    second = work_table(len(hidden), **common, n=hidden, k=inter)
    # The activation, and what sums up a token's rows, pass over all rows: those too that are of other ranks' experts.
    everyone = c["num_tokens"].astype(float)
    moved = everyone * c["topk"] * (6 * inter + 2 * hidden)
    act = work_table(
        len(hidden), family=Family.ACTIVATION, math=Math.NONE, work_from="shapes", rows=everyone, read_bytes=moved
    )
    return first, (Companion("moe", variant, second), Companion("rowwise", "stream", act))


def _routed(c: Columns) -> tuple[Floats, Floats, Floats]:
    """Of the rank that is measured: its rows, its experts that have any, and the rows of the busiest of them."""
    names = ("num_tokens", "num_experts", "topk", "moe_ep_size")
    skewed = c["distribution"].astype(str) == SKEWED if "distribution" in c else np.zeros(len(c["topk"]), dtype=bool)
    keys = np.array([skewed, *(c[name] for name in names)], dtype=np.int64)
    unique, which = np.unique(keys, axis=1, return_inverse=True)
    found = np.array([_of_rank(bool(key[0]), *(int(value) for value in key[1:])) for key in unique.T])
    rows, hit, busiest = found[which.ravel()].T
    return rows, hit, busiest


@cache
def _of_rank(is_skewed: bool, tokens: int, experts: int, topk: int, ranks: int) -> tuple[float, float, float]:
    own = experts // ranks
    if not is_skewed:  # in turn, so that as many experts as there are rows have one
        rows = max(tokens * topk / ranks, 1.0)
        hit = min(float(own), rows)
        return rows, hit, rows / hit
    # Loads as the tables' power law has them, given to ranks at random; it is the busiest rank that is measured.
    low, high = (0.01, 2.0) if tokens * topk <= experts else (1.0, max(0.8 * tokens, 1.0))
    quantile = (np.arange(experts) + 0.5) / experts
    loads = (low**-_SKEW + quantile * (high**-_SKEW - low**-_SKEW)) ** (-1 / _SKEW)
    loads = np.rint(loads * tokens * topk / loads.sum())
    random = np.random.default_rng(_SEED)
    orders = random.permuted(np.tile(loads, (_ORDERS if ranks > 1 else 1, 1)), axis=1).reshape(-1, ranks, own)
    busiest = orders[np.arange(len(orders)), orders.sum(axis=2).argmax(axis=1)]
    of_ranks = busiest.sum(axis=1), (busiest > 0).sum(axis=1), busiest.max(axis=1)
    rows, hit, most = (max(float(column.mean()), 1.0) for column in of_ranks)
    return rows, hit, most


COLLECTIVES = {"alltoall": "all_to_all"}


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    table = pq.read_table(path)
    return {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}


def select(columns: Columns, where: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name: column[where] for name, column in columns.items()}


def _plain(column: NDArray[Any]) -> list[Any]:
    if column.dtype == object:
        return [str(value) for value in column]
    return [int(value) for value in column]


def _by_gpu(columns: Columns) -> Iterable[tuple[str, dict[str, NDArray[Any]]]]:
    for name in sorted(set(columns["gpu"].astype(str))):
        try:
            gpu = load_gpu(name)
        except UnknownGpu:  # P100 and P4: older than any GPU of ours
            continue
        yield gpu.gpu, select(columns, columns["gpu"] == name)


def _sample(
    form: str, variant: str, gpu: str, op: str, c: Columns, work: WorkTable, pairs: dict[str, set[Shape]],
    cold: NDArray[np.bool_], resolution_us: float = 0.0, companions: tuple[Companion, ...] = (),
) -> Sample:  # fmt: skip
    shapes = shapes_of(c, op)
    scored = pairs.get(op, set())
    return Sample(
        form, variant, gpu, work, c["latency_us"].astype(np.float64), resolution_us, cold, left_out(shapes, op),
        np.array([shape in scored for shape in shapes], dtype=np.bool_), companions, op,
        {name: c[name] for name in (*SHAPE_COLUMNS[op], "dtype", "kv_dtype", "distribution") if name in c},
    )  # fmt: skip


def _newest(c: Columns, backends: Sequence[str], least: int = 1) -> dict[str, NDArray[Any]]:
    """The rows of the first backend that has `least` or more in its newest version: engines are traced as they are
    now.
    """
    for backend in backends:
        rows = select(c, c["backend"].astype(str) == backend)
        if len(rows["backend"]):
            versions = sorted(set(rows["version"].astype(str)), key=_version)
            rows = select(rows, rows["version"].astype(str) == versions[-1])
            if len(rows["backend"]) >= least or backend == backends[-1]:
                return rows
    return select(c, np.zeros(len(c["backend"]), dtype=bool))


def _version(text: str) -> list[int]:
    return [int(part) for part in text.replace("rc", ".").replace("post", "").split(".") if part.isdigit()]


def _gemm_samples(folder: Path, pairs: dict[str, set[Shape]]) -> Iterable[Sample]:
    for gpu, c in _by_gpu(read_columns(folder / "gemm.parquet")):
        l2 = load_gpu(gpu).l2_bytes
        rows = _newest(c, ("vllm", "sarathi (torch/cuBLAS)", "hf-transformers (torch)"))
        graph = str(rows["timing"][0]) == "cudagraph"
        if not graph:  # kernel times of the torch profiler, the first rounded to 1 µs
            rows = select(rows, rows["latency_us"] >= 10)
        work = gemm_work(rows, Math.BF16, 16, 16, rows["weight_copies"].astype(float))
        weights = rows["n"].astype(float) * rows["k"] * 2 * rows["weight_copies"]
        yield _sample("gemm", "bf16", gpu, "gemm", rows, work, pairs, weights > 1.5 * l2, 0.0 if graph else 1.0)
    for gpu, c in _by_gpu(read_columns(folder / "gemm_fp8.parquet")):
        rows = _newest(c, ("vllm",))
        yield _quantised("fp8", gpu, rows, pairs)
    low = read_columns(folder / "gemm_lowprec.parquet")
    for dtype, variant, backends in (
        ("fp8_block", "fp8_block", ("sglang", "trtllm")),
        ("nvfp4", "fp4", ("vllm", "sglang", "trtllm")),
        ("sq", "int8", ("trtllm",)),
        ("int4_wo", "w4", ("trtllm",)),
        ("int8_wo", "w8", ("trtllm",)),
    ):
        for gpu, c in _by_gpu(select(low, low["dtype"] == dtype)):
            yield _quantised(variant, gpu, _newest(c, backends), pairs)
    for gpu, c in _by_gpu(read_columns(folder / "gemm_fp32_kernels.parquet")):
        # Eager, timed with CUDA events: launching is in every row, so only long kernels tell of the kernel.
        rows = select(c, c["latency_us"] >= 150)
        work = gemm_work(rows, Math.FP32, 32, 32, np.ones(len(rows["m"])))
        yield _sample("gemm", "fp32", gpu, "gemm", rows, work, pairs, np.ones(work.count, dtype=bool), 20.0)


def _quantised(variant: str, gpu: str, c: Columns, pairs: dict[str, set[Shape]]) -> Sample:
    work, companions = quantised_gemm(variant, c, c["weight_copies"].astype(float))
    weights = c["n"].astype(float) * c["k"] * QUANTISED[variant][2] / 8 * c["weight_copies"]
    cold = weights > 1.5 * load_gpu(gpu).l2_bytes
    return _sample("gemm", variant, gpu, "gemm", c, work, pairs, cold, 0.0, companions)


def _usual_attention(c: Columns) -> dict[str, NDArray[Any]]:
    """Without the kernels that engines fall back to for head dimensions that their own does not support."""
    source = c["kernel_source"].astype(str)
    odd = np.array(["triton" in s or "fa4" in s for s in source], dtype=bool)
    return select(c, ~odd)


def _prefill_samples(folder: Path, pairs: dict[str, set[Shape]]) -> Iterable[Sample]:
    for gpu, c in _by_gpu(read_columns(folder / "attention_prefill.parquet")):
        rows = _usual_attention(_newest(c, ("vllm",)))
        for variant, bits in (("kv16", "bf16"), ("kv8", "fp8")):
            some = select(rows, rows["kv_dtype"] == bits)
            if not len(some["batch"]):
                continue
            work = attention_work(some, Family.ATTENTION_PREFILL)
            written = (Companion("rowwise", "stream", kv_write_work(some)),)
            cold = np.ones(work.count, dtype=bool)
            yield _sample("prefill", variant, gpu, "attention_prefill", some, work, pairs, cold, 0.0, written)


def _decode_samples(folder: Path, pairs: dict[str, set[Shape]]) -> Iterable[Sample]:
    for gpu, c in _by_gpu(read_columns(folder / "attention_decode.parquet")):
        rows = _usual_attention(_newest(c, ("vllm",)))
        for variant, bits in (("kv16", "bf16"), ("kv8", "fp8")):
            some = select(rows, rows["kv_dtype"] == bits)
            if not len(some["batch"]):
                continue
            work = attention_work(some, Family.ATTENTION_DECODE)
            kv = 2 * work["kv_tokens"] * work["kv_heads"] * work["head_dim"] * work["kv_bits"] / 8
            cold = kv > 1.5 * load_gpu(gpu).l2_bytes
            written = (Companion("rowwise", "stream", kv_write_work(some)),)
            yield _sample("decode", variant, gpu, "attention_decode", some, work, pairs, cold, 0.0, written)


# Vidur's words, and NeuSight's, for what are several kernels, or kernels since replaced: their constants
# are kept apart from those of today's kernels, which a trace names.
_ROWWISE = {
    "norm": Family.NORM, "add": Family.ELEMENTWISE, "rope": Family.ROPE, "act_mul": Family.ACTIVATION,
    "act": Family.ACTIVATION, "embedding": Family.EMBEDDING, "softmax": Family.SOFTMAX, "layernorm_fp32": Family.NORM,
}  # fmt: skip


def rowwise_kind(op: str) -> tuple[Family, str]:
    if op in {"norm", "add", "rope", "act_mul", "act", "embedding"}:
        return _ROWWISE[op], f"{OP_2024}_unary" if op == "act" else OP_2024
    return _ROWWISE.get(op, Family.ELEMENTWISE), "eager"


def rowwise_variant(family: Family, kind: str) -> str:
    return f"{family}:{kind}" if kind else str(family)


def elementwise_bytes(kind: NDArray[Any], rows: Floats, width: Floats, element_bytes: float) -> Floats:
    """Compulsory traffic: what is read and written, in elements per row and column of the op."""
    tensors = {"act_mul": 3.0, "add": 3.0}  # two read, one written; the others read one and write one
    per_element = np.array([tensors.get(str(k), 2.0) for k in kind])
    return per_element * element_bytes * rows * width


def _rowwise_samples(folder: Path, pairs: dict[str, set[Shape]]) -> Iterable[Sample]:
    every = read_columns(folder / "ops.parquet")
    every["kind"] = every["op"]
    for gpu, c in _by_gpu(every):
        l2 = load_gpu(gpu).l2_bytes
        for source in ("AIConfigurator", "Vidur", "NeuSight"):
            of_source = select(c, c["source"] == source)
            if source == "AIConfigurator":
                of_source = _newest(of_source, ("vllm",))
            if source == "NeuSight":
                # Eager, timed with CUDA events: ~25 µs of launching in every row.
                of_source = select(of_source, of_source["latency_us"] >= 200)
            for op in sorted(set(of_source["op"].astype(str))):
                rows = select(of_source, of_source["op"] == op)
                family, kind = (Family.QUANTISE, "") if source == "AIConfigurator" else rowwise_kind(op)
                moved = rows["min_bytes"].astype(float)
                work = rowwise_work(rows, kind, moved, family)
                resolution = {"AIConfigurator": 0.0, "Vidur": 1.0, "NeuSight": 25.0}[source]
                yield _sample(
                    "rowwise",
                    rowwise_variant(family, kind),
                    gpu,
                    "elementwise",
                    rows,
                    work,
                    pairs,
                    moved > l2,
                    resolution,
                )


def _collective_samples(folder: Path, _pairs: dict[str, set[Shape]]) -> Iterable[Sample]:
    """The table of pairs scores every shape of NCCL's grid, so a shape cannot be kept from the fit here: its NCCL
    version is. What is fitted are rows of other versions, of engines' own kernels, and of Vidur, whose sizes are its
    own.
    """
    scored_versions = scored_collective_versions(folder.parent / "pairs_dev.parquet")
    for gpu, c in _by_gpu(read_columns(folder / "collectives.parquet")):
        version, backend = c["version"].astype(str), c["backend"].astype(str)
        other = backend == "nccl"
        for scored in scored_versions.get(gpu, set()):
            other &= version != scored
        nccl = _newest(select(c, other), ("nccl",))
        custom = _newest(select(c, c["kernel_source"] == "vLLM_custom_graph"), ("vllm",))
        vidur = select(c, (backend == "torch.distributed nccl") & (c["latency_us"] >= 10) & _whole_node(c))
        groups = [(custom, ":custom", 0.0), (nccl, "", 0.0)]
        if not len(nccl["bytes"]):
            groups.append((vidur, "", 1.0))
        for rows, suffix, resolution in groups:
            for name in sorted(set(rows["collective"].astype(str))):
                some = select(rows, rows["collective"] == name)
                work = collective_work(some)
                variant = COLLECTIVES.get(name, name) + suffix
                cold = np.ones(work.count, dtype=bool)
                if load_gpu(gpu).link_bytes_per_s == 0:
                    variant = "over_pcie"
                yield _sample("collective", variant, gpu, "collective", some, work, {}, cold, resolution)


def scored_collective_versions(pairs: Path) -> dict[str, set[str]]:
    """Per GPU, of NCCL: those of the table of pairs."""
    if not pairs.exists():
        return {}
    c = read_columns(pairs)
    c = select(c, c["op"] == "collective")
    found: dict[str, set[str]] = {}
    for side in ("source", "target"):
        for name, version in {*zip(c[f"{side}_gpu"].astype(str), c[f"{side}_version"].astype(str), strict=True)}:
            found.setdefault(load_gpu(name).gpu, set()).add(version)
    return found


def _whole_node(c: Columns) -> NDArray[np.bool_]:
    """Ranks that fill a node: between nodes it is the network that is measured."""
    return np.array(
        [
            f"devices_per_node={ranks}" in topology
            for ranks, topology in zip(c["num_gpus"], c["topology"].astype(str), strict=True)
        ],
        dtype=np.bool_,
    )


def _mla_samples(folder: Path, pairs: dict[str, set[Shape]]) -> Iterable[Sample]:
    every = read_columns(folder / "mla.parquet")
    every = select(every, every["table"] == "generation_mla")
    for gpu, c in _by_gpu(every):
        rows = _newest(c, ("sglang", "trtllm"))
        for variant, dtype in (("kv16", "bfloat16"), ("kv8", "fp8")):
            some = select(rows, rows["kv_cache_dtype"] == dtype)
            if not len(some["batch"]):
                continue
            work = mla_work(some, 16.0 if variant == "kv16" else 8.0)
            keys = work["kv_tokens"]
            cold = keys * 576 * (2 if variant == "kv16" else 1) > 1.5 * load_gpu(gpu).l2_bytes
            yield _sample("mla", variant, gpu, "mla", some, work, pairs, cold)


def _moe_samples(folder: Path, pairs: dict[str, set[Shape]]) -> Iterable[Sample]:
    """The fused op: gate and up, activation, down; routed evenly, and by a power law."""
    every = read_columns(folder / "moe.parquet")
    for dtype, variant in (
        ("bf16", "bf16"), ("fp8", "fp8"), ("fp8_block", "fp8_block"), ("nvfp4", "fp4"), ("int4_wo", "w4"),
    ):  # fmt: skip
        for gpu, c in _by_gpu(select(every, every["dtype"] == dtype)):
            # Both engines run the same Marlin kernels on 4-bit weights, of which vLLM's newest table has a dozen sizes.
            # The tables that know both ways of routing are those with rows of even routing.
            even = _newest(select(c, c["distribution"] == "balanced"), ("vllm", "sglang"), least=200)
            if not len(even["backend"]):
                continue
            one = c["backend"].astype(str) == str(even["backend"][0])
            rows = select(c, one & (c["version"].astype(str) == str(even["version"][0])))
            first, companions = moe_call(variant, rows)
            weights = 1.5 * first["experts"] * first["n"] * first["k"] * first["w_bits"] / 8
            cold = weights > 1.5 * load_gpu(gpu).l2_bytes
            yield _sample("moe", variant, gpu, "moe", rows, first, pairs, cold, 0.0, companions)
