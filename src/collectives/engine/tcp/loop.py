"""The loop, compiled: run the tasks whose inputs are there, wait for messages, send and read them."""

# The protocol. Between two ranks there are two connections, one each way, and a connection carries
# nothing but messages: a header (the call's number, the step, the bytes that follow, the call's
# signature) and the bytes. A receiver knows from its own program which message comes next on a
# connection, so it compares the header with what it expects, and a difference ends the call.
#
# Nobody asks for permission to send. A rank that has a message hands it to the system at once. There
# is no credit but TCP's own window: a receiver reads a message only when its program has asked for
# it (an instruction RECV queues it on the connection). What has not been asked for stays in the
# system's buffers, and when those are full, TCP holds the sender back. So a rank that is ahead takes
# no memory of one that is behind, and no share of its link.
#
# A program is a list of tasks, each a few instructions in order, and each after some tasks before
# it. The loop runs every task of the window whose earlier tasks are done, until it waits (WAIT: so
# many bytes of a message are still to come, or to leave). When no task can go on, the loop polls: the
# connections from which tasks await something, those that have room for what is unsent, and the
# listener. It reads straight into the tensor or into scratch memory, writes from there, and marks
# the tasks as ready whose bytes have moved.
#
# An abort does not travel on these connections, because it would queue behind data. It is a
# connection of its own to the listener (`engine.mesh`). `run` returns to Python when the listener is
# ready, when a connection fails, and every tenth of a second. Python then looks for an abort, for
# lost peers and for the deadline, and calls `run` again, or raises.
#
# Why it cannot deadlock: look at the earliest step that any rank has not finished. Messages of all
# steps before it have arrived. A rank sends its messages of a step before it waits for any of that
# step, so all messages of this step are queued at their senders or on their way. They leave as long
# as their receivers read, and a receiver reads in two cases: it awaits the message itself; or it
# awaits room for a message of its own, and then it reads everything it has asked for, since its
# receiver may be waiting for it in the same way. So the step ends on some rank, and then on all.
#
# In what order messages leave. Two that share a link both come late. In an exchange, such as
# recursive doubling or `circulant`, a rank that is behind has the message of its step before its own
# has left. If it went on to the next peer at once, the first one would wait twice as long, and be
# behind in its turn. So there none of a later step begins before those of the earlier ones have
# left: over a network a long one has when no more of it is in flight than a link holds. So it is
# where a rank fans out, as in a binomial broadcast: its first peer passes the message on, and would
# get it as late as the last one. A pipeline, a ring or a tree, sends what is there, because it has
# to overlap. So does a pairwise all-to-all, because none of its steps waits for another.

import errno
import sys
import termios
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined]

from collectives.compiled import compiled
from collectives.core.schedule import Ints
from collectives.engine.kernels import combine, divide
from collectives.engine.program import AHEAD
from collectives.engine.system import (
    MILLION,
    SO_RCVLOWAT,
    SO_SNDBUF,
    SOL_SOCKET,
    error_number,
    ioctl,
    now,
    pointer,
    poll,
    readv,
    sched_yield,
    setsockopt,
    writev,
)
from collectives.engine.tcp.state import (
    AVERAGE,
    BLOCKED,
    CALL,
    CLOSED,
    DESCRIPTORS,
    DIFFERENT,
    DONE,
    HEADER_WORDS,
    INSTRUCTION,
    LINK,
    MAX_PARTS,
    MESSAGE,
    NEVER,
    NONE,
    PEER,
    READY,
    RECV,
    REDUCE,
    SEND,
    SPAN,
    TASK,
    TASK_STATE,
    WAIT,
    Flat,
    LoopState,
    Records,
)

