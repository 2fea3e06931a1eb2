"""Partners at distance 1, 2, 4, …: log2(p) steps instead of p.

     0 <-> 1    2 <-> 3        distance 1
     0 <------> 2              distance 2
          1 <------> 3

Where p is no power of two, the ranks beyond the largest one below fold in first: they hand their data to a
partner, wait, and get the result back.
"""

import numpy as np

from collectives.schedule import Schedule, Step, dual, on, then


def recursive_doubling(p: int) -> Schedule:
    """In each step everyone swaps sums with a partner twice as far away as before, whole buffers.

    Steps: log2 p for a power of two, otherwise floor(log2 p) + 2. Bytes each rank sends: n a step, so log2(p) n (one n
    more where a rank has a folded partner). The fewest steps there are, and the choice for small buffers
    (Thakur, Rabenseifner and Gropp 2005).

    >>> list(recursive_doubling(4).steps())
    [Step(0->1:+0, 1->0:+0, 2->3:+0, 3->2:+0), Step(0->2:+0, 1->3:+0, 2->0:+0, 3->1:+0)]
    >>> [len(step) for step in recursive_doubling(5).steps()]
    [1, 4, 4, 1]
    """
    core = 1 << (p.bit_length() - 1)
    rank = np.arange(core)
    distances = core.bit_length() - 1
    swaps = Schedule("all_reduce", core, 1, distances, lambda t: Step(rank, rank ^ (1 << t), 0, add=True))
    return _folded(swaps, p)


def _folded(inner: Schedule, p: int) -> Schedule:
    """An all-reduce for the first ranks made one for all ``p``: rank core+i hands its data to rank i and waits."""
    core, k = inner.p, inner.k
    inner = on(inner, p, k, np.arange(core), np.arange(k))
    if core == p:
        return inner
    extra = np.arange(core, p)
    back = Schedule("broadcast", p, k, 1, lambda _: Step(extra - core, extra, 0, k))
    into = dual(back, "reduce", add=True)
    return then(then(into, inner, "all_reduce"), back, "all_reduce")
