"""The ops of a reduction, one row each: torch's function, the loops that numba compiles, and their names in rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

Array = Any
# Into, one, other: mostly an array, too; elements.
Kernel = Callable[[Array, Array, Any, int], None]


def add(into: Array, one: Array, other: Array, count: int) -> None:
    """Add, element by element, as the other functions here."""
    for i in range(count):
        into[i] = one[i] + other[i]


def add_to(into: Array, other: Array, _: Array, count: int) -> None:
    """Add to what is there. As `add` with one array twice, it would go element by element."""
    for i in range(count):
        into[i] += other[i]


def multiply(into: Array, one: Array, other: Array, count: int) -> None:
    """Multiply."""
    for i in range(count):
        into[i] = one[i] * other[i]


def maximum(into: Array, one: Array, other: Array, count: int) -> None:
    """Take the larger one; not a number if either is not."""
    for i in range(count):
        first, second = one[i], other[i]
        into[i] = first if first >= second or first != first else second


def minimum(into: Array, one: Array, other: Array, count: int) -> None:
    """Take the smaller one; not a number if either is not."""
    for i in range(count):
        first, second = one[i], other[i]
        into[i] = first if first <= second or first != first else second


def bitwise_and(into: Array, one: Array, other: Array, count: int) -> None:
    """Take the bits that both have; of bools "and"."""
    for i in range(count):
        into[i] = one[i] & other[i]


def bitwise_or(into: Array, one: Array, other: Array, count: int) -> None:
    """Take the bits that either has; of bools "or", which is their sum, too."""
    for i in range(count):
        into[i] = one[i] | other[i]


def bitwise_xor(into: Array, one: Array, other: Array, count: int) -> None:
    """Take the bits that one of the two has."""
    for i in range(count):
        into[i] = one[i] ^ other[i]


class Op(NamedTuple):
    """What performs an op: torch's function on tensors, a loop on arrays, and the loop on bools.

    ``in_place`` is the loop whose first operand is its place, for an op with which it pays: the sums
    of training. It may swap the two operands, because a sum of two has the same bits in either
    order. ``row_name`` is its name in settings and rows of measurements, empty if it is not measured.
    """

    combine: Callable[..., Any]
    loop: Kernel
    of_bools: Kernel
    in_place: Kernel | None = None
    is_bitwise: bool = False
    row_name: str = ""


# Their order is part of the signature of a call, by which ranks compare what they call.
OPS: dict[Any, Op] = {
    dist.ReduceOp.SUM: Op(torch.add, add, bitwise_or, add_to, row_name="sum"),
    dist.ReduceOp.AVG: Op(torch.add, add, bitwise_or, add_to, row_name="avg"),
    dist.ReduceOp.PRODUCT: Op(torch.mul, multiply, bitwise_and, row_name="prod"),
    dist.ReduceOp.MAX: Op(torch.maximum, maximum, bitwise_or, row_name="max"),
    dist.ReduceOp.MIN: Op(torch.minimum, minimum, bitwise_and, row_name="min"),
    dist.ReduceOp.BAND: Op(torch.bitwise_and, bitwise_and, bitwise_and, is_bitwise=True),
    dist.ReduceOp.BOR: Op(torch.bitwise_or, bitwise_or, bitwise_or, is_bitwise=True),
    dist.ReduceOp.BXOR: Op(torch.bitwise_xor, bitwise_xor, bitwise_xor, is_bitwise=True),
}
BY_ROW_NAME = {op.row_name: torch_op for torch_op, op in OPS.items() if op.row_name}


def name_of(op: Any) -> str:
    """Return torch's name of an op, as errors give it.

    >>> name_of(dist.ReduceOp.PRODUCT)
    'PRODUCT'
    """
    return str(op).rpartition(".")[2]
