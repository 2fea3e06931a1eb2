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
from itertools import groupby, pairwise
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
    steps = groupby(range(len(transfers)), key=lambda m: transfers[m].t)
    return [list(messages) for _, messages in steps]


def onward(transfers: list[Transfer]) -> dict[int, int]:
    """Return the messages whose cells are next used by one send of just these cells, each with that send."""
    found: dict[int, int] = {}
    written: dict[Cell, int | None] = {}  # by which message, if it is the last that used the cell
    for step in by_step(transfers):
        for m in step:
            reads = transfers[m].reads
            writers = {written.get(cell) for cell in reads}
            last = writers.pop()
            if not writers and last is not None and transfers[last].writes == reads:
                found[last] = m
            written.update(dict.fromkeys(reads))
        for m in step:
            written.update(dict.fromkeys(transfers[m].writes, m))
    return found


def kept(transfers: list[Transfer], asked: set[Cell]) -> set[int]:
    """Return the messages whose cells are needed on the sender after they are sent."""
    needed = set(asked)
    found = set()
    for step in reversed(by_step(transfers)):
        for m in reversed(step):
            if transfers[m].add:
                needed.update(transfers[m].writes)
            else:
                needed.difference_update(transfers[m].writes)
        for m in reversed(step):
            if not needed.isdisjoint(transfers[m].reads):
                found.add(m)
            needed.update(transfers[m].reads)
    return found


def fuse(transfers: list[Transfer], channels: int, ends: int) -> "Channels":
    """Fuse messages on at most this number of channels, with this number of connections of a rank on each."""
    assigned = Channels(transfers, channels, ends)
    chains = _chains(onward(transfers), len(transfers))
    for chain in _without_waits(transfers, chains):
        assigned.take(chain)
    return assigned


def _chains(goes_on: dict[int, int], total: int) -> Iterator[list[int]]:
    """Yield the messages of each chain, each of which goes on as the next one."""
    heads = set(range(total)) - set(goes_on.values())
    for head in sorted(heads):
        chain = [head]
        while chain[-1] in goes_on:
            chain.append(goes_on[chain[-1]])
        yield chain


def _without_waits(transfers: list[Transfer], chains: Iterator[list[int]]) -> Iterator[list[int]]:
    """Yield the chains, cut where a receive would wait, unless all of the chain would."""
    steps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for transfer in transfers:
        steps[transfer.src, transfer.dst].append(transfer.t)
    for chain in chains:
        waits = [_would_wait(transfers, steps, one, after) for one, after in pairwise(chain)]
        if all(waits):
            yield chain
            continue
        part = [chain[0]]
        for m, is_cut in zip(chain[1:], waits, strict=True):
            if is_cut:
                yield part
                part = []
            part.append(m)
        yield part


def _would_wait(
    transfers: list[Transfer], steps: dict[tuple[int, int], list[int]], m: int, after: int
) -> bool:
    """Return whether other messages of the connection are sent between the steps of a receive and of its send."""
    first = transfers[m]
    times = steps[first.src, first.dst]
    return bisect_right(times, first.t) < bisect_left(times, transfers[after].t)


class Turn(NamedTuple):
    """A message of a connection, and the step in which its receive has its turn."""

    message: int
    received: int


