"""A program of thread blocks: what each block of each GPU does, step after step, and how an error shows it."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from collectives.schedule import ScheduleError


class InstructionKind(NamedTuple):
    """What a step does: it takes a message, reads cells of its GPU, adds it all up, and stores or sends the sum."""

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

# How many messages a connection holds before its sender waits: NCCL's eight steps, of which a chunk takes four in the
# protocol Simple and one in the others. A message of several chunks may take more than one slot.
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}

# How many thread blocks and steps an error shows.
MOST_BLOCKS, MOST_STEPS = 5, 9


class BufferOffset(NamedTuple):
    """Cells of a GPU: a buffer, "i" (input), "o" (output) or "s" (scratch), and the first cell."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}{self.offset}"


class Instruction(NamedTuple):
    """One instruction of a thread block."""

    name: str
    src: BufferOffset
    dst: BufferOffset
    chunks: int

    @property
    def kind(self) -> InstructionKind:
        """What it does."""
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
    """What a file says. A step's number counts all steps of all blocks, in the order of ``blocks``."""

    collective: str
    p: int
    whole: int  # chunks of the larger one of input and output
    root: int | None
    protocol: str
    modes: tuple[bool, ...]  # in place, out of place, or both
    blocks: tuple[ThreadBlock, ...]
    scratch: tuple[int, ...]  # cells of each GPU
    copies: tuple[tuple[int, int, int], ...]  # before the first step: GPU, cell of its input, cell of its output
    waits: dict[int, int]  # a step, and the step of another block of its GPU that must be done before

    @cached_property
    def first(self) -> list[int]:
        """The number of each block's first step, and how many steps there are."""
        return list(accumulate((len(block.steps) for block in self.blocks), initial=0))

    @cached_property
    def steps(self) -> list[Instruction]:
        """All steps."""
        return [step for block in self.blocks for step in block.steps]

    @cached_property
    def block_of(self) -> list[int]:
        """Which block each step is in."""
        return [b for b, block in enumerate(self.blocks) for _ in block.steps]

    def gpu_of(self, step: int) -> int:
        """Which GPU runs this step."""
        return self.blocks[self.block_of[step]].gpu

    def index(self, step: int) -> int:
        """Which step of its block it is."""
        return step - self.first[self.block_of[step]]

    def name(self, step: int) -> str:
        """A step as messages name it."""
        block = self.blocks[self.block_of[step]]
        return f"GPU {block.gpu}, thread block {block.id}, step {self.index(step)} ({self.steps[step].name})"


def wrong(program: Program, step: int, what: str, note: str) -> ScheduleError:
    """The verdict on a wrong program, with the table of the GPU around this step."""
    return ScheduleError(f"{what}\n{table(program, step, note)}")


def table(program: Program, marked: int, note: str) -> str:
    """One line per step, one column per thread block, around the marked step.

    ``rrc i2<3`` reads: receive from GPU 3 and add into input cell 2; ``s o4>1``: send output cell 4 to GPU 1;
    ``re i0+=s8``; ``cpy o1=i0``; ``(x4)``: four cells from there on; ``^5.1``: after step 1 of thread block 5.
    """
    block, at = program.block_of[marked], program.index(marked)
    own = [b for b, each in enumerate(program.blocks) if each.gpu == program.blocks[block].gpu]
    blocks = _window(own, own.index(block), MOST_BLOCKS)
    steps = _window(list(range(max(len(program.blocks[b].steps) for b in blocks))), at, MOST_STEPS)
    lines = [["step", *(f"GPU {program.blocks[b].gpu} block {program.blocks[b].id}" for b in blocks)]]
    for t in steps:
        cells = [_cell(program, b, t) for b in blocks]
        if t == at:
            cells[blocks.index(block)] = f">{cells[blocks.index(block)]}<"
        lines.append([f"{t:4}", *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    texts[1 + steps.index(at)] += f"   <-- {note}"
    return "\n".join(texts)


def _window(values: list[int], centre: int, most: int) -> list[int]:
    start = max(0, min(centre - most // 2, len(values) - most))
    return values[start : start + most]


def _cell(program: Program, b: int, t: int) -> str:
    block = program.blocks[b]
    if t >= len(block.steps):
        return ""
    waits = program.waits.get(program.first[b] + t)
    after = f"^{program.blocks[program.block_of[waits]].id}.{program.index(waits)} " if waits is not None else ""
    return after + instruction_text(block.steps[t], block)


def instruction_text(step: Instruction, block: ThreadBlock) -> str:
    """One step as text."""
    kind = KINDS[step.name]
    if step.name == "nop":
        return "nop"
    place = str(step.dst if kind.stores else step.src)
    if step.name in ("cpy", "re"):
        place += f"{'+=' if kind.accumulates else '='}{step.src}"
    elif kind.stores and kind.reads and step.src != step.dst:
        place += f"={step.src}+"
    peers = (f"<{block.receive}" if kind.receives else "") + (f">{block.send}" if kind.sends else "")
    return f"{step.name} {place}{peers}" + (f"(x{step.chunks})" if step.chunks > 1 else "")
