"""The emulated network as a value: ports with a rate, a latency and fair queues, and packets on their way through them.

It knows no clock and no device: whoever drives it says what time it is. A packet has left a port at

    max(when its last byte came, when the port began with it + size / rate)

and a port begins as soon as it is free and the first byte is there. That is cut-through: a packet which meets no other
pays for its size once, not once a port. A port sends one packet at a time and takes its flows in turn, one packet
of each. Nothing is lost but by a cut: as on InfiniBand, queues grow where a port is too slow.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, deque
from heapq import heappop, heappush
from typing import NamedTuple


class Port:
    """One direction of a cable: how fast it is, how long the way before and behind it, and who waits."""

    __slots__ = ("after", "before", "cut", "flows", "rate", "sending")

    def __init__(self, rate: float = math.inf, before: float = 0.0, after: float = 0.0) -> None:
        self.rate, self.before, self.after = rate, before, after
        self.cut = False
        self.sending: Packet | None = None
        self.flows: OrderedDict[bytes, deque[Packet]] = OrderedDict()

    def wait(self, packet: Packet) -> None:
        """Put a packet behind the others of its flow."""
        queue = self.flows.get(packet.flow)
        if queue is None:
            self.flows[packet.flow] = deque((packet,))
        else:
            queue.append(packet)

    def next(self) -> Packet | None:
        """The first packet of the flow whose turn it is."""
        if not self.flows:
            return None
        flow, queue = self.flows.popitem(last=False)
        packet = queue.popleft()
        if queue:
            self.flows[flow] = queue
        return packet


class Packet:
    """Some bytes, the ports that they still have to pass, and when the last of them reaches the first of these."""

    __slots__ = ("complete", "data", "flow", "hop", "route", "size")

    def __init__(self, data: bytes, size: int, flow: bytes, route: tuple[Port, ...], now: float) -> None:
        self.data, self.size, self.flow, self.route = data, size, flow, route
        self.hop, self.complete = 0, now


class Link(NamedTuple):
    """How fast a host or a rack is joined to the rest, and how long the way to another one takes."""

    rate: float
    latency: float


class Network:
    """Hosts joined by a switch; or by one switch a rack, and these by another, over a link for each rack."""

    def __init__(self, hosts: int, link: Link, racks: int = 1, uplink: Link | None = None) -> None:
        self.out = [Port(link.rate, after=link.latency / 2) for _ in range(hosts)]
        self.into = [Port(link.rate, before=link.latency / 2) for _ in range(hosts)]
        way = uplink or Link(math.inf, 0.0)
        self.up = [Port(way.rate, after=way.latency / 2) for _ in range(racks)]
        self.down = [Port(way.rate, before=way.latency / 2) for _ in range(racks)]
        self.rack = [host * racks // hosts for host in range(hosts)]
        self.wires: dict[tuple[int, int], Port] = {}
        self._routes: dict[tuple[int, int], tuple[Port, ...]] = {}
        self._events: list[tuple[float, int, Port, Packet | None]] = []
        self._count = itertools.count()

    def route(self, source: int, target: int) -> tuple[Port, ...]:
        """The ports between two hosts, in order."""
        found = self._routes.get((source, target))
        if found is None:
            a, b = self.rack[source], self.rack[target]
            wire = self.wires.get((source, target))
            between = ([] if a == b else [self.up[a], self.down[b]]) + ([] if wire is None else [wire])
            found = self._routes[source, target] = (self.out[source], *between, self.into[target])
        return found

    def change(self, host: int, other: int | None, what: str, value: float) -> None:
        """Set the rate, the latency or the cut of a host's cable, or of what only two hosts use: both ways."""
        if other is None:
            out, into = self.out[host], self.into[host]
        else:
            out, into = (self.wires.setdefault(pair, Port()) for pair in ((host, other), (other, host)))
            self._routes.clear()
        if what == "latency":
            out.after, into.before = (value / 2, value / 2) if other is None else (value, value)
            return
        for port in (out, into):
            setattr(port, what, value)
            if port.cut:
                port.flows.clear()

    def next_event(self) -> float:
        """When something happens next; infinity when nothing is on its way."""
        return self._events[0][0] if self._events else math.inf

    def send(self, source: int, target: int, data: bytes, size: int, flow: bytes, now: float) -> None:
        """Have a packet set out, which counts as so many bytes."""
        route = self.route(source, target)
        self._come(now, route[0], Packet(data, size, flow, route, now))

    def advance(self, now: float) -> list[tuple[Port, bytes]]:
        """Let everything happen that is due; returns what has arrived, and by which port."""
        events, arrived = self._events, []
        while events and events[0][0] <= now:
            time, _, port, packet = heappop(events)
            if packet is not None:
                self._come(time, port, packet)
                continue
            sent = port.sending
            if sent is not None and sent.route[-1] is port and not port.cut:
                arrived.append((port, sent.data))
            port.sending = port.next()
            if port.sending is not None:
                self._begin(time, port, port.sending)
        return arrived

    def _come(self, now: float, port: Port, packet: Packet) -> None:
        """A packet's first byte is at a port."""
        if port.cut:
            return
        if port.sending is None:
            port.sending = packet
            self._begin(now, port, packet)
        else:
            port.wait(packet)

    def _begin(self, now: float, port: Port, packet: Packet) -> None:
        """A port is free for a packet: it sends on from now on, until at the earliest it has all of it."""
        end = max(now + packet.size / port.rate, packet.complete)
        heappush(self._events, (end, next(self._count), port, None))
        packet.hop += 1
        if packet.hop < len(packet.route):
            following = packet.route[packet.hop]
            way = port.after + following.before
            packet.complete = end + way
            heappush(self._events, (now + way, next(self._count), following, packet))
