"""Bine trees: binomial trees with edges of length …, 11, 5, 3, 1, 1, on alternating sides, instead of …, 8, 4, 2, 1.

    8 ranks, the steps of a broadcast:      0 -> 3 | 0 -> 7, 3 -> 4 | 0 -> 1, 3 -> 2, 7 -> 6, 4 -> 5

Bine is short for binomial negabinary. The tree reaches to both sides of each rank, round a ring of the ranks. So its
edges are about two thirds as long as those of a binomial tree, and fewer of them leave a rack (De Sensi et al. 2025).
"""

import numpy as np

from collectives.algorithms.swing import partner
from collectives.bounds import height
from collectives.schedule import Ints, Schedule, Step, on, reverse


def broadcast(p: int, root: int = 0) -> Schedule:
    """Every rank that has the buffer sends it to its partner, far partners first: a binomial tree with shorter edges.

    Steps: ceil(log2 p). Messages: p-1. Bytes the root sends: at most ceil(log2 p) n. For odd p it is the tree of p+1
    ranks without one of its leaves (De Sensi et al. 2025, for powers of two).

    >>> list(broadcast(8).steps())
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


def reduce(p: int, root: int = 0) -> Schedule:
    """Sums flow down the same tree to the root: the Bine broadcast in reverse, with the same cost.

    >>> list(reduce(4).steps())
    [Step(1->0:+0, 2->3:+0), Step(3->0:+0)]
    """
    return reverse(broadcast(p, root), "reduce", add=True)


def _tree(p: int) -> tuple[Ints, Ints, list[int]]:
    """Return senders and receivers in the order of their steps, and where each step begins; p is even."""
    have, first = np.zeros(1, dtype=np.int64), [0]
    src, dst = have[:0], have[:0]
    for t in reversed(range(height(p))):
        other = partner(have, t, p)
        new = ~np.isin(other, have)
        src, dst = np.append(src, have[new]), np.append(dst, other[new])
        have = np.append(have, other[new])
        first.append(len(dst))
    return src, dst, first