ARRAYS = len(Flat._fields) + len(LoopState._fields)
# What `run` returns: the program is done; some time is over; somebody wants to connect; a
# connection has failed. What `wait` returns beside: go on.
FINISHED, PAUSE, LISTENER_READY, FAILED, GOING = range(5)
# A pollfd in one number: the descriptor, what to wait for, what has happened.
WANTED, HAPPENED, DESCRIPTOR = 32, 48, (1 << 32) - 1
POLLIN, POLLOUT = 1, 4
FIRST_SOURCE = 1  # the pollfd behind the listener's
HEADER_STEP, HEADER_BODY, HEADER_BYTES = 1, 2, 8 * HEADER_WORDS  # words of a header
MESSAGE_BYTES = MESSAGE.itemsize
RECEIVE_LOW_WATER = 128 << 10
# Bytes in flight on a link, there and back: 5 us each way at 25 GB/s, and the same in slow motion,
# are 250 KB.
BANDWIDTH_DELAY = 192 << 10
LARGE_BUFFER = 2 << 20  # what the system takes of a message at once …
# … or how little. The system doubles it, and reports room when a third is free: when
# BANDWIDTH_DELAY is left.
SMALL_BUFFER = BANDWIDTH_DELAY * 3 // 4
# Elsewhere the system does not say, or otherwise.
UNSENT_BYTES = termios.TIOCOUTQ if sys.platform == "linux" else 0


@compiled
def run(at: int, nanoseconds: int) -> int:
    """Run the program until it is done, or until the caller has to look at something.

    Then call it again.

    ``at`` is where `state.addresses` of the program and its state are: numba would take a
    microsecond to unpack arrays. It returns FINISHED, PAUSE after ``nanoseconds``, LISTENER_READY
    when somebody connects, or FAILED: the state says which connection has failed, and why. All
    peers that the program sends to are connected. One that it receives from may connect meanwhile.
    """
    program, state = _arrays(at)
    if not state.call[0].has_begun:
        _begin(program, state)
    until = now(state.times) + nanoseconds
    while True:
        if not _run_ready(program, state):
            return FAILED
        if state.call[0].first_task == len(program.tasks) - 1:
            return FINISHED
        status = wait(program, state, until)
        if state.call[0].has_failed:
            return FAILED
        if status != GOING:
            return status


@compiled
def _arrays(at: int) -> tuple[Flat, LoopState]:
    found = carray(pointer(at), (ARRAYS, 2), np.int64)
    program = Flat(
        _array(found[0], TASK),
        _array(found[1], np.int64),
        _array(found[2], INSTRUCTION),
        _array(found[3], SPAN),
    )
    messages, tasks, peers = (
        _array(found[4], MESSAGE),
        _array(found[5], TASK_STATE),
        _array(found[6], PEER),
    )
    call, header, links = _array(found[7], CALL), _array(found[8], np.int64), _array(found[9], LINK)
    descriptors, polls = _array(found[10], DESCRIPTORS), _array(found[11], np.int64)
    parts, times = _array(found[12], np.int64), _array(found[13], np.int64)
    return program, LoopState(
        messages, tasks, peers, call, header, links, descriptors, polls, parts, times
    )


@compiled
def _array(where: Ints, kind: Any) -> Any:
    return carray(pointer(where[0]), where[1], kind)


@compiled
def _begin(program: Flat, state: LoopState) -> None:
    """Fill the arrays for a new call."""
    call = state.call[0]
    call.has_begun, call.first_task, call.has_failed = 1, 0, 0
    call.unsents = call.sources = call.failed_peer = call.failed_sending = call.failed_why = 0
    for message in state.messages:
        message.through = message.nbytes = message.instruction = message.next = NONE
    for task in range(len(state.tasks)):
        state.tasks[task].at, state.tasks[task].status = program.tasks[task].first, READY
    for peer in state.peers:
        peer.out.first = peer.into.first = NONE
        peer.low_water = 1
    for link in state.links:
        if link.in_flight != NEVER:
            link.in_flight = NONE  # earlier than any step of this call


