"""A schedule as a program in MSCCL XML: for RCCL, or in the dialect of msccl-tools; proved before it is returned."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from collectives.contracts import CONTRACTS
from collectives.formats import msccl
from collectives.formats.layout import sizes
from collectives.formats.lowering import BlockPeers, Lowered, lower
from collectives.formats.program import BufferOffset, Instruction
from collectives.formats.prove import prove
from collectives.schedule import Schedule, need_ranks_only


class Dialect(NamedTuple):
    """What a runtime reads, and its limits: the size of its arrays."""

    name: str
    collectives: dict[str, str]
    attributes: str  # of <algo>, beyond those that both have
    steps: int  # of a thread block
    blocks: int  # of a GPU
    per_channel: int  # thread blocks of a GPU on a channel
    channels: int
    nodes: int | None  # elements that one GPU keeps: the program, all GPUs, its own blocks and steps


COMMON = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"} | {
    name: name for name in ("broadcast", "reduce")
}

# ROCm/rccl 0cbce2a, msccl_struct.h and msccl_parser.h; microsoft/msccl b23e9cd, msccl.h and devcomm.h. RCCL also fuses
# at most 16 consecutive local sums; a schedule has none.
RCCL = Dialect(
    name="RCCL",
    collectives=COMMON | {"reduce_scatter": "reducescatter"},
    attributes=' outofplace="{out}" minBytes="0" maxBytes="0"',
    steps=64,
    blocks=64,
    per_channel=32,
    channels=128,
    nodes=4095,
)
MSCCL_TOOLS = Dialect(
    name="MSCCL",
    collectives=COMMON | {"reduce_scatter": "reduce_scatter", "gather": "gather", "scatter": "scatter"},
    attributes="",
    steps=256,
    blocks=216,
    per_channel=32,
    channels=32,
    nodes=None,
)
NOP = Instruction("nop", BufferOffset("i", -1), BufferOffset("o", -1), 0)
DIALECTS = {"rccl": RCCL, "msccl-tools": MSCCL_TOOLS}


def text(schedule: Schedule, name: str, dialect: str = "rccl", protocol: str = "Simple") -> str:
    """The program as text, with ``name`` as its name.

    All collectives but an all-to-all run in place. The runtime cuts large chunks into pieces and runs the whole program
    for each; the program itself has no loop. It is read back and proved first (`collectives.formats.prove`).

    Raises ValueError if the dialect has no such collective or root, and if a limit of the runtime is too small. Raises
    ScheduleError if the schedule is wrong or has switches. Cost: about 0.2 ms an instruction.

    >>> from collectives.algorithms import ALGORITHMS
    >>> for line in text(ALGORITHMS["broadcast", "chain"](2), "chain", "msccl-tools").splitlines()[:3]:
    ...     print(line)
    <algo name="chain" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2" coll="broadcast" inplace="1">
      <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">
        <tb id="0" send="1" recv="-1" chan="0">
    """
    need_ranks_only(schedule, "MSCCL, whose GPUs do the adding")
    of = DIALECTS[dialect]
    _need_supported(schedule, of)
    lowered = lower(schedule, of.channels, of.per_channel)
    blocks = _blocks(lowered)
    _need_within(schedule.p, blocks, lowered, of)
    lines = "\n".join([*_lines(schedule, name, blocks, lowered, of, protocol), ""])
    prove(msccl.program(lines.encode()))
    return lines


def _need_supported(schedule: Schedule, of: Dialect) -> None:
    if schedule.collective not in of.collectives:
        why = "RCCL cuts one rank's part into chunks there, not the buffer"
        raise ValueError(f"collective: got {schedule.collective}, expected {', '.join(of.collectives)}; {why}")
    if schedule.root:
        raise ValueError(f"root: got {schedule.root}, expected 0, because MSCCL XML names no root")
    if schedule.wire:
        raise ValueError(f"wire: got {schedule.wire}, expected none, because MSCCL XML names no format of messages")


def _blocks(lowered: Lowered) -> dict[BlockPeers, list[int]]:
    """The thread blocks, each with the numbers of its instructions in their order."""
    found: dict[BlockPeers, list[int]] = defaultdict(list)
    for number, each in enumerate(lowered.instructions):
        found[each.block].append(number)
    return dict(sorted(found.items()))


def _need_within(p: int, blocks: dict[BlockPeers, list[int]], lowered: Lowered, of: Dialect) -> None:
    """Raise ValueError for what does not fit into the runtime."""
    per_gpu = Counter(block.gpu for block in blocks)
    per_channel = Counter((block.gpu, block.channel) for block in blocks if max(block.send, block.receive) >= 0)
    length = {block: sum(max(1, len(lowered.waits[i])) for i in numbers) for block, numbers in blocks.items()}
    nodes = {gpu: 1 + p + per_gpu[gpu] + sum(n for b, n in length.items() if b.gpu == gpu) for gpu in per_gpu}
    for what, found, most in (
        ("thread blocks of a GPU", per_gpu, of.blocks),
        ("thread blocks of a GPU on one channel", per_channel, of.per_channel),
        ("steps of a thread block", length, of.steps),
        ("XML elements that a GPU reads", nodes, of.nodes),
    ):
        got = max(found.values(), default=0)
        if most is not None and got > most:
            raise ValueError(f"{what}: got {got}, expected at most {most}, a limit of {of.name}")


def _lines(
    schedule: Schedule, name: str, blocks: dict[BlockPeers, list[int]], lowered: Lowered, of: Dialect, protocol: str
) -> Iterator[str]:
    collective, p = schedule.collective, schedule.p
    out = int(CONTRACTS[collective].parts == 2)
    whole, channels = schedule.k // (p if out else 1), max((block.channel for block in blocks), default=0) + 1
    yield (
        f'<algo name="{re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:60]}" proto="{protocol}" nchannels="{channels}" '
        f'nchunksperloop="{whole}" ngpus="{p}" coll="{of.collectives[collective]}" inplace="{1 - out}"'
        f"{of.attributes.format(out=out)}>"
    )
    size, steps = sizes(collective, p, whole), _Steps(blocks, lowered)
    for gpu, scratch in enumerate(lowered.scratch):
        yield f'  <gpu id="{gpu}" i_chunks="{size.i}" o_chunks="{size.o}" s_chunks="{scratch}">'
        for block in (each for each in blocks if each.gpu == gpu):
            ends = f'send="{block.send}" recv="{block.receive}" chan="{block.channel}"'
            yield f'    <tb id="{steps.id[block]}" {ends}>'
            yield from steps.of(block)
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


class _Steps:
    """The steps of thread blocks: an instruction, and before it one that does nothing for each further wait."""

    def __init__(self, blocks: dict[BlockPeers, list[int]], lowered: Lowered) -> None:
        self.blocks, self.lowered = blocks, lowered
        first = {block.gpu: i for i, block in reversed(list(enumerate(blocks)))}
        self.id = {block: i - first[block.gpu] for i, block in enumerate(blocks)}
        self.waited = {other for others in lowered.waits for other in others}
        self.at: dict[int, int] = {}
        for numbers in blocks.values():
            s = -1
            for number in numbers:
                s += max(1, len(lowered.waits[number]))
                self.at[number] = s

    def of(self, block: BlockPeers) -> Iterator[str]:
        """The lines of one block."""
        for number in self.blocks[block]:
            waits = [self._wait(other) for other in sorted(self.lowered.waits[number])] or ['depid="-1" deps="-1"']
            first = self.at[number] - len(waits) + 1
            for s, wait in enumerate(waits[:-1], first):
                yield _line(s, NOP, wait, 0)
            step = self.lowered.instructions[number].instruction
            yield _line(self.at[number], step, waits[-1], int(number in self.waited))

    def _wait(self, other: int) -> str:
        block = self.lowered.instructions[other].block
        return f'depid="{self.id[block]}" deps="{self.at[other]}"'


def _line(s: int, step: Instruction, wait: str, hasdep: int) -> str:
    src, dst = step.src, step.dst
    places = f'srcbuf="{src.buffer}" srcoff="{src.offset}" dstbuf="{dst.buffer}" dstoff="{dst.offset}"'
    return f'      <step s="{s}" type="{step.name}" {places} cnt="{step.chunks}" {wait} hasdep="{hasdep}"/>'
