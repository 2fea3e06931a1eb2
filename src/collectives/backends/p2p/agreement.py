"""Ranks agree that all of them have made the same call, where a call alone does not show it to every rank.

The root of a broadcast receives nothing, so it would go on although another rank has failed, or calls a reduce.
"""

from __future__ import annotations

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
        _exchange(joined, list(range(1, p)), rank, p, step)
    distance = 1
    while distance < p:
        step += 1
        _exchange(joined, [distance], rank, p, step)
        distance *= 2


def _exchange(joined: Mesh, distances: list[int], rank: int, p: int, step: int) -> None:
    """One byte to the ranks that are so far ahead, and from those as far behind."""
    sent = [joined.send((rank + each) % p, step, [memoryview(b"\0")]) for each in distances]
    awaited = [joined.receive((rank - each) % p, step, memoryview(bytearray(1))) for each in distances]
    joined.finish([*awaited, *sent])
