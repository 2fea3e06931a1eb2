"""Partners at distance 1, 2, 4, …: log2(p) steps instead of p.

     0 <-> 1    2 <-> 3        distance 1
     0 <------> 2              distance 2
          1 <------> 3

Where p is no power of two, the ranks beyond the largest one below fold in first: they hand their
data to a partner, wait, and get the result back.
"""

import numpy as np

from collectives.core import bounds
from collectives.core.schedule import Ints, Schedule, Step, on, reverse, then


def recursive_doubling(p: int) -> Schedule:
    """Swap whole sums in pairs: in each step the partner is twice as far away as before.

    Steps: log2 p for a power of two, otherwise floor(log2 p) + 2. Bytes each rank sends: n a step,
    so log2(p) n (one n more where a rank has a folded partner). The fewest steps there are, and the
    choice for small buffers (Thakur, Rabenseifner and Gropp 2005).

    >>> list(recursive_doubling(4).steps())
    [Step(0->1:+0, 1->0:+0, 2->3:+0, 3->2:+0), Step(0->2:+0, 1->3:+0, 2->0:+0, 3->1:+0)]
    >>> [len(step) for step in recursive_doubling(5).steps()]
    [1, 4, 4, 1]
    """
    core = bounds.core(p)
    rank = np.arange(core)
    distances = core.bit_length() - 1
    swaps = Schedule(
        "all_reduce", core, 1, distances, lambda t: Step(rank, rank ^ (1 << t), 0, add=True)
    )
    return fold(swaps, p)


def all_gather(p: int) -> Schedule:
    """Gather all parts by doubling: in each step partners swap all the parts they have so far.

    Steps: log2 p for a power of two, otherwise floor(log2 p) + 2. Bytes each rank sends: (p-1)/p n
    for a power of two. Otherwise a rank with a folded partner sends up to (p-1)/p n more.

    >>> list(all_gather(4).steps())
    [Step(0->1:=0, 1->0:=1, 2->3:=2, 3->2:=3), Step(0->2:=0-1, 1->3:=0-1, 2->0:=2-3, 3->1:=2-3)]
    >>> list(all_gather(3).steps())
    [Step(2->0:=2), Step(0->1:=0, 0->1:=2, 1->0:=1), Step(0->2:=0, 0->2:=1)]
    """
    core = bounds.core(p)
    rank, distances = np.arange(core), core.bit_length() - 1

    def double(t: int) -> Step:
        """Return step t, before which a rank has the parts of its block of 2**t ranks, and of those folded into it."""
        block = rank >> t << t
        folded = np.clip(p - core - block, 0, 1 << t)
        with_folded = folded > 0
        src = np.concatenate([rank, rank[with_folded]])
        chunk = np.concatenate([block, (core + block)[with_folded]])
        count = np.concatenate([np.full(core, 1 << t), folded[with_folded]])
        order = np.argsort(src, kind="stable")
        return Step(src[order], src[order] ^ (1 << t), chunk[order], count[order])

    doubling = Schedule("all_gather", p, p, distances, double)
    if core == p:
        return doubling
    extra = np.arange(core, p)
    into = Schedule("gather", p, p, 1, lambda _: Step(extra, extra - core, extra))
    partner, chunk = np.nonzero(np.arange(p) != extra[:, None])  # everything but what they brought
    back = Schedule("all_gather", p, p, 1, lambda _: Step(partner, partner + core, chunk))
    return then(then(into, doubling, "all_gather"), back, "all_gather")


def reduce_scatter(p: int) -> Schedule:
    """Reduce and scatter by halving: a rank's share halves in each step, the all-gather in reverse, at its cost.

    Steps: log2 p for a power of two, otherwise floor(log2 p) + 2. Bytes each rank sends: (p-1)/p n
    for a power of two.

    >>> list(reduce_scatter(4).steps())
    [Step(2->0:+0-1, 3->1:+0-1, 0->2:+2-3, 1->3:+2-3), Step(1->0:+0, 0->1:+1, 3->2:+2, 2->3:+3)]
    """
    return reverse(all_gather(p), "reduce_scatter", add=True)


def halving_doubling(p: int) -> Schedule:
    """Reduce-scatter by halving, then all-gather by doubling: Rabenseifner's all-reduce.

    Steps: 2 log2 p for a power of two. Otherwise the ranks beyond p' = 2**floor(log2 p) fold in
    whole: 2 log2 p' +
    2. Bytes a rank sends: 2 (p-1)/p n, or at most 2 (p'-1)/p' n + n for a rank with a folded
       partner. The longest messages, of n/2 bytes, go to the next rank: vector halving, distance
       doubling (Thakur, Rabenseifner and Gropp 2005).

    >>> halving_doubling(8).nsteps, halving_doubling(9).nsteps
    (6, 8)
    >>> halving_doubling(4).step(0)
    Step(1->0:+0-1, 3->2:+0-1, 0->1:+2-3, 2->3:+2-3)
    """
    core = bounds.core(p)
    far_first = then(reduce_scatter(core), all_gather(core), "all_reduce")
    return fold(on(far_first, core, core, _reversed_bits(core), np.arange(core)), p)


def _reversed_bits(p: int) -> Ints:
    """Reverse the bits of each rank's number, which exchanges near and far, for a power of two.

    >>> _reversed_bits(8).tolist()
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = np.zeros(1, dtype=np.int64)
    while len(bits) < p:
        bits = np.concatenate([2 * bits, 2 * bits + 1])
    return bits


def fold(inner: Schedule, p: int) -> Schedule:
    """Extend an all-reduce of the first ranks to all ``p``: rank core+i hands its data to rank i and waits."""
    core, k = inner.p, inner.k
    inner = on(inner, p, k, np.arange(core), np.arange(k))
    if core == p:
        return inner
    extra = np.arange(core, p)
    back = Schedule("broadcast", p, k, 1, lambda _: Step(extra - core, extra, 0, k))
    into = reverse(back, "reduce", add=True)
    return then(then(into, inner, "all_reduce"), back, "all_reduce")