class Channels:
    """The messages of each channel so far."""

    def __init__(self, transfers: list[Transfer], channels: int, ends: int) -> None:
        self.transfers = transfers
        self.channels = channels
        self.ends = ends
        self.channel: dict[int, int] = {}  # by message
        self.onward: dict[int, int] = {}  # for a received message, the one that it goes on as
        # Of a connection that leaves: the peer from whom its thread block receives.
        self.receiver: dict[End, int] = {}
        # Of a connection that comes in: the peer to whom its thread block sends.
        self.sender: dict[End, int] = {}
        self.turns: dict[End, list[Turn]] = defaultdict(list)
        # By rank and channel: the peers to whom it sends there, and from whom it receives.
        self.sends: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.receives: dict[tuple[int, int], set[int]] = defaultdict(set)

    def take(self, chain: list[int]) -> None:
        """Give a chain of messages one channel, or each of its messages its own."""
        for channel in range(self.channels):
            if self._fits(chain, channel):
                self._put(chain, channel)
                return
        if len(chain) == 1:
            transfer = self.transfers[chain[0]]
            raise ValueError(
                f"channels: got more than {self.channels} for the messages from "
                f"GPU {transfer.src} to GPU {transfer.dst}, "
                f"expected at most that with {self.ends} connections of a GPU on each"
            )
        for m in chain:
            self.take([m])

    def _fits(self, chain: list[int], channel: int) -> bool:
        """Return whether all messages of a chain may take the channel."""
        return (
            all(self._has_turn(turn, channel) for turn in self._turns(chain))
            and self._may_pair(chain, channel)
            and all(self._has_room(m, channel) for m in chain)
        )

    def _turns(self, chain: list[int]) -> list[Turn]:
        """Return when each message of a chain is received: as it is sent on, the last one at once."""
        after = [*chain[1:], chain[-1]]
        return [Turn(m, self.transfers[n].t) for m, n in zip(chain, after, strict=True)]

    def _has_turn(self, turn: Turn, channel: int) -> bool:
        """Return whether each message of the connection is received before the next one is sent, or in that step."""
        transfer = self.transfers[turn.message]
        others = self.turns[transfer.src, channel, transfer.dst]
        at = bisect_left(others, turn)
        if at > 0 and others[at - 1].received > transfer.t:
            return False
        return at == len(others) or turn.received <= self.transfers[others[at].message].t

    def _ends(self, first: int, second: int, channel: int) -> tuple[End, End]:
        """Return the ends at which a message comes in, and leaves as the second one."""
        rank = self.transfers[first].dst
        comes = rank, channel, self.transfers[first].src
        leaves = rank, channel, self.transfers[second].dst
        return comes, leaves

    def _may_pair(self, chain: list[int], channel: int) -> bool:
        """Return whether each end of a connection meets one other end only, here and in the chains before."""
        sender: dict[End, int] = {}
        receiver: dict[End, int] = {}
        for first, second in pairwise(chain):
            comes, leaves = self._ends(first, second, channel)
            src, dst = comes[2], leaves[2]
            # The first of the chain that uses an end sets its peer, unless a chain before has.
            of_comes = sender.setdefault(comes, self.sender.get(comes, dst))
            of_leaves = receiver.setdefault(leaves, self.receiver.get(leaves, src))
            if of_comes != dst or of_leaves != src:
                return False
        return True

    def _has_room(self, m: int, channel: int) -> bool:
        """Return whether both ranks of a message may have its connection on the channel."""
        transfer = self.transfers[m]
        at_src = transfer.src, channel
        at_dst = transfer.dst, channel
        sends = self.sends[at_src] | {transfer.dst}
        receives = self.receives[at_dst] | {transfer.src}
        connections_of_src = len(sends) + len(self.receives[at_src])
        connections_of_dst = len(receives) + len(self.sends[at_dst])
        return max(connections_of_src, connections_of_dst) <= self.ends

    def _put(self, chain: list[int], channel: int) -> None:
        """Give a chain the channel."""
        for turn in self._turns(chain):
            transfer = self.transfers[turn.message]
            src, dst = transfer.src, transfer.dst
            self.channel[turn.message] = channel
            insort(self.turns[src, channel, dst], turn)
            self.sends[src, channel].add(dst)
            self.receives[dst, channel].add(src)
        for first, second in pairwise(chain):
            comes, leaves = self._ends(first, second, channel)
            self.onward[first] = second
            self.sender[comes] = leaves[2]
            self.receiver[leaves] = comes[2]


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
    asked = {(rank, placement.offset(rank, chunk)) for rank, chunk in _asked(schedule)}
    stays = kept(transfers, asked)
    instructions = _copies(schedule)
    sent_on = set(fused.onward.values())
    for m in range(len(transfers)):
        if m not in sent_on:
            instructions.append(_send(m, transfers[m], fused))
        instructions.append(_receive(m, transfers, fused, stays))
    instructions.sort(key=lambda instruction: instruction.turn)
    blocks, waits = _blocks(instructions, _waits(instructions))
    in_place = CONTRACTS[schedule.collective].parts != 2
    return Program(
        schedule.collective,
        schedule.p,
        schedule.k if in_place else schedule.k // schedule.p,
        schedule.root,
        protocol,
        modes=(in_place,),
        blocks=blocks,
        scratch=tuple(placement.scratch),
        copies=(),
        waits=waits,
    )


