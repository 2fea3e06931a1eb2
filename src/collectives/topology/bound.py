"""The least time of a collective on a graph of links, as an exact fraction, and the cut that sets it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from collectives.machine import Machine
from collectives.schedule import Ints
from collectives.topology.graph import Graph, flow, graph, with_source
from collectives.topology.linear import all_reduce_units, all_to_all_units

BY_CUT = ("all_gather", "reduce_scatter", "broadcast", "reduce")
BY_PROGRAM = {"all_reduce": all_reduce_units, "all_to_all": all_to_all_units}
BOUNDED = (*BY_CUT, *BY_PROGRAM)


class Bound(NamedTuple):
    """The least time of a collective of n bytes, without latency, is ``units * n / graph.unit`` seconds.

    ``cut`` is a set of vertices whose outgoing links set it (ingoing ones for a reduction), ``links`` their units, and
    ``shards`` how many n/p bytes have to pass them. No single cut sets an all-reduce or all-to-all: ``cut`` is empty.
    """

    collective: str
    graph: Graph
    units: Fraction
    cut: tuple[int, ...] = ()
    links: int = 0
    shards: int = 0

    @property
    def per_shard(self) -> Fraction:
        """The time in which one unit of links carries n/p bytes, as SCCL and ForestColl count it."""
        return self.units * self.graph.p

    @property
    def algbw(self) -> Fraction:
        """The bytes per second that nothing exceeds, of n as nccl-tests counts it."""
        return self.graph.unit / self.units if self.units else Fraction(0)


def bound(collective: str, of: Graph, root: int = 0) -> Bound:
    """The optimum of a collective on these links, for large buffers, because latency does not count.

    * all_gather: the largest share ``ranks in S / links that leave S`` over all sets S that lack a rank (Zhao et al.,
      ForestColl, arXiv 2402.06787, theorem 1), by minimum cuts and Dinkelbach's iteration.
    * reduce_scatter: the all_gather with every link reversed.
    * broadcast: 1 / the least of the maximum flows from the root to a rank (Edmonds 1973); reduce: reversed.
    * all_reduce and all_to_all: a linear program (`topology.linear`).

    Raises ValueError for another collective. Cost: p maximum flows in each of a few iterations, 16 ranks 20 ms; a
    program takes a second for 32 ranks.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> found = bound("all_gather", graph(machine("dgx1")))
    >>> found.per_shard, float(found.algbw / 10**9)
    (Fraction(7, 6), 171.42857142857142)
    """
    if collective not in BOUNDED:
        raise ValueError(f"bound of a collective: got {collective}, expected one of {', '.join(BOUNDED)}")
    if of.p == 1:
        return Bound(collective, of, Fraction(0))
    if collective in BY_PROGRAM:
        return Bound(collective, of, BY_PROGRAM[collective](of))
    way = of.transposed() if collective.startswith("reduce") else of
    cut = _worst_spread(way) if collective in ("all_gather", "reduce_scatter") else _worst_reach(way, root)
    links = way.leaving(cut)
    shards = int((cut < of.p).sum()) if collective in ("all_gather", "reduce_scatter") else of.p
    return Bound(collective, of, Fraction(shards, links * of.p), tuple(cut.tolist()), links, shards)


def seconds(collective: str, on: Machine, p: int, nbytes: int) -> float:
    """The least time of a collective of ``nbytes`` bytes on a machine with links; 0 for one that has no such bound.

    >>> from collectives.machine import machine
    >>> round(seconds("all_gather", machine("dgx1"), 8, 1 << 30) * 1e3, 3)
    6.263
    """
    if collective not in BOUNDED:
        return 0.0
    of = graph(on, p)
    return float(bound(collective, of).units * nbytes / of.unit)


def _worst_spread(of: Graph) -> Ints:
    """The set of vertices that maximises ranks / leaving links, among those that lack a rank.

    With T = a / b of the best set so far, a better S has b |S| > a B(S). A source that gives b units to each rank then
    has a minimum cut below b p from some rank that S lacks.
    """
    cut = np.flatnonzero(np.arange(of.vertices) != 0)
    worst = Fraction(of.p - 1, of.leaving(cut))
    v = 0
    unimproved = 0
    while unimproved < of.p:
        better = _exceeding(of, worst, v)
        if better is None:
            v, unimproved = (v + 1) % of.p, unimproved + 1
        else:
            cut, unimproved = better, 0
            worst = Fraction(int((cut < of.p).sum()), of.leaving(cut))
    return cut


def _exceeding(of: Graph, worst: Fraction, v: int) -> Ints | None:
    """A set without rank v for which ranks / leaving links exceeds ``worst``, or None."""
    give = np.where(np.arange(of.vertices) < of.p, worst.denominator, 0)
    found = flow(with_source(of.capacity * worst.numerator, give), of.vertices, v)
    side = found.side[found.side < of.vertices]
    return side if found.value < worst.denominator * of.p else None


def _worst_reach(of: Graph, root: int) -> Ints:
    """The root's side of the least of the minimum cuts to all other ranks."""
    if not 0 <= root < of.p:
        raise ValueError(f"root: got {root}, expected 0 to {of.p - 1}")
    flows = [flow(of.capacity, root, v) for v in range(of.p) if v != root]
    return min(flows, key=lambda found: found.value).side
