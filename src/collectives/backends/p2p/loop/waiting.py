"""Waiting, compiled: sleep until a message moves, move it, and let the tasks go on that have waited for it."""

from collectives.backends.p2p.loop.flat import FIRST, KIND, NUMBER, PEER, RECV, SEND
from collectives.backends.p2p.loop.messages import hear, left, next_step, step_to_send, take
from collectives.backends.p2p.loop.messages import push as push_messages
from collectives.backends.p2p.loop.ready import push
from collectives.backends.p2p.loop.ring import has_room, readable, sleeps_soon
from collectives.backends.p2p.loop.state import (
    AT,
    BLOCKED,
    BLOCKED_TASKS,
    HAS_FAILED,
    INSTRUCTION,
    INTO,
    INTO_FIRST,
    INTO_RING,
    LISTENER,
    LOCAL_LISTENER,
    NONE,
    OUT,
    OUT_RING,
    SIZE,
    SOCKET_SPINS,
    SOURCE,
    SOURCES,
    SPINS,
    UNSENT,
    UNSENTS,
    LoopState,
)
from collectives.backends.p2p.loop.system import now, ppoll, sched_yield
from collectives.backends.p2p.program import Flat
from collectives.compiled import compiled

# What `wait` returns: go on; some time is over; somebody wants to connect.
GOING, PAUSE, LISTENER_READY = range(3)
# A pollfd in one number: the descriptor, what to wait for, what has happened.
WANTED, HAPPENED, DESCRIPTOR = 32, 48, (1 << 32) - 1
POLLIN, POLLOUT = 1, 4
LISTENERS = 2  # pollfds before those of tasks


@compiled
def wait(program: Flat, state: LoopState, until: int) -> int:
    """Wait until something can be read or sent, and do that; at most until that time, in nanoseconds.

    Returns at once after a failure.
    """
    if _resume(program, state):  # their messages have left while others were sent
        return GOING
    _find_sources(program, state)
    has_polled = not _spin(program, state) and _sleep(program, state, until)
    for nth in range(state.numbers[SOURCES]):
        _receive(program, state, state.peers[nth, SOURCE], has_polled and _has_happened(state, LISTENERS + nth))
        if state.numbers[HAS_FAILED]:  # the next failure would hide this one
            return GOING
    if not push_messages(program, state):
        return GOING
    _resume(program, state)
    if has_polled and (_has_happened(state, 0) or _has_happened(state, 1)):
        return LISTENER_READY
    return PAUSE if now(state.times) >= until else GOING


@compiled
def _find_sources(program: Flat, state: LoopState) -> None:
    """List the peers from whom this rank reads now: those of the messages that tasks wait for.

    They are all whose message is asked for if a task waits for one to leave: its receiver may wait for this rank, too.
    """
    is_sending = state.numbers[SOURCES] = 0
    for nth in range(state.numbers[BLOCKED_TASKS]):
        do = program.instructions[_awaited(program, state, nth)]
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
def _receive(program: Flat, state: LoopState, peer: int, has_happened: bool) -> None:
    """Take what has come from a peer; a ring shows that by itself, and its socket whether the peer is still there."""
    is_ring = state.peers[peer, INTO_RING] != NONE
    if has_happened and is_ring:
        hear(state, peer, False)
    if (has_happened or is_ring) and not state.numbers[HAS_FAILED]:
        take(program, state, peer)


@compiled
def _spin(program: Flat, state: LoopState) -> bool:
    """Whether a ring can be used, now or within a short while, in which other processes may run.

    A rank that waits for a socket, too, does not spin.
    """
    for _ in range(state.numbers[SPINS] if _has_rings_alone(state) else 1):
        if _is_any_ready(program, state):
            return True
        sched_yield()
    return False


