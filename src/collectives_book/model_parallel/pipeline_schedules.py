"""Pipeline schedules: what each stage does with which micro-batch, in which order, and when.

A *stage* is some layers of a model, on one rank. A batch is cut into *micro-batches*, so that one
stage can work on one of them while the next works on another. What a stage does is a list of
actions, made before anything runs: `timetable` shows that all stages end and when each action runs.
A stage idles until the first micro-batch arrives, and again until the gradients come back: the
*bubble*. The schedules differ in the bubble, and in the activations that a stage has to keep.

Sources: Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", 2019 (one forward, one
backward); Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", 2021, section 2.2 (interleaved); Qi et al., "Zero Bubble Pipeline Parallelism", 2023,
section 2 (ZB-H1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"
# The second half of a backward pass where it is cut in two: the first half makes the gradients of
# the activations, for which another stage waits, and this one those of the weights.
WEIGHTS = "weights"


class Action(NamedTuple):
    """A stage's work on one micro-batch: the forward or the backward pass of one of its chunks of layers."""

    kind: str
    micro_batch: int
    chunk: int = 0


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


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int = 2) -> list[Action]:
    """Return one forward, one backward with several chunks of layers on a stage.

    Chunk c of stage i has layers number c s + i, so a micro-batch passes all stages once for each
    chunk. A pass through a chunk is short, so the bubble is: a share of (s - 1) / (c m + s - 1) for
    c chunks. Each micro-batch crosses c times as many links, and a stage keeps more of them. Raises
    ValueError unless the micro-batches fill rounds of ``stages``.

    >>> ["".join(map(str, (action.kind[0], action.micro_batch, action.chunk))) for action in interleaved(1, 2, 2)]
    ['f00', 'f10', 'f01', 'b01', 'f11', 'b11', 'b00', 'b10']
    """
    if micro_batches % stages:
        raise ValueError(
            f"interleaved: got {micro_batches} micro-batches, expected a multiple of the {stages} stages"
        )
    total = micro_batches * chunks
    ahead = min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)
    made = [_interleaved(FORWARD, nth, stages, chunks) for nth in range(ahead)]
    for nth in range(total):
        if ahead + nth < total:
            made.append(_interleaved(FORWARD, ahead + nth, stages, chunks))
        made.append(_interleaved(BACKWARD, nth, stages, chunks))
    return made


def _interleaved(kind: str, nth: int, stages: int, chunks: int) -> Action:
    """Return a stage's nth pass of a kind: a round of micro-batches through one chunk, then through the next."""
    rounds, place = divmod(nth, stages * chunks)
    chunk, micro_batch = divmod(place, stages)
    if kind == BACKWARD:
        chunk = chunks - 1 - chunk
    return Action(kind, rounds * stages + micro_batch, chunk)


def zero_bubble(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Return one forward, one backward, with the gradients of weights made where a stage would idle (ZB-H1).

    Nobody waits for these, so stage i makes them i micro-batches later. If a forward pass and the
    halves of a backward pass take equally long, the bubble is a third of 1F1B's, and each stage
    keeps ``stages`` micro-batches, as the first one does by 1F1B.

    >>> [f"{action.kind[0]}{action.micro_batch}" for action in zero_bubble(1, 2, 3)]
    ['f0', 'b0', 'f1', 'b1', 'w0', 'f2', 'b2', 'w1', 'w2']
    """
    made = []
    for action in one_forward_one_backward(stage, stages, micro_batches):
        made.append(action)
        if action.kind == BACKWARD and action.micro_batch >= stage:
            made.append(Action(WEIGHTS, action.micro_batch - stage))
    late = range(max(0, micro_batches - stage), micro_batches)
    return made + [Action(WEIGHTS, micro_batch) for micro_batch in late]


# The schedules that `pipeline.step` runs, by name: stage, stages and micro-batches to actions.
SCHEDULES: Mapping[str, Callable[[int, int, int], list[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Return the share of a step that a stage idles: (s - 1) / (c m + s - 1), for equal stages and free messages.

    A pass through one chunk takes a unit of time; the last stage begins s - 1 units late, and the
    first ends late.

    >>> bubble(4, 1), bubble(4, 12), bubble(1, 3), bubble(4, 12, chunks=2)
    (0.75, 0.2, 0.0, 0.1111111111111111)
    """
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def kept(order: Sequence[Action]) -> int:
    """Return the most activations that a stage has to keep at a time, counted in passes.

    They are made by a forward pass, and needed until the gradients of the weights are there: until
    the backward pass, or its second half.

    >>> kept(gpipe(0, 2, 8)), kept(one_forward_one_backward(0, 2, 8)), kept(zero_bubble(1, 2, 8))
    (8, 2, 2)
    """
    is_cut = any(action.kind == WEIGHTS for action in order)
    last = WEIGHTS if is_cut else BACKWARD
    change = {FORWARD: 1, last: -1}
    return max(accumulate(change.get(action.kind, 0) for action in order))


def timetable(
    orders: Sequence[Sequence[Action]],
    seconds: Mapping[str, float],
    message: float = 0.0,
) -> list[list[TimedAction]]:
    """Return when each stage runs each action: as soon as the one before has ended and what it needs has arrived.

    ``orders`` are the actions of each stage, ``seconds`` the time of an action of each kind,
    ``message`` the time of a message. Raises ValueError, before anything runs, for stages
    that would wait for each other for ever.

    >>> table = timetable([gpipe(stage, 2, 1) for stage in range(2)], {"forward": 1.0, "backward": 2.0})
    >>> [(span.action.kind, span.start, span.end) for span in table[0]]
    [('forward', 0.0, 1.0), ('backward', 4.0, 6.0)]
    """
    ended: dict[tuple[int, Action], float] = {}
    table: list[list[TimedAction]] = [[] for _ in orders]
    chunks = 1 + max((action.chunk for action in chain(*orders)), default=0)
    left = sum(len(order) for order in orders)
    while left:
        left_before = left
        for stage, order in enumerate(orders):
            if len(table[stage]) == len(order):
                continue
            action = order[len(table[stage])]
            needed = _needed(stage, len(orders), action, chunks)
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
            action = order[len(done)]
            waiting.append(
                f"stage {stage} waits for ever to run {action.kind} {action.micro_batch}"
            )
    return ", ".join(waiting)


def _needed(stage: int, stages: int, action: Action, chunks: int) -> list[tuple[int, Action]]:
    """Return what has to end before an action can start, beside the action before it on its stage."""
    kind, micro_batch, chunk = action
    if kind == WEIGHTS:
        return [(stage, Action(BACKWARD, micro_batch, chunk))]
    # Consecutive layers lie on consecutive stages, and after the last stage on the first again.
    place = chunk * stages + stage
    if kind == FORWARD:
        neighbour = place - 1
        needed = []
    else:
        neighbour = place + 1
        needed = [(stage, Action(FORWARD, micro_batch, chunk))]
    if 0 <= neighbour < stages * chunks:
        needed.append((neighbour % stages, Action(kind, micro_batch, neighbour // stages)))
    return needed
