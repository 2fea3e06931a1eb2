"""Run one collective on one rank: prepare it, fill the buffers, execute the plan, hand over the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from collectives.engine.barrier import barrier
from collectives.engine.buffers import fill, hand_over, scratch_of, tensors
from collectives.engine.call import Call, Performed
from collectives.engine.codec import decode, encode, whole_blocks
from collectives.engine.communicator import Communicator, communicator, group_of
from collectives.engine.handshake import MessageError, global_ranks
from collectives.engine.mesh import Mesh
from collectives.engine.nccl import execute_in_batches
from collectives.engine.prepared import DEVICES, CallKey, Prepared, call_key, check, prepare
from collectives.engine.program import COMPILED, PYTHON, Plan
from collectives.engine.tcp.execute import execute
from collectives.engine.transport import MIXED, SHARED_MEMORY, TCP, shared_memory_or_none


def perform(call: Call) -> Performed:
    """Perform the collective, and return its algorithm and segments; every rank of the group calls it alike.

    Alike is: the same collective, algorithm, segments, root, op, dtype and sizes. Over gloo a rank that receives a
    message of another call raises RuntimeError, which names the sender and what differs. A group is for one thread at
    a time; RuntimeError where two use it at once. ValueError for tensors, an op or an algorithm that we do not have.

    Floating-point sums are taken in the order that the schedule gives. Where that is one order for all ranks
    (`summation.is_alike`: every all-reduce but swing_doubling), all ranks end with the same bits. float16 and bfloat16
    are added in float32 and rounded once per step: after h steps of adding, the result is within
    ``((1 + u)**h - 1) * sum(abs(x))`` of the exact sum, u = 2**-11 or 2**-8, and h <= p - 1 always.
    AVG is the sum, divided once by the rank that completes it (integers towards zero).

    With a wire (``ring/mxint8``, `collectives.wire`) all sums are taken in float32. What a rank sends it rounds to the
    wire first, in its own buffer, too, and the result at the end. So all ranks end with the same bits where they do
    without a wire. A half type is rounded to last. SUM and AVG of float32, float16 and bfloat16, over gloo,
    and always by messages.
    """
    group = group_of(call)
    me = communicator(group)
    with me.callers[call.background]:
        return _perform(call, group, me)


def connect(group: dist.ProcessGroup) -> None:
    """Make what calls in the background need, after all that takes all ranks together: the machine and connections.

    Raises ValueError for a group that is not gloo's.
    """
    me = communicator(group)
    if DEVICES.get(me.over) != "cpu":
        raise ValueError(f"async_op: got a group over {me.over}, expected one over gloo")
    if me.membership is None:
        me.meet(torch.device("cpu"))
    me.mesh(background=True)


def _perform(call: Call, group: dist.ProcessGroup, me: Communicator) -> Performed:
    rank, wanted = me.rank, call_key(call, me.p)
    if me.membership is None:
        check(me.over, wanted)  # before ranks talk
    made = prepare(me.membership or me.meet(wanted.kind.device), wanted)
    mesh = me.mesh(call.background) if wanted.kind.device.type == "cpu" else None
    stages = made.stages if mesh and mesh.segment else ()
    try:
        if mesh and stages:
            agreed = call.barrier and _agreement(call, wanted.n) is not None
            work = tensors(call, made, rank, wanted.kind)
            _execute_stages(made, work, scratch_of(made, wanted.kind), mesh, call.op, agreed)
        elif mesh and made.wire:
            _send_and_receive_coded(call, made, made.wire, mesh)
        else:
            _send_and_receive(call, made, wanted, group, me, mesh)
    except MessageError as error:
        failed = f"{call.collective} by {made.performed.algorithm} failed on rank {global_ranks(group)[rank]}"
        raise RuntimeError(f"{failed}, {error}{_of(group)}") from error
    executor, transport = (COMPILED, _transport(stages) if me.p > 1 else None) if mesh else (PYTHON, None)
    return Performed(*made.performed[:3], executor, transport)


def _of(group: dist.ProcessGroup) -> str:
    """Return the group's name for an error, if it has not all ranks."""
    if group.size() == dist.get_world_size():
        return ""
    named = group.group_name if group.group_desc == "undefined" else group.group_desc
    return f" (in process group {named} of {group.size()} ranks)"


def _transport(stages: tuple[Any, ...]) -> str:
    """What carries the call: memory that ranks share, TCP, or both."""
    if not stages:
        return TCP
    return MIXED if any(isinstance(stage, Plan) for stage in stages) else SHARED_MEMORY


def _send_and_receive(
    call: Call, made: Prepared, wanted: CallKey, group: dist.ProcessGroup, me: Communicator, mesh: Mesh | None
) -> None:
    """By messages, over a mesh or over NCCL."""
    work, scratch = fill(call, made, me.rank, me.p, wanted)
    if mesh:
        _execute_messages(call, made, wanted.n, work, scratch, mesh)
    else:
        execute_in_batches(made.plan, work, scratch, group, call.op, me.p)
    hand_over(call, work, made.edges, me.rank, me.p)


def _send_and_receive_coded(call: Call, made: Prepared, wire: str, mesh: Mesh) -> None:
    """An all-reduce of the tensor as float32 in whole blocks."""
    tensor = call.flat_output()
    work = whole_blocks(wire, tensor)
    _execute_messages(call, made, len(tensor), work, work.new_empty(made.plan.scratch), mesh)
    tensor.copy_(decode(wire, encode(wire, work))[: len(tensor)])


def _execute_messages(
    call: Call, made: Prepared, n: int, tensor: torch.Tensor, scratch: torch.Tensor, mesh: Mesh
) -> None:
    """Send and receive what is prepared for a call of ``n`` elements; every message has the call's signature."""
    finish = _agreement(call, n) if call.barrier else None
    with mesh.begin(made.signature):
        if mesh.segment:
            shared_memory_or_none().enter(mesh)
        execute(made.plan, tensor, scratch, mesh, call.op, made.wire)
        if finish:
            finish(mesh)
        mesh.check_aborts()


def _execute_stages(
    made: Prepared, tensors: Any, scratch: torch.Tensor | None, mesh: Mesh, op: Any, agreed: bool
) -> None:
    """Execute the stages one after the other; with ``agreed`` no rank of a host returns before all have made the call.

    ``tensors`` are those of published buffers, the last of which messages come to.
    """
    with mesh.begin(made.signature):
        for stage in made.stages:
            if isinstance(stage, Plan):
                execute(stage, tensors[-1], scratch, mesh, op)
            else:
                shared_memory_or_none().execute(stage, tensors, mesh, agreed)
        if len(made.stages) > 1:
            mesh.check_aborts()


def _agreement(call: Call, n: int) -> Callable[[Mesh], None] | None:
    """What lets every rank hear, over others maybe, from all ranks of the group; None where the call itself does."""
    if call.splits is not None:
        return partial(barrier, pairs=True)
    return barrier if call.root is not None or n == 0 else None


shared_memory_or_none()  # before ranks are forked, and not while others wait for this one
