"""What happens in the emulated network, compiled: its events, its fair queues, and forwarding through its ports.

Events are a binary heap of what happens when. There is a queue for each flow at each kind of port.
"""

import numpy as np

from collectives.compiled import compiled
from collectives.emulator.network import (
    DOWN,
    EGRESS,
    EVER,
    FLOWS,
    FREE,
    INGRESS,
    KINDS,
    NONE,
    PAIR,
    PENDING,
    PROBES,
    SCATTER,
    UP,
    EmulatedNetwork,
    kind_of,
    port,
)


@compiled
def send(net: EmulatedNetwork, source: int, target: int, size: int, ports: int, now: float) -> None:
    """Send the packet of `free_packet` on its way, as ``size`` bytes; ``ports`` distinguishes flows of two hosts."""
    net.counts[FREE] -= 1
    packet = net.free[net.counts[FREE]]
    net.source[packet], net.target[packet], net.size[packet] = source, target, size
    net.flow[packet] = flow_of(net, (source * net.hosts + target) << 32 | ports)
    net.complete[packet], net.place[packet] = now, port(net, EGRESS, source)
    _arrive(net, now, packet)


@compiled
def advance(net: EmulatedNetwork, now: float) -> int:
    """Process the due events until a packet has arrived. Returns it, for the caller to `release`, or NONE."""
    while net.counts[PENDING] and net.due[net.heap[0]] <= now:
        event = pop(net)
        time = net.due[event]
        if event < len(net.size):
            _arrive(net, time, event)
            continue
        at = event - len(net.size)
        sent, ready = int(net.sending[at]), dequeue(net, at)
        net.sending[at] = ready
        if ready != NONE:
            _transmit(net, time, at, ready)
        if kind_of(net, at) == INGRESS:
            if not net.cut[at]:
                return sent
            release(net, sent)
    return NONE


@compiled
def _arrive(net: EmulatedNetwork, now: float, packet: int) -> None:
    """A packet's first byte is at its next port."""
    at = net.place[packet]
    if net.cut[at]:
        release(net, packet)
    elif net.sending[at] == NONE:
        net.sending[at] = packet
        _transmit(net, now, at, packet)
    else:
        enqueue(net, at, packet)


@compiled
def _transmit(net: EmulatedNetwork, now: float, at: int, packet: int) -> None:
    """A free port starts to send a packet on, and is busy at least until it has received all of it."""
    now = max(now, net.until[at])  # the caller may have processed events that were due a little later
    net.until[at] = end = max(now + net.size[packet] / net.rate[at], net.complete[packet])
    push(net, end, len(net.size) + at)
    if kind_of(net, at) != INGRESS:
        following = _next_port(net, at, packet)
        way = net.after[at] + net.before[following]
        net.complete[packet], net.place[packet] = end + way, following
        push(net, now + way, packet)


@compiled
def _next_port(net: EmulatedNetwork, at: int, packet: int) -> int:
    """The port that a packet reaches after this one."""
    source, target = net.source[packet], net.target[packet]
    kind, a, b = kind_of(net, at), source * net.racks // net.hosts, target * net.racks // net.hosts
    pair = port(net, PAIR, source * net.hosts + target)
    if kind == EGRESS and a != b:
        return port(net, UP, a)
    if kind == UP:
        return port(net, DOWN, b)
    if kind != PAIR and net.used[pair]:
        return pair
    return port(net, INGRESS, target)


def change(net: EmulatedNetwork, host: int, other: int | None, what: str, value: float) -> None:
    """Set the rate, the latency or the cut of a host's link, or of the link of two hosts, in both directions."""
    if other is None:
        ends = [int(port(net, EGRESS, host)), int(port(net, INGRESS, host))]
    else:
        ends = [int(port(net, PAIR, a * net.hosts + b)) for a, b in ((host, other), (other, host))]
        net.used[ends] = True
    if what == "latency" and other is None:
        net.after[ends[0]] = net.before[ends[1]] = value / 2
    elif what == "latency":
        net.before[ends] = value
    else:
        (net.cut if what == "cut" else net.rate)[ends] = value
    for each in ends:
        if net.cut[each]:
            clear(net, each)


@compiled
def free_packet(net: EmulatedNetwork) -> int:
    """A free packet, whose data may be written; NONE if there is none. `send` takes it."""
    return int(net.free[net.counts[FREE] - 1]) if net.counts[FREE] else NONE


@compiled
def release(net: EmulatedNetwork, packet: int) -> None:
    """Return a packet to the free ones."""
    net.free[net.counts[FREE]] = packet
    net.counts[FREE] += 1


@compiled
def flow_of(net: EmulatedNetwork, key: int) -> int:
    """The number of the flow with this key; in a full table, that of another flow."""
    home = (key * SCATTER >> 20) & (FLOWS - 1)
    for step in range(PROBES):
        at = (home + step) & (FLOWS - 1)
        if net.flow_key[at] == NONE:
            net.flow_key[at] = key
        if net.flow_key[at] == key:
            return at
    return home


@compiled
def enqueue(net: EmulatedNetwork, at: int, packet: int) -> None:
    """Append a packet to the queue of its flow; a flow that had none gets the last turn."""
    queue = net.flow[packet] * KINDS + kind_of(net, at)
    net.next[packet] = NONE
    if net.head[queue] == NONE:
        net.head[queue] = packet
        _append_turn(net, at, queue)
    else:
        net.next[net.tail[queue]] = packet
    net.tail[queue] = packet


@compiled
def dequeue(net: EmulatedNetwork, at: int) -> int:
    """Remove the first packet of the flow whose turn it is; NONE if all queues are empty."""
    queue = net.first[at]
    if queue == NONE:
        return NONE
    packet = int(net.head[queue])
    net.first[at], net.head[queue] = net.behind[queue], net.next[packet]
    if net.head[queue] != NONE:
        _append_turn(net, at, queue)
    return packet


@compiled
def _append_turn(net: EmulatedNetwork, at: int, queue: int) -> None:
    """Give a queue the last turn at a port."""
    net.behind[queue] = NONE
    if net.first[at] == NONE:
        net.first[at] = queue
    else:
        net.behind[net.last[at]] = queue
    net.last[at] = queue


@compiled
def clear(net: EmulatedNetwork, at: int) -> None:
    """Drop all packets that wait at a port."""
    packet = dequeue(net, at)
    while packet != NONE:
        release(net, packet)
        packet = dequeue(net, at)


@compiled
def next_event(net: EmulatedNetwork) -> float:
    """The time of the next event; infinity if there is none."""
    return float(net.due[net.heap[0]]) if net.counts[PENDING] else np.inf


@compiled
def push(net: EmulatedNetwork, time: float, event: int) -> None:
    """Add an event to the heap, in which each is earlier than the two below it."""
    net.due[event], net.order[event] = time, net.counts[EVER]
    at = net.counts[PENDING]
    net.counts[EVER] += 1
    net.counts[PENDING] += 1
    while at and _earlier(net, event, net.heap[(at - 1) // 2]):
        net.heap[at] = net.heap[(at - 1) // 2]
        at = (at - 1) // 2
    net.heap[at] = event


@compiled
def pop(net: EmulatedNetwork) -> int:
    """Remove the earliest event from the heap; the last one takes its place and sinks."""
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


@compiled
def _earlier(net: EmulatedNetwork, one: int, other: int) -> bool:
    if net.due[one] == net.due[other]:
        return bool(net.order[one] < net.order[other])
    return bool(net.due[one] < net.due[other])
