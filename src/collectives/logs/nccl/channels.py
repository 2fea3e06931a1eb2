"""The channels of a communicator as schedules: its rings and its trees, checked, and which links cross nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce as fold

import numpy as np

from collectives.algorithms import ALGORITHMS
from collectives.algorithms.binary_tree import NO_PARENT, depths
from collectives.logs.nccl.log import Communicator
from collectives.schedule import Ints, Schedule, Step, on, parallel, reverse, then

# More (rank, chunk) cells than these are not proved: a second or so.
MOST_CELLS = 1 << 20


def orders(of: Communicator) -> dict[int, tuple[int, ...]]:
    """The rings of all ranks, by channel. NCCL prints the first 20 ranks of a ring; the connections continue it."""
    found = {channel: _continued(of, channel, order) for channel, (order, _) in sorted(of.rings.items())}
    everyone = list(range(of.size))
    return {channel: order for channel, order in found.items() if sorted(order) == everyone}


def _continued(of: Communicator, channel: int, order: tuple[int, ...]) -> tuple[int, ...]:
    """The printed beginning of a ring, and how the first connections continue it; if they differ, what was printed."""
    whole = [*order]
    while len(whole) < of.size and (following := of.successors.get((channel, whole[-1]))) is not None:
        whole.append(following)
    agrees = all(of.successors.get((channel, a), b) == b for a, b in zip(whole, whole[1:] + whole[:1], strict=True))
    return tuple(whole) if agrees else order


def parents(of: Communicator) -> dict[int, Ints]:
    """The trees of which every rank's line is there and says the same as its neighbours', by channel; -1 for a root."""
    found = {}
    for channel, places in sorted(of.trees.items()):
        if sorted(places) != list(range(of.size)):
            continue
        above = [places[rank][0].parent for rank in range(of.size)]
        below = {child: rank for rank in range(of.size) for child in places[rank][0].children}
        whole = all(below.get(rank) == parent for rank, parent in enumerate(above))
        parent = np.array([NO_PARENT if up is None else up for up in above])
        if whole and (parent == NO_PARENT).sum() == 1 and (depths(parent) >= 0).all():
            found[channel] = parent
    return found


def ring_schedule(rings: dict[int, tuple[int, ...]]) -> Schedule:
    """An all-reduce in which every channel's ring carries its share of the buffer.

    >>> ring_schedule({0: (0, 2, 1), 1: (0, 1, 2)}).step(0)
    Step(1->0:+1, 0->2:+2, 2->1:+0, 2->0:+4, 0->1:+5, 1->2:+3)
    """
    p = len(next(iter(rings.values())))
    ring, k = ALGORITHMS["all_reduce", "ring"](p), p * len(rings)
    placed = [on(ring, p, k, order, np.arange(p) + p * i) for i, order in enumerate(rings.values())]
    return replace(fold(lambda one, other: parallel(one, other, "all_reduce"), placed), one_port=False)


def tree_schedule(trees: dict[int, Ints]) -> Schedule:
    """An all-reduce in which every channel's tree carries its share: up to the root level by level, then down.

    >>> list(tree_schedule({0: np.array([-1, 0, 0])}).steps())
    [Step(1->0:+0, 2->0:+0), Step(0->1:=0, 0->2:=0)]
    """
    table = np.stack(list(trees.values()))
    depth = np.stack([depths(parent) for parent in table])

    def make(t: int) -> Step:
        chunk, child = np.nonzero(depth == t + 1)
        return Step(table[chunk, child], child, chunk)

    down = Schedule("broadcast", table.shape[1], len(table), int(depth.max()), make, root=0, one_port=False)
    return replace(then(reverse(down, "reduce", add=True), down, "all_reduce"), root=None)


def node_of(of: Communicator) -> dict[int, str]:
    """The host of every rank that has named itself; none of several communicators that the log does not tell apart."""
    if of.is_several:
        return {}
    return {rank: process.host for rank, process in of.processes.items()}


def crossings(order: tuple[int, ...], node: dict[int, str]) -> int:
    """How often a ring leaves a node."""
    return sum(node[a] != node[b] for a, b in zip(order, order[1:] + order[:1], strict=True))


def loaded_nodes(trees: dict[int, Ints], node: dict[int, str]) -> list[str]:
    """The nodes with more than four links to other nodes in two different trees.

    An interior node of one tree has a parent and two children, as a leaf of the other a parent. One with more is
    interior in both, and sends more than the whole buffer in one direction. Channels repeat two trees; of other
    numbers nothing is said.
    """
    distinct = {parent.tobytes(): parent.tolist() for parent in trees.values()}
    if len(distinct) != 2:
        return []
    links: Counter[str] = Counter()
    for parent in distinct.values():
        ends = [(node[up], node[rank]) for rank, up in enumerate(parent) if up != NO_PARENT]
        links.update(host for a, b in ends if a != b for host in (a, b))
    return sorted(host for host, number in links.items() if number > 4)
