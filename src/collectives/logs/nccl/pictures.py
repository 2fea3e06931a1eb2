"""A communicator's rings and trees as pictures, between nodes where it has several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectives.algorithms.binary_tree import NO_PARENT
from collectives.schedule import Ints

if TYPE_CHECKING:
    from collectives.figures.style import Picture

MOST_DRAWN = 32


def trees(parents: dict[int, Ints], node: dict[int, str]) -> Picture | None:
    """Two different trees side by side, or None if there are not two, or too many places to draw."""
    between = {channel: among_nodes(parent, node) for channel, parent in parents.items()}
    distinct = {parent.tobytes(): (channel, parent) for channel, parent in reversed(between.items())}
    pair = sorted(distinct.values(), key=lambda each: each[0])
    if len(pair) != 2 or len(pair[0][1]) > MOST_DRAWN:
        return None
    from collectives.figures.trees import side_by_side

    places = "nodes" if len(pair[0][1]) < len(node) else "ranks"
    return side_by_side(np.stack([parent for _, parent in pair]), f"NCCL, {places}")


def among_nodes(parent: Ints, node: dict[int, str]) -> Ints:
    """Each node's parent node in a tree over ranks, nodes counted in the order of their first ranks.

    The tree itself if all ranks share a node, if a rank's node is unknown, or if a node has two parents.

    >>> among_nodes(np.array([-1, 0, 0, 2]), {0: "a", 1: "a", 2: "b", 3: "b"}).tolist()
    [-1, 0]
    """
    p = len(parent)
    number = {name: i for i, name in enumerate(dict.fromkeys(node[rank] for rank in sorted(node)))}
    if len(node) != p or len(number) == 1:
        return parent
    here = np.array([number[node[rank]] for rank in range(p)])
    above = np.where(parent == NO_PARENT, NO_PARENT, here[parent])
    tops = np.flatnonzero(above != here)
    if len(tops) != len(number):
        return parent
    found = np.empty(len(number), int)
    found[here[tops]] = above[tops]
    return found


def rings(orders: dict[int, tuple[int, ...]]) -> Picture | None:
    """The first steps of the different rings, one arrow a message; None if there are too many ranks to draw."""
    distinct = dict.fromkeys(orders.values())
    p = len(next(iter(distinct)))
    if not 1 < p <= MOST_DRAWN:
        return None
    from collectives.figures.schedules import steps
    from collectives.logs.nccl.channels import ring_schedule

    return steps(ring_schedule(dict(enumerate(distinct))), columns=2, most=1)
