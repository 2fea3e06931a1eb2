"""Reduce two arrays into a third, compiled for one op and dtype at a time: what the loop calls by its address."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from numba import cfunc, types
from torch import distributed as dist

from collectives.backends.p2p.loop.halves import CONVERSIONS, converts_float16

Array = Any


def add(into: Array, one: Array, other: Array, count: int) -> None:
    """The sum, element by element, as the other functions here."""
    for i in range(count):
        into[i] = one[i] + other[i]


def multiply(into: Array, one: Array, other: Array, count: int) -> None:
    """The product."""
    for i in range(count):
        into[i] = one[i] * other[i]


def maximum(into: Array, one: Array, other: Array, count: int) -> None:
    """The larger one; not a number if either is not."""
    for i in range(count):
        a, b = one[i], other[i]
        into[i] = a if a >= b or a != a else b


def minimum(into: Array, one: Array, other: Array, count: int) -> None:
    """The smaller one; not a number if either is not."""
    for i in range(count):
        a, b = one[i], other[i]
        into[i] = a if a <= b or a != a else b


def bitwise_and(into: Array, one: Array, other: Array, count: int) -> None:
    """Bits that both have; of bools "and"."""
    for i in range(count):
        into[i] = one[i] & other[i]


def bitwise_or(into: Array, one: Array, other: Array, count: int) -> None:
    """Bits that either has; of bools "or", which is their sum, too."""
    for i in range(count):
        into[i] = one[i] | other[i]


def bitwise_xor(into: Array, one: Array, other: Array, count: int) -> None:
    """Bits that one of the two has."""
    for i in range(count):
        into[i] = one[i] ^ other[i]


def divide(into: Array, one: Array, ranks: int, count: int) -> None:
    """A sum divided by a number: in float64, rounded once, which is right for float32, too."""
    for i in range(count):
        into[i] = one[i] / ranks


def divide_whole(into: Array, one: Array, ranks: int, count: int) -> None:
    """A sum of integers divided towards zero."""
    for i in range(count):
        a = types.int64(one[i])
        into[i] = a // ranks if a >= 0 else -(-a // ranks)


Kernel = Callable[[Array, Array, Any, int], None]  # the third is an array, or the ranks that divide
KERNELS: dict[Any, Kernel] = {
    dist.ReduceOp.SUM: add,
    dist.ReduceOp.AVG: add,
    dist.ReduceOp.PRODUCT: multiply,
    dist.ReduceOp.MAX: maximum,
    dist.ReduceOp.MIN: minimum,
    dist.ReduceOp.BAND: bitwise_and,
    dist.ReduceOp.BOR: bitwise_or,
    dist.ReduceOp.BXOR: bitwise_xor,
}
# numpy's sum of bools is their "or", their product is their "and".
OF_BOOLS: dict[Kernel, Kernel] = {add: bitwise_or, maximum: bitwise_or, multiply: bitwise_and, minimum: bitwise_and}


class Kernels(NamedTuple):
    """Addresses of what combines two arrays, divides a sum, widens and rounds; 0 for what is not needed.

    ``size`` are the bytes of an element.
    """

    combine: int
    divide: int
    widen: int
    narrow: int
    size: int


@cache
def kernels(op: Any, dtype: torch.dtype) -> Kernels | None:
    """What reduces this dtype by this op. None for float16 where the processor does not convert it.

    What is only moved needs none.
    """
    if op is None:
        return Kernels(0, 0, 0, 0, dtype.itemsize)
    kernel = KERNELS[op]
    if dtype == torch.bool:
        return Kernels(_address(OF_BOOLS.get(kernel, kernel), *3 * [_BYTES]), 0, 0, 0, 1)
    if dtype == torch.float16 and not converts_float16():
        return None
    widen, narrow = CONVERSIONS.get(dtype, (None, None))
    wide = _array_of(getattr(types, str(torch.float32 if widen else dtype).removeprefix("torch.")))
    by = divide if dtype.is_floating_point else divide_whole
    return Kernels(
        _address(kernel, wide, wide, wide),
        _address(by, wide, wide, types.int64) if op == dist.ReduceOp.AVG else 0,
        _address(widen, wide, _HALVES, _HALVES) if widen else 0,
        _address(narrow, _HALVES, wide, wide) if narrow else 0,
        dtype.itemsize,
    )


def _array_of(kind: Any) -> Any:
    return types.CPointer(kind)  # type: ignore[no-untyped-call]


def _address(kernel: Kernel, into: Any, one: Any, other: Any) -> int:
    """Of a kernel for arguments of these types."""
    made: Any = cfunc(types.void(into, one, other, types.int64), cache=True, error_model="numpy")(kernel)
    _kept.append(made)
    return int(made.address)


_BYTES, _HALVES = _array_of(types.uint8), _array_of(types.uint16)
_kept: list[Any] = []  # compiled code lives as long as its object
