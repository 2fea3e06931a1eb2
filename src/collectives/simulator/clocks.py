"""The inner loops of `simulation`, compiled: how a step's messages advance the clocks of ranks, ports and shared links.

`simulation` says what is modelled. Arrays are indexed by rank, by port (class * p + rank) or by shared link, as `links`
numbers them. Times are seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compiled import compiled
from collectives.schedule import Ints
from collectives.simulator.links import (
    Floats,
    Links,
    delay,
    kind_of,
    port_seconds_per_byte,
    protocol_of,
    shared_links,
    shared_seconds_per_byte,
)
from collectives.simulator.ports import done_at, free_at, occupy

# What `simulate_step` and `steady_state` return.
DONE, UNSURE, UNSORTED = 0, 1, 2


class UnsureError(Exception):
    """One clock for each rank does not tell when its data have arrived; a clock for each of its chunks must."""


class Clocks(NamedTuple):
    """When ports and shared links are free again, and what has passed through them."""

    arrived: Floats  # by rank: the latest arrival of a message there …
    first: Ints  # … and the run of chunks that it brought
    end: Ints
    finish: Floats  # by rank: its last message has left or arrived
    egress: Floats  # by port, to send: GAP, BEGIN and END as in `ports` …
    ingress: Floats  # … to receive …
    shared: Floats  # … and by shared link
    busy: Floats  # by port, seconds occupied: sending, then receiving (2, 2p) …
    shared_busy: Floats  # … and by shared link
    bytes: Ints  # by kind: inside, network, and by the highest level passed
    messages: Ints


def new_clocks(p: int, links: Links) -> Clocks:
    """Clocks before the first message: everything is free."""
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
    """One step: how long its messages occupy each port and shared link together, and the messages."""

    egress: Floats
    ingress: Floats
    reducing: Floats
    shared: Floats
    shared_start: Floats
    partner: Ints  # by port, the receiver of its message in this step
    message: Ints  # by row
    src: Ints
    dst: Ints
    first: Ints
    end: Ints
    size: Floats
    added: Floats
    ready: Floats
    protocol: NDArray[np.int8]
    kind: NDArray[np.int8]
    start: Floats
    left: Floats
    arrival: Floats


@compiled
def messages_of(
    src: Ints, dst: Ints, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints, is_sorted: bool,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """Rows to messages: sizes, and when their data are there. Returns their number, or -1 UNSURE, -2 UNSORTED."""
    p, by_cell, n = len(node), len(cells) > 0, 0
    for i in range(len(src)):
        s, d, c, e = src[i], dst[i], chunk[i], chunk[i] + count[i]
        size = edges[e] - edges[c]
        now.message[i] = -1
        if size == 0:
            continue
        ready = 0.0
        if by_cell:
            for cell in range(c, e):
                ready = max(ready, cells[cell, s])
        elif clocks.arrived[s] > 0.0:
            if e <= clocks.first[s] or c >= clocks.end[s]:
                return -UNSURE
            ready = clocks.arrived[s]
        if n == 0 or now.src[n - 1] != s or now.dst[n - 1] != d:
            kind = kind_of(s, d, node, links.group)
            port = min(kind, 1) * p + s
            if now.partner[port] >= 0 and not is_sorted:
                return -UNSORTED
            now.partner[port] = d
            now.src[n], now.dst[n], now.first[n], now.end[n], now.kind[n] = s, d, c, e, kind
            now.size[n], now.added[n], now.ready[n] = 0.0, 0.0, 0.0
            n += 1
        now.message[i] = n - 1
        now.size[n - 1] += size
        now.added[n - 1] += size if add[i] else 0
        now.ready[n - 1] = max(now.ready[n - 1], ready)
    return n


@compiled
def load(n: int, p: int, links: Links, now: Scratch) -> None:
    """How long the step's messages occupy each port and shared link together."""
    for j in range(n):
        s, d, kind, size = now.src[j], now.dst[j], now.kind[j], now.size[j]
        q = protocol_of(size, links.limit)
        now.protocol[j] = q
        cls = min(kind, 1)
        now.egress[cls * p + s] += links.overhead[q, cls] + port_seconds_per_byte(q, kind, s, links) * size
        now.ingress[cls * p + d] += links.overhead[q, cls] + port_seconds_per_byte(q, kind, d, links) * size
        now.reducing[cls * p + d] += links.gamma * now.added[j]
        now.partner[cls * p + s] = -1
        for level in range(links.lowest, kind):
            leaving, entering = (
                links.egress[level] + links.group[level, s],
                links.ingress[level] + links.group[level, d],
            )
            now.shared[leaving] += shared_seconds_per_byte(level, s, links) * links.stretch[q] * size
            now.shared[entering] += shared_seconds_per_byte(level, d, links) * links.stretch[q] * size


