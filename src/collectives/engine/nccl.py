"""Execute one rank's program over NCCL: CUDA tensors, and all messages of a step in one batch.

They are ``torch.distributed``'s point-to-point messages; waiting makes the stream wait, not this process. NCCL matches
messages of one pair of ranks by their order, and ignores tags. A batch of more than about 250 messages can hang
(https://github.com/pytorch/pytorch/issues/174288): flat and direct algorithms make such batches on that many ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import distributed as dist

from collectives.engine.handshake import MessageError, global_ranks
from collectives.engine.program import Average, Instruction, Plan, Recv, Reduce, Send, Span, Wait
from collectives.engine.reduce import divide, reduce


def execute_in_batches(
    made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, group: dist.ProcessGroup, op: Any, p: int
) -> None:
    """Execute the program: all that this rank sends and receives in one step is one batch, in the order of the steps.

    A receive is handed over with its step's batch, not ahead of it: NCCL takes messages in the order in which they were
    given, so nothing is gained by giving it early.
    """
    _first_collective(group, tensor.device)

    def view(span: Span) -> torch.Tensor:
        return (scratch if span.scratch else tensor)[span.start : span.stop]

    due: dict[int, list[Recv]] = defaultdict(list)  # step -> its receives, not handed over yet
    posted: dict[int, int] = {}  # number of a receive -> its step
    sends: list[Send] = []  # of one step

    def hand_over(step: int | None) -> None:
        """The sends so far with their step's receives, and then those of this step, if it is another."""
        for t in dict.fromkeys([*(send.step for send in sends), *([] if step is None else [step])]):
            _exchange([*(send for send in sends if send.step == t), *due.pop(t, [])], view, group)
        sends.clear()

    for do in _with_whole_reductions(made.instructions()):
        match do:
            case Recv():
                due[do.step].append(do)
                posted[do.number] = do.step
            case Send():
                if sends and sends[0].step != do.step:
                    hand_over(None)
                sends.append(do)
            case Wait(number) if number in posted or any(send.number == number for send in sends):
                hand_over(posted.get(number))
            case Wait():
                pass  # it was handed over before, and the stream keeps the order
            case Reduce() | Average():
                _compute(do, view, op, p)


def _with_whole_reductions(program: Iterable[Instruction]) -> Iterator[Instruction]:
    """The program, but a reduction's pieces as one: here a message is there as a whole, and each piece costs a kernel.

    Only a wait may stand between two pieces of a reduction; it comes before the first now, which is never too late.
    """
    reduction: Reduce | None = None
    for do in program:
        longer = _longer(reduction, do) if reduction and isinstance(do, Reduce) else None
        if reduction and not longer and not isinstance(do, Wait):
            yield reduction
            reduction = None
        if isinstance(do, Reduce):
            reduction = longer or do
        else:
            yield do
    if reduction:
        yield reduction


def _longer(one: Reduce, more: Reduce) -> Reduce | None:
    """Both in one, if the second goes on where the first ends, in the place and in every operand."""
    spans = list(zip((one.into, *one.operands), (more.into, *more.operands), strict=False))
    if len(one.operands) != len(more.operands) or any(a.stop != b.start or a.scratch != b.scratch for a, b in spans):
        return None
    into, *operands = (a._replace(stop=b.stop) for a, b in spans)
    return Reduce(into, tuple(operands))


def _exchange(batch: list[Send | Recv], view: Callable[[Span], torch.Tensor], group: dist.ProcessGroup) -> None:
    """One batch of sends and receives, done for whatever follows on the same stream; without any, nothing."""
    if not batch:
        return
    messages = [
        dist.P2POp(dist.irecv, view(do.into), group=group, group_peer=do.peer)
        if isinstance(do, Recv)
        else dist.P2POp(dist.isend, _gathered(do, view), group=group, group_peer=do.peer)
        for do in batch
    ]
    try:
        for work in dist.batch_isend_irecv(messages):
            work.wait()
    except RuntimeError as error:
        first = batch[0]
        raise MessageError(isinstance(first, Send), first.step, global_ranks(group)[first.peer], error) from error


# Groups that had their first collective. A group is forgotten when it is destroyed, and never before: a rank that
# forgot a living group would call its first collective again, alone, and hang.
_connected: WeakSet[dist.ProcessGroup] = WeakSet()


def _first_collective(group: dist.ProcessGroup, device: torch.device) -> None:
    """NCCL connects all ranks of a group in its first call, which a batch that leaves some of them out must not be."""
    if group not in _connected:
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        _connected.add(group)


def _compute(do: Reduce | Average, view: Callable[[Span], torch.Tensor], op: Any, p: int) -> None:
    if isinstance(do, Reduce):
        reduce(op, view(do.into), [view(span) for span in do.operands])
    elif op == dist.ReduceOp.AVG:
        divide(view(do.span), p)


def _gathered(do: Send, view: Callable[[Span], torch.Tensor]) -> torch.Tensor:
    return view(do.spans[0]) if len(do.spans) == 1 else torch.cat([view(span) for span in do.spans])
