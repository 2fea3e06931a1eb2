"""The machine that "auto" goes by where none is named: a link between ranks, measured when a group is first used."""

import struct
import time
from statistics import median

import numpy as np
import torch
from torch import distributed as dist

from collectives.autotune import MEASURED
from collectives.engine import local
from collectives.engine.compile import as_plan
from collectives.engine.exchange import everyones
from collectives.engine.execute import execute
from collectives.engine.mesh import Mesh
from collectives.engine.program import Instruction, Plan, Recv, Send, Span, Task, Wait
from collectives.machine import Link, Machine

SMALL = 8  # bytes of a message that shows the latency
ROUNDS, BURST = 5, 8  # round trips; messages of a burst
RATE_ROUNDS = 3  # of each larger message: a new TCP connection sends the first one slowly
LARGE = (64 << 10, 512 << 10, 4 << 20)  # bytes of the messages that show the rate
LONG = 3  # round trips: a message that takes longer shows the rate well enough
SECONDS, TRIPS = 0.1, 30  # no larger message follows if it would end later: the longer of seconds and round trips

_LINK = struct.Struct("<ddd")  # latency, overhead, rate


def measured(joined: Mesh, group: dist.ProcessGroup) -> Machine:
    """The machine that ranks see, the same on every rank: a link of the network, and one of hosts that share memory.

    Of the network it is the median of what the pairs of ranks r and r + p // 2 measure, which are on different hosts.
    All pairs measure at once, because a collective uses all links at once; with an odd p the last rank waits. Takes
    about 30 round trips, or 0.1 s if that is longer. On one host all of a message's time is overhead. Every rank of a
    group of 2 or more calls it.

    Ranks that share memory measure a step and a byte on published buffers (`shm.choice`), and rank 0's count. If
    all ranks do, that is the machine's only link.

    Raises RuntimeError, which names step and peer, if a rank fails meanwhile.
    """
    pairs = f"{joined.size // 2} pairs of ranks"
    if not joined.segment:
        return Machine(name=MEASURED, source=pairs, network=_network(joined, group))
    step, byte = struct.unpack("<dd", everyones(struct.pack("<dd", *local.published().measure(joined)), group)[0])
    memory, ranks = Link(latency=step, overhead=0.0, rate=1 / byte), joined.ranks_per_host
    source = f"rank 0 of {ranks} that share memory"
    if ranks == joined.size:
        return Machine(name=MEASURED, source=source, network=memory)
    network = _network(joined, group)
    return Machine(name=MEASURED, source=f"{pairs}, and {source}", ranks_per_node=ranks, inside=memory, network=network)


def _network(joined: Mesh, group: dist.ProcessGroup) -> Link:
    """The link between ranks of different hosts, or between any two where they share no memory."""
    half, found = joined.size // 2, b""
    with joined.begin():
        if joined.rank < half:
            found = _LINK.pack(*_link(Pair(joined, joined.rank + half, asks=True)))
        elif joined.rank < 2 * half:
            _link(Pair(joined, joined.rank - half, asks=False))
    links = [_LINK.unpack(each) for each in everyones(found, group) if each]
    latency, overhead, rate = (median(values) for values in zip(*links, strict=True))
    if not joined.has_network:  # its cores work on a message all the time, so no rank can hide any of it
        latency, overhead = 0.0, latency + overhead
    return Link(latency=latency, overhead=overhead, rate=rate)


class Pair:
    """One rank's end of a pair: one of the two asks, and the other one answers. Both call the same methods in turn."""

    def __init__(self, joined: Mesh, peer: int, asks: bool) -> None:
        self.joined, self.peer, self.asks = joined, peer, asks

    def seconds(self, rounds: int, messages: int, nbytes: int, answer: int = 1) -> float:
        """The median time of a round: from its first message until the answer, of ``answer`` bytes, has arrived."""
        made = self._round(messages, Span(0, nbytes), Span(nbytes, nbytes + answer))
        # Made by numpy: torch would fill a large one on several threads, which then spin while ranks measure.
        memory, times = torch.from_numpy(np.zeros(nbytes + answer, dtype=np.uint8)), list[float]()
        for _ in range(rounds):
            begin = time.perf_counter()
            execute(made, memory, None, self.joined, None)
            times.append(time.perf_counter() - begin)
        return median(times)

    def agreed(self, wanted: bool) -> bool:
        """The asking rank sends ``wanted``, and the other one receives it; both return it."""
        said = torch.tensor([wanted], dtype=torch.uint8)
        execute(self._plan([self._message(0, Span(0, 1), self.asks)]), said, None, self.joined, None)
        return bool(said[0])

    def _round(self, messages: int, data: Span, answer: Span) -> Plan:
        """The asking rank sends ``messages`` messages, and the other one answers when all have arrived."""
        asked = [self._message(i, data, self.asks) for i in range(messages)]
        return self._plan([*asked, self._message(messages, answer, not self.asks)])

    def _message(self, number: int, span: Span, is_sent: bool) -> Send | Recv:
        if is_sent:
            return Send(number, self.peer, number, (span,))
        return Recv(number, self.peer, number, span)

    def _plan(self, messages: list[Send | Recv]) -> Plan:
        """What is received is waited for at once, what is sent in the end."""
        instructions, sent = list[Instruction](), list[Instruction]()
        for each in messages:
            instructions.append(each)
            (instructions if isinstance(each, Recv) else sent).append(Wait(each.number))
        return as_plan((Task((*instructions, *sent), ()),))


def _link(pair: Pair) -> tuple[float, float, float]:
    """Latency, overhead and rate, as the rank that asks measures them."""
    pair.seconds(1, 1, SMALL)  # makes the connections
    begin, trip = time.perf_counter(), pair.seconds(ROUNDS, 1, SMALL)
    each = (pair.seconds(ROUNDS, BURST, SMALL) - trip) / (BURST - 1)
    rate = _rate(pair, trip, begin + max(SECONDS, TRIPS * trip))
    alpha = trip / 2
    overhead = min(max(each, 0.0), alpha)
    return alpha - overhead, overhead, rate


def _rate(pair: Pair, trip: float, until: float) -> float:
    """Bytes per second of the largest message that there was time for."""
    rate = seconds = 0.0
    for nbytes in LARGE:
        end = time.perf_counter() + RATE_ROUNDS * (trip + nbytes / rate) if rate else 0.0
        if not pair.agreed(seconds <= LONG * trip and end <= until):
            break
        seconds = pair.seconds(RATE_ROUNDS, 1, nbytes)
        rate = nbytes / max(seconds - trip, seconds / 100)
    return rate
