"""Execute one rank's plan of messages on CPU tensors, over the connections of a mesh.

The `loop` is compiled. Whenever it pauses, the mesh looks for lost peers, aborts and the timeout. It is compiled when
this file is first imported on a machine, and loaded from numba's cache later: before ranks are forked, where a server
forks them. Ranks that start together wait for the one that compiles.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import torch

from collectives.engine.cache import BoundedCache
from collectives.engine.codec import codec_kernels
from collectives.engine.handshake import GONE, HEADER, Message, unexpected
from collectives.engine.kernels import kernels
from collectives.engine.mesh import Mesh
from collectives.engine.program import Flat, Plan
from collectives.engine.system import BILLION, one_at_a_time
from collectives.engine.tcp.loop import FAILED, FINISHED, run
from collectives.engine.tcp.state import (
    BLOCKED,
    CALL_FORMAT,
    CLOSED,
    DESCRIPTORS,
    DIFFERENT,
    NONE,
    SEND,
    LoopState,
    flatten,
    new_links,
    new_state,
)

# Nanoseconds after which the loop pauses, so that Python sees signals; fewer while a handshake is pending.
PAUSE_AFTER, PAUSE_SOON = BILLION // 10, BILLION // 1000


def execute(
    made: Plan, tensor: torch.Tensor, scratch: torch.Tensor | None, mesh: Mesh, op: Any, codec: str | None = None
) -> None:
    """Execute a plan of messages within a call; without an op nothing is reduced, with a codec messages are encoded.

    Raises MessageError, which names step and peer, if a peer is lost, gives up, calls differently, or is late.
    """
    mesh.connect(made.first_sends)
    mesh.loop = mesh.loop or _Loop(mesh)
    program, state = made.flat, mesh.loop.state(made.flat)
    HEADER.pack_into(state.header.data, 0, mesh.call, 0, 0, mesh.signature)
    CALL_FORMAT.pack_into(
        state.call,
        0,
        tensor.data_ptr(),
        tensor.data_ptr() if scratch is None or not made.scratch else scratch.data_ptr(),
        *kernels(op, tensor.dtype),
        *(codec_kernels(codec) if codec else (0, 0, 0)),
        mesh.size,
        mesh.listener.fileno(),
        made.exchanges,
        mesh.has_network,
        0 if mesh.has_network else mesh.spins,
        0,
    )
    while (status := run(program, state, PAUSE_SOON if mesh.has_pending else PAUSE_AFTER)) != FINISHED:
        _look(program, state, mesh, status == FAILED)


class _Loop:
    """The arrays of the loop over one mesh, one of whose calls runs at a time."""

    def __init__(self, mesh: Mesh) -> None:
        self._links, self._descriptors = new_links(mesh.size), mesh.descriptors
        self._kept = BoundedCache[tuple[Flat, LoopState]](
            lambda made: sum(each.nbytes for each in (*made[0][:4], *made[1]))
        )

    def state(self, program: Flat) -> LoopState:
        """Return the arrays for a program."""
        return self._kept.get(id(program), partial(self._make, program))[1]

    def _make(self, program: Flat) -> tuple[Flat, LoopState]:
        # Both, because another program could get the number of one that went.
        return program, new_state(program, self._links, self._descriptors)


def _look(program: Flat, state: LoopState, mesh: Mesh, has_failed: bool) -> None:
    """Accept connections. Raises MessageError if a connection has failed, a rank has given up, or time is over."""
    if has_failed:
        call = state.call[0]
        peer = state.peers[call["failed_peer"]]
        awaited = [int(peer["out" if call["failed_sending"] else "into"]["first"])]
        _lose(program, state, mesh, awaited[0])
    else:
        blocked = state.tasks[state.tasks["status"] == BLOCKED]
        awaited = program.instructions["number"][blocked["at"]].tolist()
    mesh.progress(0.0)
    if awaited:  # some task still waits
        mesh.check_peers([_message(program, state, number) for number in awaited])


def _lose(program: Flat, state: LoopState, mesh: Mesh, number: int) -> None:
    """Record that the connection of this message has failed, and why."""
    message, why = _message(program, state, number), int(state.call[0]["failed_why"])
    error = ConnectionResetError(GONE) if why == CLOSED else OSError(why, os.strerror(why))
    if why == DIFFERENT:
        came = state.messages[number]
        expected = mesh.call, message.step, int(came["nbytes"]), mesh.signature
        error = unexpected(HEADER.unpack(came["header"].tobytes()), expected)
    mesh.lose(message.peer, message.is_sent, error)


def _message(program: Flat, state: LoopState, number: int) -> Message:
    """Return a message as the mesh names it."""
    kind, _, peer, step, *_ = program.instructions[state.messages[number]["instruction"]].tolist()
    return Message(peer, step, is_sent=kind == SEND)


def _compile() -> None:
    """Run an empty program, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        program = flatten(())
        run(program, new_state(program, new_links(1), np.full(1, NONE, DESCRIPTORS)), 0)


_compile()
