"""The emulated network: ports with a rate, a latency and fair queues, and the packets in them.

It has no clock and no device: its caller passes the time. `forwarding` has functions over it. A packet has left a port
at

    max(when its last byte came, when the port began with it + size / rate)

and a port begins as soon as it is free and the first byte is there. That is cut-through: without congestion a packet
pays for its size once, not once a port. A port sends one packet at a time and serves its flows round robin. Packets are
lost only by a cut: as on InfiniBand, queues grow if a port is too slow.

It is arrays and compiled functions over them, because 32 hosts at 25 MB/s send 13,000 packets a second.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NONE = -1
# Kinds of ports, in the order in which a packet passes them. PAIR is the link that only two hosts use.
EGRESS, UP, DOWN, PAIR, INGRESS = range(5)
KINDS = 5
# Flows with a queue of their own: connections, in each direction, over a cluster's life. Later ones share a queue.
FLOWS = 1 << 16
PROBES = 64
# A hash multiplies by this prime and takes the upper bits.
SCATTER = 0x9E3779B97F4A7C1


class EmulatedLink(NamedTuple):
    """The link of a host or a rack: its rate in bytes per second, and the latency to another one in seconds."""

    rate: float
    latency: float


class EmulatedNetwork(NamedTuple):
    """Hosts joined by a switch; or by one switch a rack, and these by another, over a link for each rack.

    Ports are numbered in this order: egress of each host, up from each rack, down to each rack, link of each pair of
    hosts, ingress of each host. An event is the arrival of a packet at its next port, with the packet's number, or the
    end of a port's sending, with the port's number after all packets.
    """

    hosts: int
    racks: int
    rate: Floats  # by port, as all up to `last`
    before: Floats  # seconds from the port before it …
    after: Floats  # … and to the port after it
    until: Floats  # when it was or is done with its last packet
    cut: NDArray[np.bool_]
    used: NDArray[np.bool_]  # whether two hosts have a link of their own
    sending: Ints  # the packet, or NONE
    first: Ints  # the queues whose turns are next and last, or NONE
    last: Ints
    flow_key: Ints  # by flow: what is hashed, or NONE
    head: Ints  # by queue (flow * KINDS + kind): its packets, or NONE …
    tail: Ints
    behind: Ints  # … and the queue whose turn follows
    source: Ints  # by packet, as all up to `data`
    target: Ints
    size: Ints
    flow: Ints
    complete: Floats  # when its last byte reaches its next port
    place: Ints  # the port that it comes to or waits at
    next: Ints  # the packet behind it in its queue
    data: NDArray[np.uint8]
    free: Ints  # a stack of unused packets
    due: Floats  # by event: when …
    order: Ints  # … and which of those at the same time comes first
    heap: Ints  # events, the earliest first
    counts: Ints  # how many are free, in the heap, and were ever in it


FREE, PENDING, EVER = range(3)


def network(
    hosts: int,
    link: EmulatedLink,
    racks: int = 1,
    uplink: EmulatedLink | None = None,
    packets: int = 1 << 16,
    most: int = 1 << 16,
) -> EmulatedNetwork:
    """An empty network for up to ``packets`` packets of ``most`` bytes each; memory is allocated when it is used."""
    ports, way = 2 * hosts + 2 * racks + hosts * hosts, uplink or EmulatedLink(math.inf, 0.0)
    net = EmulatedNetwork(
        hosts,
        racks,
        rate=np.full(ports, math.inf),
        before=np.zeros(ports),
        after=np.zeros(ports),
        until=np.zeros(ports),
        cut=np.zeros(ports, dtype=np.bool_),
        used=np.zeros(ports, dtype=np.bool_),
        sending=_nones(ports),
        first=_nones(ports),
        last=_nones(ports),
        flow_key=_nones(FLOWS),
        head=_nones(FLOWS * KINDS),
        tail=_nones(FLOWS * KINDS),
        behind=_nones(FLOWS * KINDS),
        source=_nones(packets),
        target=_nones(packets),
        size=_nones(packets),
        flow=_nones(packets),
        complete=np.zeros(packets),
        place=_nones(packets),
        next=_nones(packets),
        data=np.empty((packets, most), dtype=np.uint8),
        free=np.arange(packets)[::-1].copy(),
        due=np.zeros(packets + ports),
        order=_nones(packets + ports),
        heap=_nones(packets + ports),
        counts=np.array([packets, 0, 0]),
    )
    for kind, number, each in ((EGRESS, hosts, link), (UP, racks, way), (DOWN, racks, way), (INGRESS, hosts, link)):
        ends = slice(at := int(port(net, kind, 0)), at + number)
        net.rate[ends] = each.rate
        (net.after if kind in (EGRESS, UP) else net.before)[ends] = each.latency / 2
    return net


def _nones(count: int) -> Ints:
    return np.full(count, NONE)


@compiled
def port(net: EmulatedNetwork, kind: int, nth: int) -> int:
    """The number of a port."""
    before = 0
    if kind > EGRESS:
        before += net.hosts
    if kind > UP:
        before += net.racks
    if kind > DOWN:
        before += net.racks
    if kind > PAIR:
        before += net.hosts * net.hosts
    return before + nth


@compiled
def kind_of(net: EmulatedNetwork, number: int) -> int:
    """Which kind of port has this number."""
    kind = EGRESS
    while kind < INGRESS and number >= port(net, kind + 1, 0):
        kind += 1
    return kind
