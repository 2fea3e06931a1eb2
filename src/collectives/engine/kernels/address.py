"""Compile a kernel, and get its address."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cfunc, types

Array = Any
Kernel = Callable[[Array, Array, Any, int], None]  # into, one, other: mostly an array, too; elements


def array_of(kind: Any) -> Any:
    """The type of an argument that is an array of these."""
    return types.CPointer(kind)  # type: ignore[no-untyped-call]


BYTES, HALVES, FLOATS = (array_of(each) for each in (types.uint8, types.uint16, types.float32))


def address(kernel: Kernel, into: Any, one: Any, other: Any) -> int:
    """Compile a kernel for arguments of these types; its address."""
    return int(_compiled(kernel, into, one, other).address)


@cache  # compiled code lives as long as its object
def _compiled(kernel: Kernel, into: Any, one: Any, other: Any) -> Any:
    return cfunc(types.void(into, one, other, types.int64), cache=True, error_model="numpy")(kernel)
