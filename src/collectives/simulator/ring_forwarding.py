"""Runs of steps that repeat, in which every rank forwards what it received in the step before: played together.

The rows of such a step form rings, so the chunks of one step tell those of all that follow. A run's steps wait until it
ends. Then they are played a tile of rows at a time or, where rows share a link, step by step; both are compiled.

A tile of rows whose clocks have all advanced by the same time is carried forward by that time instead of being played,
if all its messages have one size. Its clocks depend on nothing else: a step takes maxima and adds constants, so that
clocks that are all later by some time stay later by that time.
"""

from collections.abc import Callable

import numpy as np

from collectives.compiled import compiled
from collectives.schedule import Ints, Step
from collectives.simulator.clocks import UNSURE, Clocks, UnsureError
from collectives.simulator.links import BEGIN, END, GAP, Floats, Links, protocol_of
from collectives.simulator.steady_state import Small, SteadyState, enter, has_gap, leave, passes_on, repeat

# A tile of so many rows is played for so many steps while its clocks are in the processor's cache.
ROWS, STEPS = 1024, 64
# A tile takes whole periods of its rows' costs, if these repeat after so many rows: they do at each node, or rack.
LONGEST_PERIOD = 256
# Two advances are the same if they differ by no more, relatively; rounding alone makes them differ by 1e-12.
SAME = 1e-11


class RepeatedSteps:
    """A run of steps that repeat the one before with other chunks; ``clocks`` are up to date only after `leave`.

    It has a steady state if every row moves one chunk, all rows add or none does, all chunks take one protocol, no two
    rows share a port, and each rank that sends receives. Steps whose rows pass on what their sources have sent wait,
    and are played together. Where rows share a link, all steps must do so, and no chunk may be empty. ``play``
    simulates a step as any other.
    """

    def __init__(self, edges: Ints, node: Ints, links: Links, clocks: Clocks, play: Callable[[Step], object]) -> None:
        self.node, self.links, self.clocks, self.play_any = node, links, clocks, play
        self.size = np.diff(edges)
        self.protocol = self._only_protocol()
        self.before = self.played = Step([], [], [])  # the last step, and the last one that `state` contains …
        self.waiting = 0  # … and how many have come since then
        self.state: SteadyState | None = None
        self.in_order = False  # row i passes on what row i - 1 has sent
        self.refused = False  # the current run has no steady state

    def _only_protocol(self) -> int:
        """The protocol of every chunk, or -1 if there are several."""
        sizes = np.unique(self.size[self.size > 0])
        found = {int(protocol_of(float(size), self.links.limit)) for size in sizes}
        return found.pop() if len(found) == 1 else -1

    def simulate(self, step: Step, repeated: bool) -> bool:
        """Simulate the step if it repeats the one before; False if not, and then the clocks are up to date.

        Raises UnsureError where one clock for each rank does not tell when its data have arrived.
        """
        if not repeated:
            self.leave()
            self.refused = False
        elif self.state is None:
            self.refused = self.refused or not self._enter(step)
        elif passes_on(step.chunk, self.before.chunk, self.state.source, self.in_order):
            self.waiting += 1
        elif self.state.alone:
            self._catch_up(self.state)
            self._play(step, self.state)
        else:
            self.leave()
            self.refused = True
        self.before = step
        return self.state is not None

    def _enter(self, step: Step) -> bool:
        """Whether the clocks have a steady state; then the first repeated step is played, or waits."""
        if self.protocol < 0 or not len(step) or not (step.count == 1).all() or (step.add != step.add[0]).any():
            return False
        state = enter(step, self.protocol, self.node, self.links, self.clocks)
        if state is None:
            return False
        if state.alone:
            self._play(step, state)
        elif self._may_share(step, state):
            self.played, self.waiting = self.before, 1
        else:
            return False
        self.state, self.in_order = state, bool((state.source == np.roll(np.arange(len(step)), 1)).all())
        return True

    def _may_share(self, step: Step, state: SteadyState) -> bool:
        """Whether rows that share links can wait: no chunk is empty, and each row passes on what came last."""
        passes = self.size.all() and (state.last[state.source] == step.chunk).all()
        return bool(passes) and not has_gap(state, len(self.node), self.links, self.clocks)

    def _play(self, step: Step, state: SteadyState) -> None:
        self.played, self.waiting = step, 0
        if repeat(step.chunk, self.size, state) == UNSURE:
            raise UnsureError

    def _catch_up(self, state: SteadyState) -> None:
        """Play the steps that wait: the last by itself, because what its ports were before it is remembered, too."""
        if self.waiting:
            advance(self.waiting - 1, self.played.chunk, self.size, state)
            self._play(self.before, state)

    def leave(self) -> None:
        """Play the steps that wait, and bring the clocks up to date."""
        if self.state is None:
            return
        state, self.state = self.state, None
        if state.alone:
            self._catch_up(state)
            leave(self.size, state, len(self.node), self.links, self.clocks)
            return
        if self.waiting > 1:
            advance_shared(self.waiting - 1, self.played.chunk, self.size, state, self.links, self.clocks)
            leave(self.size, state, len(self.node), self.links, self.clocks)
        self.play_any(self.before)


