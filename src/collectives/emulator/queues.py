"""The emulated network's packets and fair queues, compiled: a queue for each flow at each kind of port."""

from collectives.compiled import compiled
from collectives.emulator.network import FLOWS, FREE, KINDS, NONE, PROBES, SCATTER, Network, kind_of


@compiled
def free_packet(net: Network) -> int:
    """A free packet, whose data may be written; NONE if there is none. `forwarding.send` takes it."""
    return int(net.free[net.counts[FREE] - 1]) if net.counts[FREE] else NONE


@compiled
def release(net: Network, packet: int) -> None:
    """Return a packet to the free ones."""
    net.free[net.counts[FREE]] = packet
    net.counts[FREE] += 1


@compiled
def flow_of(net: Network, key: int) -> int:
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
def enqueue(net: Network, at: int, packet: int) -> None:
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
def dequeue(net: Network, at: int) -> int:
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
def _append_turn(net: Network, at: int, queue: int) -> None:
    """Give a queue the last turn at a port."""
    net.behind[queue] = NONE
    if net.first[at] == NONE:
        net.first[at] = queue
    else:
        net.behind[net.last[at]] = queue
    net.last[at] = queue


@compiled
def clear(net: Network, at: int) -> None:
    """Drop all packets that wait at a port."""
    packet = dequeue(net, at)
    while packet != NONE:
        release(net, packet)
        packet = dequeue(net, at)
