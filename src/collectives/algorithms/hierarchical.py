"""Nodes of several ranks: most of the work stays inside a node, little crosses the network.

    node 0: 0 1 2 3        inside a node ranks talk over fast links,
    node 1: 4 5 6 7        between nodes over the network

Ranks fill the nodes in order, ``ranks_per_node`` of them on each. Inside and outside links work at the same time.
"""

import numpy as np

from collectives.algorithms import ring, tree
from collectives.algorithms.binary_tree import NO_PARENT
from collectives.bounds import default_node
from collectives.schedule import Ints, Schedule, on, then


def hierarchical_ring(p: int, ranks_per_node: int | None = None) -> Schedule:
    """Rings in two dimensions: in each node, and between the nodes.

    With g ranks on each of N nodes, ranks of the same place i on their nodes form
    ring i, which all-reduces the i-th part of the buffer. Steps: 2 (g-1) inside and
    2 (N-1) outside. Bytes a rank sends: 2 (g-1)/g n inside and 2 (N-1)/N n/g outside
    (Jia et al. 2018; Mikami et al. 2018).

    >>> hierarchical_ring(8, ranks_per_node=4).nsteps
    8
    """
    g = ranks_per_node or default_node(p)
    _need_full_nodes(p, g)
    nodes = p // g
    rank = np.arange(p).reshape(nodes, g)
    part = np.arange(g) * nodes  # part i begins here, with one chunk for each node

    def inside(schedule: Schedule) -> Schedule:
        return on(schedule, p, p, rank, part, width=nodes, ranks_per_node=g)

    chunks = part[:, None] + np.arange(nodes)
    outside = on(ring.all_reduce(nodes), p, p, rank.T, chunks, ranks_per_node=g)
    first = then(inside(ring.reduce_scatter(g)), outside, "all_reduce")
    return then(first, inside(ring.all_gather(g)), "all_reduce")


def hierarchical_tree(p: int, ranks_per_node: int | None = None, segments: int = 1) -> Schedule:
    """Two trees between the nodes, and inside each node a chain below its first rank: NCCL's shape since 2.4.

    The two-tree algorithm on other trees: the nodes' first ranks form the two trees, and every other rank hangs below
    the one before it. Links inside and outside are coloured apart, because both may work at once.

    Steps: at most 2 (2 (h + g - 1) + 2s - 2), h = ceil(log2 N) for N nodes of g ranks, s segments per tree. Bytes a
    rank sends: at most 2 n on each kind of link.

    >>> hierarchical_tree(16, ranks_per_node=4, segments=4).k
    8
    """
    g = ranks_per_node or default_node(p)
    _need_full_nodes(p, g)
    return tree.double(np.stack([_with_chains(parent, g) for parent in tree.both_trees(p // g)]), segments, g)


def multi_channel_ring(p: int, ranks_per_node: int | None = None, channels: int | None = None) -> Schedule:
    """As many rings at once as there are channels, each for its part of the buffer: NCCL's rings.

    Ring j visits the nodes in order, and in each node the ranks from place j on. So every ring enters and leaves a node
    by other ranks. A single ring leaves by the node's last rank, and the network ports of all others are idle; with
    ``channels`` = g, the default, all g work. This helps large buffers on several nodes whose ranks have network ports
    of their own. It does not help inside one node, where rings in one direction have the same links; nor on nodes of
    one rank, or where the ranks share one port; nor small buffers, because there are as many steps as in one ring.

    Steps: 2 (p-1). Messages each rank sends in a step: one inside the node, one out of it. Bytes each rank sends:
    2 (p-1)/p n, of which 2 (p-1)/p n/g leave the node (NCCL 2).

    >>> for channels in (1, 2):  # two nodes of two: one ring leaves them by ranks 1 and 3, two leave by all
    ...     step = multi_channel_ring(4, 2, channels).step(0)
    ...     print(sorted({(s, d) for s, d in zip(step.src.tolist(), step.dst.tolist()) if s // 2 != d // 2}))
    [(1, 2), (3, 0)]
    [(0, 3), (1, 2), (2, 1), (3, 0)]
    """
    g = ranks_per_node or default_node(p)
    _need_full_nodes(p, g)
    channel = np.arange(channels or g)[:, None]
    rank = np.arange(p)
    order = rank // g * g + (rank + channel) % g
    return on(ring.all_reduce(p), p, len(channel) * p, order, channel * p + rank, ranks_per_node=g)


def _with_chains(parent: Ints, g: int) -> Ints:
    """A tree of nodes made a tree of ranks: node i's first rank is i * g, the others follow in a chain."""
    rank = np.arange(len(parent) * g)
    above = np.repeat(np.where(parent == NO_PARENT, NO_PARENT, parent * g), g)
    return np.where(rank % g == 0, above, rank - 1)


def _need_full_nodes(p: int, g: int) -> None:
    if g < 1 or p % g:
        raise ValueError(f"{p} ranks do not fill nodes of {g}: ranks_per_node must divide the number of ranks")
