r"""Nodes whose own switch adds, and two trees between the nodes: NCCL's NVLS and NVLSTree.

node 0:  0  1  2  3        every rank sends its buffer to the switch of its node; the switch
          \  \ /  /        gives rank i of the node the sum of part i
           [S0]
                           ranks of the same place all-reduce their part by two trees
           [S1]
          /  / \  \        every rank sends its part back, and the switch gives all parts to all
node 1:  4  5  6  7
"""

import numpy as np

from collectives.algorithms.compose import in_segments
from collectives.algorithms.tree import two_tree
from collectives.core.bounds import default_node
from collectives.core.schedule import Ints, Schedule, Step, on

# Pieces of a segment, where there are several: so long a pipeline gains from many only.
PIECES = 8


def nvls_tree(
    p: int, ranks_per_node: int | None = None, segments: int = 1, pieces: int = PIECES
) -> Schedule:
    """Add in the switch of each node, and all-reduce the parts between the nodes by two trees for each rank.

    On one node it is NCCL's NVLS, on several its NVLSTree. The node's switch adds, so that a rank
    sends and receives (1 + 1/g) n inside its node of g ranks, where a ring has 2 (g-1)/g n. Between
    the nodes it sends at most 2 n/g. `in_network` is another switch, which joins all ranks.

    Steps: 4 and those of `two_tree` between the nodes. Two segments or more are cut into ``pieces``
    each; every other step is a pause, and each further piece is one step more: so a message that
    carries parts of two pieces does not wait for what has only just left.

    Raises ValueError where the ranks do not fill nodes of g.

    >>> list(nvls_tree(2, ranks_per_node=2).steps())[:2]  # switch 2 adds, and gives each rank its part
    [Step(0->2:+0-1, 1->2:+0-1), Step(2->0:=0, 2->1:=1)]
    """
    g = ranks_per_node or default_node(p)
    if g < 1 or p % g:
        raise ValueError(f"ranks of a node with a switch: got {g}, expected a divisor of {p}")
    nodes = p // g
    between = two_tree(nodes)
    # Part i of the buffer belongs to place i of every node, and has the chunks of the trees.
    width = between.k if nodes > 1 else 1
    k = g * width
    rank = np.arange(p)
    switch, first = p + rank // g, rank % g * width
    inside = [
        Step(rank, switch, 0, k, add=True),
        Step(switch, rank, first, width),
        Step(rank, switch, first, width),
        Step(switch, rank, 0, k),
    ]
    trees = _by_place(between, p, g, k) if nodes > 1 else None
    steps = 0 if p == 1 else len(inside) + (trees.nsteps if trees else 0)

    def at(t: int) -> Step:
        if t < 2:
            return inside[t]
        if trees and t < 2 + trees.nsteps:
            return trees.step(t - 2)
        return inside[t - steps]

    def paused(t: int) -> Step:
        return Step([], [], []) if t % 2 else at(t // 2)

    if segments == 1 or not steps:
        return Schedule(
            "all_reduce", p, k, steps, at, one_port=False, ranks_per_node=g, switches=nodes
        )
    whole = Schedule("all_reduce", p, k, 2 * steps - 1, paused, ranks_per_node=g, switches=nodes)
    return in_segments(whole, pieces * segments)


def _by_place(between: Schedule, p: int, g: int, k: int) -> Schedule:
    """Run the schedule of the nodes once for each place in a node, on the part of that place."""
    same_place: Ints = np.arange(p).reshape(-1, g).T
    chunks = np.arange(k).reshape(g, between.k)
    return on(between, p, k, same_place, chunks, ranks_per_node=g)
