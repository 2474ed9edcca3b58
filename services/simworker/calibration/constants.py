"""The fitted constants: which group of them stands for which GPU, and the digest of them all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from cascade_schemas.gpu import GpuSpec

from services.simworker.simulators.analytic.learned import Learned, from_json

FORMS = ("gemm", "prefill", "decode", "mla", "moe", "rowwise", "collective")


class MissingConstants(LookupError):
    """No group of a form's constants stands for a GPU."""


@dataclass(frozen=True, slots=True)
class Group:
    """Constants of one form and variant for one GPU, or pooled for GPUs alike."""

    level: str  # "gpu:a100_sxm_80gb", "cc:8.0", "class:wgmma"
    parameters: Mapping[str, float]
    sigmas: tuple[float, ...]  # of ln(measured ÷ predicted), per bin of Constants.sigma_bins_us


@dataclass(frozen=True, slots=True)
class Constants:
    forms: Mapping[str, Mapping[str, Mapping[str, Group]]]  # form -> variant -> level -> group
    candidates: Mapping[str, tuple[tuple[int, ...], ...]]  # what competes in a form: tiles and splits
    rules: Mapping[str, Any]  # rules.json: what was chosen, not fitted
    digest: str
    residuals: Mapping[tuple[str, str, str], Learned] = field(default_factory=dict)
    """(form, variant, GPU) -> what its own table says beyond the form."""

    @property
    def sigma_bins_us(self) -> tuple[float, ...]:
        return tuple(self.rules["sigma_bins_us"]["value"])

    def unmeasured(self, form: str) -> dict[str, float]:
        """Parameters that no table tells: rules.json has them for all groups of a form."""
        return dict(self.rules["unmeasured"]["value"].get(form, {}))

    def group(self, form: str, variant: str, gpu: GpuSpec) -> tuple[str, Group]:
        """The variant found and its group: that of the GPU itself, else of its kin; another variant if none has any."""
        if form == "mixed":
            return self._mixed(variant, gpu)
        variants = self.forms[form]
        stands_in = self.rules["variants"]["value"].get(form, {})
        tried = [variant, *stands_in.get(variant, ()), *stands_in.get("*", ())]
        for candidate in tried:
            groups = variants.get(candidate, {})
            for level in levels(gpu, self.rules["kin"]["value"]):
                if level in groups:
                    return candidate, self._as_seen_by(gpu, form, candidate, groups[level])
        raise MissingConstants(f"no constants of {form} {variant!r} for {gpu.gpu}; run `cascade calibrate`")

    def _as_seen_by(self, gpu: GpuSpec, form: str, variant: str, group: Group) -> Group:
        """Constants of another programming class carry over less: rules.json says what is taken, and how sure it is."""
        if not group.level.startswith("class:") or group.level == f"class:{gpu.programming_class}":
            return group
        change = self.rules["unseen_class"]["value"][form]
        least = change["least_sigmas"].get(variant, change["least_sigmas"]["*"])
        sigmas = tuple(max(both) for both in zip(group.sigmas, least, strict=True))
        there = change.get("for", {}).get(gpu.programming_class, {})
        return Group(group.level, _carried_over(group.parameters, there), sigmas)

    def _mixed(self, variant: str, gpu: GpuSpec) -> tuple[str, Group]:
        """Both attention forms' constants; the wider sigma of the two, as neither was measured so."""
        found, chunks = self.group("prefill", variant, gpu)
        _, decodes = self.group("decode", variant, gpu)
        parameters = {f"prefill.{name}": value for name, value in chunks.parameters.items()}
        parameters |= {f"decode.{name}": value for name, value in decodes.parameters.items()}
        sigmas = tuple(max(both) for both in zip(chunks.sigmas, decodes.sigmas, strict=True))
        return found, Group(chunks.level, parameters, sigmas)


