"""Execute one rank's program on CPU tensors: messages over TCP, and stages in memory that the ranks of a host share.

The executor waits for each message by itself; tasks that do not need it go on meanwhile. This one, in Python, is the
reference, and serves where there is no numba. `loop` does the same in compiled code. One of the two executes a whole
call: this one paces exchanges of long messages, encodes messages (`coded`), and reduces what `loop` has no kernel for.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch

from collectives.backends.p2p import local
from collectives.backends.p2p.coded import coded_executor
from collectives.backends.p2p.connection import Message
from collectives.backends.p2p.mesh import Mesh
from collectives.backends.p2p.prepared import Prepared
from collectives.backends.p2p.program import AHEAD, COMPILED, PYTHON, Instruction, Plan, Recv, Reduce, Send, Span, Wait
from collectives.backends.p2p.reduce import HALF, as_array, divide, reduction


def execute(
    made: Prepared,
    tensor: torch.Tensor,
    scratch: torch.Tensor,
    joined: Mesh,
    op: Any,
    finish: Callable[[Mesh], None] | None = None,
) -> str:
    """Send and receive what is prepared, each task as soon as its inputs are there.

    Every message carries the call's signature. ``finish`` sends and receives what ends the call, over the same
    connections. Returns the executor's name.
    """
    with joined.begin(made.plan.exchanges, made.signature):
        if joined.segment:
            local.published().enter(joined)
        used = _execute(made.plan, made.wire, tensor, scratch, joined, op)
        if finish:
            finish(joined)
    return used


def execute_stages(
    made: Prepared, tensors: Any, scratch: torch.Tensor | None, joined: Mesh, op: Any, agreed: bool
) -> str:
    """Execute the stages one after the other; with ``agreed`` no rank of a host returns before all have made the call.

    ``tensors`` are those of published buffers, the last of which messages come to. Returns the executor's name.
    """
    used, sending = COMPILED, [stage for stage in made.stages if isinstance(stage, Plan)]
    with joined.begin(any(stage.exchanges for stage in sending), made.signature):
        for stage in made.stages:
            if isinstance(stage, Plan):
                used = _execute(stage, None, tensors[-1], scratch, joined, op)
            else:
                local.published().execute(stage, tensors, joined, agreed)
    return used


def _execute(
    plan: Plan, wire: str | None, tensor: torch.Tensor, scratch: torch.Tensor | None, joined: Mesh, op: Any
) -> str:
    """In compiled code if it is there and takes this call, otherwise in Python. Returns the executor's name."""
    compiled = local.loop()
    if scratch is None or not plan.scratch:
        scratch = tensor
    joined.connect(plan.first_sends)
    kernels = not wire and compiled and compiled.takes(plan, tensor, joined, op)
    if not kernels:
        _execute_in_python(plan, tensor, scratch, joined, op, wire)
        return PYTHON
    compiled.execute(plan, tensor, scratch, joined, kernels)
    return COMPILED


def _execute_in_python(
    made: Plan, tensor: torch.Tensor, scratch: torch.Tensor, joined: Mesh, op: Any, wire: str | None
) -> None:
    """Run each task when the tasks before it are done; a task that waits for a message lets others run.

    ``ready`` is a heap of the tasks that may run, and ``at`` each task's next instruction.
    """
    undone = [len(task.after) for task in made.program]  # of each task, how many before it are not done
    ready = [i for i, tasks in enumerate(undone) if not tasks]
    first, at, done = 0, [0] * len(made.program), bytearray(len(made.program))  # the first task that is not done
    messages: dict[int, Message] = {}  # by number
    blocked: list[tuple[int, Message, int]] = []  # task, message, and how many bytes of it may be missing
    execute_instruction = _executor_of(tensor, scratch, joined, op, messages)
    if wire:
        execute_instruction = coded_executor(wire, tensor, scratch, joined, messages, execute_instruction)
    while ready or blocked:
        while ready and ready[0] < first + AHEAD:
            i = heappop(ready)
            for instruction in made.program[i].instructions[at[i] :]:
                if wanted := execute_instruction(instruction):
                    blocked.append((i, *wanted))
                    break
                at[i] += 1
            else:
                done[i] = True
                while first < len(done) and done[first]:
                    first += 1
                for follower in made.followers[i]:
                    undone[follower] -= 1
                    if not undone[follower]:
                        heappush(ready, follower)
        if blocked:
            if all(message.left > missing for _, message, missing in blocked):
                joined.wait([message for _, message, _ in blocked])
            for each in blocked:
                if each[1].left <= each[2]:
                    heappush(ready, each[0])
            blocked = [each for each in blocked if each[1].left > each[2]]


def _executor_of(
    tensor: torch.Tensor, scratch: torch.Tensor, joined: Mesh, op: Any, messages: dict[int, Message]
) -> Callable[[Instruction], tuple[Message, int] | None]:
    """A function that executes one instruction, or returns the message and the bytes of it that may still be missing.

    A small call spends most of its time here, on a cold cache: touch only what is used.
    """
    size = tensor.element_size()
    arrays = tensor.dtype not in HALF
    own, memory = _opened(tensor, arrays)
    more, more_memory = _opened(scratch, arrays) if scratch is not tensor else (own, memory)
    reduce, averages = reduction(op, arrays)

    def in_bytes(span: Span) -> memoryview:
        return (more_memory if span.scratch else memory)[span.start * size : span.stop * size]

    def view(span: Span) -> Any:
        return (more if span.scratch else own)[span.start : span.stop]

    def execute_instruction(instruction: Instruction) -> tuple[Message, int] | None:
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
            span = instruction.span
            divide((scratch if span.scratch else tensor)[span.start : span.stop], joined.size)
        return None

    return execute_instruction


def _opened(tensor: torch.Tensor, arrays: bool) -> tuple[Any, memoryview]:
    """What of a tensor is reduced, an array or itself, and its bytes."""
    array = as_array(tensor)
    return array if arrays else tensor, array.view(np.uint8).data


local.published()  # before ranks are forked, and not while others wait for this one
