"""The state of a step that repeats, as a ring's do, compiled: a clock for each row instead of ones for ports and links.

`ring_forwarding` plays such steps; here is what they share, how the clocks become such a state, and how it becomes
clocks again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.compiled import compiled
from collectives.schedule import Ints, Step
from collectives.simulator.clocks import DONE, UNSURE, Clocks
from collectives.simulator.links import BEGIN, END, GAP, Floats, Links, kind_of

Small = NDArray[np.int32]
Tiny = NDArray[np.int8]


class SteadyState(NamedTuple):
    """A step that repeats, row by row, with other chunks: each rank passes on what it received in the step before.

    So its rows form rings: each takes the chunk that its source, the row before it in the ring, sent in that step.
    """

    src: Ints
    dst: Ints
    source: Small  # by row: the row whose message this one passes on
    order: Ints  # the rows, ring after ring, each behind its source …
    rings: Ints  # … and where the rings begin and end in them
    kind: Tiny
    fixed: Floats  # by kind: seconds for which a message occupies its ports, whatever its size …
    beta: Floats  # … for each byte at its ports' rate …
    per_byte: Floats  # … and for each byte at that of its slowest link, with the adding
    latency: Floats
    shared_beta: Floats  # by level: seconds for which a byte occupies a shared link
    gamma: float  # seconds for adding a byte
    alone: bool  # no two rows share a link
    before: Floats  # by row: when its ports and links were free before its last message …
    free: Floats  # … and when they are after it
    arrived: Floats
    last: Small  # the chunk that arrived last
    bytes: Ints  # by row, since the state was entered
    messages: Small


def enter(step: Step, q: int, node: Ints, links: Links, clocks: Clocks) -> SteadyState | None:
    """The state that repeats this step's rows, of which every message takes protocol ``q``; None if there is none.

    There is one if no two rows share a port, and each passes on what another row sends.
    """
    source = _sources(step.src, step.dst, len(node))
    order, rings = _rings(source)
    if not len(order):
        return None
    gamma, shared_beta = links.gamma if step.add[0] else 0.0, links.shared_beta * links.stretch[q]
    kind, free, alone = _free(step.src, step.dst, q, node, links, clocks)
    dst = step.dst
    return SteadyState(
        src=step.src,
        dst=dst,
        source=source,
        order=order,
        rings=rings,
        kind=kind,
        fixed=links.overhead[q][np.minimum(np.arange(len(links.beta[q])), 1)],
        beta=links.beta[q],
        per_byte=np.maximum(links.beta[q], np.maximum.accumulate(np.append(0.0, shared_beta))) + gamma,
        latency=links.latency[q],
        shared_beta=shared_beta,
        gamma=gamma,
        alone=alone,
        before=free.copy(),
        free=free,
        arrived=clocks.arrived[dst],
        last=np.where(clocks.end[dst] == clocks.first[dst] + 1, clocks.first[dst], -1).astype(np.int32),
        bytes=np.zeros(len(step), np.int64),
        messages=np.zeros(len(step), np.int32),
    )


@compiled
def _sources(src: Ints, dst: Ints, p: int) -> Small:
    """The row whose message each row passes on; empty if two rows share a port, or one passes on what no row sends."""
    sends, receives = np.full(p, -1, np.int32), np.full(p, -1, np.int32)
    for i in range(len(src)):
        if sends[src[i]] >= 0 or receives[dst[i]] >= 0:
            return sends[:0]
        sends[src[i]], receives[dst[i]] = i, i
    source = receives[src]
    return source if (source >= 0).all() else source[:0]


@compiled
def _rings(source: Small) -> tuple[Ints, Ints]:
    """The rows, ring after ring, each behind its source, and where the rings begin and end in them."""
    rows, n, rings = len(source), 0, 0
    order, begin, behind = np.empty(rows, np.int64), np.zeros(rows + 1, np.int64), np.full(rows, -1)
    for i in range(rows):
        behind[source[i]] = i
    for i in range(rows):
        if behind[i] < 0:
            continue
        at = i
        while behind[at] >= 0:
            order[n], n, next_one = at, n + 1, behind[at]
            behind[at], at = -1, next_one
        rings += 1
        begin[rings] = n
    return order, begin[: rings + 1]


@compiled
def _free(src: Ints, dst: Ints, q: int, node: Ints, links: Links, clocks: Clocks) -> tuple[Tiny, Floats, bool]:
    """Each row's kind, and when its ports and links are free; and whether no two rows share a link."""
    rows, p = len(src), len(node)
    kinds, free = np.empty(rows, np.int8), np.empty(rows)
    alone, taken = True, np.zeros(len(clocks.shared), np.bool_)
    for i in range(rows):
        s, d = src[i], dst[i]
        kind = kind_of(s, d, node, links.group)
        cls = min(kind, 1)
        at = max(clocks.egress[cls * p + s, END], clocks.ingress[cls * p + d, END] - links.latency[q, kind])
        for level in range(links.lowest, kind):
            if links.shared_beta[level] == 0.0:
                continue
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                alone &= not taken[link]
                taken[link] = True
                at = max(at, clocks.shared[link, END])
        kinds[i], free[i] = kind, at
    return kinds, free, alone


