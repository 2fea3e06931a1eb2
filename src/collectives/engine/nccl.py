"""Execute one rank's program over NCCL: CUDA tensors, and all messages of a step in one batch.

The process group of torch sends and receives, so its watchdog, its flight recorder and its timeouts
cover each batch. Waiting makes the stream wait, not this process. NCCL matches messages of one pair
of ranks by their order, and ignores tags. A batch of more than about 250 messages can hang
(https://github.com/pytorch/pytorch/issues/174288): flat and direct algorithms make such batches on
that many ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import distributed as dist

from collectives.algorithms import is_own
from collectives.cause import note
from collectives.engine.blame import cause_of
from collectives.engine.buffers import fill, hand_over
from collectives.engine.handshake import MessageError, all_gather_bytes, difference, global_ranks
from collectives.engine.program import Average, Plan, Recv, Reduce, Send, Span
from collectives.engine.reduce import divide, reduce
from collectives.engine.work import DESTROYED

if TYPE_CHECKING:
    from collectives.engine.call import Call, CompiledCall


class Nccl:
    """Carry the calls of ranks on GPUs: a `transport.Transport`."""

    ranks_per_host = 1

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = ref(group)
        self._agreed: set[bytes] = set()

    @classmethod
    def connect(cls, group: dist.ProcessGroup, is_background: bool) -> Nccl:
        """Return the transport.

        The group's first call connects, because it needs a tensor's device.
        """
        del is_background
        return cls(group)

    def run(self, made: CompiledCall, call: Call) -> None:
        """Enqueue a call's kernels on the current stream.

        Raises MessageError if NCCL refuses them.
        """
        group = self._group()
        if group is None:
            raise RuntimeError(DESTROYED)
        rank, p = group.rank(), group.size()
        if is_own(made.performed.algorithm) and made.signature not in self._agreed:
            agree(made.signature, call.any_tensor().device, group)
            self._agreed.add(made.signature)
        work, scratch = fill(call, made, rank, p)
        execute_in_batches(made.plan, work, scratch, group, call.op, p)
        hand_over(call, work, made.edges, rank, p)

    def close(self, why: str) -> None:
        """Leave the connections to torch, which closes NCCL's with the group."""
        del why


def agree(signature: bytes, device: torch.device, group: dist.ProcessGroup) -> None:
    """Raise RuntimeError, on every rank, unless all are about to execute the same schedule.

    NCCL's messages carry no signature, so ranks compare theirs before the first call by a schedule
    of the user's own: its file may differ from host to host.
    """
    for rank, theirs in zip(
        global_ranks(group), all_gather_bytes(signature, group, device), strict=True
    ):
        how = difference(theirs, signature)
        if how:
            raise RuntimeError(
                f"ranks must call alike, but the call of rank {rank} differs from this rank's: {how}"
            )


class Batch(NamedTuple):
    """Keep all messages that a rank sends and receives in one step."""

    messages: tuple[Send | Recv, ...]


def execute_in_batches(
    made: Plan,
    tensor: torch.Tensor,
    scratch: torch.Tensor,
    group: dist.ProcessGroup,
    op: Any,
    p: int,
) -> None:
    """Execute the program: all that this rank sends and receives in one step is one batch, in the order of the steps.

    A receive is handed over with its step's batch, not ahead of it: NCCL takes messages in the
    order in which they were given, so nothing is gained by giving it early. A program's batches are
    planned in its first call.
    """
    _first_collective(group, tensor.device)
    if tensor.is_complex():  # which NCCL does not know
        tensor, scratch = torch.view_as_real(tensor), torch.view_as_real(scratch)

    def view(span: Span) -> torch.Tensor:
        return (scratch if span.scratch else tensor)[span.start : span.stop]

    if made not in _planned:
        _planned[made] = tuple(batches(made))
    for do in _planned[made]:
        if isinstance(do, Batch):
            _exchange(do.messages, view, group)
        elif isinstance(do, Reduce):
            reduce(op, view(do.into), [view(span) for span in do.operands])
        elif op == dist.ReduceOp.AVG:
            divide(view(do.span), p)


# What `batches` returned for a program, as long as somebody has the program.
_planned: WeakKeyDictionary[Plan, tuple[Batch | Reduce | Average, ...]] = WeakKeyDictionary()


