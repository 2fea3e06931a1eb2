r"""The geometry of the binary trees: who is whose parent, and which edges may work at the same time.

    ranks 0 to 7        0           rank 0 is the root and has one child; below it, a rank's lowest
    set bit says
                        |           its height: odd ranks are leaves 4
                      /   \
                    2       6       a tree is an array: parent[r] is the parent of rank r, or
                    NO_PARENT
                   / \     / \
                  1   3   5   7
"""

import numpy as np

from collectives.core.schedule import Ints, ScheduleError

NO_PARENT = -1


def binary_tree(p: int) -> Ints:
    """Return the parents in NCCL's binary tree on any number of ranks (``ncclGetBtree`` in NCCL's trees.cc).

    A rank's parent is found by clearing its lowest set bit and setting the next one; where that is
    no rank of ours, by clearing alone. The height is ceil(log2 p). Returns int64 of shape (p,),
    NO_PARENT for the root, rank 0.

    >>> binary_tree(8).tolist()
    [-1, 2, 4, 2, 0, 6, 4, 6]
    >>> binary_tree(6).tolist()
    [-1, 2, 4, 2, 0, 4]
    """
    rank = np.arange(p)
    lowest = rank & -rank
    cleared = rank ^ lowest
    up = cleared | (lowest << 1)
    return np.where(rank == 0, NO_PARENT, np.where(up < p, up, cleared))


def second_tree(p: int, how: str | None = None) -> Ints:
    """Return the other tree: "mirror" (rank r plays p-1-r), by default for even p, or "shift" (r plays r-1), for odd p.

    That is NCCL's choice since 2.8.3. For even p no rank is interior in both trees either way. For
    odd p the shift leaves exactly one, rank 0. Mirroring would keep odd ranks odd there, and leave
    half of all ranks.

    Returns the parent of every rank (int64, shape (p,)), NO_PARENT for the root. Raises ValueError
    for another ``how``, and for "mirror" with an odd p above 1.

    >>> second_tree(8).tolist()
    [1, 3, 1, 7, 5, 3, 5, -1]
    >>> second_tree(5).tolist()
    [1, -1, 3, 0, 3]
    """
    how = how or ("shift" if p % 2 else "mirror")
    if how not in ("mirror", "shift") or (how == "mirror" and p % 2 and p > 1):
        raise ValueError(
            f"the second tree is a 'mirror' (for even p) or a 'shift', not {how!r} for {p} ranks"
        )
    return turned(binary_tree(p), how)


def turned(first: Ints, how: str) -> Ints:
    """Return a tree whose ranks change places: "mirror" (rank r plays p-1-r) or "shift" (r plays r-1).

    >>> turned(np.array([-1, 0, 0]), "shift").tolist()
    [1, -1, 1]
    """
    p = len(first)
    role = p - 1 - np.arange(p) if how == "mirror" else (np.arange(p) - 1) % p
    player = np.argsort(role)
    return np.where(first[role] == NO_PARENT, NO_PARENT, player[first[role]])


def edge_colours(parents: Ints, ranks_per_node: int = 1) -> Ints:
    """Colour the edges of all trees 0 or 1, so that no rank sends twice or receives twice in one colour.

    ``parents`` has one row per tree, and so has the answer: ``colour[i, r]`` belongs to the edge
    from ``parents[i, r]`` to r (0 at a root, which has none). Edges inside a node and outside use
    different links and do not conflict. Each edge conflicts with at most one other at its sender
    and one at its receiver. Conflicting edges thus form paths and even cycles, for which two
    colours suffice. Raises ScheduleError if a rank has three children by links of one kind.

    >>> edge_colours(binary_tree(8)[None]).tolist()  # siblings differ
    [[0, 0, 0, 1, 0, 0, 1, 1]]
    """
    flat = parents.ravel()
    inside = (parents // ranks_per_node == np.arange(parents.shape[1]) // ranks_per_node).astype(
        np.int64
    )
    at_ends = _conflicts_at_receiver(parents, inside), _conflicts_at_sender(flat, inside.ravel())
    conflicts = np.stack(at_ends, axis=1).tolist()
    colour = np.where(flat == NO_PARENT, 0, -1).tolist()
    # Colour 0, so that step 0 is used.
    below_root = np.flatnonzero(parents[0] == np.argmin(parents[0])).tolist()
    for start in [*below_root[:1], *range(len(colour))]:
        todo = [(start, 0)]
        while todo:
            edge, c = todo.pop()
            if edge != NO_PARENT and colour[edge] < 0:
                colour[edge] = c
                todo += [(other, 1 - c) for other in conflicts[edge]]
    return np.array(colour).reshape(parents.shape)


