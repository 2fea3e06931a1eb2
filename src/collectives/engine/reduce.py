"""Reduce what has arrived with what is there: sums, products and extremes, rounded alike on every rank."""

from typing import Any

import torch
from torch import distributed as dist

from collectives.engine.ops import OPS, name_of

HALF = (torch.float16, torch.bfloat16)
WHOLE = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)  # integers
# What can be reduced; sums of bools are "or".
SUMMED = (*HALF, torch.float32, torch.float64, *WHOLE, torch.bool)
BYTES = (
    *(
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
        torch.float8_e8m0fnu,
    ),
    *(torch.float4_e2m1fn_x2, torch.bits8, torch.bits1x8, torch.bits2x4, torch.bits4x2),
)
# What can be moved, which is what torch copies.
DTYPES = (
    *(*SUMMED, torch.bits16, *BYTES, torch.complex32),
    *(torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64),
)


def refusal(op: Any, dtype: torch.dtype) -> str | None:
    """Return why we cannot reduce this dtype by this op; None where we can.

    Without an op it is only moved.
    """
    if op is not None and op not in OPS:
        names = [name_of(each) for each in OPS]
        return f"op is {', '.join(names[:-1])} or {names[-1]}, not {op}"
    taken = DTYPES if op is None else SUMMED
    if dtype not in taken:
        known = ", ".join(str(each).removeprefix("torch.") for each in taken)
        return f"dtype: got {dtype}, expected one of {known}"
    if op is None:
        return None
    is_average_of_bools = op == dist.ReduceOp.AVG and dtype == torch.bool
    if is_average_of_bools or (OPS[op].is_bitwise and dtype.is_floating_point):
        return f"op {op} does not reduce {dtype}"
    return None


def reduce(op: Any, into: torch.Tensor, operands: list[torch.Tensor]) -> None:
    """Reduce the operands, in their order, into a place.

    Half types are combined in float32 and rounded once.

    >>> total = torch.zeros(2)
    >>> reduce(dist.ReduceOp.MAX, total, [torch.tensor([1.0, 5.0]), torch.tensor([2.0, 3.0])])
    >>> total
    tensor([2., 5.])
    """
    if len(operands) == 1:
        into.copy_(operands[0])
    elif len(operands) == 2:
        OPS[op].combine(*operands, out=into)
    else:
        total = operands[0].to(torch.float32 if into.dtype in HALF else into.dtype, copy=True)
        for operand in operands[1:]:
            OPS[op].combine(total, operand, out=total)
        into.copy_(total)


def divide(span: torch.Tensor, p: int) -> None:
    """Make an average of a sum; integers towards zero."""
    # Asked to divide by a number, a GPU multiplies by 1/p instead, which rounds twice. It divides
    # by a tensor.
    by = span.new_full((), p) if span.device.type == "cuda" else p
    span.div_(by, rounding_mode=None if span.is_floating_point() else "trunc")
