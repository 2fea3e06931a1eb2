"""Partners on alternating sides at distance 1, 1, 3, 5, 11, …: a doubling's steps and bytes, and fewer hops.

    step 0:    0 - 1   2 - 3   4 - 5   6 - 7      distance 1
    step 1:  - 0   1 - 2   3 - 4   5 - 6   7 -    distance 1, on the other side
    step 2:    0 - 3   2 - 5   4 - 7   6 - 1      distance 3

An even rank has its partner ``distance(t)`` further on, an odd rank as far back, round the ring. A
doubling's partner is 2**t away: these are about two thirds as far (De Sensi et al. 2024, section
3).

Bine trees (binomial negabinary) are binomial trees with these edges, instead of …, 8, 4, 2, 1. The
tree reaches to both sides of each rank, round a ring of the ranks, so that fewer edges leave a rack
(De Sensi et al. 2025).

    8 ranks, the steps of a broadcast:      0 -> 3 | 0 -> 7, 3 -> 4 | 0 -> 1, 3 -> 2, 7 -> 6, 4 -> 5
"""

import numpy as np

from collectives.algorithms.compose import scatter_and_gather
from collectives.algorithms.halving import fold
from collectives.core import bounds
from collectives.core.bounds import height
from collectives.core.schedule import Bools, Ints, Schedule, Step, on, reverse


def distance(t: int) -> int:
    """Return an even rank's distance to its partner in step t: 1 - 2 + 4 - … (-2)**t, digits 1 to the base -2.

    >>> [distance(t) for t in range(6)]
    [1, -1, 3, -5, 11, -21]
    """
    return int(1 - (-2) ** (t + 1)) // 3


def partner(rank: Ints, t: int, p: int) -> Ints:
    """Return the partner of each rank in step t, round a ring of an even number p.

    The partner's partner is the rank itself.

    >>> partner(np.arange(8), 2, p=8).tolist()
    [3, 6, 5, 0, 7, 2, 1, 4]
    """
    return np.where(rank % 2 == 0, rank + distance(t), rank - distance(t)) % p


def all_gather(p: int) -> Schedule:
    """Swap the parts that the other partner lacks, far partners first: the second half of `all_reduce`, for an even p.

    Steps: ceil(log2 p). Bytes each rank sends: (p-1)/p n, the least there is, because no part comes
    twice. Every turn of the ring by two ranks maps the schedule to itself, and so does its mirror
    image: all ranks send equally much.

    >>> list(all_gather(4).steps())
    [Step(0->3:=0, 1->2:=1, 2->1:=2, 3->0:=3), Step(0->1:=0, 0->1:=3, 1->0:=1-2, 2->3:=1-2, 3->2:=0, 3->2:=3)]
    """
    steps = height(p)

    def make(t: int) -> Step:
        other = partner(np.arange(p), steps - 1 - t, p)
        held = _held(p, t)
        src, first, count = _runs(held & ~held[other])
        return Step(src, other[src], first, count)

    return Schedule("all_gather", p, p, steps, make)


def _held(p: int, t: int) -> Bools:
    """Return the parts (columns) that every rank (row) has before step t of the all-gather."""
    held = np.eye(p, dtype=np.bool_)
    for before in range(t):
        held |= held[partner(np.arange(p), height(p) - 1 - before, p)]
    return held


def _runs(cells: Bools) -> tuple[Ints, Ints, Ints]:
    """Return the runs of True in each row: row, first column and length."""
    edges = np.diff(np.pad(cells.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    row, first = np.nonzero(edges == 1)
    return row, first, np.nonzero(edges == -1)[1] - first


def all_reduce(p: int) -> Schedule:
    """Reduce and scatter from the nearest partner to the farthest, then gather back: Swing, bandwidth-optimal.

    Steps: 2 ceil(log2 p) for even p. Bytes a rank sends: 2 (p-1)/p n, as halving-doubling, but n/2
    goes to a neighbour and only n/p to the farthest partner. For odd p the last rank folds into the
    others: two more steps of n bytes (De Sensi et al. 2024, where the odd rank swaps a part with
    each other rank).

    >>> all_reduce(8).nsteps, all_reduce(12).nsteps, all_reduce(13).nsteps
    (6, 8, 10)
    """
    core = bounds.even(p)
    return fold(scatter_and_gather(all_gather(core)), p)


def doubling(p: int) -> Schedule:
    """Swap whole buffers with these partners: Swing, latency-optimal. Bine's butterfly is the same.

    Steps: log2 p for a power of two, otherwise floor(log2 p) + 2. Bytes each rank sends: n a step,
    as recursive doubling (De Sensi et al. 2024, section 3.1). From 8 ranks on each rank adds in an
    order of its own, because the ranks whose sums a rank has are not the same for all of them:
    floats may differ in their last bits between ranks.

    >>> list(doubling(4).steps())
    [Step(0->1:+0, 1->0:+0, 2->3:+0, 3->2:+0), Step(0->3:+0, 1->2:+0, 2->1:+0, 3->0:+0)]
    """
    core = bounds.core(p)
    rank = np.arange(core)
    swaps = Schedule(
        "all_reduce",
        core,
        1,
        height(core),
        lambda t: Step(rank, partner(rank, t, core), 0, add=True),
    )
    return fold(swaps, p)


def bine_broadcast(p: int, root: int = 0) -> Schedule:
    """Broadcast along a binomial tree with shorter edges.

    Every rank with the buffer sends it on, far partners first.

    Steps: ceil(log2 p). Messages: p-1. Bytes the root sends: at most ceil(log2 p) n. For odd p it
    is the tree of p+1 ranks without one of its leaves (De Sensi et al. 2025, for powers of two).

    >>> list(bine_broadcast(8).steps())
    [Step(0->3:=0), Step(0->7:=0, 3->4:=0), Step(0->1:=0, 3->2:=0, 7->6:=0, 4->5:=0)]
    """
    even = p + p % 2
    src, dst, first = _tree(even)
    leaf = int(dst[-1]) if even > p else even  # it receives in the last step, and nobody from it
    kept = dst != leaf
    src, dst = (ends - (ends > leaf) for ends in (src, dst))

    def make(t: int) -> Step:
        now = slice(first[t], first[t + 1])
        return Step(src[now][kept[now]], dst[now][kept[now]], 0)

    tree = Schedule("broadcast", p, 1, height(p), make, 0)
    return on(tree, p, 1, (np.arange(p) + root) % p, [0])


def bine_reduce(p: int, root: int = 0) -> Schedule:
    """Reduce along the same tree to the root: the Bine broadcast in reverse, with the same cost.

    >>> list(bine_reduce(4).steps())
    [Step(1->0:+0, 2->3:+0), Step(3->0:+0)]
    """
    return reverse(bine_broadcast(p, root), "reduce", add=True)


def _tree(p: int) -> tuple[Ints, Ints, list[int]]:
    """Return senders and receivers in the order of their steps, and the offset of each step, for an even p."""
    have, first = np.zeros(1, dtype=np.int64), [0]
    src, dst = have[:0], have[:0]
    for t in reversed(range(height(p))):
        other = partner(have, t, p)
        new = ~np.isin(other, have)
        src, dst = np.append(src, have[new]), np.append(dst, other[new])
        have = np.append(have, other[new])
        first.append(len(dst))
    return src, dst, first