def batches(made: Plan) -> list[Batch | Reduce | Average]:
    """Return the program in batches; there are no waits, because the stream keeps the order.

    The pieces of a reduction are one: here a message is there as a whole, and each piece costs a
    kernel.

    >>> from collectives.algorithms import ALGORITHMS
    >>> from collectives.engine.compile import plan
    >>> doubling = ALGORITHMS["all_reduce", "recursive_doubling"](2)
    >>> for do in batches(plan(doubling, rank=0, edges=doubling.cut(1 << 20))):
    ...     print(type(do).__name__)
    Batch
    Reduce
    Average
    """
    planned = list[Batch | Reduce | Average]()
    for do in made.instructions():
        last = planned[-1] if planned else None
        if isinstance(do, Send | Recv):
            if isinstance(last, Batch) and last.messages[0].step == do.step:
                planned[-1] = Batch((*last.messages, do))
            else:
                planned.append(Batch((do,)))
        elif isinstance(do, Reduce):
            whole = _joined(last, do) if isinstance(last, Reduce) else None
            if whole:
                planned[-1] = whole
            else:
                planned.append(do)
        elif isinstance(do, Average):
            planned.append(do)
    return planned


def _joined(one: Reduce, more: Reduce) -> Reduce | None:
    """Return both in one, if the second goes on where the first ends, in the place and in every operand."""
    spans = list(zip((one.into, *one.operands), (more.into, *more.operands), strict=False))
    if len(one.operands) != len(more.operands) or any(
        first.stop != second.start or first.scratch != second.scratch for first, second in spans
    ):
        return None
    into, *operands = (first._replace(stop=second.stop) for first, second in spans)
    return Reduce(into, tuple(operands))


def _exchange(
    batch: Sequence[Send | Recv], view: Callable[[Span], torch.Tensor], group: dist.ProcessGroup
) -> None:
    """Send and receive in one batch, which is done for whatever follows on the same stream."""
    tensors = [view(do.into) if isinstance(do, Recv) else _gathered(do, view) for do in batch]
    try:
        if group._get_backend(tensors[0].device).supports_coalescing:
            _in_one_group(batch, tensors, group)
        else:  # a wrapper, such as that of TORCH_DISTRIBUTED_DEBUG=DETAIL
            for work in dist.batch_isend_irecv(_p2p_ops(batch, tensors, group)):
                work.wait()
    except RuntimeError as error:
        first = batch[0]
        names = global_ranks(group)
        failed = MessageError(isinstance(first, Send), first.step, names[first.peer], error)
        note(cause_of(names[group.rank()], failed))
        raise failed from error


def _in_one_group(
    batch: Sequence[Send | Recv], tensors: list[torch.Tensor], group: dist.ProcessGroup
) -> None:
    """Do what ``dist.batch_isend_irecv`` does over NCCL, without its checks, which take most of its time."""
    device = tensors[0].device
    group._start_coalescing(device)
    try:
        for do, tensor in zip(batch, tensors, strict=True):
            (group.recv if isinstance(do, Recv) else group.send)([tensor], do.peer, 0)
    finally:  # else NCCL takes all later calls of this thread for more of this batch
        work = group._end_coalescing(device)
    work.wait()


def _p2p_ops(
    batch: Sequence[Send | Recv], tensors: list[torch.Tensor], group: dist.ProcessGroup
) -> list[dist.P2POp]:
    return [
        dist.P2POp(
            dist.irecv if isinstance(do, Recv) else dist.isend,
            tensor,
            group=group,
            group_peer=do.peer,
        )
        for do, tensor in zip(batch, tensors, strict=True)
    ]


# Groups that had their first collective. A group is forgotten when it is destroyed, and never
# before: a rank that forgot a living group would call its first collective again, alone, and hang.
_connected: WeakSet[dist.ProcessGroup] = WeakSet()


def _first_collective(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect all ranks of a group: NCCL does so in its first call, which must not be a batch without some of them."""
    if group not in _connected:
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        _connected.add(group)


def _gathered(do: Send, view: Callable[[Span], torch.Tensor]) -> torch.Tensor:
    return view(do.spans[0]) if len(do.spans) == 1 else torch.cat([view(span) for span in do.spans])
