"""Find the least time of a collective on a graph of links, as an exact fraction, and the cut that sets it.

No single cut sets the bounds of all-to-all and all-reduce: they are linear programs over flows.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_array, coo_array, eye_array

from collectives.core.schedule import Ints
from collectives.machine import Machine
from collectives.topology.graph import Graph, flow, graph, with_source

BY_CUT = ("all_gather", "reduce_scatter", "broadcast", "reduce")
BOUNDED = (*BY_CUT, "all_reduce", "all_to_all")

# A program's result is rounded to the nearest fraction of at most this denominator, and has to be
# as near as that.
MAX_DENOMINATOR, NEAR = 10_000, 1e-8

# Variables of a program; with as many it takes ten seconds.
MAX_FLOWS = 16_000


class Bound(NamedTuple):
    """The least time of a collective of n bytes, without latency, is ``units * n / graph.unit`` seconds.

    ``cut`` is a set of vertices whose outgoing links set it (ingoing ones for a reduction),
    ``links`` their units, and ``shards`` how many n/p bytes have to pass them. No single cut sets
    an all-reduce or all-to-all: ``cut`` is empty.
    """

    collective: str
    graph: Graph
    units: Fraction
    cut: tuple[int, ...] = ()
    links: int = 0
    shards: int = 0

    @property
    def per_shard(self) -> Fraction:
        """Return the time in which one unit of links carries n/p bytes, as SCCL and ForestColl count it."""
        return self.units * self.graph.p

    @property
    def algbw(self) -> Fraction:
        """Return the bytes per second that nothing exceeds, of n as nccl-tests counts it."""
        return self.graph.unit / self.units if self.units else Fraction(0)


def bound(collective: str, of: Graph, root: int = 0) -> Bound:
    """Return the optimum of a collective on these links, for large buffers, because latency does not count.

    * all_gather: the largest share ``ranks in S / links that leave S`` over all sets S that lack a
      rank (Zhao et al., ForestColl, arXiv 2402.06787, theorem 1), by minimum cuts and Dinkelbach's
      iteration.
    * reduce_scatter: the all_gather with every link reversed.
    * broadcast: 1 / the least of the maximum flows from the root to a rank (Edmonds 1973); reduce:
      reversed.
    * all_reduce and all_to_all: a linear program.

    Raises ValueError for another collective. Cost: p maximum flows in each of a few iterations, 16
    ranks 20 ms; a program takes a second for 32 ranks.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> found = bound("all_gather", graph(machine("dgx1")))
    >>> found.per_shard, float(found.algbw / 10**9)
    (Fraction(7, 6), 171.42857142857142)
    """
    if collective not in BOUNDED:
        raise ValueError(
            f"bound of a collective: got {collective}, expected one of {', '.join(BOUNDED)}"
        )
    if of.p == 1:
        return Bound(collective, of, Fraction(0))
    if collective not in BY_CUT:
        return Bound(
            collective,
            of,
            all_reduce_units(of) if collective == "all_reduce" else all_to_all_units(of),
        )
    way = of.transposed() if collective.startswith("reduce") else of
    cut = (
        _worst_spread(way)
        if collective in ("all_gather", "reduce_scatter")
        else _worst_reach(way, root)
    )
    links = way.leaving(cut)
    shards = int((cut < of.p).sum()) if collective in ("all_gather", "reduce_scatter") else of.p
    return Bound(collective, of, Fraction(shards, links * of.p), tuple(cut.tolist()), links, shards)


def switch_algbw(of: Graph) -> Fraction:
    """Return the bytes per second that no all-reduce exceeds where switches add what they pass on.

    All n bytes have to leave every set of ranks that lacks one, once, and all have to come in: the
    worst cut between two ranks bounds it, in either direction. Cost: 2 p maximum flows.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph_of_ports
    >>> float(switch_algbw(graph_of_ports(machine("dgx-h100"), 8)) / 10**9)
    337.0
    """
    if of.p == 1:
        return Fraction(0)
    ways = (of, of.transposed())
    return of.unit * min(way.leaving(_worst_reach(way, 0)) for way in ways)


def seconds(collective: str, on: Machine, p: int, nbytes: int) -> float:
    """Return the least seconds of a collective of ``nbytes`` bytes on a machine with links.

    0 if it has no such bound.

    >>> from collectives.machine import machine
    >>> round(seconds("all_gather", machine("dgx1"), 8, 1 << 30) * 1e3, 3)
    6.263
    """
    if collective not in BOUNDED:
        return 0.0
    of = graph(on, p)
    return float(bound(collective, of).units * nbytes / of.unit)


def _worst_spread(of: Graph) -> Ints:
    """Return the set of vertices that maximises ranks / leaving links, among those that lack a rank.

    With T = a / b of the best set so far, a better S has b |S| > a B(S). A source that gives b
    units to each rank then has a minimum cut below b p from some rank that S lacks.
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
    """Return a set without rank v for which ranks / leaving links exceeds ``worst``, or None."""
    give = np.where(np.arange(of.vertices) < of.p, worst.denominator, 0)
    found = flow(with_source(of.capacity * worst.numerator, give), of.vertices, v)
    side = found.side[found.side < of.vertices]
    return side if found.value < worst.denominator * of.p else None


