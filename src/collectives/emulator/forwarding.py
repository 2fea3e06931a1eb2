"""Forwarding, compiled: how packets pass through the emulated network's ports, and what changes them."""

from collectives.compiled import compiled
from collectives.emulator.events import pop, push
from collectives.emulator.network import DOWN, EGRESS, FREE, INGRESS, NONE, PAIR, PENDING, UP, Network, kind_of, port
from collectives.emulator.queues import clear, dequeue, enqueue, flow_of, release


@compiled
def send(net: Network, source: int, target: int, size: int, ports: int, now: float) -> None:
    """Send the packet of `free_packet` on its way, as ``size`` bytes; ``ports`` distinguishes flows of two hosts."""
    net.counts[FREE] -= 1
    packet = net.free[net.counts[FREE]]
    net.source[packet], net.target[packet], net.size[packet] = source, target, size
    net.flow[packet] = flow_of(net, (source * net.hosts + target) << 32 | ports)
    net.complete[packet], net.place[packet] = now, port(net, EGRESS, source)
    _arrive(net, now, packet)


@compiled
def advance(net: Network, now: float) -> int:
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
def _arrive(net: Network, now: float, packet: int) -> None:
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
def _transmit(net: Network, now: float, at: int, packet: int) -> None:
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
def _next_port(net: Network, at: int, packet: int) -> int:
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


def change(net: Network, host: int, other: int | None, what: str, value: float) -> None:
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
