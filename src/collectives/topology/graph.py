"""Describe a machine's links as a directed graph of ranks and switches.

Find its shortest ways and its cuts.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

import numpy as np

from collectives.core.schedule import Ints
from collectives.machine import MAX_VERTICES, Machine

# How finely a slower node is counted: capacities are whole numbers of a common unit.
MAX_DENOMINATOR = 100

NO_LINKS: Ints = np.zeros((0, 2), dtype=np.int64)

# scipy's flows count in 32 bits.
MAX_FLOW = (1 << 31) - 1


class Graph(NamedTuple):
    """Vertices are ranks, then switches.

    ``capacity[a, b]`` units of ``unit`` bytes per second lead from a to b.
    """

    name: str
    p: int
    capacity: Ints
    unit: Fraction
    network: Ints  # the links between nodes, as (from, to); all others are inside a node

    @property
    def vertices(self) -> int:
        """Return the number of ranks and switches."""
        return len(self.capacity)

    def transposed(self) -> Graph:
        """Return the graph with every link in the other direction."""
        return self._replace(capacity=self.capacity.T.copy(), network=self.network[:, ::-1])

    def leaving(self, cut: Ints) -> int:
        """Return the units of all links that leave a set of vertices."""
        inside = np.zeros(self.vertices, dtype=bool)
        inside[cut] = True
        return int(self.capacity[inside][:, ~inside].sum())


def graph(machine: Machine, p: int | None = None) -> Graph:
    """Return the graph of a machine with ``links`` for p ranks, those of one node if p is left out.

    Fewer ranks than a node has are its first ones, with the links among them and the node's
    switches.

    Raises ValueError for a machine without links, a number of ranks that does not fill nodes,
    several nodes that no rail joins, and ranks without a way from one to another. Cost: about a
    millisecond.

    >>> from collectives.machine import machine
    >>> dgx1 = graph(machine("dgx1"))
    >>> dgx1.p, dgx1.capacity[0].tolist(), int(dgx1.unit)
    (8, [0, 2, 1, 1, 2, 0, 0, 0], 25000000000)
    """
    table, g = machine.links, machine.ranks_per_node
    if table is None or machine.inside is None:
        raise ValueError(
            f"links of {machine.name}: got none, expected a machine with links, such as dgx1 or mesh:4x4"
        )
    p = p or g
    nodes = -(-p // g)
    if (p > g and p % g) or (nodes > 1 and not table.rails):
        expected = f"a multiple of {g}, or fewer" if table.rails else f"{g} or fewer"
        raise ValueError(f"ranks of {machine.name}: got {p:,}, expected {expected}")
    rails = table.rails if nodes > 1 else 0
    n = p + nodes * table.switches + rails
    if n > MAX_VERTICES:
        raise ValueError(
            f"ranks and switches of {machine.name}: got {n:,}, expected at most {MAX_VERTICES:,}"
        )
    inside, network = Fraction(machine.inside.rate), Fraction(machine.network.rate)
    links: dict[tuple[int, int], Fraction] = {}
    between: list[tuple[int, int]] = []
    for node in range(nodes):
        vertex = {i: node * g + i for i in range(min(p, g))}
        vertex |= {g + i: p + node * table.switches + i for i in range(table.switches)}
        for a, b, count in table.counted(g):
            if a in vertex and b in vertex:
                links[vertex[a], vertex[b]] = count * inside
        out, into = table.ports(g)
        between += [(vertex[r], n - rails + r % rails) for r in out] if rails else []
        between += [(n - rails + r % rails, vertex[r]) for r in into] if rails else []
    return _graph(machine.name, p, n, links | dict.fromkeys(between, network), between)


def graph_of_ports(machine: Machine, p: int) -> Graph:
    """Return the graph of a machine without ``links`` for p ranks: its ports, and a switch that never is in the way.

    A rank has a port to its node's switch, and one to the network's switch, or to the port that it
    shares with others. The ports of a node that is ``slower`` have so many times less. Groups of
    nodes are left out: the least time on this graph is still one of the machine.

    Raises ValueError for several nodes that are not full, and for too many ranks.

    >>> from collectives.machine import machine
    >>> node = graph_of_ports(machine("dgx-h100"), 8)
    >>> node.vertices, node.leaving(np.array([0])) * int(node.unit)
    (9, 337000000000)
    """
    g, ports = machine.ranks_per_node, machine.ports
    nodes = -(-p // g)
    if nodes > 1 and p % g:
        raise ValueError(
            f"ranks of {machine.name}: got {p:,}, expected a multiple of {g}, or fewer"
        )
    inside = nodes if machine.inside and min(p, g) > 1 else 0
    shared = nodes * ports if nodes > 1 and ports < g else 0
    n = p + inside + shared + (nodes > 1)
    if n > MAX_VERTICES:
        raise ValueError(
            f"ranks and switches of {machine.name}: got {n:,}, expected at most {MAX_VERTICES:,}"
        )
    links = {
        (r, p + r // g): Fraction(machine.inside.rate)
        for r in range(p)
        if inside and machine.inside
    }
    outer = [
        (r, p + inside + r // g * ports + r % g * ports // g if shared else n - 1)
        for r in range(p * (nodes > 1))
    ]
    outer += [(p + inside + port, n - 1) for port in range(shared)]
    rate = Fraction(machine.network.rate)
    for a, b in outer:
        node = a // g if a < p else (a - p - inside) // ports
        slower = Fraction(machine.slower.get(node, 1)).limit_denominator(MAX_DENOMINATOR)
        # A shared port is slower itself, and not the ranks' ways to it.
        links[a, b] = rate / slower if b == n - 1 else rate
    both = links | {(b, a): rate for (a, b), rate in links.items()}
    return _graph(machine.name, p, n, both, outer + [(b, a) for a, b in outer])


def _graph(
    name: str,
    p: int,
    n: int,
    links: dict[tuple[int, int], Fraction],
    between: list[tuple[int, int]],
) -> Graph:
    scale = lcm(*(rate.denominator for rate in links.values())) if links else 1
    whole = {ends: int(rate * scale) for ends, rate in links.items()}
    common = gcd(*whole.values()) or 1
    capacity = np.zeros((n, n), dtype=np.int64)
    for ends, rate in whole.items():
        capacity[ends] = rate // common
    made = Graph(
        name, p, capacity, Fraction(common, scale), np.array(between, dtype=np.int64).reshape(-1, 2)
    )
    check_connected(made)
    return made


def check_connected(of: Graph) -> None:
    """Raise ValueError if one rank cannot reach another."""
    apart = distances(of.capacity)[: of.p, : of.p] >= of.vertices
    if apart.any():
        a, b = map(int, np.argwhere(apart)[0])
        raise ValueError(
            f"links of {of.name}: got no way from rank {a} to rank {b}, expected one between all ranks"
        )


def rank_links(of: Graph) -> Ints:
    """Return the links between ranks as a matrix of whole numbers.

    Raises ValueError for a graph with switches.

    >>> from collectives.machine import machine
    >>> rank_links(graph(machine("dgx1"))).sum(axis=0).tolist()
    [6, 6, 6, 6, 6, 6, 6, 6]
    """
    if of.vertices > of.p:
        raise ValueError(
            f"switches of {of.name}: got {of.vertices - of.p}, expected none: links between ranks only"
        )
    return of.capacity


def check_links(links: Ints) -> None:
    """Raise ValueError unless ``links[a, b]`` may be the number of links from rank a to rank b, with ways to all."""
    p = len(links)
    if (
        links.shape != (p, p)
        or p < 2
        or links.dtype.kind not in "iu"
        or (links < 0).any()
        or links.diagonal().any()
    ):
        what = "a square matrix of whole numbers from 0, with zeros on the diagonal, for two ranks or more"
        raise ValueError(f"links: got {links.dtype} of shape {links.shape}, expected {what}")
    check_connected(Graph("a matrix", p, links, Fraction(1), NO_LINKS))


def distances(links: Ints) -> Ints:
    """Return the number of links from each rank to each other; p if there is no way.

    >>> distances(np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])).tolist()
    [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    """
    # Its import takes half a second, which the simulator of other machines saves.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    found: Ints = np.minimum(shortest_path(csr_array(links), unweighted=True), len(links)).astype(
        np.int64
    )
    return found


class MaxFlow(NamedTuple):
    """The value of a maximum flow, and the vertices on the source's side of a minimum cut."""

    value: int
    side: Ints


def flow(capacity: Ints, source: int, sink: int) -> MaxFlow:
    """Return the maximum flow between two vertices of a matrix of capacities.

    Raises ValueError above 31 bits.

    >>> flow(np.array([[0, 2, 1], [0, 0, 1], [0, 0, 0]]), 0, 2)
    MaxFlow(value=2, side=array([0, 1]))
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    if capacity.sum(axis=1).max() > MAX_FLOW:
        raise ValueError(
            "rates of links: got too many digits for exact flows, expected rates with few, such as 12.5GB/s"
        )
    found = maximum_flow(csr_array(capacity.astype(np.int32)), source, sink)
    residual = capacity - found.flow.toarray() > 0
    reached = np.zeros(len(capacity), dtype=bool)
    reached[source], size = True, 0
    while size < (size := int(reached.sum())):
        reached |= residual[reached].any(axis=0)
    return MaxFlow(int(found.flow_value), np.flatnonzero(reached))


def with_source(capacity: Ints, give: Ints) -> Ints:
    """Return the matrix with a source as its last vertex, which sends ``give[v]`` units to each vertex v.

    >>> with_source(np.array([[0, 2], [1, 0]]), np.array([3, 0])).tolist()
    [[0, 2, 0], [1, 0, 0], [3, 0, 0]]
    """
    return np.pad(np.vstack([capacity, give]), ((0, 0), (0, 1)))


class Ways(NamedTuple):
    """The way from each vertex to each other: links ``link[first[a * n + b] : first[a * n + b + 1]]``, as a * n + b."""

    first: Ints
    link: Ints

    def between(self, a: int, b: int, n: int) -> Ints:
        """Return the vertices between a and b on their way."""
        return self.link[self.first[a * n + b] : self.first[a * n + b + 1]][1:] // n


def ways(of: Graph) -> Ways:
    """Return the shortest way of every pair of ranks.

    Of equally short ones, one whose slowest link is the fastest.

    Of those that are equal in both, pairs take different ones, chosen by their ranks. Cost:
    vertices**2 * links.
    """
    n, far = of.vertices, distances(of.capacity)
    into = [np.flatnonzero(of.capacity[:, b]) for b in range(n)]
    found: list[list[int]] = [[] for _ in range(n * n)]
    for s in range(of.p):
        width = np.zeros(n, dtype=np.int64)  # units of the slowest link on the way
        width[s] = np.iinfo(np.int64).max
        for b in sorted(np.flatnonzero(far[s] < n).tolist(), key=far[s].__getitem__)[1:]:
            ends = into[b][far[s, into[b]] == far[s, b] - 1]
            wide = np.minimum(width[ends], of.capacity[ends, b])
            width[b] = wide.max()
            among = ends[wide == width[b]]
            before = int(among[(s + b) % len(among)])
            found[s * n + b] = [*found[s * n + before], before * n + b]
    first = np.cumsum([0, *map(len, found)])
    return Ways(first, np.array([link for path in found for link in path], dtype=np.int64))
