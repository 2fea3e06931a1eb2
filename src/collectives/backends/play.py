"""Playing one rank's program: sending, receiving and adding up.

`play` is for CPU tensors and a mesh of TCP connections: each message is waited for by itself. `play_in_batches` is for
CUDA tensors and NCCL, through ``torch.distributed``'s point-to-point messages: all those of a step are one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends.mesh import Mesh, Message, mesh
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
    joined = mesh(group)
    joined.begin()
    try:
        _carry_out(made, tensor, scratch, joined, op, p)
    except BaseException:
        joined.close()  # others may still send what this call has asked for: no later one may take it for its own
        raise


def _carry_out(made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, joined: Mesh, op: Any, p: int) -> None:
    waiting: dict[int, Message] = {}
    view, memory = _viewer(tensor, scratch), _in_bytes(tensor, scratch)
    for do in made.program:
        match do:
            case Send():
                waiting[do.number] = joined.send(do.peer, do.step, [memory(span) for span in do.spans])
            case Wait(number):
                _wait(waiting.pop(number), joined)
            case Post():
                waiting[do.number] = joined.receive(do.peer, do.step, memory(do.into))
            case _:
                _compute(do, view, op, p)


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
        first = batch[0]
        raise _message_error(isinstance(first, Send), first.step, first.peer, error) from error


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


def _gathered(do: Send, view: Callable[[Span], torch.Tensor]) -> torch.Tensor:
    return view(do.spans[0]) if len(do.spans) == 1 else torch.cat([view(span) for span in do.spans])


def _in_bytes(tensor: torch.Tensor, scratch: torch.Tensor) -> Callable[[Span], memoryview]:
    """The same as `_viewer`, but of the bytes in memory."""
    size = tensor.element_size()
    flat = (each.detach().as_strided(each.shape, (1,)) for each in (tensor, scratch))  # of one element torch may say 0
    whole, more = (memoryview(each.view(torch.uint8).numpy().data) for each in flat)
    return lambda span: (more if span.scratch else whole)[span.start * size : span.stop * size]


def _wait(message: Message, joined: Mesh) -> None:
    try:
        joined.wait(message)
    except OSError as error:
        raise _message_error(message.is_sent, message.step, message.peer, error) from error


def _message_error(is_sent: bool, step: int, peer: int, error: Exception) -> MessageError:
    verb = "sending to" if is_sent else "receiving from"
    return MessageError(f"in step {step}, {verb} rank {peer}: {error}")


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
