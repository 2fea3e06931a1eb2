"""Execute a program in compiled code, as far as that goes; the executor in Python takes over what is left.

The loop is compiled when this file is first imported on a machine, and loaded from numba's cache later: before ranks
are forked, where a server forks them. Ranks that start together wait for the one that compiles.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from collectives.backends.p2p.connection import HEADER
from collectives.backends.p2p.executor_state import ExecutorState
from collectives.backends.p2p.loop.flat import flatten
from collectives.backends.p2p.loop.hand_over import InBytes, hand_over
from collectives.backends.p2p.loop.kernels import Kernels, kernels
from collectives.backends.p2p.loop.state import CALL, PLACES, LoopState, new_state
from collectives.backends.p2p.loop.system import one_at_a_time
from collectives.backends.p2p.loop.tasks import FINISHED, LISTENER_READY, PAUSE, run
from collectives.backends.p2p.mesh import Mesh
from collectives.backends.p2p.outgoing import BANDWIDTH_DELAY
from collectives.backends.p2p.program import Flat, Plan
from collectives.backends.p2p.reduce import as_array
from collectives.schedule import Ints


def takes(made: Plan, tensor: torch.Tensor, mesh: Mesh, op: Any) -> Kernels | None:
    """The addresses of the kernels for this call; None where Python has to execute it.

    Python executes exchanges over a network whose messages are so long that one is to leave before the next. It also
    reduces float16 on a processor that does not convert it.
    """
    is_long = made.exchanges and made.flat.longest * tensor.element_size() > BANDWIDTH_DELAY
    if not mesh.is_quiet or (is_long and mesh.has_network):
        return None
    return kernels(op, tensor.dtype)


def execute(
    made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, mesh: Mesh, found: Kernels
) -> ExecutorState | None:
    """Execute the program with these kernels; returns how far it is where Python has to go on, None if it is done."""
    state = _state(made.flat, mesh)
    HEADER.pack_into(state.header.data, 0, mesh.call, 0, 0, mesh.signature)
    CALL.pack_into(
        state.numbers.data,
        0,
        tensor.data_ptr(),
        scratch.data_ptr(),
        *found,
        mesh.size,
        *mesh.listeners,
        made.exchanges,
        mesh.spins,
        0,
    )
    try:
        if _run(made.flat, state, mesh):
            return None
    except BaseException:  # a signal's: what is half sent has to be known before the others are told
        hand_over(made.flat, state, mesh, _in_bytes(tensor, scratch))
        raise
    return hand_over(made.flat, state, mesh, _in_bytes(tensor, scratch))


def _state(program: Flat, mesh: Mesh) -> LoopState:
    """The arrays for a program, which the mesh keeps: one of its calls runs at a time."""
    kept: tuple[Flat, LoopState] = mesh.kept.get(id(program), partial(_made, program, mesh.sockets))
    return kept[1]


def _made(program: Flat, sockets: Ints) -> tuple[Flat, LoopState]:
    return program, new_state(program, sockets)  # both, because another program could get the number of one that went


def _run(program: Flat, state: LoopState, mesh: Mesh) -> bool:
    """Whether the program was executed to its end."""
    while (status := run(program, state)) in (PAUSE, LISTENER_READY):
        if status == LISTENER_READY:
            mesh.progress(0.0)
        elif mesh.is_due:
            return False
    return bool(status == FINISHED)


def _in_bytes(tensor: torch.Tensor, scratch: torch.Tensor) -> InBytes:
    size = tensor.element_size()
    memory = [as_array(each).view(np.uint8).data for each in (tensor, scratch)]
    return lambda span: memory[span.scratch][span.start * size : span.stop * size]


def _compile() -> None:
    """Run an empty program, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        program = flatten((), (), ())
        run(program, new_state(program, np.zeros((1, PLACES), dtype=np.int64)))


_compile()
