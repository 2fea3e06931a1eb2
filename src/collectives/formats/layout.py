"""Where a program keeps what: the cells of its buffers, in place or not, and the collective's chunks in them."""

from typing import NamedTuple

import numpy as np

from collectives.contracts import CONTRACTS, after, before, where
from collectives.formats.program import BufferOffset, Program
from collectives.schedule import Schedule, Step

# A rank's input, or its output, is one part of the buffer; otherwise it is the whole.
PART_IN, PART_OUT = ("all_gather", "gather"), ("reduce_scatter", "scatter")


class Sizes(NamedTuple):
    """Cells of a GPU's input and output."""

    i: int
    o: int


def sizes(collective: str, p: int, whole: int) -> Sizes:
    """How many cells a GPU's input and output have.

    >>> sizes("all_gather", 4, 16)
    Sizes(i=4, o=16)
    """
    return Sizes(*(whole // p if collective in parts else whole for parts in (PART_IN, PART_OUT)))


def sizes_of(program: Program) -> Sizes:
    """How many cells the input and the output of this program's GPUs have."""
    return sizes(program.collective, program.p, program.whole)


def _no_step(t: int) -> Step:
    raise IndexError(f"step: got {t}, expected none")


class Layout:
    """The cells of all GPUs, numbered in one row: where each GPU's buffers begin."""

    def __init__(self, program: Program, in_place: bool) -> None:
        self.program, self.in_place = program, in_place
        self.starts: list[dict[str, int]] = []
        self.gpu_of_cell: list[int] = []
        size = sizes_of(program)
        for gpu, scratch in enumerate(program.scratch):
            at = self._offsets(gpu, size) | {"s": size.i + size.o}
            self.starts.append({buffer: len(self.gpu_of_cell) + offset for buffer, offset in at.items()})
            self.gpu_of_cell += [gpu] * (size.i + size.o + scratch)

    def _offsets(self, gpu: int, size: Sizes) -> dict[str, int]:
        """Input and output: one after the other, or, in place, the smaller one at the rank's part of the larger."""
        collective, own = self.program.collective, gpu * self.program.whole // self.program.p
        shares = self.program.root in (None, gpu) or size.i == size.o
        if not self.in_place or not shares:
            return {"i": 0, "o": size.i}
        return {"i": own if collective in PART_IN else 0, "o": own if collective in PART_OUT else 0}

    def cells(self, gpu: int, place: BufferOffset, count: int) -> range:
        """The cells that a step reads or writes."""
        start = self.starts[gpu][place.buffer] + place.offset
        return range(start, start + count)

    def place(self, cell: int) -> BufferOffset:
        """The buffer and offset of a cell; in place, the buffer that holds all of it, or the input."""
        starts, size = self.starts[self.gpu_of_cell[cell]], sizes_of(self.program)
        for buffer, room in sorted(zip("io", size, strict=True), key=lambda each: -each[1]):
            if 0 <= cell - starts[buffer] < room:
                return BufferOffset(buffer, cell - starts[buffer])
        return BufferOffset("s", cell - starts["s"])

    def before(self) -> dict[int, int]:
        """Which contribution a cell holds before: rank * k + chunk."""
        k = self.contract.k
        held = np.argwhere(before(self.contract)[:, :, :-1].any(axis=2)).tolist()
        return {self._input(rank, chunk): rank * k + chunk for rank, chunk in held}

    def after(self) -> list[tuple[int, int, int, set[int]]]:
        """The cells that are asked for, in order: the cell, its rank and chunk, and the contributions it must hold."""
        k, asked = self.contract.k, np.argwhere(where(self.contract)).tolist()
        counts = after(self.contract)
        return [
            (self._output(rank, chunk), rank, chunk, {who * k + chunk for who in np.flatnonzero(held).tolist()})
            for (rank, chunk), held in zip(asked, counts, strict=True)
        ]

    @property
    def contract(self) -> Schedule:
        """A schedule without steps: what `contracts` asks for."""
        program = self.program
        k = program.whole * (program.p if CONTRACTS[program.collective].parts == 2 else 1)
        return Schedule(program.collective, program.p, k, 0, _no_step, program.root)

    def _input(self, rank: int, chunk: int) -> int:
        return self.starts[rank]["i"] + chunk % sizes_of(self.program).i

    def _output(self, rank: int, chunk: int) -> int:
        """In an all-to-all, the chunks for a rank come in the order of their senders."""
        program = self.program
        if CONTRACTS[program.collective].parts == 2:
            part = program.whole // program.p
            return self.starts[rank]["o"] + chunk // program.whole * part + chunk % part
        return self.starts[rank]["o"] + chunk % sizes_of(program).o
