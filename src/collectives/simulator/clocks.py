"""The inner loops of `simulation`, compiled: what a step's messages do to the clocks of ranks, ports and wires.

`simulation` says what is modelled. Arrays are indexed by rank, by port (class * p + rank; class 0 is inside a node, 1
the network) or by wire (what several ranks share: a node's network port, a group's uplink, each way). Times are
seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from collectives.schedule import Ints
from collectives.schedule import Messages as Sent

Floats = NDArray[np.float64]
Small = NDArray[np.int32]
Tiny = NDArray[np.int8]

compiled = njit(cache=True, error_model="numpy")
# What `play` and `relay` answer.
DONE, UNSURE = 0, 1


class Links(NamedTuple):
    """The machine, as arrays: by protocol, and by class or kind of link where there is a second axis."""

    limit: Floats  # bytes of a message up to which a protocol is taken
    latency: Floats  # by class: inside, network
    overhead: Floats
    beta: Floats  # by kind: inside, network, levels
    stretch: Floats  # 1 / share, by protocol
    lowest: int  # the first level whose wires count: 1 where each rank has a network port of its own
    group: Ints  # [level, rank]; level 0 is the port that ranks of a node share
    wire_beta: Floats  # by level: of the wire that the group shares
    slower: Floats  # by rank: how many times as long a byte takes through its node's network port
    level_latency: Floats
    outward: Ints  # of each level: where its wires begin …
    inward: Ints  # … and its wires the other way
    gamma: float


class Clocks(NamedTuple):
    """When everything is free again, and what it has done."""

    arrived: Floats  # by rank: the latest arrival of a message there …
    first: Ints  # … and the run of chunks that it brought
    end: Ints
    finish: Floats  # by rank: its last message has left or arrived
    out: Floats  # by port: what it is taken for, see `Taken`; to send …
    into: Floats  # … and to receive
    wire: Floats
    busy: Floats  # by port: outward, then inward (2, 2p)
    wire_busy: Floats
    bytes: Ints  # by kind: inside, network, and by the highest level passed
    messages: Ints


class Scratch(NamedTuple):
    """What one step adds up: loads of ports and wires, and by message what `Sent` does not say."""

    out: Floats
    into: Floats
    adding: Floats
    wire: Floats
    wire_start: Floats
    first: Ints
    end: Ints
    added: Floats
    ready: Floats
    protocol: Tiny
    kind: Tiny
    start: Floats
    left: Floats
    arrival: Floats


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
def delay(q: int, kind: int, links: Links) -> float:
    """Latency of a message: its class's, and that of every level it passes."""
    total = links.latency[q, min(kind, 1)]
    for level in range(1, kind):
        total += links.level_latency[level]
    return float(total)


