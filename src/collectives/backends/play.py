"""Playing one rank's program over ``torch.distributed``'s point-to-point messages.

`play` is for gloo: receives are posted as early as the program says, and each message is waited for by itself.
`play_in_batches` is for NCCL: all messages of a step are one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends.program import Finish, Fold, Plan, Post, Send, Span, Wait

# Our messages carry tags from here on (plus the step), apart from the user's own.
FIRST_TAG = 1 << 20

COMBINE: dict[Any, Callable[..., torch.Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.MIN: torch.minimum,
}
HALF = (torch.float16, torch.bfloat16)

# Process groups that are remembered to have had a first collective.
GROUPS = 64


class MessageError(RuntimeError):
    """A message that did not arrive or could not be sent: in which step, to or from whom, and why."""


def play(made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, group: dist.ProcessGroup, op: Any, p: int) -> None:
    """Carry out the program, instruction by instruction."""
    waiting: dict[int, tuple[dist.Work | None, Send | Post]] = {}
    view = _viewer(tensor, scratch)
    for do in made.program:
        match do:
            case Fold() | Finish():
                _compute(do, view, op, p)
            case Wait(number):
                _wait(*waiting.pop(number))
            case _:
                waiting[do.number] = _start(do, view, group), do


def play_in_batches(
    made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, group: dist.ProcessGroup, op: Any, p: int
) -> None:
    """The same for NCCL: all that this rank sends and receives in one step is one batch, in the order of the steps.

    A receive is handed over with its step's batch, not ahead of it: NCCL takes messages in the order in which they were
    given, so nothing is gained by giving it early. Waiting makes the stream wait, not this process.
    """
    _first_collective(group, tensor.device)
    view = _viewer(tensor, scratch)
    due: dict[int, list[Post]] = defaultdict(list)  # step -> its receives, not handed over yet
    posted: dict[int, int] = {}  # number of a receive -> its step
    sends: list[Send] = []  # of one step

    def hand_over(step: int | None) -> None:
        """The sends so far with their step's receives, and then those of this step, if it is another."""
        for t in dict.fromkeys([*(send.step for send in sends), *([] if step is None else [step])]):
            _exchange([*(send for send in sends if send.step == t), *due.pop(t, [])], view, group)
        sends.clear()

    for do in made.program:
        match do:
            case Post():
                due[do.step].append(do)
                posted[do.number] = do.step
            case Send():
                if sends and sends[0].step != do.step:
                    hand_over(None)
                sends.append(do)
            case Wait(number):
                hand_over(posted.get(number))
            case _:
                _compute(do, view, op, p)


def _exchange(batch: list[Send | Post], view: Callable[[Span], torch.Tensor], group: dist.ProcessGroup) -> None:
    """One batch of sends and receives, done for whatever follows on the same stream; without any, nothing."""
    if not batch:
        return
    messages = [
        dist.P2POp(dist.irecv, view(do.into), group=group, group_peer=do.peer, tag=FIRST_TAG + do.step)
        if isinstance(do, Post)
        else dist.P2POp(dist.isend, _gathered(do, view), group=group, group_peer=do.peer, tag=FIRST_TAG + do.step)
        for do in batch
    ]
    try:
        for work in dist.batch_isend_irecv(messages):
            work.wait()
    except RuntimeError as error:
        raise _message_error(batch[0], error) from error


@lru_cache(maxsize=GROUPS)
def _first_collective(group: dist.ProcessGroup, device: torch.device) -> None:
    """NCCL connects all ranks of a group in its first call, which a batch that leaves some of them out must not be."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)


def _viewer(tensor: torch.Tensor, scratch: torch.Tensor) -> Callable[[Span], torch.Tensor]:
    return lambda span: (scratch if span.scratch else tensor)[span.start : span.stop]


def _compute(do: Fold | Finish, view: Callable[[Span], torch.Tensor], op: Any, p: int) -> None:
    if isinstance(do, Fold):
        _fold(view(do.into), [view(span) for span in do.operands], op)
    elif op == dist.ReduceOp.AVG:
        _divide(view(do.span), p)


def _start(do: Send | Post, view: Callable[[Span], torch.Tensor], group: dist.ProcessGroup) -> dist.Work | None:
    try:
        if isinstance(do, Post):
            return dist.irecv(view(do.into), group=group, group_src=do.peer, tag=FIRST_TAG + do.step)
        return dist.isend(_gathered(do, view), group=group, group_dst=do.peer, tag=FIRST_TAG + do.step)
    except RuntimeError as error:
        raise _message_error(do, error) from error


def _gathered(do: Send, view: Callable[[Span], torch.Tensor]) -> torch.Tensor:
    return view(do.spans[0]) if len(do.spans) == 1 else torch.cat([view(span) for span in do.spans])


def _wait(work: dist.Work | None, what: Send | Post) -> None:
    try:
        if work is not None:  # None only where this process is no member of the group, which is refused earlier
            work.wait()
    except RuntimeError as error:
        raise _message_error(what, error) from error


def _message_error(what: Send | Post, error: RuntimeError) -> MessageError:
    verb = "sending to" if isinstance(what, Send) else "receiving from"
    return MessageError(f"in step {what.step}, {verb} rank {what.peer}: {error}")


def _divide(span: torch.Tensor, p: int) -> None:
    span.div_(p, rounding_mode=None if span.is_floating_point() else "trunc")


def _fold(into: torch.Tensor, operands: list[torch.Tensor], op: Any) -> None:
    """Combine in the order given; half types in float32, rounded once."""
    if len(operands) == 1:
        into.copy_(operands[0])
    elif len(operands) == 2:
        COMBINE[op](*operands, out=into)
    else:
        total = operands[0].to(torch.float32 if into.dtype in HALF else into.dtype, copy=True)
        for operand in operands[1:]:
            COMBINE[op](total, operand, out=total)
        into.copy_(total)
