"""Broadcast and reduce in the fewest rounds for any number of segments: a new segment leaves the root in each.

    p = 9: distances 1, 2, 3, 5 (each the half of the next, rounded up, and the last of p), then 1,
    2, 3, 5 again

Every rank sends at the same distance in a round, so all ports work; what differs is which segment a
rank passes on (Träff 2023, Round-optimal n-Block Broadcast Schedules in Logarithmic Time; 2024, for
reduce).
"""

from functools import lru_cache

import numpy as np

from collectives.core.schedule import Ints, Schedule, Step, column, reverse


def broadcast(p: int, root: int = 0, segments: int = 1) -> Schedule:
    """Send each segment exactly once to every rank: in round k each rank sends to the one ``distances[k]`` further on.

    Steps: s-1 + ceil(log2 p) for s segments, the least there is (Bar-Noy and Kipnis 1994): in each
    step one segment leaves the root, and the last one needs ceil(log2 p). Bytes a rank receives: n;
    a rank other than the root sends about as many. With one segment that is a binomial tree's time.

    >>> broadcast(5, segments=3).nsteps, broadcast(1000, segments=100).nsteps
    (5, 109)
    >>> list(broadcast(3, segments=2).steps())
    [Step(0->2:=0), Step(0->1:=1), Step(2->1:=0, 0->2:=1)]
    """
    skips, received = distances(p), receives(p)
    rounds, rank = len(skips), np.arange(1, p)
    # Whole phases: the first begins with rounds in which nothing is due.
    first = -(segments - 1) % max(1, rounds)

    def make(t: int) -> Step:
        phase, k = divmod(t + first, rounds)
        segment = np.minimum(received[1:, k] + phase * rounds - first, segments - 1)
        to = rank[segment >= 0]
        return Step((to - skips[k] + root) % p, (to + root) % p, segment[segment >= 0])

    return Schedule("broadcast", p, segments, segments - 1 + rounds if p > 1 else 0, make, root)


def reduce(p: int, root: int = 0, segments: int = 1) -> Schedule:
    """Complete one segment's sum at the root in each round: the broadcast in reverse, with its cost.

    >>> reduce(5, segments=3).nsteps
    5
    """
    return reverse(broadcast(p, root, segments), "reduce", add=True)


def distances(p: int) -> list[int]:
    """Return the distances of a rank's sends in a phase: p halved and rounded up, ceil(log2 p) times, smallest first.

    >>> distances(9), distances(8)
    ([1, 2, 3, 5], [1, 2, 4])
    """
    skips = [p]
    while skips[0] > 1:
        skips.insert(0, (skips[0] + 1) // 2)
    return skips[:-1]


@lru_cache(maxsize=8)
def receives(p: int) -> Ints:
    """Return the segment that each rank receives in each round of a phase: 0 and more, or one of the phase before.

    A rank receives one segment of this phase, the one that reaches it first of all, and from the
    phase before those segments, -1 to -ceil(log2 p), that it still lacks. Rank 0, the root,
    receives nothing and has the same row.

    >>> receives(5).tolist()
    [[-3, -1, -2], [0, -1, -2], [-3, 1, -1], [-2, -3, 2], [-1, -2, 0]]
    """
    reach = [*distances(p), p]
    return column(np.array([_row(rank, reach) for rank in range(p)]).reshape(p, len(reach) - 1))


def _row(rank: int, reach: list[int]) -> list[int]:
    """Return the segments that one rank receives in a phase: the paper's search for paths by which they can come.

    Segment e leaves the root for rank reach[e], and travels on by ever other distances. What
    arrives in round k has come as far as reach[k] before the rank, and not as near as what arrived
    in the round before.
    """
    # A phase later: the rank is one turn further on.
    rounds, goal = len(reach) - 1, rank + reach[-1]
    own, found = _first(rank, reach), list[int]()
    unused = set(range(rounds + 1)) - {own}

    def search(stop: int, longest: int, nearest: int) -> None:
        for e in range(longest, -1, -1):
            onward = stop + reach[e]
            if e not in unused or onward > goal - reach[len(found)] or onward >= nearest:
                continue
            if onward <= goal - reach[len(found) + 1]:
                search(onward, e, nearest)
            if len(found) == rounds or stop > goal - reach[len(found) + 1]:
                return
            nearest = onward
            unused.discard(e)
            found.append(e)

    search(0, rounds, 2 * goal)
    return [own if e == rounds else e - rounds for e in found]


def _first(rank: int, reach: list[int]) -> int:
    """Return the segment that reaches a rank first: the shortest distance on the way that takes the longest first."""
    way = [rank]
    while way[-1]:
        way.append(way[-1] - max(each for each in reach if each <= way[-1]))
    return reach.index(way[-2] - way[-1]) if rank else len(reach) - 1
