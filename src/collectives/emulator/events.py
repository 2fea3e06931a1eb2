"""The emulated network's events, compiled: a binary heap of what happens when."""

import numpy as np

from collectives.compiled import compiled
from collectives.emulator.network import EVER, PENDING, Network


@compiled
def next_event(net: Network) -> float:
    """The time of the next event; infinity if there is none."""
    return float(net.due[net.heap[0]]) if net.counts[PENDING] else np.inf


@compiled
def push(net: Network, time: float, event: int) -> None:
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
def pop(net: Network) -> int:
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
def _earlier(net: Network, one: int, other: int) -> bool:
    if net.due[one] == net.due[other]:
        return bool(net.order[one] < net.order[other])
    return bool(net.due[one] < net.due[other])
