"""From the compiled loop's state to objects of the mesh: the executor in Python goes on where the loop has stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.backends.p2p.abort import need_asked_for
from collectives.backends.p2p.connection import HEADER, Connection, Message
from collectives.backends.p2p.executor_state import ExecutorState
from collectives.backends.p2p.loop.flat import FIRST, KIND, LAST, PEER, SEND, START, STEP
from collectives.backends.p2p.loop.state import (
    AT,
    CLOSED,
    DIFFERENT,
    DONE,
    FAILED_BEGUN,
    FAILED_PEER,
    FAILED_SENDING,
    FAILED_WHY,
    FIRST_TASK,
    HAS_FAILED,
    HEADER_BYTES,
    HEADER_WORDS,
    INSTRUCTION,
    INTO_FIRST,
    LOW_WATER,
    NEXT,
    NONE,
    OUT_FIRST,
    THROUGH,
    UNDONE,
    LoopState,
)
from collectives.backends.p2p.mesh import Mesh
from collectives.backends.p2p.program import Flat, Span

InBytes = Callable[[Span], memoryview]


def hand_over(program: Flat, state: LoopState, mesh: Mesh, in_bytes: InBytes) -> ExecutorState:
    """Give the mesh what is under way, and return how far each task is; a connection that failed is lost."""
    posted = np.flatnonzero(state.messages[:, INSTRUCTION] != NONE).tolist()
    messages = {number: _message(program, state, number, mesh.call, in_bytes) for number in posted}
    for peer in range(mesh.size):
        if unsent := _queued(state, messages, peer, OUT_FIRST):
            mesh.out[peer].messages.extend(unsent)
            mesh.outgoing.unsent.append(mesh.out[peer])
        if asked := _queued(state, messages, peer, INTO_FIRST):
            _give(state, mesh.into[peer], state.peers[peer, INTO_FIRST], asked)
    if state.numbers[HAS_FAILED]:
        _lose(state, mesh)
    count = len(program.tasks) - 1
    undone, at, done = (state.tasks[:count, column] for column in (UNDONE, AT, DONE))
    started = at - program.tasks[:count, START]
    ready = np.flatnonzero((undone == 0) & (done == 0)).tolist()  # those that wait look again
    return ExecutorState(
        int(state.numbers[FIRST_TASK]), undone.tolist(), ready, started.tolist(), bytearray(done.tolist()), messages
    )


def _message(program: Flat, state: LoopState, number: int, call: int, in_bytes: InBytes) -> Message:
    row = state.messages[number]
    do = program.instructions[row[INSTRUCTION]].tolist()
    is_sent, through = do[KIND] == SEND, int(row[THROUGH])
    parts: list[Any] = [
        in_bytes(Span(begin, end, bool(scratch)))
        for begin, end, scratch in program.spans[do[FIRST] : do[LAST]].tolist()
    ]
    if is_sent:
        parts.insert(0, row[:HEADER_WORDS].tobytes())
    message = Message(do[PEER], call, do[STEP], parts, is_sent)
    message.advance(through if is_sent else max(0, through - HEADER_BYTES))
    return message


def _queued(state: LoopState, messages: dict[int, Message], peer: int, first: int) -> list[Message]:
    """The messages that are not through on a connection, in their order."""
    queued, number = list[Message](), int(state.peers[peer, first])
    while number != NONE:
        queued.append(messages[number])
        number = int(state.messages[number, NEXT])
    return queued


def _give(state: LoopState, connection: Connection, number: int, asked: list[Message]) -> None:
    """Give a connection the messages that are asked for, and what of the first one's header has come."""
    row = state.messages[number]
    connection.messages.extend(asked)
    connection.got = min(int(row[THROUGH]), HEADER.size)
    connection.header[:] = row[:HEADER_WORDS].tobytes()
    connection.receive_low_water = int(state.peers[connection.peer, LOW_WATER])


def _lose(state: LoopState, mesh: Mesh) -> None:
    peer, is_sent, why = (int(state.numbers[at]) for at in (FAILED_PEER, FAILED_SENDING, FAILED_WHY))
    connection = mesh.out[peer] if is_sent else mesh.into[peer]
    if is_sent:
        mesh.outgoing.unsent.remove(connection)
    mesh.lose(connection, _error(state, mesh, connection, why), bool(is_sent))


def _error(state: LoopState, mesh: Mesh, connection: Connection, why: int) -> OSError:
    if why == CLOSED:
        return ConnectionResetError("it has gone")
    if why != DIFFERENT:
        return OSError(why, os.strerror(why))
    message = connection.messages[0]
    begun: Any = message.parts[0][: int(state.numbers[FAILED_BEGUN])]
    try:
        need_asked_for(connection, message, mesh.signature, bytes(begun))
    except OSError as error:
        return error
    raise AssertionError("the loop and Python expect different headers")
