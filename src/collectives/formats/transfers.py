"""A schedule as transfers between cells of buffers, which is what programs of thread blocks are made of.

All collectives but an all-to-all run in place: a rank's chunks are the cells of the larger one of input and output, so
that ``i`` and ``o`` share memory as `collectives.formats.layout` has it. What a rank only passes on is in scratch.
"""

from collections.abc import Iterator
from typing import NamedTuple

from collectives.contracts import CONTRACTS
from collectives.formats.elements import MOST_ELEMENTS
from collectives.formats.program import Place
from collectives.schedule import Schedule

# RCCL and MSCCL count chunks of one instruction up to 71.
MOST_COUNT = 71


class Row(NamedTuple):
    """One row of a step."""

    t: int
    src: int
    dst: int
    chunk: int
    chunks: int
    add: bool


class Transfer(NamedTuple):
    """``chunks`` consecutive cells that go from one rank to another in step ``t``, and are added there or stored."""

    t: int
    src: int
    dst: int
    source: Place
    target: Place
    chunks: int
    add: bool

    @property
    def reads(self) -> list[tuple[int, Place]]:
        """The cells of the sender, each with its rank."""
        return _cells(self.src, self.source, self.chunks)

    @property
    def writes(self) -> list[tuple[int, Place]]:
        """The cells of the receiver, each with its rank."""
        return _cells(self.dst, self.target, self.chunks)


def _cells(rank: int, place: Place, count: int) -> list[tuple[int, Place]]:
    return [(rank, Place(place.buffer, place.offset + j)) for j in range(count)]


class Placed:
    """Where each rank keeps each chunk, and the transfers of all steps."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._rows = list(_rows(schedule))
        used = {(rank, c) for row in self._rows for c in _chunks(row) for rank in (row.src, row.dst)}
        passed: list[list[int]] = [[] for _ in range(schedule.p)]
        for rank, chunk in sorted(used):
            if _home(schedule, rank, chunk) is None:
                passed[rank].append(chunk)
        self.scratch = [len(chunks) for chunks in passed]
        self._scratch_at = {(rank, c): at for rank, chunks in enumerate(passed) for at, c in enumerate(chunks)}

    def place(self, rank: int, chunk: int) -> Place:
        """The cell in which a rank keeps a chunk."""
        return _home(self.schedule, rank, chunk) or Place("s", self._scratch_at[rank, chunk])

    def transfers(self) -> list[Transfer]:
        """All transfers, in the order of steps and rows; a row is cut where cells are not consecutive."""
        return [
            Transfer(row.t, row.src, row.dst, self.place(row.src, first), self.place(row.dst, first), count, row.add)
            for row in self._rows
            for first, count in self._pieces(row)
        ]

    def _pieces(self, row: Row) -> Iterator[tuple[int, int]]:
        first = row.chunk
        for chunk in _chunks(row)[1:]:
            if chunk - first == MOST_COUNT or not all(self._follow(rank, chunk) for rank in (row.src, row.dst)):
                yield first, chunk - first
                first = chunk
        yield first, row.chunk + row.chunks - first

    def _follow(self, rank: int, chunk: int) -> bool:
        """Whether this chunk's cell is the one behind the last chunk's."""
        before, here = self.place(rank, chunk - 1), self.place(rank, chunk)
        return here == (before.buffer, before.offset + 1)


def _rows(schedule: Schedule) -> Iterator[Row]:
    total = 0
    for t, step in enumerate(schedule.steps()):
        total += int(step.count.sum())
        if total > MOST_ELEMENTS:
            raise ValueError(f"chunks that move: got more than {MOST_ELEMENTS:,}, expected at most that in a program")
        columns = (step.src, step.dst, step.chunk, step.count, step.add)
        yield from (Row(t, *row) for row in zip(*(each.tolist() for each in columns), strict=True) if row[3])


def _chunks(row: Row) -> range:
    return range(row.chunk, row.chunk + row.chunks)


def _home(schedule: Schedule, rank: int, chunk: int) -> Place | None:
    """The cell of input or output for a chunk, or None for one that the rank only passes on."""
    collective, p, k = schedule.collective, schedule.p, schedule.k
    if CONTRACTS[collective].parts == 2:
        (sender, to), piece = divmod(chunk * p * p // k, p), chunk % (k // p // p)
        at = Place("i", to) if sender == rank else Place("o", sender) if to == rank else None
        return at and Place(at.buffer, at.offset * (k // p // p) + piece)
    if not CONTRACTS[collective].compact:
        # RCCL's waiting steps acquire what others have written only if they read the output.
        return Place("i" if collective == "reduce_scatter" else "o", chunk)
    whole, part = "io" if collective == "scatter" else "oi"
    if rank == schedule.root:
        return Place(whole, chunk)
    return Place(part, chunk % (k // p)) if chunk * p // k == rank else None
