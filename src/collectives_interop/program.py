"""A program of thread blocks: its steps, the cells of its buffers, and the table that an error shows."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from collectives.core.contracts import CONTRACTS
from collectives.core.schedule import Ints, Schedule, ScheduleError, Step

Cell = TypeVar("Cell")


class InstructionKind(NamedTuple):
    """The parts of a step: take a message, read cells of its GPU, add it all up, and store or send the sum."""

    receives: bool = False
    reads: bool = False
    stores: bool = False
    sends: bool = False
    accumulates: bool = False  # what the destination holds is a summand too


# fmt: off
KINDS = {
    "s": InstructionKind(reads=True, sends=True),
    "r": InstructionKind(receives=True, stores=True),
    "rcs": InstructionKind(receives=True, stores=True, sends=True),
    "rrs": InstructionKind(receives=True, reads=True, sends=True),
    "rrc": InstructionKind(receives=True, reads=True, stores=True),
    "rrcs": InstructionKind(receives=True, reads=True, stores=True, sends=True),
    "cpy": InstructionKind(reads=True, stores=True),
    "re": InstructionKind(reads=True, stores=True, accumulates=True),
    "nop": InstructionKind(),
}
# fmt: on

# How many messages a connection holds before its sender waits: NCCL's eight steps, of which a chunk
# takes four in the protocol Simple and one in the others. A message of several chunks may take more
# than one slot.
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}

# XML elements of a program, and chunks that a schedule may move to become one: the largest that are
# published have 24,000 steps.
MAX_ELEMENTS = 1 << 18

# How many thread blocks and steps an error shows.
MAX_BLOCKS_SHOWN, MAX_STEPS_SHOWN = 5, 9

# A rank's input, or its output, is one part of the buffer; otherwise it is the whole.
PART_IN, PART_OUT = ("all_gather", "gather"), ("reduce_scatter", "scatter")


class BufferOffset(NamedTuple):
    """The first of consecutive cells of a GPU, in a buffer: "i" (input), "o" (output) or "s" (scratch)."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}{self.offset}"

    def behind(self, cells: int) -> "BufferOffset":
        """Return the cell this many cells later."""
        return self._replace(offset=self.offset + cells)


class Instruction(NamedTuple):
    """One instruction of a thread block."""

    name: str
    src: BufferOffset
    dst: BufferOffset
    chunks: int

    @property
    def kind(self) -> InstructionKind:
        """Return the parts of this step."""
        return KINDS[self.name]


class ThreadBlock(NamedTuple):
    """A thread block: its steps run one after the other; -1 stands for no peer."""

    gpu: int
    id: int
    send: int
    receive: int
    channel: int
    steps: tuple[Instruction, ...]


@dataclass(frozen=True)
class Program:
    """The contents of a file.

    A step's number counts all steps of all blocks, in the order of ``blocks``.
    """

    collective: str
    p: int
    whole: int  # chunks of the larger one of input and output
    root: int | None
    protocol: str
    modes: tuple[bool, ...]  # in place, out of place, or both
    blocks: tuple[ThreadBlock, ...]
    scratch: tuple[int, ...]  # cells of each GPU
    # Before the first step: GPU, cell of its input, cell of its output.
    copies: tuple[tuple[int, int, int], ...]
    # A step, and the step of another block of its GPU that must be done before.
    waits: dict[int, int]

    @cached_property
    def first(self) -> list[int]:
        """Return the number of each block's first step, and of all steps."""
        return list(accumulate((len(block.steps) for block in self.blocks), initial=0))

    @cached_property
    def steps(self) -> list[Instruction]:
        """Return all steps, block after block."""
        steps: list[Instruction] = []
        for block in self.blocks:
            steps += block.steps
        return steps

    @cached_property
    def block_of(self) -> list[int]:
        """Return the block of each step."""
        blocks: list[int] = []
        for b, block in enumerate(self.blocks):
            blocks += [b] * len(block.steps)
        return blocks

    def gpu_of(self, step: int) -> int:
        """Return the GPU that runs a step."""
        return self.blocks[self.block_of[step]].gpu

    def index(self, step: int) -> int:
        """Return a step's index in its block."""
        return step - self.first[self.block_of[step]]

    def name(self, step: int) -> str:
        """Name a step as messages do."""
        block = self.blocks[self.block_of[step]]
        place = f"GPU {block.gpu}, thread block {block.id}, step {self.index(step)}"
        return f"{place} ({self.steps[step].name})"

    @cached_property
    def sizes(self) -> "Sizes":
        """Return the cells of a GPU's input and output."""
        return sizes(self.collective, self.p, self.whole)

    @cached_property
    def contract(self) -> Schedule:
        """Return a schedule without steps: `contracts` says what it promises."""
        is_in_pairs = CONTRACTS[self.collective].parts == 2
        k = self.whole * self.p if is_in_pairs else self.whole
        return Schedule(self.collective, self.p, k, 0, _no_step, self.root)


