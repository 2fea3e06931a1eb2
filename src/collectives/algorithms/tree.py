"""Up a tree to add, down a tree to spread: about log2(p) hops instead of p.

A binomial tree moves whole buffers, or in a scatter ever smaller halves of one. Chain and binary
trees are pipelined: the buffer is cut into segments that follow each other, so that all levels work
at the same time. In an all-reduce the first segments can go down while later ones still go up; then
the ports of interior ranks are busy in both directions. Two trees keep every port busy, because an
interior rank of one is a leaf of the other (Sanders, Speck and Träff 2009).
"""

import numpy as np

from collectives.algorithms import ring
from collectives.algorithms.binary_tree import (
    NO_PARENT,
    arrivals,
    binary_tree,
    edge_colours,
    exchanges,
    second_tree,
)
from collectives.core.schedule import Ints, Schedule, Step, on, parallel, reverse, then


def binomial_broadcast(p: int, root: int = 0) -> Schedule:
    """Send the buffer from every rank that has it to one that lacks it: 1, 2, 4, … ranks have it.

    Steps: ceil(log2 p). Messages: p-1. Bytes the root sends: ceil(log2 p) n.

    >>> list(binomial_broadcast(5).steps())
    [Step(0->1:=0), Step(0->2:=0, 1->3:=0), Step(0->4:=0)]
    """

    def make(t: int) -> Step:
        have = np.arange(min(1 << t, p - (1 << t)))
        return Step((have + root) % p, (have + (1 << t) + root) % p, 0)

    return Schedule("broadcast", p, 1, (p - 1).bit_length(), make, root)


def binomial_reduce(p: int, root: int = 0) -> Schedule:
    """Reduce along the same tree to the root: the binomial broadcast in reverse, with the same cost.

    >>> list(binomial_reduce(4).steps())
    [Step(2->0:+0, 3->1:+0), Step(1->0:+0)]
    """
    return reverse(binomial_broadcast(p, root), "reduce", add=True)


def binomial_scatter(p: int, root: int = 0) -> Schedule:
    """Send the upper half of a rank's parts to the first of their ranks, until each has its own.

    Steps: ceil(log2 p). Messages: p-1. Bytes the root sends: (p-1)/p n. Fewest steps and fewest
    bytes at once.

    >>> list(binomial_scatter(5).steps())
    [Step(0->4:=4), Step(0->2:=2-3), Step(0->1:=1, 2->3:=3)]
    """
    height = (p - 1).bit_length()

    def make(t: int) -> Step:
        half = 1 << (height - 1 - t)
        have = np.arange(0, p - half, 2 * half)
        return Step(have, have + half, have + half, np.minimum(half, p - have - half))

    order = (np.arange(p) + root) % p
    return on(Schedule("scatter", p, p, height, make, 0), p, p, order, order)


def binomial_gather(p: int, root: int = 0) -> Schedule:
    """Gather parts by pairs, fours, …: the binomial scatter in reverse, replacing.

    >>> list(binomial_gather(4).steps())
    [Step(1->0:=1, 3->2:=3), Step(2->0:=2-3)]
    """
    return reverse(binomial_scatter(p, root), "gather", add=False)


def scatter_allgather_broadcast(p: int, root: int = 0) -> Schedule:
    """Scatter the buffer, then let a ring gather it everywhere: van de Geijn's broadcast for large buffers.

    Steps: ceil(log2 p) + p-1. Bytes the root sends: 2 (p-1)/p n, where a binomial tree sends
    ceil(log2 p) n.

    >>> scatter_allgather_broadcast(8).nsteps
    10
    """
    return then(binomial_scatter(p, root), ring.all_gather(p), "broadcast", root)


def rabenseifner_reduce(p: int, root: int = 0) -> Schedule:
    """Reduce-scatter round a ring, then gather at the root: scatter and all-gather in reverse.

    Steps: p-1 + ceil(log2 p). Bytes the root receives: 2 (p-1)/p n, where a binomial tree brings
    ceil(log2 p) n.

    >>> rabenseifner_reduce(8).nsteps
    10
    """
    return then(ring.reduce_scatter(p), binomial_gather(p, root), "reduce", root)


def chain_broadcast(p: int, root: int = 0, segments: int = 1) -> Schedule:
    """Pass every segment on from rank to rank: p-1 hops, but one segment close behind the other.

    Steps: p-1 + s-1 for s segments. Bytes each rank but the last sends: n. For a long buffer in
    many segments the time is n beta and little more.

    >>> chain_broadcast(4, segments=5).nsteps
    7
    """
    chain = np.arange(p) - 1
    down = _down(chain, chain, segments, period=1)
    return on(down, p, segments, (np.arange(p) + root) % p, np.arange(segments))


def chain_reduce(p: int, root: int = 0, segments: int = 1) -> Schedule:
    """Reduce along the chain to the root: the chain broadcast in reverse.

    >>> list(chain_reduce(3).steps())
    [Step(2->1:+0), Step(1->0:+0)]
    """
    return reverse(chain_broadcast(p, root, segments), "reduce", add=True)


def two_tree_broadcast(p: int, root: int = 0, segments: int = 1) -> Schedule:
    """Feed both roots of a double tree on the other p-1 ranks from the root, each with half of the buffer.

    The second tree is the mirror image for odd p, because p-1 is even then, and shifted for even p.

    Steps: at most 2h + 2s, h = ceil(log2 (p-1)), s segments per tree. Bytes a rank sends: n at
    most, the root's too.

    >>> two_tree_broadcast(9, segments=4).nsteps
    13
    """
    if p == 1:
        return Schedule("broadcast", 1, 2 * segments, 0, lambda _: Step([], [], []), root)
    parents = np.array(
        [[NO_PARENT, *np.where(tree == NO_PARENT, 0, tree + 1)] for tree in both_trees(p - 1)]
    )
    down = double_down(parents, segments)
    turned = on(down, p, 2 * segments, (np.arange(p) + root) % p, np.arange(2 * segments))
    return Schedule("broadcast", p, turned.k, turned.nsteps, turned.make, root)


