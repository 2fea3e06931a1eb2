"""The order in which a schedule adds: for every rank and chunk a tree of sums, and which of them have the same bits.

A term is what a rank holds of a chunk: the contribution of one rank, or a sum of terms. Equal terms have one number,
so two cells with one number have the same bits whatever the data, if a + b and b + a have. Cells with different numbers
may differ in floating point; integers, minima and maxima are equal in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import expm1, log1p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.errors import unknown
from collectives.schedule import Ints, Schedule, Step

# A rounding changes a value by at most this share of it: half the distance between 1 and the next number.
ROUNDINGS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

# Cells for which terms are kept: 0.5 GiB.
MOST_CELLS = 1 << 23
# What a switch begins with: it contributes nothing.
NOTHING = -1


class Terms:
    """Contributions and sums by number: r for the contribution of rank r, and p or more for a sum.

    ``operands[number]`` are the terms of a sum, added from left to right, and () for a contribution; a single operand
    is rounded to the schedule's wire format. ``depths[number]`` is the most additions on the way from a contribution to
    it. One object may serve several schedules on p ranks: then equal numbers mean equal bits across them, too.

    >>> terms = Terms(4)
    >>> terms.add([0, 1]) == terms.add([1, 0]), terms.add([4, 2]) == terms.add([4, 3])
    (True, False)
    """

    def __init__(self, p: int) -> None:
        self.operands: list[tuple[int, ...]] = [()] * p
        self.depths = [0] * p
        self._numbers: dict[tuple[int, ...], int] = {}

    def add(self, terms: Sequence[int]) -> int:
        """Return the number of a sum of terms, rounded once after the last of them, or of one term itself."""
        several = [term for term in terms if term != NOTHING]
        if len(several) < 2:
            return several[0] if several else NOTHING
        key = (min(several[:2]), max(several[:2]), *several[2:])
        number = self._numbers.setdefault(key, len(self.operands))
        if number == len(self.operands):
            self.operands.append(key)
            self.depths.append(1 + max(self.depths[term] for term in key))
        return number

    def send(self, term: int) -> int:
        """Return the number of a term rounded to the wire, its own if it is rounded, because rounding again is exact.

        >>> terms = Terms(2)
        >>> terms.send(0), terms.send(terms.send(0))
        (2, 2)
        """
        if term == NOTHING or len(self.operands[term]) == 1:
            return term
        number = self._numbers.setdefault((term,), len(self.operands))
        if number == len(self.operands):
            self.operands.append((term,))
            self.depths.append(self.depths[term])
        return number

    def evaluate(
        self,
        number: int,
        values: NDArray[Any],
        rounded: Callable[[Any], Any] = lambda sums: sums,
        sent: Callable[[Any], Any] = lambda sums: sums,
    ) -> Any:
        """Return the term's value for contributions ``values[rank]``, each sum taken in their dtype and ``rounded``.

        ``sent`` rounds what is sent to the schedule's wire. Cost: the additions, and memory for every term below this
        one.
        """
        known: dict[int, Any] = {}
        for term in self.sums_below(number):
            first, *others = (values[each] if each not in known else known[each] for each in self.operands[term])
            for other in others:
                first = first + other
            known[term] = rounded(first) if others else sent(first)
        return known[number] if number in known else values[number]

    def sums_below(self, number: int) -> list[int]:
        """Return all sums that a term is computed from, itself last, each after its operands."""
        needed, found = [number], set[int]()
        while needed:
            term = needed.pop()
            if self.operands[term] and term not in found:
                found.add(term)
                needed.extend(self.operands[term])
        return sorted(found)


class Summation(NamedTuple):
    """The terms that ranks hold at the end: ``held[rank, i]`` of the chunk ``chunks[i]``."""

    terms: Terms
    held: Ints
    chunks: range

    @property
    def depth(self) -> Ints:
        """Return the additions on the longest way to each held term, of the shape of ``held``."""
        return np.asarray(self.terms.depths)[self.held]


def summation(
    schedule: Schedule, chunk: int | None = None, terms: Terms | None = None, *, once: bool = False
) -> Summation:
    """Return the sums that every rank holds at the end, for all chunks or for one.

    Equals the plain program: run the schedule, with a new number for every sum of numbers that is new. What arrives in
    one step for one cell is added in rank order, the cell's own value in its place, as `interpret.apply` does: by
    additions of two, or, with ``once``, by one sum that is rounded at its end, as float16 and bfloat16 are. In a
    schedule with a wire a cell that is sent is rounded to it first, also at its sender, and so is every result.

    Raises ValueError for more than 8,388,608 cells (name a chunk then), and for a chunk that the schedule lacks. Cost:
    about 1 us for each chunk that a row moves.

    >>> from collectives.algorithms import build
    >>> ring, doubling = (summation(build("all_reduce", name, 8)) for name in ("ring", "recursive_doubling"))
    >>> int(ring.depth.max()), int(doubling.depth.max())
    (7, 3)
    """
    p, k = schedule.p, schedule.k
    if chunk is not None and not 0 <= chunk < k:
        raise ValueError(f"chunk of the schedule: got {chunk}, expected 0 to {k - 1}")
    chunks = range(k) if chunk is None else range(chunk, chunk + 1)
    if p * len(chunks) > MOST_CELLS:
        raise ValueError(f"terms of {p:,} ranks x {k:,} chunks: got too many cells, expected one chunk by its number")
    terms = terms or Terms(p)
    held = [[*range(p), *[NOTHING] * schedule.switches] for _ in chunks]
    for step in schedule.steps():
        if schedule.wire:
            _round_sent(step, chunks, held, terms)
        for (at, dst), arrived in _arriving(step, chunks, held).items():
            held[at][dst] = _combined(terms, arrived, (dst, held[at][dst]), once)
    if schedule.wire:
        held = [[terms.send(term) for term in cells] for cells in held]
    return Summation(terms, np.array([row[:p] for row in held]).T, chunks)


Arrived = list[tuple[int, int, bool]]  # sender, term, whether it is added


def _arriving(step: Step, chunks: range, held: list[list[int]]) -> dict[tuple[int, int], Arrived]:
    """Return what arrives in each (place of a chunk, rank), read before anything is written."""
    found: dict[tuple[int, int], Arrived] = {}
    for row, chunk in _moved(step, chunks):
        src, at = int(step.src[row]), chunk - chunks.start
        found.setdefault((at, int(step.dst[row])), []).append((src, held[at][src], bool(step.add[row])))
    return found


def _round_sent(step: Step, chunks: range, held: list[list[int]], terms: Terms) -> None:
    for row, chunk in _moved(step, chunks):
        cells, src = held[chunk - chunks.start], int(step.src[row])
        cells[src] = terms.send(cells[src])


def _moved(step: Step, chunks: range) -> Iterator[tuple[int, int]]:
    """Return the rows of a step with each chunk of theirs that is asked for."""
    if len(chunks) == 1:
        (only,) = chunks
        rows = np.flatnonzero((step.chunk <= only) & (only < step.chunk + step.count))
        return ((row, only) for row in rows.tolist())
    rows, moved = step.cells()
    return zip(rows.tolist(), moved.tolist(), strict=True)


def _combined(terms: Terms, arrived: Arrived, own: tuple[int, int], once: bool) -> int:
    if not arrived[0][2]:
        return arrived[-1][1]  # it replaces
    ordered = [term for _, term in sorted([own, *((src, term) for src, term, _ in arrived)])]
    if once:
        return terms.add(ordered)
    total = ordered[0]
    for term in ordered[1:]:
        total = terms.add([total, term])
    return total


def is_alike(schedule: Schedule) -> bool:
    """Return True if all ranks of an all-reduce hold the same sums, so that floats have the same bits on every rank.

    >>> from collectives.algorithms import build
    >>> is_alike(build("all_reduce", "recursive_doubling", 8)), is_alike(build("all_reduce", "swing_doubling", 8))
    (True, False)
    """
    held = summation(schedule).held
    return bool((held == held[0]).all())


def bound(depth: int, dtype: str) -> float:
    """Return the largest error of a sum that passes ``depth`` roundings, as a share of the sum of absolute values.

    (1 + u)^depth - 1, u half the distance from 1 to the next number (Higham 2002, section 4.2). Raises ValueError for a
    dtype that does not round, or that is unknown.

    >>> f"{bound(3, 'bfloat16'):.4f}, {bound(1023, 'bfloat16'):.0f}"
    '0.0118, 53'
    """
    if dtype not in ROUNDINGS:
        raise ValueError(unknown("dtype", dtype, list(ROUNDINGS)))
    return expm1(depth * log1p(ROUNDINGS[dtype]))
