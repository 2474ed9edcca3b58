"""The compiler, behind one decorator: numba where it is installed, and a sentence where it is not."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

signed: Final = cast("Callable[[Any], int]", np.int64)
"""A 64-bit signed integer to the compiler, an int to the type checker."""


class CompilerMissing(Exception):
    """numba is not installed; the message says how to mend it."""


def use_cache(folder: Path) -> None:
    """Compiled code is kept here from now on. Before the first import of a module that compiles.

    Each version of the sources has a folder of its own: numba looks at a function's file alone, and would take what was
    compiled with constants of other files that have changed since.
    """
    try:
        from numba.core import config  # noqa: PLC0415 - importing it takes longer than most commands
    except ImportError as error:
        raise CompilerMissing(
            "the SASS simulator needs numba; install it with: python3 infra/setup.py run sass "
            "(or: pip install -r infra/requirements/sass.txt)"
        ) from error
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    own = folder / sources.hexdigest()[:16]
    own.mkdir(parents=True, exist_ok=True)
    setattr(config, "CACHE_DIR", str(own))  # noqa: B010 - the module makes its attributes when imported


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The same function in machine code, without the interpreter's lock."""
    import numba  # noqa: PLC0415

    _compile_special()
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


def merged(function: Callable[P, R]) -> Callable[P, R]:
    """`inner`, and copied into its callers: a call would hand over a machine's numbers and arrays one by one."""
    import numba  # noqa: PLC0415

    options: dict[str, Any] = {"nogil": True, "_nrt": False, "forceinline": True}
    made: Callable[P, R] = numba.njit(**options)(function)
    return made


def expect(table: NDArray[Any], row: int, column: int) -> None:
    """Has the processor fetch a place of a table of rows while it goes on; says nothing where nothing is compiled."""


def are_equal(text: NDArray[np.uint8], at: int, table: NDArray[np.uint8], row: int, length: int) -> bool:
    """Whether so many bytes of a text are those that a row of a table begins with; both must have them."""
    return bool((text[at : at + length] == table[row, :length]).all())


@functools.cache
def _compile_special() -> None:
    from llvmlite import ir  # type: ignore[import-untyped]  # noqa: PLC0415
    from numba.core import cgutils, types  # noqa: PLC0415
    from numba.extending import intrinsic, overload  # noqa: PLC0415
    from numba.np import arrayobj  # noqa: PLC0415

    make_array: Any = arrayobj.make_array
    insert_function: Any = cgutils.get_or_insert_function

    def fetch_of(_context: Any, table: Any, at: Any) -> Any:
        def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = make_array(signature.args[0])(context, builder, arguments[0]).data
            place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
            number = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
            call = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
            builder.call(call, [place, number(0), number(3), number(1)])  # to be read, kept close, data
            return context.get_dummy_value()

        return types.none(table, at), generated

    fetch: Any = intrinsic(fetch_of)
    options: Any = {"nogil": True, "_nrt": False, "forceinline": True}

    def compare_of(_context: Any, text: Any, at: Any, table: Any, place: Any, length: Any) -> Any:
        def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = builder.gep(make_array(signature.args[0])(context, builder, arguments[0]).data, [arguments[1]])
            second = builder.gep(make_array(signature.args[2])(context, builder, arguments[2]).data, [arguments[3]])
            kind = ir.FunctionType(ir.IntType(32), [first.type, second.type, ir.IntType(64)])
            compare = insert_function(builder.module, kind, "memcmp")
            result = builder.call(compare, [first, second, arguments[4]])
            return builder.icmp_signed("==", result, ir.IntType(32)(0))

        return types.boolean(text, at, table, place, length), generated

    compare: Any = intrinsic(compare_of)

    @overload(are_equal, jit_options=options)
    def _are_equal(text: Any, at: Any, table: Any, row: Any, length: Any) -> Any:  # noqa: ARG001
        def compiled_are_equal(text: Any, at: Any, table: Any, row: Any, length: Any) -> Any:
            return compare(text, at, table, row * table.shape[1], length)

        return compiled_are_equal

    @overload(expect, jit_options=options)
    def _expect(table: Any, row: Any, column: Any) -> Any:  # noqa: ARG001
        def compiled_expect(table: Any, row: Any, column: Any) -> None:
            fetch(table, row * table.shape[1] + column)

        return compiled_expect
