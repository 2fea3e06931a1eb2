"""Lower a schedule to a program of thread blocks: which block does what, and for which others it waits.

Step t of the schedule becomes, for each of its rows, a send on one GPU and a receive on another; a
receive whose data go on next is one instruction with that send. A block runs its instructions in
the order of the steps, and in a step its sends before its receives, because a step reads everything
before it writes. An instruction waits for those of other blocks of its GPU that use its cells
before, unless a block's order, a message or another wait has ordered them. For each further wait
there is an instruction before it that does nothing.

All collectives but an all-to-all run in place: a rank's chunks are the cells of the larger one of
input and output, so that ``i`` and ``o`` share memory as `Layout` has it. What a rank only passes
on is in scratch.

A transfer's receive at rank r is *fused* with the send that reads the same cells next, if no other
step uses them in between: one instruction receives, adds or stores, and sends. It runs in the step
of the send. Messages of one connection (rank, rank, channel) arrive in the order in which they are
sent, so that no message may be sent before the last one's receive has its turn; and a thread block
has one peer on each side. A chain of fused messages takes the first channel where both hold. If
there is none, its messages are not fused.

A receive that would wait for its send while later messages of its connection come in is not fused:
the root of a pipelined tree first receives all segments. Where all of a chain would wait, as in
interleaved rings, it is fused, and each ring has its channel.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import reduce
from itertools import groupby, pairwise
from operator import or_
from typing import NamedTuple

import numpy as np

from collectives.core.contracts import CONTRACTS, where
from collectives.core.schedule import Schedule
from collectives_interop.program import (
    MAX_ELEMENTS,
    BufferOffset,
    CellUses,
    Instruction,
    Program,
    ThreadBlock,
)

# RCCL and MSCCL count chunks of one instruction up to 71.
MAX_COUNT = 71

NOP = Instruction("nop", BufferOffset("i", -1), BufferOffset("o", -1), 0)

Cell = tuple[int, BufferOffset]  # of a rank
End = tuple[int, int, int]  # a rank, a channel, a peer


class Transfer(NamedTuple):
    """``chunks`` consecutive cells that go from one rank to another in step ``t``, and are added there or stored."""

    t: int
    src: int
    dst: int
    source: BufferOffset
    target: BufferOffset
    chunks: int
    add: bool

    @property
    def end(self) -> tuple[BufferOffset, BufferOffset]:
        """Return the cells of the sender and of the receiver after the last ones."""
        return self.source.behind(self.chunks), self.target.behind(self.chunks)

    @property
    def reads(self) -> list[Cell]:
        """Return the cells of the sender."""
        return _cells(self.src, self.source, self.chunks)

    @property
    def writes(self) -> list[Cell]:
        """Return the cells of the receiver."""
        return _cells(self.dst, self.target, self.chunks)


def _cells(rank: int, place: BufferOffset, count: int) -> list[Cell]:
    return [(rank, place.behind(j)) for j in range(count)]


def by_step(transfers: list[Transfer]) -> list[list[int]]:
    """Return the numbers of the transfers of each step, in order."""
    return [list(each) for _, each in groupby(range(len(transfers)), key=lambda m: transfers[m].t)]


def onward(transfers: list[Transfer]) -> dict[int, int]:
    """Return the messages whose cells are next used by one send of just these cells, each with that send."""
    found: dict[int, int] = {}
    written: dict[Cell, int | None] = {}  # by which message, if it is the last that used the cell
    for step in by_step(transfers):
        for m in step:
            writers = {written.get(cell) for cell in transfers[m].reads}
            last = writers.pop()
            if not writers and last is not None and transfers[last].writes == transfers[m].reads:
                found[last] = m
            written.update(dict.fromkeys(transfers[m].reads))
        for m in step:
            written.update(dict.fromkeys(transfers[m].writes, m))
    return found


def kept(transfers: list[Transfer], asked: set[Cell]) -> set[int]:
    """Return the messages whose cells are needed on the sender after they are sent."""
    needed, found = set(asked), set()
    for step in reversed(by_step(transfers)):
        for m in reversed(step):
            (needed.update if transfers[m].add else needed.difference_update)(transfers[m].writes)
        for m in reversed(step):
            if not needed.isdisjoint(transfers[m].reads):
                found.add(m)
            needed.update(transfers[m].reads)
    return found


def fuse(transfers: list[Transfer], channels: int, ends: int) -> "Channels":
    """Fuse messages on at most this number of channels, with this number of connections of a rank on each."""
    assigned = Channels(transfers, channels, ends)
    for chain in _without_waits(transfers, _chains(onward(transfers), len(transfers))):
        assigned.take(chain)
    return assigned


def _chains(goes_on: dict[int, int], total: int) -> Iterator[list[int]]:
    for head in sorted(set(range(total)) - set(goes_on.values())):
        chain = [head]
        while chain[-1] in goes_on:
            chain.append(goes_on[chain[-1]])
        yield chain


def _without_waits(transfers: list[Transfer], chains: Iterator[list[int]]) -> Iterator[list[int]]:
    """Yield the chains, cut where a receive would wait, unless all of the chain would."""
    steps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in transfers:
        steps[each.src, each.dst].append(each.t)
    for chain in chains:
        cuts = [
            i for i, pair in enumerate(pairwise(chain), 1) if _would_wait(transfers, steps, *pair)
        ]
        cuts = [] if len(cuts) == len(chain) - 1 else cuts
        yield from (chain[i:j] for i, j in pairwise([0, *cuts, len(chain)]))


def _would_wait(
    transfers: list[Transfer], steps: dict[tuple[int, int], list[int]], m: int, after: int
) -> bool:
    """Return whether other messages of the connection are sent between the steps of a receive and of its send."""
    times = steps[transfers[m].src, transfers[m].dst]
    return bisect_right(times, transfers[m].t) < bisect_left(times, transfers[after].t)


class Channels:
    """The messages of each channel so far."""

    def __init__(self, transfers: list[Transfer], channels: int, ends: int) -> None:
        self.transfers, self.channels, self.ends = transfers, channels, ends
        self.channel: dict[int, int] = {}  # by message
        self.onward: dict[int, int] = {}  # for a received message, the one that it goes on as
        # Of a connection that leaves: the peer from whom its thread block receives.
        self.receiver: dict[End, int] = {}
        # Of a connection that comes in: the peer to whom its thread block sends.
        self.sender: dict[End, int] = {}
        # Messages, and the steps of their receives.
        self.turns: dict[End, list[tuple[int, int]]] = defaultdict(list)
        self.used: dict[tuple[int, int], set[tuple[bool, int]]] = defaultdict(set)

    def take(self, chain: list[int]) -> None:
        """Give a chain of messages one channel, or each of its messages its own."""
        for channel in range(self.channels):
            if self._fits(chain, channel):
                self._put(chain, channel)
                return
        if len(chain) == 1:
            each = self.transfers[chain[0]]
            raise ValueError(
                f"channels: got more than {self.channels} for the messages from GPU {each.src} to GPU {each.dst}, "
                f"expected at most that with {self.ends} connections of a GPU on each"
            )
        for m in chain:
            self.take([m])

    def _fits(self, chain: list[int], channel: int) -> bool:
        return (
            all(self._has_turn(turn, channel) for turn in self._turns(chain))
            and self._may_pair([self._ends(*pair, channel) for pair in pairwise(chain)])
            and all(self._has_room(m, channel) for m in chain)
        )

    def _turns(self, chain: list[int]) -> list[tuple[int, int]]:
        return [
            (m, self.transfers[after].t)
            for m, after in zip(chain, [*chain[1:], chain[-1]], strict=True)
        ]

    def _has_turn(self, turn: tuple[int, int], channel: int) -> bool:
        """Return whether each message of the connection is received before the next one is sent, or in that step."""
        each = self.transfers[turn[0]]
        others = self.turns[each.src, channel, each.dst]
        at = bisect_left(others, turn)
        near = [*others[max(0, at - 1) : at], turn, *others[at : at + 1]]
        return all(
            received <= self.transfers[later].t for (_, received), (later, _) in pairwise(near)
        )

    def _ends(self, first: int, second: int, channel: int) -> tuple[End, End]:
        rank = self.transfers[first].dst
        return (rank, channel, self.transfers[first].src), (
            rank,
            channel,
            self.transfers[second].dst,
        )

    def _may_pair(self, pairs: list[tuple[End, End]]) -> bool:
        """Return whether each end of a connection meets one other end only, here and in the chains before."""
        sender = {comes: self.sender.get(comes, leaves[2]) for comes, leaves in pairs}
        receiver = {leaves: self.receiver.get(leaves, comes[2]) for comes, leaves in pairs}
        return all(
            sender[comes] == leaves[2] and receiver[leaves] == comes[2] for comes, leaves in pairs
        )

    def _has_room(self, m: int, channel: int) -> bool:
        src, dst = self.transfers[m].src, self.transfers[m].dst
        ends = ((src, (True, dst)), (dst, (False, src)))
        return all(len(self.used[rank, channel] | {end}) <= self.ends for rank, end in ends)

    def _put(self, chain: list[int], channel: int) -> None:
        for m, received in self._turns(chain):
            src, dst = self.transfers[m].src, self.transfers[m].dst
            self.channel[m] = channel
            insort(self.turns[src, channel, dst], (m, received))
            self.used[src, channel].add((True, dst))
            self.used[dst, channel].add((False, src))
        for first, second in pairwise(chain):
            comes, leaves = self._ends(first, second, channel)
            self.onward[first], self.sender[comes], self.receiver[leaves] = (
                second,
                leaves[2],
                comes[2],
            )


class BlockPeers(NamedTuple):
    """A thread block: its GPU, its channel, and the peers from which and to which it has a connection, or -1."""

    gpu: int
    channel: int
    receive: int
    send: int


class ScheduledInstruction(NamedTuple):
    """An instruction of a block, and the messages that it receives and sends."""

    # The step, whether it only receives, the message: what it is sorted by.
    turn: tuple[int, bool, int]
    block: BlockPeers
    instruction: Instruction
    received: int | None = None
    sent: int | None = None


def lower(schedule: Schedule, channels: int, ends: int, protocol: str = "Simple") -> Program:
    """Return the program of a schedule, on at most this number of channels with ``ends`` connections of a GPU on each.

    Raises ValueError for more than 262,144 chunks that move, and if the channels do not suffice.
    """
    placement = ChunkPlacement(schedule)
    transfers = placement.transfers()
    fused = fuse(transfers, channels, ends)
    stays = kept(transfers, {(rank, placement.offset(rank, c)) for rank, c in _asked(schedule)})
    sends = [
        _send(m, transfers[m], fused)
        for m in sorted(set(range(len(transfers))) - set(fused.onward.values()))
    ]
    receives = [_receive(m, transfers, fused, stays) for m in range(len(transfers))]
    found = sorted([*_copies(schedule), *sends, *receives], key=lambda each: each.turn)
    in_place = CONTRACTS[schedule.collective].parts != 2
    whole, scratch = schedule.k // (1 if in_place else schedule.p), tuple(placement.scratch)
    blocks, waits = _blocks(found, _waits(found))
    return Program(
        schedule.collective,
        schedule.p,
        whole,
        schedule.root,
        protocol,
        (in_place,),
        blocks,
        scratch,
        (),
        waits,
    )


def _blocks(
    found: list[ScheduledInstruction], waits: list[list[int]]
) -> tuple[tuple[ThreadBlock, ...], dict[int, int]]:
    """Return the thread blocks, and each of their steps that waits, with the one for which it does."""
    numbers: dict[BlockPeers, list[int]] = defaultdict(list)
    for number, each in enumerate(found):
        numbers[each.block].append(number)
    blocks: list[ThreadBlock] = []
    at: dict[int, int] = {}  # the step of each instruction
    count, ids = 0, Counter[int]()
    for peers in sorted(numbers):
        steps: list[Instruction] = []
        for number in numbers[peers]:
            steps += [NOP] * (len(waits[number]) - 1) + [found[number].instruction]
            at[number] = count + len(steps) - 1
        blocks.append(
            ThreadBlock(
                peers.gpu, ids[peers.gpu], peers.send, peers.receive, peers.channel, tuple(steps)
            )
        )
        count, ids[peers.gpu] = count + len(steps), ids[peers.gpu] + 1
    waiting = {
        at[number] - i: at[other]
        for number, others in enumerate(waits)
        for i, other in enumerate(sorted(others, reverse=True))
    }
    return tuple(blocks), waiting


def _asked(schedule: Schedule) -> list[list[int]]:
    """List (rank, chunk) that the collective asks for, unless it is there before and stays in another buffer."""
    found: list[list[int]] = np.argwhere(where(schedule)).tolist()
    if CONTRACTS[schedule.collective].parts != 2:
        return found
    return [[rank, c] for rank, c in found if c * schedule.p // schedule.k != rank]


def _send(m: int, each: Transfer, fused: Channels) -> ScheduledInstruction:
    channel = fused.channel[m]
    block = BlockPeers(
        each.src, channel, fused.receiver.get((each.src, channel, each.dst), -1), each.dst
    )
    send = Instruction("s", each.source, each.source, each.chunks)
    return ScheduledInstruction((each.t, False, m), block, send, None, m)


def _receive(
    m: int, transfers: list[Transfer], fused: Channels, stays: set[int]
) -> ScheduledInstruction:
    each, channel, after = transfers[m], fused.channel[m], fused.onward.get(m)
    block = BlockPeers(
        each.dst, channel, each.src, fused.sender.get((each.dst, channel, each.src), -1)
    )
    if after is None:
        name, turn = "rrc" if each.add else "r", (each.t, True, m)
    else:
        name = "rcs" if not each.add else "rrcs" if after in stays else "rrs"
        turn = (transfers[after].t, False, after)
    receive = Instruction(name, each.target, each.target, each.chunks)
    return ScheduledInstruction(turn, block, receive, m, after)


def _copies(schedule: Schedule) -> list[ScheduledInstruction]:
    """Return the copies of an all-to-all, which is out of place: a rank's own part."""
    if CONTRACTS[schedule.collective].parts != 2:
        return []
    size = schedule.k // schedule.p**2
    found = []
    for rank in range(schedule.p):
        for at in range(rank * size, (rank + 1) * size, MAX_COUNT):
            count = min(MAX_COUNT, (rank + 1) * size - at)
            copy = Instruction("cpy", BufferOffset("i", at), BufferOffset("o", at), count)
            found.append(ScheduledInstruction((-1, False, at), BlockPeers(rank, 0, -1, -1), copy))
    return found


