"""A program replayed on cells that hold values: contributions, counted for the proof, or sums with their origin.

If no two steps race, every order ends the same, so that one order proves all of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import NamedTuple, TypeVar

from collectives.contracts import REDUCING
from collectives.formats.layout import Layout
from collectives.formats.order import Order
from collectives.formats.program import BufferOffset, Program, wrong
from collectives.schedule import ScheduleError

T = TypeVar("T")

# A contribution (rank * k + chunk), and how often it is in a sum: once, or 2 for "more than once".
Counts = Mapping[int, int]
UNINITIALISED = -1
NOTHING: Counts = {UNINITIALISED: 1}


def replay(
    program: Program,
    order: Order,
    layout: Layout,
    cells: list[T],
    add: Callable[[int, T, T], T],
    receive: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, range, list[T]]]:
    """Run all steps on the cells; after each one: its number, the cells that it wrote, and what it wrote or sent.

    ``add`` gets a step's number and two summands; ``receive`` the number of a step that gets a message, before it uses
    it.
    """
    sent: dict[int, list[T]] = {}
    for gpu, i, o in program.copies:
        source, target = layout.cells(gpu, BufferOffset("i", i), 1)[0], layout.cells(gpu, BufferOffset("o", o), 1)[0]
        cells[target] = cells[source]
    for number in order.steps:
        step, gpu = program.steps[number], program.gpu_of(number)
        summands = [sent.pop(order.sender[number])] if number in order.sender else []
        if summands and receive:
            receive(number)
        if step.kind.reads:
            summands.append([cells[cell] for cell in layout.cells(gpu, step.src, step.chunks)])
        written = layout.cells(gpu, step.dst, step.chunks) if step.kind.stores else range(0)
        if step.kind.accumulates:
            summands.append([cells[cell] for cell in written])
        total = [reduce(partial(add, number), each) for each in zip(*summands, strict=True)]
        for cell, value in zip(written, total, strict=False):
            cells[cell] = value
        if step.kind.sends:
            sent[number] = total
        yield number, written, total


class Contents:
    """The cells of all GPUs after the whole program, and which step wrote each last."""

    def __init__(self, program: Program, order: Order, layout: Layout) -> None:
        self.program, self.layout = program, layout
        self.held: list[Counts] = [NOTHING] * len(layout.gpu_of_cell)
        self.writer: dict[int, int] = {}
        self.again: dict[int, int] = {}  # a contribution, and the step that first counted it again
        for cell, contribution in layout.before().items():
            self.held[cell] = {contribution: 1}
        for number, written, _ in replay(program, order, layout, self.held, self._add):
            self.writer |= dict.fromkeys(written, number)

    def _add(self, number: int, one: Counts, other: Counts) -> Counts:
        """Return the sum; of more contributions than GPUs, which nothing asks for, the first ones."""
        total = dict(one)
        for contribution, times in other.items():
            if len(total) > self.program.p and contribution not in total:
                continue
            total[contribution] = min(total.get(contribution, 0) + times, 2)
            if total[contribution] > 1:
                self.again.setdefault(contribution, number)
        return total

    def need_right(self) -> None:
        """Raise ScheduleError for a cell that does not hold what the collective asks for."""
        for cell, rank, chunk, asked in self.layout.after():
            held = self.held[cell]
            if held.keys() != asked or any(times > 1 for times in held.values()):
                raise self._error(cell, rank, chunk, asked)

    def _error(self, cell: int, rank: int, chunk: int, asked: set[int]) -> ScheduleError:
        held, place = self.held[cell], self.layout.place(cell)
        twice = sorted(each for each, times in held.items() if times > 1 and each >= 0)
        faults = {
            "uninitialised data": UNINITIALISED in held,
            f"{self._names(twice)} more than once": twice,
            f"{self._names(sorted(held.keys() - asked - {UNINITIALISED}))}, not asked for": held.keys() - asked - {-1},
            f"not {self._names(sorted(asked - held.keys()))}": asked - held.keys(),
        }
        found = ", ".join(what for what, is_so in faults.items() if is_so)
        what = f"wrong result: GPU {rank}, chunk {chunk} (cell {place}) holds {found}"
        last = self.again[twice[0]] if twice and twice[0] in self.again else self.writer.get(cell)
        if last is None:
            return ScheduleError(f"{what}; no step writes this cell")
        note = "counted again here" if twice else f"the last write of {place}"
        return wrong(self.program, last, what, note)

    def _names(self, contributions: list[int]) -> str:
        """Contributions of ranks, of a few of them."""
        k = self.layout.contract.k
        names = [f"chunk {each % k} of rank {each // k}" for each in contributions]
        return ", ".join(names if len(names) <= 4 else [*names[:3], f"… ({len(names) - 3} more)"])


class Value(NamedTuple):
    """A sum of contributions to one chunk: bit r of ``ranks`` is 1 if rank r's is in it."""

    chunk: int
    ranks: int

    def __str__(self) -> str:
        ranks = [str(r) for r in range(self.ranks.bit_length()) if self.ranks >> r & 1]
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"the sum of ranks {', '.join(ranks)}"


class SentChunk(NamedTuple):
    """One chunk of a message: the step that sends it, the sender, the receiver, and what is sent."""

    message: int
    src: int
    dst: int
    value: Value


Held = tuple[int, Value]  # on a GPU
INPUT: tuple[()] = ()
Origin = tuple[()] | SentChunk | tuple[Value, Value]  # an input, the first row that brings it, or the sum of two values


class Values:
    """The values of a program that was proved, in the order in which they come to be, and its messages."""

    def __init__(self, program: Program, order: Order, layout: Layout) -> None:
        self.program, self.layout = program, layout
        self.origin: dict[Held, Origin] = {}
        self.arrivals: dict[Held, list[SentChunk]] = defaultdict(list)
        self.messages: dict[int, list[SentChunk]] = {}  # by the step that sends it
        self._sender = order.sender
        receiver = {send: program.gpu_of(receive) for receive, send in order.sender.items()}
        for number, _, total in replay(program, order, layout, self._before(), self._add, self._receive):
            if program.steps[number].kind.sends:
                ends = number, program.gpu_of(number), receiver[number]
                self.messages[number] = [SentChunk(*ends, self._need(number, value)) for value in total]

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
