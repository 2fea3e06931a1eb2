"""Execute a program in compiled code; whenever that pauses, the mesh looks for lost peers, aborts and the timeout.

The loop is compiled when this file is first imported on a machine, and loaded from numba's cache later: before ranks
are forked, where a server forks them. Ranks that start together wait for the one that compiles.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from collectives.backends.p2p.abort import need_asked_for
from collectives.backends.p2p.connection import HEADER, Connection, Message
from collectives.backends.p2p.loop.flat import FIRST, KIND, LAST, NUMBER, PEER, SEND, STEP, flatten
from collectives.backends.p2p.loop.kernels import Kernels, kernels
from collectives.backends.p2p.loop.state import (
    AT,
    BEGUN,
    BLOCKED,
    CALL,
    CLOSED,
    DIFFERENT,
    FAILED_BEGUN,
    FAILED_PEER,
    FAILED_SENDING,
    FAILED_WHY,
    HEADER_BYTES,
    HEADER_WORDS,
    INSTRUCTION,
    INTO_FIRST,
    NONE,
    OUT_FIRST,
    PLACES,
    SCRATCH_MEMORY,
    SIZE,
    STATUS,
    THROUGH,
    LoopState,
    new_state,
)
from collectives.backends.p2p.loop.system import BILLION, one_at_a_time
from collectives.backends.p2p.loop.tasks import FAILED, FINISHED, run
from collectives.backends.p2p.mesh import Mesh
from collectives.backends.p2p.outgoing import BANDWIDTH_DELAY
from collectives.backends.p2p.program import Flat, Plan
from collectives.schedule import Ints

# Nanoseconds after which the loop pauses, so that Python sees signals; fewer while a visitor has not named its rank.
PAUSE_AFTER, PAUSE_SOON = BILLION // 10, BILLION // 1000


def takes(made: Plan, tensor: torch.Tensor, mesh: Mesh, op: Any) -> Kernels | None:
    """The addresses of the kernels for this call; None where Python has to execute it.

    Python executes exchanges over a network whose messages are so long that one is to leave before the next. It also
    reduces float16 on a processor that does not convert it.
    """
    is_long = made.exchanges and made.flat.longest * tensor.element_size() > BANDWIDTH_DELAY
    if mesh.outgoing.is_busy or (is_long and mesh.has_network):
        return None
    return kernels(op, tensor.dtype)


def execute(made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, mesh: Mesh, found: Kernels) -> None:
    """Execute the program with these kernels. Raises MessageError as `Mesh.wait` does."""
    program, state = made.flat, _state(made.flat, mesh)
    HEADER.pack_into(state.header.data, 0, mesh.call, 0, 0, mesh.signature)
    CALL.pack_into(
        state.numbers.data,
        0,
        tensor.data_ptr(),
        scratch.data_ptr(),
        *found,
        mesh.size,
        mesh.listener.fileno(),
        made.exchanges,
        0 if mesh.has_network else mesh.spins,
        0,
    )
    mesh.half_sent = partial(_half_sent, program, state)
    while (status := run(program, state, PAUSE_SOON if mesh.has_visitors else PAUSE_AFTER)) != FINISHED:
        _look(program, state, mesh, status == FAILED)


def _state(program: Flat, mesh: Mesh) -> LoopState:
    """The arrays for a program, which the mesh keeps: one of its calls runs at a time."""
    kept: tuple[Flat, LoopState] = mesh.kept.get(id(program), partial(_made, program, mesh.sockets))
    return kept[1]


def _made(program: Flat, sockets: Ints) -> tuple[Flat, LoopState]:
    return program, new_state(program, sockets)  # both, because another program could get the number of one that went


def _look(program: Flat, state: LoopState, mesh: Mesh, has_failed: bool) -> None:
    """Let visitors in. Raises MessageError if a connection has failed, a rank has given up, or time is over.

    An abort comes behind the message that a connection is asked for, so the mesh has to know how much of that has come.
    """
    asked = [_ask(program, state, mesh, number) for number in state.peers[:, INTO_FIRST].tolist() if number != NONE]
    if has_failed:
        peer, is_sent = state.numbers[FAILED_PEER], state.numbers[FAILED_SENDING]
        awaited = [int(state.peers[peer, OUT_FIRST if is_sent else INTO_FIRST])]
    else:
        blocked = state.tasks[:, STATUS] == BLOCKED
        awaited = program.instructions[state.tasks[blocked, AT], NUMBER].tolist()
    messages = [_message(program, state, number) for number in awaited]
    if has_failed:
        _lose(state, mesh, messages[0])
    mesh.progress(0.0)
    if messages:  # some task still waits
        mesh.need_peers(messages)
    for connection in asked:
        connection.got = 0
        connection.messages.clear()


def _ask(program: Flat, state: LoopState, mesh: Mesh, number: int) -> Connection:
    """Show the mesh what has come of the first message that a connection is asked for."""
    row, message = state.messages[number], _message(program, state, number)
    connection = mesh.into.get(message.peer) or mesh.into.setdefault(message.peer, Connection(message.peer))
    connection.got, connection.header[:] = min(int(row[THROUGH]), HEADER_BYTES), row[:HEADER_WORDS].tobytes()
    connection.messages.append(message)
    return connection


def _lose(state: LoopState, mesh: Mesh, message: Message) -> None:
    """The connection of this message has failed."""
    connection = (mesh.out if message.is_sent else mesh.into)[message.peer]
    why, begun = int(state.numbers[FAILED_WHY]), int(state.numbers[FAILED_BEGUN])
    try:
        if why == DIFFERENT:
            need_asked_for(connection, message, mesh.signature, bytes(message.parts[0][:begun]))
        raise ConnectionResetError("it has gone") if why == CLOSED else OSError(why, os.strerror(why))
    except OSError as error:
        mesh.lose(connection, error, message.is_sent)


def _half_sent(program: Flat, state: LoopState) -> Iterator[Message]:
    """What is left of the messages that have begun to leave: it goes before all else."""
    for number in state.peers[:, OUT_FIRST].tolist() if state.numbers[BEGUN] else ():
        if number != NONE and state.messages[number, THROUGH]:
            yield _message(program, state, number)


def _message(program: Flat, state: LoopState, number: int) -> Message:
    """What is left of a message, as the mesh keeps messages."""
    row, size, memory = state.messages[number], int(state.numbers[SIZE]), state.numbers[: SCRATCH_MEMORY + 1].tolist()
    do = program.instructions[row[INSTRUCTION]].tolist()
    is_sent, through = do[KIND] == SEND, int(row[THROUGH])
    parts: list[bytes | memoryview] = [
        memoryview((ctypes.c_ubyte * ((end - begin) * size)).from_address(memory[scratch] + begin * size))
        for begin, end, scratch in program.spans[do[FIRST] : do[LAST]].tolist()
    ]
    if is_sent:
        parts.insert(0, row[:HEADER_WORDS].tobytes())
    message = Message(do[PEER], int(state.header[0]), do[STEP], parts, is_sent)
    message.advance(through if is_sent else max(0, through - HEADER_BYTES))
    return message


def _compile() -> None:
    """Run an empty program, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        program = flatten((), (), ())
        run(program, new_state(program, np.zeros((1, PLACES), dtype=np.int64)), 0)


_compile()
