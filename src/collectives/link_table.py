"""The links of a machine one by one: a matrix, pairs, or a mesh or torus of ranks and switches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from collectives.config import Count, StrictModel

MOST_VERTICES = 1024
LATTICES = ("mesh:", "torus:")
Multiple = Annotated[int, Field(ge=0, le=1 << 20, strict=True)]
Vertex = Annotated[int, Field(ge=0, strict=True)]
Share = Annotated[float, Field(ge=0, le=1)]


class LinkTable(StrictModel):
    """How many parallel links lead from one vertex of a node to another.

    The vertices of a node are its ranks, then its switches. Row ``a``, column ``b`` of ``matrix`` is the number of
    links from a to b; ``pairs`` are the same as (a, b, number). With ``rails``, nodes are joined: rank r of every node
    has a port to switch ``r % rails`` of the network. ``egress`` and ``ingress`` are the ranks of a node that have such
    a port, all if left out. ``places`` are the vertices' x and y in a picture, from 0 to 1, y downwards.

    >>> LinkTable(pairs=[(0, 1, 2), (1, 0, 1)]).counted(2)
    [(0, 1, 2), (1, 0, 1)]
    """

    matrix: tuple[tuple[Multiple, ...], ...] = ()
    pairs: tuple[tuple[Vertex, Vertex, Multiple], ...] = ()
    switches: Annotated[int, Field(ge=0, strict=True)] = 0
    rails: Annotated[int, Field(ge=0, strict=True)] = 0
    egress: tuple[Vertex, ...] | None = None
    ingress: tuple[Vertex, ...] | None = None
    places: tuple[tuple[Share, Share], ...] = ()

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.matrix) == bool(self.pairs):
            raise ValueError(f"links: got {'both' if self.pairs else 'neither'}, expected a matrix or pairs")
        if not self.rails and (self.egress is not None or self.ingress is not None):
            raise ValueError("egress and ingress of a network: got rails 0, expected 1 or more")
        return self

    def counted(self, ranks: int) -> list[tuple[int, int, int]]:
        """The links of a node of so many ranks as (from, to, number), checked.

        Raises ValueError for a matrix of another size, a vertex that is not there, a link from a vertex to itself, a
        pair that is given twice, and a switch that sends and receives at different rates.
        """
        n = ranks + self.switches
        _need(n <= MOST_VERTICES, f"links: got {n:,} ranks and switches, expected at most {MOST_VERTICES:,}")
        _need(len(self.places) in (0, n), f"places: got {len(self.places)}, expected {n}")
        sizes = {len(self.matrix), *map(len, self.matrix)}
        _need(not self.matrix or sizes == {n}, f"matrix of links: got rows and columns {_said(sizes)}, expected {n}")
        for name in ("egress", "ingress"):
            for r in getattr(self, name) or ():
                _need(r < ranks, f"{name} of the network: got rank {r}, expected 0 to {ranks - 1}")
        found: dict[tuple[int, int], int] = {}
        for a, b, count in self._given():
            _need(max(a, b) < n, f"link from {a} to {b}: got no such rank or switch, expected 0 to {n - 1}")
            _need(a != b or not count, f"link from {a} to itself: got {count}, expected 0")
            _need((a, b) not in found, f"link from {a} to {b}: got it twice, expected once")
            found[a, b] = count
        for switch in range(ranks, n):
            out, into = (sum(count for ends, count in found.items() if ends[i] == switch) for i in (0, 1))
            _need(out == into, f"links of switch {switch}: got {into} in and {out} out, expected as many")
        return [(a, b, count) for (a, b), count in found.items() if count]

    def _given(self) -> Iterator[tuple[int, int, int]]:
        yield from self.pairs
        yield from ((a, b, count) for a, row in enumerate(self.matrix) for b, count in enumerate(row) if count)

    def ports(self, ranks: int) -> tuple[list[int], list[int]]:
        """The ranks of a node with a port out to the network, and those with a port in."""
        return [*range(ranks)] if self.egress is None else [*self.egress], (
            [*range(ranks)] if self.ingress is None else [*self.ingress]
        )


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _said(sizes: set[int]) -> str:
    return " and ".join(map(str, sorted(sizes)))


def lattice(sizes: tuple[Count, ...], wraps: bool) -> LinkTable:
    """A mesh of these sizes, or with ``wraps`` a torus: a link each way between neighbours along every axis.

    Ranks are numbered with the last axis fastest. An axis of two ranks has one link each way, also in a torus.

    >>> [len(lattice((3, 3), wraps).pairs) for wraps in (False, True)]
    [24, 36]
    """
    places = {place: r for r, place in enumerate(product(*(range(size) for size in sizes)))}
    pairs: dict[tuple[int, int], int] = {}
    for place, r in places.items():
        for axis, size in enumerate(sizes):
            for way in (1, -1):
                at = place[axis] + way
                other = (*place[:axis], at % size if wraps else at, *place[axis + 1 :])
                if other != place and other in places:
                    pairs[r, places[other]] = 1
    whole = tuple((a, b, count) for (a, b), count in pairs.items())
    if len(sizes) != 2:
        return LinkTable(pairs=whole)
    down, right = (max(1, size - 1) for size in sizes)
    return LinkTable(pairs=whole, places=tuple((x / right, y / down) for y, x in places))


def lattice_fields(name: str) -> dict[str, Any]:
    """The fields of the machine that is named ``mesh:5x5``, or ``torus:4x4,LATENCY,RATE``.

    Raises ValueError for sizes that are no positive whole numbers, and outside 2 to 1,024 ranks.

    >>> lattice_fields("mesh:2x2")["inside"]
    {'latency': '1us', 'rate': '50GB/s'}
    """
    shape, _, link = name.partition(",")
    kind, _, axes = shape.partition(":")
    latency, _, rate = (link or "1us,50GB/s").partition(",")
    sizes = tuple(int(size) for size in axes.split("x") if size.isdecimal())
    if len(sizes) != 1 + axes.count("x") or min(sizes) < 1 or not 2 <= prod(sizes) <= MOST_VERTICES:
        raise ValueError(f"size of a {kind}: got {axes!r}, expected such as 4x4, of 2 to {MOST_VERTICES:,} ranks")
    return {
        "name": name,
        "ranks_per_node": prod(sizes),
        "inside": {"latency": latency, "rate": rate},
        "links": lattice(sizes, wraps=kind == "torus"),
    }
