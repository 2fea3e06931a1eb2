"""Partners at distance 1, 2, 4, …: log2(p) steps instead of p.

     0 <-> 1    2 <-> 3        distance 1
     0 <------> 2              distance 2
          1 <------> 3

Each bit of a rank's number is a level of two ranks (`compose`). Where p is no power of two, the
ranks beyond the largest one below fold in first: they hand their data to a partner, wait, and get
the result back.
"""

from dataclasses import replace
from functools import reduce

import numpy as np

from collectives.algorithms import compose, direct
from collectives.core.bounds import core, height
from collectives.core.schedule import Schedule, Step, on, reverse, then


def recursive_doubling(p: int) -> Schedule:
    """Swap whole sums in pairs: in each step the partner is twice as far away as before.

    Steps: log2 p for a power of two, otherwise floor(log2 p) + 2. Bytes each rank sends: n a step,
    so log2(p) n (one n more where a rank has a folded partner). The fewest steps there are for a
    power of two, and the choice for small buffers (Thakur, Rabenseifner and Gropp 2005).

    Levels of other sizes need no fold: on 24 ranks the plan ``one_shot2/one_shot2/one_shot2/one_shot3``
    takes four steps, where this takes six. A prime p has no such levels, and the fold stays. It could
    take ceil(log2 p) steps if a rank kept a second sum beside its own, of those ranks that the last
    partner lacks; but a schedule has one cell for each rank and chunk.

    >>> list(recursive_doubling(4).steps())
    [Step(0->1:+0, 1->0:+0, 2->3:+0, 3->2:+0), Step(0->2:+0, 1->3:+0, 2->0:+0, 3->1:+0)]
    >>> [len(step) for step in recursive_doubling(5).steps()]
    [1, 4, 4, 1]
    """
    pairs = [direct.one_shot(2)] * height(core(p))
    swaps = reduce(compose.all_reduce_whole, pairs, direct.one_shot(1))
    return fold(replace(swaps, one_port=True), p)


def all_gather(p: int) -> Schedule:
    """Gather all parts by doubling: in each step partners swap all the parts they have so far.

    Steps: log2 p for a power of two, otherwise floor(log2 p) + 2. Bytes each rank sends: (p-1)/p n
    for a power of two. Otherwise a rank with a folded partner sends up to (p-1)/p n more.

    >>> list(all_gather(4).steps())
    [Step(0->1:=0, 1->0:=1, 2->3:=2, 3->2:=3), Step(0->2:=0-1, 1->3:=0-1, 2->0:=2-3, 3->1:=2-3)]
    >>> list(all_gather(3).steps())
    [Step(2->0:=2), Step(0->1:=0, 0->1:=2, 1->0:=1), Step(0->2:=0, 0->2:=1)]
    """
    inner = core(p)
    pairs = reduce(compose.all_gather, [direct.all_gather(2)] * height(inner), direct.all_gather(1))
    if inner == p:
        return replace(pairs, one_port=True)

    def double(t: int) -> Step:
        """Return a step of the pairs, with the parts that were folded into those it moves."""
        step = pairs.step(t)
        folded = np.clip(p - inner - step.chunk, 0, step.count)
        with_folded = np.flatnonzero(folded)
        row = np.concatenate([np.arange(len(step)), with_folded])
        chunk = np.concatenate([step.chunk, inner + step.chunk[with_folded]])
        count = np.concatenate([step.count, folded[with_folded]])
        order = np.argsort(row, kind="stable")
        return Step(step.src[row[order]], step.dst[row[order]], chunk[order], count[order])

    doubling = Schedule("all_gather", p, p, pairs.nsteps, double)
    extra = np.arange(inner, p)
    into = Schedule("gather", p, p, 1, lambda _: Step(extra, extra - inner, extra))
    partner, chunk = np.nonzero(np.arange(p) != extra[:, None])  # everything but what they brought
    back = Schedule("all_gather", p, p, 1, lambda _: Step(partner, partner + inner, chunk))
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
    rank_of_part = compose.rank_of_part([2] * height(core(p)))
    near_first = compose.on_ranks(all_gather(core(p)), rank_of_part)
    return fold(compose.scatter_and_gather(near_first), p)


def fold(inner: Schedule, p: int) -> Schedule:
    """Extend an all-reduce of the first ranks to all ``p``: rank q+i hands its data to rank i of those q and waits."""
    first, k = inner.p, inner.k
    inner = on(inner, p, k, np.arange(first), np.arange(k))
    if first == p:
        return inner
    extra = np.arange(first, p)
    back = Schedule("broadcast", p, k, 1, lambda _: Step(extra - first, extra, 0, k))
    into = reverse(back, "reduce", add=True)
    return then(then(into, inner, "all_reduce"), back, "all_reduce")
