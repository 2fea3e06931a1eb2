"""Who waits for whom: ranks that wait in one call are waited for in another; at the end is a culprit, or a cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from collectives.logs.flight.groups import Wait


class Link(NamedTuple):
    """A rank that waits in a call for another rank."""

    rank: int
    wait: Wait
    other: int


def waiting_ranks(waits: Sequence[Wait]) -> set[int]:
    """All that wait in some call."""
    return {rank for wait in waits for rank in wait.waiting}


def cycles(waits: Sequence[Wait]) -> Iterator[list[Link]]:
    """Ranks each of which waits for the next, and the last for the first; no rank is in two of them.

    Ranks that wait for nobody are taken away, then those that waited for them alone, and so on; whatever is left
    leads into a cycle.
    """
    of: dict[int, list[Wait]] = {}
    for wait in waits:
        for rank in wait.waiting:
            of.setdefault(rank, []).append(wait)
    left = _left(waits, of)
    seen: set[int] = set()
    for start in sorted(left):
        path: dict[int, Link] = {}
        rank = start
        while rank not in seen:
            seen.add(rank)
            path[rank] = link = next(
                Link(rank, wait, other) for wait in of[rank] for other in wait.absent if other in left and other != rank
            )
            rank = link.other
        if rank in path:
            links = [*path.values()]
            yield links[[*path].index(rank) :]


def _left(waits: Sequence[Wait], of: dict[int, list[Wait]]) -> set[int]:
    """The ranks that wait for one of these ranks."""
    wanted: dict[int, list[int]] = {}  # by rank: the waits that it keeps others in, as places in `waits`
    for i, wait in enumerate(waits):
        for rank in wait.absent:
            wanted.setdefault(rank, []).append(i)
    open_waits = [sum(rank in of for rank in wait.absent) for wait in waits]  # those of it that wait themselves
    ways = dict.fromkeys(of, 0)
    for i, wait in enumerate(waits):
        for rank in wait.waiting:
            ways[rank] += open_waits[i] > 0
    done = [rank for rank, count in ways.items() if count == 0]
    left = set(of) - set(done)
    while done:
        for i in wanted.get(done.pop(), ()):
            open_waits[i] -= 1
            for rank in waits[i].waiting if open_waits[i] == 0 else ():
                ways[rank] -= 1
                if ways[rank] == 0:
                    left.discard(rank)
                    done.append(rank)
    return left