def two_tree_reduce(p: int, root: int = 0, segments: int = 1) -> Schedule:
    """Reduce through both trees to the root: the two-tree broadcast in reverse.

    >>> two_tree_reduce(9, segments=4).nsteps
    13
    """
    return reverse(two_tree_broadcast(p, root, segments), "reduce", add=True)


def all_reduce(p: int, segments: int = 1) -> Schedule:
    """Reduce to the root of one binary tree, then broadcast from it, both pipelined over ``segments`` segments.

    Steps: at most 2 (2h + 2s - 2), where h = ceil(log2 p) is the tree's height and s the segments.
    Bytes an interior rank sends: up to 3 n (one n up, two down), while a leaf sends n.

    >>> all_reduce(8, segments=4).nsteps
    22
    """
    return all_reduce_through(binary_tree(p), segments)


def all_reduce_through(parent: Ints, segments: int = 1) -> Schedule:
    """Run the same all-reduce through any binary tree, given by its parents.

    >>> all_reduce_through(np.array([-1, 0, 0])).nsteps
    4
    """
    down = _down(parent, arrivals(parent, edge_colours(parent[None])[0]), segments, period=2)
    return then(reverse(down, "reduce", add=True), down, "all_reduce")


def overlapped(p: int, segments: int = 1) -> Schedule:
    """Run the same tree, but send every segment down as soon as the root has it, while later ones still go up.

    Both ends of an edge send to each other in the same steps (`exchanges`). A rank has three
    neighbours at most, so that a segment follows three steps after the one before it, and not four,
    two up and two down.

    Steps for p > 3: 4h + 3s - 3, h = ceil(log2 p), s segments; one less if p is no power of two.
    Bytes an interior rank sends: up to 3 n.

    >>> all_reduce(8, segments=64).nsteps, overlapped(8, segments=64).nsteps
    (262, 201)
    """
    parent = binary_tree(p)
    up, down, period = exchanges(parent)
    # Its last segment comes first.
    rising = reverse(_down(parent, up.max() - up, segments, period), "reduce", add=True)
    rising = on(rising, p, segments, np.arange(p), np.arange(segments)[::-1])
    return parallel(rising, _down(parent, down, segments, period), "all_reduce")


def two_tree(p: int, segments: int = 1, second: str | None = None) -> Schedule:
    """Run each half of the buffer through its own tree at once: reduce to the two roots, then broadcast from them.

    The first tree is NCCL's (`binary_tree`), with rank 0 at its root; the second is its mirror
    image ("mirror", the default for even p) or shifted by one rank ("shift", for odd p). The edges
    of both trees are coloured 0 and 1 so that no rank ever sends two messages or receives two at
    the same time: the two colours work in alternate steps.

    Steps: at most 2 (2h + 2s - 2), h = ceil(log2 p), s segments per tree. Bytes a rank sends: at
    most 2 n; for even p the two roots send n and all others 2 n. Messages a rank sends: up to 4 s.

    >>> two_tree(8, segments=4).nsteps, two_tree(8, segments=4).k
    (22, 8)
    """
    return double(both_trees(p, second), segments)


def both_trees(p: int, second: str | None = None) -> Ints:
    """Return the parents in the first and in the second tree, one row each."""
    return np.stack([binary_tree(p), second_tree(p, second)])


def double(parents: Ints, segments: int, ranks_per_node: int = 1) -> Schedule:
    """Run two trees, each with half of the buffer: reduce to their roots, then broadcast from them."""
    down = double_down(parents, segments, ranks_per_node)
    return then(reverse(down, "two reduces", add=True), down, "all_reduce")


def double_down(parents: Ints, segments: int, ranks_per_node: int = 1) -> Schedule:
    """Broadcast the first half of the chunks down one tree, and at the same time the second half down the other."""
    p, every, colours = parents.shape[1], np.arange(segments), edge_colours(parents, ranks_per_node)
    one, other = (
        on(
            _down(parents[i], arrivals(parents[i], colours[i]), segments, period=2),
            p,
            2 * segments,
            np.arange(p),
            i * segments + every,
            ranks_per_node=ranks_per_node,
        )
        for i in (0, 1)
    )
    return parallel(one, other, "two broadcasts")


def _down(parent: Ints, arrival: Ints, segments: int, period: int) -> Schedule:
    """Broadcast down a tree: segment j reaches rank r at step arrival[r] + period * j, from its parent."""
    ranks = np.flatnonzero(parent != NO_PARENT)
    ranks = ranks[np.argsort(arrival[ranks], kind="stable")]
    # Receivers in such steps.
    turns = [ranks[arrival[ranks] % period == turn] for turn in range(period)]
    above, first = [parent[turn] for turn in turns], [arrival[turn] for turn in turns]
    nsteps = int(arrival[ranks].max()) + period * (segments - 1) + 1 if ranks.size else 0

    def make(t: int) -> Step:
        turn = t % period
        begin, end = np.searchsorted(first[turn], [t - period * (segments - 1), t + 1])
        due = slice(begin, end)
        return Step(above[turn][due], turns[turn][due], (t - first[turn][due]) // period)

    return Schedule("broadcast", len(parent), segments, nsteps, make, int(np.argmin(parent)))
