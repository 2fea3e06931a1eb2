"""Messages on their way out of a rank, compiled: at once or, where ranks exchange, one step's after the other.

Two messages that share a link both come late. In an exchange, such as recursive doubling or `circulant`, a rank that is
behind has the message of its step before its own has left. If it went on to the next peer at once, the first one would
wait twice as long, and be behind in its turn. So there none of a later step begins before those of the earlier ones
have left: over a network a long one has when no more of it is under way than a link holds. A pipeline, a ring or a
tree, sends what is there, because it has to overlap. So does a pairwise all-to-all, because none of its steps waits for
another.
"""

import sys
import termios

import numpy as np

from collectives.compiled import compiled
from collectives.engine.program import Flat
from collectives.engine.tcp.arrays import (
    BODY,
    BY_STEP,
    HAS_FAILED,
    INSTRUCTION,
    LEAVING,
    LEFT,
    NETWORK,
    NONE,
    OUT,
    OUT_FIRST,
    PEER,
    SEND_BUFFER,
    STEP,
    THROUGH,
    UNSENT,
    UNSENTS,
    LoopState,
)
from collectives.engine.tcp.messages import dequeue, fail, gather, left, queue
from collectives.engine.tcp.system import SO_SNDBUF, SOL_SOCKET, error_number, ioctl, setsockopt, writev

# Bytes in flight on a link, there and back: 5 us each way at 25 GB/s, and the same in slow motion, are 250 KB.
BANDWIDTH_DELAY = 192 << 10
LARGE_BUFFER = 2 << 20  # what the system takes of a message at once …
# … or how little. The system doubles it, and reports room when a third is free: when BANDWIDTH_DELAY is left.
SMALL_BUFFER = BANDWIDTH_DELAY * 3 // 4
UNSENT_BYTES = termios.TIOCOUTQ if sys.platform == "linux" else 0  # elsewhere the system does not say, or otherwise


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
def push(program: Flat, state: LoopState) -> bool:
    """Pass the system as much as it takes, in the order of steps. False where a connection has failed."""
    _see_off(state)
    moved = True
    while moved and state.numbers[UNSENTS]:
        moved, nth, step = False, 0, step_to_send(program, state)
        while nth < state.numbers[UNSENTS]:
            peer = state.peers[nth, UNSENT]
            if may_leave(program, state, peer, step) and _flush(program, state, peer):
                moved = True
                if state.peers[peer, OUT_FIRST] == NONE:
                    _forget(state, nth)
                    continue
            if state.numbers[HAS_FAILED]:
                return False
            nth += 1
    return True


@compiled
def step_to_send(program: Flat, state: LoopState) -> int:
    """The last step whose messages may leave now: that of the earliest unsent, if the program goes step by step."""
    step = LEFT
    if state.numbers[BY_STEP]:
        for nth in range(state.numbers[UNSENTS]):
            step = min(step, _next_step(program, state, state.peers[nth, UNSENT]))
    return step


@compiled
def _next_step(program: Flat, state: LoopState, peer: int) -> int:
    """The step of the first message that waits to be sent to a peer."""
    return int(program.instructions[state.messages[state.peers[peer, OUT_FIRST], INSTRUCTION], STEP])


@compiled
def may_leave(program: Flat, state: LoopState, peer: int, step: int) -> bool:
    """Whether a peer's next message is of that step, or of an earlier one, and nothing has to leave before it."""
    if _next_step(program, state, peer) > step:
        return False
    if state.numbers[BY_STEP] and state.numbers[NETWORK]:
        for other in range(len(state.links)):
            if other != peer and state.links[other, LEAVING] < step:
                return False
    return True


@compiled
def _see_off(state: LoopState) -> None:
    """Forget the long messages of which no more is under way than a link holds."""
    if not state.numbers[NETWORK]:
        return
    for peer in range(len(state.links)):
        if state.links[peer, LEAVING] != LEFT and _under_way(state, peer) <= BANDWIDTH_DELAY:
            state.links[peer, LEAVING] = LEFT


@compiled
def _under_way(state: LoopState, peer: int) -> int:
    """Bytes that the system has taken, but the peer's has not acknowledged; 0 where it does not say."""
    state.times[0] = 0
    if UNSENT_BYTES:
        ioctl(state.links[peer, OUT], UNSENT_BYTES, state.times.ctypes.data)
    return int(state.times[0])


@compiled
def make_small(state: LoopState, peer: int) -> None:
    """Have the system report room when a message has left."""
    _resize(state, peer, SMALL_BUFFER)


@compiled
def _resize(state: LoopState, peer: int, nbytes: int) -> None:
    """Ask the system for a send buffer of that size."""
    if state.links[peer, SEND_BUFFER] != nbytes:
        state.links[peer, SEND_BUFFER] = state.times[0] = nbytes
        setsockopt(state.links[peer, OUT], SOL_SOCKET, SO_SNDBUF, state.times.ctypes.data, np.uint32(4))


@compiled
def _flush(program: Flat, state: LoopState, peer: int) -> bool:
    """Whether all of a connection's first message is handed over."""
    number = state.peers[peer, OUT_FIRST]
    message = state.messages[number]
    if state.links[peer, SEND_BUFFER] == SMALL_BUFFER:
        _resize(state, peer, LARGE_BUFFER)
    count = writev(state.links[peer, OUT], state.parts.ctypes.data, gather(program, state, number))
    if count < 0:
        fail(state, peer, True, error_number())
        return False
    message[THROUGH] += count
    if left(state, number):
        return False
    if message[BODY] > BANDWIDTH_DELAY or state.links[peer, LEAVING] != LEFT:
        state.links[peer, LEAVING] = program.instructions[message[INSTRUCTION], STEP]
    dequeue(state, peer, OUT_FIRST)
    return True


@compiled
def _forget(state: LoopState, nth: int) -> None:
    """Drop a peer from those for which something waits to be sent."""
    state.numbers[UNSENTS] -= 1
    for at in range(nth, state.numbers[UNSENTS]):
        state.peers[at, UNSENT] = state.peers[at + 1, UNSENT]
