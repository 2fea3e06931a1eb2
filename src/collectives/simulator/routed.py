"""Messages on a machine whose links are known one by one: each takes the shortest way, and waits for every link on it.

A message of m bytes occupies all links on its way at once for overhead + m / rate of the slowest
(cut-through), and arrives after the latencies of all of them. Messages of one step that share a
link share its time. Ranks have no ports: a rank with six links sends six messages at once.
Otherwise the model is that of `simulation`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collectives.compiled import compiled
from collectives.core.schedule import Bools, Ints, Messages
from collectives.machine import Machine
from collectives.simulator.kernel import Floats, done_at, free_at, occupy
from collectives.topology.graph import Graph, graph, ways


class RoutedLinks(NamedTuple):
    """The links as arrays; link a * vertices + b leads from a to b."""

    first: Ints  # by pair of vertices: where its links begin in `link`
    link: Ints
    beta: Floats  # by link: seconds per byte …
    latency: Floats
    overhead: Floats
    between: Bools  # … and whether it joins nodes
    gamma: float


class RoutedClocks(NamedTuple):
    """The times at which links are free and chunks are there, and the traffic so far."""

    links: Floats  # by link: GAP, BEGIN and END as in `links`
    cells: Floats  # by (chunk, rank): when it has arrived
    finish: Floats  # by rank
    busy: Floats  # by link: seconds occupied
    bytes: Ints  # inside nodes, and between them
    load: Floats  # by link, of one step: seconds of all its messages …
    begun: Floats  # … and when the first begins
    start: Floats  # by message of one step
    left: Floats
    arrival: Floats


def routed_links(machine: Machine, p: int) -> tuple[Graph, RoutedLinks]:
    """Return the machine's graph for p ranks, and its links as arrays.

    Raises ValueError as `topology.graph` does.
    """
    of = graph(machine, p)
    n, along, between = of.vertices, ways(of), np.zeros((of.vertices, of.vertices), dtype=np.bool_)
    between[of.network[:, 0], of.network[:, 1]] = True
    inside = machine.inside or machine.network
    with np.errstate(divide="ignore"):
        beta = 1 / (of.capacity.astype(float) * float(of.unit))
    return of, RoutedLinks(
        first=along.first,
        link=along.link,
        beta=beta.reshape(n * n),
        latency=np.where(between, machine.network.latency, inside.latency).reshape(n * n),
        overhead=np.where(between, machine.network.overhead, inside.overhead).reshape(n * n),
        between=between.reshape(n * n),
        gamma=machine.gamma,
    )


def routed_clocks(of: Graph, cells: Floats) -> RoutedClocks:
    """Return the clocks before the first message: everything is free."""
    links = of.vertices**2
    return RoutedClocks(
        links=np.zeros((links, 3)),
        cells=cells,
        finish=np.zeros(of.p),
        busy=np.zeros(links),
        bytes=np.zeros(2, dtype=np.int64),
        load=np.zeros(links),
        begun=np.full(links, np.inf),
        start=np.zeros(of.p**2),
        left=np.zeros(of.p**2),
        arrival=np.zeros(of.p**2),
    )


@compiled
def simulate_step(
    sent: Messages,
    chunk: Ints,
    count: Ints,
    add: Bools,
    edges: Ints,
    n: int,
    links: RoutedLinks,
    now: RoutedClocks,
) -> None:
    """Simulate one step: add up the loads, start each message, and occupy the links."""
    for j in range(len(sent.src)):
        pair = sent.src[j] * n + sent.dst[j]
        for at in range(links.first[pair], links.first[pair + 1]):
            link = links.link[at]
            now.load[link] += links.overhead[link] + links.beta[link] * sent.size[j]
    for j in range(len(sent.src)):
        _start(sent, j, chunk, count, add, edges, n, links, now)
    for j in range(len(sent.src)):
        _commit(sent, j, chunk, count, n, links, now)


@compiled
def _start(
    sent: Messages, j: int, chunk: Ints, count: Ints, add: Bools, edges: Ints,
    n: int, links: RoutedLinks, now: RoutedClocks,
) -> None:  # fmt: skip
    """Start a message when its chunks are there and its links are free, for as long as the busiest link takes."""
    s, added, begin = sent.src[j], 0, 0.0
    for at in range(sent.first[j], sent.first[j + 1]):
        i = sent.row[at]
        for cell in range(chunk[i], chunk[i] + count[i]):
            begin = max(begin, now.cells[cell, s])
        added += edges[chunk[i] + count[i]] - edges[chunk[i]] if add[i] else 0
    pair = s * n + sent.dst[j]
    way = links.link[links.first[pair] : links.first[pair + 1]]
    lasts, latency = 0.0, 0.0
    for link in way:
        lasts, latency = max(lasts, now.load[link]), latency + links.latency[link]
    for _ in range(2):  # what one link puts off, the others have to look at again
        for link in way:
            begin = free_at(now.links, link, begin)
    left = begin + lasts
    for link in way:
        left = max(left, done_at(now.links, link, begin, lasts))
        now.begun[link] = min(now.begun[link], begin)
    now.start[j], now.left[j], now.arrival[j] = begin, left, left + latency + links.gamma * added


@compiled
def _commit(
    sent: Messages, j: int, chunk: Ints, count: Ints, n: int, links: RoutedLinks, now: RoutedClocks
) -> None:
    """Occupy each link once, note what has arrived, and reset the loads."""
    s, d, between = sent.src[j], sent.dst[j], 0
    pair = s * n + d
    for link in links.link[links.first[pair] : links.first[pair + 1]]:
        between = max(between, int(links.between[link]))
        if now.load[link] > 0.0:
            occupy(
                now.links,
                link,
                now.begun[link],
                done_at(now.links, link, now.begun[link], now.load[link]),
            )
            now.busy[link] += now.load[link]
            now.load[link], now.begun[link] = 0.0, np.inf
    now.finish[s] = max(now.finish[s], now.left[j])
    now.finish[d] = max(now.finish[d], now.arrival[j])
    now.bytes[between] += sent.size[j]
    for at in range(sent.first[j], sent.first[j + 1]):
        i = sent.row[at]
        for cell in range(chunk[i], chunk[i] + count[i]):
            now.cells[cell, d] = max(now.cells[cell, d], now.arrival[j])
