"""Execute one rank's program on CPU tensors, over TCP connections, or memory if ranks are threads.

The executor waits for each message by itself; tasks that do not need it go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from collectives.backends.p2p.connection import Message
from collectives.backends.p2p.program import AHEAD, Instruction, Plan, Recv, Reduce, Send, Span, Wait
from collectives.backends.p2p.reduce import HALF, as_array, divide, reduction
from collectives.backends.p2p.signature import NO_CALL
from collectives.backends.p2p.transport import Transport, transport


def execute(
    made: Plan,
    tensor: torch.Tensor,
    scratch: torch.Tensor,
    group: dist.ProcessGroup,
    op: Any,
    p: int,
    signature: bytes = NO_CALL,
    background: bool = False,
    finish: Callable[[Transport], None] | None = None,
) -> None:
    """Execute the program, each task as soon as its inputs are there; ``signature`` goes with every message.

    ``finish`` sends and receives what ends the call, over the same connections.
    """
    joined = transport(group, background)
    joined.begin(step_by_step=made.exchanges, signature=signature)
    try:
        _execute(made, tensor, scratch, joined, op, p)
        if finish:
            finish(joined)
    except BaseException as error:
        joined.fail(error)  # others may still send what this call has asked for: no later one may take it
        raise
    finally:
        joined.end()


def _execute(made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, joined: Transport, op: Any, p: int) -> None:
    """Run each task when the tasks before it are done; a task that waits for a message lets others run."""
    first, done, at = 0, bytearray(len(made.program)), [0] * len(made.program)
    ties, ready = list(made.ties), [i for i, earlier in enumerate(made.ties) if not earlier]
    aside: list[tuple[int, Message, int]] = []  # task, message, and how many bytes of it may be missing
    do = _doer(tensor, scratch if made.scratch else tensor, joined, op, p)
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
    tensor: torch.Tensor, scratch: torch.Tensor, joined: Transport, op: Any, p: int
) -> Callable[[Instruction], tuple[Message, int] | None]:
    """A function that executes one instruction, or returns the message and the bytes of it that may still be missing.

    A small call spends most of its time here, on a cold cache: touch only what is used.
    """
    size, messages = tensor.element_size(), dict[int, Message]()
    arrays = tensor.dtype not in HALF
    own, memory = _opened(tensor, arrays)
    more, more_memory = _opened(scratch, arrays) if scratch is not tensor else (own, memory)
    reduce, averages = reduction(op, arrays)

    def in_bytes(span: Span) -> memoryview:
        return (more_memory if span.scratch else memory)[span.start * size : span.stop * size]

    def view(span: Span) -> Any:
        return (more if span.scratch else own)[span.start : span.stop]

    def do(instruction: Instruction) -> tuple[Message, int] | None:
        if isinstance(instruction, Wait):
            message, missing = messages[instruction.number], instruction.missing * size
            return (message, missing) if message.left > missing else None
        if isinstance(instruction, Send):
            parts = [in_bytes(span) for span in instruction.spans]
            messages[instruction.number] = joined.send(instruction.peer, instruction.step, parts)
        elif isinstance(instruction, Recv):
            into = in_bytes(instruction.into)
            messages[instruction.number] = joined.receive(instruction.peer, instruction.step, into)
        elif isinstance(instruction, Reduce):
            reduce(view(instruction.into), [view(span) for span in instruction.operands])
        elif averages:
            divide((scratch if instruction.span.scratch else tensor)[instruction.span.start : instruction.span.stop], p)
        return None

    return do


def _opened(tensor: torch.Tensor, arrays: bool) -> tuple[Any, memoryview]:
    """What of a tensor is reduced, an array or itself, and its bytes."""
    array = as_array(tensor)
    return array if arrays else tensor, array.view(np.uint8).data
