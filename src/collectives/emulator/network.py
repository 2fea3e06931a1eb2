"""The emulated network: ports with a rate, a latency and fair queues, and packets on their way through them.

It knows no clock and no device: whoever drives it says what time it is. A packet has left a port at

    max(when its last byte came, when the port began with it + size / rate)

and a port begins as soon as it is free and the first byte is there. That is cut-through: a packet which meets no other
pays for its size once, not once a port. A port sends one packet at a time and takes its flows in turn, one packet
of each. Nothing is lost but by a cut: as on InfiniBand, queues grow where a port is too slow.

All of it is arrays and compiled functions over them, since 32 hosts at 25 MB/s send 13,000 packets a second.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

compiled = njit(cache=True, error_model="numpy")

NONE = -1
# Kinds of ports, in the order in which a packet meets them.
OUT, UP, DOWN, WIRE, INTO = range(5)
KINDS = 5
# Queues that are told apart: connections, each way, over a cluster's life. What is beyond shares a queue with others.
FLOWS = 1 << 16
PROBES = 64
# A hash multiplies by this prime and takes the upper bits.
SCATTER = 0x9E3779B97F4A7C1


class Link(NamedTuple):
    """How fast a host or a rack is joined to the rest, and how long the way to another one takes."""

    rate: float
    latency: float


class Network(NamedTuple):
    """Hosts joined by a switch; or by one switch a rack, and these by another, over a link for each rack.

    Ports stand in the order out of each host, up from each rack, down to each rack, between each two hosts, into each
    host. An event is a packet's coming to its next port, numbered as the packet, or a port's becoming free.
    """

    hosts: int
    racks: int
    rate: Floats  # by port, as all up to `last`
    before: Floats  # seconds from whatever lies before it to the port …
    after: Floats  # … and from it to whatever follows
    until: Floats  # when it was or is done with its last packet
    cut: NDArray[np.bool_]
    used: NDArray[np.bool_]  # whether two hosts have a wire of their own
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
    free: Ints  # a stack of packets that are none
    due: Floats  # by event: when …
    order: Ints  # … and which of those at the same time comes first
    heap: Ints  # events, the earliest first
    counts: Ints  # how many are free, in the heap, and were ever in it


FREE, PENDING, EVER = range(3)


def network(
    hosts: int, link: Link, racks: int = 1, uplink: Link | None = None, packets: int = 1 << 16, most: int = 1 << 16
) -> Network:
    """An empty network with room for so many packets of at most so many bytes; memory is taken when it is used."""
    ports, way = 2 * hosts + 2 * racks + hosts * hosts, uplink or Link(math.inf, 0.0)
    made = Network(
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
    for kind, number, each in ((OUT, hosts, link), (UP, racks, way), (DOWN, racks, way), (INTO, hosts, link)):
        ends = slice(at := int(port(made, kind, 0)), at + number)
        made.rate[ends] = each.rate
        (made.after if kind in (OUT, UP) else made.before)[ends] = each.latency / 2
    return made


def _nones(count: int) -> Ints:
    return np.full(count, NONE)


def change(net: Network, host: int, other: int | None, what: str, value: float) -> None:
    """Set the rate, the latency or the cut of a host's cable, or of what only two hosts use: both ways."""
    if other is None:
        ends = [int(port(net, OUT, host)), int(port(net, INTO, host))]
    else:
        ends = [int(port(net, WIRE, a * net.hosts + b)) for a, b in ((host, other), (other, host))]
        net.used[ends] = True
    if what == "latency" and other is None:
        net.after[ends[0]] = net.before[ends[1]] = value / 2
    elif what == "latency":
        net.before[ends] = value
    else:
        (net.cut if what == "cut" else net.rate)[ends] = value
    for each in ends:
        if net.cut[each]:
            _clear(net, each)


@compiled
def port(net: Network, kind: int, nth: int) -> int:
    """The number of a port."""
    before = 0
    if kind > OUT:
        before += net.hosts
    if kind > UP:
        before += net.racks
    if kind > DOWN:
        before += net.racks
    if kind > WIRE:
        before += net.hosts * net.hosts
    return before + nth


@compiled
def kind_of(net: Network, number: int) -> int:
    """Which kind of port has this number."""
    kind = OUT
    while kind < INTO and number >= port(net, kind + 1, 0):
        kind += 1
    return kind


@compiled
def next_event(net: Network) -> float:
    """When something happens next; infinity when nothing is on its way."""
    return float(net.due[net.heap[0]]) if net.counts[PENDING] else np.inf


@compiled
def room(net: Network) -> int:
    """A packet that is free, whose data may be written; NONE if there is none."""
    return int(net.free[net.counts[FREE] - 1]) if net.counts[FREE] else NONE


@compiled
def send(net: Network, source: int, target: int, size: int, ports: int, now: float) -> None:
    """Have the packet that `room` gave set out, which counts as so many bytes; ``ports`` tells flows apart."""
    net.counts[FREE] -= 1
    packet = net.free[net.counts[FREE]]
    net.source[packet], net.target[packet], net.size[packet] = source, target, size
    net.flow[packet] = _flow(net, (source * net.hosts + target) << 32 | ports)
    net.complete[packet], net.place[packet] = now, port(net, OUT, source)
    _come(net, now, packet)


