"""How tokens are spread over the experts of a mixture, as a user says it: "even", or "zipf:EXPONENT"."""

from __future__ import annotations

import math

EVEN = "even"
ZIPF = "zipf"
EXPONENT_MAX = 4.0
"""Beyond, all tokens go to the same experts."""


class BadRouting(ValueError):
    """A routing that is none; the message names it and the way out."""


def exponent_of(text: str) -> float:
    """Of "even" (or nothing) 0, of "zipf:EXPONENT" its exponent. Raises BadRouting."""
    if text in {"", EVEN}:
        return 0.0
    name, _, number = text.partition(":")
    try:
        exponent = float(number)
    except ValueError:
        exponent = math.nan
    if name != ZIPF or not 0 < exponent <= EXPONENT_MAX:
        raise BadRouting(
            f"routing {text[:40]!r}: give {EVEN}, or {ZIPF}:EXPONENT with an exponent above 0 and at most "
            f"{EXPONENT_MAX:g}, such as {ZIPF}:1"
        )
    return exponent


def as_said(exponent: float) -> str:
    """The words for it; "" for even routing, which needs none."""
    return f"{ZIPF}:{exponent:g}" if exponent else ""
