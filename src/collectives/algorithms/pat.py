"""PAT, parallel aggregated trees: Bruck's all-gather with far ranks first, cut so that few parts wait in a buffer.

    one part on 8 ranks, its owner first:     0 -> 4 | 0 -> 2, 4 -> 6 | 0 -> 1, 2 -> 3, 4 -> 5, 6 ->
    7

Every part goes down a binomial tree of its own, and all trees are the same but turned, so that a
rank sends as many parts in a message as the trees have edges of that length. NCCL has used it since
2.23 (Jeaugey 2025, arXiv:2506.20252).
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from collectives.core.bounds import height
from collectives.core.schedule import Ints, Schedule, Step, reverse


def all_gather(p: int, aggregate: int | None = None) -> Schedule:
    """Send every part first to the rank half of the ranks on, last to the next rank: few parts far, many parts near.

    A message has at most ``aggregate`` parts, rounded down to a power of two; left out: all that it
    can have. Every tree is cut into that number of subtrees. A part goes down all of these at the
    same time, each depth first.

    Steps, for any p: ceil(log2 p) if all is aggregated, p-1 if nothing is, and j + 2**(ceil(log2 p)
    - j) - 1 for messages of 2**j parts. Bytes each rank sends: (p-1)/p n, the least there is. Every
    part travels by ceil(log2 p) messages at most. Parts that a rank has received and must still
    send: at most 2**j (ceil(log2 p) - j + 1). Raises ValueError for an ``aggregate`` below 1.

    >>> [all_gather(24, aggregate).nsteps for aggregate in (None, 8, 4, 1)]
    [5, 6, 9, 23]
    >>> list(all_gather(3).steps())
    [Step(0->2:=0, 1->0:=1, 2->1:=2), Step(0->1:=0, 1->2:=1, 2->0:=2)]
    """
    if aggregate is not None and aggregate < 1:
        raise ValueError(f"parts of a message (aggregate): got {aggregate}, expected at least 1")
    j = height(p) if aggregate is None else min(height(p), aggregate.bit_length() - 1)
    edges = list(_edges(p, j))

    def make(t: int) -> Step:
        length, at = edges[t]
        rank, at = np.repeat(np.arange(p), len(at)), np.tile(at, p)
        return Step(rank, (rank + length) % p, (rank - at) % p)

    return Schedule("all_gather", p, p, len(edges), make)


def reduce_scatter(p: int, aggregate: int | None = None) -> Schedule:
    """Reduce each part up the tree of its owner: the all-gather in reverse, with its cost.

    At most as many sums wait for more summands as parts wait in the all-gather.

    >>> reduce_scatter(24).nsteps, reduce_scatter(24, aggregate=1).nsteps
    (5, 23)
    """
    return reverse(all_gather(p, aggregate), "reduce_scatter", add=True)


def _edges(p: int, j: int) -> Iterator[tuple[int, Ints]]:
    """Yield for each step the length of the trees' edges, and where in a tree of p ranks they begin."""
    levels = height(p) - j
    top = ((0, 1 << above, 2 << above) for above in reversed(range(levels, height(p))))
    subtrees = ((at, length, 1 << levels) for at, length in _depth_first(0, levels))
    for at, length, apart in chain(top, subtrees):
        begin = np.arange(at, p - length, apart)
        if begin.size:
            yield length, begin


def _depth_first(at: int, levels: int) -> Iterator[tuple[int, int]]:
    """Yield the edges of a binomial tree of 2**levels ranks: where each begins, and its length."""
    for level in reversed(range(levels)):
        yield at, 1 << level
        yield from _depth_first(at + (1 << level), level)
