"""Nodes of several ranks: most of the work stays inside a node, little crosses the network.

    node 0: 0 1 2 3        inside a node ranks talk over fast links,
    node 1: 4 5 6 7        between nodes over the network

Ranks fill the nodes in order, ``ranks_per_node`` of them on each. Inside and outside links work at
the same time.

Where each rank of a node has a network port of its own, one ring or tree leaves all ports idle but
one. So NCCL runs several at once, its channels: `on_channels` turns a schedule that leaves a node
by one rank into one that leaves it by several, each with its share of the buffer.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms import compose, ring, tree
from collectives.algorithms.binary_tree import NO_PARENT
from collectives.core.bounds import default_node
from collectives.core.schedule import Ints, Schedule, on, parts


def hierarchical_ring(p: int, ranks_per_node: int | None = None) -> Schedule:
    """Run rings in two dimensions: in each node, and between the nodes.

    With g ranks on each of N nodes, ranks of the same place i on their nodes form
    ring i, which all-reduces the i-th part of the buffer. Steps: 2 (g-1) inside and
    2 (N-1) outside. Bytes a rank sends: 2 (g-1)/g n inside and 2 (N-1)/N n/g outside
    (Jia et al. 2018; Mikami et al. 2018).

    >>> hierarchical_ring(8, ranks_per_node=4).nsteps
    8
    """
    g = ranks_per_node or default_node(p)
    _check_full_nodes(p, g)
    between = ring.all_reduce(p // g)
    return compose.all_reduce(ring.reduce_scatter(g), between, ring.all_gather(g))


def hierarchical_tree(p: int, ranks_per_node: int | None = None, segments: int = 1) -> Schedule:
    """Run two trees between the nodes, and in each node a chain below its first rank: NCCL's shape since 2.4.

    The two-tree algorithm on other trees: the nodes' first ranks form the two trees, and every
    other rank hangs below the one before it. Links inside and outside are coloured apart, because
    both may work at once.

    Steps: at most 2 (2 (h + g - 1) + 2s - 2), h = ceil(log2 N) for N nodes of g ranks, s segments
    per tree. Bytes a rank sends: at most 2 n on each kind of link.

    >>> hierarchical_tree(16, ranks_per_node=4, segments=4).k
    8
    """
    g = ranks_per_node or default_node(p)
    _check_full_nodes(p, g)
    return tree.double(
        np.stack([_with_chains(parent, g) for parent in tree.both_trees(p // g)]), segments, g
    )


def on_channels(
    one: Schedule, g: int, channels: int | None = None, root: int | None = None
) -> Schedule:
    """Run a schedule once for each channel, all at once, each time with the ranks of every node of g moved on by one.

    The rank of place i on a node becomes, in channel j, the rank of place (i + j) mod g, so each
    channel leaves the nodes by other ranks; ``channels`` = g, the default, uses the ports of all.
    The collective's parts of the buffer are each cut into channels. With a ``root``, every
    channel's order of ranks is turned until the root comes first.

    Raises ValueError where the ranks do not fill nodes of g. Cost: a row for each row and channel.

    >>> on_channels(ring.all_gather(4), 2).step(0)  # two nodes of two: each of the four ranks leaves its node
    Step(0->1:=0, 1->2:=2, 2->3:=4, 3->0:=6, 1->0:=3, 0->3:=1, 3->2:=7, 2->1:=5)
    """
    p = one.p
    _check_full_nodes(p, g)
    rank, channel = np.arange(p), np.arange(channels or g)[:, None]
    order = rank // g * g + (rank + channel) % g
    if root is not None:
        order = np.take_along_axis(
            order, (np.argmax(order == root, axis=1)[:, None] + rank) % p, axis=1
        )
    each = one.k // parts(one.collective, p)  # chunks of a part, in one channel
    owner, chunk = np.divmod(np.arange(one.k), each)
    part = order[:, owner] if one.k > each else 0
    placed = on(
        one,
        p,
        len(channel) * one.k,
        order,
        (part * len(channel) + channel) * each + chunk,
        ranks_per_node=g,
    )
    return replace(placed, root=root)


def multi_channel_ring(
    p: int, ranks_per_node: int | None = None, channels: int | None = None
) -> Schedule:
    """Run one ring for each channel at once, each for its part of the buffer: NCCL's rings.

    Ring j visits the nodes in order, and in each node the ranks from place j on. So every ring
    enters and leaves a node by other ranks. A single ring leaves by the node's last rank, and the
    network ports of all others are idle; with ``channels`` = g, the default, all g work. This helps
    large buffers on several nodes whose ranks have network ports of their own. It does not help
    inside one node, where rings in one direction have the same links; nor on nodes of one rank, or
    where the ranks share one port; nor small buffers, because there are as many steps as in one
    ring.

    Steps: 2 (p-1). Messages each rank sends in a step: one inside the node, one out of it. Bytes
    each rank sends: 2 (p-1)/p n, of which 2 (p-1)/p n/g leave the node (NCCL 2).

    >>> for channels in (1, 2):  # two nodes of two: one ring leaves them by ranks 1 and 3, two leave by all
    ...     step = multi_channel_ring(4, 2, channels).step(0)
    ...     print(sorted({(s, d) for s, d in zip(step.src.tolist(), step.dst.tolist()) if s // 2 != d // 2}))
    [(1, 2), (3, 0)]
    [(0, 3), (1, 2), (2, 1), (3, 0)]
    """
    return on_channels(ring.all_reduce(p), ranks_per_node or default_node(p), channels)


def multi_channel_all_gather(
    p: int, ranks_per_node: int | None = None, channels: int | None = None
) -> Schedule:
    """Gather parts at all ranks by a ring for each channel: each part travels in shares (`multi_channel_ring`).

    Steps: p-1. Bytes each rank sends: (p-1)/p n, of which (p-1)/p n/g leave the node.

    >>> multi_channel_all_gather(8, 4).k
    32
    """
    return on_channels(ring.all_gather(p), ranks_per_node or default_node(p), channels)


def multi_channel_reduce_scatter(
    p: int, ranks_per_node: int | None = None, channels: int | None = None
) -> Schedule:
    """Add parts at their owners by a ring for each channel, each with a share of every part (`multi_channel_ring`).

    Steps: p-1. Bytes each rank sends: (p-1)/p n, of which (p-1)/p n/g leave the node.

    >>> multi_channel_reduce_scatter(8, 4).nsteps
    7
    """
    return on_channels(ring.reduce_scatter(p), ranks_per_node or default_node(p), channels)


def multi_channel_tree(
    p: int, ranks_per_node: int | None = None, segments: int = 1, channels: int | None = None
) -> Schedule:
    """Run two trees between the nodes for each channel: NCCL's trees, a pair for each port.

    Channel j is `hierarchical_tree` with the chains of each node moved on by j. So every network
    port carries one pair of trees, where a single pair leaves all ports but one idle. NCCL also
    hangs the second child of a node below another GPU; with a channel for each rank this moves no
    byte to another port, so the children stay together here.

    Steps: those of `hierarchical_tree`. Bytes each rank sends out of its node: at most 2 n/g,
    inside at most 2 n.

    >>> multi_channel_tree(16, ranks_per_node=4, segments=4).k
    32
    """
    g = ranks_per_node or default_node(p)
    return on_channels(hierarchical_tree(p, g, segments), g, channels)


def multi_channel_chain(
    p: int,
    root: int = 0,
    ranks_per_node: int | None = None,
    segments: int = 1,
    channels: int | None = None,
) -> Schedule:
    """Broadcast along a chain for each channel: the rings of `multi_channel_ring`, cut open at the root.

    Steps: p-1 + s-1 for s segments of each channel. Bytes each rank but the last sends: n at most,
    n/g of them out of its node.

    >>> multi_channel_chain(8, ranks_per_node=4, segments=5).nsteps
    11
    """
    return on_channels(
        tree.chain_broadcast(p, 0, segments), ranks_per_node or default_node(p), channels, root
    )


def _with_chains(parent: Ints, g: int) -> Ints:
    """Turn a tree of nodes into one of ranks: node i's first rank is i * g, and the others follow it in a chain."""
    rank = np.arange(len(parent) * g)
    above = np.repeat(np.where(parent == NO_PARENT, NO_PARENT, parent * g), g)
    return np.where(rank % g == 0, above, rank - 1)


def _check_full_nodes(p: int, g: int) -> None:
    if g < 1 or p % g:
        raise ValueError(
            f"{p} ranks do not fill nodes of {g}: ranks_per_node must divide the number of ranks"
        )
