"""Kernels: compiled functions of three addresses and a count, for one op and dtype at a time, and their use on spans.

They combine two arrays into a third, divide a sum, and convert float16 and bfloat16 to float32 and
back, rounded as torch rounds them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from torch import distributed as dist

from collectives.compiled import compiled, compiled_callback
from collectives.core.schedule import Ints
from collectives.engine.ops import OPS, Array, Kernel
from collectives.engine.system import call_kernel, memmove, one_at_a_time

Record = Any  # of KERNELS: in compiled code its fields are attributes


def array_of(kind: Any) -> Any:
    """Return the type of an argument that is an array of these."""
    return types.CPointer(kind)  # type: ignore[no-untyped-call]


BYTES, HALVES, FLOATS = (array_of(each) for each in (types.uint8, types.uint16, types.float32))


def address(kernel: Kernel, into: Any, one: Any, other: Any) -> int:
    """Compile a kernel for arguments of these types, and return its address."""
    return int(_compiled(kernel, into, one, other).address)


@cache  # compiled code lives as long as its object
def _compiled(kernel: Kernel, into: Any, one: Any, other: Any) -> Any:
    with one_at_a_time(__file__):
        return compiled_callback(kernel, types.void(into, one, other, types.int64))


# Conversions of half types. numpy's uint32. A sum or a shift of two has 64 bits in numba; it is cut
# at once, so that a vector holds more of them.
Word = Any
MAGNITUDE, INFINITE = (
    np.uint32(0x7FFFFFFF),
    np.uint32(0x7F800000),
)  # of a float32: the bits without the sign, and infinity


@compiled
def as_float(bits: Word) -> Any:
    """Return the float32 of these bits."""
    return np.uint32(bits).view(np.float32)


@compiled
def as_bits(value: Any) -> Word:
    """Return the bits of a float32."""
    return np.float32(value).view(np.uint32)


@compiled
def shorter(size: Word, drop: int, bias: int) -> Word:
    """Return the code of the short float that is nearest to a float32, or of the even one of two.

    Without their signs.

    The short type has ``drop`` bits fewer after the point, and this bias. A larger number overflows
    to the next code.
    """
    # Subnormal numbers are as far apart as the least normal ones.
    power = max(size & INFINITE, np.uint32((128 - bias) << 23))
    # Of the sum with this, the last bit is the last one that is kept, to which the processor rounds
    # a sum.
    ruler = np.uint32(power + np.uint32(drop << 23))
    count = np.uint32(as_bits(as_float(size) + as_float(ruler)) - ruler)
    return np.uint32(
        count + np.uint32(power >> np.uint32(drop)) - np.uint32((128 - bias) << (23 - drop))
    )


@compiled
def longer(code: Word, drop: int, bias: int) -> Word:
    """Return the bits of the float32 that is equal to a short float; both without their signs."""
    shifted, ruler = np.uint32(code << np.uint32(drop)), np.uint32((128 - bias + drop) << 23)
    subnormal = as_bits(as_float(ruler + code) - as_float(ruler))
    return np.uint32(
        subnormal if shifted < np.uint32(1 << 23) else shifted + np.uint32((127 - bias) << 23)
    )


def widen_float16(into: Array, one: Array, _: Array, count: int) -> None:
    """Convert to float32."""
    for i in range(count):
        code = np.uint32(one[i] & 0x7FFF)
        size = longer(code, 13, 15) | (INFINITE if code >= np.uint32(0x7C00) else np.uint32(0))
        into[i] = as_float(size | np.uint32(np.uint32(one[i] & 0x8000) << np.uint32(16)))


def narrow_float16(into: Array, one: Array, _: Array, count: int) -> None:
    """Round to the nearest, or to the even one of two."""
    for i in range(count):
        bits = as_bits(one[i])
        size = bits & MAGNITUDE
        code = (
            np.uint32(0x7E00)
            if size > INFINITE
            else shorter(min(size, np.uint32(143 << 23)), 13, 15)
        )
        into[i] = code | (np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))


def widen_bfloat16(into: Array, one: Array, _: Array, count: int) -> None:
    """Convert to float32, of which these are the first two bytes."""
    for i in range(count):
        into[i] = as_float(np.uint32(one[i]) << np.uint32(16))


def narrow_bfloat16(into: Array, one: Array, _: Array, count: int) -> None:
    """Round to the nearest, or to the even one of two."""
    for i in range(count):
        bits = as_bits(one[i])
        rounded = (
            bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        ) >> np.uint32(16)
        into[i] = rounded if one[i] == one[i] else 0x7FC0


CONVERSIONS: dict[torch.dtype, tuple[Kernel, Kernel]] = {
    torch.float16: (widen_float16, narrow_float16),
    torch.bfloat16: (widen_bfloat16, narrow_bfloat16),
}


def divide_floats(into: Array, one: Array, ranks: int, count: int) -> None:
    """Divide a sum by a number: in float64, rounded once, which is right for float32, too."""
    for i in range(count):
        into[i] = one[i] / ranks


def divide_integers(into: Array, one: Array, ranks: int, count: int) -> None:
    """Divide a sum of integers, towards zero."""
    for i in range(count):
        total = types.int64(one[i])
        into[i] = total // ranks if total >= 0 else -(-total // ranks)


class Kernels(NamedTuple):
    """Addresses of what combines two arrays, adds one to another, divides a sum, widens and rounds.

    0 for what is not needed.

    ``size`` are the bytes of an element.
    """

    combine: int
    add_to: int
    divide: int
    widen: int
    narrow: int
    size: int


KERNELS = np.dtype([(name, np.int64) for name in Kernels._fields])  # the same for compiled code


@cache
def kernels(op: Any, dtype: torch.dtype) -> Kernels:
    """Return what reduces this dtype by this op; what is only moved needs no kernel."""
    if op is None:
        return Kernels(0, 0, 0, 0, 0, dtype.itemsize)
    if dtype == torch.bool:
        return Kernels(address(OPS[op].of_bools, BYTES, BYTES, BYTES), 0, 0, 0, 0, 1)
    widen, narrow = CONVERSIONS.get(dtype, (None, None))
    wide = array_of(getattr(types, str(torch.float32 if widen else dtype).removeprefix("torch.")))
    by = divide_floats if dtype.is_floating_point else divide_integers
    in_place = OPS[op].in_place
    return Kernels(
        address(OPS[op].loop, wide, wide, wide),
        address(in_place, wide, wide, wide) if in_place and not widen else 0,
        address(by, wide, wide, types.int64) if op == dist.ReduceOp.AVG else 0,
        address(widen, wide, HALVES, HALVES) if widen else 0,
        address(narrow, HALVES, wide, wide) if narrow else 0,
        dtype.itemsize,
    )


def compile_common() -> None:
    """Compile the kernels of usual training programs into the cache, so that their first calls do not (`make env`)."""
    floats = torch.float32, torch.float16, torch.bfloat16, torch.float64
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        for dtype in (*floats, torch.int64, torch.int32):
            kernels(op, dtype)


BLOCK = 512  # elements of a sum that is kept aside, in the cache, until it is whole
WIDEST = 8  # bytes


@compiled
def combine(kernels: Record, into: int, operands: Ints, count: int) -> None:
    """Combine what is at these addresses, in their order, into a place, which may be one of them.

    Half types are widened to float32, and rounded once.
    """
    if len(operands) == 1:
        memmove(into, operands[0], count * kernels.size)
    elif len(operands) == 2 and not kernels.widen and into not in (operands[0], operands[1]):
        call_kernel(kernels.combine, into, operands[0], operands[1], count)
    elif len(operands) == 2 and kernels.add_to:
        other = operands[1] if into == operands[0] else operands[0]
        call_kernel(kernels.add_to, into, other, 0, count)
    else:
        # An argument: after its last use numba would free it.
        aside = np.empty(4 * BLOCK * WIDEST, np.uint8)
        for done in range(0, count, BLOCK):
            _combine_block(
                kernels, into, operands, done * kernels.size, min(BLOCK, count - done), aside
            )


@compiled
def _combine_block(
    kernels: Record, into: int, operands: Ints, at: int, count: int, memory: Any
) -> None:
    """Combine aside, in the cache, because the place may be an operand that is needed later.

    No kernel writes what it reads: it would go element by element.
    """
    aside, each = memory.ctypes.data, BLOCK * WIDEST
    total = _wide(kernels, operands[0] + at, aside, count)
    for nth in range(1, len(operands)):
        other = _wide(kernels, operands[nth] + at, aside + each, count)
        place = aside + (2 + nth % 2) * each
        call_kernel(kernels.combine, place, total, other, count)
        total = place
    if kernels.narrow:
        call_kernel(kernels.narrow, into + at, total, 0, count)
    else:
        memmove(into + at, total, count * kernels.size)


@compiled
def _wide(kernels: Record, operand: int, aside: int, count: int) -> int:
    """Return where an operand is in the type in which it is combined: there, or aside."""
    if not kernels.widen:
        return operand
    call_kernel(kernels.widen, aside, operand, 0, count)
    return aside


@compiled
def divide(kernels: Record, at: int, count: int, ranks: int) -> None:
    """Make an average of a sum, if the op is one."""
    if not kernels.divide:
        return
    if not kernels.widen:
        call_kernel(kernels.divide, at, at, ranks, count)
        return
    aside = np.empty(BLOCK * WIDEST, np.uint8)
    for done in range(0, count, BLOCK):
        _divide_block(kernels, at + done * kernels.size, min(BLOCK, count - done), ranks, aside)


@compiled
def _divide_block(kernels: Record, at: int, count: int, ranks: int, memory: Any) -> None:
    """Divide in the wide type, aside."""
    aside = memory.ctypes.data
    call_kernel(kernels.widen, aside, at, 0, count)
    call_kernel(kernels.divide, aside, aside, ranks, count)
    call_kernel(kernels.narrow, at, aside, 0, count)
