"""Pipeline parallelism: consecutive layers on consecutive ranks, and micro-batches that pass through them.

A *stage* is some consecutive layers of a model, on one rank. A batch is cut into *micro-batches*,
so that one stage can work on one of them while the next works on another. What a stage does is a
list of actions, made before anything runs: `timetable` shows that all stages end and when each
action runs. `step` performs them: a stage receives a micro-batch's activations from the stage
before it, computes, and sends its own to the next; backward, gradients travel the other way.

A stage idles until the first micro-batch arrives, and again until the gradients come back: the
*bubble*.

torch.distributed.pipelining performs the same actions in the same order, and the tests compare the
two. A stage of torch's posts its receive when it needs the micro-batch, so over gloo each message
waits for a round trip: on four emulated hosts with links of 5 ms, 16 micro-batches idle for a third
of the step by torch's schedules and for less than a quarter by ours, whose receives are posted
before a stage computes. Besides, torch takes micro-batches of one size only, and by 1F1B at least
as many as stages.

Sources: Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", 2019 (one forward, one
backward).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import distributed as dist

from collectives_book.training.clock import at_least, now

FORWARD, BACKWARD = "forward", "backward"


class Action(NamedTuple):
    """A stage's work on one micro-batch: the forward or the backward pass."""

    kind: str
    micro_batch: int


class TimedAction(NamedTuple):
    """An action, and from when to when it computed, in seconds."""

    action: Action
    start: float
    end: float


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Return all forward passes, then all backward passes: a stage keeps the activations of every micro-batch.

    >>> [f"{action.kind[0]}{action.micro_batch}" for action in gpipe(0, 2, 3)]
    ['f0', 'f1', 'f2', 'b0', 'b1', 'b2']
    """
    del stage, stages
    forward = [Action(FORWARD, i) for i in range(micro_batches)]
    backward = [Action(BACKWARD, i) for i in range(micro_batches)]
    return forward + backward


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Return a backward pass as soon as a stage can go backward: it keeps ``stages - stage`` micro-batches at most.

    >>> [f"{action.kind[0]}{action.micro_batch}" for action in one_forward_one_backward(0, 2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = min(stages - stage, micro_batches)
    made = [Action(FORWARD, i) for i in range(ahead)]
    for i in range(micro_batches):
        made.append(Action(BACKWARD, i))
        if ahead + i < micro_batches:
            made.append(Action(FORWARD, ahead + i))
    return made


# A schedule says what a stage of how many does with how many micro-batches.
SCHEDULES: Mapping[str, Callable[[int, int, int], list[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}


def bubble(stages: int, micro_batches: int) -> float:
    """Return the share of a step that a stage idles: (s - 1) / (m + s - 1), for equal stages and messages without cost.

    A pass through one stage takes a unit of time; the last stage begins s - 1 units late, and the
    first ends late.

    >>> bubble(4, 1), bubble(4, 12), bubble(1, 3)
    (0.75, 0.2, 0.0)
    """
    return (stages - 1) / (micro_batches + stages - 1)


def kept(order: Sequence[Action]) -> int:
    """Return the most micro-batches that are forward and not yet backward, whose activations a stage has to keep.

    >>> kept(gpipe(0, 2, 8)), kept(one_forward_one_backward(0, 2, 8))
    (8, 2)
    """
    return max(accumulate(1 if action.kind == FORWARD else -1 for action in order))


def timetable(
    orders: Sequence[Sequence[Action]],
    seconds: Mapping[str, float],
    message: float = 0.0,
) -> list[list[TimedAction]]:
    """Return when each stage runs each action: as soon as the one before has ended and what it needs has arrived.

    ``orders`` are the actions of each stage, ``seconds`` the time of a forward and of a backward
    pass, ``message`` the time of a message. Raises ValueError, before anything runs, for stages
    that would wait for each other for ever.

    >>> table = timetable([gpipe(stage, 2, 1) for stage in range(2)], {"forward": 1.0, "backward": 2.0})
    >>> [(span.action.kind, span.start, span.end) for span in table[0]]
    [('forward', 0.0, 1.0), ('backward', 4.0, 6.0)]
    """
    ended: dict[tuple[int, Action], float] = {}
    table: list[list[TimedAction]] = [[] for _ in orders]
    left = sum(len(order) for order in orders)
    while left:
        left_before = left
        for stage, order in enumerate(orders):
            if len(table[stage]) == len(order):
                continue
            action = order[len(table[stage])]
            needed = _needed(stage, len(orders), action)
            if not all(pair in ended for pair in needed):
                continue
            # A stage is free when its last action has ended.
            start = table[stage][-1].end if table[stage] else 0.0
            for other, earlier in needed:
                delay = message if other != stage else 0.0
                start = max(start, ended[other, earlier] + delay)
            end = start + seconds[action.kind]
            ended[stage, action] = end
            table[stage].append(TimedAction(action, start, end))
            left -= 1
        if left == left_before:
            raise ValueError(f"pipeline: {_stuck(orders, table)}, expected that every stage ends")
    return table


def _stuck(orders: Sequence[Sequence[Action]], table: Sequence[Sequence[TimedAction]]) -> str:
    """Return which stages wait, and for the turn of which action."""
    waiting = []
    for stage, (order, done) in enumerate(zip(orders, table, strict=True)):
        if len(done) < len(order):
            kind, i = order[len(done)]
            waiting.append(f"stage {stage} waits for ever to run {kind} {i}")
    return ", ".join(waiting)


def _needed(stage: int, stages: int, action: Action) -> list[tuple[int, Action]]:
    """Return what has to end before an action can start, beside the action before it on its stage."""
    if action.kind == FORWARD:
        return [(stage - 1, action)] if stage > 0 else []
    own = (stage, Action(FORWARD, action.micro_batch))
    return [own, (stage + 1, action)] if stage + 1 < stages else [own]


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