def _worst_reach(of: Graph, root: int) -> Ints:
    """Return the root's side of the least of the minimum cuts to all other ranks."""
    if not 0 <= root < of.p:
        raise ValueError(f"root: got {root}, expected 0 to {of.p - 1}")
    flows = [flow(of.capacity, root, v) for v in range(of.p) if v != root]
    return min(flows, key=lambda found: found.value).side


def all_to_all_units(of: Graph) -> Fraction:
    """Return the least time of an all-to-all in units of n / `Graph.unit`.

    Every rank has n / p bytes for each other one. A flow from each rank carries its p - 1 pieces.
    The most that all flows can be scaled by, within the capacities, is the inverse of the time.

    Cost: a linear program of p * links variables; 16 ranks 0.1 s.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> all_to_all_units(graph(machine("mesh:2x2")))  # 2 pieces to neighbours and 1 over two links: 16 hops, 8 links
    Fraction(1, 2)
    """
    p, n = of.p, of.vertices
    _check_size(of, p)
    links, balance = _links(of), _balance(of)
    flows = block_array(
        [[balance if i == j else None for j in range(p)] for i in range(p)], format="csr"
    )
    wants = np.zeros((p, n))
    wants[:, :p] = 1.0
    wants[range(p), range(p)] = -(p - 1.0)
    equal = block_array([[flows, coo_array(-wants.reshape(-1, 1))]], format="csr")
    most = block_array(
        [[*[eye_array(len(links)) for _ in range(p)], coo_array((len(links), 1))]], format="csr"
    )
    limits = of.capacity[links[:, 0], links[:, 1]]
    rate = _maximum(equal, np.zeros(p * n), most, limits)
    return _nearest(1 / (rate * p))


def all_reduce_units(of: Graph) -> Fraction:
    """Return the least time of an all-reduce by trees in units of n / `Graph.unit`.

    Parts of the buffer are reduced along trees to some ranks and sent on along other trees, at the
    same time. Each link divides its capacity between the two; each part of a rank must reach all
    others within it, and be reached by all. Cost: a linear program of 2 * p * links variables; 16
    ranks 1 s.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> all_reduce_units(graph(machine("dgx1")))
    Fraction(7, 24)
    """
    p, n, links = of.p, of.vertices, _links(of)
    _check_size(of, 2 * p)
    e, balance = len(links), _balance(of)
    # Variables: flows to each rank, flows from each rank, the share of each link for the former,
    # rates of roots, total.
    blocks: list[list[Any]] = []
    for v in range(2 * p):
        roots, total = (
            coo_array((np.ones(p), (np.arange(p), np.arange(p))), shape=(n, p)),
            np.zeros((n, 1)),
        )
        total[v % p] = -1.0 if v < p else 1.0
        row: list[Any] = [None] * (2 * p) + [None, roots if v < p else -roots, coo_array(total)]
        row[v] = balance
        blocks.append(row)
    # A switch copies nothing and adds nothing: as much leaves it as comes in, in either half.
    blocks.append(
        [*[coo_array((n - p, e))] * (2 * p), balance.tocsr()[p:], coo_array((n - p, p)), None]
    )
    equal = block_array(blocks, format="csr")
    ones, nothing = eye_array(e), coo_array((e, p + 1))
    limited = [
        [
            *[ones if i == v else (coo_array((e, e)) if v == 0 else None) for i in range(2 * p)],
            sign * ones,
            nothing,
        ]
        for v, sign in ((v, -1.0 if v < p else 1.0) for v in range(2 * p))
    ]
    most = block_array(limited, format="csr")
    capacity = of.capacity[links[:, 0], links[:, 1]].astype(float)
    limits = np.concatenate([np.zeros(p * e), np.tile(capacity, p)])
    return _nearest(1 / _maximum(equal, np.zeros(equal.shape[0]), most, limits))


def _check_size(of: Graph, flows: int) -> None:
    got = flows * len(_links(of))
    if got > MAX_FLOWS:
        raise ValueError(
            f"flows over the links of {of.name}: got {got:,}, expected at most {MAX_FLOWS:,}"
        )


def _links(of: Graph) -> Any:
    return np.argwhere(of.capacity > 0)


def _balance(of: Graph) -> Any:
    """Return a matrix of vertices and links: 1 where the link comes in, -1 where it goes out."""
    links = _links(of)
    e, at = len(links), np.arange(len(links))
    values = np.repeat([1.0, -1.0], e)
    return coo_array(
        (values, (np.concatenate([links[:, 1], links[:, 0]]), np.tile(at, 2))),
        shape=(of.vertices, e),
    )


def _maximum(equal: Any, values: Any, most: Any, limits: Any) -> float:
    """Return the largest value of the last variable.

    Limits are scaled to 1, because solvers round large numbers.
    """
    goal, unit = np.zeros(equal.shape[1]), float(limits.max())
    goal[-1] = -1.0
    found = linprog(goal, A_ub=most, b_ub=limits / unit, A_eq=equal, b_eq=values, method="highs")
    if not found.success:
        raise RuntimeError(f"linear program of a bound: {found.message}")
    return float(-found.fun) * unit


def _nearest(value: float) -> Fraction:
    found = Fraction(value).limit_denominator(MAX_DENOMINATOR)
    if abs(found - Fraction(value)) > NEAR * value:
        raise RuntimeError(
            f"linear program of a bound: got {value!r}, expected a fraction of small numbers"
        )
    return found
