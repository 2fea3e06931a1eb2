"""Tree and two-tree all-reduce as schedules: any number of ranks, in pipelined segments.

Your course's trees have their own roots and their own chunks: see `variant.py`. The first tree's
root is rank ``ROOT % p``, the second's is rank ``(ROOT + SECOND) % p``. The first tree carries the
chunks c with ``c % 2 == FIRST``, the second all others.
"""

from variant import FIRST, ROOT, SECOND

from collectives.core.schedule import Schedule, Step, on, parallel, reverse, then

NO_PARENT = -1


def first_tree(p):
    """A binary tree on p ranks: a list with the parent of every rank, and NO_PARENT for its root, rank ``ROOT % p``."""
    # solution: the parent of every rank; at most two children each, ceil(log2 p) levels below the
    # root
    return numbered(p, ROOT)
    # end


def second_tree(p):
    """The other tree, with the root ``(ROOT + SECOND) % p``: a rank that is inside the first tree is a leaf here.

    For odd p one rank must be interior in both; it has one child in each.
    """
    # solution: the parent of every rank; what is inside the first tree has no children here
    return numbered(p, ROOT + SECOND)
    # end


# reference only
def numbered(p, root):
    """NCCL's tree, whose role 0 is played by rank ``root``."""
    parent = [NO_PARENT] * p
    for role in range(1, p):
        lowest = role & -role
        up = role ^ lowest | lowest << 1
        parent[(role + root) % p] = ((up if up < p else role ^ lowest) + root) % p
    return parent


def arrivals(parent, colour):
    """The step in which every rank receives its first segment; -1 for the root."""
    arrival = {parent.index(NO_PARENT): -1}
    while len(arrival) < len(parent):
        for rank, up in enumerate(parent):
            if rank not in arrival and up in arrival:
                after = arrival[up] + 1
                arrival[rank] = after + (after + colour[rank]) % 2
    return arrival


# end


def colours(*trees):
    """For every tree and rank the colour, 0 or 1, of the edge from its parent. This is given.

    A rank sends at most one message and receives at most one in steps of one colour, if it has at
    most two children in all trees together. With more children there is no such colouring, and some
    edges with the same colour meet.
    """
    edges = []
    for tree, parent in enumerate(trees):
        edges += [(tree, rank) for rank, up in enumerate(parent) if up != NO_PARENT]
    ends = {}
    for tree, rank in edges:
        ends.setdefault(("sends", trees[tree][rank]), []).append((tree, rank))
        ends.setdefault(("receives", rank), []).append((tree, rank))
    rivals = {edge: [] for edge in edges}
    for met in ends.values():
        for edge in met:
            rivals[edge] += [other for other in met if other != edge]
    colour = {}
    for start in edges:
        todo = [(start, 0)]
        while todo:
            edge, value = todo.pop()
            if edge not in colour:
                colour[edge] = value
                todo += [(other, 1 - value) for other in rivals[edge]]
    return [
        [colour.get((tree, rank), 0) for rank in range(len(parent))]
        for tree, parent in enumerate(trees)
    ]


def down(parent, colour, segments):
    """A broadcast down one tree, pipelined: a Schedule of ``segments`` chunks, each of which every edge carries once.

    The edge to rank r works in steps t with ``t % 2 == colour[r]`` alone.
    """
    # solution: when the first segment reaches each rank; every other follows two steps after the
    # one before
    arrival = arrivals(parent, colour)
    steps = [[] for _ in range(max(arrival.values()) + 1 + 2 * (segments - 1))]
    for rank, first in arrival.items():
        if parent[rank] != NO_PARENT:
            for segment in range(segments):
                steps[first + 2 * segment].append((parent[rank], rank, segment))
    made = [Step(*zip(*rows, strict=True)) if rows else Step([], [], []) for rows in steps]
    return Schedule(
        "broadcast", len(parent), segments, len(made), made.__getitem__, parent.index(NO_PARENT)
    )
    # end


def tree(p, segments):
    """All-reduce through the first tree: sums go up to its root, results come down.

    It has ``segments`` chunks.
    """
    # solution: down the tree, and before that the same in reverse
    parent = first_tree(p)
    (colour,) = colours(parent)
    to_all = down(parent, colour, segments)
    return then(reverse(to_all, "reduce", add=True), to_all, "all_reduce")
    # end


def two_tree(p, segments):
    """All-reduce through both trees at the same time: ``2 * segments`` chunks, ``segments`` of them in each tree."""
    # solution: two broadcasts in parallel, each on its tree and its chunks, and before that the
    # same in reverse
    parents = first_tree(p), second_tree(p)
    chunks = range(FIRST, 2 * segments, 2), range(1 - FIRST, 2 * segments, 2)
    one, other = (
        on(down(parent, colour, segments), p, 2 * segments, range(p), carried)
        for parent, colour, carried in zip(parents, colours(*parents), chunks, strict=True)
    )
    to_all = parallel(one, other, "two broadcasts")
    return then(reverse(to_all, "two reduces", add=True), to_all, "all_reduce")
    # end
