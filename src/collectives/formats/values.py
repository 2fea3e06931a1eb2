"""Which values a right program computes: on each GPU the sums of a chunk, where each comes from, and who needs it.

Cells, local copies and scratch are gone here: a value is a chunk and the ranks whose contributions it sums up. Two
cells of a GPU that hold the same sum hold the same value.
"""

from collections import defaultdict
from typing import NamedTuple

from collectives.contracts import REDUCING
from collectives.formats.layout import Layout
from collectives.formats.order import Order
from collectives.formats.program import Program
from collectives.formats.replay import replay
from collectives.formats.table import wrong


class Value(NamedTuple):
    """A sum of contributions to one chunk: bit r of ``ranks`` is 1 if rank r's is in it."""

    chunk: int
    ranks: int

    def __str__(self) -> str:
        ranks = [str(r) for r in range(self.ranks.bit_length()) if self.ranks >> r & 1]
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"the sum of ranks {', '.join(ranks)}"


class Row(NamedTuple):
    """One chunk of a message: the step that sends it, the sender, the receiver, and what is sent."""

    message: int
    src: int
    dst: int
    value: Value


Held = tuple[int, Value]  # on a GPU
INPUT: tuple[()] = ()
Origin = tuple[()] | Row | tuple[Value, Value]  # an input, the first row that brings it, or the sum of two values


class Values:
    """The values of a program that was proved, in the order in which they come to be, and its messages."""

    def __init__(self, program: Program, order: Order, layout: Layout) -> None:
        self.program, self.layout = program, layout
        self.origin: dict[Held, Origin] = {}
        self.arrivals: dict[Held, list[Row]] = defaultdict(list)
        self.messages: dict[int, list[Row]] = {}  # by the step that sends it
        self._sender = order.sender
        receiver = {send: program.gpu_of(receive) for receive, send in order.sender.items()}
        for number, _, total in replay(program, order, layout, self._before(), self._add, self._receive):
            if program.steps[number].kind.sends:
                ends = number, program.gpu_of(number), receiver[number]
                self.messages[number] = [Row(*ends, self._need(number, value)) for value in total]

    def _before(self) -> list[Value | None]:
        """What the cells hold at first; None for nothing."""
        cells: list[Value | None] = [None] * len(self.layout.gpu_of_cell)
        for cell, contribution in self.layout.before().items():
            rank, chunk = divmod(contribution, self.layout.contract.k)
            cells[cell] = Value(chunk, 1 << rank)
            self.origin[rank, Value(chunk, 1 << rank)] = INPUT
        return cells

    def _receive(self, number: int) -> None:
        for row in self.messages[self._sender[number]]:
            self.origin.setdefault((row.dst, row.value), row)
            self.arrivals[row.dst, row.value].append(row)

    def _add(self, number: int, one: Value | None, other: Value | None) -> Value | None:
        """The sum; None for uninitialised data, for several chunks, and for a contribution that counts twice."""
        if one is None or other is None or one.chunk != other.chunk or one.ranks & other.ranks:
            return None
        total = Value(one.chunk, one.ranks | other.ranks)
        self.origin.setdefault((self.program.gpu_of(number), total), (one, other))
        return total

    def _need(self, number: int, value: Value | None) -> Value:
        if value is None:
            what = f"not a schedule: {self.program.name(number)} sends no sum of different contributions to one chunk"
            raise wrong(self.program, number, what, "nothing can use this")
        return value

    def needed(self) -> set[Held]:
        """The values that a GPU sends or ends with; where nothing is summed, also those that come without need."""
        found = {(row.src, row.value) for rows in self.messages.values() for row in rows}
        return found | self.last() | (set() if self.program.collective in REDUCING else self.arrivals.keys())

    def last(self) -> set[Held]:
        """The values that the collective asks for at the end."""
        k = self.layout.contract.k
        return {
            (rank, Value(chunk, sum(1 << each // k for each in asked))) for _, rank, chunk, asked in self.layout.after()
        }
