"""What changes while the compiled loop executes a program: messages, tasks, peers, and numbers of the call."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from collectives.backends.p2p.connection import HEADER
from collectives.backends.p2p.program import Flat
from collectives.schedule import Ints

NONE = -1
WORD = 8
HEADER_BYTES = HEADER.size
HEADER_WORDS = HEADER_BYTES // WORD
MOST_PARTS = 1024  # that one system call takes

# Columns of a message: its header, as it is sent or has come; bytes that are through, of header and body; bytes of the
# body; its instruction, NONE before that was executed; and the message behind it on the same connection.
THROUGH, BODY, INSTRUCTION, NEXT = range(HEADER_WORDS, HEADER_WORDS + 4)
# Columns of a task: how many tasks before it are not done, its next instruction, and whether it is READY to run then,
# BLOCKED by a message that it waits for, or DONE.
UNDONE, AT, STATUS = range(3)
READY, BLOCKED, DONE = range(3)
# Columns of a peer: its sockets, NONE without; the first and last message of each; how many bytes wake us. Two more
# have lists: of those for which something waits to be sent, and of those to be read from.
OUT, INTO, OUT_FIRST, OUT_LAST, INTO_FIRST, INTO_LAST, LOW_WATER, UNSENT, SOURCE = range(9)
PLACES = INTO + 1  # columns that the mesh knows
# Numbers of the call, which `CALL` packs: addresses of the tensor and of scratch memory; the kernels of `reducing`, the
# last of which is the bytes of an element; ranks; the socket that listens; whether a step's messages leave before a
# later one's; how many times a rank polls its sockets before it sleeps; whether the loop has begun. Then its own: how
# many peers the lists have; the first task that is not done; what failed: on whose connection, which way, and the
# system's reason or one of those below.
TENSOR, SCRATCH_MEMORY, KERNELS = range(3)
SIZE, RANKS, LISTENER, BY_STEP, SPINS, BEGUN = range(KERNELS + 4, KERNELS + 10)
UNSENTS, SOURCES, FIRST_TASK = range(12, 15)
HAS_FAILED, FAILED_PEER, FAILED_SENDING, FAILED_WHY = range(15, 19)
CALL, NUMBERS = struct.Struct("=12q"), 19
# Reasons that are not the system's: the peer has closed; another header came than was expected, which is kept.
CLOSED, DIFFERENT = 0, -1


class LoopState(NamedTuple):
    """The arrays. ``polls`` is for ``ppoll``, ``parts`` for ``readv`` and ``writev``, ``times`` for clocks."""

    messages: Ints
    tasks: Ints
    peers: Ints
    numbers: Ints
    header: Ints  # of all messages of the call, without their step and length
    sockets: Ints  # the mesh's own, by peer
    polls: Ints
    parts: Ints
    times: Ints


def new_state(program: Flat, sockets: Ints) -> LoopState:
    """Arrays for one program, call after call; the loop fills them when it begins."""
    sizes = [
        (program.messages, NEXT + 1),
        (len(program.tasks), STATUS + 1),
        (len(sockets), SOURCE + 1),
        NUMBERS,
        HEADER_WORDS,
    ]
    arrays = [np.zeros(size, dtype=np.int64) for size in (*sizes, 2 * len(sockets) + 1, 2 * MOST_PARTS, 2)]
    return LoopState._make([*arrays[:5], sockets, *arrays[5:]])
