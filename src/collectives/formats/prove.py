"""The proof: no deadlock, no race, every contribution exactly once, in every order in which the program can run.

A race is two steps that use one cell, one of which writes it, and that nothing orders. Every thread block has a clock:
the number of its last step. A step's vector clock says, for every block, the last step that is certainly done before
it: by program order, a dependency, or a message. A step happens before another exactly if the other's clock has reached
it.

In one order of all steps, only neighbouring uses of a cell are compared: each write with the uses since the last write.
If each of these pairs is ordered, all pairs are.
"""

from collections import Counter, defaultdict
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.contracts import CONTRACTS
from collectives.formats.layout import Layout, sizes_of
from collectives.formats.order import Order
from collectives.formats.program import Program, wrong
from collectives.formats.replay import Contents

# Limits of a proof, each half a GiB or ten seconds: clocks of four bytes, cells of all GPUs, chunks of all steps, and
# contributions that steps add, because a sum has one of each GPU.
MOST_CLOCKS, MOST_CELLS, MOST_MOVED, MOST_ADDED = 1 << 27, 1 << 21, 1 << 20, 1 << 23


class Races:
    """The vector clocks of a program."""

    def __init__(self, program: Program, order: Order) -> None:
        self.program, self.order = program, order

    @cached_property
    def clocks(self) -> NDArray[np.int32]:
        """A row for each step: the last step of each block that is done before it, its own block's being itself."""
        clocks = np.full((len(self.program.steps), len(self.program.blocks)), -1, dtype=np.int32)
        for step in self.order.steps:
            row = clocks[step]
            for other in self.order.before[step]:
                np.maximum(row, clocks[other], out=row)
            row[self.program.block_of[step]] = self.program.index(step)
        return clocks

    @cached_property
    def _blocks(self) -> NDArray[np.int64]:
        return np.array(self.program.block_of)

    @cached_property
    def _indices(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (
            np.arange(len(self._blocks)) - np.array(self.program.first, dtype=np.int64)[self._blocks]
        )
        return found

    def ordered(self, first: int, second: int) -> bool:
        """Whether the first step is done before the second begins, or is the same."""
        return bool(self.clocks[second, self.program.block_of[first]] >= self.program.index(first))

    def need_none(self, layout: Layout) -> None:
        """Raise ScheduleError for two steps that race for a cell."""
        self._need_apart(layout)
        for first, second, cell in pairs(self.program, self.order, layout):
            if not self.ordered(first, second):
                names = f"{self.program.name(first)} and {self.program.name(second)}"
                what = f"race: {names} use {layout.place(cell)}, at least one writes it, and nothing orders them"
                raise wrong(self.program, second, what, f"may run before or after {self._short(first)}")

    def _need_apart(self, layout: Layout) -> None:
        """A step may not read cells that it writes for other ones of its chunks."""
        for number, step in enumerate(self.program.steps):
            gpu = self.program.gpu_of(number)
            first, second = (layout.cells(gpu, place, 1).start for place in (step.src, step.dst))
            if step.kind.reads and step.kind.stores and 0 < abs(first - second) < step.chunks:
                what = f"race: {self.program.name(number)} reads cells that it writes for another of its chunks"
                raise wrong(self.program, number, what, "its source and destination overlap")

    def _short(self, step: int) -> str:
        return f"step {self.program.index(step)} of block {self.program.blocks[self.program.block_of[step]].id}"

    def needless(self, layouts: list[Layout]) -> list[int]:
        """The steps whose dependency, taken away alone, leaves no race: whatever it orders is ordered without it."""
        used: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for layout in layouts:
            for first, second, _ in pairs(self.program, self.order, layout):
                used[self.program.gpu_of(first)].add((first, second))
        arrays = {gpu: np.array(sorted(both)).reshape(-1, 2) for gpu, both in used.items()}
        none = np.empty((0, 2), dtype=np.int64)
        return [
            step
            for step, other in self.program.waits.items()
            if not self._needs(step, other, arrays.get(self.program.gpu_of(step), none))
        ]

    def _needs(self, step: int, other: int, both: NDArray[np.int64]) -> bool:
        """Whether some pair is ordered only because ``step`` waits for ``other``."""
        rest = list(self.order.before[step])
        rest.remove(other)
        if any(self.ordered(other, each) for each in rest):
            return False
        first, second = both.T
        behind = self.clocks[other, self._blocks[first]] >= self._indices[first]
        ahead = self.clocks[second, self.program.block_of[step]] >= self.program.index(step)
        return any(not self._reaches(x, y, step, rest) for x, y in both[behind & ahead].tolist())

    def _reaches(self, first: int, second: int, step: int, rest: list[int]) -> bool:
        """Whether the first step is ordered before the second also if ``step`` waits for the ``rest`` alone."""
        todo, seen = [second], {second}
        while todo:
            at = todo.pop()
            for other in rest if at == step else self.order.before[at]:
                if other == first:
                    return True
                if other not in seen and self.ordered(first, other):
                    seen.add(other)
                    todo.append(other)
        return False


def pairs(program: Program, order: Order, layout: Layout) -> list[tuple[int, int, int]]:
    """Neighbouring uses of a cell of which one writes it: two different steps, and the cell."""
    found: list[tuple[int, int, int]] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = defaultdict(list)
    for number in order.steps:
        step, gpu = program.steps[number], program.gpu_of(number)
        written = layout.cells(gpu, step.dst, step.chunks) if step.kind.stores else range(0)
        for cell in layout.cells(gpu, step.src, step.chunks) if step.kind.reads else ():
            if cell not in written:
                if cell in writer:
                    found.append((writer[cell], number, cell))
                readers[cell].append(number)
        for cell in written:
            before = readers.pop(cell, None) or ([writer[cell]] if cell in writer else [])
            found += [(each, number, cell) for each in before]
            writer[cell] = number
    return found


class Report(NamedTuple):
    """What is true of a program that is right."""

    instructions: int
    messages: int
    depth: int  # the longest chain of messages of which each needs the one before
    slots: int  # the smallest number of messages that a connection must hold
    dependencies: int
    needless: tuple[str, ...]  # steps that would race with none if they did not wait, each taken alone


class Proved(NamedTuple):
    """What the proof has made of a program that is right; a layout for each of its modes."""

    order: Order
    races: Races
    layouts: list[Layout]


def prove(program: Program) -> Report:
    """Raise a ScheduleError, as `proved` does; else what is true of the program.

    Cost: about 50 microseconds a step, and 4 bytes for every step and thread block.
    """
    order, races, layouts = proved(program)
    needless = tuple(program.name(step) for step in races.needless(layouts))
    waits = len(program.waits)
    return Report(len(program.steps), len(order.sender), order.depth(), order.slots(), waits, needless)


def proved(program: Program) -> Proved:
    """Raise a ScheduleError, with GPU, thread block and step, unless the program is right in each of its modes.

    Checked, in this order: every message has a receiver; no step waits for itself, with unlimited slots and with those
    of the protocol; no two steps race for a cell; and every cell that the collective asks for holds each contribution
    once and no uninitialised data.
    """
    _need_small(program)
    order = Order(program)
    races = Races(program, order)
    layouts = [Layout(program, in_place) for in_place in program.modes]
    order.need_no_deadlock()
    for layout in layouts:
        races.need_none(layout)
        Contents(program, order, layout).need_right()
    return Proved(order, races, layouts)


def _need_small(program: Program) -> None:
    """Raise ValueError for a program whose proof would take gigabytes or hours."""
    steps = program.steps
    adding = sum(step.chunks for step in steps if step.kind.reads and (step.kind.receives or step.kind.accumulates))
    for what, size, most in (
        ("steps times thread blocks", len(steps) * len(program.blocks), MOST_CLOCKS),
        ("cells of all GPUs", program.p * sum(sizes_of(program)) + sum(program.scratch), MOST_CELLS),
        ("chunks of all steps", sum(step.chunks for step in steps), MOST_MOVED),
        ("chunks of the steps that add, times GPUs", adding * program.p, MOST_ADDED),
    ):
        if size > most:
            raise ValueError(f"size of the program: got {size:,} {what}, expected at most {most:,}")


class Loads(NamedTuple):
    """Multiples of the buffer's size, which is counted as for bus bandwidth."""

    busiest_sent: float  # what the busiest sender sends in all
    busiest_received: float
    busiest_link: float  # the most from one GPU to one other
    least: float  # what some GPU sends or receives in any algorithm


def loads(program: Program, order: Order) -> Loads:
    """Count the chunks of all messages.

    >>> from collectives.formats.program import BufferOffset, Instruction, ThreadBlock
    >>> swap = tuple(Instruction(name, BufferOffset("i", 0), BufferOffset("i", 0), 1) for name in ("s", "rrc"))
    >>> blocks = ThreadBlock(0, 0, 1, 1, 0, swap), ThreadBlock(1, 0, 0, 0, 0, swap)
    >>> both = Program("all_reduce", 2, 1, None, "Simple", (True,), blocks, (0, 0), (), {})
    >>> loads(both, Order(both))
    Loads(busiest_sent=1.0, busiest_received=1.0, busiest_link=1.0, least=1.0)
    """
    links: Counter[tuple[int, int]] = Counter()
    for receive, send in order.sender.items():
        links[program.gpu_of(send), program.gpu_of(receive)] += program.steps[send].chunks
    sent, received = Counter[int](), Counter[int]()
    for (src, dst), chunks in links.items():
        sent[src] += chunks
        received[dst] += chunks
    egress, ingress, link = (max(each.values(), default=0) / program.whole for each in (sent, received, links))
    return Loads(egress, ingress, link, CONTRACTS[program.collective].factor(program.p))
