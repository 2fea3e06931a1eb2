"""Up a tree to add, down a tree to spread: about log2(p) hops instead of p.

A binomial tree moves whole buffers. The binary trees are pipelined: the buffer is cut into segments that follow each
other, one every two steps, so that all levels work at the same time. Two trees, in which whoever is inside
one is a leaf of the other, keep every port busy in both directions (Sanders, Speck and Träff 2009).
"""

import numpy as np

from collectives.algorithms.binary_tree import NO_PARENT, arrivals, binary_tree, edge_colours, second_tree
from collectives.schedule import Ints, Schedule, Step, beside, dual, on, then


def binomial_broadcast(p: int, root: int = 0) -> Schedule:
    """Whoever has the buffer sends it on: 1, 2, 4, … ranks have it.

    Steps: ceil(log2 p). Messages: p-1. Bytes the root sends: ceil(log2 p) n.

    >>> list(binomial_broadcast(5).steps())
    [Step(0->1:=0), Step(0->2:=0, 1->3:=0), Step(0->4:=0)]
    """

    def make(t: int) -> Step:
        have = np.arange(min(1 << t, p - (1 << t)))
        return Step((have + root) % p, (have + (1 << t) + root) % p, 0)

    return Schedule("broadcast", p, 1, (p - 1).bit_length(), make, root)


def binomial_reduce(p: int, root: int = 0) -> Schedule:
    """Sums flow down the same tree to the root: the dual of the binomial broadcast, with the same cost.

    >>> list(binomial_reduce(4).steps())
    [Step(2->0:+0, 3->1:+0), Step(1->0:+0)]
    """
    return dual(binomial_broadcast(p, root), "reduce", add=True)


def all_reduce(p: int, segments: int = 1) -> Schedule:
    """Reduce to the root of one binary tree, then broadcast from it, both pipelined over ``segments`` segments.

    Steps: at most 2 (2h + 2s - 2), where h = ceil(log2 p) is the tree's height and s the segments. Bytes a rank inside
    the tree sends: up to 3 n (one n up, two down), while a leaf sends n.

    >>> all_reduce(8, segments=4).nsteps
    22
    """
    parent = binary_tree(p)
    down = _down(parent, edge_colours(parent[None])[0], segments)
    return then(dual(down, "reduce", add=True), down, "all_reduce")


def two_tree(p: int, segments: int = 1) -> Schedule:
    """Each half of the buffer through its own tree, both at once: reduce to the two roots, then broadcast from them.

    The first tree is NCCL's (`binary_tree`), with rank 0 at its root; the second is its mirror image for even p and
    shifted by one rank for odd p (`second_tree`). The edges of both trees are coloured 0 and 1 so that no rank ever
    sends two messages or receives two at the same time: edges of one colour work in even steps, the others in odd.

    Steps: at most 2 (2h + 2s - 2), h = ceil(log2 p), s segments per tree. Bytes a rank sends: at most 2 n, the two
    roots n/2 less (for odd p, where rank 0 is in both trees, they differ). Messages a rank sends: up to 4 s.

    >>> two_tree(8, segments=4).nsteps, two_tree(8, segments=4).k
    (22, 8)
    """
    parents = np.stack([binary_tree(p), second_tree(p)])
    colours = edge_colours(parents)
    one, other = (
        on(_down(parents[i], colours[i], segments), p, 2 * segments, np.arange(p), i * segments + np.arange(segments))
        for i in (0, 1)
    )
    down = beside(one, other, "two broadcasts")
    return then(dual(down, "two reduces", add=True), down, "all_reduce")


def _down(parent: Ints, colour: Ints, segments: int) -> Schedule:
    """Broadcast down a tree: segment j reaches rank r at step arrivals[r] + 2j, from its parent."""
    ranks = np.flatnonzero(parent != NO_PARENT)
    first = arrivals(parent, colour)[ranks]
    nsteps = int(first.max()) + 2 * (segments - 1) + 1 if ranks.size else 0

    def make(t: int) -> Step:
        segment, wait = np.divmod(t - first, 2)
        due = (wait == 0) & (segment >= 0) & (segment < segments)
        return Step(parent[ranks[due]], ranks[due], segment[due])

    return Schedule("broadcast", len(parent), segments, nsteps, make, int(np.argmin(parent)))
