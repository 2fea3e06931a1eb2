"""Reduce two arrays into a third, compiled for one op and dtype at a time: what the loop calls by its address."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from numba import types
from torch import distributed as dist

from collectives.engine.kernels.address import BYTES, HALVES, Array, Kernel, address, array_of
from collectives.engine.kernels.halves import CONVERSIONS


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
def kernels(op: Any, dtype: torch.dtype) -> Kernels:
    """What reduces this dtype by this op; what is only moved needs none."""
    if op is None:
        return Kernels(0, 0, 0, 0, dtype.itemsize)
    kernel = KERNELS[op]
    if dtype == torch.bool:
        return Kernels(address(OF_BOOLS.get(kernel, kernel), *3 * [BYTES]), 0, 0, 0, 1)
    widen, narrow = CONVERSIONS.get(dtype, (None, None))
    wide = array_of(getattr(types, str(torch.float32 if widen else dtype).removeprefix("torch.")))
    by = divide if dtype.is_floating_point else divide_whole
    return Kernels(
        address(kernel, wide, wide, wide),
        address(by, wide, wide, types.int64) if op == dist.ReduceOp.AVG else 0,
        address(widen, wide, HALVES, HALVES) if widen else 0,
        address(narrow, HALVES, wide, wide) if narrow else 0,
        dtype.itemsize,
    )
