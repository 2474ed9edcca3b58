"""How many measured rows an interval rests on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows that were left out of the fit and scored by it, and where sigma is not theirs, what it is instead."""

    count: int
    sigma_from: str


def scored_rows(form: str, variant: str, level: str) -> Scored | None:
    """Of the shipped constants of a form; None where they were derived from others."""
    # Attention of both kinds in one kernel was never measured alone: its constants are those of its parts.
    group = _groups("prefill" if form == "mixed" else form).get(variant, {}).get(level)
    if group is None:
        return None
    return Scored(int(group["rows_scored"]), str(group.get("sigmas_from", "")))


@cache
def _groups(form: str) -> dict[str, dict[str, dict[str, Any]]]:
    constants = files("services.simworker.calibration").joinpath("constants")
    groups: dict[str, dict[str, dict[str, Any]]] = json.loads(
        constants.joinpath(f"{form}.json").read_text(encoding="utf-8")
    )["groups"]
    return groups
