"""Runs of steps that repeat, in which every rank forwards what it received in the step before: played together.

The rows of such a step form rings, so the chunks of one step tell those of all that follow. A run's
steps wait until it ends. All but the last are then played a tile of rows at a time or, if rows
share a link, step by step, with one clock for each row instead of ones for ports and links. The
last is played as any other step.

A tile of rows whose clocks have all advanced by the same time is carried forward by that time
instead of being played, if all its messages have one size. Its clocks depend on nothing else: a
step takes maxima and adds constants, so that clocks that are all later by some time stay later by
that time. All rows of a ring seldom advance by the same time, because chunks differ by a byte and
then move at two speeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from collectives.compiled import compiled
from collectives.core.schedule import Ints, Step
from collectives.simulator.kernel import BEGIN, END, Clocks, Floats, Links, protocol_of

# A tile of so many rows is played for so many steps while its clocks are in the processor's cache.
ROWS, STEPS = 1024, 64
# A tile takes whole periods of its rows' costs: these repeat at each node and rack of at most so
# many ranks.
LONGEST_PERIOD = 256
# Two times are the same if they differ by no more, relatively; rounding alone makes them differ by
# 1e-12.
SAME = 1e-11


class Rows(NamedTuple):
    """The rows of a step that repeats: the rings that they form, their ports and links, and their costs in seconds."""

    src: Ints
    dst: Ints
    source: Ints  # by row: the row whose message this one passes on
    order: Ints  # the rows, ring after ring, each after its source …
    rings: Ints  # … and where the rings begin and end in them
    kind: Ints  # by row, from here on
    sender: Ints  # its ports …
    receiver: Ints
    link: Ints  # … and by column a shared link that costs time, or -1
    latency: Floats
    fixed: Floats  # the time for which a message occupies its ports, whatever its size …
    beta: Floats  # … and for each byte
    link_beta: Floats  # by column: the time for which a byte occupies the shared links
    gamma: float  # the time for adding a byte
    alone: bool  # no two rows share a link


class RepeatedSteps:
    """A run of steps that repeat the one before with other chunks.

    ``clocks`` are up to date only after `finish`.

    Steps wait if every row moves one chunk, all rows add or none does, all chunks take one
    protocol, no two rows share a port, and each row passes on what its source sent. If rows share a
    link, no chunk may be empty. ``play`` simulates a step as any other.
    """

    def __init__(
        self, edges: Ints, node: Ints, links: Links, clocks: Clocks, play: Callable[[Step], object]
    ) -> None:
        self.node, self.links, self.clocks, self.play = node, links, clocks, play
        self.size = np.diff(edges)
        protocols = {
            int(protocol_of(float(size), links.limit))
            for size in np.unique(self.size[self.size > 0])
        }
        self.protocol = protocols.pop() if len(protocols) == 1 else None
        groups = [int((group == group[0]).sum()) for group in (node, *links.group[1:])]
        period = max((ranks for ranks in groups if ranks <= LONGEST_PERIOD), default=1)
        self.lead = -(-STEPS // period) * period
        # The step before those that wait, and the last of all ….
        self.first = self.last = Step([], [], [])
        self.waiting = 0  # … and how many wait
        self.rows: Rows | None = None
        self.in_order = False  # row i passes on what row i - 1 sent

    def wait(self, step: Step, repeated: bool) -> bool:
        """Keep a step for later if it repeats the one before.

        Otherwise bring the clocks up to date for it.
        """
        if (
            self.waiting
            and repeated
            and self.rows
            and passes_on(step.chunk, self.last.chunk, self.rows.source, self.in_order)
        ):
            self.waiting += 1
        else:
            self.finish()
            if not repeated:
                self.rows = None
            elif self._may_begin(step):
                self.first, self.waiting = self.last, 1
        self.last = step
        return self.waiting > 0

    def finish(self) -> None:
        """Play the steps that wait."""
        if self.waiting > 1 and self.rows:
            self._advance(self.waiting - 1, self.rows)
        if self.waiting:
            self.waiting = 0
            self.play(self.last)

    def _may_begin(self, step: Step) -> bool:
        """Check that a step's messages pass on what came last, and that none is in time for a gap."""
        if self.rows is None and self.protocol is not None:
            self.rows = rows_of(step, self.protocol, self.node, self.links)
            self.in_order = bool(
                self.rows and (self.rows.source == np.roll(np.arange(len(step)), 1)).all()
            )
        rows, clocks, sent = self.rows, self.clocks, self.size[step.chunk] > 0
        if (
            not rows
            or not (rows.alone or self.size.all())
            or (step.chunk != self.last.chunk[rows.source]).any()
        ):
            return False
        ready, free = clocks.arrived[rows.src], self._ports(END, rows)
        arrival = (np.maximum(free, self._shared(END, rows)) + rows.latency)[rows.source]
        came_last = (clocks.first[rows.src] == step.chunk) & (
            clocks.end[rows.src] == step.chunk + 1
        )
        no_gap = (ready >= self._ports(BEGIN, rows)) & (
            np.maximum(ready, free) >= self._shared(BEGIN, rows)
        )
        return bool((came_last & no_gap & (ready >= (1 - SAME) * arrival))[sent].all())

    def _ports(self, column: int, rows: Rows) -> Floats:
        """Return by row the later BEGIN or END of its two ports, as seen from the sender."""
        clocks = self.clocks
        sends, receives = clocks.egress[rows.sender, column], clocks.ingress[rows.receiver, column]
        times: Floats = np.maximum(sends, receives - rows.latency)
        return times

    def _shared(self, column: int, rows: Rows) -> Floats:
        """Return by row the latest BEGIN or END of its shared links."""
        times: Floats = np.where(rows.link < 0, 0.0, self.clocks.shared[rows.link, column]).max(
            axis=1, initial=0.0
        )
        return times

    def _advance(self, steps: int, rows: Rows) -> None:
        """Play steps that wait, and bring the clocks up to date; of gaps nothing is remembered."""
        size, clocks = self.size[self.first.chunk], self.clocks
        free = np.maximum(self._ports(END, rows), self._shared(END, rows))
        if rows.alone:
            slowest = np.where(rows.link < 0, 0.0, rows.link_beta).max(axis=1, initial=0.0)
            per_byte = np.maximum(rows.beta, slowest) + rows.gamma
            advance(steps, self.lead, free, size, rows, per_byte)
        else:
            advance_shared(steps, free, size, rows, len(clocks.shared))
        last, nbytes, messages = passed(steps, self.first.chunk, self.size, rows.order, rows.rings)
        i = np.flatnonzero(messages)
        src, dst, link, m = rows.src[i], rows.dst[i], rows.link[i], self.size[last[i]]
        load, begun = np.zeros(len(clocks.shared) + 1), np.full(len(clocks.shared) + 1, np.inf)
        np.add.at(load, link, rows.link_beta * m[:, None])
        load[-1] = 0.0
        lasts = np.maximum(rows.beta[i] * m, load[link].max(axis=1, initial=0.0))
        left, arrival = free[i] - rows.gamma * m, free[i] + rows.latency[i]
        np.minimum.at(begun, link, (left - lasts - rows.fixed[i])[:, None])
        for ports, of, end in (
            (clocks.egress, rows.sender[i], left),
            (clocks.ingress, rows.receiver[i], arrival),
            (clocks.shared, np.flatnonzero(load), (begun + load)[load > 0.0]),
        ):
            ports[of, :END], ports[of, END] = 0.0, end
        clocks.arrived[dst], clocks.first[dst], clocks.end[dst] = arrival, last[i], last[i] + 1
        for ranks, at in ((src, left), (dst, arrival)):
            clocks.finish[ranks] = np.maximum(clocks.finish[ranks], at)
        occupied = messages * rows.fixed + rows.beta * nbytes
        clocks.busy[0, rows.sender] += occupied
        clocks.busy[1, rows.receiver] += occupied + rows.gamma * nbytes
        for column in range(len(rows.link_beta)):
            used = np.flatnonzero(rows.link[:, column] >= 0)
            np.add.at(
                clocks.shared_busy, rows.link[used, column], rows.link_beta[column] * nbytes[used]
            )
        np.add.at(clocks.bytes, rows.kind, nbytes)
        clocks.messages[0] += messages.sum()