@compiled
def _run_ready(program: Flat, state: LoopState) -> bool:
    """Run the tasks that are ready, in program order.

    A task that ends makes later ones ready, and moves the window.

    False where a connection has failed.
    """
    task = state.call[0].first_task
    while task < window_end(program, state):
        if _is_ready(program, state, task) and not _run(program, state, task):
            return False
        task += 1
    return True


@compiled
def _is_ready(program: Flat, state: LoopState, task: int) -> bool:
    for at in range(program.tasks[task].after, program.tasks[task + 1].after):
        if state.tasks[program.after[at]].status != DONE:
            return False
    return bool(state.tasks[task].status == READY)


@compiled
def _run(program: Flat, state: LoopState, task: int) -> bool:
    """Run a task until it is done or waits. False where a connection has failed."""
    while state.tasks[task].at < program.tasks[task + 1].first:
        is_done = _do(program, state, state.tasks[task].at)
        if state.call[0].has_failed:
            return False
        if not is_done:
            state.tasks[task].status = BLOCKED
            return True
        state.tasks[task].at += 1
    _finish(program, state, task)
    return True


@compiled
def _finish(program: Flat, state: LoopState, task: int) -> None:
    """Mark a task as done, and move the window if it was the first."""
    state.tasks[task].status = DONE
    first = state.call[0].first_task
    while first < len(program.tasks) - 1 and state.tasks[first].status == DONE:
        first += 1
    state.call[0].first_task = first


@compiled
def _do(program: Flat, state: LoopState, instruction: int) -> bool:
    """Execute an instruction. False if it waits, or if a connection has failed."""
    do = program.instructions[instruction]
    kind = do.kind
    if kind == WAIT:
        return _await(program, state, do.number, do.missing * state.call[0].kernels.size)
    if kind == SEND:
        return send(program, state, instruction)
    if kind == RECV:
        queue(program, state, instruction, state.peers[do.peer].into)
    elif kind == REDUCE:
        _reduce(program, state, do.first, do.last)
    elif kind == AVERAGE:
        call, into = state.call[0], address(program, state, do.first)
        divide(call.kernels, into, elements(program, do.first), call.ranks)
    return True


@compiled
def _reduce(program: Flat, state: LoopState, first: int, last: int) -> None:
    """Combine what is at the spans behind the first into that one."""
    operands = np.empty(last - first - 1, np.int64)
    for nth in range(len(operands)):
        operands[nth] = address(program, state, first + 1 + nth)
    combine(
        state.call[0].kernels, address(program, state, first), operands, elements(program, first)
    )


@compiled
def _await(program: Flat, state: LoopState, number: int, missing: int) -> bool:
    """Read until at most ``missing`` bytes of a message are still to come.

    False if it has to wait, or has failed.
    """
    do = program.instructions[state.messages[number].instruction]
    while left(state, number) > missing:
        if (
            do.kind == SEND
            or state.descriptors[do.peer].into == NONE
            or not take(program, state, do.peer)
        ):
            return False
    return True


