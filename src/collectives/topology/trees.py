"""Packed trees as a schedule: the algorithm ``packed_trees@MACHINE``, made for that machine's links."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import lcm

import numpy as np

from collectives.machine import Machine, machine
from collectives.schedule import Schedule, Step, column, reverse, then
from collectives.topology.graph import graph
from collectives.topology.packing import Trees, packed

NAME = "packed_trees"
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")


def packed_trees(collective: str, on: Machine, p: int, segments: int = 1, root: int = 0) -> Schedule:
    """Spanning trees over a machine's links that together reach its bound, pipelined in segments.

    An all_gather has trees from every rank, a broadcast from its root. Each tree carries its own chunks. A reduction
    runs the trees of the reversed links backwards; an all_reduce is a reduce_scatter, then an all_gather. With s
    segments and trees of depth d it takes at most ``(s + d - 1) / s`` times the bound, and latencies.

    Raises ValueError for another collective, and as `topology.graph` and `topology.packed` do.

    >>> from collectives import verify
    >>> schedule = packed_trees("all_reduce", machine("dgx1"), 8, segments=2)
    >>> verify(schedule)
    >>> schedule.k, schedule.nsteps
    (96, 14)
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective of {NAME}: got {collective}, expected one of {', '.join(COLLECTIVES)}")
    if collective == "all_reduce":
        return _both(on, p, segments)
    towards = collective.startswith("reduce")
    spread = "broadcast" if collective in ("broadcast", "reduce") else "all_gather"
    each, trees = _packed(spread, on, p, root, towards)
    out = _pipelined(spread, p, each, trees, segments, root)
    return reverse(out, collective, add=True) if towards else out


def _both(on: Machine, p: int, segments: int) -> Schedule:
    """Both phases in the same chunks: each root's number of trees may differ where links differ by direction."""
    plans = [_packed("all_gather", on, p, 0, towards) for towards in (True, False)]
    common = lcm(*(each for each, _ in plans))
    into, out = (_pipelined("all_gather", p, each, trees, segments * common // each, 0) for each, trees in plans)
    return then(reverse(into, "reduce_scatter", add=True), out, "all_reduce")


@lru_cache(maxsize=32)
def _packed_text(collective: str, text: str, p: int, root: int, towards: bool) -> tuple[int, list[Trees]]:
    of = graph(Machine.model_validate_json(text), p)
    return packed(collective, of.transposed() if towards else of, root)


def _packed(collective: str, on: Machine, p: int, root: int, towards: bool) -> tuple[int, list[Trees]]:
    return _packed_text(collective, on.model_dump_json(), p, root, towards)


def _pipelined(collective: str, p: int, each: int, trees: list[Trees], segments: int, root: int) -> Schedule:
    """Every tree sends its next segment in every step, a link further from the root one step later.

    Segment j of a root's part is ``each`` chunks, one for each of its trees; equal trees have neighbouring chunks.
    """
    parts, rows, used = (p if collective == "all_gather" else 1), [], dict.fromkeys(range(p), 0)
    for tree in trees:
        part = tree.root if parts > 1 else 0
        begin = part * each * segments + used[part]
        used[part] += tree.count
        rows += [(tree.depth[parent], parent, child, begin, tree.count) for parent, child in tree.links]
    depth, src, dst, first, count = (np.array(values, dtype=np.int64) for values in zip(*sorted(rows), strict=True))

    def make(t: int) -> Step:
        sends = (depth <= t) & (t < depth + segments)
        chunk = first[sends] + each * (t - depth[sends])
        return Step(column(src[sends]), column(dst[sends]), column(chunk), column(count[sends]))

    nsteps = segments + int(depth.max())
    rooted = root if collective == "broadcast" else None
    return Schedule(collective, p, parts * each * segments, nsteps, make, root=rooted, one_port=False)


def on_links(collective: str, name: str) -> Callable[..., Schedule]:
    """The function behind ``packed_trees@MACHINE``, for `algorithms.build`: a preset, NAME.yaml, or a mesh or torus."""
    on = machine(name)
    if collective not in COLLECTIVES:
        raise ValueError(f"collective of {NAME}: got {collective}, expected one of {', '.join(COLLECTIVES)}")

    def unrooted(p: int, segments: int = 1) -> Schedule:
        return packed_trees(collective, on, p, segments)

    def rooted(p: int, segments: int = 1, root: int = 0) -> Schedule:
        return packed_trees(collective, on, p, segments, root)

    return rooted if collective in ("broadcast", "reduce") else unrooted
