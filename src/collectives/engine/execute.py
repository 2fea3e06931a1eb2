"""Execute one rank's plan of messages on CPU tensors, over the connections of a mesh.

The `loop` is compiled. Whenever it pauses, the mesh looks for lost peers, aborts and the timeout. It is compiled when
this file is first imported on a machine, and loaded from numba's cache later: before ranks are forked, where a server
forks them. Ranks that start together wait for the one that compiles.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from collectives.engine.handshake import GONE, HEADER, Message, check_header
from collectives.engine.kernels.reductions import kernels
from collectives.engine.kernels.wires import coding
from collectives.engine.mesh import Mesh
from collectives.engine.program import Flat, Plan
from collectives.engine.tcp.arrays import (
    AT,
    BLOCKED,
    BODY,
    CALL,
    CLOSED,
    DIFFERENT,
    FAILED_PEER,
    FAILED_SENDING,
    FAILED_WHY,
    HEADER_WORDS,
    INSTRUCTION,
    INTO_FIRST,
    NUMBER,
    OUT_FIRST,
    SEND,
    STATUS,
    LoopState,
    flatten,
    new_links,
    new_state,
)
from collectives.engine.tcp.run import FAILED, FINISHED, run
from collectives.engine.tcp.system import BILLION, one_at_a_time
from collectives.schedule import Ints

# Nanoseconds after which the loop pauses, so that Python sees signals; fewer while a handshake is pending.
PAUSE_AFTER, PAUSE_SOON = BILLION // 10, BILLION // 1000


def execute(
    made: Plan, tensor: torch.Tensor, scratch: torch.Tensor | None, mesh: Mesh, op: Any, wire: str | None = None
) -> None:
    """Execute a plan of messages within a call; without an op nothing is reduced, with a wire messages are coded.

    Raises MessageError, which names step and peer, if a peer is lost, gives up, calls differently, or is late.
    """
    mesh.connect(made.first_sends)
    program, state = made.flat, _state(made.flat, mesh)
    HEADER.pack_into(state.header.data, 0, mesh.call, 0, 0, mesh.signature)
    CALL.pack_into(
        state.numbers.data,
        0,
        tensor.data_ptr(),
        tensor.data_ptr() if scratch is None or not made.scratch else scratch.data_ptr(),
        *kernels(op, tensor.dtype),
        *(coding(wire) if wire else (0, 0, 0)),
        mesh.size,
        mesh.listener.fileno(),
        made.exchanges,
        mesh.has_network,
        0 if mesh.has_network else mesh.spins,
        0,
    )
    while (status := run(program, state, PAUSE_SOON if mesh.has_pending else PAUSE_AFTER)) != FINISHED:
        _look(program, state, mesh, status == FAILED)


def _state(program: Flat, mesh: Mesh) -> LoopState:
    """The arrays for a program, which the mesh keeps: one of its calls runs at a time."""
    kept: tuple[Flat, LoopState] = mesh.kept.get(id(program), partial(_made, program, mesh.links))
    return kept[1]


def _made(program: Flat, links: Ints) -> tuple[Flat, LoopState]:
    return program, new_state(program, links)  # both, because another program could get the number of one that went


def _look(program: Flat, state: LoopState, mesh: Mesh, has_failed: bool) -> None:
    """Accept connections. Raises MessageError if a connection has failed, a rank has given up, or time is over."""
    if has_failed:
        peer, is_sent = state.numbers[FAILED_PEER], state.numbers[FAILED_SENDING]
        awaited = [int(state.peers[peer, OUT_FIRST if is_sent else INTO_FIRST])]
        _lose(program, state, mesh, awaited[0])
    else:
        blocked = state.tasks[:, STATUS] == BLOCKED
        awaited = program.instructions[state.tasks[blocked, AT], NUMBER].tolist()
    mesh.progress(0.0)
    if awaited:  # some task still waits
        mesh.check_peers([_message(program, state, number) for number in awaited])


def _lose(program: Flat, state: LoopState, mesh: Mesh, number: int) -> None:
    """The connection of this message has failed."""
    message, why = _message(program, state, number), int(state.numbers[FAILED_WHY])
    try:
        if why == DIFFERENT:
            row = state.messages[number]
            asked = mesh.call, message.step, int(row[BODY]), mesh.signature
            check_header(HEADER.unpack(row[:HEADER_WORDS].tobytes()), asked)
        raise ConnectionResetError(GONE) if why == CLOSED else OSError(why, os.strerror(why))
    except OSError as error:
        mesh.lose(message.peer, message.is_sent, error)


def _message(program: Flat, state: LoopState, number: int) -> Message:
    """A message as the mesh names it."""
    kind, _, peer, step, *_ = program.instructions[state.messages[number, INSTRUCTION]].tolist()
    return Message(peer, step, is_sent=kind == SEND)


def _compile() -> None:
    """Run an empty program, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        program = flatten(())
        run(program, new_state(program, new_links(1)), 0)


_compile()
