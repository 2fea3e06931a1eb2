"""Pipeline parallelism: consecutive layers on consecutive ranks, and micro-batches that pass through them.

A stage receives a micro-batch's activations from the stage before it, computes, and sends its own to the next;
backward, gradients travel the other way. Which action comes when is a schedule's (`pipeline_schedule`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import distributed as dist

from collectives_book.model_parallel.pipeline_schedule import FORWARD, Action, Span


class Line(NamedTuple):
    """Which stage this rank is, of how many, and the groups that carry activations and gradients.

    Stage i is rank i of both groups; None is torch's default group. Over NCCL the two directions need a group each,
    because NCCL performs what a group is asked for in one order.
    """

    stage: int
    stages: int
    activations: dist.ProcessGroup | None = None
    gradients: dist.ProcessGroup | None = None


class Part(NamedTuple):
    """What one stage computes, and the shapes in which micro-batches pass from stage to stage.

    ``layers`` takes the stage's input to its output, ``loss`` the last stage's output of micro-batch i to its loss.
    ``empty(i)`` makes a tensor for the activations of micro-batch i, which have one shape between all stages.
    ``at_least`` are the seconds that a forward and a backward pass take at least: what is left of them the stage
    sleeps, in place of computing more.
    """

    layers: Callable[[torch.Tensor], torch.Tensor]
    loss: Callable[[torch.Tensor, int], torch.Tensor]
    empty: Callable[[int], torch.Tensor]
    at_least: Mapping[str, float] = {}


class Done(NamedTuple):
    """When a stage began and computed what, the losses in the order of the last stage's schedule, the bytes it sent."""

    began: float
    spans: list[Span]
    losses: list[float]
    sent: int


def step(part: Part, order: Sequence[Action], line: Line, micro_batches: Sequence[torch.Tensor]) -> Done:
    """One training step of this stage.

    ``micro_batches`` are the samples; only the first stage uses them. With the layers of all stages together it adds
    to the gradients of the weights what ``sum(loss(layers(x), i) for i, x in enumerate(micro_batches)).backward()``
    adds. Each micro-batch costs a message from stage to stage in each direction.
    """
    stage, began = _Stage(part, line, micro_batches), time.monotonic()
    receipt = stage.receive(order[0])
    for action, following in zip(order, [*order[1:], None], strict=True):
        if receipt is not None:
            receipt.wait()
        # Posted before this stage computes, so that the sender finds it there and need not wait for it.
        receipt = None if following is None else stage.receive(following)
        stage.compute(action)
    for message, _ in stage.sent:
        message.wait()
    return Done(began, stage.spans, stage.losses, sum(x.nbytes for _, x in stage.sent))


def connect(line: Line, device: torch.device) -> None:
    """Send a number down the line and one back: NCCL connects two ranks when the first message passes between them."""
    number = torch.zeros(1, device=device)
    for group, before, after in (
        (line.activations, line.stage - 1, line.stage + 1),
        (line.gradients, line.stage + 1, line.stage - 1),
    ):
        if 0 <= before < line.stages:
            dist.recv(number, group=group, group_src=before)
        if 0 <= after < line.stages:
            dist.send(number, group=group, group_dst=after)


class _Stage:
    """What a stage holds during a step, by micro-batch."""

    def __init__(self, part: Part, line: Line, micro_batches: Sequence[torch.Tensor]) -> None:
        self.part, self.line, self.micro_batches = part, line, micro_batches
        self.is_first, self.is_last = line.stage == 0, line.stage == line.stages - 1
        self.inputs: dict[int, torch.Tensor] = {}
        self.outputs: dict[int, torch.Tensor] = {}
        self.gradients: dict[int, torch.Tensor] = {}  # of the outputs
        self.sent: list[tuple[dist.Work, torch.Tensor]] = []  # a message, and what must not change until it is sent
        self.spans: list[Span] = []
        self.losses: list[float] = []

    def receive(self, action: Action) -> dist.Work | None:
        """Begin to receive what the action needs; None if this stage has it."""
        kind, i = action
        if kind == FORWARD:
            self.inputs[i] = self.micro_batches[i] if self.is_first else self.part.empty(i)
            return None if self.is_first else self._receive(self.inputs[i], -1, self.line.activations, i)
        if self.is_last:
            return None
        self.gradients[i] = self.part.empty(i)
        return self._receive(self.gradients[i], 1, self.line.gradients, i)

    def _receive(self, into: torch.Tensor, towards: int, group: dist.ProcessGroup | None, i: int) -> dist.Work | None:
        return dist.irecv(into, group=group, tag=i, group_src=self.line.stage + towards)

    def compute(self, action: Action) -> None:
        """Compute, keep the time, and send the result on."""
        start = self._now()
        (self._forward if action.kind == FORWARD else self._backward)(action.micro_batch)
        time.sleep(max(0.0, start + self.part.at_least.get(action.kind, 0.0) - self._now()))
        self.spans.append(Span(action, start, self._now()))
        self._send(action)

    def _forward(self, i: int) -> None:
        if not self.is_first:
            self.inputs[i].requires_grad_()
        self.outputs[i] = self.part.layers(self.inputs[i])
        if self.is_last:
            self.outputs[i] = self.part.loss(self.outputs[i], i)
            self.losses.append(float(self.outputs[i].detach()))

    def _backward(self, i: int) -> None:
        self.outputs.pop(i).backward(self.gradients.pop(i, None))  # type: ignore[no-untyped-call]

    def _send(self, action: Action) -> None:
        kind, i = action
        if kind == FORWARD and not self.is_last:
            self._send_to(1, self.outputs[i].detach(), self.line.activations, i)
        if kind != FORWARD and not self.is_first:
            self._send_to(-1, cast(torch.Tensor, self.inputs.pop(i).grad), self.line.gradients, i)

    def _send_to(self, towards: int, x: torch.Tensor, group: dist.ProcessGroup | None, i: int) -> None:
        whole = x.contiguous()
        message = dist.isend(whole, group=group, tag=i, group_dst=self.line.stage + towards)
        self.sent.append((cast(dist.Work, message), whole))

    def _now(self) -> float:
        """The clock that all processes of a machine share; a GPU has done by then what it was asked for."""
        if any(x.is_cuda for x in self.micro_batches[:1]):
            torch.cuda.synchronize()
        return time.monotonic()
