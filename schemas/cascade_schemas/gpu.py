"""GPUs as numbers with sources, and the configs that people write: `h100_sxm:dram_gbps=6000,sm=160*2`.

One file per GPU in gpus/*.toml; every number there names where it is from.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field

from cascade_schemas.task import Value, digest

ProgrammingClass = Literal["mma_sync", "wgmma", "tcgen05", "mfma"]
"""How tensor cores are programmed. A kernel written for one class does not run, or runs slowly, on another, so a trace
says which work is done there but not which kernel a GPU of another class would use."""

# The largest integer a JSON number carries exactly (2^53); rates beyond it are whole teraFLOPS.
_Positive = Annotated[int, Field(gt=0, lt=2**53)]
_Rate = Annotated[int, Field(ge=0, lt=10**18)]  # 0 = the GPU lacks it
_PositiveRate = Annotated[int, Field(gt=0, lt=10**18)]
_FLOP_PER_S = ("fp64", "fp32", "tf32", "bf16", "fp8", "int8", "fp4")
_TENSOR = ("tf32", "bf16", "fp8", "int8", "fp4")
# Every NVIDIA GPU since Volta moves 64 B per clock between an SM and L2; the share a kernel reaches is calibrated.
L2_BYTES_PER_CLK_PER_SM = 64


class UnknownGpu(ValueError):
    """A name that is no GPU's id, nor an alias of one."""


class InvalidConfig(ValueError):
    """A config that cannot be resolved: an unknown override, or an absurd value."""


class GpuSpec(Value):
    """A GPU as its datasheet describes it: dense peak rates at boost clock, 0 where it lacks the dtype or the link."""

    gpu: str  # id: a file in gpus/, or of whoever describes a hypothetical chip
    name: str
    vendor: Literal["nvidia", "amd"]
    architecture: str
    compute_capability: tuple[int, int] | None = None  # None for AMD
    year: Annotated[int, Field(ge=2016, le=2100)]
    sm_count: _Positive  # AMD: compute units
    boost_hz: _Positive
    fp64_flop_per_s: _Rate  # without tensor cores
    fp32_flop_per_s: _PositiveRate  # without tensor cores
    tf32_flop_per_s: _Rate
    bf16_flop_per_s: _PositiveRate  # and fp16
    fp8_flop_per_s: _Rate
    int8_flop_per_s: _Rate
    fp4_flop_per_s: _Rate
    dram_bytes: _Positive
    dram_bytes_per_s: _Positive
    copy_bytes_per_s: _Rate = 0  # reads plus writes of a large device-to-device copy, measured; 0 = not measured
    l2_bytes: _Positive  # AMD MI300: the Infinity Cache
    shared_memory_bytes_per_sm: _Positive
    mufu_per_clk_per_sm: _Positive  # exponentials per clock and SM
    link_bytes_per_s: _Rate  # NVLink or Infinity Fabric, all links of one GPU, one direction; 0 = PCIe only
    link_gpu_count: _Positive  # GPUs that are joined by it: 2 by a bridge, 8 by a board, 72 by a rack
    pcie_bytes_per_s: _Positive  # one direction
    tdp_w: _Positive

    @property
    def programming_class(self) -> ProgrammingClass:
        if self.vendor == "amd":
            return "mfma"
        major = self.compute_capability[0] if self.compute_capability else 8
        return "wgmma" if major == 9 else "tcgen05" if major in {10, 11} else "mma_sync"

    @property
    def l2_bytes_per_s(self) -> int:
        return L2_BYTES_PER_CLK_PER_SM * self.sm_count * self.boost_hz

    @property
    def config_id(self) -> str:
        """Equal for equal chips, however they were written."""
        return digest(self)

    def flop_per_s(self, math_name: str) -> int:
        """Dense rate of "fp64", "fp32", "tf32", "bf16", "fp8", "int8" or "fp4"; 0 where the GPU lacks it."""
        return int(getattr(self, f"{math_name}_flop_per_s"))


class Config(Value):
    """What a run asks about: a GPU with its overrides applied, and how many workers may share it."""

    gpu: GpuSpec
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    label: str  # as the user wrote it, without replicas, the GPU by its id

    @property
    def config_id(self) -> str:
        return self.gpu.config_id


@cache
def known_gpus() -> tuple[str, ...]:
    """The ids, sorted."""
    return tuple(sorted(_files()))


def aliases(gpu: str) -> tuple[str, ...]:
    """Other spellings of a GPU's id: those of profilers and of latency tables."""
    return _files()[gpu][1]


