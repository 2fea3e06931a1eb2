"""Ranks agree that all of them have made the same call, where a call alone does not show it to every rank.

The root of a broadcast receives nothing, so it would go on although another rank has failed, or calls a reduce.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives.backends.p2p.connection import AGREEMENT
from collectives.backends.p2p.mesh import Mesh


def agree(joined: Mesh, pairs: bool = False) -> None:
    """Return when every rank of the group is here, in the same call: a dissemination barrier, log2(p) messages long.

    In round i rank r hears from rank r - 2**i, which has heard from 2**i ranks by then. The messages carry the call's
    signature, as all do. With ``pairs`` each rank hears from every other one first, which finds a message that one of
    the two has not expected.
    """
    rank, p, step = joined.rank, joined.size, AGREEMENT
    if pairs:
        others = [*range(rank + 1, p), *range(rank)]
        exchange(joined, others, others, step)
    distance = 1
    while distance < p:
        step += 1
        exchange(joined, [(rank + distance) % p], [(rank - distance) % p], step)
        distance *= 2


def exchange(joined: Mesh, to: Sequence[int], came_from: Sequence[int], step: int) -> None:
    """One byte to these ranks, and from those."""
    sent = [joined.send(each, step, [memoryview(b"\0")]) for each in to]
    awaited = [joined.receive(each, step, memoryview(bytearray(1))) for each in came_from]
    joined.finish([*awaited, *sent])
