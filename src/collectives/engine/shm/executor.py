"""Execute a published plan on one rank: in compiled code, but for what has failed, which Python notices."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from collectives.engine.handshake import NO_CALL, Message, check_header
from collectives.engine.kernels import Kernels, kernels
from collectives.engine.mesh import Mesh
from collectives.engine.shm.run import (
    AGREED,
    AT,
    BLOCK,
    BLOCKS,
    DIFFERENT,
    EACH_SIGNATURE,
    EACH_SPLITS,
    EPOCH,
    FINISHED,
    HEADER,
    LENGTH,
    MARK,
    OWN_AT,
    PEER,
    RANK,
    RANKS,
    REGION,
    ROW,
    SIGNATURE,
    SIGNATURES,
    SIZE,
    SLOT,
    SOURCE_AT,
    SPLITS,
    STEP,
    TARGET_AT,
    UNEVEN,
    give_up,
    new_state,
    run,
)
from collectives.engine.shm.segment import Segment
from collectives.engine.slots import SlotPlan, nothing
from collectives.engine.system import one_at_a_time
from collectives.schedule import Ints

Tensors = tuple[torch.Tensor | None, ...]  # memory of the rank's own, its data, and where its result goes
LINE = 64  # bytes of a line of the cache
NOTHING, NO_EDGES = nothing(), np.zeros(2, dtype=np.int64)
WORDS_OF_CALL = slice(LENGTH, SIZE + 1)


def slice_length(plan: SlotPlan, itemsize: int) -> int:
    """Elements of each chunk in a block: whole lines of the cache if there is room; 0 if there is none."""
    most = SLOT // len(plan.held) // itemsize
    return most - most % (LINE // itemsize) if most * itemsize >= LINE and LINE % itemsize == 0 else most


class Ready(NamedTuple):
    """A plan for calls of one size, op and dtype: ``words`` are what the state gets beside the tensors' addresses.

    They have the addresses of ``signature`` and ``splits``. ``chunks`` are the plan's layout.
    """

    plan: SlotPlan
    chunks: Ints
    elements: tuple[int, ...]  # of the source and of the target
    words: Ints
    signature: NDArray[np.uint8]
    splits: Ints  # elements to each rank, then from each; empty if all are alike


def ready(
    plan: SlotPlan,
    edges: Ints,
    longest: int,
    op: Any,
    dtype: torch.dtype,
    signature: bytes,
    ranks: int,
    splits: tuple[tuple[int, ...], ...] = (),
) -> Ready | None:
    """The plan for tensors with chunks between ``edges``, the longest on any rank of ``longest`` elements.

    An average is over ``ranks``. With ``splits`` (elements to each rank, and from each) the ranks exchange their splits
    to find the longest. Returns None if a slot is too small for one element of each chunk.
    """
    found = kernels(op, dtype)
    length = slice_length(plan, found.size)
    if not length:
        return None
    return _ready(plan, edges, length, max(1, -(-longest // length)), found, signature, ranks, splits)


def _ready(
    plan: SlotPlan,
    edges: Ints,
    length: int,
    blocks: int,
    found: Kernels,
    signature: bytes,
    ranks: int = 1,
    splits: tuple[tuple[int, ...], ...] = (),
) -> Ready:
    kept = np.frombuffer(signature.ljust(EACH_SIGNATURE, b"\0"), dtype=np.uint8)
    lengths = np.array(splits, dtype=np.int64).ravel()
    addresses = kept.ctypes.data, lengths.ctypes.data if splits else 0
    words = np.array([length, blocks, *addresses, ranks, *found], dtype=np.int64)
    chunks = plan.layout(edges)
    elements = tuple((chunks[:, 0] @ plan.held).tolist())
    return Ready(plan, chunks, elements, words, kept, lengths)


NO_DATA = _ready(NOTHING, NO_EDGES, 1, 1, Kernels(0, 0, 0, 0, 1), NO_CALL)


def execute(made: Ready, tensors: Tensors, mesh: Mesh, agreed: bool) -> None:
    """Execute a plan on this rank's tensors; with ``agreed`` no rank returns before all have made the call.

    Raises MessageError where a peer fails or is late.
    """
    state = mesh.segment.state
    state[OWN_AT], state[SOURCE_AT], state[TARGET_AT] = (each.data_ptr() if each is not None else 0 for each in tensors)
    state[AGREED], state[WORDS_OF_CALL] = agreed, made.words
    _run(made, mesh, mesh.segment)


def enter(mesh: Mesh) -> None:
    """Publish what this rank calls, and no data: a call that sends messages. Peers that call differently notice."""
    segment = mesh.segment
    segment.signature[: len(mesh.signature)] = np.frombuffer(mesh.signature, dtype=np.uint8)
    segment.state[AGREED], segment.state[WORDS_OF_CALL] = False, NO_DATA.words
    segment.state[SIGNATURE] = segment.signature.ctypes.data
    _run(NO_DATA, mesh, segment)


def _run(made: Ready, mesh: Mesh, segment: Segment) -> None:
    plan, chunks, state = made.plan, made.chunks, segment.state
    state[BLOCK], state[ROW], state[AT] = 0, -1, 0
    while (status := run(plan, chunks, state, segment.checked)) != FINISHED:
        number, step = int(state[PEER]), int(state[STEP])
        peer = mesh.on_host[number]
        if status == DIFFERENT:
            theirs = _signature(segment, number)
            with mesh.explaining(peer, step):
                check_header((mesh.call, step, 0, theirs), (mesh.call, step, 0, mesh.signature))
        if status == UNEVEN:
            receiver = int(state[MARK])
            with mesh.explaining(receiver if peer == mesh.rank else peer, step):
                ends = f"rank {mesh.names[peer]} and rank {mesh.names[receiver]}"
                raise OSError(f"splits of {ends} do not fit: {_said(segment, peer, receiver)}")
        if (own := _count(segment, state[RANK])) < 0:
            peer = mesh.on_host[-1 - own]
            mesh.lose(peer, False, ConnectionAbortedError("it has given up on this rank"))
            mesh.check_peers([Message(peer, step, is_sent=False)])
        mesh.check_memory(peer, step, partial(_has_come, segment), partial(_give_up, segment))


def _has_come(segment: Segment) -> bool:
    """Whether the count that this rank waits for is there now: of a peer that has ended well, too."""
    return bool(_count(segment, segment.state[PEER]) >= segment.state[MARK])


def _count(segment: Segment, number: Any) -> int:
    return ctypes.c_int64.from_address(segment.address + int(number) * HEADER).value


def _give_up(segment: Segment) -> bool:
    return bool(give_up(segment.state))


def _signature(segment: Segment, peer: int) -> bytes:
    at = segment.address + peer * HEADER + SIGNATURES + int(segment.state[EPOCH] & 1) * EACH_SIGNATURE
    return ctypes.string_at(at, len(NO_CALL))


def _said(segment: Segment, sender: int, receiver: int) -> str:
    """What the two ranks send and expect."""
    ranks, parity = int(segment.state[RANKS]), int(segment.state[EPOCH] & 1)
    sent, expected = (
        ctypes.c_int64.from_address(segment.address + rank * HEADER + SPLITS + parity * EACH_SPLITS + 8 * at).value
        for rank, at in ((sender, receiver), (receiver, ranks + sender))
    )
    return f"got {sent} elements, expected {expected}"


def _compile() -> None:
    """Run a plan of one rank that does nothing, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        memory, signature = np.zeros(HEADER + REGION, dtype=np.uint8), np.zeros(EACH_SIGNATURE, dtype=np.uint8)
        state = new_state(memory.ctypes.data, 1, 0)
        state[SIGNATURE], state[SIZE], state[LENGTH], state[ROW] = signature.ctypes.data, 1, 1, -1
        state[BLOCKS] = 1
        run(NOTHING, NOTHING.layout(NO_EDGES), state, np.zeros(1, dtype=np.int64))
        give_up(state)


_compile()
