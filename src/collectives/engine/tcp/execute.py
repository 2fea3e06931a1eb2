"""Perform one rank's calls on CPU tensors by messages, over the connections of a mesh.

The `loop` is compiled. Whenever it pauses, the mesh looks for lost peers, aborts and the timeout.
It is compiled when this file is first imported on a machine, and loaded from numba's cache later:
before ranks are forked, where a server forks them. Ranks that start together wait for the one that
compiles.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import distributed as dist

from collectives.engine.buffers import fill, hand_over
from collectives.engine.compile import as_plan
from collectives.engine.handshake import BARRIER, GONE, HEADER, Message, unexpected
from collectives.engine.kernels import kernels
from collectives.engine.mesh import Mesh
from collectives.engine.program import Plan, Recv, Send, Span, Task, Wait
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
    Records,
    addresses,
    flatten,
    new_links,
    new_state,
)

if TYPE_CHECKING:
    from collectives.engine.call import Call, CompiledCall

# Nanoseconds after which the loop pauses, so that Python sees signals; fewer while a handshake is
# pending.
PAUSE_AFTER, PAUSE_SOON = BILLION // 10, BILLION // 1000


class _Ready:
    """Hold the arrays of a plan for ranks with these links, and the address of the table of these arrays."""

    def __init__(self, plan: tuple[Task, ...], links: Records, descriptors: Records) -> None:
        self.program = flatten(plan)
        self.state = new_state(self.program, links, descriptors)
        self._table = addresses(self.program, self.state)
        self.at = self._table.ctypes.data


class Tcp:
    """Carry the calls of ranks that share no memory: a `transport.Transport`."""

    ranks_per_host = 1

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self._links = mesh, new_links(mesh.size)
        self._ready: WeakKeyDictionary[Plan, _Ready] = WeakKeyDictionary()

    @classmethod
    def connect(cls, group: dist.ProcessGroup, is_background: bool) -> Tcp:
        """Exchange addresses with all ranks of the group, each of which calls this."""
        return cls(Mesh(group, is_background))

    def run(self, made: CompiledCall, call: Call) -> None:
        """Perform a call.

        Raises MessageError, which names step and peer, if a peer fails or is late.
        """
        work, scratch = fill(call, made, self.mesh.rank, self.mesh.size)
        self._run(made, call, work, scratch)
        hand_over(call, work, made.edges, self.mesh.rank, self.mesh.size)

    def close(self, why: str) -> None:
        """Close the connections, from any thread: a call in progress here fails, and so do ranks that wait for it."""
        self.mesh.close(why)

    def enter(self) -> None:
        """Show others what this rank calls, beyond what its messages say."""

    def _run(
        self, made: CompiledCall, call: Call, work: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        with self.mesh.begin(made.signature):
            self.enter()
            self.execute(made.plan, work, scratch, call.op)
            if made.waits_for_all:
                self._barrier(pairs=call.splits is not None)
            self.mesh.check_aborts()

    def execute(
        self, plan: Plan, tensor: torch.Tensor, scratch: torch.Tensor | None, op: Any
    ) -> None:
        """Execute a plan within a call; without an op nothing is reduced. Raises what `run` does."""
        mesh, made = self.mesh, self._ready.get(plan)
        if made is None:
            made = self._ready[plan] = _Ready(plan.program, self._links, mesh.descriptors)
        mesh.connect(plan.first_sends)
        HEADER.pack_into(made.state.header.data, 0, mesh.call, 0, 0, mesh.signature)
        CALL_FORMAT.pack_into(
            made.state.call,
            0,
            tensor.data_ptr(),
            tensor.data_ptr() if scratch is None or not plan.scratch else scratch.data_ptr(),
            *kernels(op, tensor.dtype),
            mesh.size,
            mesh.listener.fileno(),
            plan.by_step,
            mesh.has_network,
            0 if mesh.has_network else mesh.spins,
            0,
        )
        while (status := run(made.at, PAUSE_SOON if mesh.has_pending else PAUSE_AFTER)) != FINISHED:
            self._look(made, status == FAILED)

    def _barrier(self, pairs: bool) -> None:
        """Return when every rank of the group is in this call: a dissemination barrier, log2(p) messages long.

        The root of a broadcast receives nothing, so it would go on although another rank has
        failed, or calls a reduce. In round i rank r hears from rank r - 2**i, which has heard from
        2**i ranks by then. The messages carry the call's signature, as all do. With ``pairs`` each
        rank hears from every other one first, which finds a message that one of the two has not
        expected.
        """
        plan = _barrier_plan(self.mesh.rank, self.mesh.size, pairs)
        self.execute(plan, torch.zeros(2, dtype=torch.uint8), None, None)

    def _look(self, made: _Ready, has_failed: bool) -> None:
        """Accept connections.

        Raises MessageError if a connection has failed, a rank has given up, or time is over.
        """
        state, mesh = made.state, self.mesh
        if has_failed:
            call = state.call[0]
            peer = state.peers[call["failed_peer"]]
            awaited = [int(peer["out" if call["failed_sending"] else "into"]["first"])]
            self._lose(made, awaited[0])
        else:
            blocked = state.tasks[state.tasks["status"] == BLOCKED]
            awaited = made.program.instructions["number"][blocked["at"]].tolist()
        mesh.progress(0.0)
        if awaited:  # some task still waits
            mesh.check_peers([_message(made, number) for number in awaited])

    def _lose(self, made: _Ready, number: int) -> None:
        """Record that the connection of this message has failed, and why."""
        message, why = _message(made, number), int(made.state.call[0]["failed_why"])
        error = ConnectionResetError(GONE) if why == CLOSED else OSError(why, os.strerror(why))
        if why == DIFFERENT:
            came = made.state.messages[number]
            expected = self.mesh.call, message.step, int(came["nbytes"]), self.mesh.signature
            error = unexpected(HEADER.unpack(came["header"].tobytes()), expected)
        self.mesh.lose(message.peer, message.is_sent, error)


def _message(made: _Ready, number: int) -> Message:
    """Return a message as the mesh names it."""
    kind, _, peer, step, *_ = made.program.instructions[
        made.state.messages[number]["instruction"]
    ].tolist()
    return Message(peer, step, is_sent=kind == SEND)


@cache
def _barrier_plan(rank: int, p: int, pairs: bool) -> Plan:
    """Return a byte to the ranks, and from the ranks, of each round; one round after the other."""
    others, distances = (
        [*range(rank + 1, p), *range(rank)],
        [1 << i for i in range((p - 1).bit_length())],
    )
    rounds = [([(rank + distance) % p], [(rank - distance) % p]) for distance in distances]
    tasks, numbers = list[Task](), count()
    for i, (targets, sources) in enumerate([(others, others), *rounds] if pairs else rounds):
        sends = [Send(next(numbers), each, BARRIER + i, (Span(0, 1),)) for each in targets]
        receives = [Recv(next(numbers), each, BARRIER + i, Span(1, 2)) for each in sources]
        waits = [Wait(do.number) for do in receives] + [Wait(do.number) for do in sends]
        tasks.append(Task((*sends, *receives, *waits), (i - 1,) if i else ()))
    return as_plan(tuple(tasks))


def _compile() -> None:
    """Run an empty program, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        run(_Ready((), new_links(1), np.full(1, NONE, DESCRIPTORS)).at, 0)


_compile()
