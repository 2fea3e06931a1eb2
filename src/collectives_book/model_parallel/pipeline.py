"""Pipeline parallelism on ranks: micro-batches pass through stages of layers, and gradients come back.

`pipeline_schedules` makes the list of a stage's actions. `step` performs it: a stage receives a
micro-batch's activations from the stage before it, computes, and sends its own to the next one;
backward, gradients travel the other way.

torch.distributed.pipelining performs the same actions in the same order, and the tests compare the
two. A stage of torch's posts its receive when it needs the micro-batch, so over gloo each message
waits for a round trip: on four emulated hosts with links of 5 ms, 16 micro-batches idle for a third
of the step by torch's schedules and for less than a quarter by ours, whose receives are posted
before a stage computes. Besides, torch takes micro-batches of one size only, and by 1F1B at least
as many as stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import distributed as dist

from collectives_book.model_parallel.pipeline_schedules import (
    BACKWARD,
    FORWARD,
    Action,
    TimedAction,
)
from collectives_book.training.clock import at_least, now


class Line(NamedTuple):
    """The number of this rank's stage, of how many, and the groups that carry activations and gradients.

    Stage i is rank i of both groups; None is torch's default group. Over NCCL the two directions
    need a group each, because NCCL performs what a group is asked for in one order.
    """

    stage: int
    stages: int
    activations: dist.ProcessGroup | None = None
    gradients: dist.ProcessGroup | None = None

    def way(self, kind: str) -> tuple[int | None, int | None, dist.ProcessGroup | None]:
        """Return the stage that sends to this one in a pass, the stage that this one sends to, and the group.

        None is no stage, because the line ends here.

        >>> Line(0, 3).way("forward"), Line(1, 3).way("backward")
        ((None, 1, None), (2, 0, None))
        """
        before = self.stage - 1 if self.stage > 0 else None
        after = self.stage + 1 if self.stage + 1 < self.stages else None
        if kind == FORWARD:
            return before, after, self.activations
        return after, before, self.gradients


class Part(NamedTuple):
    """The computing of one stage, and the shapes in which micro-batches pass from stage to stage.

    ``layers`` takes the stage's input to its output, ``loss`` the last stage's output of
    micro-batch i to its loss. ``empty(i)`` makes a tensor for the activations of micro-batch i,
    which have one shape between all stages. ``at_least`` are the seconds that a forward and a
    backward pass take at least: what is left of them the stage sleeps, in place of computing more.
    """

    layers: Callable[[torch.Tensor], torch.Tensor]
    loss: Callable[[torch.Tensor, int], torch.Tensor]
    empty: Callable[[int], torch.Tensor]
    at_least: Mapping[str, float] = {}


class Done(NamedTuple):
    """When a stage computed what, the losses in the order of the last stage's schedule, and the bytes it sent."""

    spans: list[TimedAction]
    losses: list[float]
    sent: int


def step(
    part: Part,
    order: Sequence[Action],
    line: Line,
    micro_batches: Sequence[torch.Tensor],
) -> Done:
    """Take one training step of this stage.

    ``micro_batches`` are the samples; only the first stage uses them. With the layers of all stages
    together it adds to the gradients of the weights what ``sum(loss(layers(x), i) for i, x in
    enumerate(micro_batches)).backward()`` adds. Each micro-batch costs a message from stage to
    stage in each direction.
    """
    stage = _Stage(part, line, micro_batches)
    receipt = stage.receive(order[0])
    for action, following in zip(order, [*order[1:], None], strict=True):
        if receipt is not None:
            receipt.wait()
        # Posted before this stage computes, so that the sender finds it there and need not wait for
        # it.
        receipt = None if following is None else stage.receive(following)
        stage.compute(action)
    for message, _ in stage.sent:
        message.wait()
    return Done(stage.spans, stage.losses, sum(x.nbytes for _, x in stage.sent))


def connect(line: Line, device: torch.device) -> None:
    """Send a number down the line and one back: NCCL connects two ranks when the first message passes between them."""
    number = torch.zeros(1, device=device)
    for kind in (FORWARD, BACKWARD):
        source, target, group = line.way(kind)
        if source is not None:
            dist.recv(number, group=group, group_src=source)
        if target is not None:
            dist.send(number, group=group, group_dst=target)


class _Stage:
    """The tensors that a stage holds during a step, by micro-batch."""

    def __init__(self, part: Part, line: Line, micro_batches: Sequence[torch.Tensor]) -> None:
        self.part, self.line, self.micro_batches = part, line, micro_batches
        # The stage's inputs, and the gradients of its outputs.
        self.received: dict[Action, torch.Tensor] = {}
        self.outputs: dict[int, torch.Tensor] = {}
        # A message, and what must not change until it is sent.
        self.sent: list[tuple[dist.Work, torch.Tensor]] = []
        self.spans: list[TimedAction] = []
        self.losses: list[float] = []

    def receive(self, action: Action) -> dist.Work | None:
        """Begin to receive what the action needs; return None if no other stage has it."""
        source, _, group = self.line.way(action.kind)
        if source is None:
            return None
        self.received[action] = self.part.empty(action.micro_batch)
        return dist.irecv(
            self.received[action],
            group=group,
            tag=action.micro_batch,
            group_src=source,
        )

    def compute(self, action: Action) -> None:
        """Compute, keep the time, and send the result on."""
        start = now()
        with at_least(self.part.at_least.get(action.kind, 0.0)):
            if action.kind == FORWARD:
                self._forward(action)
            else:
                self._backward(action)
        self.spans.append(TimedAction(action, start, now()))
        self._send(action)

    def _forward(self, action: Action) -> None:
        i = action.micro_batch
        received = self.received.get(action)
        x = self.micro_batches[i] if received is None else received.requires_grad_()
        self.outputs[i] = self.part.layers(x)
        if self.line.stage == self.line.stages - 1:
            self.outputs[i] = self.part.loss(self.outputs[i], i)
            self.losses.append(float(self.outputs[i].detach()))

    def _backward(self, action: Action) -> None:
        gradient = self.received.pop(action, None)
        self.outputs.pop(action.micro_batch).backward(gradient)  # type: ignore[no-untyped-call]

    def _send(self, action: Action) -> None:
        i = action.micro_batch
        _, target, group = self.line.way(action.kind)
        if target is None:
            return
        if action.kind == FORWARD:
            x = self.outputs[i].detach()
        else:
            x = cast(torch.Tensor, self.received.pop(Action(FORWARD, i)).grad)
        whole = x.contiguous()
        message = dist.isend(whole, group=group, tag=i, group_dst=target)
        self.sent.append((cast(dist.Work, message), whole))
