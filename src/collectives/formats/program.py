"""A program of thread blocks: what each block of each GPU does, step after step, and which steps wait for which."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple


class Kind(NamedTuple):
    """What a step does: it takes a message, reads cells of its GPU, adds it all up, and stores or sends the sum."""

    receives: bool = False
    reads: bool = False
    stores: bool = False
    sends: bool = False
    accumulates: bool = False  # what the destination holds is a summand too


# fmt: off
KINDS = {
    "s": Kind(reads=True, sends=True),
    "r": Kind(receives=True, stores=True),
    "rcs": Kind(receives=True, stores=True, sends=True),
    "rrs": Kind(receives=True, reads=True, sends=True),
    "rrc": Kind(receives=True, reads=True, stores=True),
    "rrcs": Kind(receives=True, reads=True, stores=True, sends=True),
    "cpy": Kind(reads=True, stores=True),
    "re": Kind(reads=True, stores=True, accumulates=True),
    "nop": Kind(),
}
# fmt: on

# How many messages a connection holds before its sender waits: NCCL's eight steps, of which a chunk takes four in the
# protocol Simple and one in the others. A message of several chunks may take more than one slot.
SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}


class Place(NamedTuple):
    """Cells of a GPU: a buffer, "i" (input), "o" (output) or "s" (scratch), and the first cell."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}{self.offset}"


class Step(NamedTuple):
    """One instruction of a thread block."""

    name: str
    src: Place
    dst: Place
    chunks: int

    @property
    def kind(self) -> Kind:
        """What it does."""
        return KINDS[self.name]


class Block(NamedTuple):
    """A thread block: its steps run one after the other; -1 stands for no peer."""

    gpu: int
    id: int
    send: int
    receive: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """What a file says. A step's number counts all steps of all blocks, in the order of ``blocks``."""

    collective: str
    p: int
    whole: int  # chunks of the larger one of input and output
    root: int | None
    protocol: str
    modes: tuple[bool, ...]  # in place, out of place, or both
    blocks: tuple[Block, ...]
    scratch: tuple[int, ...]  # cells of each GPU
    copies: tuple[tuple[int, int, int], ...]  # before the first step: GPU, cell of its input, cell of its output
    waits: dict[int, int]  # a step, and the step of another block of its GPU that must be done before

    @cached_property
    def first(self) -> list[int]:
        """The number of each block's first step, and how many steps there are."""
        return list(accumulate((len(block.steps) for block in self.blocks), initial=0))

    @cached_property
    def steps(self) -> list[Step]:
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