@compiled
def wait(program: Flat, state: LoopState, until: int) -> int:
    """Wait until something can be read or sent, and do that.

    At most until that time, in nanoseconds.

    Returns at once after a failure.
    """
    if _resume(program, state):  # their messages have left while others were sent
        return GOING
    _find_sources(program, state)
    has_happened = _sleep(program, state, until)
    for nth in range(state.call[0].sources if has_happened else 0):
        if _has_happened(state, FIRST_SOURCE + nth):
            take(program, state, state.peers[nth].source)
        if state.call[0].has_failed:  # the next failure would hide this one
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

    They are all whose message is asked for if a task waits for one to leave: its receiver may wait
    for this rank, too.
    """
    is_sending = state.call[0].sources = 0
    for task in range(state.call[0].first_task, window_end(program, state)):
        if state.tasks[task].status == BLOCKED:
            wait_for = program.instructions[state.tasks[task].at].number
            do = program.instructions[state.messages[wait_for].instruction]
            is_sending |= do.kind == SEND
            if do.kind == RECV:
                _add_source(state, do.peer)
    if is_sending:
        for peer in range(len(state.peers)):
            if state.peers[peer].into.first != NONE:
                _add_source(state, peer)


@compiled
def _add_source(state: LoopState, peer: int) -> None:
    for nth in range(state.call[0].sources):
        if state.peers[nth].source == peer:
            return
    state.peers[state.call[0].sources].source = peer
    state.call[0].sources += 1


@compiled
def _sleep(program: Flat, state: LoopState, until: int) -> bool:
    """Sleep until something happens; if all ranks are on this host, poll for a short while first.

    Returns whether ``polls`` says what has happened.
    """
    count = _polls(program, state)
    for _ in range(state.call[0].spins):
        if poll(state.polls.ctypes.data, count, 0) > 0:
            return True
        sched_yield()
    milliseconds = -(-max(0, until - now(state.times)) // MILLION)
    return bool(poll(state.polls.ctypes.data, count, milliseconds) > 0)


@compiled
def _polls(program: Flat, state: LoopState) -> int:
    """List what to wait for: the listener, what comes from the sources, room to send.

    Returns how many they are.
    """
    state.polls[0] = _polled(state.call[0].listener, POLLIN)
    count = FIRST_SOURCE
    for nth in range(state.call[0].sources):
        peer = state.peers[nth].source
        # NONE before it connects: poll ignores that.
        state.polls[count] = _polled(state.descriptors[peer].into, POLLIN)
        count += 1
    step, waits = step_to_send(program, state), False
    for nth in range(state.call[0].unsents):
        peer = state.peers[nth].unsent
        if may_send(program, state, peer, step):
            state.polls[count] = _polled(state.descriptors[peer].out, POLLOUT)
            count += 1
        else:
            waits = True
    for peer in range(len(state.links) if waits else 0):
        if state.links[peer].in_flight < step:
            # The system reports room when the message is acknowledged.
            resize(state, peer, SMALL_BUFFER)
            state.polls[count] = _polled(state.descriptors[peer].out, POLLOUT)
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
    """Mark the blocked tasks as ready whose messages have moved far enough.

    False if there are none.
    """
    found = False
    for task in range(state.call[0].first_task, window_end(program, state)):
        if state.tasks[task].status == BLOCKED:
            do = program.instructions[state.tasks[task].at]
            if left(state, do.number) <= do.missing * state.call[0].kernels.size:
                state.tasks[task].status = READY
                found = True
    return found


@compiled
def window_end(program: Flat, state: LoopState) -> int:
    """Return the end of the window of tasks that may have begun."""
    return int(min(state.call[0].first_task + AHEAD, len(program.tasks) - 1))


@compiled
def send(program: Flat, state: LoopState, instruction: int) -> bool:
    """Queue a message and send what can be sent now. False where a connection has failed."""
    peer = program.instructions[instruction].peer
    if state.peers[peer].out.first == NONE:
        state.peers[state.call[0].unsents].unsent = peer
        state.call[0].unsents += 1
    queue(program, state, instruction, state.peers[peer].out)
    return push(program, state)


@compiled
def push(program: Flat, state: LoopState) -> bool:
    """Hand over to the system as much as it takes, in the order of steps.

    False where a connection has failed.
    """
    _clear_acknowledged(state)
    moved = True
    while moved and state.call[0].unsents:
        moved, nth, step = False, 0, step_to_send(program, state)
        while nth < state.call[0].unsents:
            peer = state.peers[nth].unsent
            if may_send(program, state, peer, step) and _flush(program, state, peer):
                moved = True
                if state.peers[peer].out.first == NONE:
                    _forget(state, nth)
                    continue
            if state.call[0].has_failed:
                return False
            nth += 1
    return True


@compiled
def step_to_send(program: Flat, state: LoopState) -> int:
    """Return the last step whose messages may be sent now: that of the earliest unsent in a program by steps."""
    step = NEVER
    if state.call[0].by_step:
        for nth in range(state.call[0].unsents):
            step = min(step, _next_step(program, state, state.peers[nth].unsent))
    return step


@compiled
def _next_step(program: Flat, state: LoopState, peer: int) -> int:
    """Return the step of the first message that waits to be sent to a peer."""
    return int(program.instructions[state.messages[state.peers[peer].out.first].instruction].step)


@compiled
def may_send(program: Flat, state: LoopState, peer: int, step: int) -> bool:
    """Return whether a peer's next message is of that step or an earlier one, and none in flight holds it back."""
    if _next_step(program, state, peer) > step:
        return False
    if state.call[0].by_step and state.call[0].has_network:
        for other in range(len(state.links)):
            if other != peer and state.links[other].in_flight < step:
                return False
    return True


