"""The compiler, behind one decorator: numba where it is installed, and a sentence where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

signed: Final = cast("Callable[[Any], int]", np.int64)
"""A 64-bit signed integer to the compiler, an int to the type checker."""


class CompilerMissing(Exception):
    """numba is not installed; the message says how to mend it."""


def use_cache(folder: Path) -> None:
    """Compiled code is kept here from now on. Before the first import of a module that compiles."""
    try:
        from numba.core import config  # noqa: PLC0415 - importing it takes longer than most commands
    except ImportError as error:
        raise CompilerMissing(
            "the SASS simulator needs numba; install it with: python3 infra/setup.py run sass "
            "(or: pip install -r infra/requirements/sass.txt)"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    setattr(config, "CACHE_DIR", str(folder))  # noqa: B010 - the module makes its attributes when imported


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same function in machine code, without the interpreter's lock."""
    import numba  # noqa: PLC0415

    made: Callable[P, R] = numba.njit(nogil=True, cache=True)(function)
    return made


def inner(function: Callable[P, R]) -> Callable[P, R]:
    """Compiled as a part of its callers; it may make no array.

    References are not counted in it: counting them took a quarter of the time.
    """
    import numba  # noqa: PLC0415

    options: dict[str, Any] = {"nogil": True, "_nrt": False}  # the latter is not in numba's own type stubs
    made: Callable[P, R] = numba.njit(**options)(function)
    return made
