"""The machine that "auto" goes by where none is named: links between ranks, measured when a group is first used.

A process keeps the links that it has measured, and later groups take them, because a program such
as one with a device mesh makes many groups. Rank 0 of a group decides: it tells the others what it
knows, or they measure together.

On shared memory a step and a byte are measured, by which `memory_cost` predicts a call.
"""

from __future__ import annotations

import struct
import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed as dist

from collectives.algorithms import build
from collectives.autotune import MEASURED
from collectives.engine.compile import as_plan
from collectives.engine.handshake import NO_CALL, all_gather_bytes
from collectives.engine.memory_cost import steps_and_reads
from collectives.engine.program import Instruction, Plan, Recv, Send, Span, Task, Wait
from collectives.engine.slots import slot_plan
from collectives.engine.tcp.execute import Tcp
from collectives.engine.transport import shared_memory
from collectives.machine import Link, Machine

# Between hosts.
SMALL = 8  # bytes of a message that shows the latency
ROUNDS, BURST = 5, 8  # round trips; messages of a burst
RATE_ROUNDS = 3  # of each larger message: a new TCP connection sends the first one slowly
LARGE = (64 << 10, 512 << 10, 4 << 20)  # bytes of the messages that show the rate
LONG = 3  # round trips: a message that takes longer shows the rate well enough
# No larger message follows if it would end later: the longer of seconds and round trips.
SECONDS, TRIPS = 0.1, 30

# On shared memory: bytes of the calls that show a step's time, and a byte's.
SMALL_CALL, LARGE_CALL = 8, 1 << 20
ONE_STEP, TWO_STEPS = "one_shot", "two_shot"
REPEATS = 25


class Medium(NamedTuple):
    """The medium of a group's messages: memory that so many ranks of a host share, or a network of these hosts.

    ``ranks`` is 0 for a network, and ``hosts`` is empty for memory. Ranks that spin while they wait
    are faster than those that sleep, so a medium with other ``spins`` is another one.
    """

    spins: int
    ranks: int
    hosts: frozenset[str]

    def includes(self, other: Medium) -> bool:
        """Tell if a link measured on this medium holds for another one, of fewer ranks or of hosts among these."""
        return (
            self.spins == other.spins
            and self.is_between_hosts == other.is_between_hosts
            and self.ranks >= other.ranks
            and self.hosts >= other.hosts
        )

    @property
    def is_between_hosts(self) -> bool:
        """False for memory, and for the loopback of one host, whose ranks share no memory."""
        return len(self.hosts) > 1


class MeasuredLink(NamedTuple):
    """A link, and the ranks that have measured it."""

    link: Link
    source: str


_measured: dict[Medium, MeasuredLink] = {}  # in this process

_LINK = struct.Struct("<ddd")  # latency, overhead, rate


def known_machine(transport: Tcp) -> Machine | None:
    """Return the machine of links that this process has measured in groups before.

    None if one of them is missing.
    """
    links = [_known_link(medium) for medium in _media(transport)]
    known = [link for link in links if link is not None]
    return _machine(transport, known) if known and len(known) == len(links) else None


def measure_machine(transport: Tcp, group: dist.ProcessGroup) -> Machine:
    """Measure the machine that ranks see, the same on every rank: a link of the network, and one of shared memory.

    Of the network it is the median of what the pairs of ranks r and r + p // 2 measure, which are
    on different hosts. All pairs measure together, because a collective uses all links together;
    with an odd p the last rank waits. Takes about 30 round trips, or 0.1 s if that is longer. On
    one host all of a message's time is overhead. Every rank of a group of 2 or more calls it.

    Ranks that share memory measure a step and a byte there, and rank 0's result counts. If all
    ranks do, that is the machine's only link. Every rank keeps the links for `known_machine`.

    Raises RuntimeError, which names step and peer, if a rank fails meanwhile.
    """
    media = _media(transport)
    for medium in media:
        measure = _measure_memory if medium.ranks else _measure_network
        _measured[medium] = measure(transport, group)
    return _machine(transport, [_measured[medium] for medium in media])


