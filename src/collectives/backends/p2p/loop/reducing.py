"""Reducing, compiled: operands into a place in their order, by a kernel for the op and dtype."""

import numpy as np

from collectives.backends.p2p.loop.messages import address, length
from collectives.backends.p2p.loop.state import DIVIDE, KERNEL, RANKS, SIZE, LoopState
from collectives.backends.p2p.loop.system import call_kernel, memmove
from collectives.backends.p2p.program import Flat
from collectives.compiled import compiled

BLOCK = 32 << 10  # bytes of a sum of more than two that is kept aside, in the cache, until it is whole


@compiled
def reduce(program: Flat, state: LoopState, first: int, last: int) -> None:
    """Combine the operands behind the first of these spans into that one; one operand alone is copied there."""
    into, one, size = address(program, state, first), address(program, state, first + 1), state.numbers[SIZE]
    if last - first == 2:
        memmove(into, one, length(program, state, first))
    elif last - first == 3:
        count = length(program, state, first) // size
        call_kernel(state.numbers[KERNEL], into, one, address(program, state, first + 2), count)
    else:
        _reduce_many(program, state, first, last)


@compiled
def _reduce_many(program: Flat, state: LoopState, first: int, last: int) -> None:
    """Block by block, because the place may be one of the operands, and not the first."""
    block, whole, size = np.empty(BLOCK, np.uint8), length(program, state, first), state.numbers[SIZE]
    for done in range(0, whole, BLOCK):
        some, total = min(BLOCK, whole - done), block.ctypes.data
        memmove(total, address(program, state, first + 1) + done, some)
        for operand in range(first + 2, last):
            other = address(program, state, operand) + done
            call_kernel(state.numbers[KERNEL], total, total, other, some // size)
        memmove(address(program, state, first) + done, total, some)


@compiled
def divide(program: Flat, state: LoopState, span: int) -> None:
    """Make an average of a sum, if the op is one."""
    if state.numbers[DIVIDE]:
        at, count = address(program, state, span), length(program, state, span) // state.numbers[SIZE]
        state.times[0] = state.numbers[RANKS]
        call_kernel(state.numbers[DIVIDE], at, at, state.times.ctypes.data, count)