def rows_of(step: Step, q: int, node: Ints, links: Links) -> Rows | None:
    """Return the rows of a step of which every message takes protocol ``q``.

    None if a row moves several chunks, if some add and others do not, or if the rows form no rings:
    two share a port, or one passes on what no row sends.
    """
    p, n, src, dst = len(node), len(step), step.src, step.dst
    sends, receives = np.full((2, p), -1)
    sends[src], receives[dst] = np.arange(n), np.arange(n)
    source = receives[src]
    if not n or (step.count != 1).any() or (step.add != step.add[0]).any():
        return None
    if (
        (sends[src] != np.arange(n)).any()
        or (receives[dst] != np.arange(n)).any()
        or (source < 0).any()
    ):
        return None
    kind = (node[src] != node[dst]).astype(np.int64)
    for level in range(1, len(links.group)):
        kind[links.group[level, src] != links.group[level, dst]] = 1 + level
    cls, levels = (
        np.minimum(kind, 1),
        [level for level in range(links.lowest, len(links.group)) if links.shared_beta[level]],
    )
    ends = [
        (
            links.egress[level] + links.group[level, src],
            links.ingress[level] + links.group[level, dst],
        )
        for level in levels
    ]
    link = [
        np.where(kind > level, each, -1)
        for level, both in zip(levels, ends, strict=True)
        for each in both
    ]
    used = np.stack(link, axis=1) if link else np.empty((n, 0), np.int64)
    order, rings = rings_of(source)
    return Rows(
        src=src,
        dst=dst,
        source=source,
        order=order,
        rings=rings,
        kind=kind,
        sender=cls * p + src,
        receiver=cls * p + dst,
        link=used,
        latency=links.latency[q][kind],
        fixed=links.overhead[q][cls],
        beta=links.beta[q][kind],
        link_beta=np.repeat(links.shared_beta[levels] * links.stretch[q], 2),
        gamma=links.gamma if step.add[0] else 0.0,
        alone=len(np.unique(used[used >= 0])) == (used >= 0).sum(),
    )


