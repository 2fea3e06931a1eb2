"""Repeated steps in which every rank passes on what it received in the step before, compiled: many of them at once.

The rows of such a step form rings: each row takes the chunk that its source, the row before it in the ring, sent in the
step before. So the chunks of one step tell those of all that follow. The arithmetic is that of `steady_state`.

A tile of rows whose clocks have all advanced by the same time is carried forward by that time instead of being played,
if all its messages have one size. Its clocks depend on nothing else: a step takes maxima and adds constants, so that
clocks that are all later by some time stay later by that time.
"""

import numpy as np

from collectives.compiled import compiled
from collectives.schedule import Ints
from collectives.simulator.links import Floats
from collectives.simulator.steady_state import Small, SteadyState

# A tile of so many rows is played for so many steps while its clocks are in the processor's cache.
ROWS, STEPS = 1024, 64
# A tile takes whole periods of its rows' costs, if these repeat after so many rows: they do at each node, or rack.
LONGEST_PERIOD = 256
# Two advances are the same if they differ by no more, relatively; rounding alone makes them differ by 1e-12.
SAME = 1e-11


@compiled
def rings(source: Small) -> tuple[Ints, Ints]:
    """The rows, ring after ring, each behind its source, and where the rings begin and end in them.

    There are none if a row passes on what no row sends.
    """
    rows, n, rings = len(source), 0, 0
    order, begin, behind = np.empty(rows, np.int64), np.zeros(rows + 1, np.int64), np.full(rows, -1)
    for i in range(rows):
        if source[i] >= rows:
            return order[:0], begin[:1]
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
def passes_on(chunk: Ints, before: Ints, source: Small, in_order: bool) -> bool:
    """Whether every row has the chunk that its source had before; ``in_order`` says that the source is row i - 1.

    Two pieces of one array, one place apart, are known by their addresses: a ring's steps have them.
    """
    if in_order and chunk.ctypes.data + chunk.itemsize == before.ctypes.data:
        return bool(chunk[0] == before[len(before) - 1])
    return bool(np.all(chunk == before[source]))


@compiled
def advance(steps: int, chunk: Ints, size: Ints, state: SteadyState, order: Ints, begin: Ints) -> None:
    """Play so many steps after one that sent ``chunk``. No chunk is empty.

    Leaves ``before`` as it is, and does not count messages.
    """
    for ring in range(len(begin) - 1):
        rows = order[begin[ring] : begin[ring + 1]]
        kind = state.kind[rows]
        row = state.latency[kind], state.fixed[kind], state.per_byte[kind]
        state.free[rows] = _played(steps, state.free[rows], *row, size[chunk[rows]])
        settle(steps, chunk, size, state, rows)


@compiled
def settle(steps: int, chunk: Ints, size: Ints, state: SteadyState, rows: Ints) -> None:
    """What has arrived at a ring's rows after so many steps, at the times when they are ``free``; and their bytes."""
    p, sent, turns = len(rows), chunk[rows], steps // len(rows)
    passed = np.zeros(2 * p + 1, np.int64)
    for i in range(2 * p):
        passed[i + 1] = passed[i] + size[sent[i % p]]
    for i in range(p):
        row, now = rows[i], i + p - steps % p
        state.arrived[row] = state.free[row] + state.latency[state.kind[row]]
        state.last[row] = sent[now % p]
        state.bytes[row] += turns * passed[p] + passed[i + p] - passed[now]


@compiled
def advance_some(steps: int, chunk: Ints, size: Ints, state: SteadyState, order: Ints, begin: Ints) -> None:
    """As `advance`, message by message, where some chunks are empty; this also counts the messages."""
    for ring in range(len(begin) - 1):
        rows = order[begin[ring] : begin[ring + 1]]
        at = np.flatnonzero(size[chunk[rows]])
        sent, ready = chunk[rows[at]], state.arrived[rows[at]]
        for _ in range(steps):
            for j in range(len(at)):
                at[j] = at[j] + 1 if at[j] + 1 < len(rows) else 0
                i, m = rows[at[j]], size[sent[j]]
                kind = state.kind[i]
                state.before[i] = state.free[i]
                state.free[i] = max(ready[j], state.free[i]) + state.fixed[kind] + state.per_byte[kind] * m
                state.bytes[i] += m
                state.messages[i] += 1
                ready[j] = state.free[i] + state.latency[kind]
                state.arrived[i], state.last[i] = ready[j], sent[j]


