"""Messages, compiled: queued on a connection, handed to the system as it takes them, and read as they come.

The bytes are those that `connection` describes: the executors of two ranks need not be the same.
"""

import errno

import numpy as np

from collectives.backends.p2p.loop.arrays import (
    BEGIN,
    BODY,
    BY_STEP,
    CLOSED,
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
    OUT,
    OUT_FIRST,
    PEER,
    SCRATCH,
    SCRATCH_MEMORY,
    SIZE,
    STEP,
    TENSOR,
    THROUGH,
    UNSENT,
    UNSENTS,
    LoopState,
)
from collectives.backends.p2p.loop.system import error_number, readv, setsockopt, writev
from collectives.backends.p2p.program import Flat
from collectives.compiled import compiled

HEADER_STEP, HEADER_BODY = 1, 2  # words of a header
SOL_SOCKET, SO_RCVLOWAT = 1, 18
RECEIVE_LOW_WATER = 128 << 10
LAST_STEP = 1 << 62


@compiled
def address(program: Flat, state: LoopState, span: int) -> int:
    """Where a span begins in memory."""
    base = state.numbers[SCRATCH_MEMORY] if program.spans[span, SCRATCH] else state.numbers[TENSOR]
    return int(base + program.spans[span, BEGIN] * state.numbers[SIZE])


@compiled
def length(program: Flat, state: LoopState, span: int) -> int:
    """Bytes of a span."""
    return int((program.spans[span, END] - program.spans[span, BEGIN]) * state.numbers[SIZE])


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
def _dequeue(state: LoopState, peer: int, first: int) -> None:
    """Take the first message off its connection."""
    state.peers[peer, first] = state.messages[state.peers[peer, first], NEXT]


@compiled
def send(program: Flat, state: LoopState, instruction: int) -> bool:
    """Queue a message and send what can be sent now. False where a connection has failed."""
    peer = program.instructions[instruction, PEER]
    if state.peers[peer, OUT_FIRST] == NONE:
        state.peers[state.numbers[UNSENTS], UNSENT] = peer
        state.numbers[UNSENTS] += 1
    queue(program, state, instruction, OUT_FIRST)
    return push(program, state)


@compiled
def step_to_send(program: Flat, state: LoopState) -> int:
    """The last step whose messages may leave now: that of the earliest unsent, if the program goes step by step."""
    step = LAST_STEP
    if state.numbers[BY_STEP]:
        for nth in range(state.numbers[UNSENTS]):
            step = min(step, next_step(program, state, state.peers[nth, UNSENT]))
    return step


@compiled
def next_step(program: Flat, state: LoopState, peer: int) -> int:
    """The step of the first message that waits to be sent to a peer."""
    return int(program.instructions[state.messages[state.peers[peer, OUT_FIRST], INSTRUCTION], STEP])


@compiled
def push(program: Flat, state: LoopState) -> bool:
    """Pass the system as much as it takes, in the order of steps. False where a connection has failed."""
    moved = True
    while moved and state.numbers[UNSENTS]:
        moved, nth, step = False, 0, step_to_send(program, state)
        while nth < state.numbers[UNSENTS]:
            peer = state.peers[nth, UNSENT]
            if next_step(program, state, peer) <= step and _flush(program, state, peer):
                moved = True
                if state.peers[peer, OUT_FIRST] == NONE:
                    _forget(state, nth)
                    continue
            if state.numbers[HAS_FAILED]:
                return False
            nth += 1
    return True


@compiled
def _forget(state: LoopState, nth: int) -> None:
    """Drop a peer from those for which something waits to be sent."""
    state.numbers[UNSENTS] -= 1
    for at in range(nth, state.numbers[UNSENTS]):
        state.peers[at, UNSENT] = state.peers[at + 1, UNSENT]


@compiled
def _flush(program: Flat, state: LoopState, peer: int) -> bool:
    """Whether all of a connection's first message is handed over."""
    number = state.peers[peer, OUT_FIRST]
    message = state.messages[number]
    count = writev(state.peers[peer, OUT], state.parts.ctypes.data, _gather(program, state, number))
    if count < 0:
        _fail(state, peer, True, error_number())
        return False
    message[THROUGH] += count
    if left(state, number):
        return False
    _dequeue(state, peer, OUT_FIRST)
    return True


@compiled
def _gather(program: Flat, state: LoopState, number: int) -> int:
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
    count = readv(state.peers[peer, INTO], state.parts.ctypes.data, _gather(program, state, number))
    if count <= 0:
        _fail(state, peer, False, error_number() if count else CLOSED)
        return False
    message[THROUGH] += count
    if not had_header and message[THROUGH] >= HEADER_BYTES and not _is_expected(program, state, number):
        _fail(state, peer, False, DIFFERENT)
        return False
    still = left(state, number)
    _set_low_water(state, peer, still)
    if not still:
        _dequeue(state, peer, INTO_FIRST)
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
        setsockopt(state.peers[peer, INTO], SOL_SOCKET, SO_RCVLOWAT, state.times.ctypes.data, np.uint32(4))


@compiled
def _fail(state: LoopState, peer: int, is_sending: bool, why: int) -> None:
    """Note that a connection has failed, if it has and the system did not just say "later"."""
    if why not in (errno.EAGAIN, errno.EINTR):
        state.numbers[HAS_FAILED] = 1
        state.numbers[FAILED_PEER], state.numbers[FAILED_SENDING], state.numbers[FAILED_WHY] = peer, is_sending, why
