"""Arrays of the compiled loop: those of one rank's program, and those that change while it is executed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from collectives.engine.handshake import HEADER
from collectives.engine.program import (
    Average,
    Decode,
    Encode,
    Flat,
    Instruction,
    Recv,
    Reduce,
    Send,
    Span,
    Task,
    Wait,
)
from collectives.schedule import Ints

Records = Any  # a structured array: in compiled code, fields are attributes of its elements
# The program. Kinds of instructions.
SEND, RECV, WAIT, REDUCE, AVERAGE, ENCODE, DECODE = range(7)
KINDS = {Reduce: REDUCE, Average: AVERAGE, Encode: ENCODE, Decode: DECODE}
# Columns of a task: its first instruction, and the first of those that have to be done before.
START, AFTER = range(2)
# Columns of an instruction: its spans are those from FIRST up to LAST; a wait has in FIRST what may be missing.
KIND, NUMBER, PEER, STEP, FIRST, LAST = range(6)
# Columns of a span, in elements, or if it is coded in bytes.
BEGIN, END, SCRATCH, CODED = range(4)

# The state. No socket, or no message.
NONE = -1
WORD = 8
HEADER_BYTES = HEADER.size
HEADER_WORDS = HEADER_BYTES // WORD
MOST_PARTS = 1024  # that one system call takes

# Columns of a message: its header, as it is sent or has come; bytes that are through, of header and body; bytes of the
# body; its instruction, NONE before that was executed; and the message behind it on the same connection.
THROUGH, BODY, INSTRUCTION, NEXT = range(HEADER_WORDS, HEADER_WORDS + 4)
# Columns of a task: its next instruction, and whether it may run, is BLOCKED by a message that it waits for, or DONE.
AT, STATUS = range(2)
READY, BLOCKED, DONE = range(3)
# Columns of a peer: the first and last message out and in; how many bytes wake us. Two more have lists: of those for
# which something waits to be sent, and of those to be read from.
OUT_FIRST, OUT_LAST, INTO_FIRST, INTO_LAST, LOW_WATER, UNSENT, SOURCE = range(7)
DESCRIPTORS = np.dtype([("out", np.int64), ("into", np.int64)])  # of the sockets to and from a peer, NONE without
# Columns of a link, which is kept from call to call: the send buffer that was asked for; the step of the last long
# message, as long as it may be in flight, or NEVER.
SEND_BUFFER, IN_FLIGHT = range(2)
NEVER = 1 << 62  # later than any step
# Numbers of the call, which `CALL` packs: addresses of the tensor and of scratch memory; the kernels, the last of which
# is the bytes of an element; of a codec what encodes, what decodes, and the bits of an element; ranks; the socket that
# listens; whether a step's messages leave before a later one's; whether they cross a network; how often a rank polls
# its sockets before it sleeps; whether the loop has begun. Then its own: how many peers the lists have; the first task
# that is not done; what failed: on whose connection, which way, and the system's reason or one of those below.
TENSOR, SCRATCH_MEMORY, KERNELS = range(3)
SIZE, CODING, RANKS, LISTENER, BY_STEP, NETWORK, SPINS, BEGUN = (KERNELS + at for at in (4, 5, 8, 9, 10, 11, 12, 13))
UNSENTS, SOURCES, FIRST_TASK = range(16, 19)
HAS_FAILED, FAILED_PEER, FAILED_SENDING, FAILED_WHY = range(19, 23)
CALL, NUMBERS = struct.Struct("=16q"), 23
# Reasons that are not the system's: the peer has closed; another header came than was expected, which is kept.
CLOSED, DIFFERENT = 0, -1


def flatten(program: tuple[Task, ...]) -> Flat:
    """The program as arrays: a row for each task, and one behind the last; for each instruction; for each span.

    >>> task = Task((Send(0, 1, 2, (Span(4, 8),)), Wait(0)), ())
    >>> flatten((task,)).instructions.tolist()
    [[0, 0, 1, 2, 0, 1], [2, 0, 0, 0, 0, 0]]
    """
    rows, spans = list[tuple[int, ...]](), list[Span]()
    instructions = [do for task in program for do in task.instructions]
    for do in instructions:
        rows.append(_row(do, len(spans)))
        spans += _spans(do)
    starts = accumulate((len(task.instructions) for task in program), initial=0)
    behind = accumulate((len(task.after) for task in program), initial=0)
    return Flat(
        _table(list(zip(starts, behind, strict=True)), 2),
        np.array([earlier for task in program for earlier in task.after], dtype=np.int64),
        _table(rows, 6),
        _table(spans, 4),
        sum(row[KIND] in (SEND, RECV) for row in rows),
    )


def _table(rows: Sequence[tuple[int, ...]], columns: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)


def _row(do: Instruction, first: int) -> tuple[int, ...]:
    if isinstance(do, Wait):
        return WAIT, do.number, 0, 0, do.missing, do.missing
    last = first + len(_spans(do))
    if isinstance(do, Send | Recv):
        return SEND if isinstance(do, Send) else RECV, do.number, do.peer, do.step, first, last
    return KINDS[type(do)], 0, 0, 0, first, last


def _spans(do: Instruction) -> tuple[Span, ...]:
    match do:
        case Send():
            return do.spans
        case Recv():
            return (do.into,)
        case Reduce():
            return do.into, *do.operands
        case Average():
            return (do.span,)
        case Encode():
            return do.into, *do.spans
        case Decode():
            return do.into, do.coded
    return ()


class LoopState(NamedTuple):
    """The arrays. ``polls`` is for ``poll``, ``parts`` for ``readv`` and ``writev``, ``times`` for clocks."""

    messages: Ints
    tasks: Ints
    peers: Ints
    numbers: Ints
    header: Ints  # of all messages of the call, without their step and length
    links: Ints  # by peer
    descriptors: Records  # of DESCRIPTORS, by peer
    polls: Ints
    parts: Ints
    times: Ints


def new_links(peers: int) -> Ints:
    """Make the links to so many peers."""
    return np.array([[0, NEVER]] * peers, dtype=np.int64)


def new_state(program: Flat, links: Ints, descriptors: Records) -> LoopState:
    """Make the arrays for one program, call after call; the loop fills them when it begins."""
    peers = len(links)
    sizes = (program.messages, NEXT + 1), (len(program.tasks), STATUS + 1), (peers, SOURCE + 1), NUMBERS, HEADER_WORDS
    arrays = [np.zeros(size, dtype=np.int64) for size in (*sizes, 3 * peers + 1, 2 * MOST_PARTS, 2)]
    return LoopState._make([*arrays[:5], links, descriptors, *arrays[5:]])