@compiled
def _played(steps: int, free: Floats, latency: Floats, fixed: Floats, per_byte: Floats, sizes: Ints) -> Floats:
    """When each row of a ring is free after so many steps; ``sizes`` are those of the step before them.

    A tile is led by as many rows as it plays steps: a row's clock tells on one row further in each step.
    """
    p = len(free)
    lead = min(_whole_periods(latency, fixed, per_byte), p)
    latency, fixed, per_byte = _led(latency, lead), _led(fixed, lead), _led(per_byte, lead)
    size = np.concatenate((sizes, sizes, sizes, sizes, sizes)).astype(np.float64)
    changes = np.concatenate((np.zeros(1), np.cumsum(size[1:] != size[:-1])))
    one, other, after = np.empty(ROWS + lead), np.empty(ROWS + lead), np.empty(p)
    before = _led(free, lead)
    for done in range(0, steps, lead):
        earlier, before = before, _led(free, lead)
        for lo in range(0, p, ROWS):
            hi = min(lo + ROWS, p) + lead
            n, last = hi - lo, (lo + 1 - 2 * lead - done) % p  # the chunk that this tile sees last
            is_one_size = changes[last + n + 2 * lead - 3] == changes[last]  # in these steps and those before
            if done and done + lead <= steps and is_one_size and _is_even(earlier[lo:hi], before[lo:hi]):
                after[lo : hi - lead] = 2 * before[lo + lead : hi] - earlier[lo + lead : hi]
                continue
            one[:n] = before[lo:hi]
            for step in range(done + 1, min(done + lead, steps) + 1):
                first = (lo + 1 - lead - step) % p
                here = slice(lo + 1, hi)
                _step(one[:n], other[:n], latency[lo:hi], fixed[here], per_byte[here], size[first : first + n - 1])
                one, other = other, one
            after[lo : hi - lead] = one[lead:n]
        free[:] = after
    return free


@compiled
def _whole_periods(latency: Floats, fixed: Floats, per_byte: Floats) -> int:
    """Steps that a tile is played for: at least STEPS, and a multiple of the rows after which the costs repeat."""
    rows = min(len(latency), 4 * LONGEST_PERIOD)
    for period in range(1, min(LONGEST_PERIOD, rows // 2) + 1):
        now, then = slice(period, rows), slice(0, rows - period)
        if (
            np.array_equal(latency[now], latency[then])
            and np.array_equal(fixed[now], fixed[then])
            and np.array_equal(per_byte[now], per_byte[then])
        ):
            return -(-STEPS // period) * period
    return STEPS


@compiled
def _is_even(earlier: Floats, now: Floats) -> bool:
    """Whether all of these clocks have advanced by the same time."""
    least, most = np.inf, 0.0
    for i in range(len(now)):
        gained = now[i] - earlier[i]
        least, most = min(least, gained), max(most, gained)
    return bool(most - least <= SAME * most)


@compiled
def _led(ring: Floats, lead: int) -> Floats:
    return np.concatenate((ring[len(ring) - lead :], ring))


@compiled
def _step(free: Floats, after: Floats, latency: Floats, fixed: Floats, per_byte: Floats, size: Floats) -> None:
    """One step of a tile; its first row, which has no source there, stays as it is."""
    after[0] = free[0]
    for i in range(len(size)):
        ready, own = free[i] + latency[i], free[i + 1]
        after[i + 1] = (ready if ready > own else own) + fixed[i] + per_byte[i] * size[i]
