"""The inner loops of `simulation`, compiled: how a step's messages advance the clocks of ranks, ports and shared links.

`simulation` says what is modelled. Arrays are indexed by rank, by port (class * p + rank) or by shared link, as `links`
numbers them. Times are seconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compiled import compiled
from collectives.schedule import Ints, Messages
from collectives.simulator.links import (
    Floats,
    Links,
    done_at,
    free_at,
    kind_of,
    occupy,
    protocol_of,
    shared_links,
    slowed,
)

# What `simulate_step` and `steady_state.repeat` return.
DONE, UNSURE = 0, 1


class UnsureError(Exception):
    """One clock for each rank does not tell when its data have arrived; a clock for each of its chunks must."""


class Clocks(NamedTuple):
    """When ports and shared links are free again, and what has passed through them."""

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
    protocol: NDArray[np.int8]
    kind: NDArray[np.int8]
    start: Floats
    left: Floats
    arrival: Floats


@compiled
def prepare(
    sent: Messages, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """Each message's kind, how much of it is added, and when its data are there. DONE or UNSURE."""
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
        now.kind[j], now.added[j], now.ready[j] = kind_of(s, sent.dst[j], node, links.group), added, ready
    return DONE


@compiled
def load(sent: Messages, p: int, links: Links, now: Scratch) -> None:
    """How long the step's messages occupy each port and shared link together."""
    for j in range(len(sent.src)):
        s, d, kind, size = sent.src[j], sent.dst[j], now.kind[j], float(sent.size[j])
        sends, receives = links.ported[s], links.ported[d]
        q = protocol_of(size, links.limit)
        now.protocol[j] = q
        cls = min(kind, 1)
        out = into = links.beta[q, kind]
        if kind > 0:
            network = links.beta[q, 1]
            out, into = slowed(out, network, links.slower[s]), slowed(into, network, links.slower[d])
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
    """When each message starts and has left: it waits for its data, its ports and its shared links."""
    for j in range(len(sent.src)):
        s, d, kind, q = sent.src[j], sent.dst[j], now.kind[j], now.protocol[j]
        cls = min(kind, 1)
        latency = links.latency[q, kind]
        adding = now.reducing[cls * p + d]
        begin, lasts = now.ready[j], max(now.egress[cls * p + s], now.ingress[cls * p + d])
        for level in range(links.lowest, kind):
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                lasts = max(lasts, links.overhead[q, cls] + now.shared[link])
        for _ in range(2):  # what one of them puts off, the others have to look at again
            begin = free_at(clocks.egress, cls * p + s, begin)
            begin = free_at(clocks.ingress, cls * p + d, begin + latency) - latency
            for level in range(links.lowest, kind):
                for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                    begin = free_at(clocks.shared, link, begin)
        left = max(
            done_at(clocks.egress, cls * p + s, begin, lasts),
            done_at(clocks.ingress, cls * p + d, begin + latency, lasts + adding) - latency - adding,
        )
        for level in range(links.lowest, kind):
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                left = max(left, done_at(clocks.shared, link, begin, now.shared[link]))
                now.shared_start[link] = min(now.shared_start[link], begin)
        now.start[j], now.left[j], now.arrival[j] = begin, left, left + latency + adding


@compiled
def commit(sent: Messages, p: int, links: Links, clocks: Clocks, now: Scratch) -> None:
    """Occupy ports and shared links until their messages have left; note what has arrived; reset the loads."""
    for j in range(len(sent.src)):
        s, d, kind = sent.src[j], sent.dst[j], now.kind[j]
        sender, receiver = min(kind, 1) * p + s, min(kind, 1) * p + d
        if links.ported[s] > 0.0:
            occupy(clocks.egress, sender, now.start[j], now.left[j])
        if links.ported[d] > 0.0:
            occupy(clocks.ingress, receiver, now.start[j] + links.latency[now.protocol[j], kind], now.arrival[j])
        clocks.finish[s] = max(clocks.finish[s], now.left[j])
        clocks.finish[d] = max(clocks.finish[d], now.arrival[j])
        clocks.busy[0, sender] += now.egress[sender]
        clocks.busy[1, receiver] += now.ingress[receiver] + now.reducing[receiver]
        clocks.bytes[kind] += sent.size[j]
        now.egress[sender], now.ingress[receiver], now.reducing[receiver] = 0.0, 0.0, 0.0
        for level in range(links.lowest, kind):
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                if now.shared[link] > 0.0:
                    begin = now.shared_start[link]
                    occupy(clocks.shared, link, begin, done_at(clocks.shared, link, begin, now.shared[link]))
                    clocks.shared_busy[link] += now.shared[link]
                now.shared[link], now.shared_start[link] = 0.0, np.inf
        if now.arrival[j] >= clocks.arrived[d]:
            clocks.arrived[d], clocks.first[d], clocks.end[d] = now.arrival[j], now.first[j], now.end[j]
    clocks.messages[0] += len(sent.src)


@compiled
def simulate_step(
    sent: Messages, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """One step, of which ``sent`` are the messages. DONE, or UNSURE: only cells can tell when the data are there."""
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