def _conflicts_at_receiver(parents: Ints, inside: Ints) -> Ints:
    """Return for every edge, tree * p + rank, the edge by which the same rank receives in the other tree."""
    trees, p = parents.shape
    other = np.arange(trees * p).reshape(trees, p)[::-1]
    exists = (parents[::-1] != NO_PARENT) & (inside == inside[::-1]) & (trees > 1)
    return np.where(exists, other, NO_PARENT).ravel()


def _conflicts_at_sender(flat: Ints, inside: Ints) -> Ints:
    """Return for every edge the other edge out of the same rank by links of the same class, or -1."""
    port = 2 * flat + inside
    edges = np.flatnonzero(flat != NO_PARENT)
    edges = edges[np.argsort(port[edges], kind="stable")]
    same = port[edges[1:]] == port[edges[:-1]]
    if (same[1:] & same[:-1]).any():
        raise ScheduleError(
            "a rank has more than two children in these trees: two colours do not suffice"
        )
    other = np.full(len(flat), NO_PARENT)
    other[edges[1:][same]], other[edges[:-1][same]] = edges[:-1][same], edges[1:][same]
    return other


def arrivals(parent: Ints, colour: Ints) -> Ints:
    """Return the first step in which each rank receives: the first of its edge's colour after its parent has the data.

    Step t serves the edges of colour t % 2. The root has everything before step 0, which is written
    -1.

    >>> parent = binary_tree(8)
    >>> arrivals(parent, edge_colours(parent[None])[0]).tolist()
    [-1, 4, 2, 3, 0, 2, 1, 3]
    """
    arrival = np.full(len(parent), -1)
    level = parent == NO_PARENT
    while True:
        level = (parent != NO_PARENT) & level[parent]
        if not level.any():
            return arrival
        earliest = arrival[parent[level]] + 1
        arrival[level] = earliest + (earliest + colour[level]) % 2


def exchanges(parent: Ints) -> tuple[Ints, Ints, int]:
    """Return the steps of an all-reduce in which the ends of an edge always send to each other: ``up, down, period``.

    Rank r sends segment j to its parent in step ``up[r] + period * j`` and receives it in step
    ``down[r] + period * j`` (-1 at the root). The period is the largest number of neighbours,
    because a rank serves one in each step. Of two children the one with the higher rank comes
    first, in both directions.

    >>> up, down, period = exchanges(binary_tree(8))
    >>> up.tolist(), down.tolist(), period
    ([-1, 2, 3, 1, 4, 1, 2, 0], [-1, 11, 9, 10, 7, 10, 8, 9], 3)
    """
    ranks = np.flatnonzero(parent != NO_PARENT)
    ranks = ranks[np.argsort(parent[ranks], kind="stable")]
    above, place = parent[ranks], np.ones_like(parent)
    # 1 for the child that comes last.
    place[ranks] += np.arange(len(ranks)) - np.searchsorted(above, above)
    # Steps between a rank's turn and the root's.
    before, after = np.zeros_like(parent), np.zeros_like(parent)
    period = int((place[ranks] + (parent[above] != NO_PARENT)).max(initial=0))
    level = parent == NO_PARENT
    while (level := (parent != NO_PARENT) & level[parent]).any():
        before[level] = before[parent[level]] + place[level]
        after[level] = after[parent[level]] + period - place[level]
    up, down = (
        np.where(parent == NO_PARENT, -1, before.max() + steps) for steps in (-before, after)
    )
    return up, down, period


def depths(parent: Ints) -> Ints:
    """Return the number of links from every rank to the root, or -1 for a rank that does not reach it.

    >>> depths(np.array([-1, 0, 1, 4, 3])).tolist()
    [0, 1, 2, -1, -1]
    """
    depth = np.where(parent == NO_PARENT, 0, -1)
    for level in range(1, len(parent)):
        reached = (depth < 0) & (parent != NO_PARENT)
        reached &= depth[np.where(reached, parent, 0)] == level - 1
        if not reached.any():
            break
        depth[reached] = level
    return depth
