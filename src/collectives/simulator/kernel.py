"""The simulator's inner loops, compiled: how a step's messages advance the clocks of ranks, ports and shared links.

`simulation` says what is modelled. A message's class is 0 inside a node and 1 through the network;
its kind also tells how many of the network's levels it passes. A shared link is one that several
ranks use: a node's network port, or a group's uplink, each in both directions. Arrays are indexed
by rank, by port (class * p + rank) or by shared link. Times are seconds.

A port or shared link remembers one occupied period and the gap before it: it is free from GAP to
BEGIN, occupied from BEGIN to END, and free after that.
"""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compiled import compiled
from collectives.core.schedule import Ints, Messages
from collectives.machine import Machine, Protocol

Floats = NDArray[np.float64]

GAP, BEGIN, END = 0, 1, 2


class Links(NamedTuple):
    """The machine as arrays: by protocol, and by class or kind of link where there is a second axis."""

    limit: Floats  # bytes of a message up to which a protocol is taken
    latency: Floats  # by kind: inside, network, levels
    overhead: Floats
    beta: Floats  # by kind: inside, network, levels
    stretch: Floats  # 1 / share of the network's rates, by protocol
    # The first level whose shared links count: 1 where each rank has a network port of its own.
    lowest: int
    group: Ints  # [level, rank]; level 0 is the port that ranks of a node share
    shared_beta: Floats  # by level: of the link that the group shares
    slower: Floats  # by rank: how many times as long a byte takes through its node's network port
    # By rank 1, by switch 0: it has a port for each rank, which waits for that rank's port only.
    ported: Floats
    egress: Ints  # of each level: the first shared link out of its groups …
    ingress: Ints  # … and the first into them
    gamma: float


@compiled
def kind_of(s: int, d: int, node: Ints, group: Ints) -> int:
    """Return 0 inside a node, 1 through the network, 1 + l through its level l (levels nest)."""
    if node[s] == node[d]:
        return 0
    kind = 1
    for level in range(1, len(group)):
        if group[level, s] != group[level, d]:
            kind = 1 + level
    return kind


@compiled
def protocol_of(size: float, limit: Floats) -> int:
    """Return the first protocol that takes messages of this size in bytes; the last takes all."""
    q = 0
    while size > limit[q]:
        q += 1
    return q


@compiled
def slowed(beta: float, network: float, slower: float) -> float:
    """Return the seconds for which a byte occupies a port to the network that is ``slower`` than others.

    Numbers only: a call that hands over `Links` costs 20 ns.
    """
    return max(beta, network * slower)


