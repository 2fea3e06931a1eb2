"""Execute one rank's part of a schedule in shared memory: in compiled code, but for failures, which Python notices."""

from __future__ import annotations

import ctypes
import hashlib
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from collectives.engine.handshake import NO_CALL, Message, check_header
from collectives.engine.kernels import Kernels, kernels
from collectives.engine.mesh import Mesh
from collectives.engine.shm.run import (
    CALL,
    DIFFERENT,
    EACH_SIGNATURE,
    EACH_SPLITS,
    FINISHED,
    HEADER,
    REGION,
    SIGNATURES,
    SLOT,
    SPLITS,
    UNEVEN,
    give_up,
    new_rank,
    run,
)
from collectives.engine.shm.segment import Segment
from collectives.engine.slots import SlotPlan, nothing
from collectives.engine.system import one_at_a_time
from collectives.schedule import Ints

LINE = 64  # bytes of a line of the cache
NOTHING, NO_EDGES = nothing(), np.zeros(2, dtype=np.int64)
Splits = tuple[tuple[int, ...], ...]


def slice_length(plan: SlotPlan, itemsize: int) -> int:
    """Return the elements of each chunk in a block: whole lines of the cache if there is room; 0 if there is none."""
    most = SLOT // len(plan.held) // itemsize
    return most - most % (LINE // itemsize) if most * itemsize >= LINE and LINE % itemsize == 0 else most


class SharedCall(NamedTuple):
    """One rank's part of a schedule, for calls of one size, op and dtype."""

    at: int  # address of ``call``
    elements: tuple[int, int]  # of the source and of the target
    needs_own: bool  # whether anything is kept in memory of the rank's own, beside its source and target
    call: Any  # the record that compiled code reads
    rows: tuple[Any, ...]  # the arrays whose addresses the record has


def shared_call(
    plan: SlotPlan,
    edges: Ints,
    longest: int,
    op: Any,
    dtype: Any,
    signature: bytes,
    ranks: int,
    splits: Splits = (),
) -> SharedCall | None:
    """Return the plan for tensors with chunks between ``edges``, the longest on any rank of ``longest`` elements.

    An average is over ``ranks``. With ``splits`` (elements to each rank, and from each) the ranks exchange their splits
    to find the longest. Returns None if a slot is too small for one element of each chunk.
    """
    found = kernels(op, dtype)
    length = slice_length(plan, found.size)
    if not length:
        return None
    return _shared_call(plan, edges, length, max(1, -(-longest // length)), found, signature, ranks, splits)


def _shared_call(
    plan: SlotPlan,
    edges: Ints,
    length: int,
    blocks: int,
    found: Kernels,
    signature: bytes,
    ranks: int = 1,
    splits: Splits = (),
) -> SharedCall:
    call, chunks = np.zeros(1, CALL), plan.layout(edges)
    rows: dict[str, Any] = {name: getattr(plan, name) for name in ("steps", "waits", "ops", "operands", "copies")}
    rows["chunks"] = chunks
    rows["signature"] = np.frombuffer(signature.ljust(EACH_SIGNATURE, b"\0"), dtype=np.uint8)
    if splits:
        rows["splits"] = np.array(splits, dtype=np.int64)
    for name, each in rows.items():
        call[name] = each.ctypes.data
    call["step_count"], call["copy_count"] = len(plan.steps) - 1, len(plan.copies)
    call["length"], call["blocks"], call["divisor"], call["kernels"] = length, blocks, ranks, found
    call["digest"] = _digest(signature)
    source, target = (chunks[:, 0] @ plan.held).tolist()
    return SharedCall(call.ctypes.data, (source, target), plan.needs_own, call, tuple(rows.values()))


def _digest(signature: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(signature, digest_size=8).digest(), "little", signed=True)


def execute(made: SharedCall, own: int, source: int, target: int, mesh: Mesh, has_barrier: bool) -> None:
    """Execute a call on this rank's tensors, by their addresses; `run` says what they are.

    Raises MessageError where a peer fails or is late.
    """
    at, goes_on = mesh.segment.at, False
    while (status := run(at, made.at, own, source, target, has_barrier, goes_on)) != FINISHED:
        _look(mesh, mesh.segment, status)
        goes_on = True


def enter(mesh: Mesh) -> None:
    """Publish what this rank calls, and no data: a call that sends messages. Peers that call differently notice."""
    segment = mesh.segment
    if mesh.signature not in segment.entered:
        segment.entered = {mesh.signature: _no_data(mesh.signature)}
    execute(segment.entered[mesh.signature], 0, 0, 0, mesh, has_barrier=False)


def _no_data(signature: bytes) -> SharedCall:
    return _shared_call(NOTHING, NO_EDGES, 1, 1, Kernels(0, 0, 0, 0, 1), signature)


def _look(mesh: Mesh, segment: Segment, status: int) -> None:
    """Raise MessageError if the peer that this rank waits for calls differently, has gone or given up, or is late."""
    me = segment.rank[0]
    number, step, mark = int(me["peer"]), int(me["step"]), int(me["mark"])
    peer = mesh.on_host[number]
    if status == DIFFERENT:
        theirs = _signature(segment, number)
        with mesh.explaining(peer, step):
            check_header((mesh.call, step, 0, theirs), (mesh.call, step, 0, mesh.signature))
    if status == UNEVEN:
        with mesh.explaining(mark if peer == mesh.rank else peer, step):
            ends = f"rank {mesh.names[peer]} and rank {mesh.names[mark]}"
            raise OSError(f"splits of {ends} do not fit: {_describe_splits(segment, peer, mark)}")
    if (own := _count(segment, int(me["rank"]))) < 0:
        peer = mesh.on_host[-1 - own]
        mesh.lose(peer, False, ConnectionAbortedError("it has given up on this rank"))
        mesh.check_peers([Message(peer, step, is_sent=False)])
    mesh.check_memory(peer, step, lambda: _count(segment, number) >= mark, partial(give_up, segment.at))


def _count(segment: Segment, number: int) -> int:
    return ctypes.c_int64.from_address(segment.address + number * HEADER).value


def _signature(segment: Segment, peer: int) -> bytes:
    at = segment.address + peer * HEADER + SIGNATURES + int(segment.rank[0]["epoch"] & 1) * EACH_SIGNATURE
    return ctypes.string_at(at, len(NO_CALL))


def _describe_splits(segment: Segment, sender: int, receiver: int) -> str:
    """Return what the two ranks send and expect."""
    ranks, parity = int(segment.rank[0]["ranks"]), int(segment.rank[0]["epoch"] & 1)
    sent, expected = (
        ctypes.c_int64.from_address(segment.address + rank * HEADER + SPLITS + parity * EACH_SPLITS + 8 * at).value
        for rank, at in ((sender, receiver), (receiver, ranks + sender))
    )
    return f"got {sent} elements, expected {expected}"


def _compile() -> None:
    """Run a call of one rank that does nothing, one process at a time: the others find its code in the cache."""
    with one_at_a_time(__file__):
        memory = np.zeros(HEADER + REGION, dtype=np.uint8)
        rank, made = new_rank(memory.ctypes.data, 1, 0), _no_data(NO_CALL)
        run(rank.ctypes.data, made.at, 0, 0, 0, False, False)
        give_up(rank.ctypes.data)


_compile()