@compiled
def _sleep(program: Flat, state: LoopState, until: int) -> bool:
    """Sleep until something happens, unless a ring can be used meanwhile. Whether ``polls`` says what has happened.

    If all ranks are on this host, it polls for a short while first.
    """
    count = _polls(program, state)
    if _is_any_ready(program, state):
        return False
    for _ in range(state.numbers[SOCKET_SPINS]):
        state.times[:] = 0
        if ppoll(state.polls.ctypes.data, count, state.times.ctypes.data, 0) > 0:
            return True
        sched_yield()
    state.times[1] = max(0, until - now(state.times))
    state.times[0] = 0
    return bool(ppoll(state.polls.ctypes.data, count, state.times.ctypes.data, 0) > 0)


@compiled
def _has_rings_alone(state: LoopState) -> bool:
    """Whether all that this rank waits for goes through rings."""
    for nth in range(state.numbers[SOURCES]):
        if state.peers[state.peers[nth, SOURCE], INTO_RING] == NONE:
            return False
    for nth in range(state.numbers[UNSENTS]):  # noqa: SIM110
        if state.peers[state.peers[nth, UNSENT], OUT_RING] == NONE:
            return False
    return True


@compiled
def _is_any_ready(program: Flat, state: LoopState) -> bool:
    """Whether there is something to read in a ring, or room for what may be sent now."""
    for nth in range(state.numbers[SOURCES]):
        ring = state.peers[state.peers[nth, SOURCE], INTO_RING]
        if ring != NONE and readable(ring):
            return True
    step = step_to_send(program, state)
    for nth in range(state.numbers[UNSENTS]):
        peer = state.peers[nth, UNSENT]
        ring = state.peers[peer, OUT_RING]
        if ring != NONE and next_step(program, state, peer) <= step and has_room(ring):
            return True
    return False


@compiled
def _polls(program: Flat, state: LoopState) -> int:
    """Write what to wait for: the listeners, what comes from the sources, and room to send; how many they are.

    The peers at the other ends of rings are asked to wake this rank.
    """
    state.polls[0] = _poll(state.numbers[LISTENER], POLLIN)
    state.polls[1] = _poll(state.numbers[LOCAL_LISTENER], POLLIN)
    count = LISTENERS
    for nth in range(state.numbers[SOURCES]):
        peer = state.peers[nth, SOURCE]
        state.polls[count] = _poll(state.peers[peer, INTO], POLLIN)  # NONE before it connects: ppoll ignores that
        if state.peers[peer, INTO_RING] != NONE:
            sleeps_soon(state.peers[peer, INTO_RING], False)
        count += 1
    step = step_to_send(program, state)
    for nth in range(state.numbers[UNSENTS]):
        peer = state.peers[nth, UNSENT]
        if next_step(program, state, peer) <= step:
            is_ring = state.peers[peer, OUT_RING] != NONE
            state.polls[count] = _poll(state.peers[peer, OUT], POLLIN if is_ring else POLLOUT)
            if is_ring:
                sleeps_soon(state.peers[peer, OUT_RING], True)
            count += 1
    return count


@compiled
def _poll(socket: int, wanted: int) -> int:
    return int((socket & DESCRIPTOR) | wanted << WANTED)


@compiled
def _has_happened(state: LoopState, nth: int) -> bool:
    return bool((state.polls[nth] >> HAPPENED) & 0xFFFF)


@compiled
def _awaited(program: Flat, state: LoopState, nth: int) -> int:
    """The instruction of the message that a waiting task waits for."""
    wait_for = state.tasks[state.tasks[nth, BLOCKED], AT]
    return int(state.messages[program.instructions[wait_for, NUMBER], INSTRUCTION])


@compiled
def _resume(program: Flat, state: LoopState) -> bool:
    """Make the tasks ready that need not wait any longer: whether there are any."""
    still, blocked = 0, state.numbers[BLOCKED_TASKS]
    for nth in range(blocked):
        task = state.tasks[nth, BLOCKED]
        do = program.instructions[state.tasks[task, AT]]
        if left(state, do[NUMBER]) > do[FIRST] * state.numbers[SIZE]:
            state.tasks[still, BLOCKED] = task
            still += 1
        else:
            push(state, task)
    state.numbers[BLOCKED_TASKS] = still
    return bool(still < blocked)
