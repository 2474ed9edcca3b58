"""How the processes of a job learn that they are to be traced: one environment variable, set before they start.

Imported with the package, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

VARIABLE = "CASCADE_TRACE"
TOKEN_VARIABLE = "CASCADE_TOKEN"  # noqa: S105 - the name of a variable

_DORMANT = "armed"


def arm(environ: MutableMapping[str, str] | None = None) -> None:
    """Let processes that start from now on listen for `trace`. A variable that is set already stays: "0" forbids."""
    (os.environ if environ is None else environ).setdefault(VARIABLE, _DORMANT)


def is_armed(environ: Mapping[str, str] | None = None) -> bool:
    return (os.environ if environ is None else environ).get(VARIABLE, "0") not in ("", "0")
