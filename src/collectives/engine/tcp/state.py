"""Arrays of the compiled loop: those of one rank's program, and those that change while it is executed."""

from __future__ import annotations

import struct
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np

from collectives.core.schedule import Ints
from collectives.engine.handshake import HEADER
from collectives.engine.kernels import KERNELS, Kernels
from collectives.engine.program import (
    Average,
    Instruction,
    Recv,
    Reduce,
    Send,
    Span,
    Task,
    Wait,
    spans_of,
)

Records = Any  # structured arrays: in compiled code, fields are attributes of their elements


def _numbers(*names: str) -> Records:
    return np.dtype([(name, np.int64) for name in names])


# The program. A task has its first instruction, and the first of the tasks that have to be done
# before. A span is in the tensor or in scratch memory, in elements. An instruction has the spans
# from the first up to the last, a wait the elements that may be missing.
TASK, SPAN = _numbers("first", "after"), _numbers("start", "stop", "is_scratch")
INSTRUCTION = _numbers("kind", "number", "peer", "step", "first", "last", "missing")
SEND, RECV, WAIT, REDUCE, AVERAGE = range(5)
KINDS = {Reduce: REDUCE, Average: AVERAGE}

# The state.
NONE = -1  # no socket, or no message
NEVER = 1 << 62  # later than any step
HEADER_WORDS = HEADER.size // 8
MAX_PARTS = 1024  # that one system call takes
MESSAGE = np.dtype(
    [
        ("header", np.int64, HEADER_WORDS),  # as it is sent, or has come
        ("through", np.int64),  # bytes of header and body that are sent, or have come
        ("nbytes", np.int64),  # of the body
        ("instruction", np.int64),  # NONE before that was executed
        ("next", np.int64),  # the message behind it on the same connection
    ]
)
# Its next instruction, and whether it may run, is BLOCKED by a message that it waits for, or DONE.
TASK_STATE, READY, BLOCKED, DONE = _numbers("at", "status"), *range(3)
QUEUE = _numbers("first", "last")  # messages on a connection
PEER = np.dtype(
    [
        ("out", QUEUE),
        ("into", QUEUE),
        ("low_water", np.int64),  # bytes that wake us
        ("unsent", np.int64),  # a list, not of this peer: for whom something waits to be sent
        ("source", np.int64),  # another list: from whom this rank reads
    ]
)
# Kept from call to call: the send buffer that was asked for; the step of the last long message that
# may be in flight.
LINK = _numbers("send_buffer", "in_flight")
DESCRIPTORS = _numbers("out", "into")  # of the sockets to and from a peer, NONE without
# What `CALL_FORMAT` packs, and behind it the loop's own.
CALL = np.dtype(
    [
        ("tensor", np.int64),  # addresses
        ("scratch", np.int64),
        ("kernels", KERNELS),
        ("ranks", np.int64),
        ("listener", np.int64),  # its descriptor
        ("by_step", np.int64),  # whether a step's messages are sent before a later one's
        ("has_network", np.int64),
        ("spins", np.int64),  # how often a rank polls its sockets before it sleeps
        ("has_begun", np.int64),
        ("unsents", np.int64),  # lengths of the two lists of peers
        ("sources", np.int64),
        ("first_task", np.int64),  # that is not done
        ("has_failed", np.int64),
        ("failed_peer", np.int64),  # on whose connection …
        ("failed_sending", np.int64),  # … which way …
        ("failed_why", np.int64),  # … and the system's reason, or one of those below
    ]
)
CALL_FORMAT = struct.Struct(f"={8 + len(Kernels._fields)}q")  # the words before the two lists
# The peer has closed; another header came than was expected, which is kept.
CLOSED, DIFFERENT = 0, -1


def flatten(program: tuple[Task, ...]) -> Flat:
    """Return the program as arrays: a row for each task, and one behind the last.

    For each instruction; for each span.

    >>> task = Task((Send(0, 1, 2, (Span(4, 8),)), Wait(0)), ())
    >>> flatten((task,)).instructions.tolist()
    [(0, 0, 1, 2, 0, 1, 0), (2, 0, 0, 0, 0, 0, 0)]
    """
    rows, spans = list[tuple[int, ...]](), list[Span]()
    for task in program:
        for do in task.instructions:
            rows.append(_row(do, len(spans)))
            spans += spans_of(do)
    starts = accumulate((len(task.instructions) for task in program), initial=0)
    behind = accumulate((len(task.after) for task in program), initial=0)
    return Flat(
        np.array(list(zip(starts, behind, strict=True)), TASK),
        np.array(list(chain.from_iterable(task.after for task in program)), dtype=np.int64),
        np.array(rows, INSTRUCTION),
        np.array(spans, SPAN),
    )


def _row(do: Instruction, first: int) -> tuple[int, ...]:
    if isinstance(do, Wait):
        return WAIT, do.number, 0, 0, 0, 0, do.missing
    last = first + len(spans_of(do))
    if isinstance(do, Send | Recv):
        return SEND if isinstance(do, Send) else RECV, do.number, do.peer, do.step, first, last, 0
    return KINDS[type(do)], 0, 0, 0, first, last, 0


class Flat(NamedTuple):
    """Hold the arrays of a program."""

    tasks: Records  # of TASK, and one behind the last
    after: Ints
    instructions: Records  # of INSTRUCTION
    spans: Records  # of SPAN


class LoopState(NamedTuple):
    """Hold arrays that change: ``polls`` for ``poll``, ``parts`` for ``readv`` and ``writev``, ``times`` for clocks."""

    messages: Records  # of MESSAGE
    tasks: Records  # of TASK_STATE
    peers: Records  # of PEER
    call: Records  # one, of CALL
    header: Ints  # of all messages of the call, without their step and length
    links: Records  # of LINK, by peer
    descriptors: Records  # of DESCRIPTORS, by peer
    polls: Ints
    parts: Ints
    times: Ints


def new_links(peers: int) -> Records:
    """Make the links to so many peers."""
    return np.array([(0, NEVER)] * peers, LINK)


def new_state(program: Flat, links: Records, descriptors: Records) -> LoopState:
    """Make the arrays for one program, call after call; the loop fills them when it begins."""
    peers = len(links)
    return LoopState(
        np.zeros(np.isin(program.instructions["kind"], (SEND, RECV)).sum(), MESSAGE),
        np.zeros(len(program.tasks), TASK_STATE),
        np.zeros(peers, PEER),
        np.zeros(1, CALL),
        np.zeros(HEADER_WORDS, np.int64),
        links,
        descriptors,
        *(np.zeros(size, np.int64) for size in (3 * peers + 1, 2 * MAX_PARTS, 2)),
    )


def addresses(program: Flat, state: LoopState) -> Ints:
    """Return the address and the length of each array, in this order: what `loop.run` takes."""
    return np.array([(each.ctypes.data, len(each)) for each in (*program, *state)])
