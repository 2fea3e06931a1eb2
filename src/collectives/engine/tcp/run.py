"""The loop, compiled: run the tasks whose inputs are there, wait for messages, send and read them."""

import numpy as np

from collectives.compiled import compiled
from collectives.engine.program import AHEAD, Flat
from collectives.engine.tcp.arrays import (
    AFTER,
    AT,
    AVERAGE,
    BEGUN,
    BLOCKED,
    CODING,
    DECODE,
    DONE,
    ENCODE,
    FIRST,
    FIRST_TASK,
    HAS_FAILED,
    INSTRUCTION,
    INTO,
    INTO_FIRST,
    KERNELS,
    KIND,
    LAST,
    LEAVING,
    LEFT,
    LISTENER,
    LOW_WATER,
    NONE,
    NUMBER,
    OUT,
    PEER,
    RANKS,
    READY,
    RECV,
    REDUCE,
    SEND,
    SIZE,
    SOURCE,
    SOURCES,
    SPINS,
    START,
    STATUS,
    UNSENT,
    UNSENTS,
    WAIT,
    LoopState,
)
from collectives.engine.tcp.messages import address, left, length, queue, take
from collectives.engine.tcp.outgoing import make_small, may_leave, push, send, step_to_send
from collectives.engine.tcp.reducing import combine, decode, divide, encode
from collectives.engine.tcp.system import MILLION, now, poll, sched_yield

# What `run` returns: the program is done; some time is over; somebody wants to connect; a connection has failed. What
# `wait` returns beside: go on.
FINISHED, PAUSE, LISTENER_READY, FAILED, GOING = range(5)
# A pollfd in one number: the descriptor, what to wait for, what has happened.
WANTED, HAPPENED, DESCRIPTOR = 32, 48, (1 << 32) - 1
POLLIN, POLLOUT = 1, 4
FIRST_SOURCE = 1  # the pollfd behind the listener's


@compiled
def run(program: Flat, state: LoopState, nanoseconds: int) -> int:
    """Run the program until it is done, or until the caller has to look at something; then call it again.

    It returns FINISHED, PAUSE after ``nanoseconds``, LISTENER_READY when somebody connects, or FAILED: the state
    says which connection has failed, and why. All peers that the program sends to are connected. One that it receives
    from may connect meanwhile.
    """
    if not state.numbers[BEGUN]:
        _begin(program, state)
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
        state.tasks[task, AT] = program.tasks[task, START]
    for peer in range(len(state.links)):
        if state.links[peer, LEAVING] != LEFT:
            state.links[peer, LEAVING] = NONE  # earlier than any step of this call


@compiled
def _run_ready(program: Flat, state: LoopState) -> bool:
    """Run the tasks that are ready, in program order. A task that ends makes later ones ready, and moves the window.

    False where a connection has failed.
    """
    task = state.numbers[FIRST_TASK]
    while task < window_end(program, state):
        if _is_ready(program, state, task) and not _run(program, state, task):
            return False
        task += 1
    return True


@compiled
def _is_ready(program: Flat, state: LoopState, task: int) -> bool:
    for at in range(program.tasks[task, AFTER], program.tasks[task + 1, AFTER]):
        if state.tasks[program.after[at], STATUS] != DONE:
            return False
    return bool(state.tasks[task, STATUS] == READY)


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
    """Mark a task as done, and move the window if it was the first."""
    state.tasks[task, STATUS] = DONE
    first = state.numbers[FIRST_TASK]
    while first < len(program.tasks) - 1 and state.tasks[first, STATUS] == DONE:
        first += 1
    state.numbers[FIRST_TASK] = first


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
    elif kind in (ENCODE, DECODE):
        _code(program, state, do[FIRST], do[LAST], kind == ENCODE)
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
def _code(program: Flat, state: LoopState, first: int, last: int, is_sent: bool) -> None:
    """Encode the spans behind the first into that one, or decode the second into the first."""
    coding = state.numbers[CODING:]
    if not is_sent:
        count = length(program, state, first) // state.numbers[SIZE]
        decode(coding, address(program, state, first), address(program, state, first + 1), count)
        return
    spans = np.empty((last - first - 1, 2), np.int64)
    for nth in range(len(spans)):
        spans[nth, 0] = address(program, state, first + 1 + nth)
        spans[nth, 1] = length(program, state, first + 1 + nth) // state.numbers[SIZE]
    encode(coding, address(program, state, first), spans)


@compiled
def _await(program: Flat, state: LoopState, number: int, missing: int) -> bool:
    """Read until at most ``missing`` bytes of a message are still to come. False if it has to wait, or has failed."""
    do = program.instructions[state.messages[number, INSTRUCTION]]
    while left(state, number) > missing:
        if do[KIND] == SEND or state.links[do[PEER], INTO] == NONE or not take(program, state, do[PEER]):
            return False
    return True


