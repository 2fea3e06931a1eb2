"""Steps that repeat, as a ring's do, compiled: a clock for each row of a step instead of clocks for ports and links."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compiled import compiled
from collectives.schedule import Ints
from collectives.simulator.clocks import DONE, UNSURE, Clocks
from collectives.simulator.links import Floats, Links, kind_of
from collectives.simulator.ports import BEGIN, END, GAP

Small = NDArray[np.int32]
Tiny = NDArray[np.int8]


class SteadyState(NamedTuple):
    """A step that repeats, row by row, with other chunks: each rank passes on what it received in the step before.

    Entries from ``rows`` on are for ranks that send but do not receive.
    """

    source: Small  # by row: the row whose message this one passes on
    kind: Tiny
    fixed: Floats  # by kind: seconds for which a message occupies its ports, whatever its size …
    per_byte: Floats  # … and for each byte
    latency: Floats
    before: Floats  # by row: when its ports and links were free before its last message …
    free: Floats  # … and when they are after it
    arrived: Floats
    last: Small  # the chunk that arrived last
    bytes: Ints  # by row, since the state was entered
    messages: Small


@compiled
def enter(
    src: Ints, dst: Ints, adds: bool, q: int, node: Ints, links: Links, clocks: Clocks
) -> tuple[bool, bool, SteadyState]:
    """Whether the clocks have a steady state, whether no two rows share a link, and the state.

    There is one if no two rows share a port. Every message takes protocol ``q``.
    """
    rows, p, kinds = len(src), len(node), 1 + len(links.group)
    state = SteadyState(
        np.empty(rows, np.int32), np.empty(rows, np.int8), np.empty(kinds), np.empty(kinds), np.empty(kinds),
        np.empty(rows), np.empty(rows), np.empty(2 * rows), np.full(2 * rows, -1, np.int32),
        np.zeros(rows, np.int64), np.zeros(rows, np.int32),
    )  # fmt: skip
    for kind in range(kinds):
        beta = links.beta[q, kind]
        for level in range(kind):
            beta = max(beta, links.shared_beta[level] * links.stretch[q])
        state.fixed[kind], state.latency[kind] = links.overhead[q, min(kind, 1)], links.latency[q, kind]
        state.per_byte[kind] = beta + (links.gamma if adds else 0.0)
    sends, receives = np.full(p, -1), np.full(p, -1)
    alone, taken = True, np.zeros(len(clocks.shared), np.bool_)
    for i in range(rows):
        s, d = src[i], dst[i]
        if sends[s] >= 0 or receives[d] >= 0:
            return False, False, state
        sends[s], receives[d] = i, i
        kind = kind_of(s, d, node, links.group)
        cls = min(kind, 1)
        free = max(clocks.egress[cls * p + s, END], clocks.ingress[cls * p + d, END] - state.latency[kind])
        for level in range(links.lowest, kind):
            if links.shared_beta[level] == 0.0:
                continue
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                alone &= not taken[link]
                taken[link] = True
                free = max(free, clocks.shared[link, END])
        state.kind[i], state.before[i], state.free[i] = kind, free, free
    for i in range(rows):
        s, d = src[i], dst[i]
        state.source[i] = receives[s] if receives[s] >= 0 else rows + i
        state.arrived[i], state.arrived[rows + i] = clocks.arrived[d], clocks.arrived[s]
        state.last[i] = clocks.first[d] if clocks.end[d] == clocks.first[d] + 1 else -1
        state.last[rows + i] = clocks.first[s] if clocks.end[s] == clocks.first[s] + 1 else -1
    return True, alone, state


@compiled
def repeat_all(chunk: Ints, size: Ints, state: SteadyState, arrived: Floats, last: Small) -> int:
    """One repeated step without an empty message: reads ``state``, writes what arrives next. Returns DONE or UNSURE.

    It writes ``before`` and reads ``free``: the caller exchanges the two.
    """
    unsure = 0
    for i in range(len(chunk)):
        # Unsigned: an index that may be negative costs a test, and a third of the time.
        c, source = np.uint64(chunk[i]), np.uint64(np.uint32(state.source[i]))
        kind, free = np.uint64(np.uint8(state.kind[i])), state.free[i]
        ready = state.arrived[source]
        begin = ready if ready > free else free
        free = begin + state.fixed[kind] + state.per_byte[kind] * size[c]
        unsure += (ready > 0.0) & (np.uint64(state.last[source]) != c)
        state.before[i], arrived[i], last[i] = free, free + state.latency[kind], c
        state.bytes[i] += size[c]
    return UNSURE if unsure else DONE


@compiled
def repeat_some(chunk: Ints, size: Ints, state: SteadyState, rows: Small, arrived: Floats) -> int:
    """One repeated step with empty messages; brings all of ``state`` up to date. Returns DONE or UNSURE."""
    n = 0
    for i in range(len(chunk)):
        if size[chunk[i]] == 0:
            continue
        source, kind, m = state.source[i], state.kind[i], size[chunk[i]]
        if state.arrived[source] > 0.0 and state.last[source] != chunk[i]:
            return UNSURE
        begin = max(state.arrived[source], state.free[i])
        state.before[i] = state.free[i]
        state.free[i] = begin + state.fixed[kind] + state.per_byte[kind] * m
        state.bytes[i] += m
        state.messages[i] += 1
        rows[n], arrived[n] = i, state.free[i] + state.latency[kind]
        n += 1
    for j in range(n):
        state.arrived[rows[j]], state.last[rows[j]] = arrived[j], chunk[rows[j]]
    return DONE


@compiled
def leave(
    src: Ints, dst: Ints, size: Ints, adds: bool, q: int, alone: bool,
    state: SteadyState, p: int, links: Links, clocks: Clocks,
) -> None:  # fmt: skip
    """Bring the clocks up to date, as `simulate_step` would have left them; of shared links only the loads."""
    gamma = links.gamma if adds else 0.0
    for i in range(len(src)):
        if state.messages[i] == 0:
            continue
        s, d, kind, c = src[i], dst[i], state.kind[i], state.last[i]
        cls = min(kind, 1)
        sender, receiver = cls * p + s, cls * p + d
        latency, left, arrival = state.latency[kind], state.free[i] - gamma * size[c], state.arrived[i]
        begin = state.free[i] - state.fixed[kind] - state.per_byte[kind] * size[c]
        gap = min(begin, state.before[i])  # begin, where nothing paused
        clocks.egress[sender, GAP], clocks.egress[sender, BEGIN], clocks.egress[sender, END] = gap, begin, left
        clocks.ingress[receiver, GAP], clocks.ingress[receiver, BEGIN], clocks.ingress[receiver, END] = (
            gap + latency,
            begin + latency,
            arrival,
        )
        clocks.arrived[d], clocks.first[d], clocks.end[d] = arrival, c, c + 1
        clocks.finish[s], clocks.finish[d] = max(clocks.finish[s], left), max(clocks.finish[d], arrival)
        occupied = state.messages[i] * links.overhead[q, cls] + links.beta[q, kind] * state.bytes[i]
        clocks.busy[0, sender] += occupied
        clocks.busy[1, receiver] += occupied + gamma * state.bytes[i]
        clocks.bytes[kind] += state.bytes[i]
        clocks.messages[0] += state.messages[i]
        for level in range(links.lowest, kind):
            beta = links.shared_beta[level] * links.stretch[q]
            if beta == 0.0:
                continue
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                if alone:
                    clocks.shared[link, GAP], clocks.shared[link, BEGIN] = begin, begin
                    clocks.shared[link, END] = begin + beta * size[c]
                clocks.shared_busy[link] += beta * state.bytes[i]
