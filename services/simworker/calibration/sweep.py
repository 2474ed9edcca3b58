"""Times a small sweep of kernels on this machine's own GPU, in under a minute, for `cascade calibrate --measure`.

Thirty GEMMs through torch (cuBLAS, as engines call it), copies and norms, and attention by vLLM's own kernels where it
is installed: torch's attention is another library's, which would teach the wrong constants. Each point is captured into
a CUDA graph that rotates through more memory than L2 holds, as serving does; the time is the median of its replays.
Never run on a GPU here: tests drive everything but the class that calls torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from services.kernels.work import Family, Math
from services.simworker.calibration.measured import NoGpu
from services.simworker.calibration.tables import Sample, attention_work, gemm_work, rowwise_work

_CALLS_PER_GRAPH = 24
_REPLAYS = 15
_ROTATED_L2S = 3  # times L2 that the operands of one graph must exceed, where memory allows
_COPIES_MAX = 64
_MS_PER_POINT_MAX = 400.0
_NORM = "_fused_rms_norm"  # of torch's own operators: one kernel

_NK = ((1024, 4096), (4096, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336), (8192, 8192))  # of 1B to 70B models
_M = (8, 64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel to time: `sizes` are those of the op."""

    op: str  # gemm, copy, norm, attention_prefill, attention_decode
    sizes: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.op} " + " ".join(f"{name}={value}" for name, value in self.sizes.items())


@dataclass(frozen=True, slots=True)
class Timed:
    point: Point
    median_us: float


class Clock(Protocol):
    """Times kernels of one GPU."""

    @property
    def device_name(self) -> str: ...

    @property
    def sm_count(self) -> int: ...

    @property
    def skipped(self) -> Mapping[str, str]:
        """Ops that this installation cannot time, with the reason."""
        ...

    def time_us(self, point: Point) -> float:
        """The median µs of one call among others in a graph. Raises RuntimeError where the kernel fails."""
        ...


def sweep_points() -> list[Point]:
    heads: dict[str, int] = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    return [
        *(Point("gemm", {"m": m, "n": n, "k": k}) for n, k in _NK for m in _M),
        *(Point("copy", {"bytes": mib << 20}) for mib in (1, 8, 64, 256, 1024)),
        *(Point("norm", {"rows": rows, "width": 4096}) for rows in (16, 256, 2048, 16_384)),
        *(
            Point("attention_prefill", {"batch": b, "new_tokens": q, "past_tokens": 0, **heads})
            for b, q in ((1, 512), (1, 2048), (1, 8192), (4, 512), (4, 2048), (16, 512))
        ),
        *(
            Point("attention_decode", {"batch": b, "new_tokens": 1, "past_tokens": p, **heads})
            for b, p in ((1, 1023), (1, 8191), (8, 1023), (8, 8191), (32, 1023), (32, 8191), (128, 1023), (128, 4095))
        ),
    ]


def measure(clock: Clock, say: Callable[[str], None]) -> list[Timed]:
    """Times what can be timed; a kernel that fails is said and left out."""
    timed: list[Timed] = []
    for op, reason in clock.skipped.items():
        say(f"{op}: not measured, {reason}")
    for point in sweep_points():
        if point.op in clock.skipped:
            continue
        try:
            timed.append(Timed(point, clock.time_us(point)))
        except RuntimeError as error:  # out of memory, or a kernel this GPU lacks: the other points still tell
            say(f"{point}: not measured, {str(error).splitlines()[0]}")
    return timed


def samples_of(gpu: str, l2_bytes: int, timed: Sequence[Timed]) -> list[Sample]:
    """What was timed, as the fit reads latency tables. Attention was timed alone: it has no companions."""
    found: list[Sample] = []
    for form, variant, ops in (
        ("gemm", "bf16", ("gemm",)), ("rowwise", "stream", ("copy", "norm")),
        ("prefill", "kv16", ("attention_prefill",)), ("decode", "kv16", ("attention_decode",)),
    ):  # fmt: skip
        rows = [t for t in timed if t.point.op in ops]
        if not rows:
            continue
        columns: dict[str, Any] = {
            name: np.array([t.point.sizes.get(name, 0) for t in rows])
            for name in sorted({n for t in rows for n in t.point.sizes})
        }
        if form == "gemm":
            bytes_ = 2 * columns["n"].astype(float) * columns["k"]
            work = gemm_work(columns, Math.BF16, 16, 16, _copies(bytes_, l2_bytes))
        elif form == "rowwise":
            moved = np.array([_moved_bytes(t.point) for t in rows])
            columns["rows"] = np.array([t.point.sizes.get("rows", 1) for t in rows])
            family = np.array([Family.NORM if t.point.op == "norm" else Family.COPY for t in rows], dtype=object)
            work = rowwise_work(columns, "", moved, family)
        else:
            columns |= {"window_size": np.zeros(len(rows)), "kv_dtype": np.array(["bf16"] * len(rows), dtype=object)}
            family_ = Family.ATTENTION_PREFILL if form == "prefill" else Family.ATTENTION_DECODE
            work = attention_work(columns, family_)
        nothing = np.zeros(len(rows), dtype=np.bool_)
        times = np.array([t.median_us for t in rows])
        found.append(Sample(form, variant, gpu, work, times, 0.0, ~nothing, nothing, nothing))
    return found


