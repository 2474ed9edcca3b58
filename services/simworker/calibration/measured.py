"""Constants measured on an installation's own GPUs: fitted to a short sweep, kept as files, laid over those shipped.

A file says which GPU it is about; its constants stand in for whatever is shipped for that GPU, table and all. They take
part in the calibration's digest, so that every run names what it was predicted by.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cascade_schemas.gpu import UnknownGpu, load_gpu
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.runtime.settings import BadSetting
from services.simworker.calibration.constants import Constants, Group, shipped_constants

FOLDER = "calibration"
"""Of an installation's home: every .json file in it is one GPU's."""

_FILE_BYTES_MAX = 4 << 20
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Sigma = Annotated[float, Field(gt=0, le=5)]


class BadCalibration(BadSetting):
    """A calibration file cannot be used; the message names it and says what to do."""


class NoGpu(RuntimeError):
    """There is nothing to measure here; the message says what is missing."""


class NothingLearned(ValueError):
    """A sweep after which nothing would be predicted better."""


class Fitted(BaseModel):
    """One form's constants for the GPU, and how well they did on points left out."""

    model_config = ConfigDict(extra="forbid")

    parameters: dict[str, _Finite]
    sigmas: list[_Sigma]
    points: Annotated[int, Field(ge=1)]
    median_ape_before: _Finite  # by the constants that stood in before, on the same points
    median_ape: _Finite  # cross-validated


class CalibrationFile(BaseModel):
    """What `cascade calibrate --measure` writes."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["cascade-calibration"] = "cascade-calibration"
    version: Literal[1] = 1
    gpu: str
    measured_on: str
    rows: list[dict[str, Any]]
    groups: dict[str, dict[str, Fitted]]  # form -> variant


@dataclass(frozen=True, slots=True)
class _Read:
    file: CalibrationFile
    text: str


def constants_of(home: Path | None) -> Constants:
    """The shipped constants, with those measured on this installation's GPUs over them. Raises BadCalibration."""
    shipped = shipped_constants()
    folder = home / FOLDER if home is not None else None
    files = sorted(folder.glob("*.json")) if folder is not None and folder.is_dir() else []
    return overlaid(shipped, [_read(path) for path in files]) if files else shipped


def overlaid(shipped: Constants, read: Sequence[_Read]) -> Constants:
    forms = {form: dict(variants) for form, variants in shipped.forms.items()}
    residuals = dict(shipped.residuals)
    for one in read:
        for form, variants in one.file.groups.items():
            for variant, fitted in variants.items():
                level = f"gpu:{one.file.gpu}"
                group = Group(level, {**shipped.unmeasured(form), **fitted.parameters}, tuple(fitted.sigmas))
                forms[form][variant] = {**forms[form].get(variant, {}), level: group}
                residuals.pop((form, variant, one.file.gpu), None)
    whole = "\n".join([shipped.digest, *(one.text for one in read)])
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return replace(shipped, forms=forms, residuals=residuals, digest=digest)


def _read(path: Path) -> _Read:
    way_out = "measure again with `cascade calibrate --measure`, or move the file away"
    if path.stat().st_size > _FILE_BYTES_MAX:
        raise BadCalibration(f"{path}: larger than {_FILE_BYTES_MAX >> 20} MiB; {way_out}")
    try:
        text = path.read_text(encoding="utf-8")
        file = CalibrationFile.model_validate_json(text)
        _check(file)
    except (UnicodeDecodeError, ValidationError, UnknownGpu, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadCalibration(f"{path}: not a usable calibration ({reason}); {way_out}") from error
    return _Read(file, text)


def _check(file: CalibrationFile) -> None:
    """Every constant that the form reads and no other: a missing one would fail in the middle of a run."""
    shipped = shipped_constants()
    if load_gpu(file.gpu).gpu != file.gpu:
        raise ValueError(f"gpu {file.gpu!r} is an alias, not an id")
    for form, variants in file.groups.items():
        known = shipped.forms.get(form)
        if known is None:
            raise ValueError(f"no form {form!r}")
        expected = set(next(iter(next(iter(known.values())).values())).parameters)
        for variant, fitted in variants.items():
            if variant not in known:
                raise ValueError(f"no variant {variant!r} of {form}")
            if set(fitted.parameters) != expected or any(value < 0 for value in fitted.parameters.values()):
                raise ValueError(f"constants of {form} {variant} are not those of the form")
            if len(fitted.sigmas) != len(shipped.sigma_bins_us) + 1:
                raise ValueError(f"{form} {variant}: {len(fitted.sigmas)} sigmas")


def written(file: CalibrationFile, folder: Path) -> Path:
    """Writes one GPU's file whole or not at all; an older one of the same GPU is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file.gpu}.json"
    draft = path.with_suffix(".json.part")
    draft.write_text(json.dumps(file.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
    return path
