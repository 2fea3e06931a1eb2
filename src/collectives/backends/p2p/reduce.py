"""Reduce what has arrived with what is there: sums, products and extremes, rounded alike on every rank."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

HALF = (torch.float16, torch.bfloat16)
WHOLE = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)  # integers
SUMMED = (*HALF, torch.float32, torch.float64, *WHOLE, torch.bool)  # what can be reduced; sums of bools are "or"
BYTES = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    *(torch.float4_e2m1fn_x2, torch.bits8, torch.bits1x8, torch.bits2x4, torch.bits4x2),
)
# What can be moved, which is what torch copies. numpy does not know all of it: these go as integers of their size.
FOREIGN = {
    **dict.fromkeys((*HALF, torch.bits16), torch.int16),
    **dict.fromkeys(BYTES, torch.uint8),
    torch.complex32: torch.int32,
}
DTYPES = (
    *dict.fromkeys([*SUMMED, *FOREIGN, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64]),
)

# How a reduction combines two: torch's tensors, and numpy's arrays.
COMBINE: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {
    dist.ReduceOp.SUM: (torch.add, np.add),
    dist.ReduceOp.AVG: (torch.add, np.add),
    dist.ReduceOp.PRODUCT: (torch.mul, np.multiply),
    dist.ReduceOp.MAX: (torch.maximum, np.maximum),
    dist.ReduceOp.MIN: (torch.minimum, np.minimum),
    dist.ReduceOp.BAND: (torch.bitwise_and, np.bitwise_and),
    dist.ReduceOp.BOR: (torch.bitwise_or, np.bitwise_or),
    dist.ReduceOp.BXOR: (torch.bitwise_xor, np.bitwise_xor),
}
BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)


def refusal(op: Any, dtype: torch.dtype) -> str | None:
    """Why we cannot reduce this dtype by this op; None where we can. Without an op every dtype is only moved."""
    names = [str(each).rpartition(".")[2] for each in COMBINE]
    if op is not None and op not in COMBINE:
        return f"op is {', '.join(names[:-1])} or {names[-1]}, not {op}"
    if dtype not in (DTYPES if op is None else SUMMED):
        known = ", ".join(str(each).removeprefix("torch.") for each in (DTYPES if op is None else SUMMED))
        return f"dtype: got {dtype}, expected one of {known}"
    if (op in BITWISE and dtype.is_floating_point) or (op == dist.ReduceOp.AVG and dtype == torch.bool):
        return f"op {op} does not reduce {dtype}"
    return None


def takes_wire(op: Any, dtype: torch.dtype) -> bool:
    """Whether a reduction may travel by a wire: sums and averages of float32 and the half types."""
    return op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG) and dtype in (*HALF, torch.float32)


def as_array(tensor: torch.Tensor) -> Any:
    """The same memory as an array of numpy, which finds and adds a few elements in a fifth of torch's time.

    Types that numpy does not know come as integers of their size.
    """
    stored = FOREIGN.get(tensor.dtype)
    return (tensor if stored is None else tensor.view(stored)).numpy()


@cache
def reduction(op: Any, arrays: bool) -> tuple[Callable[[Any, list[Any]], None], bool]:
    """A function that reduces operands, in the order given, into a place, and whether to divide the sum in the end.

    Half types are combined in float32 and rounded once.

    >>> total = np.zeros(2)
    >>> reduce, averages = reduction(dist.ReduceOp.MAX, arrays=True)
    >>> reduce(total, [np.array([1.0, 5.0]), np.array([2.0, 3.0])])
    >>> total
    array([2., 5.])
    """
    combine = COMBINE[op][arrays] if op is not None else None
    copied = np.array if arrays else _widened
    return partial(_combine, combine, copied), op == dist.ReduceOp.AVG


@np.errstate(all="ignore")  # of overflow torch says nothing either
def _combine(combine: Any, copied: Callable[[Any], Any], into: Any, operands: list[Any]) -> None:
    if len(operands) == 1:
        into[...] = operands[0]
    elif len(operands) == 2:
        combine(operands[0], operands[1], out=into)
    else:
        total = copied(operands[0])
        for operand in operands[1:]:
            combine(total, operand, out=total)
        into[...] = total


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, of half types in float32."""
    return tensor.to(torch.float32 if tensor.dtype in HALF else tensor.dtype, copy=True)


def divide(span: torch.Tensor, p: int) -> None:
    """Make an average of a sum; integers towards zero."""
    # Asked to divide by a number, a GPU multiplies by 1/p instead, which rounds twice. It divides by a tensor.
    by = span.new_full((), p) if span.device.type == "cuda" else p
    span.div_(by, rounding_mode=None if span.is_floating_point() else "trunc")