@compiled
def rings_of(source: Ints) -> tuple[Ints, Ints]:
    """Return the rows, ring after ring, each after its source, and where the rings begin and end in them."""
    rows, n, rings = len(source), 0, 0
    order, begin, following = (
        np.empty(rows, np.int64),
        np.zeros(rows + 1, np.int64),
        np.full(rows, -1),
    )
    for i in range(rows):
        following[source[i]] = i
    for i in range(rows):
        if following[i] < 0:
            continue
        at = i
        while following[at] >= 0:
            order[n], n, next_one = at, n + 1, following[at]
            following[at], at = -1, next_one
        rings += 1
        begin[rings] = n
    return order, begin[: rings + 1]


@compiled
def passes_on(chunk: Ints, before: Ints, source: Ints, in_order: bool) -> bool:
    """Check that every row has the chunk that its source had before.

    ``in_order`` says that the source is row i - 1.

    Two pieces of one array, one place apart, are known by their addresses: a ring's steps have
    them.
    """
    if in_order and chunk.ctypes.data + chunk.itemsize == before.ctypes.data:
        return bool(chunk[0] == before[len(before) - 1])
    return bool(np.all(chunk == before[source]))


@compiled
def passed(
    steps: int, chunk: Ints, size: Ints, order: Ints, rings: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return by row the last chunk, the bytes and the number of messages in so many steps after one of ``chunk``.

    Empty chunks are not sent.
    """
    last, nbytes, messages = np.zeros_like(chunk), np.zeros_like(chunk), np.zeros_like(chunk)
    for ring in range(len(rings) - 1):
        rows = order[rings[ring] : rings[ring + 1]]
        p, sent, turns = len(rows), chunk[rows], steps // len(rows)
        total, count, ahead = (
            np.zeros(2 * p + 1, np.int64),
            np.zeros(2 * p + 1, np.int64),
            np.zeros(2 * p + 1, np.int64),
        )
        for i in range(2 * p):
            m, j = size[sent[i % p]], 2 * p - 1 - i
            total[i + 1], count[i + 1] = total[i] + m, count[i] + (m > 0)
            # To the next chunk that is not empty.
            ahead[j] = 0 if size[sent[j % p]] else ahead[j + 1] + 1
        for i in range(p):
            now = i + p - steps % p
            last[rows[i]] = sent[(now + ahead[now % p]) % p]
            nbytes[rows[i]] = turns * total[p] + total[i + p] - total[now]
            messages[rows[i]] = turns * count[p] + count[i + p] - count[now]
    return last, nbytes, messages


@compiled
def advance(steps: int, lead: int, free: Floats, size: Ints, rows: Rows, per_byte: Floats) -> None:
    """Advance the time at which each row is free by so many steps after one of ``size``, if rows share no link."""
    for ring in range(len(rows.rings) - 1):
        at = rows.order[rows.rings[ring] : rows.rings[ring + 1]]
        costs = rows.latency[at], rows.fixed[at], per_byte[at]
        free[at] = advance_ring(steps, lead, free[at], *costs, size[at])


@compiled
def advance_ring(
    steps: int,
    lead: int,
    free: Floats,
    latency: Floats,
    fixed: Floats,
    per_byte: Floats,
    sizes: Ints,
) -> Floats:
    """Return when each row of a ring is free after so many steps.

    ``sizes`` are those of the step before them.

    A tile is played for ``lead`` steps, and led by as many rows: a row's clock tells on one row
    further in each step.
    """
    p = len(free)
    lead = min(lead, p)
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
            # In these steps and those before.
            is_one_size = changes[last + n + 2 * lead - 3] == changes[last]
            if (
                done
                and done + lead <= steps
                and is_one_size
                and is_even(earlier[lo:hi], before[lo:hi])
            ):
                after[lo : hi - lead] = 2 * before[lo + lead : hi] - earlier[lo + lead : hi]
                continue
            one[:n] = before[lo:hi]
            for step in range(done + 1, min(done + lead, steps) + 1):
                first = (lo + 1 - lead - step) % p
                here = slice(lo + 1, hi)
                _step(
                    one[:n],
                    other[:n],
                    latency[lo:hi],
                    fixed[here],
                    per_byte[here],
                    size[first : first + n - 1],
                )
                one, other = other, one
            after[lo : hi - lead] = one[lead:n]
        free[:] = after
    return free


@compiled
def is_even(earlier: Floats, now: Floats) -> bool:
    """Check that all of these clocks have advanced by the same time."""
    least, most = np.inf, 0.0
    for i in range(len(now)):
        gained = now[i] - earlier[i]
        least, most = min(least, gained), max(most, gained)
    return bool(most - least <= SAME * most)


@compiled
def _led(ring: Floats, lead: int) -> Floats:
    return np.concatenate((ring[len(ring) - lead :], ring))


@compiled
def _step(
    free: Floats, after: Floats, latency: Floats, fixed: Floats, per_byte: Floats, size: Floats
) -> None:
    """Play one step of a tile.

    Its first row, which has no source there, and those without bytes stay as they are.
    """
    after[0] = free[0]
    for i in range(len(size)):
        ready, own = free[i] + latency[i], free[i + 1]
        later = (ready if ready > own else own) + fixed[i] + per_byte[i] * size[i]
        after[i + 1] = later if size[i] > 0.0 else own


@compiled
def advance_shared(steps: int, free: Floats, size: Ints, rows: Rows, shared: int) -> None:
    """Advance the time at which each row is free as `advance` does, if several rows share a link.

    A message's time depends on the other messages of its step, so rows cannot be played apart. But
    a shared link never lets a message wait for the step before: the link is free again before any
    of its messages has left, and a row's next message waits for that. So there is no clock for it.
    """
    link, beta, sent, load = (
        rows.link,
        rows.link_beta,
        size.astype(np.float64),
        np.zeros(shared + 1),
    )
    for _ in range(steps):
        sent = sent[rows.source]
        load[:] = 0.0
        for i in range(len(sent)):
            for column in range(len(beta)):
                load[link[i, column]] += beta[column] * sent[i]
        load[-1] = 0.0
        begin = np.maximum((free + rows.latency)[rows.source], free)
        lasts = rows.beta * sent
        for i in range(len(sent)):
            for column in range(len(beta)):
                lasts[i] = max(lasts[i], load[link[i, column]])
        free[:] = begin + rows.fixed + lasts + rows.gamma * sent
