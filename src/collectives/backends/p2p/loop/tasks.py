"""The loop, compiled: run the tasks whose inputs are there, and wait for messages, as `execute` does in Python."""

import numpy as np

from collectives.backends.p2p.loop.flat import (
    AVERAGE,
    FIRST,
    FOLLOWER,
    KIND,
    LAST,
    NUMBER,
    PEER,
    RECV,
    REDUCE,
    SEND,
    START,
    TIES,
    WAIT,
)
from collectives.backends.p2p.loop.messages import address, left, length, queue, send, take
from collectives.backends.p2p.loop.reducing import combine, divide
from collectives.backends.p2p.loop.state import (
    AT,
    BEGUN,
    BLOCKED,
    DONE,
    FIRST_TASK,
    HAS_FAILED,
    INSTRUCTION,
    INTO,
    INTO_FIRST,
    KERNELS,
    LOW_WATER,
    NONE,
    PLACES,
    RANKS,
    READY,
    SIZE,
    STATUS,
    UNDONE,
    LoopState,
)
from collectives.backends.p2p.loop.system import now
from collectives.backends.p2p.loop.waiting import GOING, LISTENER_READY, PAUSE, wait, window_end
from collectives.backends.p2p.program import Flat
from collectives.compiled import compiled

# What the loop returns beside PAUSE and LISTENER_READY: the program is done; a connection has failed.
FINISHED, FAILED = 10, 11
__all__ = ["FAILED", "FINISHED", "LISTENER_READY", "PAUSE", "run"]


@compiled
def run(program: Flat, state: LoopState, nanoseconds: int) -> int:
    """Run the program until it is done, or until the caller has to look at something; then call it again.

    It returns FINISHED, PAUSE after so many nanoseconds, LISTENER_READY when somebody connects, or FAILED: the state
    says which connection has failed, and why. All peers that the program sends to are connected. One that it receives
    from may connect meanwhile.
    """
    if not state.numbers[BEGUN]:
        _begin(program, state)
    state.peers[:, :PLACES] = state.sockets
    until = now(state.times) + nanoseconds
    while True:
        if not _run_ready(program, state):
            return FAILED
        if state.numbers[FIRST_TASK] == len(program.tasks) - 1:
            return FINISHED
        status = wait(program, state, until)
        if state.numbers[HAS_FAILED]:
            return FAILED
        if status != GOING:
            return status


@compiled
def _begin(program: Flat, state: LoopState) -> None:
    """Fill the arrays for a new call."""
    state.messages[:], state.tasks[:], state.peers[:], state.numbers[BEGUN:] = NONE, 0, NONE, 0
    state.numbers[BEGUN] = 1
    state.peers[:, LOW_WATER] = 1
    for task in range(len(program.tasks) - 1):
        state.tasks[task, UNDONE], state.tasks[task, AT] = program.tasks[task, TIES], program.tasks[task, START]


@compiled
def _run_ready(program: Flat, state: LoopState) -> bool:
    """Run the tasks that are ready, in program order. A task that ends makes later ones ready, and moves the window.

    False where a connection has failed.
    """
    task = state.numbers[FIRST_TASK]
    while task < window_end(program, state):
        is_ready = state.tasks[task, UNDONE] == 0 and state.tasks[task, STATUS] == READY
        if is_ready and not _run(program, state, task):
            return False
        task += 1
    return True


@compiled
def _run(program: Flat, state: LoopState, task: int) -> bool:
    """Run a task until it is done or waits. False where a connection has failed."""
    while state.tasks[task, AT] < program.tasks[task + 1, START]:
        is_done = _do(program, state, state.tasks[task, AT])
        if state.numbers[HAS_FAILED]:
            return False
        if not is_done:
            state.tasks[task, STATUS] = BLOCKED
            return True
        state.tasks[task, AT] += 1
    _finish(program, state, task)
    return True


@compiled
def _finish(program: Flat, state: LoopState, task: int) -> None:
    """Mark a task as done; each of its followers waits for one task less."""
    state.tasks[task, STATUS] = DONE
    first = state.numbers[FIRST_TASK]
    while first < len(program.tasks) - 1 and state.tasks[first, STATUS] == DONE:
        first += 1
    state.numbers[FIRST_TASK] = first
    for at in range(program.tasks[task, FOLLOWER], program.tasks[task + 1, FOLLOWER]):
        state.tasks[program.followers[at], UNDONE] -= 1


@compiled
def _do(program: Flat, state: LoopState, instruction: int) -> bool:
    """Execute an instruction. False if it waits, or if a connection has failed."""
    do = program.instructions[instruction]
    kind = do[KIND]
    if kind == WAIT:
        return _await(program, state, do[NUMBER], do[FIRST] * state.numbers[SIZE])
    if kind == SEND:
        return send(program, state, instruction)
    if kind == RECV:
        queue(program, state, instruction, INTO_FIRST)
    elif kind == REDUCE:
        _reduce(program, state, do[FIRST], do[LAST])
    elif kind == AVERAGE:
        count = length(program, state, do[FIRST]) // state.numbers[SIZE]
        divide(state.numbers[KERNELS:], address(program, state, do[FIRST]), count, state.numbers[RANKS])
    return True


@compiled
def _reduce(program: Flat, state: LoopState, first: int, last: int) -> None:
    """Combine what is at the spans behind the first into that one."""
    operands = np.empty(last - first - 1, np.int64)
    for nth in range(len(operands)):
        operands[nth] = address(program, state, first + 1 + nth)
    count = length(program, state, first) // state.numbers[SIZE]
    combine(state.numbers[KERNELS:], address(program, state, first), operands, count)


@compiled
def _await(program: Flat, state: LoopState, number: int, missing: int) -> bool:
    """Read until no more than so many bytes of a message are missing. False if that takes longer, or has failed."""
    do = program.instructions[state.messages[number, INSTRUCTION]]
    while left(state, number) > missing:
        if do[KIND] == SEND or state.peers[do[PEER], INTO] == NONE or not take(program, state, do[PEER]):
            return False
    return True
