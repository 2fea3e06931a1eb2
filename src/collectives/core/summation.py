"""The order in which a schedule adds: for every rank and chunk a tree of sums, and which of them have the same bits.

A node is what a rank holds of a chunk: the contribution of one rank, or a sum of nodes. Equal nodes
have one number, so two cells with one number have the same bits whatever the data, if a + b and b +
a have. Cells with different numbers may differ in floating point; integers, minima and maxima are
equal in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import expm1, log1p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.core.schedule import Ints, Schedule, Step
from collectives.errors import unknown

# A rounding changes a value by at most this share of it: half the distance between 1 and the next
# number.
ROUNDINGS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# Cells for which nodes are kept: 0.5 GiB.
MAX_CELLS = 1 << 23
# The node that a switch begins with: it contributes nothing.
IDENTITY = -1


class ReductionTree:
    """Contributions and sums by number: r for the contribution of rank r, and p or more for a sum.

    ``operands[number]`` are the nodes of a sum, added from left to right, and () for a
    contribution; a single operand is rounded to the format of messages. ``depths[number]`` is the
    most additions on the way from a contribution to it. One object may serve several schedules on p
    ranks: then equal numbers mean equal bits across them, too.

    >>> tree = ReductionTree(4)
    >>> tree.add([0, 1]) == tree.add([1, 0]), tree.add([4, 2]) == tree.add([4, 3])
    (True, False)
    """

    def __init__(self, p: int) -> None:
        self.operands: list[tuple[int, ...]] = [()] * p
        self.depths = [0] * p
        self._numbers: dict[tuple[int, ...], int] = {}

    def add(self, nodes: Sequence[int]) -> int:
        """Return the number of a sum of nodes, rounded once after the last of them, or of one node itself."""
        several = [node for node in nodes if node != IDENTITY]
        if len(several) < 2:
            return several[0] if several else IDENTITY
        key = (min(several[:2]), max(several[:2]), *several[2:])
        number = self._numbers.setdefault(key, len(self.operands))
        if number == len(self.operands):
            self.operands.append(key)
            self.depths.append(1 + max(self.depths[node] for node in key))
        return number

    def send(self, node: int) -> int:
        """Return the number of a node as it is sent, its own if it was sent, because rounding again is exact.

        >>> tree = ReductionTree(2)
        >>> tree.send(0), tree.send(tree.send(0))
        (2, 2)
        """
        if node == IDENTITY or len(self.operands[node]) == 1:
            return node
        number = self._numbers.setdefault((node,), len(self.operands))
        if number == len(self.operands):
            self.operands.append((node,))
            self.depths.append(self.depths[node])
        return number

    def evaluate(
        self,
        number: int,
        values: NDArray[Any],
        rounded: Callable[[Any], Any] = lambda sums: sums,
        sent: Callable[[Any], Any] = lambda sums: sums,
    ) -> Any:
        """Return the node's value for contributions ``values[rank]``, each sum taken in their dtype and ``rounded``.

        ``sent`` rounds what is sent to the format of messages. Cost: the additions, and memory for
        every node below this one.
        """
        known: dict[int, Any] = {}
        for node in self.sums_below(number):
            first, *others = (
                values[each] if each not in known else known[each] for each in self.operands[node]
            )
            for other in others:
                first = first + other
            known[node] = rounded(first) if others else sent(first)
        return known[number] if number in known else values[number]

    def sums_below(self, number: int) -> list[int]:
        """Return all sums that a node is computed from, itself last, each after its operands."""
        needed, found = [number], set[int]()
        while needed:
            node = needed.pop()
            if self.operands[node] and node not in found:
                found.add(node)
                needed.extend(self.operands[node])
        return sorted(found)


class Summation(NamedTuple):
    """The nodes that ranks hold at the end: ``node[rank, i]`` of the chunk ``chunks[i]``."""

    tree: ReductionTree
    node: Ints
    chunks: range

    @property
    def depth(self) -> Ints:
        """Return the additions on the longest way to each node, of the shape of ``node``."""
        return np.asarray(self.tree.depths)[self.node]


def summation(
    schedule: Schedule,
    chunk: int | None = None,
    tree: ReductionTree | None = None,
    *,
    once: bool = False,
    rounds_messages: bool = False,
) -> Summation:
    """Return the sums that every rank holds at the end, for all chunks or for one.

    Equals the plain program: run the schedule, with a new number for every sum of numbers that is
    new. What arrives in one step for one cell is added in rank order, the cell's own value in its
    place, as `interpret.apply` does: by additions of two, or, with ``once``, by one sum that is
    rounded at its end, as float16 and bfloat16 are. With ``rounds_messages`` a cell that is sent is
    rounded first (`ReductionTree.send`), also at its sender, and so is every result.

    Raises ValueError for more than 8,388,608 cells (name a chunk then), and for a chunk that the
    schedule lacks. Cost: about 1 us for each chunk that a row moves.

    >>> from collectives.algorithms import build
    >>> ring, doubling = (summation(build("all_reduce", name, 8)) for name in ("ring", "recursive_doubling"))
    >>> int(ring.depth.max()), int(doubling.depth.max())
    (7, 3)
    """
    p, k = schedule.p, schedule.k
    if chunk is not None and not 0 <= chunk < k:
        raise ValueError(f"chunk of the schedule: got {chunk}, expected 0 to {k - 1}")
    chunks = range(k) if chunk is None else range(chunk, chunk + 1)
    if p * len(chunks) > MAX_CELLS:
        raise ValueError(
            f"sums of {p:,} ranks x {k:,} chunks: got too many cells, expected one chunk by its number"
        )
    tree = tree or ReductionTree(p)
    nodes = [[*range(p), *[IDENTITY] * schedule.switches] for _ in chunks]
    for step in schedule.steps():
        if rounds_messages:
            _round_sent(step, chunks, nodes, tree)
        for (at, dst), arrived in _arriving(step, chunks, nodes).items():
            nodes[at][dst] = _combined(tree, arrived, (dst, nodes[at][dst]), once)
    if rounds_messages:
        nodes = [[tree.send(node) for node in cells] for cells in nodes]
    return Summation(tree, np.array([row[:p] for row in nodes]).T, chunks)


Arrived = list[tuple[int, int, bool]]  # sender, node, whether it is added


def _arriving(step: Step, chunks: range, nodes: list[list[int]]) -> dict[tuple[int, int], Arrived]:
    """Return what arrives in each (place of a chunk, rank), read before anything is written."""
    found: dict[tuple[int, int], Arrived] = {}
    for row, chunk in _moved(step, chunks):
        src, at = int(step.src[row]), chunk - chunks.start
        found.setdefault((at, int(step.dst[row])), []).append(
            (src, nodes[at][src], bool(step.add[row]))
        )
    return found


def _round_sent(step: Step, chunks: range, nodes: list[list[int]], tree: ReductionTree) -> None:
    for row, chunk in _moved(step, chunks):
        cells, src = nodes[chunk - chunks.start], int(step.src[row])
        cells[src] = tree.send(cells[src])


def _moved(step: Step, chunks: range) -> Iterator[tuple[int, int]]:
    """Return the rows of a step with each chunk of theirs that is asked for."""
    if len(chunks) == 1:
        (only,) = chunks
        rows = np.flatnonzero((step.chunk <= only) & (only < step.chunk + step.count))
        return ((row, only) for row in rows.tolist())
    rows, moved = step.cells()
    return zip(rows.tolist(), moved.tolist(), strict=True)


def _combined(tree: ReductionTree, arrived: Arrived, own: tuple[int, int], once: bool) -> int:
    if not arrived[0][2]:
        return arrived[-1][1]  # it replaces
    ordered = [node for _, node in sorted([own, *((src, node) for src, node, _ in arrived)])]
    if once:
        return tree.add(ordered)
    total = ordered[0]
    for node in ordered[1:]:
        total = tree.add([total, node])
    return total


def is_alike(schedule: Schedule) -> bool:
    """Return True if all ranks of an all-reduce hold the same sums, so that floats have the same bits on every rank.

    >>> from collectives.algorithms import build
    >>> is_alike(build("all_reduce", "recursive_doubling", 8)), is_alike(build("all_reduce", "swing_doubling", 8))
    (True, False)
    """
    node = summation(schedule).node
    return bool((node == node[0]).all())


def bound(depth: int, dtype: str) -> float:
    """Return the largest error of a sum that passes ``depth`` roundings, as a share of the sum of absolute values.

    (1 + u)^depth - 1, u half the distance from 1 to the next number (Higham 2002, section 4.2).
    Raises ValueError for a dtype that does not round, or that is unknown.

    >>> f"{bound(3, 'bfloat16'):.4f}, {bound(1023, 'bfloat16'):.0f}"
    '0.0118, 53'
    """
    if dtype not in ROUNDINGS:
        raise ValueError(unknown("dtype", dtype, list(ROUNDINGS)))
    return expm1(depth * log1p(ROUNDINGS[dtype]))