def figure_sources(gpu: str) -> dict[str, str]:
    """Where each of a known GPU's numbers is from, by field; as its file says it beside the number."""
    text = files("cascade_schemas").joinpath("gpus", f"{gpu}.toml").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+) = [^#\n]*#[ ]?(.+)$", text, re.MULTILINE))


def load_gpu(name_or_alias: str) -> GpuSpec:
    gpu = _by_spelling().get(_spelling(name_or_alias))
    if gpu is None:
        raise UnknownGpu(f"{name_or_alias!r} is not a known GPU; known GPUs are {', '.join(known_gpus())}")
    return _files()[gpu][0]


def match_device(
    device_name: str,
    sm_count: int | None = None,
    dram_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
) -> GpuSpec | None:
    """The GPU a profiler means: by its name, else the one whose SMs, memory and compute capability all agree."""
    named = _by_spelling().get(_spelling(device_name))
    if named is not None and _agrees(_files()[named][0], sm_count, dram_bytes, compute_capability):
        return _files()[named][0]  # else the facts decide: a 40 GB card may call itself "NVIDIA A100"
    if sm_count is None and dram_bytes is None:
        return None
    # Products share SM counts and memory sizes (H100 SXM and H200; A100 SXM and PCIe): the name must have a word of
    # theirs, and where several are left, the SXM module is the likelier find.
    shared = {
        gpu.gpu: len(_words(device_name) & _words(gpu.name))
        for gpu, _ in _files().values()
        if _agrees(gpu, sm_count, dram_bytes, compute_capability)
    }
    if not device_name and len(shared) == 1:
        return _files()[next(iter(shared))][0]  # ROCm leaves the name empty; the numbers of one GPU are enough
    best = max(shared, key=lambda gpu: (shared[gpu], "sxm" in gpu, gpu), default=None)
    return _files()[best][0] if best is not None and shared[best] else None


def parse_config(text: str) -> Config:
    """`GPU[:override=value,…][*replicas]` resolved; the overrides are listed by `override_names()`."""
    body, star, copies = text.strip().partition("*")
    replicas = _replicas(copies, text) if star else 1
    name, _, overrides = body.partition(":")
    gpu = load_gpu(name.strip())
    values: dict[str, float] = {}
    for part in filter(None, (p.strip() for p in overrides.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals:
            raise InvalidConfig(f"{part!r} in {text!r} is not override=value; overrides are {', '.join(_OVERRIDES)}")
        if key in values:
            raise InvalidConfig(f"{key!r} is given twice in {text!r}")
        values[key] = _number(key, value)
    return Config(gpu=resolve(gpu, values), replicas=replicas, label=_label(gpu.gpu, values))


def resolve(gpu: GpuSpec, overrides: dict[str, float]) -> GpuSpec:
    """The chip with overrides applied. More SMs or a higher clock raise the rates of the SMs that are not given."""
    for key, value in overrides.items():
        _number(key, value)
    spec = gpu.model_dump()
    for key in sorted(overrides, key=list(_OVERRIDES).index):
        _, _, apply = _OVERRIDES[key]
        apply(spec, float(overrides[key]))
    return GpuSpec.model_validate(spec)


def override_names() -> tuple[str, ...]:
    return tuple(_OVERRIDES)


def _scale(spec: dict[str, Any], names: tuple[str, ...], factor: float) -> None:
    for name in names:
        spec[f"{name}_flop_per_s"] = round(spec[f"{name}_flop_per_s"] * factor)


def _set_sm(spec: dict[str, Any], value: float) -> None:
    _scale(spec, _FLOP_PER_S, round(value) / spec["sm_count"])
    spec["sm_count"] = round(value)


def _set_clock(spec: dict[str, Any], value: float) -> None:
    hz = round(value * 1e9)
    _scale(spec, _FLOP_PER_S, hz / spec["boost_hz"])
    spec["boost_hz"] = hz


def _set_tensor(spec: dict[str, Any], value: float) -> None:
    _scale(spec, _TENSOR, value * 1e12 / spec["bf16_flop_per_s"])
    spec["bf16_flop_per_s"] = round(value * 1e12)


def _setter(name: str, unit: float) -> Callable[[dict[str, Any], float], None]:
    def apply(spec: dict[str, Any], value: float) -> None:
        spec[name] = round(value * unit)

    return apply


# name -> lowest, highest, how it is applied. In order of application: SMs and clock scale the rates that follow them.
# The bounds are an order of magnitude beyond any chip announced: past them a slip of units is likelier than a plan.
_OVERRIDES: dict[str, tuple[float, float, Callable[[dict[str, Any], float], None]]] = {
    "sm": (1, 4096, _set_sm),
    "clock_ghz": (0.1, 10, _set_clock),
    "tensor_tflops": (1, 100_000, _set_tensor),  # bf16 dense; the other tensor rates keep their ratio to it
    "fp64_tflops": (0, 10_000, _setter("fp64_flop_per_s", 1e12)),
    "fp32_tflops": (0.1, 10_000, _setter("fp32_flop_per_s", 1e12)),
    "tf32_tflops": (0, 100_000, _setter("tf32_flop_per_s", 1e12)),
    "fp8_tflops": (0, 100_000, _setter("fp8_flop_per_s", 1e12)),
    "int8_tops": (0, 100_000, _setter("int8_flop_per_s", 1e12)),
    "fp4_tflops": (0, 400_000, _setter("fp4_flop_per_s", 1e12)),
    "dram_gbps": (1, 100_000, _setter("dram_bytes_per_s", 1e9)),
    "dram_gib": (1, 10_000, _setter("dram_bytes", 2**30)),
    "l2_mb": (0.25, 10_000, _setter("l2_bytes", 2**20)),  # MiB, as datasheets count caches
    "smem_kib": (16, 4096, _setter("shared_memory_bytes_per_sm", 2**10)),
    "mufu": (1, 1024, _setter("mufu_per_clk_per_sm", 1)),
    "link_gbps": (0, 100_000, _setter("link_bytes_per_s", 1e9)),  # one direction; 0 = PCIe only
    "link_gpus": (1, 100_000, _setter("link_gpu_count", 1)),
    "pcie_gbps": (0.1, 10_000, _setter("pcie_bytes_per_s", 1e9)),
    "tdp_w": (1, 100_000, _setter("tdp_w", 1)),
}


def _number(key: str, value: str | float) -> float:
    if key not in _OVERRIDES:
        raise InvalidConfig(f"{key!r} is not an override; overrides are {', '.join(_OVERRIDES)}")
    low, high, _ = _OVERRIDES[key]
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not low <= number <= high:  # refuses nan too
        raise InvalidConfig(f"{key}={value} is not a number from {low:g} to {high:g}")
    if key in {"sm", "mufu", "link_gpus"} and number != round(number):
        raise InvalidConfig(f"{key}={value} is not a whole number")
    return number


def _replicas(copies: str, text: str) -> int:
    if not re.fullmatch(r"\s*[1-9][0-9]{0,3}\s*", copies) or int(copies) > 1024:
        raise InvalidConfig(f"{copies.strip()!r} in {text!r} is not a number of replicas from 1 to 1024")
    return int(copies)


def _label(gpu: str, values: dict[str, float]) -> str:
    return gpu + ":" * bool(values) + ",".join(f"{key}={_plain(value)}" for key, value in values.items())


def _plain(value: float) -> str:
    return str(round(value)) if value == round(value) else repr(value)


def _agrees(
    gpu: GpuSpec, sm_count: int | None, dram_bytes: int | None, compute_capability: tuple[int, int] | None
) -> bool:
    """Profilers report memory after reservations, in GB or GiB: 12 % apart is one product, 40 and 80 GB are two."""
    return (
        (sm_count is None or sm_count == gpu.sm_count)
        # ROCm reports its own (9, 4) where CUDA reports a compute capability; AMD's specs have none to compare.
        and (gpu.compute_capability in (None, compute_capability) or compute_capability is None)
        and (dram_bytes is None or abs(math.log(max(dram_bytes, 1) / gpu.dram_bytes)) < 0.12)
    )


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower())) - {"nvidia", "amd", "geforce", "rtx", "tesla", "instinct"}


def _spelling(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


@cache
def _by_spelling() -> dict[str, str]:
    spellings: dict[str, str] = {}
    for gpu, (spec, others) in _files().items():
        for name in (gpu, spec.name, *others):
            assert spellings.setdefault(_spelling(name), gpu) == gpu, f"{name!r} names {gpu} and another GPU"
    return spellings


@cache
def _files() -> dict[str, tuple[GpuSpec, tuple[str, ...]]]:
    found: dict[str, tuple[GpuSpec, tuple[str, ...]]] = {}
    for file in files("cascade_schemas").joinpath("gpus").iterdir():
        if file.name.endswith(".toml"):
            gpu = file.name.removesuffix(".toml")
            facts = tomllib.loads(file.read_text(encoding="utf-8"))
            others = tuple(facts.pop("aliases", ()))
            found[gpu] = GpuSpec.model_validate({"gpu": gpu, **facts}), others
    return found
