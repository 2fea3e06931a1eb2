"""Which message goes on at once as the next one, and which channel carries it.

A transfer's receive at rank r is *fused* with the send that reads the same cells next, if no other step uses them in
between: one instruction receives, adds or stores, and sends. It runs in the step of the send. Messages of one
connection (rank, rank, channel) arrive in the order in which they are sent, so that no message may be sent before the
last one's receive has its turn; and a thread block has one peer on each side. A chain of fused messages takes the first
channel where both hold. If there is none, its messages are not fused.

A receive that would wait for its send while later messages of its connection come in is not fused: the root of a
pipelined tree first receives all segments. Where all of a chain would wait, as in interleaved rings, it is fused, and
each ring has its channel.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from collectives.formats.program import BufferOffset

Cell = tuple[int, BufferOffset]
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
    def reads(self) -> list[tuple[int, BufferOffset]]:
        """The cells of the sender, each with its rank."""
        return _cells(self.src, self.source, self.chunks)

    @property
    def writes(self) -> list[tuple[int, BufferOffset]]:
        """The cells of the receiver, each with its rank."""
        return _cells(self.dst, self.target, self.chunks)


def _cells(rank: int, place: BufferOffset, count: int) -> list[tuple[int, BufferOffset]]:
    return [(rank, BufferOffset(place.buffer, place.offset + j)) for j in range(count)]


class Fused(NamedTuple):
    """Messages by their number: the channel of each, and for a received one the message that it goes on as."""

    channel: list[int]
    onward: dict[int, int]
    receiver: dict[End, int]  # of a connection that leaves: the peer from whom its thread block receives
    sender: dict[End, int]  # of a connection that comes in: the peer to whom its thread block sends


def by_step(transfers: list[Transfer]) -> list[list[int]]:
    """The numbers of the transfers of each step, in order."""
    return [list(each) for _, each in groupby(range(len(transfers)), key=lambda m: transfers[m].t)]


def onward(transfers: list[Transfer]) -> dict[int, int]:
    """For each message whose cells are next used by one send of just these cells: that send."""
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
    """The messages whose cells are needed on the sender after they are sent."""
    needed, found = set(asked), set()
    for step in reversed(by_step(transfers)):
        for m in reversed(step):
            (needed.update if transfers[m].add else needed.difference_update)(transfers[m].writes)
        for m in reversed(step):
            if not needed.isdisjoint(transfers[m].reads):
                found.add(m)
            needed.update(transfers[m].reads)
    return found


def fuse(transfers: list[Transfer], channels: int, ends: int) -> Fused:
    """Fuse what can be fused on so many channels, with so many connections of a rank on each."""
    assigned = _Channels(transfers, channels, ends)
    for chain in _without_waits(transfers, _chains(onward(transfers), len(transfers))):
        assigned.take(chain)
    return Fused(
        [assigned.channel[m] for m in range(len(transfers))], assigned.onward, assigned.receiver, assigned.sender
    )


def _chains(goes_on: dict[int, int], total: int) -> Iterator[list[int]]:
    for head in sorted(set(range(total)) - set(goes_on.values())):
        chain = [head]
        while chain[-1] in goes_on:
            chain.append(goes_on[chain[-1]])
        yield chain


def _without_waits(transfers: list[Transfer], chains: Iterator[list[int]]) -> Iterator[list[int]]:
    """The chains, cut where a receive would wait, unless all of the chain would."""
    steps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in transfers:
        steps[each.src, each.dst].append(each.t)
    for chain in chains:
        cuts = [i for i, pair in enumerate(pairwise(chain), 1) if _would_wait(transfers, steps, *pair)]
        cuts = [] if len(cuts) == len(chain) - 1 else cuts
        yield from (chain[i:j] for i, j in pairwise([0, *cuts, len(chain)]))


def _would_wait(transfers: list[Transfer], steps: dict[tuple[int, int], list[int]], m: int, after: int) -> bool:
    """Whether other messages of the connection are sent between the steps of a receive and of its send."""
    times = steps[transfers[m].src, transfers[m].dst]
    return bisect_right(times, transfers[m].t) < bisect_left(times, transfers[after].t)


class _Channels:
    """What each channel carries so far."""

    def __init__(self, transfers: list[Transfer], channels: int, ends: int) -> None:
        self.transfers, self.channels, self.ends = transfers, channels, ends
        self.channel: dict[int, int] = {}
        self.onward: dict[int, int] = {}
        self.receiver: dict[End, int] = {}
        self.sender: dict[End, int] = {}
        self.turns: dict[End, list[tuple[int, int]]] = defaultdict(list)  # messages, and the steps of their receives
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
        return [(m, self.transfers[after].t) for m, after in zip(chain, [*chain[1:], chain[-1]], strict=True)]

    def _has_turn(self, turn: tuple[int, int], channel: int) -> bool:
        """Whether each message of the connection is received before, or in the step in which, the next one is sent."""
        each = self.transfers[turn[0]]
        others = self.turns[each.src, channel, each.dst]
        at = bisect_left(others, turn)
        near = [*others[max(0, at - 1) : at], turn, *others[at : at + 1]]
        return all(received <= self.transfers[later].t for (_, received), (later, _) in pairwise(near))

    def _ends(self, first: int, second: int, channel: int) -> tuple[End, End]:
        rank = self.transfers[first].dst
        return (rank, channel, self.transfers[first].src), (rank, channel, self.transfers[second].dst)

    def _may_pair(self, pairs: list[tuple[End, End]]) -> bool:
        """Whether each end of a connection meets one other end only, here and in the chains before."""
        sender = {comes: self.sender.get(comes, leaves[2]) for comes, leaves in pairs}
        receiver = {leaves: self.receiver.get(leaves, comes[2]) for comes, leaves in pairs}
        return all(sender[comes] == leaves[2] and receiver[leaves] == comes[2] for comes, leaves in pairs)

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
            self.onward[first], self.sender[comes], self.receiver[leaves] = second, leaves[2], comes[2]