def _no_step(t: int) -> Step:
    raise IndexError(f"step: got {t}, expected none")


class Sizes(NamedTuple):
    """Cells of a GPU's input and output."""

    i: int
    o: int


def sizes(collective: str, p: int, whole: int) -> Sizes:
    """Return the cells of a GPU's input and output.

    >>> sizes("all_gather", 4, 16)
    Sizes(i=4, o=16)
    """
    return Sizes(
        i=whole // p if collective in PART_IN else whole,
        o=whole // p if collective in PART_OUT else whole,
    )


class Layout:
    """The cells of all GPUs, numbered in one row.

    In place, input and output of a GPU share cells.
    """

    def __init__(self, program: Program, in_place: bool) -> None:
        self.program = program
        size = program.sizes
        gpus = np.arange(program.p)
        rooms = (size.i + size.o + scratch for scratch in program.scratch)
        self.begins = list(accumulate(rooms, initial=0))  # of each GPU, and the number of all cells
        shares = np.full(program.p, in_place)
        if program.root is not None and size.i != size.o:
            shares &= gpus == program.root  # only the root has both in full
        # A GPU whose buffers share cells has its part in its place of the whole.
        own = gpus * program.whole // program.p
        source = own if program.collective in PART_IN else np.zeros_like(own)
        target = own if program.collective in PART_OUT else np.zeros_like(own)
        begins = np.array(self.begins[:-1])
        self.starts = {
            "i": begins + np.where(shares, source, 0),
            "o": begins + np.where(shares, target, size.i),
            "s": begins + size.i + size.o,
        }

    def _cells(self, gpu: int, place: BufferOffset, count: int) -> range:
        start = int(self.starts[place.buffer][gpu]) + place.offset
        return range(start, start + count)

    def uses(self, number: int) -> tuple[range, range]:
        """Return the cells that a step reads, and those that it writes."""
        step = self.program.steps[number]
        gpu = self.program.gpu_of(number)
        kind = step.kind
        reads = self._cells(gpu, step.src, step.chunks) if kind.reads else range(0)
        writes = self._cells(gpu, step.dst, step.chunks) if kind.stores else range(0)
        return reads, writes

    def copies(self) -> Iterator[tuple[range, range]]:
        """Yield the cell that each copy before the first step reads, and the one that it writes."""
        for gpu, i, o in self.program.copies:
            source = self._cells(gpu, BufferOffset("i", i), 1)
            target = self._cells(gpu, BufferOffset("o", o), 1)
            yield source, target

    def place(self, cell: int) -> BufferOffset:
        """Return the buffer and offset of a cell.

        In place, the buffer that holds all of it, or the input.
        """
        gpu = bisect_right(self.begins, cell) - 1
        offsets = {buffer: cell - int(starts[gpu]) for buffer, starts in self.starts.items()}
        size = self.program.sizes
        in_input = 0 <= offsets["i"] < size.i
        in_output = 0 <= offsets["o"] < size.o
        if in_input and in_output:
            buffer = "o" if size.o > size.i else "i"
        elif in_input:
            buffer = "i"
        elif in_output:
            buffer = "o"
        else:
            buffer = "s"
        return BufferOffset(buffer, offsets[buffer])

    def inputs(self, rank: Ints, chunk: Ints) -> Ints:
        """Return the cells that hold these chunks of these ranks before the first step."""
        return self.starts["i"][rank] + chunk % self.program.sizes.i

    def outputs(self, rank: Ints, chunk: Ints) -> Ints:
        """Return the cells for these chunks at the end.

        In an all-to-all they are in the order of their senders.
        """
        program = self.program
        if CONTRACTS[program.collective].parts == 2:
            part = program.whole // program.p
            return self.starts["o"][rank] + chunk // program.whole * part + chunk % part
        return self.starts["o"][rank] + chunk % program.sizes.o


