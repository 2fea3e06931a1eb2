"""The two trees of libraries in production, each rebuilt from its published rule: NCCL, UCC, torchcomms.

All three mirror the first tree for an even number of ranks, and shift it by one rank for an odd
one. Only their first trees differ. Parents are arrays as in `binary_tree`, NO_PARENT for a root.
"""

from collections.abc import Callable

import numpy as np

from collectives.algorithms.binary_tree import NO_PARENT, binary_tree, turned
from collectives.algorithms.tree import all_reduce_through
from collectives.core.schedule import Ints, Schedule, on, then


def in_order_tree(p: int) -> Ints:
    """Return UCC's first tree: rank r takes the place of rank r + 1 in NCCL's tree on p + 1 ranks without its root 0.

    >>> in_order_tree(7).tolist()
    [1, 3, 1, -1, 5, 3, 5]
    """
    above = binary_tree(p + 1)[1:]
    return np.where(above == 0, NO_PARENT, above - 1)


def heap_tree(p: int) -> Ints:
    """Return the first tree of torchcomms: ranks level by level, the children of rank r are 2 r + 1 and 2 r + 2.

    >>> heap_tree(7).tolist()
    [-1, 0, 0, 1, 1, 2, 2]
    """
    rank = np.arange(p)
    return np.where(rank == 0, NO_PARENT, (rank - 1) // 2)


FIRST_TREES: dict[str, Callable[[int], Ints]] = {
    "NCCL": binary_tree,
    "UCC": in_order_tree,
    "torchcomms": heap_tree,
}


def library_trees(library: str, p: int) -> Ints:
    """Return the parents in both trees of a library, one row each (int64, shape (2, p)).

    >>> library_trees("torchcomms", 5).tolist()
    [[-1, 0, 0, 1, 1], [2, -1, 1, 1, 2]]
    """
    first = FIRST_TREES[library](p)
    return np.stack([first, turned(first, "shift" if p % 2 else "mirror")])


def interior_in_both(parents: Ints) -> Ints:
    """Return the ranks that have children in both trees.

    >>> interior_in_both(library_trees("torchcomms", 9)).tolist()
    [1, 2, 3]
    """
    first, second = (parent[parent != NO_PARENT] for parent in parents)
    return np.intersect1d(first, second)


def all_reduce_on(parents: Ints, segments: int = 1) -> Schedule:
    """Send one half of the buffer through each of two trees, one after the other, to count what ranks send.

    The order makes it slow. It also makes it a schedule for trees in which one rank has four
    children.

    >>> all_reduce_on(library_trees("NCCL", 8)).nsteps
    20
    """
    p, every = parents.shape[1], np.arange(segments)
    first, second = (
        on(
            all_reduce_through(parent, segments),
            p,
            2 * segments,
            np.arange(p),
            half * segments + every,
        )
        for half, parent in enumerate(parents)
    )
    return then(first, second, "all_reduce")
