"""Races: two steps that use one cell, one of which writes it, and that nothing orders; and dependencies without use.

Every thread block has a clock: the number of its last step. A step's vector clock says, for every block, the last step
that is certainly done before it: by program order, a dependency, or a message. A step happens before another exactly
if the other's clock has reached it.

In one order of all steps, only neighbouring uses of a cell are compared: each write with the uses since the last write.
If each of these pairs is ordered, all pairs are.
"""

from collections import defaultdict
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from collectives.formats.layout import Layout
from collectives.formats.order import Order
from collectives.formats.program import Program
from collectives.formats.table import wrong

# A clock of four bytes for every step and thread block: half a GiB.
MOST_CLOCKS = 1 << 27

Pair = tuple[int, int, int]


class Races:
    """The vector clocks of a program."""

    def __init__(self, program: Program, order: Order) -> None:
        self.program, self.order = program, order
        if len(program.steps) * len(program.blocks) > MOST_CLOCKS:
            size = f"{len(program.steps):,} steps in {len(program.blocks):,} thread blocks"
            raise ValueError(f"size of the program: got {size}, expected a product of at most {MOST_CLOCKS:,}")

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


def pairs(program: Program, order: Order, layout: Layout) -> list[Pair]:
    """Neighbouring uses of a cell of which one writes it: two different steps, and the cell."""
    found: list[Pair] = []
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