@compiled
def wait(program: Flat, state: LoopState, until: int) -> int:
    """Wait until something can be read or sent, and do that; at most until that time, in nanoseconds.

    Returns at once after a failure.
    """
    if _resume(program, state):  # their messages have left while others were sent
        return GOING
    _find_sources(program, state)
    has_happened = _sleep(program, state, until)
    for nth in range(state.numbers[SOURCES] if has_happened else 0):
        if _has_happened(state, FIRST_SOURCE + nth):
            take(program, state, state.peers[nth, SOURCE])
        if state.numbers[HAS_FAILED]:  # the next failure would hide this one
            return GOING
    if not push(program, state):
        return GOING
    _resume(program, state)
    if has_happened and _has_happened(state, 0):
        return LISTENER_READY
    return PAUSE if now(state.times) >= until else GOING


@compiled
def _find_sources(program: Flat, state: LoopState) -> None:
    """List the peers from whom this rank reads now: those of the messages that tasks wait for.

    They are all whose message is asked for if a task waits for one to leave: its receiver may wait for this rank, too.
    """
    is_sending = state.numbers[SOURCES] = 0
    for task in range(state.numbers[FIRST_TASK], window_end(program, state)):
        if state.tasks[task, STATUS] == BLOCKED:
            wait_for = program.instructions[state.tasks[task, AT], NUMBER]
            do = program.instructions[state.messages[wait_for, INSTRUCTION]]
            is_sending |= do[KIND] == SEND
            if do[KIND] == RECV:
                _add_source(state, do[PEER])
    if is_sending:
        for peer in range(len(state.peers)):
            if state.peers[peer, INTO_FIRST] != NONE:
                _add_source(state, peer)


@compiled
def _add_source(state: LoopState, peer: int) -> None:
    for nth in range(state.numbers[SOURCES]):
        if state.peers[nth, SOURCE] == peer:
            return
    state.peers[state.numbers[SOURCES], SOURCE] = peer
    state.numbers[SOURCES] += 1


@compiled
def _sleep(program: Flat, state: LoopState, until: int) -> bool:
    """Sleep until something happens; if all ranks are on this host, poll for a short while first.

    Whether ``polls`` says what has happened.
    """
    count = _polls(program, state)
    for _ in range(state.numbers[SPINS]):
        if poll(state.polls.ctypes.data, count, 0) > 0:
            return True
        sched_yield()
    milliseconds = -(-max(0, until - now(state.times)) // MILLION)
    return bool(poll(state.polls.ctypes.data, count, milliseconds) > 0)


@compiled
def _polls(program: Flat, state: LoopState) -> int:
    """Write what to wait for: the listener, what comes from the sources, and room to send; how many they are."""
    state.polls[0] = _polled(state.numbers[LISTENER], POLLIN)
    count = FIRST_SOURCE
    for nth in range(state.numbers[SOURCES]):
        peer = state.peers[nth, SOURCE]
        state.polls[count] = _polled(state.links[peer, INTO], POLLIN)  # NONE before it connects: poll ignores that
        count += 1
    step, waits = step_to_send(program, state), False
    for nth in range(state.numbers[UNSENTS]):
        peer = state.peers[nth, UNSENT]
        if may_leave(program, state, peer, step):
            state.polls[count] = _polled(state.links[peer, OUT], POLLOUT)
            count += 1
        else:
            waits = True
    for peer in range(len(state.links) if waits else 0):
        if state.links[peer, LEAVING] < step:
            make_small(state, peer)
            state.polls[count] = _polled(state.links[peer, OUT], POLLOUT)
            count += 1
    return count


@compiled
def _polled(socket: int, wanted: int) -> int:
    return int((socket & DESCRIPTOR) | wanted << WANTED)


@compiled
def _has_happened(state: LoopState, nth: int) -> bool:
    return bool((state.polls[nth] >> HAPPENED) & 0xFFFF)


@compiled
def _resume(program: Flat, state: LoopState) -> bool:
    """Mark the blocked tasks as ready whose messages have moved far enough. Whether there are any."""
    found = False
    for task in range(state.numbers[FIRST_TASK], window_end(program, state)):
        if state.tasks[task, STATUS] == BLOCKED:
            do = program.instructions[state.tasks[task, AT]]
            if left(state, do[NUMBER]) <= do[FIRST] * state.numbers[SIZE]:
                state.tasks[task, STATUS] = READY
                found = True
    return found


@compiled
def window_end(program: Flat, state: LoopState) -> int:
    """The end of the window of tasks that may have begun."""
    return int(min(state.numbers[FIRST_TASK] + AHEAD, len(program.tasks) - 1))
