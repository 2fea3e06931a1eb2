"""A schedule lowered to instructions of thread blocks: which block does what, and for which others it waits.

Step t of the schedule becomes, for each of its rows, a send on one GPU and a receive on another; a receive whose data
go on next is one instruction with that send. A block runs its instructions in the order of the steps, and in a step its
sends before its receives, because a step reads everything before it writes. An instruction waits for those of other
blocks of its GPU that use its cells before, unless a block's order, a message or another wait has ordered them.

All collectives but an all-to-all run in place: a rank's chunks are the cells of the larger one of input and output, so
that ``i`` and ``o`` share memory as `collectives.formats.layout` has it. What a rank only passes on is in scratch.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from collectives.contracts import CONTRACTS, where
from collectives.formats.fusing import Cell, Fused, Transfer, fuse, kept
from collectives.formats.msccl import MOST_ELEMENTS
from collectives.formats.program import BufferOffset, Instruction
from collectives.schedule import Schedule

# RCCL and MSCCL count chunks of one instruction up to 71.
MOST_COUNT = 71


class BlockPeers(NamedTuple):
    """A thread block: its GPU, its channel, and the peers from which and to which it has a connection, or -1."""

    gpu: int
    channel: int
    receive: int
    send: int


class ScheduledInstruction(NamedTuple):
    """An instruction of a block, and the messages that it receives and sends."""

    block: BlockPeers
    instruction: Instruction
    turn: tuple[int, bool, int]  # the step, whether it only receives, the message: what it is sorted by
    received: int | None = None
    sent: int | None = None


class Lowered(NamedTuple):
    """Instructions in an order in which they can run, for each those that it waits for, and cells of scratch."""

    instructions: list[ScheduledInstruction]
    waits: list[list[int]]
    scratch: list[int]


def lower(schedule: Schedule, channels: int, ends: int) -> Lowered:
    """The instructions of a schedule, on at most so many channels with so many connections of a GPU on each."""
    placement = ChunkPlacement(schedule)
    transfers = placement.transfers()
    fused = fuse(transfers, channels, ends)
    stays = kept(transfers, {(rank, placement.offset(rank, c)) for rank, c in _asked(schedule)})
    sends = [_send(m, transfers, fused) for m in sorted(set(range(len(transfers))) - set(fused.onward.values()))]
    receives = [_receive(m, transfers, fused, stays) for m in range(len(transfers))]
    found = sorted([*_copies(schedule), *sends, *receives], key=lambda each: each.turn)
    return Lowered(found, _waits(found), placement.scratch)


def _asked(schedule: Schedule) -> list[list[int]]:
    """Each (rank, chunk) that the collective asks for, unless it is there before and stays in another buffer."""
    found: list[list[int]] = np.argwhere(where(schedule)).tolist()
    if CONTRACTS[schedule.collective].parts != 2:
        return found
    return [[rank, c] for rank, c in found if c * schedule.p // schedule.k != rank]


def _send(m: int, transfers: list[Transfer], fused: Fused) -> ScheduledInstruction:
    each, channel = transfers[m], fused.channel[m]
    block = BlockPeers(each.src, channel, fused.receiver.get((each.src, channel, each.dst), -1), each.dst)
    send = Instruction("s", each.source, each.source, each.chunks)
    return ScheduledInstruction(block, send, (each.t, False, m), None, m)


def _receive(m: int, transfers: list[Transfer], fused: Fused, stays: set[int]) -> ScheduledInstruction:
    each, channel, after = transfers[m], fused.channel[m], fused.onward.get(m)
    block = BlockPeers(each.dst, channel, each.src, fused.sender.get((each.dst, channel, each.src), -1))
    if after is None:
        name, turn = "rrc" if each.add else "r", (each.t, True, m)
    else:
        name = "rcs" if not each.add else "rrcs" if after in stays else "rrs"
        turn = (transfers[after].t, False, after)
    receive = Instruction(name, each.target, each.target, each.chunks)
    return ScheduledInstruction(block, receive, turn, m, after)


def _copies(schedule: Schedule) -> list[ScheduledInstruction]:
    """In an all-to-all, out of place, a rank copies what it has for itself."""
    if CONTRACTS[schedule.collective].parts != 2:
        return []
    size = schedule.k // schedule.p**2
    found = []
    for rank in range(schedule.p):
        for at in range(rank * size, (rank + 1) * size, MOST_COUNT):
            count = min(MOST_COUNT, (rank + 1) * size - at)
            copy = Instruction("cpy", BufferOffset("i", at), BufferOffset("o", at), count)
            found.append(ScheduledInstruction(BlockPeers(rank, 0, -1, -1), copy, (-1, False, at)))
    return found


def _waits(found: list[ScheduledInstruction]) -> list[list[int]]:
    """For each instruction those it must wait for; in ``before`` a bit for every instruction that is done before."""
    before: list[int] = []
    waits: list[list[int]] = []
    last: dict[BlockPeers, int] = {}
    sender: dict[int, int] = {}
    uses = _Uses()
    for number, each in enumerate(found):
        known = [last[each.block]] if each.block in last else []
        known += [sender[each.received]] if each.received is not None else []
        done = reduce(or_, (before[other] | 1 << other for other in known), 0)
        waits.append([])
        for other in sorted(uses.of(number, each), reverse=True):
            if not done >> other & 1:
                waits[-1].append(other)
                done |= before[other] | 1 << other
        before.append(done)
        last[each.block] = number
        if each.sent is not None:
            sender[each.sent] = number
    return waits


class _Uses:
    """The last instructions that used each cell."""

    def __init__(self) -> None:
        self.writer: dict[Cell, int] = {}
        self.readers: dict[Cell, list[int]] = defaultdict(list)

    def of(self, number: int, each: ScheduledInstruction) -> set[int]:
        """The instructions that must be done before this one; from now on it is the last."""
        step, gpu = each.instruction, each.block.gpu
        found: set[int] = set()
        for j in range(step.chunks if step.kind.reads else 0):
            cell = gpu, BufferOffset(step.src.buffer, step.src.offset + j)
            found |= {self.writer[cell]} if cell in self.writer else set()
            self.readers[cell].append(number)
        for j in range(step.chunks if step.kind.stores else 0):
            cell = gpu, BufferOffset(step.dst.buffer, step.dst.offset + j)
            found |= {*self.readers.pop(cell, []), *([self.writer[cell]] if cell in self.writer else [])}
            self.writer[cell] = number
        return found - {number}


class ChunkRun(NamedTuple):
    """One row of a step."""

    t: int
    src: int
    dst: int
    chunk: int
    chunks: int
    add: bool


class ChunkPlacement:
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

    def offset(self, rank: int, chunk: int) -> BufferOffset:
        """The cell in which a rank keeps a chunk."""
        return _home(self.schedule, rank, chunk) or BufferOffset("s", self._scratch_at[rank, chunk])

    def transfers(self) -> list[Transfer]:
        """All transfers, in the order of steps and rows; a row is cut where cells are not consecutive."""
        return [
            Transfer(row.t, row.src, row.dst, self.offset(row.src, first), self.offset(row.dst, first), count, row.add)
            for row in self._rows
            for first, count in self._pieces(row)
        ]

    def _pieces(self, row: ChunkRun) -> Iterator[tuple[int, int]]:
        first = row.chunk
        for chunk in _chunks(row)[1:]:
            if chunk - first == MOST_COUNT or not all(self._follow(rank, chunk) for rank in (row.src, row.dst)):
                yield first, chunk - first
                first = chunk
        yield first, row.chunk + row.chunks - first

    def _follow(self, rank: int, chunk: int) -> bool:
        """Whether this chunk's cell is the one behind the last chunk's."""
        before, here = self.offset(rank, chunk - 1), self.offset(rank, chunk)
        return here == (before.buffer, before.offset + 1)


def _rows(schedule: Schedule) -> Iterator[ChunkRun]:
    total = 0
    for t, step in enumerate(schedule.steps()):
        total += int(step.count.sum())
        if total > MOST_ELEMENTS:
            raise ValueError(f"chunks that move: got more than {MOST_ELEMENTS:,}, expected at most that in a program")
        columns = (step.src, step.dst, step.chunk, step.count, step.add)
        yield from (ChunkRun(t, *row) for row in zip(*(each.tolist() for each in columns), strict=True) if row[3])


def _chunks(row: ChunkRun) -> range:
    return range(row.chunk, row.chunk + row.chunks)


def _home(schedule: Schedule, rank: int, chunk: int) -> BufferOffset | None:
    """The cell of input or output for a chunk, or None for one that the rank only passes on."""
    collective, p, k = schedule.collective, schedule.p, schedule.k
    if CONTRACTS[collective].parts == 2:
        (sender, to), piece = divmod(chunk * p * p // k, p), chunk % (k // p // p)
        at = BufferOffset("i", to) if sender == rank else BufferOffset("o", sender) if to == rank else None
        return at and BufferOffset(at.buffer, at.offset * (k // p // p) + piece)
    if not CONTRACTS[collective].compact:
        # RCCL's waiting steps acquire what others have written only if they read the output.
        return BufferOffset("i" if collective == "reduce_scatter" else "o", chunk)
    whole, part = "io" if collective == "scatter" else "oi"
    if rank == schedule.root:
        return BufferOffset(whole, chunk)
    return BufferOffset(part, chunk % (k // p)) if chunk * p // k == rank else None
