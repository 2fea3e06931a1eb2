"""Reducing and coding, compiled: operands into a place in their order, by the kernels of an op, a dtype and a wire."""

from typing import Any

import numpy as np

from collectives.compiled import compiled
from collectives.engine.tcp.system import call_kernel, memmove
from collectives.schedule import Ints
from collectives.wire import BLOCK as SCALED

# What `kernels` returns: addresses, 0 for what is not needed, and bytes of an element.
COMBINE, DIVIDE, WIDEN, NARROW, SIZE = range(5)
# What `coding` returns: addresses, and bits of an element.
ENCODE, DECODE, BITS = range(3)
BLOCK = 512  # elements of a sum that is kept aside, in the cache, until it is whole
WIDEST = 8  # bytes


@compiled
def combine(kernels: Ints, into: int, operands: Ints, count: int) -> None:
    """Combine what is at these addresses, in their order, into a place, which may be one of them.

    Half types are widened to float32, and rounded once.
    """
    if len(operands) == 1:
        memmove(into, operands[0], count * kernels[SIZE])
    elif len(operands) == 2 and not kernels[WIDEN] and into not in (operands[0], operands[1]):
        call_kernel(kernels[COMBINE], into, operands[0], operands[1], count)
    else:
        aside = np.empty(4 * BLOCK * WIDEST, np.uint8)  # an argument: after its last use numba would free it
        for done in range(0, count, BLOCK):
            _combine_block(kernels, into, operands, done * kernels[SIZE], min(BLOCK, count - done), aside)


@compiled
def _combine_block(kernels: Ints, into: int, operands: Ints, at: int, count: int, memory: Any) -> None:
    """Combine aside, in the cache, because the place may be an operand that is needed later.

    No kernel writes what it reads: it would go element by element.
    """
    aside, each = memory.ctypes.data, BLOCK * WIDEST
    total = _wide(kernels, operands[0] + at, aside, count)
    for nth in range(1, len(operands)):
        other = _wide(kernels, operands[nth] + at, aside + each, count)
        place = aside + (2 + nth % 2) * each
        call_kernel(kernels[COMBINE], place, total, other, count)
        total = place
    if kernels[NARROW]:
        call_kernel(kernels[NARROW], into + at, total, 0, count)
    else:
        memmove(into + at, total, count * kernels[SIZE])


@compiled
def _wide(kernels: Ints, operand: int, aside: int, count: int) -> int:
    """Where an operand is in the type in which it is combined: there, or aside."""
    if not kernels[WIDEN]:
        return operand
    call_kernel(kernels[WIDEN], aside, operand, 0, count)
    return aside


@compiled
def divide(kernels: Ints, at: int, count: int, ranks: int) -> None:
    """Make an average of a sum, if the op is one."""
    if not kernels[DIVIDE]:
        return
    if not kernels[WIDEN]:
        call_kernel(kernels[DIVIDE], at, at, ranks, count)
        return
    aside = np.empty(BLOCK * WIDEST, np.uint8)
    for done in range(0, count, BLOCK):
        _divide_block(kernels, at + done * kernels[SIZE], min(BLOCK, count - done), ranks, aside)


@compiled
def _divide_block(kernels: Ints, at: int, count: int, ranks: int, memory: Any) -> None:
    """Divide in the wide type, aside."""
    aside = memory.ctypes.data
    call_kernel(kernels[WIDEN], aside, at, 0, count)
    call_kernel(kernels[DIVIDE], aside, aside, ranks, count)
    call_kernel(kernels[NARROW], at, aside, 0, count)


@compiled
def encode(coding: Ints, into: int, spans: Ints) -> None:
    """Encode spans (address, elements) into one place, all elements before all scales, and round them."""
    scales = into + spans[:, 1].sum() * coding[BITS] // 8
    for nth in range(len(spans)):
        at, count = spans[nth]
        call_kernel(coding[ENCODE], into, at, scales, count)
        call_kernel(coding[DECODE], at, into, scales, count)
        into += count * coding[BITS] // 8
        scales += count // SCALED


@compiled
def decode(coding: Ints, into: int, coded: int, count: int) -> None:
    """Decode so many elements."""
    call_kernel(coding[DECODE], into, coded, coded + count * coding[BITS] // 8, count)
