"""All-reduce on two trees: each carries one half of the buffer up to its root and down again.

A rank at place i of the first tree has its children at places 2i + 1 and 2i + 2. The second tree is
to turn the leaves of the first into its inner ranks, so that nobody has to serve four children.
`PLACES` says which rank is at which place.
"""

from variant import PLACES

from collectives.core.schedule import Schedule, Step


def first_tree():
    """The first tree: ranks in the order of their places."""
    return list(PLACES)


def second_tree():
    """The second tree: the same places, taken by other ranks."""
    # solution
    return PLACES[::-1]
    # instead
    # if len(PLACES) % 2 == 0:
    #     return PLACES[::-1]
    # return PLACES[1:] + PLACES[:1]
    # end


def levels(p):
    """The places of every level but the root's, from the lowest level up."""
    found, first = [], 1
    while first < p:
        found.insert(0, range(first, min(2 * first + 1, p)))
        first = 2 * first + 1
    return found


def schedule():
    """The schedule: two chunks, one for each tree; first up, level by level, then down."""
    up = levels(len(PLACES))

    def step(t):
        adds = t < len(up)
        level = up[t] if adds else up[2 * len(up) - 1 - t]
        trees = (first_tree(), second_tree())
        edges = []
        for c, tree in enumerate(trees):
            edges += [(tree[i], tree[(i - 1) // 2], c) for i in level]
        child, parent, chunk = zip(*edges, strict=True)
        return Step(child, parent, chunk, add=True) if adds else Step(parent, child, chunk)

    return Schedule("all_reduce", p=len(PLACES), k=2, nsteps=2 * len(up), make=step, one_port=False)