def _media(transport: Tcp) -> list[Medium]:
    """Return the media of a group: memory, if ranks share it, and then a network, if not all of them do."""
    mesh, ranks = transport.mesh, transport.ranks_per_host
    media = list[Medium]()
    if ranks > 1:
        media.append(Medium(mesh.spins, ranks, hosts=frozenset()))
    if ranks < mesh.size:
        hosts = frozenset(host for host, _ in mesh.addresses)
        media.append(Medium(mesh.spins, 0, hosts))
    return media


def _known_link(wanted: Medium) -> MeasuredLink | None:
    """Return the link measured on this medium, or on the smallest one that includes it.

    None if there is none.
    """
    including = [medium for medium in _measured if medium.includes(wanted)]
    if not including:
        return None
    return _measured[min(including, key=lambda medium: (medium.ranks, len(medium.hosts)))]


def _machine(transport: Tcp, links: list[MeasuredLink]) -> Machine:
    """Return the machine of a group's links, one for each of its media."""
    source = ", and ".join(measured.source for measured in reversed(links))
    network = links[-1].link
    if len(links) == 1:
        return Machine(name=MEASURED, source=source, network=network)
    return Machine(
        name=MEASURED,
        source=source,
        ranks_per_node=transport.ranks_per_host,
        inside=links[0].link,
        network=network,
    )


def _measure_shared_memory(transport: Any) -> tuple[float, float]:
    """Return the seconds of a step, and of a byte that is read: from all-reduces in one step, and in two."""
    alpha = _time_call(transport, ONE_STEP, SMALL_CALL)
    share = steps_and_reads("all_reduce", TWO_STEPS, transport.ranks_per_host)[1]
    seconds = _time_call(transport, TWO_STEPS, LARGE_CALL)
    return alpha, max(seconds - 2 * alpha, seconds / 10) / (share * LARGE_CALL)