class _Tables(Mapping[tuple[str, str, str], Learned]):
    """Unpacked when first asked for: a run needs those of its GPUs, and unpacking all takes a tenth of a second."""

    def __init__(self, packed: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> None:
        self._packed = packed
        self._unpacked: dict[tuple[str, str, str], Learned] = {}

    def __getitem__(self, key: tuple[str, str, str]) -> Learned:
        found = self._unpacked.get(key)
        if found is None:
            found = self._unpacked[key] = from_json(self._packed[key])
        return found

    def __iter__(self) -> Iterator[tuple[str, str, str]]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)


# Prefill: what is paid per tile of queries, so that a smaller tile pays less of it.
_PER_TILE = ("padding", "k0", "rowcost")


def _carried_over(parameters: Mapping[str, float], there: Mapping[str, Any]) -> dict[str, float]:
    """Another class's constants in the hands of this class's library: `there` has its `set`, `times` and `tile`."""
    changed = {name: value * there.get("times", {}).get(name, 1) for name, value in parameters.items()}
    if "tile" in there:
        smaller = there["tile"] / changed["tile"]
        changed |= {"tile": there["tile"], **{name: changed[name] * smaller for name in _PER_TILE}}
    return {**changed, **there.get("set", {})}


def levels(gpu: GpuSpec, kin: Mapping[str, list[str]]) -> list[str]:
    """Where constants are looked for, nearest kin first."""
    capability = (
        "cc:{}.{}".format(*gpu.compute_capability) if gpu.compute_capability else f"architecture:{gpu.architecture}"
    )
    own = f"class:{gpu.programming_class}"
    return [f"gpu:{gpu.gpu}", capability, *kin.get(capability, ()), own, *kin.get(own, ())]


@cache
def shipped_constants() -> Constants:
    return load_constants(files("services.simworker.calibration").joinpath("constants"))


def load_constants(folder: Traversable) -> Constants:
    texts = {name: folder.joinpath(f"{name}.json").read_text(encoding="utf-8") for name in (*FORMS, "rules")}
    residual = folder.joinpath("residual.json")
    if residual.is_file():
        texts["residual"] = residual.read_text(encoding="utf-8")
    whole = "\n".join(f"{name} {texts[name]}" for name in sorted(texts))
    rules = json.loads(texts.pop("rules"))
    tables = json.loads(texts.pop("residual", '{"tables": {}}'))["tables"]
    return Constants(
        forms={form: _with_derived(form, _form(form, json.loads(text), rules), rules) for form, text in texts.items()},
        candidates={name: tuple(tuple(c) for c in v["value"]) for name, v in rules["candidates"].items()},
        rules=rules,
        digest=hashlib.sha256(whole.encode()).hexdigest()[:16],
        residuals=_Tables({_named(key): table for key, table in tables.items()}),
    )


def _named(key: str) -> tuple[str, str, str]:
    form, variant, gpu = key.split(" ")
    return form, variant, gpu


def _form(form: str, stored: dict[str, Any], rules: Mapping[str, Any]) -> dict[str, dict[str, Group]]:
    unmeasured = rules["unmeasured"]["value"].get(form, {})
    return {
        variant: {
            level: Group(level, {**unmeasured, **group["parameters"]}, tuple(group["sigmas"]))
            for level, group in groups.items()
        }
        for variant, groups in stored["groups"].items()
    }


def _with_derived(
    form: str, variants: dict[str, dict[str, Group]], rules: Mapping[str, Any]
) -> dict[str, dict[str, Group]]:
    """With the groups of classes that were never measured: another class's constants, changed as rules.json says and
    why.
    """
    for level, recipe in rules["derived"]["value"].items():
        change = recipe.get(form)
        for groups in variants.values():
            if change is None or level in groups or recipe["from"] not in groups:
                continue
            parameters = {n: v * change["times"].get(n, 1) for n, v in groups[recipe["from"]].parameters.items()}
            groups[level] = Group(level, {**parameters, **change["set"]}, tuple(change["sigmas"]))
    return variants
