"""The machine that "auto" goes by where none is named: a link between ranks, measured when a group is first used."""

import struct
import time
from itertools import count
from statistics import median

from torch import distributed as dist

from collectives.autotune import MEASURED
from collectives.backends.exchange import everyones
from collectives.backends.p2p import local
from collectives.backends.p2p.mesh import Mesh
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

    Ranks that share memory measure a step and a byte on published buffers (`published.choice`), and rank 0's count. If
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
    with joined.begin(step_by_step=False):
        if joined.rank < half:
            found = _LINK.pack(*_link(_Pair(joined, joined.rank + half, asks=True)))
        elif joined.rank < 2 * half:
            _link(_Pair(joined, joined.rank - half, asks=False))
    links = [_LINK.unpack(each) for each in everyones(found, group) if each]
    latency, overhead, rate = (median(values) for values in zip(*links, strict=True))
    if not joined.has_network:  # its cores work on a message all the time, so no rank can hide any of it
        latency, overhead = 0.0, latency + overhead
    return Link(latency=latency, overhead=overhead, rate=rate)


class _Pair:
    """One rank's end of a pair: one of the two asks, and the other one answers. Both call the same methods in turn."""

    def __init__(self, joined: Mesh, peer: int, asks: bool) -> None:
        self.joined, self.peer, self.asks, self.steps = joined, peer, asks, count()

    def send(self, *messages: memoryview) -> None:
        """Send these, and wait until they have left."""
        self.joined.finish([self.joined.send(self.peer, next(self.steps), [each]) for each in messages])

    def receive(self, into: memoryview) -> None:
        """Wait until it is full."""
        self.joined.finish([self.joined.receive(self.peer, next(self.steps), into)])

    def seconds(self, rounds: int, messages: int, nbytes: int) -> float:
        """The median of the rounds: from the first message of a round until the answer to its last one."""
        data, answer, times = memoryview(bytearray(nbytes)), memoryview(bytearray(1)), list[float]()
        for _ in range(rounds):
            begin = time.perf_counter()
            if self.asks:
                self.send(*[data] * messages)
                self.receive(answer)
            else:
                for _ in range(messages):
                    self.receive(data)
                self.send(answer)
            times.append(time.perf_counter() - begin)
        return median(times)

    def agreed(self, wanted: bool) -> bool:
        """The asking rank sends ``wanted``, and the other one receives it; both return it."""
        said = memoryview(bytearray([wanted]))
        (self.send if self.asks else self.receive)(said)
        return bool(said[0])


def _link(pair: _Pair) -> tuple[float, float, float]:
    """Latency, overhead and rate, as the rank that asks measures them."""
    pair.seconds(1, 1, SMALL)  # makes the connections
    begin, trip = time.perf_counter(), pair.seconds(ROUNDS, 1, SMALL)
    each = (pair.seconds(ROUNDS, BURST, SMALL) - trip) / (BURST - 1)
    rate = _rate(pair, trip, begin + max(SECONDS, TRIPS * trip))
    alpha = trip / 2
    overhead = min(max(each, 0.0), alpha)
    return alpha - overhead, overhead, rate


def _rate(pair: _Pair, trip: float, until: float) -> float:
    """Bytes per second of the largest message that there was time for."""
    rate = seconds = 0.0
    for nbytes in LARGE:
        end = time.perf_counter() + RATE_ROUNDS * (trip + nbytes / rate) if rate else 0.0
        if not pair.agreed(seconds <= LONG * trip and end <= until):
            break
        seconds = pair.seconds(RATE_ROUNDS, 1, nbytes)
        rate = nbytes / max(seconds - trip, seconds / 100)
    return rate
