"""Which measured rows a function that never falls by more than a little can follow, all of them at once.

Two rows contradict each other when the one with no size smaller is faster by more than the band allows: no such
function is near both. The largest set of rows without a contradiction is what can be learned; the rest (another kernel
was chosen there, or the clock was off) would only drag the others along.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.kernels.work import Floats


def followable(x: Floats, ln_us: Floats, band: float) -> NDArray[np.bool_]:
    """x: sizes (axes, rows); ln_us may fall by `band` from size to greater size. The largest such set: (rows,)."""
    from scipy.sparse import csr_matrix  # noqa: PLC0415 - calibration only: the product runs without scipy
    from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415

    # Contradiction is transitive along growing sizes, so by Dilworth and König a largest set free of it is what a
    # least cover of the pairs leaves, and a greatest matching gives that cover.
    contradicts = ln_us[:, None] - ln_us[None, :] > band
    for axis in x:
        contradicts &= axis[:, None] <= axis[None, :]
    second = maximum_bipartite_matching(csr_matrix(contradicts), perm_type="column")
    first = np.full(ln_us.size, -1)
    matched = np.flatnonzero(second >= 0)
    first[second[matched]] = matched
    reached = second < 0
    crossed = np.zeros(ln_us.size, dtype=np.bool_)
    front = np.flatnonzero(reached)
    while front.size:  # alternating paths from the rows that are not matched
        new = contradicts[front].any(axis=0) & ~crossed
        crossed |= new
        back = first[new]
        front = np.unique(back[(back >= 0) & ~reached[back]])
        reached[front] = True
    kept: NDArray[np.bool_] = reached & ~crossed
    return kept
