"""Messages of a connection, compiled: queued in their order, where their bytes are, and read as they come."""

import errno

import numpy as np

from collectives.compiled import compiled
from collectives.engine.program import Flat
from collectives.engine.tcp.arrays import (
    BEGIN,
    BODY,
    CLOSED,
    CODED,
    DIFFERENT,
    END,
    FAILED_PEER,
    FAILED_SENDING,
    FAILED_WHY,
    FIRST,
    HAS_FAILED,
    HEADER_BYTES,
    HEADER_WORDS,
    INSTRUCTION,
    INTO,
    INTO_FIRST,
    LAST,
    LOW_WATER,
    MOST_PARTS,
    NEXT,
    NONE,
    NUMBER,
    PEER,
    SCRATCH,
    SCRATCH_MEMORY,
    SIZE,
    STEP,
    TENSOR,
    THROUGH,
    LoopState,
)
from collectives.engine.tcp.system import SO_RCVLOWAT, SOL_SOCKET, error_number, readv, setsockopt

HEADER_STEP, HEADER_BODY = 1, 2  # words of a header
RECEIVE_LOW_WATER = 128 << 10


@compiled
def address(program: Flat, state: LoopState, span: int) -> int:
    """Where a span begins in memory."""
    base = state.numbers[SCRATCH_MEMORY] if program.spans[span, SCRATCH] else state.numbers[TENSOR]
    return int(base + program.spans[span, BEGIN] * _unit(program, state, span))


@compiled
def length(program: Flat, state: LoopState, span: int) -> int:
    """Bytes of a span."""
    return int((program.spans[span, END] - program.spans[span, BEGIN]) * _unit(program, state, span))


@compiled
def _unit(program: Flat, state: LoopState, span: int) -> int:
    return 1 if program.spans[span, CODED] else int(state.numbers[SIZE])


@compiled
def queue(program: Flat, state: LoopState, instruction: int, first: int) -> None:
    """Put an instruction's message behind the others of its connection; ``first`` is the column of the first one."""
    do = program.instructions[instruction]
    number, peer, size = do[NUMBER], state.peers[do[PEER]], 0
    for span in range(do[FIRST], do[LAST]):
        size += length(program, state, span)
    message = state.messages[number]
    message[:HEADER_WORDS] = state.header
    message[HEADER_STEP], message[HEADER_BODY] = do[STEP], size
    message[THROUGH], message[BODY], message[INSTRUCTION] = 0, size, instruction
    if peer[first] == NONE:
        peer[first] = number
    else:
        state.messages[peer[first + 1], NEXT] = number
    peer[first + 1] = number


@compiled
def left(state: LoopState, number: int) -> int:
    """Bytes of a message's body that are still to be handed over, or to come."""
    message = state.messages[number]
    return int(min(message[BODY], HEADER_BYTES + message[BODY] - message[THROUGH]))


@compiled
def dequeue(state: LoopState, peer: int, first: int) -> None:
    """Take the first message off its connection."""
    state.peers[peer, first] = state.messages[state.peers[peer, first], NEXT]


@compiled
def gather(program: Flat, state: LoopState, number: int) -> int:
    """Say where the bytes of a message are that are not through yet: in how many parts."""
    message = state.messages[number]
    do, through = program.instructions[message[INSTRUCTION]], message[THROUGH]
    parts = _part(state, 0, _header(state, number), HEADER_BYTES, through)
    through = max(0, through - HEADER_BYTES)
    for span in range(do[FIRST], do[LAST]):
        size = length(program, state, span)
        if parts < MOST_PARTS:
            parts = _part(state, parts, address(program, state, span), size, through)
        through = max(0, through - size)
    return parts


@compiled
def _part(state: LoopState, parts: int, at: int, size: int, through: int) -> int:
    """One more part, without the bytes of it that are through; how many there are then."""
    if through >= size:
        return parts
    state.parts[2 * parts], state.parts[2 * parts + 1] = at + through, size - through
    return parts + 1


@compiled
def _header(state: LoopState, number: int) -> int:
    return int(state.messages[number].ctypes.data)


@compiled
def take(program: Flat, state: LoopState, peer: int) -> bool:
    """Read what has come of the first message that is asked for. False if nothing has, or the connection failed."""
    number = state.peers[peer, INTO_FIRST]
    message = state.messages[number]
    had_header = message[THROUGH] >= HEADER_BYTES
    count = readv(state.links[peer, INTO], state.parts.ctypes.data, gather(program, state, number))
    if count <= 0:
        fail(state, peer, False, error_number() if count else CLOSED)
        return False
    message[THROUGH] += count
    if not had_header and message[THROUGH] >= HEADER_BYTES and not _is_expected(program, state, number):
        fail(state, peer, False, DIFFERENT)
        return False
    still = left(state, number)
    _set_low_water(state, peer, still)
    if not still:
        dequeue(state, peer, INTO_FIRST)
    return True


@compiled
def _is_expected(program: Flat, state: LoopState, number: int) -> bool:
    """Whether a header that has come is that of the message that is asked for."""
    message = state.messages[number]
    for word in range(HEADER_WORDS):
        expected = state.header[word]
        if word == HEADER_STEP:
            expected = program.instructions[message[INSTRUCTION], STEP]
        elif word == HEADER_BODY:
            expected = message[BODY]
        if message[word] != expected:
            return False
    return True


@compiled
def _set_low_water(state: LoopState, peer: int, still: int) -> None:
    """Be woken by a large part of a long message, and by the first byte of another one."""
    wanted = RECEIVE_LOW_WATER if still >= RECEIVE_LOW_WATER else 1
    if wanted != state.peers[peer, LOW_WATER]:
        state.peers[peer, LOW_WATER] = state.times[0] = wanted
        setsockopt(state.links[peer, INTO], SOL_SOCKET, SO_RCVLOWAT, state.times.ctypes.data, np.uint32(4))


@compiled
def fail(state: LoopState, peer: int, is_sending: bool, why: int) -> None:
    """Note that a connection has failed, if it has and the system did not just say "later"."""
    if why not in (errno.EAGAIN, errno.EINTR):
        state.numbers[HAS_FAILED] = 1
        state.numbers[FAILED_PEER], state.numbers[FAILED_SENDING], state.numbers[FAILED_WHY] = peer, is_sending, why
