"""As `passing_on`, where several rows share a link, as the ranks of a node share its network port; compiled.

A message's time depends on the other messages of its step, so rows cannot be played apart. But a shared link never lets
a message wait for the step before: the link is free again before any of its messages has left, and a row's next message
waits for that. So there is no clock for it until the last step.
"""

import numpy as np

from collectives.compiled import compiled
from collectives.schedule import Ints
from collectives.simulator.clocks import Clocks
from collectives.simulator.links import Floats, Links
from collectives.simulator.ports import BEGIN, END, GAP
from collectives.simulator.steady_state import Small, SteadyState


@compiled
def fits(src: Ints, dst: Ints, p: int, links: Links, clocks: Clocks, state: SteadyState) -> bool:
    """Whether no message of the next step would be ready in time for a gap, which the state does not know."""
    for i in range(len(src)):
        kind, ready = state.kind[i], clocks.arrived[src[i]]
        cls = min(kind, 1)
        first = max(
            clocks.egress[cls * p + src[i], BEGIN], clocks.ingress[cls * p + dst[i], BEGIN] - state.latency[kind]
        )
        for level in range(links.lowest, kind):
            for link in (
                links.egress[level] + links.group[level, src[i]],
                links.ingress[level] + links.group[level, dst[i]],
            ):
                first = max(first, clocks.shared[link, BEGIN])
        if ready < first:
            return False
    return True


@compiled
def shared_by(src: Ints, dst: Ints, q: int, links: Links, state: SteadyState) -> tuple[Small, Floats]:
    """The links of each row that cost time, or -1, two columns a level; and by column the seconds for a byte."""
    columns = 2 * len(links.group)
    link, beta = np.full((len(src), columns), -1, np.int32), np.zeros(columns)
    for level in range(links.lowest, len(links.group)):
        beta[2 * level] = beta[2 * level + 1] = links.shared_beta[level] * links.stretch[q]
        for i in range(len(src)):
            if level < state.kind[i] and links.shared_beta[level] > 0.0:
                link[i, 2 * level] = links.egress[level] + links.group[level, src[i]]
                link[i, 2 * level + 1] = links.ingress[level] + links.group[level, dst[i]]
    used = np.array([column for column in range(columns) if link[:, column].max() >= 0], dtype=np.int64)
    return np.ascontiguousarray(link[:, used]), beta[used]


@compiled
def advance(
    steps: int, chunk: Ints, size: Ints, adds: bool, q: int, link: Small, beta: Floats,
    state: SteadyState, links: Links, clocks: Clocks,
) -> None:  # fmt: skip
    """Play so many steps, at least one, after one that sent ``chunk``: when ports and shared links are free."""
    rows, gamma = len(chunk), links.gamma if adds else 0.0
    free, after, begin = state.free.copy(), np.empty(rows), np.empty(rows)
    sent, load = size[chunk].astype(np.float64), np.zeros(len(clocks.shared))
    moved = np.empty(rows)
    for _ in range(steps):
        load[:] = 0.0
        for i in range(rows):
            moved[i] = sent[state.source[i]]
            for column in range(len(beta)):
                if link[i, column] >= 0:
                    load[link[i, column]] += beta[column] * moved[i]
        for i in range(rows):
            source, kind = state.source[i], state.kind[i]
            lasts = links.beta[q, kind] * moved[i]
            for column in range(len(beta)):
                if link[i, column] >= 0:
                    lasts = max(lasts, load[link[i, column]])
            begin[i] = max(free[source] + state.latency[state.kind[source]], free[i])
            after[i] = begin[i] + state.fixed[kind] + lasts + gamma * moved[i]
        free, after, sent, moved = after, free, moved, sent
    state.free[:], state.before[:] = free, free
    _occupy(begin, load, link, clocks)


@compiled
def _occupy(begin: Floats, load: Floats, link: Small, clocks: Clocks) -> None:
    """Each shared link is occupied from the first beginning among its messages."""
    first = np.full(len(load), np.inf)
    for i in range(len(begin)):
        for at in link[i]:
            if at >= 0:
                first[at] = min(first[at], begin[i])
    for at in np.flatnonzero(load):
        clocks.shared[at, GAP], clocks.shared[at, BEGIN], clocks.shared[at, END] = (
            first[at],
            first[at],
            first[at] + load[at],
        )