def _time_call(transport: Any, name: str, nbytes: int) -> float:
    """Return the median seconds of an all-reduce on shared memory."""
    mesh, p = transport.mesh, transport.ranks_per_host
    schedule, tensor = build("all_reduce", name, p), torch.zeros(nbytes // 4)
    at = tensor.data_ptr()
    plan, edges, times = (
        slot_plan(schedule, mesh.rank % p, {}),
        schedule.cut(tensor.numel()),
        list[float](),
    )
    longest = int(np.diff(edges).max())
    made = shared_memory().shared_call(
        plan, edges, longest, dist.ReduceOp.SUM, tensor.dtype, NO_CALL, p
    )
    for _ in range(REPEATS):
        begin = time.perf_counter()
        with mesh.begin():
            transport.execute_shared(made, at, at, at, has_barrier=False)
        times.append(time.perf_counter() - begin)
    return median(times)


def _measure_memory(transport: Tcp, group: dist.ProcessGroup) -> MeasuredLink:
    """Measure a step and a byte in the memory that the ranks of a host share.

    Rank 0's result counts.
    """
    measured = struct.pack("<dd", *_measure_shared_memory(transport))
    step, byte = struct.unpack("<dd", all_gather_bytes(measured, group)[0])
    source = f"rank 0 of {transport.ranks_per_host} that share memory"
    return MeasuredLink(Link(latency=step, overhead=0.0, rate=1 / byte), source)


def _measure_network(transport: Tcp, group: dist.ProcessGroup) -> MeasuredLink:
    """Measure the link between ranks of different hosts, or between any two if ranks share no memory."""
    mesh, measured = transport.mesh, b""
    half = mesh.size // 2
    with mesh.begin():
        if mesh.rank < half:
            measured = _LINK.pack(*_measure_link(Pair(transport, mesh.rank + half, asks=True)))
        elif mesh.rank < 2 * half:
            _measure_link(Pair(transport, mesh.rank - half, asks=False))
    links = [_LINK.unpack(each) for each in all_gather_bytes(measured, group) if each]
    latency, overhead, rate = (median(values) for values in zip(*links, strict=True))
    # Its cores work on a message all the time, so no rank can hide any of it.
    if not mesh.has_network:
        latency, overhead = 0.0, latency + overhead
    link = Link(latency=latency, overhead=overhead, rate=rate)
    return MeasuredLink(link, f"{half} pairs of ranks")


class Pair:
    """One rank's end of a pair: one of the two asks, and the other one answers.

    Both call the same methods in turn.
    """

    def __init__(self, transport: Tcp, peer: int, asks: bool) -> None:
        self.transport, self.peer, self.asks = transport, peer, asks

    def seconds(self, rounds: int, messages: int, nbytes: int, answer: int = 1) -> float:
        """Return the median seconds of a round: from its first message until all ``answer`` bytes have arrived."""
        plan = self._round(messages, Span(0, nbytes), Span(nbytes, nbytes + answer))
        # Made by numpy: torch would fill a large one on several threads, which then spin while
        # ranks measure.
        memory, times = torch.from_numpy(np.zeros(nbytes + answer, dtype=np.uint8)), list[float]()
        for _ in range(rounds):
            begin = time.perf_counter()
            self.transport.execute(plan, memory, None, None)
            times.append(time.perf_counter() - begin)
        return median(times)

    def share(self, goes_on: bool) -> bool:
        """Return what the asking rank has given: it sends ``goes_on``, and the other one receives it."""
        byte = torch.tensor([goes_on], dtype=torch.uint8)
        self.transport.execute(
            self._plan([self._message(0, Span(0, 1), self.asks)]), byte, None, None
        )
        return bool(byte[0])

    def _round(self, messages: int, data: Span, answer: Span) -> Plan:
        """Plan ``messages`` messages of the asking rank's, and an answer when all have arrived."""
        asked = [self._message(i, data, self.asks) for i in range(messages)]
        return self._plan([*asked, self._message(messages, answer, not self.asks)])

    def _message(self, number: int, span: Span, is_sent: bool) -> Send | Recv:
        if is_sent:
            return Send(number, self.peer, number, (span,))
        return Recv(number, self.peer, number, span)

    def _plan(self, messages: list[Send | Recv]) -> Plan:
        """Wait for what is received immediately, and for what is sent in the end."""
        instructions, sent = list[Instruction](), list[Instruction]()
        for each in messages:
            instructions.append(each)
            (instructions if isinstance(each, Recv) else sent).append(Wait(each.number))
        return as_plan((Task((*instructions, *sent), ()),))


def _measure_link(pair: Pair) -> tuple[float, float, float]:
    """Return latency and overhead in seconds, and bytes per second, as the rank that asks measures them."""
    pair.seconds(1, 1, SMALL)  # makes the connections
    begin, trip = time.perf_counter(), pair.seconds(ROUNDS, 1, SMALL)
    each = (pair.seconds(ROUNDS, BURST, SMALL) - trip) / (BURST - 1)
    rate = _measure_rate(pair, trip, begin + max(SECONDS, TRIPS * trip))
    alpha = trip / 2
    overhead = min(max(each, 0.0), alpha)
    return alpha - overhead, overhead, rate


def _measure_rate(pair: Pair, trip: float, until: float) -> float:
    """Return the bytes per second of the largest message that there was time for."""
    rate = seconds = 0.0
    for nbytes in LARGE:
        end = time.perf_counter() + RATE_ROUNDS * (trip + nbytes / rate) if rate else 0.0
        if not pair.share(seconds <= LONG * trip and end <= until):
            break
        seconds = pair.seconds(RATE_ROUNDS, 1, nbytes)
        rate = nbytes / max(seconds - trip, seconds / 100)
    return rate