@compiled
def _clear_acknowledged(state: LoopState) -> None:
    """Clear the long messages of which no more is in flight than a link holds."""
    if not state.call[0].has_network:
        return
    for peer in range(len(state.links)):
        if state.links[peer].in_flight != NEVER and _unacknowledged(state, peer) <= BANDWIDTH_DELAY:
            state.links[peer].in_flight = NEVER


@compiled
def _unacknowledged(state: LoopState, peer: int) -> int:
    """Return the bytes that the system has taken, but the peer's has not acknowledged.

    0 where it does not say.
    """
    state.times[0] = 0
    if UNSENT_BYTES:
        ioctl(state.descriptors[peer].out, UNSENT_BYTES, state.times.ctypes.data)
    return int(state.times[0])


@compiled
def resize(state: LoopState, peer: int, nbytes: int) -> None:
    """Ask the system for a send buffer of that size."""
    if state.links[peer].send_buffer != nbytes:
        state.links[peer].send_buffer = state.times[0] = nbytes
        setsockopt(
            state.descriptors[peer].out,
            SOL_SOCKET,
            SO_SNDBUF,
            state.times.ctypes.data,
            np.uint32(4),
        )


@compiled
def _flush(program: Flat, state: LoopState, peer: int) -> bool:
    """Send what the system takes of a connection's first message. False if bytes of it are left."""
    number = state.peers[peer].out.first
    message = state.messages[number]
    if state.links[peer].send_buffer == SMALL_BUFFER:
        resize(state, peer, LARGE_BUFFER)
    count = writev(
        state.descriptors[peer].out, state.parts.ctypes.data, gather(program, state, number)
    )
    if count < 0:
        fail(state, peer, True, error_number())
        return False
    message.through += count
    if left(state, number):
        return False
    if message.nbytes > BANDWIDTH_DELAY or state.links[peer].in_flight != NEVER:
        state.links[peer].in_flight = program.instructions[message.instruction].step
    dequeue(state, state.peers[peer].out)
    return True


@compiled
def _forget(state: LoopState, nth: int) -> None:
    """Drop a peer from those for which something waits to be sent."""
    state.call[0].unsents -= 1
    for at in range(nth, state.call[0].unsents):
        state.peers[at].unsent = state.peers[at + 1].unsent


@compiled
def address(program: Flat, state: LoopState, span: int) -> int:
    """Return the address of a span."""
    base = state.call[0].scratch if program.spans[span].is_scratch else state.call[0].tensor
    return int(base + program.spans[span].start * state.call[0].kernels.size)


@compiled
def length(program: Flat, state: LoopState, span: int) -> int:
    """Return the bytes of a span."""
    return int(elements(program, span) * state.call[0].kernels.size)


@compiled
def elements(program: Flat, span: int) -> int:
    """Return the elements of a span."""
    return int(program.spans[span].stop - program.spans[span].start)