def _blocks(
    found: list[ScheduledInstruction], waits: list[list[int]]
) -> tuple[tuple[ThreadBlock, ...], dict[int, int]]:
    """Return the thread blocks, and each of their steps that waits, with the one for which it does."""
    numbers: dict[BlockPeers, list[int]] = defaultdict(list)
    for number, scheduled in enumerate(found):
        numbers[scheduled.block].append(number)
    blocks: list[ThreadBlock] = []
    at: dict[int, int] = {}  # the step of each instruction
    count = 0
    ids: Counter[int] = Counter()
    for peers in sorted(numbers):
        steps: list[Instruction] = []
        for number in numbers[peers]:
            # A step waits for one other. So each further wait is a step before it.
            steps += [NOP] * (len(waits[number]) - 1)
            at[number] = count + len(steps)
            steps.append(found[number].instruction)
        gpu = peers.gpu
        block = ThreadBlock(gpu, ids[gpu], peers.send, peers.receive, peers.channel, tuple(steps))
        blocks.append(block)
        count += len(steps)
        ids[gpu] += 1
    waiting: dict[int, int] = {}
    for number, others in enumerate(waits):
        for i, other in enumerate(sorted(others, reverse=True)):
            waiting[at[number] - i] = at[other]
    return tuple(blocks), waiting


