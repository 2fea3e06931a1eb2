"""Ranks agree that all of them have made the same call, where a call alone does not show it to every rank.

The root of a broadcast receives nothing, so it would go on although another rank has failed, or calls a reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count

import torch

from collectives.engine.compile import as_plan
from collectives.engine.execute import execute
from collectives.engine.mesh import Mesh
from collectives.engine.message import AGREEMENT
from collectives.engine.program import Plan, Recv, Send, Span, Task, Wait

SENT, RECEIVED = Span(0, 1), Span(1, 2)


def agree(joined: Mesh, pairs: bool = False) -> None:
    """Return when every rank of the group is here, in the same call: a dissemination barrier, log2(p) messages long.

    In round i rank r hears from rank r - 2**i, which has heard from 2**i ranks by then. The messages carry the call's
    signature, as all do. With ``pairs`` each rank hears from every other one first, which finds a message that one of
    the two has not expected.
    """
    _exchange(joined, _barrier(joined.rank, joined.size, pairs))


def meet(joined: Mesh, ranks: Sequence[int]) -> None:
    """Send a byte to each of these ranks, and receive one, which connects them both ways."""
    _exchange(joined, _rounds([(ranks, ranks)]))


@cache
def _barrier(rank: int, p: int, pairs: bool) -> Plan:
    others, distances = [*range(rank + 1, p), *range(rank)], [1 << i for i in range((p - 1).bit_length())]
    rounds = [([(rank + distance) % p], [(rank - distance) % p]) for distance in distances]
    return _rounds([(others, others), *rounds] if pairs else rounds)


def _rounds(rounds: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Plan:
    """A byte to the ranks, and from the ranks, of each round; one round after the other."""
    tasks, numbers = list[Task](), count()
    for i, (to, came_from) in enumerate(rounds):
        sends = [Send(next(numbers), each, AGREEMENT + i, (SENT,)) for each in to]
        receives = [Recv(next(numbers), each, AGREEMENT + i, RECEIVED) for each in came_from]
        waits = [Wait(do.number) for do in receives] + [Wait(do.number) for do in sends]
        tasks.append(Task((*sends, *receives, *waits), (i - 1,) if i else ()))
    return as_plan(tuple(tasks))


def _exchange(joined: Mesh, made: Plan) -> None:
    memory = torch.zeros(2, dtype=torch.uint8)
    execute(made, memory, None, joined, None)
