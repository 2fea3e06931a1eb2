"""Pack spanning trees into a graph of links, and make them a schedule: the algorithm ``packed_trees@MACHINE``.

There are as many trees from every root as the bound allows, and no link carries more. Two steps
lead there, both after Zhao et al., ForestColl (arXiv 2402.06787, sections 5.2 and 5.3). Switches
are removed one by one: a link into one and a link out of it become a link between their other ends,
as far as every rank can still be reached (edge splitting, Bang-Jensen, Frank and Jackson 1995).
Then trees grow link by link, each only as far as the others can still be completed (Edmonds 1973;
in groups of equal trees, Berczi and Frank 2010).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import lcm

import numpy as np

from collectives.core.schedule import Ints, Schedule, Step, column, reverse, then
from collectives.machine import Machine, machine
from collectives.topology.bound import bound
from collectives.topology.graph import Graph, Ways, flow, graph, ways, with_source

NAME = "packed_trees"
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")

# Trees of one root; beyond that, growing them takes minutes.
MAX_TREES = 512


@dataclass
class Trees:
    """``count`` equal trees of one root: the ranks reached, and links (parent, child) in the order of their growth."""

    root: int
    count: int
    depth: dict[int, int]  # by rank reached
    links: list[tuple[int, int]] = field(default_factory=list)


def packed(collective: str, of: Graph, root: int = 0) -> tuple[int, list[Trees]]:
    """Return the number of trees a root has, and the trees: from all ranks (all_gather) or from ``root`` (broadcast).

    Each tree spans all ranks. If every tree carries one unit, each link carries at most ``capacity
    * scale`` units, where the bound is ``number of trees / scale``; so pipelined trees reach the
    bound. Raises ValueError if a root would have more than 512 trees. Cost: about ranks**2 maximum
    flows for each group of trees; DGX-1 0.1 s.

    >>> from collectives.machine import machine
    >>> from collectives.topology.graph import graph
    >>> each, trees = packed("all_gather", graph(machine("dgx1")))
    >>> each, sum(tree.count for tree in trees)
    (6, 48)
    """
    if of.p == 1:
        return 1, [Trees(0, 1, {0: 0})]
    share = 1 / bound(collective, of, root).units
    share = share / of.p if collective == "all_gather" else share
    each, scale = share.numerator, share.denominator
    if each > MAX_TREES:
        raise ValueError(
            f"trees of a root on {of.name}: got {each:,}, expected at most {MAX_TREES}"
        )
    give = np.zeros(of.vertices, dtype=np.int64)
    give[range(of.p) if collective == "all_gather" else root] = each
    capacity = without_switches(of._replace(capacity=of.capacity * scale), give)
    return each, _grown(capacity, [Trees(r, each, {r: 0}) for r in range(of.p) if give[r]])


def without_switches(of: Graph, give: Ints) -> Ints:
    """Return links between ranks alone, over which every rank still receives the units that all ranks give together."""
    capacity, along = of.capacity.copy(), ways(of)
    for switch in range(of.vertices - 1, of.p - 1, -1):
        pairs = [
            (u, t)
            for t in np.flatnonzero(capacity[switch])
            for u in np.flatnonzero(capacity[:, switch])
        ]
        pairs.sort(key=lambda ends, switch=switch: _order(of, along, switch, *ends))  # type: ignore[misc]
        for u, t in pairs:
            _split(capacity, int(u), switch, int(t), give, of.p)
        if capacity[switch].any():
            raise ValueError(f"links of {of.name}: got a switch {switch} that cannot be removed")
    return capacity[: of.p, : of.p]


def _order(of: Graph, along: Ways, switch: int, u: int, t: int) -> tuple[bool, int]:
    """Return a sort key: pairs whose way leads over the switch, then those nearest to half of all ranks apart.

    So ranks in the same place of two nodes are joined, which leaves none that only its own node
    could take.
    """
    return switch not in along.between(u, t, of.vertices), (t - u + of.p // 2) % of.p


def _split(capacity: Ints, u: int, switch: int, t: int, give: Ints, p: int) -> None:
    """Move as many units as possible from the way over the switch to a link of u and t."""
    most = int(min(capacity[u, switch], capacity[switch, t]))
    if most == 0:
        return
    _move(capacity, u, switch, t, most)
    lacking = max(int(give.sum()) - _reach(capacity, give, v) for v in range(p))
    if lacking > 0:
        _move(capacity, u, switch, t, -min(lacking, most))


def _move(capacity: Ints, u: int, switch: int, t: int, units: int) -> None:
    capacity[u, switch] -= units
    capacity[switch, t] -= units
    if u != t:
        capacity[u, t] += units


def _reach(capacity: Ints, give: Ints, v: int) -> int:
    """Return the units that reach rank v of those that all ranks give."""
    return flow(with_source(capacity, give), len(capacity), v).value


def _grown(capacity: Ints, growing: list[Trees]) -> list[Trees]:
    """Complete all trees.

    Each takes links of its own, so that the others can still be completed.
    """
    done: list[Trees] = []
    while growing:
        now = growing.pop(0)
        while len(now.depth) < len(capacity):
            parent, child, units = _next_link(capacity, now, growing)
            if units < now.count:
                growing.insert(
                    0,
                    replace(now, count=now.count - units, depth={**now.depth}, links=[*now.links]),
                )
                now.count = units
            capacity[parent, child] -= units
            now.depth[child] = now.depth[parent] + 1
            now.links.append((parent, child))
        done.append(now)
    return done


def _next_link(capacity: Ints, now: Trees, others: list[Trees]) -> tuple[int, int, int]:
    """Return a link from a rank that is reached to one that is not, and how many of the equal trees may take it.

    Ranks near the root come first, because a low tree fills its pipeline sooner.
    """
    best = (0, 0, 0)
    for parent in sorted(now.depth, key=now.depth.__getitem__):
        if best[2] and now.depth[parent] > now.depth[best[0]]:
            break
        for child in np.flatnonzero(capacity[parent]).tolist():
            if child not in now.depth:
                units = min(
                    _spare(capacity, parent, child, others), now.count, int(capacity[parent, child])
                )
                if units == now.count:
                    return parent, child, units
                best = max(best, (parent, child, units), key=lambda link: link[2])
    if not best[2]:
        raise RuntimeError(
            "trees of a graph: no link can be taken, which Edmonds' theorem rules out"
        )
    return best


def _spare(capacity: Ints, parent: int, child: int, others: list[Trees]) -> int:
    """Return the units of a link that are free: as many as leave every other tree a way to the ranks that it lacks.

    A set of ranks with ``child`` and without ``parent`` needs an ingoing unit for each tree that is
    wholly outside.
    """
    n, need = len(capacity), sum(trees.count for trees in others)
    wide = np.zeros((n + len(others), n + len(others)), dtype=np.int64)
    wide[:n, :n] = capacity
    for i, trees in enumerate(others, start=n):
        wide[parent, i] = trees.count
        wide[i, [*trees.depth]] = trees.count
    return flow(wide, parent, child).value - need


def packed_trees(
    collective: str, on: Machine, p: int, segments: int = 1, root: int = 0
) -> Schedule:
    """Return spanning trees over a machine's links that together reach its bound, pipelined in segments.

    An all_gather has trees from every rank, a broadcast from its root. Each tree carries its own
    chunks. A reduction runs the trees of the reversed links backwards; an all_reduce is a
    reduce_scatter, then an all_gather. With s segments and trees of depth d it takes at most ``(s +
    d - 1) / s`` times the bound, and latencies.

    Raises ValueError for another collective, and as `topology.graph` and `packed` do.

    >>> from collectives import verify
    >>> schedule = packed_trees("all_reduce", machine("dgx1"), 8, segments=2)
    >>> verify(schedule)
    >>> schedule.k, schedule.nsteps
    (96, 14)
    """
    if collective not in COLLECTIVES:
        raise ValueError(
            f"collective of {NAME}: got {collective}, expected one of {', '.join(COLLECTIVES)}"
        )
    if collective == "all_reduce":
        return _both(on, p, segments)
    towards = collective.startswith("reduce")
    spread = "broadcast" if collective in ("broadcast", "reduce") else "all_gather"
    each, trees = _packed(spread, on.model_dump_json(), p, root, towards)
    out = _pipelined(spread, p, each, trees, segments, root)
    return reverse(out, collective, add=True) if towards else out


def _both(on: Machine, p: int, segments: int) -> Schedule:
    """Return both phases in the same chunks: a root's number of trees may differ where links differ by direction."""
    plans = [
        _packed("all_gather", on.model_dump_json(), p, 0, towards) for towards in (True, False)
    ]
    common = lcm(*(each for each, _ in plans))
    into, out = (
        _pipelined("all_gather", p, each, trees, segments * common // each, 0)
        for each, trees in plans
    )
    return then(reverse(into, "reduce_scatter", add=True), out, "all_reduce")


@lru_cache(maxsize=32)
def _packed(
    collective: str, text: str, p: int, root: int, towards: bool
) -> tuple[int, list[Trees]]:
    """Return the trees on a machine, which is given as text because a machine has no hash."""
    of = graph(Machine.model_validate_json(text), p)
    return packed(collective, of.transposed() if towards else of, root)


def _pipelined(
    collective: str, p: int, each: int, trees: list[Trees], segments: int, root: int
) -> Schedule:
    """Let every tree send its next segment in every step, a link further from the root one step later.

    Segment j of a root's part is ``each`` chunks, one for each of its trees; equal trees have
    neighbouring chunks.
    """
    parts, rows, used = (p if collective == "all_gather" else 1), [], dict.fromkeys(range(p), 0)
    for tree in trees:
        part = tree.root if parts > 1 else 0
        begin = part * each * segments + used[part]
        used[part] += tree.count
        rows += [
            (tree.depth[parent], parent, child, begin, tree.count) for parent, child in tree.links
        ]
    depth, src, dst, first, count = (
        np.array(values, dtype=np.int64) for values in zip(*sorted(rows), strict=True)
    )

    def make(t: int) -> Step:
        sends = (depth <= t) & (t < depth + segments)
        chunk = first[sends] + each * (t - depth[sends])
        return Step(column(src[sends]), column(dst[sends]), column(chunk), column(count[sends]))

    nsteps = segments + int(depth.max())
    rooted = root if collective == "broadcast" else None
    return Schedule(
        collective, p, parts * each * segments, nsteps, make, root=rooted, one_port=False
    )


def on_links(collective: str, name: str) -> Callable[..., Schedule]:
    """Return the function behind ``packed_trees@MACHINE``: a preset, NAME.yaml, or a mesh or torus."""
    on = machine(name)
    if collective not in COLLECTIVES:
        raise ValueError(
            f"collective of {NAME}: got {collective}, expected one of {', '.join(COLLECTIVES)}"
        )

    def unrooted(p: int, segments: int = 1) -> Schedule:
        return packed_trees(collective, on, p, segments)

    def rooted(p: int, segments: int = 1, root: int = 0) -> Schedule:
        return packed_trees(collective, on, p, segments, root)

    return rooted if collective in ("broadcast", "reduce") else unrooted