@compiled
def queue(program: Flat, state: LoopState, instruction: int, messages: Records) -> None:
    """Append an instruction's message to the queue of its connection."""
    do = program.instructions[instruction]
    number, nbytes = do.number, 0
    for span in range(do.first, do.last):
        nbytes += length(program, state, span)
    message = state.messages[number]
    message.header[:] = state.header
    message.header[HEADER_STEP], message.header[HEADER_BODY] = do.step, nbytes
    message.through, message.nbytes, message.instruction = 0, nbytes, instruction
    if messages.first == NONE:
        messages.first = number
    else:
        state.messages[messages.last].next = number
    messages.last = number


@compiled
def left(state: LoopState, number: int) -> int:
    """Return the bytes of a message's body that are still to be handed over, or to come."""
    message = state.messages[number]
    return int(min(message.nbytes, HEADER_BYTES + message.nbytes - message.through))


@compiled
def dequeue(state: LoopState, messages: Records) -> None:
    """Remove the first message of a queue."""
    messages.first = state.messages[messages.first].next


@compiled
def gather(program: Flat, state: LoopState, number: int) -> int:
    """List where the bytes of a message are that are not through yet.

    Returns the number of parts.
    """
    message = state.messages[number]
    do, through = program.instructions[message.instruction], message.through
    parts = _part(
        state, 0, state.messages.ctypes.data + number * MESSAGE_BYTES, HEADER_BYTES, through
    )
    through = max(0, through - HEADER_BYTES)
    for span in range(do.first, do.last):
        size = length(program, state, span)
        if parts < MAX_PARTS:
            parts = _part(state, parts, address(program, state, span), size, through)
        through = max(0, through - size)
    return parts


@compiled
def _part(state: LoopState, parts: int, at: int, size: int, through: int) -> int:
    """Add a part, without the bytes of it that are through. Returns the number of parts."""
    if through >= size:
        return parts
    state.parts[2 * parts], state.parts[2 * parts + 1] = at + through, size - through
    return parts + 1


@compiled
def take(program: Flat, state: LoopState, peer: int) -> bool:
    """Read what has come of the first message that is asked for.

    False if nothing has, or the connection failed.
    """
    number = state.peers[peer].into.first
    message = state.messages[number]
    had_header = message.through >= HEADER_BYTES
    count = readv(
        state.descriptors[peer].into, state.parts.ctypes.data, gather(program, state, number)
    )
    if count <= 0:
        fail(state, peer, False, error_number() if count else CLOSED)
        return False
    message.through += count
    has_header = message.through >= HEADER_BYTES
    if has_header and not had_header and not _is_expected(program, state, number):
        fail(state, peer, False, DIFFERENT)
        return False
    still = left(state, number)
    _set_low_water(state, peer, still)
    if not still:
        dequeue(state, state.peers[peer].into)
    return True


@compiled
def _is_expected(program: Flat, state: LoopState, number: int) -> bool:
    """Return whether a header that has come is that of the message that is asked for."""
    message = state.messages[number]
    for word in range(HEADER_WORDS):
        expected = state.header[word]
        if word == HEADER_STEP:
            expected = program.instructions[message.instruction].step
        elif word == HEADER_BODY:
            expected = message.nbytes
        if message.header[word] != expected:
            return False
    return True


@compiled
def _set_low_water(state: LoopState, peer: int, still: int) -> None:
    """Have the system wake this rank for a large part of a long message, or the first byte of another one."""
    wanted = RECEIVE_LOW_WATER if still >= RECEIVE_LOW_WATER else 1
    if wanted != state.peers[peer].low_water:
        state.peers[peer].low_water = state.times[0] = wanted
        setsockopt(
            state.descriptors[peer].into,
            SOL_SOCKET,
            SO_RCVLOWAT,
            state.times.ctypes.data,
            np.uint32(4),
        )


@compiled
def fail(state: LoopState, peer: int, is_sending: bool, why: int) -> None:
    """Note that a connection has failed, if it has and the system did not just say "later"."""
    if why not in (errno.EAGAIN, errno.EINTR):
        call = state.call[0]
        call.has_failed = 1
        call.failed_peer = peer
        call.failed_sending = is_sending
        call.failed_why = why
