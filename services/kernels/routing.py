"""How rows of a mixture of experts are spread over the experts, where no trace says it.

Even routing is what is assumed of a trace unless its user knows better. `zipf:S` says that the popularity of the
experts falls with their rank r as r**-S: few tokens then hit fewer experts, and of many tokens the busiest expert gets
several times its share. The skewed routing of the measured tables is about as uneven as zipf:1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from cascade_schemas.routing import EVEN, as_said, exponent_of

from services.kernels.work import Floats


@dataclass(frozen=True, slots=True)
class Routing:
    """Even, or by Zipf's law."""

    exponent: float = 0.0  # 0: even

    @classmethod
    def of(cls, text: str) -> Routing:
        """Of "even" (or nothing), or of "zipf:EXPONENT". Raises BadRouting."""
        return cls(exponent_of(text))

    def __str__(self) -> str:
        return as_said(self.exponent) or EVEN

    def tokens_per_expert(self, tokens: int, experts: int, topk: int) -> tuple[int, ...]:
        """Rows of each expert, the busiest first; () for even routing. A token goes to `topk` different experts."""
        if not self.exponent or tokens < 1 or not 0 < topk <= experts:
            return ()
        return _rows(tokens, experts, topk, self.exponent)


@lru_cache(maxsize=4096)
def _rows(tokens: int, experts: int, topk: int, exponent: float) -> tuple[int, ...]:
    popularity: Floats = np.arange(1, experts + 1, dtype=np.float64) ** -exponent
    loads = _capped(popularity, tokens, topk)
    expected_hit = float(-np.expm1(tokens * np.log1p(-np.minimum(loads / tokens, 1 - 1e-12))).sum())
    hit = min(max(round(expected_hit), topk), experts, tokens * topk)
    # One row for each that is hit, the most popular; the rest by popularity, what rounding leaves to the next in line.
    more = loads[:hit] * (tokens * topk - hit) / loads[:hit].sum()
    ends = np.minimum(np.rint(np.cumsum(more)), tokens * topk - hit)
    rows = np.sort(np.diff(ends, prepend=0.0).astype(np.int64) + 1)[::-1]
    while (over := int((rows - tokens).clip(0).sum())) > 0:
        rows = np.minimum(rows, tokens)
        free = np.flatnonzero(rows < tokens)
        given, left = divmod(over, free.size)
        rows[free] += given
        rows[free[:left]] += 1
    return (*(int(count) for count in rows), *[0] * (experts - hit))


def _capped(loads: Floats, tokens: float, topk: float) -> Floats:
    """Scaled to the rows of these tokens, none above one row a token; what is cut off goes to the others."""
    rows = tokens * topk
    loads = loads * rows / loads.sum()
    while (over := loads > tokens * (1 + 1e-9)).any():
        full = over | (loads >= tokens * (1 - 1e-9))
        left = rows - tokens * full.sum()
        loads = np.where(full, tokens, loads * left / loads[~full].sum() if left > 0 else 0.0)
    return loads