def _asked(schedule: Schedule) -> list[list[int]]:
    """List (rank, chunk) that the collective asks for, unless it is there before and stays in another buffer."""
    found: list[list[int]] = np.argwhere(where(schedule)).tolist()
    if CONTRACTS[schedule.collective].parts != 2:
        return found
    return [[rank, c] for rank, c in found if c * schedule.p // schedule.k != rank]


def _send(m: int, each: Transfer, fused: Channels) -> ScheduledInstruction:
    channel = fused.channel[m]
    receiver = fused.receiver.get((each.src, channel, each.dst), -1)
    block = BlockPeers(each.src, channel, receive=receiver, send=each.dst)
    send = Instruction("s", each.source, each.source, each.chunks)
    return ScheduledInstruction((each.t, False, m), block, send, sent=m)


def _receive(
    m: int, transfers: list[Transfer], fused: Channels, stays: set[int]
) -> ScheduledInstruction:
    each = transfers[m]
    channel = fused.channel[m]
    sender = fused.sender.get((each.dst, channel, each.src), -1)
    block = BlockPeers(each.dst, channel, receive=each.src, send=sender)
    after = fused.onward.get(m)
    if after is None:
        name = "rrc" if each.add else "r"
        turn = (each.t, True, m)
    else:
        turn = (transfers[after].t, False, after)
        name = "rcs"  # stores what it receives, and sends it
        if each.add:
            name = "rrcs" if after in stays else "rrs"
    receive = Instruction(name, each.target, each.target, each.chunks)
    return ScheduledInstruction(turn, block, receive, received=m, sent=after)


def _copies(schedule: Schedule) -> list[ScheduledInstruction]:
    """Return the copies of an all-to-all, which is out of place: a rank's own part."""
    if CONTRACTS[schedule.collective].parts != 2:
        return []
    size = schedule.k // schedule.p**2
    found = []
    for rank in range(schedule.p):
        block = BlockPeers(rank, channel=0, receive=-1, send=-1)
        end = (rank + 1) * size
        for at in range(rank * size, end, MAX_COUNT):
            count = min(MAX_COUNT, end - at)
            copy = Instruction("cpy", BufferOffset("i", at), BufferOffset("o", at), count)
            found.append(ScheduledInstruction((-1, False, at), block, copy))
    return found


def _waits(found: list[ScheduledInstruction]) -> list[list[int]]:
    """Return for each instruction those it must wait for.

    ``before`` has a bit for each that is done before.
    """
    before: list[int] = []
    waits: list[list[int]] = []
    last: dict[BlockPeers, int] = {}  # instruction of each block
    sender: dict[int, int] = {}  # instruction of each message
    uses = CellUses[Cell]()
    for number, scheduled in enumerate(found):
        done = 0
        if scheduled.block in last:
            done |= _up_to(before, last[scheduled.block])
        if scheduled.received is not None:
            done |= _up_to(before, sender[scheduled.received])
        step, gpu = scheduled.instruction, scheduled.block.gpu
        reads = _cells(gpu, step.src, step.chunks) if step.kind.reads else []
        writes = _cells(gpu, step.dst, step.chunks) if step.kind.stores else []
        others = {other for other, _ in uses.before(number, reads, writes)}
        needed = []
        for other in sorted(others, reverse=True):
            if not done >> other & 1:
                needed.append(other)
                done |= _up_to(before, other)
        waits.append(needed)
        before.append(done)
        last[scheduled.block] = number
        if scheduled.sent is not None:
            sender[scheduled.sent] = number
    return waits


def _up_to(before: list[int], number: int) -> int:
    """Return the bits of an instruction and of all that are done before it."""
    return before[number] | 1 << number


class ChunkPlacement:
    """The cell of each chunk on each rank, with scratch for what a rank only passes on."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rows = list(_rows(schedule))
        self.scratch = [0] * schedule.p  # cells
        self.passed: dict[tuple[int, int], BufferOffset] = {}
        used: set[tuple[int, int]] = set()
        for row in self.rows:
            for chunk in row.chunks:
                used |= {(row.src, chunk), (row.dst, chunk)}
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
        for row in self.rows:
            last: Transfer | None = None
            for chunk in row.chunks:
                source = self.offset(row.src, chunk)
                target = self.offset(row.dst, chunk)
                if last and last.chunks < MAX_COUNT and last.end == (source, target):
                    last = last._replace(chunks=last.chunks + 1)
                    found[-1] = last
                else:
                    last = Transfer(row.t, row.src, row.dst, source, target, 1, row.add)
                    found.append(last)
        return found


class Row(NamedTuple):
    """A row of a step of the schedule, which moves at least one chunk."""

    t: int
    src: int
    dst: int
    chunks: range
    add: bool


def _rows(schedule: Schedule) -> Iterator[Row]:
    total = 0
    for t, step in enumerate(schedule.steps()):
        total += int(step.count.sum())
        if total > MAX_ELEMENTS:
            raise ValueError(
                f"chunks that move: got more than {MAX_ELEMENTS:,}, "
                "expected at most that in a program"
            )
        for i in np.flatnonzero(step.count).tolist():
            first, count = int(step.chunk[i]), int(step.count[i])
            chunks = range(first, first + count)
            yield Row(t, int(step.src[i]), int(step.dst[i]), chunks, bool(step.add[i]))


def _home(schedule: Schedule, rank: int, chunk: int) -> BufferOffset | None:
    """Return the cell of input or output for a chunk, or None for one that the rank only passes on."""
    collective, p, k = schedule.collective, schedule.p, schedule.k
    if CONTRACTS[collective].parts == 2:
        pieces = k // p // p  # of what one rank has for another
        sender, receiver = divmod(chunk // pieces, p)
        piece = chunk % pieces
        if rank == sender:
            return BufferOffset("i", receiver * pieces + piece)
        return BufferOffset("o", sender * pieces + piece) if rank == receiver else None
    if not CONTRACTS[collective].compact:
        # RCCL's waiting steps acquire what others have written only if they read the output.
        return BufferOffset("i" if collective == "reduce_scatter" else "o", chunk)
    whole, part = ("i", "o") if collective == "scatter" else ("o", "i")
    if rank == schedule.root:
        return BufferOffset(whole, chunk)
    is_own = chunk * p // k == rank
    return BufferOffset(part, chunk % (k // p)) if is_own else None
