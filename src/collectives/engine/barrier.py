"""The barrier of a call: all ranks have made it, where the call alone does not show that to every rank.

The root of a broadcast receives nothing, so it would go on although another rank has failed, or calls a reduce.
"""

from __future__ import annotations

from functools import cache
from itertools import count

import torch

from collectives.engine.compile import as_plan
from collectives.engine.handshake import BARRIER
from collectives.engine.mesh import Mesh
from collectives.engine.program import Plan, Recv, Send, Span, Task, Wait
from collectives.engine.tcp.execute import execute

SENT, RECEIVED = Span(0, 1), Span(1, 2)


def barrier(mesh: Mesh, pairs: bool = False) -> None:
    """Return when every rank of the group is here, in the same call: a dissemination barrier, log2(p) messages long.

    In round i rank r hears from rank r - 2**i, which has heard from 2**i ranks by then. The messages carry the call's
    signature, as all do. With ``pairs`` each rank hears from every other one first, which finds a message that one of
    the two has not expected.
    """
    execute(_plan(mesh.rank, mesh.size, pairs), torch.zeros(2, dtype=torch.uint8), None, mesh, None)


@cache
def _plan(rank: int, p: int, pairs: bool) -> Plan:
    """Return a byte to the ranks, and from the ranks, of each round; one round after the other."""
    others, distances = [*range(rank + 1, p), *range(rank)], [1 << i for i in range((p - 1).bit_length())]
    rounds = [([(rank + distance) % p], [(rank - distance) % p]) for distance in distances]
    tasks, numbers = list[Task](), count()
    for i, (targets, sources) in enumerate([(others, others), *rounds] if pairs else rounds):
        sends = [Send(next(numbers), each, BARRIER + i, (SENT,)) for each in targets]
        receives = [Recv(next(numbers), each, BARRIER + i, RECEIVED) for each in sources]
        waits = [Wait(do.number) for do in receives] + [Wait(do.number) for do in sends]
        tasks.append(Task((*sends, *receives, *waits), (i - 1,) if i else ()))
    return as_plan(tuple(tasks))
