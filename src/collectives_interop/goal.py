"""Write a schedule in GOAL, which LogGOPSim simulates.

LogGOPSim's ``txt2bin`` (spcl/LogGOPSim at 76451de) reads the sends and receives of every rank, and
what each needs. LogGOPSim starts an operation as soon as its CPU is free, even if the data that it
needs are still on their way to another CPU. So all operations of a rank on one chunk share a CPU;
chunks that never travel in one message have different ones, because their messages may overlap. A
rank's sends start in the order of the steps, as ports are granted in our simulator.

Two things differ where messages compete for a port, and no dependency can change them. A message
takes LogGOPSim's receiving port when it arrives, even before its receive is posted, and nothing
holds a sender back. Our simulator grants the port in the order of the steps, and the sender's port
waits for it. Its ports also begin a later message in a gap.

A link of `collectives.machine` is L, o, g, G of LogGP with L = latency, o = overhead / 2, g =
overhead, G = 1 / rate: a message then occupies both ports for g + G m and arrives 2 o + L + G m
after its start, as in our simulator.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collectives.core.schedule import Ints, Schedule, Step, check_ranks_only

if TYPE_CHECKING:
    from collectives.machine import Link

# A CPU's number has eight bits, and a tag tells apart messages of one pair of ranks.
MAX_CPUS, MAX_MESSAGES = 256, 1 << 20


class LogGP(NamedTuple):
    """LogGOPSim's parameters: whole numbers, here of picoseconds, and of picoseconds per byte."""

    L: int
    o: int
    g: int
    G: int


def loggp(link: "Link") -> LogGP:
    """Return LogGOPSim's parameters for a link.

    >>> from collectives.machine import Link
    >>> loggp(Link(latency="1us", overhead="4us", rate="25GB/s"))
    LogGP(L=1000000, o=2000000, g=4000000, G=40)
    """
    return LogGP(
        L=_picoseconds(link.latency),
        o=_picoseconds(link.overhead / 2),
        g=_picoseconds(link.overhead),
        G=_picoseconds(link.beta),
    )


def _picoseconds(seconds: float) -> int:
    return round(seconds * 1e12)


def goal(schedule: Schedule, n: int) -> str:
    """Return a schedule in GOAL, for a buffer of ``n`` bytes.

    Sums take no time; a message without bytes is not sent.

    Raises ValueError for more than a million messages, ScheduleError for a schedule with switches.
    Cost: about 20 microseconds a chunk that moves.

    >>> from collectives.algorithms import ALGORITHMS
    >>> print(goal(ALGORITHMS["reduce", "flat"](2), n=8), end="")
    num_ranks 2
    rank 0 {
    l1: recv 8b from 1 tag 0 cpu 0 nic 0
    }
    rank 1 {
    l1: send 8b to 0 tag 0 cpu 0 nic 0
    }
    """
    check_ranks_only(schedule, "GOAL, whose ranks do the adding")
    ranks = _Ranks(schedule, n)
    for t, step in enumerate(schedule.steps()):
        ranks.add(t, step)
    lines = [f"num_ranks {schedule.p}"]
    for rank, operations in enumerate(ranks.lines):
        lines += [f"rank {rank} {{", *operations, "}"]
    return "\n".join(lines) + "\n"


def cpus(schedule: Schedule) -> Ints:
    """Return the CPU of each chunk: the same for chunks that travel in one message.

    >>> from collectives.algorithms import ALGORITHMS
    >>> [cpus(ALGORITHMS["all_reduce", name](4)).tolist() for name in ("ring", "halving_doubling")]
    [[0, 1, 2, 3], [0, 0, 1, 1]]
    """
    group = np.arange(schedule.k)
    for step in schedule.steps():
        for message in _messages(step, None):
            joined = group[message.chunks]
            group[np.isin(group, joined)] = joined.min()
    numbers = np.unique(group, return_inverse=True)[1]
    return numbers % MAX_CPUS


class _Message(NamedTuple):
    """A message of a step: its chunks, for each of them whether it is added, and its size in bytes."""

    src: int
    dst: int
    chunks: Ints
    adds: list[bool]
    size: int


def _messages(step: Step, edges: Ints | None) -> Iterator[_Message]:
    """Yield the messages of a step; without the chunks' ``edges`` in bytes, sizes count chunks."""
    sent = step.messages(edges)
    for i in range(len(sent.src)):
        rows = sent.rows(i)
        first, count = step.chunk[rows], step.count[rows]
        runs = [np.arange(c, c + m) for c, m in zip(first, count, strict=True)]
        adds = np.repeat(step.add[rows], count).tolist()
        size = int(sent.size[i])
        yield _Message(int(sent.src[i]), int(sent.dst[i]), np.concatenate(runs), adds, size)


class _Ranks:
    """The lines of every rank, and the last operations on each of its chunks."""

    def __init__(self, schedule: Schedule, n: int) -> None:
        self.edges = schedule.cut(n)
        self.cpu = cpus(schedule)
        self.lines: list[list[str]] = [[] for _ in range(schedule.p)]
        self.count = [0] * schedule.p
        self.last_send: dict[int, int] = {}
        # By rank and chunk: the receives whose sum, or whose only value, the rank holds.
        self.received: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.total = 0

    def add(self, t: int, step: Step) -> None:
        """Add a step. All its sends need what was received before it; then its receives count."""
        messages = list(_messages(step, self.edges))
        self.total += len(messages)
        if self.total > MAX_MESSAGES:
            raise ValueError(f"messages: got more than {MAX_MESSAGES:,}, expected at most that")
        for message in messages:
            self._send(t, message)
        receives = [self._receive(t, message) for message in messages]
        for message, number in zip(messages, receives, strict=True):
            for chunk, is_added in zip(message.chunks.tolist(), message.adds, strict=True):
                held = self.received[message.dst, chunk] if is_added else set()
                self.received[message.dst, chunk] = held | {number}

    def _send(self, t: int, message: _Message) -> None:
        src = message.src
        needed: set[int] = set()
        for chunk in message.chunks.tolist():
            needed |= self.received[src, chunk]
        text = f"send {message.size}b to {message.dst} tag {t}"
        number = self._operation(src, text, message.chunks)
        self.lines[src] += [f"l{number} requires l{other}" for other in sorted(needed)]
        if src in self.last_send:
            self.lines[src].append(f"l{number} irequires l{self.last_send[src]}")
        self.last_send[src] = number

    def _receive(self, t: int, message: _Message) -> int:
        text = f"recv {message.size}b from {message.src} tag {t}"
        return self._operation(message.dst, text, message.chunks)

    def _operation(self, rank: int, text: str, chunks: Ints) -> int:
        """Add an operation's line, and return its number."""
        self.count[rank] += 1
        number = self.count[rank]
        self.lines[rank].append(f"l{number}: {text} cpu {self.cpu[chunks[0]]} nic 0")
        return number
