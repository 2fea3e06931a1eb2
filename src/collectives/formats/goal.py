"""A schedule as GOAL, which LogGOPSim's ``txt2bin`` reads: sends and receives of every rank, and what each needs.

Read at spcl/LogGOPSim 76451de. LogGOPSim starts an operation as soon as its CPU is free, even if the data that it needs
are still on their way to another CPU. So all operations of a rank on one chunk share a CPU; chunks that never travel
in one message have different ones, because their messages may overlap. A rank's sends start in the order of the steps,
as ports are granted in our simulator.

Two things differ where messages compete for a port, and no dependency can change them. A message takes LogGOPSim's
receiving port when it arrives, even before its receive is posted, and nothing holds a sender back. Our simulator grants
the port in the order of the steps, and the sender's port waits for it. Its ports also begin a later message in a gap.

A link of `collectives.machine` is L, o, g, G of LogGP with L = latency, o = overhead / 2, g = overhead, G = 1 / rate: a
message then occupies both ports for g + G m and arrives 2 o + L + G m after its start, as in our simulator.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from collectives.machine import Link
from collectives.schedule import Ints, Schedule, Step, need_ranks_only

# A CPU's number has eight bits, and a tag tells apart messages of one pair of ranks.
MOST_CPUS, MOST_MESSAGES = 256, 1 << 20


class LogGP(NamedTuple):
    """LogGOPSim's parameters: whole numbers, here of picoseconds, and of picoseconds per byte."""

    L: int
    o: int
    g: int
    G: int


def loggp(link: Link) -> LogGP:
    """LogGOPSim's parameters for a link.

    >>> loggp(Link(latency="1us", overhead="4us", rate="25GB/s"))
    LogGP(L=1000000, o=2000000, g=4000000, G=40)
    """
    return LogGP(*(round(s * 1e12) for s in (link.latency, link.overhead / 2, link.overhead, link.beta)))


def text(schedule: Schedule, n: int) -> str:
    """The program for a buffer of ``n`` bytes. Sums take no time; a message without bytes is not sent.

    Raises ValueError for more than a million messages, ScheduleError for a schedule with switches. Cost: about 20
    microseconds a chunk that moves.

    >>> from collectives.algorithms import ALGORITHMS
    >>> print(text(ALGORITHMS["reduce", "flat"](2), n=8), end="")
    num_ranks 2
    rank 0 {
    l1: recv 8b from 1 tag 0 cpu 0 nic 0
    }
    rank 1 {
    l1: send 8b to 0 tag 0 cpu 0 nic 0
    }
    """
    need_ranks_only(schedule, "GOAL, whose ranks do the adding")
    ranks = _Ranks(schedule, n)
    for t, step in enumerate(schedule.steps()):
        ranks.add(t, step)
    lines = [line for rank, own in enumerate(ranks.lines) for line in (f"rank {rank} {{", *own, "}")]
    return "\n".join([f"num_ranks {schedule.p}", *lines, ""])


def cpus(schedule: Schedule) -> Ints:
    """The CPU of each chunk: the same for chunks that travel in one message.

    >>> from collectives.algorithms import ALGORITHMS
    >>> [cpus(ALGORITHMS["all_reduce", name](4)).tolist() for name in ("ring", "halving_doubling")]
    [[0, 1, 2, 3], [0, 0, 1, 1]]
    """
    group = np.arange(schedule.k)
    for step in schedule.steps():
        for _, _, chunks, _, _ in _messages(step, None):
            joined = group[chunks]
            group[np.isin(group, joined)] = joined.min()
    return np.unique(group, return_inverse=True)[1] % MOST_CPUS


def _messages(step: Step, edges: Ints | None) -> Iterator[tuple[int, int, Ints, int, list[bool]]]:
    """Sender, receiver, chunks and size of each message, and for each chunk whether it is added."""
    sent = step.messages(edges)
    for i in range(len(sent.src)):
        rows = sent.rows(i)
        runs = [np.arange(c, c + m) for c, m in zip(step.chunk[rows].tolist(), step.count[rows].tolist(), strict=True)]
        adds = np.repeat(step.add[rows], step.count[rows]).tolist()
        yield int(sent.src[i]), int(sent.dst[i]), np.concatenate(runs), int(sent.size[i]), adds


class _Ranks:
    """The lines of every rank, and the last operations on each of its chunks."""

    def __init__(self, schedule: Schedule, n: int) -> None:
        self.edges, self.cpu = schedule.cut_bytes(n), cpus(schedule)
        self.lines: list[list[str]] = [[] for _ in range(schedule.p)]
        self.count = [0] * schedule.p
        self.last_send: dict[int, int] = {}
        self.received: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.total = 0

    def add(self, t: int, step: Step) -> None:
        """All sends of a step need what was received before it; then its receives count."""
        messages = list(_messages(step, self.edges))
        self.total += len(messages)
        if self.total > MOST_MESSAGES:
            raise ValueError(f"messages: got more than {MOST_MESSAGES:,}, expected at most that")
        for src, dst, chunks, size, _ in messages:
            needed = set().union(*(self.received[src, c] for c in chunks.tolist()))
            number = self._operation(src, f"send {size}b to {dst} tag {t}", chunks, needed)
            if src in self.last_send:
                self.lines[src].append(f"l{number} irequires l{self.last_send[src]}")
            self.last_send[src] = number
        later = [
            (dst, chunks, adds, self._operation(dst, f"recv {size}b from {src} tag {t}", chunks, set()))
            for src, dst, chunks, size, adds in messages
        ]
        for dst, chunks, adds, number in later:
            for c, add in zip(chunks.tolist(), adds, strict=True):
                self.received[dst, c] = {number} | (self.received[dst, c] if add else set())

    def _operation(self, rank: int, what: str, chunks: Ints, needed: set[int]) -> int:
        self.count[rank] += 1
        number = self.count[rank]
        self.lines[rank].append(f"l{number}: {what} cpu {self.cpu[chunks[0]]} nic 0")
        self.lines[rank] += [f"l{number} requires l{other}" for other in sorted(needed)]
        return number