@compiled
def advance(steps: int, chunk: Ints, size: Ints, state: SteadyState) -> None:
    """Play so many steps after one that sent ``chunk``, of rows that share no link.

    By tiles, which leave ``before`` as it is, or message by message where some chunks are empty.
    """
    for ring in range(len(state.rings) - 1):
        rows = state.order[state.rings[ring] : state.rings[ring + 1]]
        if not size.all():
            _advance_each(steps, chunk, size, state, rows)
            continue
        kind = state.kind[rows]
        costs = state.latency[kind], state.fixed[kind], state.per_byte[kind]
        state.free[rows] = _played(steps, state.free[rows], *costs, size[chunk[rows]])
        _settle(steps, chunk, size, state, rows)


@compiled
def _settle(steps: int, chunk: Ints, size: Ints, state: SteadyState, rows: Ints) -> None:
    """What a ring's rows have sent, and what has arrived there, when they are ``free`` after so many steps."""
    p, sent, turns = len(rows), chunk[rows], steps // len(rows)
    passed = np.zeros(2 * p + 1, np.int64)
    for i in range(2 * p):
        passed[i + 1] = passed[i] + size[sent[i % p]]
    for i in range(p):
        row, now = rows[i], i + p - steps % p
        state.arrived[row] = state.free[row] + state.latency[state.kind[row]]
        state.last[row] = sent[now % p]
        state.bytes[row] += turns * passed[p] + passed[i + p] - passed[now]
        state.messages[row] += steps


@compiled
def _advance_each(steps: int, chunk: Ints, size: Ints, state: SteadyState, rows: Ints) -> None:
    """A ring, message by message; an empty one is not sent."""
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


@compiled
def advance_shared(steps: int, chunk: Ints, size: Ints, state: SteadyState, links: Links, clocks: Clocks) -> None:
    """As `advance`, where several rows share a link, as the ranks of a node share its network port. At least one step.

    A message's time depends on the other messages of its step, so rows cannot be played apart. But a shared link never
    lets a message wait for the step before: the link is free again before any of its messages has left, and a row's
    next message waits for that. So there is no clock for it until the last step.
    """
    link, beta = _shared_by(state, links)
    latency, fixed, per_byte = state.latency[state.kind], state.fixed[state.kind], state.beta[state.kind]
    free, sent, load = state.free.copy(), size[chunk].astype(np.float64), np.zeros(len(clocks.shared) + 1)
    begin = free
    for _ in range(steps):
        sent = sent[state.source]
        load[:] = 0.0
        for i in range(len(sent)):
            for column in range(len(beta)):
                load[link[i, column]] += beta[column] * sent[i]
        load[-1] = 0.0
        begin = np.maximum((free + latency)[state.source], free)
        lasts = per_byte * sent
        for i in range(len(sent)):
            for column in range(len(beta)):
                lasts[i] = max(lasts[i], load[link[i, column]])
        free = begin + fixed + lasts + state.gamma * sent
    state.free[:], state.before[:] = free, free
    for ring in range(len(state.rings) - 1):
        _settle(steps, chunk, size, state, state.order[state.rings[ring] : state.rings[ring + 1]])
    _occupy(begin, load, link, clocks)


@compiled
def _shared_by(state: SteadyState, links: Links) -> tuple[Small, Floats]:
    """The links of each row that cost time, or -1, two columns a level; and by column the seconds for a byte."""
    columns = 2 * len(links.group)
    link, beta = np.full((len(state.src), columns), -1, np.int32), np.zeros(columns)
    for level in range(links.lowest, len(links.group)):
        beta[2 * level] = beta[2 * level + 1] = state.shared_beta[level]
        for i in range(len(state.src)):
            if level < state.kind[i] and state.shared_beta[level] > 0.0:
                link[i, 2 * level] = links.egress[level] + links.group[level, state.src[i]]
                link[i, 2 * level + 1] = links.ingress[level] + links.group[level, state.dst[i]]
    used = np.array([column for column in range(columns) if link[:, column].max() >= 0], dtype=np.int64)
    return np.ascontiguousarray(link[:, used]), beta[used]


@compiled
def _occupy(begin: Floats, load: Floats, link: Small, clocks: Clocks) -> None:
    """Each shared link is occupied from the first beginning among its messages."""
    first = np.full(len(load), np.inf)
    for i in range(len(begin)):
        for at in link[i]:
            first[at] = min(first[at], begin[i])
    for at in np.flatnonzero(load):
        clocks.shared[at, GAP], clocks.shared[at, BEGIN] = first[at], first[at]
        clocks.shared[at, END] = first[at] + load[at]
