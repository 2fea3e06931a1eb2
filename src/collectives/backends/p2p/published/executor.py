"""Execute a published plan on one rank: in compiled code, but for what has failed, which Python notices."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np
import torch

from collectives.backends.p2p.connection import need_expected
from collectives.backends.p2p.loop.kernels import Kernels, kernels
from collectives.backends.p2p.loop.system import one_at_a_time
from collectives.backends.p2p.mesh import Mesh
from collectives.backends.p2p.publish import Published, nothing
from collectives.backends.p2p.published.run import (
    AGREED,
    AT,
    BLOCK,
    BLOCKS,
    DIFFERENT,
    EACH_SIGNATURE,
    EPOCH,
    FINISHED,
    HEADER,
    KERNELS,
    LENGTH,
    MARK,
    OWN_SIGNATURE,
    PEER,
    REGION,
    ROW,
    SIGNATURES,
    SIZE,
    SLOT,
    STEP,
    TENSOR_AT,
    new_state,
    run,
)
from collectives.backends.p2p.published.segment import Segment
from collectives.backends.p2p.signature import NO_CALL
from collectives.schedule import Ints

LINE = 64  # bytes of a line of the cache
NOTHING, NO_EDGES = nothing(), np.zeros(2, dtype=np.int64)


def slice_length(plan: Published, itemsize: int) -> int:
    """Elements of each chunk in a block: whole lines of the cache if there is room; 0 if there is none."""
    most = SLOT // plan.k // itemsize
    return most - most % (LINE // itemsize) if most * itemsize >= LINE and LINE % itemsize == 0 else most


def takes(plan: Published, tensor: torch.Tensor, op: Any) -> Kernels | None:
    """The addresses of the kernels for a call; None where there are none, and for too many chunks."""
    return kernels(op, tensor.dtype) if slice_length(plan, tensor.element_size()) else None


def execute(
    plan: Published,
    longest: int,
    edges: Ints,
    tensor: torch.Tensor,
    mesh: Mesh,
    segment: Segment,
    found: Kernels,
    agreed: bool,
) -> None:
    """Execute the plan on a tensor with chunks between ``edges``, the longest on any rank of ``longest`` elements.

    With ``agreed`` no rank returns before all have made the call. Raises MessageError where a peer fails or is late.
    """
    state, length = segment.state, slice_length(plan, found.size)
    state[TENSOR_AT], state[LENGTH], state[KERNELS : KERNELS + len(found)] = tensor.data_ptr(), length, found
    state[BLOCKS], state[AGREED] = max(1, -(-longest // length)), agreed
    _run(plan, edges, mesh, segment)


def enter(mesh: Mesh, segment: Segment) -> None:
    """Publish what this rank calls, and no data: a call that sends messages. Peers that call differently notice."""
    segment.state[BLOCKS], segment.state[AGREED] = 1, False
    _run(NOTHING, NO_EDGES, mesh, segment)


def _run(plan: Published, edges: Ints, mesh: Mesh, segment: Segment) -> None:
    state = segment.state
    signature = np.frombuffer(mesh.signature.ljust(EACH_SIGNATURE, b"\0"), dtype=np.uint8)
    state[BLOCK], state[ROW], state[AT], state[OWN_SIGNATURE] = 0, -1, 0, signature.ctypes.data
    while (status := run(plan, edges, state, segment.checked)) != FINISHED:
        peer, step = int(state[PEER]), int(state[STEP])
        if status == DIFFERENT:
            theirs = _signature(segment, peer)
            with mesh.explaining(peer, step):
                need_expected((mesh.call, step, 0, theirs), (mesh.call, step, 0, mesh.signature))
        mesh.check(peer, step, partial(_has_come, segment))


def _has_come(segment: Segment) -> bool:
    """Whether the count that this rank waits for is there now: of a peer that has ended well, too."""
    at = segment.address + int(segment.state[PEER]) * HEADER
    return bool(ctypes.c_int64.from_address(at).value >= segment.state[MARK])


def _signature(segment: Segment, peer: int) -> bytes:
    at = segment.address + peer * HEADER + SIGNATURES + int(segment.state[EPOCH] & 1) * EACH_SIGNATURE
    return ctypes.string_at(at, len(NO_CALL))


def _compile() -> None:
    """Run a plan of one rank that does nothing, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        memory, signature = np.zeros(HEADER + REGION, dtype=np.uint8), np.zeros(EACH_SIGNATURE, dtype=np.uint8)
        state = new_state(memory.ctypes.data, 1, 0)
        state[OWN_SIGNATURE], state[SIZE], state[LENGTH], state[ROW] = signature.ctypes.data, 1, 1, -1
        state[BLOCKS] = 1
        run(NOTHING, NO_EDGES, state, np.zeros(1, dtype=np.int64))


_compile()
