"""A schedule as instructions of thread blocks: which block does what, and for which others it waits.

Step t of the schedule becomes, for each of its rows, a send on one GPU and a receive on another; a receive whose data
go on next is one instruction with that send. A block runs its instructions in the order of the steps, and in a step its
sends before its receives, because a step reads everything before it writes. An instruction waits for those of other
blocks of its GPU that use its cells before, unless a block's order, a message or another wait has ordered them.
"""

from collections import defaultdict
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from collectives.contracts import CONTRACTS, where
from collectives.formats.fusing import Cell, Fused, fuse, kept
from collectives.formats.program import KINDS, Place
from collectives.formats.transfers import MOST_COUNT, Placed, Transfer
from collectives.schedule import Schedule


class Block(NamedTuple):
    """A thread block: its GPU, its channel, and the peers from which and to which it has a connection, or -1."""

    gpu: int
    channel: int
    receive: int
    send: int


class Instruction(NamedTuple):
    """One instruction, and the messages that it receives and sends."""

    block: Block
    name: str
    src: Place
    dst: Place
    chunks: int
    turn: tuple[int, bool, int]  # the step, whether it only receives, the message: what it is sorted by
    received: int | None = None
    sent: int | None = None


class Written(NamedTuple):
    """Instructions in an order in which they can run, for each those that it waits for, and cells of scratch."""

    instructions: list[Instruction]
    waits: list[list[int]]
    scratch: list[int]


def instructions(schedule: Schedule, channels: int, ends: int) -> Written:
    """The instructions of a schedule, on at most so many channels with so many connections of a GPU on each."""
    placed = Placed(schedule)
    transfers = placed.transfers()
    fused = fuse(transfers, channels, ends)
    stays = kept(transfers, {(rank, placed.place(rank, c)) for rank, c in _asked(schedule)})
    sends = [_send(m, transfers, fused) for m in sorted(set(range(len(transfers))) - set(fused.onward.values()))]
    receives = [_receive(m, transfers, fused, stays) for m in range(len(transfers))]
    found = sorted([*_copies(schedule), *sends, *receives], key=lambda each: each.turn)
    return Written(found, _waits(found), placed.scratch)


def _asked(schedule: Schedule) -> list[list[int]]:
    """Each (rank, chunk) that the collective asks for, unless it is there before and stays in another buffer."""
    found: list[list[int]] = np.argwhere(where(schedule)).tolist()
    if CONTRACTS[schedule.collective].parts != 2:
        return found
    return [[rank, c] for rank, c in found if c * schedule.p // schedule.k != rank]


def _send(m: int, transfers: list[Transfer], fused: Fused) -> Instruction:
    each, channel = transfers[m], fused.channel[m]
    block = Block(each.src, channel, fused.receiver.get((each.src, channel, each.dst), -1), each.dst)
    return Instruction(block, "s", each.source, each.source, each.chunks, (each.t, False, m), None, m)


def _receive(m: int, transfers: list[Transfer], fused: Fused, stays: set[int]) -> Instruction:
    each, channel, after = transfers[m], fused.channel[m], fused.onward.get(m)
    block = Block(each.dst, channel, each.src, fused.sender.get((each.dst, channel, each.src), -1))
    if after is None:
        name, turn = "rrc" if each.add else "r", (each.t, True, m)
    else:
        name = "rcs" if not each.add else "rrcs" if after in stays else "rrs"
        turn = (transfers[after].t, False, after)
    return Instruction(block, name, each.target, each.target, each.chunks, turn, m, after)


def _copies(schedule: Schedule) -> list[Instruction]:
    """In an all-to-all, out of place, a rank copies what it has for itself."""
    if CONTRACTS[schedule.collective].parts != 2:
        return []
    size = schedule.k // schedule.p**2
    found = []
    for rank in range(schedule.p):
        for at in range(rank * size, (rank + 1) * size, MOST_COUNT):
            count, block = min(MOST_COUNT, (rank + 1) * size - at), Block(rank, 0, -1, -1)
            found.append(Instruction(block, "cpy", Place("i", at), Place("o", at), count, (-1, False, at)))
    return found


def _waits(found: list[Instruction]) -> list[list[int]]:
    """For each instruction those it must wait for; in ``before`` a bit for every instruction that is done before."""
    before: list[int] = []
    waits: list[list[int]] = []
    last: dict[Block, int] = {}
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

    def of(self, number: int, each: Instruction) -> set[int]:
        """The instructions that must be done before this one; from now on it is the last."""
        kind, gpu = KINDS[each.name], each.block.gpu
        found: set[int] = set()
        for j in range(each.chunks if kind.reads else 0):
            cell = gpu, Place(each.src.buffer, each.src.offset + j)
            found |= {self.writer[cell]} if cell in self.writer else set()
            self.readers[cell].append(number)
        for j in range(each.chunks if kind.stores else 0):
            cell = gpu, Place(each.dst.buffer, each.dst.offset + j)
            found |= {*self.readers.pop(cell, []), *([self.writer[cell]] if cell in self.writer else [])}
            self.writer[cell] = number
        return found - {number}
