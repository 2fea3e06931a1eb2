"""Playing one rank's program: sending, receiving and adding up.

`play` is for CPU tensors and a mesh of TCP connections: each message is waited for by itself, and whatever does not
need it goes on meanwhile. `play_in_batches` is for CUDA tensors and NCCL, through ``torch.distributed``'s
point-to-point messages: all those of a step are one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends.mesh import Mesh, Message, MessageError, mesh
from collectives.backends.program import AHEAD, Finish, Fold, Instruction, Plan, Post, Send, Span, Wait

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


def play(made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, group: dist.ProcessGroup, op: Any, p: int) -> None:
    """Carry out the program, each task as soon as it can be."""
    joined = mesh(group)
    joined.begin()
    try:
        _carry_out(made, tensor, scratch, joined, op, p)
    except BaseException:
        joined.close()  # others may still send what this call has asked for: no later one may take it for its own
        raise


def _carry_out(made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, joined: Mesh, op: Any, p: int) -> None:
    """Each task as soon as those that it comes after are done; what waits for a message stands aside meanwhile."""
    first, done, at = 0, bytearray(len(made.program)), [0] * len(made.program)
    ties = [len(task.after) for task in made.program]
    ready = [i for i, earlier in enumerate(ties) if not earlier]
    aside: list[tuple[int, Message, int]] = []  # task, message, and how many bytes of it may be missing
    do = _doer(tensor, scratch, joined, op, p)
    while ready or aside:
        while ready and ready[0] < first + AHEAD:
            i = heappop(ready)
            for instruction in made.program[i].instructions[at[i] :]:
                if wanted := do(instruction):
                    aside.append((i, *wanted))
                    break
                at[i] += 1
            else:
                done[i] = True
                while first < len(done) and done[first]:
                    first += 1
                for follower in made.followers[i]:
                    ties[follower] -= 1
                    if not ties[follower]:
                        heappush(ready, follower)
        if aside:
            joined.wait([message for _, message, _ in aside])
            for each in aside:
                if each[1].left <= each[2]:
                    heappush(ready, each[0])
            aside = [each for each in aside if each[1].left > each[2]]


def _doer(
    tensor: torch.Tensor, scratch: torch.Tensor, joined: Mesh, op: Any, p: int
) -> Callable[[Instruction], tuple[Message, int] | None]:
    """What carries out one instruction, or says for which message, but so many bytes, it has to wait."""
    view, memory, size = _viewer(tensor, scratch), _in_bytes(tensor, scratch), tensor.element_size()
    messages: dict[int, Message] = {}

    def do(instruction: Instruction) -> tuple[Message, int] | None:
        if isinstance(instruction, Wait):
            message, missing = messages[instruction.number], instruction.missing * size
            return (message, missing) if message.left > missing else None
        if isinstance(instruction, Send):
            parts = [memory(span) for span in instruction.spans]
            messages[instruction.number] = joined.send(instruction.peer, instruction.step, parts)
        elif isinstance(instruction, Post):
            messages[instruction.number] = joined.receive(instruction.peer, instruction.step, memory(instruction.into))
        else:
            _compute(instruction, view, op, p)
        return None

    return do


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

    for do in made.instructions():
        match do:
            case Post():
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
        raise MessageError(isinstance(first, Send), first.step, first.peer, error) from error


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