@compiled
def prepare(
    sent: Sent, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """Each message's kind, how much of it is added, and when its data are there. DONE or UNSURE."""
    by_cell = len(cells) > 0
    for j in range(len(sent.src)):
        s, added, ready = sent.src[j], 0, 0.0
        for i in sent.row[sent.first[j] : sent.first[j + 1]]:
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
def held(q: int, kind: int, rank: int, links: Links) -> float:
    """Seconds for which a byte occupies this rank's port."""
    beta = float(links.beta[q, kind])
    return beta if kind == 0 else max(beta, float(links.beta[q, 1] * links.slower[rank]))


@compiled
def shared(level: int, rank: int, links: Links) -> float:
    """Seconds for which a byte occupies the wire of this rank's group."""
    return float(links.wire_beta[level] * (links.slower[rank] if level == 0 else 1.0))


@compiled
def load(sent: Sent, p: int, links: Links, now: Scratch) -> None:
    """How long the step's messages occupy each port and wire together."""
    for j in range(len(sent.src)):
        s, d, kind, size = sent.src[j], sent.dst[j], now.kind[j], float(sent.size[j])
        q = protocol_of(size, links.limit)
        now.protocol[j] = q
        cls = min(kind, 1)
        now.out[cls * p + s] += links.overhead[q, cls] + held(q, kind, s, links) * size
        now.into[cls * p + d] += links.overhead[q, cls] + held(q, kind, d, links) * size
        now.adding[cls * p + d] += links.gamma * now.added[j]
        for level in range(links.lowest, kind):
            out, into = links.outward[level] + links.group[level, s], links.inward[level] + links.group[level, d]
            now.wire[out] += shared(level, s, links) * links.stretch[q] * size
            now.wire[into] += shared(level, d, links) * links.stretch[q] * size


# What a port or wire is taken for: free from GAP to BEGIN, taken from BEGIN to END, free after that.
GAP, BEGIN, END = 0, 1, 2


@compiled
def free_at(taken: Floats, ready: float) -> float:
    """When something that is ready can begin: in the gap before the last time that is taken, or after it."""
    at = max(ready, float(taken[GAP]))
    return at if at < taken[BEGIN] else max(ready, float(taken[END]))


@compiled
def done_at(taken: Floats, begin: float, lasts: float) -> float:
    """When it is done: what the gap is too short for goes on after the time that is taken."""
    end = begin + lasts
    rest = 0.0 if begin >= taken[BEGIN] or end <= taken[BEGIN] else float(taken[END] - taken[BEGIN])
    return end + rest


@compiled
def take(taken: Floats, begin: float, end: float) -> None:
    """Taken from begin to end; of several gaps only the last is remembered."""
    if end <= taken[BEGIN]:
        taken[GAP] = end
    elif begin > taken[END]:
        taken[GAP], taken[BEGIN], taken[END] = taken[END], begin, end
    else:  # a gap is forgotten when work goes on after it without a pause
        taken[GAP] = taken[BEGIN] = min(taken[BEGIN], begin)
        taken[END] = max(taken[END], end)


@compiled
def start(sent: Sent, p: int, links: Links, clocks: Clocks, now: Scratch) -> None:
    """When each message starts and has left: it waits for its data, its ports and its wires."""
    for j in range(len(sent.src)):
        s, d, kind, q = sent.src[j], sent.dst[j], now.kind[j], now.protocol[j]
        cls = min(kind, 1)
        late = delay(q, kind, links)
        adding = now.adding[cls * p + d]
        begin, lasts = now.ready[j], max(now.out[cls * p + s], now.into[cls * p + d])
        for level in range(links.lowest, kind):
            for wire in (links.outward[level] + links.group[level, s], links.inward[level] + links.group[level, d]):
                lasts = max(lasts, links.overhead[q, cls] + now.wire[wire])
        for _ in range(2):  # what one of them puts off, the others have to look at again
            begin = free_at(clocks.out[cls * p + s], begin)
            begin = free_at(clocks.into[cls * p + d], begin + late) - late
            for level in range(links.lowest, kind):
                for wire in (links.outward[level] + links.group[level, s], links.inward[level] + links.group[level, d]):
                    begin = free_at(clocks.wire[wire], begin)
        left = max(
            done_at(clocks.out[cls * p + s], begin, lasts),
            done_at(clocks.into[cls * p + d], begin + late, lasts + adding) - late - adding,
        )
        for level in range(links.lowest, kind):
            for wire in (links.outward[level] + links.group[level, s], links.inward[level] + links.group[level, d]):
                left = max(left, done_at(clocks.wire[wire], begin, now.wire[wire]))
                now.wire_start[wire] = min(now.wire_start[wire], begin)
        now.start[j], now.left[j], now.arrival[j] = begin, left, left + late + adding


@compiled
def settle(sent: Sent, p: int, links: Links, clocks: Clocks, now: Scratch) -> None:
    """Ports and wires are taken until their messages have left; ranks know what has arrived; loads are reset."""
    for j in range(len(sent.src)):
        s, d, kind = sent.src[j], sent.dst[j], now.kind[j]
        out, into = min(kind, 1) * p + s, min(kind, 1) * p + d
        take(clocks.out[out], now.start[j], now.left[j])
        take(clocks.into[into], now.start[j] + delay(now.protocol[j], kind, links), now.arrival[j])
        clocks.finish[s] = max(clocks.finish[s], now.left[j])
        clocks.finish[d] = max(clocks.finish[d], now.arrival[j])
        clocks.busy[0, out] += now.out[out]
        clocks.busy[1, into] += now.into[into] + now.adding[into]
        clocks.bytes[kind] += sent.size[j]
        now.out[out], now.into[into], now.adding[into] = 0.0, 0.0, 0.0
        for level in range(links.lowest, kind):
            for wire in (links.outward[level] + links.group[level, s], links.inward[level] + links.group[level, d]):
                if now.wire[wire] > 0.0:
                    begin = now.wire_start[wire]
                    take(clocks.wire[wire], begin, done_at(clocks.wire[wire], begin, now.wire[wire]))
                    clocks.wire_busy[wire] += now.wire[wire]
                now.wire[wire], now.wire_start[wire] = 0.0, np.inf
        if now.arrival[j] >= clocks.arrived[d]:
            clocks.arrived[d], clocks.first[d], clocks.end[d] = now.arrival[j], now.first[j], now.end[j]
    clocks.messages[0] += len(sent.src)


@compiled
def play(
    sent: Sent, chunk: Ints, count: Ints, add: NDArray[np.bool_], edges: Ints,
    node: Ints, links: Links, clocks: Clocks, cells: Floats, now: Scratch,
) -> int:  # fmt: skip
    """One step, of which ``sent`` are the messages. DONE, or UNSURE: only cells can tell when the data are there."""
    if prepare(sent, chunk, count, add, edges, node, links, clocks, cells, now):
        return UNSURE
    load(sent, len(node), links, now)
    start(sent, len(node), links, clocks, now)
    settle(sent, len(node), links, clocks, now)
    if len(cells) > 0:
        for j in range(len(sent.src)):
            d = sent.dst[j]
            for i in sent.row[sent.first[j] : sent.first[j + 1]]:
                for cell in range(chunk[i], chunk[i] + count[i]):
                    cells[cell, d] = max(cells[cell, d], now.arrival[j])
    return DONE


class Relay(NamedTuple):
    """A step that repeats, row by row, with other chunks: everyone hands on what it got from the same rank before.

    Entries from ``rows`` on stand for ranks that send but do not receive.
    """

    feeder: Small  # by row: the row that brings what this one hands on
    kind: Tiny
    fixed: Floats  # by kind: what a message occupies its ports for, whatever its size …
    held: Floats  # … and for each byte
    late: Floats
    before: Floats  # by row: its ports and wires were free before its last message …
    free: Floats  # … and are after it
    arrived: Floats
    last: Small  # the chunk that arrived last
    moved: Ints
    sent: Small  # messages


@compiled
def relay_from(
    src: Ints, dst: Ints, adds: bool, q: int, node: Ints, links: Links, clocks: Clocks
) -> tuple[bool, Relay]:
    """Take over the clocks, if no two rows share a port or a wire; every message goes by protocol ``q``."""
    rows, p, kinds = len(src), len(node), 1 + len(links.group)
    relay = Relay(
        np.empty(rows, np.int32), np.empty(rows, np.int8), np.empty(kinds), np.empty(kinds), np.empty(kinds),
        np.empty(rows), np.empty(rows), np.empty(2 * rows), np.full(2 * rows, -1, np.int32),
        np.zeros(rows, np.int64), np.zeros(rows, np.int32),
    )  # fmt: skip
    for kind in range(kinds):
        beta = links.beta[q, kind]
        for level in range(kind):
            beta = max(beta, links.wire_beta[level] * links.stretch[q])
        relay.fixed[kind], relay.late[kind] = links.overhead[q, min(kind, 1)], delay(q, kind, links)
        relay.held[kind] = beta + (links.gamma if adds else 0.0)
    sends, receives = np.full(p, -1), np.full(p, -1)
    taken = np.zeros(len(clocks.wire), np.bool_)
    for i in range(rows):
        s, d = src[i], dst[i]
        if sends[s] >= 0 or receives[d] >= 0:
            return False, relay
        sends[s], receives[d] = i, i
        kind = kind_of(s, d, node, links.group)
        cls = min(kind, 1)
        free = max(clocks.out[cls * p + s, END], clocks.into[cls * p + d, END] - relay.late[kind])
        for level in range(links.lowest, kind):
            for wire in (links.outward[level] + links.group[level, s], links.inward[level] + links.group[level, d]):
                if taken[wire]:
                    return False, relay
                taken[wire] = True
                free = max(free, clocks.wire[wire, END])
        relay.kind[i], relay.before[i], relay.free[i] = kind, free, free
    for i in range(rows):
        s, d = src[i], dst[i]
        relay.feeder[i] = receives[s] if receives[s] >= 0 else rows + i
        relay.arrived[i], relay.arrived[rows + i] = clocks.arrived[d], clocks.arrived[s]
        relay.last[i] = clocks.first[d] if clocks.end[d] == clocks.first[d] + 1 else -1
        relay.last[rows + i] = clocks.first[s] if clocks.end[s] == clocks.first[s] + 1 else -1
    return True, relay


@compiled
def hand_on_all(chunk: Ints, size: Ints, relay: Relay, arrived: Floats, last: Small) -> int:
    """One repeated step without an empty message: reads ``relay`` and writes what arrives next. DONE or UNSURE.

    ``before`` is written, and ``free`` read: the caller exchanges the two.
    """
    unsure = 0
    for i in range(len(chunk)):
        # Unsigned: an index that may be negative costs a test, and a third of the time.
        c, feeder = np.uint64(chunk[i]), np.uint64(np.uint32(relay.feeder[i]))
        kind, free = np.uint64(np.uint8(relay.kind[i])), relay.free[i]
        ready = relay.arrived[feeder]
        begin = ready if ready > free else free
        free = begin + relay.fixed[kind] + relay.held[kind] * size[c]
        unsure += (ready > 0.0) & (np.uint64(relay.last[feeder]) != c)
        relay.before[i], arrived[i], last[i] = free, free + relay.late[kind], c
        relay.moved[i] += size[c]
    return UNSURE if unsure else DONE


@compiled
def hand_on_some(chunk: Ints, size: Ints, relay: Relay, rows: Small, arrived: Floats) -> int:
    """One repeated step of which most messages are empty; all of ``relay`` is up to date afterwards. DONE or UNSURE."""
    n = 0
    for i in range(len(chunk)):
        if size[chunk[i]] == 0:
            continue
        feeder, kind, m = relay.feeder[i], relay.kind[i], size[chunk[i]]
        if relay.arrived[feeder] > 0.0 and relay.last[feeder] != chunk[i]:
            return UNSURE
        begin = max(relay.arrived[feeder], relay.free[i])
        relay.before[i] = relay.free[i]
        relay.free[i] = begin + relay.fixed[kind] + relay.held[kind] * m
        relay.moved[i] += m
        relay.sent[i] += 1
        rows[n], arrived[n] = i, relay.free[i] + relay.late[kind]
        n += 1
    for j in range(n):
        relay.arrived[rows[j]], relay.last[rows[j]] = arrived[j], chunk[rows[j]]
    return DONE


@compiled
def relay_to(
    src: Ints, dst: Ints, size: Ints, adds: bool, q: int, relay: Relay, p: int, links: Links, clocks: Clocks
) -> None:
    """Give the clocks back, as `play` would have left them."""
    gamma = links.gamma if adds else 0.0
    for i in range(len(src)):
        if relay.sent[i] == 0:
            continue
        s, d, kind, c = src[i], dst[i], relay.kind[i], relay.last[i]
        cls = min(kind, 1)
        out, into = cls * p + s, cls * p + d
        late, left, arrival = relay.late[kind], relay.free[i] - gamma * size[c], relay.arrived[i]
        begin = relay.free[i] - relay.fixed[kind] - relay.held[kind] * size[c]
        gap = min(begin, relay.before[i])  # begin, where nothing paused
        clocks.out[out, GAP], clocks.out[out, BEGIN], clocks.out[out, END] = gap, begin, left
        clocks.into[into, GAP], clocks.into[into, BEGIN], clocks.into[into, END] = gap + late, begin + late, arrival
        clocks.arrived[d], clocks.first[d], clocks.end[d] = arrival, c, c + 1
        clocks.finish[s], clocks.finish[d] = max(clocks.finish[s], left), max(clocks.finish[d], arrival)
        occupied = relay.sent[i] * links.overhead[q, cls] + links.beta[q, kind] * relay.moved[i]
        clocks.busy[0, out] += occupied
        clocks.busy[1, into] += occupied + gamma * relay.moved[i]
        clocks.bytes[kind] += relay.moved[i]
        clocks.messages[0] += relay.sent[i]
        for level in range(links.lowest, kind):
            beta = links.wire_beta[level] * links.stretch[q]
            for wire in (links.outward[level] + links.group[level, s], links.inward[level] + links.group[level, d]):
                clocks.wire[wire, GAP], clocks.wire[wire, BEGIN] = begin, begin
                clocks.wire[wire, END] = begin + beta * size[c]
                clocks.wire_busy[wire] += beta * relay.moved[i]