@compiled
def advance(net: Network, now: float) -> int:
    """Let happen what is due, until a packet has arrived: it, or NONE. Whoever has read it calls `release`."""
    while net.counts[PENDING] and net.due[net.heap[0]] <= now:
        event = _pop(net)
        time = net.due[event]
        if event < len(net.size):
            _come(net, time, event)
            continue
        at = event - len(net.size)
        sent, ready = int(net.sending[at]), _take(net, at)
        net.sending[at] = ready
        if ready != NONE:
            _begin(net, time, at, ready)
        if kind_of(net, at) == INTO:
            if not net.cut[at]:
                return sent
            release(net, sent)
    return NONE


@compiled
def release(net: Network, packet: int) -> None:
    """Nobody needs the packet any more."""
    net.free[net.counts[FREE]] = packet
    net.counts[FREE] += 1


@compiled
def _flow(net: Network, key: int) -> int:
    """The flow with this key: where it stands in the table, or where it would if the table is full."""
    home = (key * SCATTER >> 20) & (FLOWS - 1)
    for step in range(PROBES):
        at = (home + step) & (FLOWS - 1)
        if net.flow_key[at] == NONE:
            net.flow_key[at] = key
        if net.flow_key[at] == key:
            return at
    return home


@compiled
def _following(net: Network, at: int, packet: int) -> int:
    """The port that a packet meets after this one."""
    source, target = net.source[packet], net.target[packet]
    kind, a, b = kind_of(net, at), source * net.racks // net.hosts, target * net.racks // net.hosts
    wire = port(net, WIRE, source * net.hosts + target)
    if kind == OUT and a != b:
        return port(net, UP, a)
    if kind == UP:
        return port(net, DOWN, b)
    if kind != WIRE and net.used[wire]:
        return wire
    return port(net, INTO, target)


@compiled
def _come(net: Network, now: float, packet: int) -> None:
    """A packet's first byte is at its next port."""
    at = net.place[packet]
    if net.cut[at]:
        release(net, packet)
    elif net.sending[at] == NONE:
        net.sending[at] = packet
        _begin(net, now, at, packet)
    else:
        _wait(net, at, packet)


@compiled
def _begin(net: Network, now: float, at: int, packet: int) -> None:
    """A port is free for a packet: it sends on from now on, until at the earliest it has all of it."""
    now = max(now, net.until[at])  # whoever drives the network may have let happen what was due a little later
    net.until[at] = end = max(now + net.size[packet] / net.rate[at], net.complete[packet])
    _push(net, end, len(net.size) + at)
    if kind_of(net, at) != INTO:
        following = _following(net, at, packet)
        way = net.after[at] + net.before[following]
        net.complete[packet], net.place[packet] = end + way, following
        _push(net, now + way, packet)


@compiled
def _wait(net: Network, at: int, packet: int) -> None:
    """Put a packet behind the others of its flow; a flow that had none gets the last turn."""
    queue = net.flow[packet] * KINDS + kind_of(net, at)
    net.next[packet] = NONE
    if net.head[queue] == NONE:
        net.head[queue] = packet
        _last_turn(net, at, queue)
    else:
        net.next[net.tail[queue]] = packet
    net.tail[queue] = packet


@compiled
def _last_turn(net: Network, at: int, queue: int) -> None:
    net.behind[queue] = NONE
    if net.first[at] == NONE:
        net.first[at] = queue
    else:
        net.behind[net.last[at]] = queue
    net.last[at] = queue


@compiled
def _take(net: Network, at: int) -> int:
    """The first packet of the flow whose turn it is, or NONE."""
    queue = net.first[at]
    if queue == NONE:
        return NONE
    packet = int(net.head[queue])
    net.first[at], net.head[queue] = net.behind[queue], net.next[packet]
    if net.head[queue] != NONE:
        _last_turn(net, at, queue)
    return packet


@compiled
def _clear(net: Network, at: int) -> None:
    """Lose all that waits at a port."""
    packet = _take(net, at)
    while packet != NONE:
        release(net, packet)
        packet = _take(net, at)


@compiled
def _earlier(net: Network, one: int, other: int) -> bool:
    if net.due[one] == net.due[other]:
        return bool(net.order[one] < net.order[other])
    return bool(net.due[one] < net.due[other])


@compiled
def _push(net: Network, time: float, event: int) -> None:
    """Put an event into the heap, where each is earlier than the two that stand below it."""
    net.due[event], net.order[event] = time, net.counts[EVER]
    at = net.counts[PENDING]
    net.counts[EVER] += 1
    net.counts[PENDING] += 1
    while at and _earlier(net, event, net.heap[(at - 1) // 2]):
        net.heap[at] = net.heap[(at - 1) // 2]
        at = (at - 1) // 2
    net.heap[at] = event


@compiled
def _pop(net: Network) -> int:
    """Take the earliest event out of the heap: the last one sinks from the top to where it belongs."""
    earliest = int(net.heap[0])
    net.counts[PENDING] -= 1
    last, n, at, below = net.heap[net.counts[PENDING]], net.counts[PENDING], 0, 1
    while below < n:
        if below + 1 < n and _earlier(net, net.heap[below + 1], net.heap[below]):
            below += 1
        if _earlier(net, last, net.heap[below]):
            break
        net.heap[at] = net.heap[below]
        at, below = below, 2 * below + 1
    net.heap[at] = last
    return earliest