def links_of(
    machine: Machine, node: Ints, protocols: tuple[Protocol, ...], switches: int = 0
) -> Links:
    """Return the machine as arrays for these protocols and for ranks on these nodes, of which the last are switches."""
    inside = machine.inside or machine.network
    share = np.array([[protocol.share, protocol.of_network] for protocol in protocols])
    rank, g = np.arange(len(node)), machine.ranks_per_node
    port = node * machine.ports + rank % g * machine.ports // g
    group = np.stack([port, *(node // level.nodes for level in machine.levels)])
    groups = group.max(axis=1) + 1
    egress = np.cumsum(2 * groups) - 2 * groups
    slowest = [1 / level.rate if level.rate else 0.0 for level in machine.levels]
    beyond = np.maximum.accumulate([machine.network.beta, *slowest])
    uplinks = [1 / level.uplink if level.uplink else 0.0 for level in machine.levels]
    return Links(
        limit=np.array(
            [np.inf if protocol.up_to is None else protocol.up_to for protocol in protocols],
            dtype=float,
        ),
        latency=np.array([_latencies(machine, protocol) for protocol in protocols]),
        overhead=np.array(
            [[protocol.inside.overhead, protocol.network.overhead] for protocol in protocols]
        ),
        beta=np.column_stack([inside.beta / share[:, :1], beyond / share[:, 1:]]),
        stretch=1 / share[:, 1],
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
    """Return the latency by kind, in seconds; that of every level passed is added."""
    levels = accumulate(
        (level.latency for level in machine.levels), initial=protocol.network.latency
    )
    return [protocol.inside.latency, *levels]


def shared_links(links: Links) -> int:
    """Return the number of shared links, each direction counted."""
    return int(2 * links.ingress[-1] - links.egress[-1])


# The functions take all ports and an index: a row of an array as an argument costs as much as the
# function.


@compiled
def free_at(ports: Floats, i: int, ready: float) -> float:
    """Return when a message that is ready can begin at port ``i``: in the gap, or after the occupied period."""
    at = max(ready, float(ports[i, GAP]))
    return at if at < ports[i, BEGIN] else max(ready, float(ports[i, END]))


@compiled
def done_at(ports: Floats, i: int, begin: float, lasts: float) -> float:
    """Return when a message is done.

    One that is too long for the gap goes on after the occupied period.
    """
    end = begin + lasts
    rest = (
        0.0
        if begin >= ports[i, BEGIN] or end <= ports[i, BEGIN]
        else float(ports[i, END] - ports[i, BEGIN])
    )
    return end + rest


@compiled
def occupy(ports: Floats, i: int, begin: float, end: float) -> None:
    """Occupy the port from begin to end, and remember the last of its gaps."""
    if end <= ports[i, BEGIN]:
        ports[i, GAP] = end
    elif begin > ports[i, END]:
        ports[i, GAP], ports[i, BEGIN], ports[i, END] = ports[i, END], begin, end
    else:  # a gap is forgotten when work goes on after it without a pause
        ports[i, GAP] = ports[i, BEGIN] = min(ports[i, BEGIN], begin)
        ports[i, END] = max(ports[i, END], end)


# The results of `simulate_step`.
DONE, UNSURE = 0, 1


class UnsureError(Exception):
    """One clock for each rank does not tell when its data have arrived.

    A clock for each of its chunks must.
    """


class Clocks(NamedTuple):
    """The times at which ports and shared links are free again, and their traffic so far."""

    arrived: Floats  # by rank: the latest arrival of a message there …
    first: Ints  # … and the run of chunks that it brought
    end: Ints
    finish: Floats  # by rank: its last message has left or arrived
    egress: Floats  # by port, to send: GAP, BEGIN and END as in `links` …
    ingress: Floats  # … to receive …
    shared: Floats  # … and by shared link
    busy: Floats  # by port, seconds occupied: sending, then receiving (2, 2p) …
    shared_busy: Floats  # … and by shared link
    bytes: Ints  # by kind: inside, network, and by the highest level passed
    messages: Ints


def new_clocks(p: int, links: Links) -> Clocks:
    """Return the clocks before the first message: everything is free."""
    shared, kinds = shared_links(links), 1 + len(links.group)
    return Clocks(
        arrived=np.zeros(p),
        first=np.zeros(p, dtype=np.int64),
        end=np.zeros(p, dtype=np.int64),
        finish=np.zeros(p),
        egress=np.zeros((2 * p, 3)),
        ingress=np.zeros((2 * p, 3)),
        shared=np.zeros((shared, 3)),
        busy=np.zeros((2, 2 * p)),
        shared_busy=np.zeros(shared),
        bytes=np.zeros(kinds, dtype=np.int64),
        messages=np.zeros(1, dtype=np.int64),
    )


class Scratch(NamedTuple):
    """One step: how long its messages occupy each port and shared link together, and what `Messages` does not say."""

    egress: Floats
    ingress: Floats
    reducing: Floats
    shared: Floats
    shared_start: Floats
    first: Ints  # by message, from here on
    end: Ints
    added: Floats
    ready: Floats
    protocol: Ints
    kind: Ints
    start: Floats
    left: Floats
    arrival: Floats


def new_scratch(p: int, links: Links, rows: int) -> Scratch:
    """Return room for the messages of a step with so many rows."""
    shared = shared_links(links)
    return Scratch(
        egress=np.zeros(2 * p),
        ingress=np.zeros(2 * p),
        reducing=np.zeros(2 * p),
        shared=np.zeros(shared),
        shared_start=np.full(shared, np.inf),
        first=np.zeros(rows, dtype=np.int64),
        end=np.zeros(rows, dtype=np.int64),
        added=np.zeros(rows),
        ready=np.zeros(rows),
        protocol=np.zeros(rows, dtype=np.int64),
        kind=np.zeros(rows, dtype=np.int64),
        start=np.zeros(rows),
        left=np.zeros(rows),
        arrival=np.zeros(rows),
    )


@compiled
def prepare(
    sent: Messages, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """Find each message's kind, its bytes that are added, and when its data are there.

    Returns DONE or UNSURE.
    """
    by_cell = len(cells) > 0
    for j in range(len(sent.src)):
        s, added, ready = sent.src[j], 0, 0.0
        for at in range(sent.first[j], sent.first[j + 1]):
            i = sent.row[at]
            c, e = chunk[i], chunk[i] + count[i]
            if by_cell:
                for cell in range(c, e):
                    ready = max(ready, cells[cell, s])
            elif clocks.arrived[s] > 0.0:
                if e <= clocks.first[s] or c >= clocks.end[s]:
                    return UNSURE
                ready = clocks.arrived[s]
            added += edges[e] - edges[c] if add[i] else 0
        begin = sent.row[sent.first[j]]
        now.first[j], now.end[j] = chunk[begin], chunk[begin] + count[begin]
        now.kind[j], now.added[j], now.ready[j] = (
            kind_of(s, sent.dst[j], node, links.group),
            added,
            ready,
        )
    return DONE


@compiled
def load(sent: Messages, p: int, links: Links, now: Scratch) -> None:
    """Add up the seconds for which the step's messages occupy each port and shared link."""
    for j in range(len(sent.src)):
        s, d, kind, size = sent.src[j], sent.dst[j], now.kind[j], float(sent.size[j])
        sends, receives = links.ported[s], links.ported[d]
        q = protocol_of(size, links.limit)
        now.protocol[j] = q
        cls = min(kind, 1)
        out = into = links.beta[q, kind]
        if kind > 0:
            network = links.beta[q, 1]
            out, into = (
                slowed(out, network, links.slower[s]),
                slowed(into, network, links.slower[d]),
            )
        now.egress[cls * p + s] += sends * (links.overhead[q, cls] + out * size)
        now.ingress[cls * p + d] += receives * (links.overhead[q, cls] + into * size)
        now.reducing[cls * p + d] += receives * links.gamma * now.added[j]
        for level in range(links.lowest, kind):
            leaving, entering = (
                links.egress[level] + links.group[level, s],
                links.ingress[level] + links.group[level, d],
            )
            out = into = links.shared_beta[level]
            if level == 0:
                out, into = out * links.slower[s], into * links.slower[d]
            now.shared[leaving] += sends * out * links.stretch[q] * size
            now.shared[entering] += receives * into * links.stretch[q] * size


@compiled
def start(sent: Messages, p: int, links: Links, clocks: Clocks, now: Scratch) -> None:
    """Find when each message starts and has left: it waits for its data, its ports and its shared links."""
    for j in range(len(sent.src)):
        s, d, kind, q = sent.src[j], sent.dst[j], now.kind[j], now.protocol[j]
        cls = min(kind, 1)
        latency = links.latency[q, kind]
        adding = now.reducing[cls * p + d]
        begin, lasts = now.ready[j], max(now.egress[cls * p + s], now.ingress[cls * p + d])
        for level in range(links.lowest, kind):
            for link in (
                links.egress[level] + links.group[level, s],
                links.ingress[level] + links.group[level, d],
            ):
                lasts = max(lasts, links.overhead[q, cls] + now.shared[link])
        for _ in range(2):  # what one of them puts off, the others have to look at again
            begin = free_at(clocks.egress, cls * p + s, begin)
            begin = free_at(clocks.ingress, cls * p + d, begin + latency) - latency
            for level in range(links.lowest, kind):
                for link in (
                    links.egress[level] + links.group[level, s],
                    links.ingress[level] + links.group[level, d],
                ):
                    begin = free_at(clocks.shared, link, begin)
        left = max(
            done_at(clocks.egress, cls * p + s, begin, lasts),
            done_at(clocks.ingress, cls * p + d, begin + latency, lasts + adding)
            - latency
            - adding,
        )
        for level in range(links.lowest, kind):
            for link in (
                links.egress[level] + links.group[level, s],
                links.ingress[level] + links.group[level, d],
            ):
                left = max(left, done_at(clocks.shared, link, begin, now.shared[link]))
                now.shared_start[link] = min(now.shared_start[link], begin)
        now.start[j], now.left[j], now.arrival[j] = begin, left, left + latency + adding


@compiled
def commit(sent: Messages, p: int, links: Links, clocks: Clocks, now: Scratch) -> None:
    """Occupy ports and shared links until their messages have left, note arrivals, and reset the loads."""
    for j in range(len(sent.src)):
        s, d, kind = sent.src[j], sent.dst[j], now.kind[j]
        sender, receiver = min(kind, 1) * p + s, min(kind, 1) * p + d
        if links.ported[s] > 0.0:
            occupy(clocks.egress, sender, now.start[j], now.left[j])
        if links.ported[d] > 0.0:
            occupy(
                clocks.ingress,
                receiver,
                now.start[j] + links.latency[now.protocol[j], kind],
                now.arrival[j],
            )
        clocks.finish[s] = max(clocks.finish[s], now.left[j])
        clocks.finish[d] = max(clocks.finish[d], now.arrival[j])
        clocks.busy[0, sender] += now.egress[sender]
        clocks.busy[1, receiver] += now.ingress[receiver] + now.reducing[receiver]
        clocks.bytes[kind] += sent.size[j]
        now.egress[sender], now.ingress[receiver], now.reducing[receiver] = 0.0, 0.0, 0.0
        for level in range(links.lowest, kind):
            for link in (
                links.egress[level] + links.group[level, s],
                links.ingress[level] + links.group[level, d],
            ):
                if now.shared[link] > 0.0:
                    begin = now.shared_start[link]
                    occupy(
                        clocks.shared,
                        link,
                        begin,
                        done_at(clocks.shared, link, begin, now.shared[link]),
                    )
                    clocks.shared_busy[link] += now.shared[link]
                now.shared[link], now.shared_start[link] = 0.0, np.inf
        if now.arrival[j] >= clocks.arrived[d]:
            clocks.arrived[d], clocks.first[d], clocks.end[d] = (
                now.arrival[j],
                now.first[j],
                now.end[j],
            )
    clocks.messages[0] += len(sent.src)


@compiled
def simulate_step(
    sent: Messages, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """Simulate one step.

    Returns UNSURE if only cells tell when the data are there, otherwise DONE.
    """
    if prepare(sent, chunk, count, add, edges, node, links, clocks, cells, now):
        return UNSURE
    load(sent, len(node), links, now)
    start(sent, len(node), links, clocks, now)
    commit(sent, len(node), links, clocks, now)
    if len(cells) > 0:
        for j in range(len(sent.src)):
            d = sent.dst[j]
            for at in range(sent.first[j], sent.first[j + 1]):
                i = sent.row[at]
                for cell in range(chunk[i], chunk[i] + count[i]):
                    cells[cell, d] = max(cells[cell, d], now.arrival[j])
    return DONE
