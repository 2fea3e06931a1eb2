"""The least time of a collective on a graph of links, as an exact fraction, and the cut that sets it."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from collectives.schedule import Ints
from collectives.topology.graph import Graph, flow

CUT_COLLECTIVES = ("all_gather", "reduce_scatter", "broadcast", "reduce")


class Bound(NamedTuple):
    """The least time of a collective of n bytes, without latency, is ``units * n / graph.unit`` seconds.

    ``cut`` is a set of vertices whose outgoing links set it (ingoing ones for a reduction), ``links`` their units.
    """

    collective: str
    graph: Graph
    units: Fraction
    cut: tuple[int, ...]
    links: int

    @property
    def per_shard(self) -> Fraction:
        """The time in which one unit of links carries n/p bytes, as SCCL and ForestColl count it."""
        return self.units * self.graph.p

    @property
    def algbw(self) -> Fraction:
        """The bytes per second that nothing exceeds, of n as nccl-tests counts it."""
        return self.graph.unit / self.units if self.units else Fraction(0)


def bound(collective: str, of: Graph, root: int = 0) -> Bound:
    """The optimum of a collective on these links: no schedule is faster, and packed trees reach it.

    * all_gather: max of |ranks in S| / links that leave S, over all sets S without some rank (Zhao et al., ForestColl,
      arXiv 2402.06787, theorem 1), by minimum cuts and Dinkelbach's iteration.
    * reduce_scatter: the all_gather with every link reversed.
    * broadcast: 1 / the least of the maximum flows from the root to a rank (Edmonds 1973); reduce: reversed.
    * all_reduce: not a cut's alone; see `all_reduce`.

    Raises ValueError for another collective. Cost: p maximum flows in each of a few iterations; 16 ranks 20 ms.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> found = bound("all_gather", graph(machine("dgx1")))
    >>> found.per_shard, float(found.algbw / 10**9)
    (Fraction(7, 6), 171.42857142857142)
    """
    if collective not in CUT_COLLECTIVES:
        raise ValueError(f"bound of a collective: got {collective}, expected one of {', '.join(CUT_COLLECTIVES)}")
    way = of.transposed() if collective.startswith("reduce") else of
    if of.p == 1:
        return Bound(collective, of, Fraction(0), (), 0)
    cut = _worst_spread(way) if collective in ("all_gather", "reduce_scatter") else _worst_reach(way, root)
    links = way.leaving(cut)
    shards = int((cut < of.p).sum()) if collective in ("all_gather", "reduce_scatter") else of.p
    return Bound(collective, of, Fraction(shards, links * of.p), tuple(cut.tolist()), links)


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
    found = flow(with_source(of, worst.denominator, worst.numerator), of.vertices, v)
    side = found.side[found.side < of.vertices]
    return side if found.value < worst.denominator * of.p else None


def with_source(of: Graph, give: int, stretch: int = 1) -> Ints:
    """The capacities times ``stretch``, and a source behind all vertices that gives each rank ``give`` units."""
    n = of.vertices
    capacity = np.zeros((n + 1, n + 1), dtype=np.int64)
    capacity[:n, :n] = of.capacity * stretch
    capacity[n, : of.p] = give
    return capacity


def _worst_reach(of: Graph, root: int) -> Ints:
    """The root's side of the least of the minimum cuts to all other ranks."""
    if not 0 <= root < of.p:
        raise ValueError(f"root: got {root}, expected 0 to {of.p - 1}")
    flows = [flow(of.capacity, root, v) for v in range(of.p) if v != root]
    return min(flows, key=lambda found: found.value).side
