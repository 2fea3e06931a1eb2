"""A machine's links as arrays, for compiled code, and what a message on them costs.

A message's class is 0 inside a node and 1 through the network; its kind also tells how many of the network's levels it
passes. A shared link is one that several ranks use: a node's network port, or a group's uplink, each in both
directions. Times are seconds.

A port or shared link remembers one occupied period and the gap before it: it is free from GAP to BEGIN, occupied from
BEGIN to END, and free after that.
"""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compiled import compiled
from collectives.machine import Machine, Protocol
from collectives.schedule import Ints

Floats = NDArray[np.float64]

GAP, BEGIN, END = 0, 1, 2


class Links(NamedTuple):
    """The machine as arrays: by protocol, and by class or kind of link where there is a second axis."""

    limit: Floats  # bytes of a message up to which a protocol is taken
    latency: Floats  # by kind: inside, network, levels
    overhead: Floats
    beta: Floats  # by kind: inside, network, levels
    stretch: Floats  # 1 / share, by protocol
    lowest: int  # the first level whose shared links count: 1 where each rank has a network port of its own
    group: Ints  # [level, rank]; level 0 is the port that ranks of a node share
    shared_beta: Floats  # by level: of the link that the group shares
    slower: Floats  # by rank: how many times as long a byte takes through its node's network port
    ported: Floats  # by rank 1, by switch 0: it has a port for each rank, which waits for that rank's port only
    egress: Ints  # of each level: the first shared link out of its groups …
    ingress: Ints  # … and the first into them
    gamma: float


@compiled
def kind_of(s: int, d: int, node: Ints, group: Ints) -> int:
    """0 inside a node, 1 through the network, 1 + l through its level l (levels nest)."""
    if node[s] == node[d]:
        return 0
    kind = 1
    for level in range(1, len(group)):
        if group[level, s] != group[level, d]:
            kind = 1 + level
    return kind


@compiled
def protocol_of(size: float, limit: Floats) -> int:
    """The first protocol that takes messages of this size; the last takes all."""
    q = 0
    while size > limit[q]:
        q += 1
    return q


@compiled
def slowed(beta: float, network: float, slower: float) -> float:
    """Seconds for which a byte occupies a port to the network that is ``slower`` than others.

    Numbers only: a call that hands over `Links` costs 20 ns.
    """
    return max(beta, network * slower)


def links_of(machine: Machine, node: Ints, protocols: tuple[Protocol, ...], switches: int = 0) -> Links:
    """The machine as arrays, for ranks on these nodes, of which the last are switches, and for these protocols."""
    inside = machine.inside or machine.network
    share = np.array([protocol.share for protocol in protocols])
    rank, g = np.arange(len(node)), machine.ranks_per_node
    port = node * machine.ports + rank % g * machine.ports // g
    group = np.stack([port, *(node // level.nodes for level in machine.levels)])
    groups = group.max(axis=1) + 1
    egress = np.cumsum(2 * groups) - 2 * groups
    slowest = [1 / level.rate if level.rate else 0.0 for level in machine.levels]
    uplinks = [1 / level.uplink if level.uplink else 0.0 for level in machine.levels]
    return Links(
        limit=np.array([np.inf if protocol.up_to is None else protocol.up_to for protocol in protocols], dtype=float),
        latency=np.array([_latencies(machine, protocol) for protocol in protocols]),
        overhead=np.array([[protocol.inside.overhead, protocol.network.overhead] for protocol in protocols]),
        beta=np.array([inside.beta, *np.maximum.accumulate([machine.network.beta, *slowest])]) / share[:, None],
        stretch=1 / share,
        lowest=int(machine.ports == g),
        group=group,
        shared_beta=np.array([machine.network.beta, *uplinks]),
        slower=np.array([machine.slower.get(each, 1.0) for each in node.tolist()]),
        ported=np.repeat([1.0, 0.0], [len(node) - switches, switches]),
        egress=egress,
        ingress=egress + groups,
        gamma=machine.gamma,
    )


def _latencies(machine: Machine, protocol: Protocol) -> list[float]:
    """Inside, through the network, and through each of its levels: that of every level passed is added."""
    levels = accumulate((level.latency for level in machine.levels), initial=protocol.network.latency)
    return [protocol.inside.latency, *levels]


def shared_links(links: Links) -> int:
    """How many links are shared, each direction counted."""
    return int(2 * links.ingress[-1] - links.egress[-1])


# The functions take all ports and an index: a row of an array as an argument costs as much as the function.


@compiled
def free_at(ports: Floats, i: int, ready: float) -> float:
    """When something that is ready can begin at port ``i``: in the gap before the occupied period, or after it."""
    at = max(ready, float(ports[i, GAP]))
    return at if at < ports[i, BEGIN] else max(ready, float(ports[i, END]))


@compiled
def done_at(ports: Floats, i: int, begin: float, lasts: float) -> float:
    """When it is done: what the gap is too short for goes on after the occupied period."""
    end = begin + lasts
    rest = 0.0 if begin >= ports[i, BEGIN] or end <= ports[i, BEGIN] else float(ports[i, END] - ports[i, BEGIN])
    return end + rest


@compiled
def occupy(ports: Floats, i: int, begin: float, end: float) -> None:
    """Occupy the port from begin to end; of several gaps only the last is remembered."""
    if end <= ports[i, BEGIN]:
        ports[i, GAP] = end
    elif begin > ports[i, END]:
        ports[i, GAP], ports[i, BEGIN], ports[i, END] = ports[i, END], begin, end
    else:  # a gap is forgotten when work goes on after it without a pause
        ports[i, GAP] = ports[i, BEGIN] = min(ports[i, BEGIN], begin)
        ports[i, END] = max(ports[i, END], end)