@compiled
def has_gap(state: SteadyState, p: int, links: Links, clocks: Clocks) -> bool:
    """Whether a message of the next step would be ready in time for a gap, which the state does not know."""
    for i in range(len(state.src)):
        s, d, kind = state.src[i], state.dst[i], state.kind[i]
        cls = min(kind, 1)
        first = max(clocks.egress[cls * p + s, BEGIN], clocks.ingress[cls * p + d, BEGIN] - state.latency[kind])
        for level in range(links.lowest, kind):
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                first = max(first, clocks.shared[link, BEGIN])
        if clocks.arrived[s] < first:
            return True
    return False


@compiled
def passes_on(chunk: Ints, before: Ints, source: Small, in_order: bool) -> bool:
    """Whether every row has the chunk that its source had before; ``in_order`` says that the source is row i - 1.

    Two pieces of one array, one place apart, are known by their addresses: a ring's steps have them.
    """
    if in_order and chunk.ctypes.data + chunk.itemsize == before.ctypes.data:
        return bool(chunk[0] == before[len(before) - 1])
    return bool(np.all(chunk == before[source]))


@compiled
def repeat(chunk: Ints, size: Ints, state: SteadyState) -> int:
    """One repeated step, of which an empty message is not sent. Returns DONE or UNSURE."""
    n, rows, arrived = 0, np.empty(len(chunk), np.int64), np.empty(len(chunk))
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
    for j in range(n):  # all reads of a step come before its writes
        state.arrived[rows[j]], state.last[rows[j]] = arrived[j], chunk[rows[j]]
    return DONE


@compiled
def leave(size: Ints, state: SteadyState, p: int, links: Links, clocks: Clocks) -> None:
    """Bring the clocks up to date, as `simulate_step` would have left them; of links that rows share only the loads."""
    for i in range(len(state.src)):
        if state.messages[i] == 0:
            continue
        s, d, kind, c = state.src[i], state.dst[i], state.kind[i], state.last[i]
        cls = min(kind, 1)
        sender, receiver = cls * p + s, cls * p + d
        latency, left, arrival = state.latency[kind], state.free[i] - state.gamma * size[c], state.arrived[i]
        begin = state.free[i] - state.fixed[kind] - state.per_byte[kind] * size[c]
        gap = min(begin, state.before[i])  # begin, where nothing paused
        clocks.egress[sender, GAP], clocks.egress[sender, BEGIN], clocks.egress[sender, END] = gap, begin, left
        clocks.ingress[receiver, GAP], clocks.ingress[receiver, BEGIN] = gap + latency, begin + latency
        clocks.ingress[receiver, END] = arrival
        clocks.arrived[d], clocks.first[d], clocks.end[d] = arrival, c, c + 1
        clocks.finish[s], clocks.finish[d] = max(clocks.finish[s], left), max(clocks.finish[d], arrival)
        occupied = state.messages[i] * state.fixed[kind] + state.beta[kind] * state.bytes[i]
        clocks.busy[0, sender] += occupied
        clocks.busy[1, receiver] += occupied + state.gamma * state.bytes[i]
        clocks.bytes[kind] += state.bytes[i]
        clocks.messages[0] += state.messages[i]
        for level in range(links.lowest, kind):
            beta = state.shared_beta[level]
            if beta == 0.0:
                continue
            for link in (links.egress[level] + links.group[level, s], links.ingress[level] + links.group[level, d]):
                if state.alone:
                    clocks.shared[link, GAP], clocks.shared[link, BEGIN] = begin, begin
                    clocks.shared[link, END] = begin + beta * size[c]
                clocks.shared_busy[link] += beta * state.bytes[i]
