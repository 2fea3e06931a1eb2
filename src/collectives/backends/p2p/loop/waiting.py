"""Waiting, compiled: sleep until a message moves, move it, and let the tasks go on that have waited for it."""

from collectives.backends.p2p.loop.flat import FIRST, KIND, NUMBER, PEER, RECV, SEND
from collectives.backends.p2p.loop.messages import left, next_step, push, step_to_send, take
from collectives.backends.p2p.loop.state import (
    AT,
    BLOCKED,
    FIRST_TASK,
    HAS_FAILED,
    INSTRUCTION,
    INTO,
    INTO_FIRST,
    LISTENER,
    NONE,
    OUT,
    READY,
    SIZE,
    SOURCE,
    SOURCES,
    SPINS,
    STATUS,
    UNSENT,
    UNSENTS,
    LoopState,
)
from collectives.backends.p2p.loop.system import now, ppoll, sched_yield
from collectives.backends.p2p.program import AHEAD, Flat
from collectives.compiled import compiled

# What `wait` returns: go on; some time is over; somebody wants to connect.
GOING, PAUSE, LISTENER_READY = range(3)
# A pollfd in one number: the descriptor, what to wait for, what has happened.
WANTED, HAPPENED, DESCRIPTOR = 32, 48, (1 << 32) - 1
POLLIN, POLLOUT = 1, 4
FIRST_SOURCE = 1  # the pollfd behind the listener's


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
        state.times[:] = 0
        if ppoll(state.polls.ctypes.data, count, state.times.ctypes.data, 0) > 0:
            return True
        sched_yield()
    state.times[1] = max(0, until - now(state.times))
    state.times[0] = 0
    return bool(ppoll(state.polls.ctypes.data, count, state.times.ctypes.data, 0) > 0)


@compiled
def _polls(program: Flat, state: LoopState) -> int:
    """Write what to wait for: the listener, what comes from the sources, and room to send; how many they are."""
    state.polls[0] = _poll(state.numbers[LISTENER], POLLIN)
    count = FIRST_SOURCE
    for nth in range(state.numbers[SOURCES]):
        peer = state.peers[nth, SOURCE]
        state.polls[count] = _poll(state.peers[peer, INTO], POLLIN)  # NONE before it connects: ppoll ignores that
        count += 1
    step = step_to_send(program, state)
    for nth in range(state.numbers[UNSENTS]):
        peer = state.peers[nth, UNSENT]
        if next_step(program, state, peer) <= step:
            state.polls[count] = _poll(state.peers[peer, OUT], POLLOUT)
            count += 1
    return count


@compiled
def _poll(socket: int, wanted: int) -> int:
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