def _waits(found: list[ScheduledInstruction]) -> list[list[int]]:
    """Return for each instruction those it must wait for.

    ``before`` has a bit for each that is done before.
    """
    before: list[int] = []
    waits: list[list[int]] = []
    last: dict[BlockPeers, int] = {}
    sender: dict[int, int] = {}
    uses = CellUses[Cell]()
    for number, each in enumerate(found):
        known = [last[each.block]] if each.block in last else []
        known += [sender[each.received]] if each.received is not None else []
        done = reduce(or_, (before[other] | 1 << other for other in known), 0)
        waits.append([])
        step, gpu = each.instruction, each.block.gpu
        reads = _cells(gpu, step.src, step.chunks) if step.kind.reads else []
        writes = _cells(gpu, step.dst, step.chunks) if step.kind.stores else []
        for other in sorted(
            {other for other, _ in uses.before(number, reads, writes)}, reverse=True
        ):
            if not done >> other & 1:
                waits[-1].append(other)
                done |= before[other] | 1 << other
        before.append(done)
        last[each.block] = number
        if each.sent is not None:
            sender[each.sent] = number
    return waits


class ChunkPlacement:
    """The cell of each chunk on each rank, with scratch for what a rank only passes on."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.rows = schedule, list(_rows(schedule))
        self.scratch = [0] * schedule.p  # cells
        self.passed: dict[tuple[int, int], BufferOffset] = {}
        used = {
            (rank, c)
            for row in self.rows
            for c in range(row[3], row[3] + row[4])
            for rank in row[1:3]
        }
        for rank, chunk in sorted(used):
            if _home(schedule, rank, chunk) is None:
                self.passed[rank, chunk] = BufferOffset("s", self.scratch[rank])
                self.scratch[rank] += 1

    def offset(self, rank: int, chunk: int) -> BufferOffset:
        """Return the cell in which a rank keeps a chunk."""
        return _home(self.schedule, rank, chunk) or self.passed[rank, chunk]

    def transfers(self) -> list[Transfer]:
        """Return all transfers, in the order of steps and rows.

        A row is cut where cells are not consecutive.
        """
        found: list[Transfer] = []
        for t, src, dst, first, count, add in self.rows:
            for chunk in range(first, first + count):
                ends = self.offset(src, chunk), self.offset(dst, chunk)
                last = found[-1] if chunk > first else None
                if last and last.chunks < MAX_COUNT and ends == last.end:
                    found[-1] = last._replace(chunks=last.chunks + 1)
                else:
                    found.append(Transfer(t, src, dst, *ends, 1, add))
        return found


def _rows(schedule: Schedule) -> Iterator[tuple[int, int, int, int, int, bool]]:
    """Yield step, sender, receiver, first chunk, chunks, and whether they are added."""
    total = 0
    for t, step in enumerate(schedule.steps()):
        total += int(step.count.sum())
        if total > MAX_ELEMENTS:
            raise ValueError(
                f"chunks that move: got more than {MAX_ELEMENTS:,}, expected at most that in a program"
            )
        columns = (step.src, step.dst, step.chunk, step.count, step.add)
        yield from (
            (t, *row) for row in zip(*(each.tolist() for each in columns), strict=True) if row[3]
        )


def _home(schedule: Schedule, rank: int, chunk: int) -> BufferOffset | None:
    """Return the cell of input or output for a chunk, or None for one that the rank only passes on."""
    collective, p, k = schedule.collective, schedule.p, schedule.k
    if CONTRACTS[collective].parts == 2:
        (sender, to), piece = divmod(chunk * p * p // k, p), chunk % (k // p // p)
        at = (
            BufferOffset("i", to)
            if sender == rank
            else BufferOffset("o", sender)
            if to == rank
            else None
        )
        return at and at.behind(at.offset * (k // p // p - 1) + piece)
    if not CONTRACTS[collective].compact:
        # RCCL's waiting steps acquire what others have written only if they read the output.
        return BufferOffset("i" if collective == "reduce_scatter" else "o", chunk)
    whole, part = "io" if collective == "scatter" else "oi"
    if rank == schedule.root:
        return BufferOffset(whole, chunk)
    return BufferOffset(part, chunk % (k // p)) if chunk * p // k == rank else None