class CellUses(Generic[Cell]):
    """The last steps that used each cell."""

    def __init__(self) -> None:
        self.writer: dict[Cell, int] = {}
        self.readers: dict[Cell, list[int]] = defaultdict(list)

    def before(
        self, number: int, reads: Collection[Cell], writes: Collection[Cell]
    ) -> Iterator[tuple[int, Cell]]:
        """Yield the steps that must be done before this one, each with a cell.

        From now on it is the last.

        Of two uses of a cell one writes it. The uses are neighbours: a write is after those since
        the last write.
        """
        for cell in reads:
            if cell not in writes:
                if cell in self.writer:
                    yield self.writer[cell], cell
                self.readers[cell].append(number)
        for cell in writes:
            others = self.readers.pop(cell, [])
            if not others and cell in self.writer:
                others = [self.writer[cell]]
            for other in others:
                yield other, cell
            self.writer[cell] = number


def wrong(program: Program, step: int, problem: str, note: str) -> ScheduleError:
    """Return the verdict on a wrong program, with the table of the GPU around this step."""
    return ScheduleError(f"{problem}\n{table(program, step, note)}")


def table(program: Program, marked: int, note: str) -> str:
    """Return one line per step, one column per thread block, around the marked step.

    ``rrc i2<3`` reads: receive from GPU 3 and add into input cell 2; ``s o4>1``: send output cell 4
    to GPU 1; ``re i0+=s8``; ``cpy o1=i0``; ``(x4)``: four cells from there on; ``^5.1``: after step
    1 of thread block 5.
    """
    block = program.block_of[marked]
    at = program.index(marked)
    gpu = program.blocks[block].gpu
    own = [b for b, other in enumerate(program.blocks) if other.gpu == gpu]
    shown = _window(own, own.index(block), MAX_BLOCKS_SHOWN)
    longest = max(len(program.blocks[b].steps) for b in shown)
    steps = _window(list(range(longest)), at, MAX_STEPS_SHOWN)
    columns = [["step"] + [f"{t:4}" for t in steps]]
    for b in shown:
        cells = [_cell(program, b, t) for t in steps]
        if b == block:
            row = steps.index(at)
            cells[row] = f">{cells[row]}<"
        columns.append([f"GPU {gpu} block {program.blocks[b].id}", *cells])
    aligned = []
    for column in columns:
        width = max(len(cell) for cell in column)
        aligned.append([cell.ljust(width) for cell in column])
    lines = [" | ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    lines[1 + steps.index(at)] += f"   <-- {note}"
    return "\n".join(lines)


def _window(values: list[int], centre: int, most: int) -> list[int]:
    start = max(0, min(centre - most // 2, len(values) - most))
    return values[start : start + most]


def _cell(program: Program, b: int, t: int) -> str:
    block = program.blocks[b]
    if t >= len(block.steps):
        return ""
    text = instruction_text(block.steps[t], block)
    other = program.waits.get(program.first[b] + t)
    if other is None:
        return text
    other_block = program.blocks[program.block_of[other]]
    return f"^{other_block.id}.{program.index(other)} {text}"


def instruction_text(step: Instruction, block: ThreadBlock) -> str:
    """Return one step as text."""
    kind = KINDS[step.name]
    if step.name == "nop":
        return "nop"
    text = f"{step.name} {step.dst if kind.stores else step.src}"
    if step.name == "cpy":
        text += f"={step.src}"
    elif step.name == "re":
        text += f"+={step.src}"
    elif kind.stores and kind.reads and step.src != step.dst:
        text += f"={step.src}+"
    if kind.receives:
        text += f"<{block.receive}"
    if kind.sends:
        text += f">{block.send}"
    if step.chunks > 1:
        text += f"(x{step.chunks})"
    return text
