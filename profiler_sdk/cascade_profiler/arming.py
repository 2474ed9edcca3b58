"""How the processes of a job learn that they are to be traced: one environment variable, set before they start.

Imported with the package, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

VARIABLE = "CASCADE_TRACE"
TOKEN_VARIABLE = "CASCADE_TOKEN"  # noqa: S105 - the name of a variable

_DORMANT, _WITH_GRAPHS = "armed", "armed with graphs"


def arm(environ: MutableMapping[str, str] | None = None, *, graphs: bool = False) -> None:
    """Let processes that start from now on listen for `trace`. A variable that is set already stays: "0" forbids.

    graphs: they also run a profiler while their engine captures its CUDA graphs, so that kernels replayed by a graph
    have ops and shapes. Not for a baseline, whose process must not have had a profiler.
    """
    found = os.environ if environ is None else environ
    found.setdefault(VARIABLE, _DORMANT)
    if graphs and found[VARIABLE] == _DORMANT:
        found[VARIABLE] = _WITH_GRAPHS


def is_armed(environ: Mapping[str, str] | None = None) -> bool:
    return (os.environ if environ is None else environ).get(VARIABLE, "0") not in ("", "0")


def is_armed_for_graphs(environ: Mapping[str, str] | None = None) -> bool:
    return (os.environ if environ is None else environ).get(VARIABLE) == _WITH_GRAPHS