@compiled
def start(n: int, p: int, links: Links, clocks: Clocks, now: Scratch) -> None:
    """When each message starts and has left: it waits for its data, its ports and its shared links."""
    for j in range(n):
        s, d, kind, q = now.src[j], now.dst[j], now.kind[j], now.protocol[j]
        cls = min(kind, 1)
        latency = delay(q, kind, links)
        adding = now.reducing[cls * p + d]
        begin, lasts = now.ready[j], max(now.egress[cls * p + s], now.ingress[cls * p + d])
        for level in range(links.lowest, kind):
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                lasts = max(lasts, links.overhead[q, cls] + now.shared[link])
        for _ in range(2):  # what one of them puts off, the others have to look at again
            begin = free_at(clocks.egress[cls * p + s], begin)
            begin = free_at(clocks.ingress[cls * p + d], begin + latency) - latency
            for level in range(links.lowest, kind):
                for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                    begin = free_at(clocks.shared[link], begin)
        left = max(
            done_at(clocks.egress[cls * p + s], begin, lasts),
            done_at(clocks.ingress[cls * p + d], begin + latency, lasts + adding) - latency - adding,
        )
        for level in range(links.lowest, kind):
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                left = max(left, done_at(clocks.shared[link], begin, now.shared[link]))
                now.shared_start[link] = min(now.shared_start[link], begin)
        now.start[j], now.left[j], now.arrival[j] = begin, left, left + latency + adding


@compiled
def commit(n: int, p: int, links: Links, clocks: Clocks, now: Scratch) -> None:
    """Occupy ports and shared links until their messages have left; note what has arrived; reset the loads."""
    for j in range(n):
        s, d, kind = now.src[j], now.dst[j], now.kind[j]
        sender, receiver = min(kind, 1) * p + s, min(kind, 1) * p + d
        occupy(clocks.egress[sender], now.start[j], now.left[j])
        occupy(clocks.ingress[receiver], now.start[j] + delay(now.protocol[j], kind, links), now.arrival[j])
        clocks.finish[s] = max(clocks.finish[s], now.left[j])
        clocks.finish[d] = max(clocks.finish[d], now.arrival[j])
        clocks.busy[0, sender] += now.egress[sender]
        clocks.busy[1, receiver] += now.ingress[receiver] + now.reducing[receiver]
        clocks.bytes[kind] += int(now.size[j])
        now.egress[sender], now.ingress[receiver], now.reducing[receiver] = 0.0, 0.0, 0.0
        for level in range(links.lowest, kind):
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                if now.shared[link] > 0.0:
                    begin = now.shared_start[link]
                    occupy(clocks.shared[link], begin, done_at(clocks.shared[link], begin, now.shared[link]))
                    clocks.shared_busy[link] += now.shared[link]
                now.shared[link], now.shared_start[link] = 0.0, np.inf
        if now.arrival[j] >= clocks.arrived[d]:
            clocks.arrived[d], clocks.first[d], clocks.end[d] = now.arrival[j], now.first[j], now.end[j]
    clocks.messages[0] += n


@compiled
def simulate_step(
    src: Ints, dst: Ints, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints, is_sorted: bool,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """One step. Returns the number of its messages, or -1 UNSURE (only cells can tell), -2 UNSORTED (sort by pair)."""
    n = messages_of(src, dst, chunk, count, add, edges, is_sorted, node, links, clocks, cells, now)
    if n < 0:
        now.partner[:] = -1
        return n
    load(n, len(node), links, now)
    start(n, len(node), links, clocks, now)
    commit(n, len(node), links, clocks, now)
    if len(cells) > 0:
        for i in range(len(src)):
            if now.message[i] >= 0:
                for cell in range(chunk[i], chunk[i] + count[i]):
                    cells[cell, dst[i]] = max(cells[cell, dst[i]], now.arrival[now.message[i]])
    return n