def _moved_bytes(point: Point) -> float:
    if point.op == "copy":
        return 2.0 * point.sizes["bytes"]
    return 4.0 * point.sizes["rows"] * point.sizes["width"]  # 16 bits in, 16 bits out


def _copies(bytes_: Any, l2_bytes: int) -> Any:
    """Sets of operands that one graph rotates through."""
    return np.clip(np.ceil(_ROTATED_L2S * l2_bytes / np.maximum(bytes_, 1)), 1, _COPIES_MAX)


@dataclass(slots=True)
class TorchClock:
    """Times kernels on CUDA device 0 through torch. Not validated on hardware."""

    torch: Any
    device_name: str
    sm_count: int
    l2_bytes: int
    skipped: dict[str, str] = field(default_factory=dict)
    _attention: Any = None

    @classmethod
    def open(cls) -> TorchClock:
        """Raises NoGpu in one sentence."""
        try:
            import torch  # noqa: PLC0415 - found, never required  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise NoGpu(
                "measuring needs torch with CUDA: install it beside Cascade, or fit tables by --data"
            ) from error
        if not torch.cuda.is_available():
            raise NoGpu("torch sees no CUDA GPU: run this on the machine whose GPU is to be measured")
        properties = torch.cuda.get_device_properties(0)
        clock = cls(torch, properties.name, properties.multi_processor_count, properties.L2_cache_size)
        try:
            from vllm.vllm_flash_attn import (  # noqa: PLC0415 - as torch  # pyright: ignore[reportMissingImports]
                flash_attn_varlen_func,
            )
        except ImportError:
            reason = "vLLM's attention kernels are not installed here"
            clock.skipped = {"attention_prefill": reason, "attention_decode": reason}
        else:
            clock._attention = flash_attn_varlen_func
        if not hasattr(torch.ops.aten, _NORM):
            clock.skipped["norm"] = "this torch has no norm in one kernel"
        return clock

    def time_us(self, point: Point) -> float:
        cuda = self.torch.cuda
        calls = self._calls(point)
        for call in calls[:2]:
            call()  # libraries choose and load kernels on first use
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            for i in range(_CALLS_PER_GRAPH):
                calls[i % len(calls)]()
        graph.replay()
        cuda.synchronize()
        times_ms: list[float] = []
        while len(times_ms) < _REPLAYS and (len(times_ms) < 3 or sum(times_ms) < _MS_PER_POINT_MAX):
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times_ms.append(begin.elapsed_time(end))
        return 1e3 * statistics.median(times_ms) / _CALLS_PER_GRAPH

    def _calls(self, point: Point) -> list[Callable[[], Any]]:
        """One call per set of operands: together they exceed L2."""
        torch, s = self.torch, point.sizes
        if point.op == "gemm":
            activations = self._random(s["m"], s["k"])
            # As a linear layer stores them: n rows of k.
            weights = [self._random(s["n"], s["k"]) for _ in range(self._sets(2.0 * s["n"] * s["k"]))]
            return [partial(torch.nn.functional.linear, activations, w) for w in weights]
        if point.op == "copy":
            elements = s["bytes"] // 2
            pairs = [(self._random(elements), self._random(elements)) for _ in range(self._sets(_moved_bytes(point)))]
            return [partial(to.copy_, of) for to, of in pairs]
        if point.op == "norm":
            weight = self._random(s["width"])
            rows = [self._random(s["rows"], s["width"]) for _ in range(self._sets(2.0 * s["rows"] * s["width"]))]
            norm = getattr(torch.ops.aten, _NORM)
            return [partial(norm, x, [s["width"]], weight, 1e-6) for x in rows]
        batch, new, keys = s["batch"], s["new_tokens"], s["past_tokens"] + s["new_tokens"]
        queries = self._random(batch * new, s["heads"], s["head_dim"])
        starts = torch.arange(0, batch + 1, dtype=torch.int32, device="cuda")
        shape = (batch * keys, s["kv_heads"], s["head_dim"])
        sets = self._sets(4.0 * batch * keys * s["kv_heads"] * s["head_dim"])
        attend = partial(
            self._attention, q=queries, max_seqlen_q=new, cu_seqlens_q=starts * new, max_seqlen_k=keys,
            cu_seqlens_k=starts * keys, causal=True,
        )  # fmt: skip
        return [partial(attend, k=self._random(*shape), v=self._random(*shape)) for _ in range(sets)]

    def _sets(self, bytes_of_one: float) -> int:
        return int(_copies(np.array(bytes_of_one), self.l2_bytes))

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, dtype=self.torch.bfloat16, device="cuda")
