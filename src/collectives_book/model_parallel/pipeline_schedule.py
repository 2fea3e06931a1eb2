"""Schedules of a pipeline: which micro-batch a stage takes forward or backward, in which order, and when.

A *stage* is some consecutive layers of a model, on one rank. A batch is cut into *micro-batches*, so that one stage can
work on one of them while the next works on another. What a stage does is a list of actions, made before anything runs:
`timetable` shows that all stages end and when each action runs, and `pipeline` executes it.

A stage idles until the first micro-batch arrives, and again until the gradients come back: the *bubble*.

Sources: Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", 2019 (one forward, one backward).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"


class Action(NamedTuple):
    """What a stage does with one micro-batch: the forward or the backward pass."""

    kind: str
    micro_batch: int


class Span(NamedTuple):
    """An action, and from when to when it computed, in seconds."""

    action: Action
    start: float
    end: float


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """All forward passes, then all backward passes: a stage keeps the activations of every micro-batch.

    >>> [f"{action.kind[0]}{action.micro_batch}" for action in gpipe(0, 2, 3)]
    ['f0', 'f1', 'f2', 'b0', 'b1', 'b2']
    """
    del stage, stages
    return [Action(kind, i) for kind in (FORWARD, BACKWARD) for i in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """As soon as a stage can go backward it does: it keeps the activations of ``stages - stage`` micro-batches at most.

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
    """The share of a step in which a stage idles: (s - 1) / (m + s - 1), for equal stages and messages without cost.

    A pass through one stage takes a unit of time; the last stage begins s - 1 units late, and the first ends late.

    >>> bubble(4, 1), bubble(4, 12), bubble(1, 3)
    (0.75, 0.2, 0.0)
    """
    return (stages - 1) / (micro_batches + stages - 1)


def kept(order: Sequence[Action]) -> int:
    """The most micro-batches that have gone forward and not yet backward, whose activations a stage has to keep.

    >>> kept(gpipe(0, 2, 8)), kept(one_forward_one_backward(0, 2, 8))
    (8, 2)
    """
    return max(accumulate(1 if action.kind == FORWARD else -1 for action in order))


def timetable(
    orders: Sequence[Sequence[Action]], seconds: Mapping[str, float], message: float = 0.0
) -> list[list[Span]]:
    """When each stage runs each action: as soon as the one before it has ended and what it needs has arrived.

    ``orders`` are the actions of each stage, ``seconds`` the time of a forward and of a backward pass, ``message`` the
    time of a message. Raises ValueError, before anything runs, for stages that would wait for each other for ever.

    >>> table = timetable([gpipe(stage, 2, 1) for stage in range(2)], {"forward": 1.0, "backward": 2.0})
    >>> [(span.action.kind, span.start, span.end) for span in table[0]]
    [('forward', 0.0, 1.0), ('backward', 4.0, 6.0)]
    """
    ended: dict[tuple[int, Action], float] = {}
    table: list[list[Span]] = [[] for _ in orders]
    while left := [stage for stage, order in enumerate(orders) if len(table[stage]) < len(order)]:
        before = len(ended)
        for stage in left:
            action = orders[stage][len(table[stage])]
            needed = _needed(stage, len(orders), action)
            if all(each in ended for each in needed):
                arrived = [ended[each] + (message if each[0] != stage else 0.0) for each in needed]
                start = max([0.0, *arrived, *(span.end for span in table[stage][-1:])])
                ended[stage, action] = start + seconds[action.kind]
                table[stage].append(Span(action, start, ended[stage, action]))
        if len(ended) == before:
            raise ValueError(f"pipeline: {_stuck(orders, table)}, expected an order in which every stage ends")
    return table


def _needed(stage: int, stages: int, action: Action) -> list[tuple[int, Action]]:
    """What has to end before an action can start, beside the action before it on its stage."""
    if action.kind == FORWARD:
        return [(stage - 1, action)] if stage > 0 else []
    own = (stage, Action(FORWARD, action.micro_batch))
    return [own, (stage + 1, action)] if stage + 1 < stages else [own]


def _stuck(orders: Sequence[Sequence[Action]], table: Sequence[Sequence[Span]]) -> str:
    waiting = [
        (stage, order[len(table[stage])]) for stage, order in enumerate(orders) if len(table[stage]) < len(order)
    ]
    return ", ".join(f"stage {stage} waits for ever to run {kind} {i}" for stage, (kind, i) in waiting)
