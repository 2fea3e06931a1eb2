"""The fastest plan by levels on a machine: closed forms prune, the simulator decides among those that are left.

A level costs latencies, and seconds for which it keeps a port busy. Partial plans that cover the
nearest ranks are extended level by level, and of those that cover equally many ranks only the
`KEPT` cheapest are extended further. So the search grows with the number of divisors of p, and not
with the number of plans. On nodes with switches and ports of their own the forms are exact to a few
percent; what they leave out, such as messages of several levels that meet at one port, the
simulator adds.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from collectives.algorithms import build
from collectives.algorithms.levels import (
    BROADCAST,
    KINDS,
    SCATTERED,
    Plan,
    PlanLevel,
)
from collectives.core.bounds import bruck_all_to_all, core, height, weights
from collectives.machine import Machine, Protocol
from collectives.simulator.kernel import links_of
from collectives.simulator.simulation import Simulation, simulate

# Partial plans that are extended, of those that cover equally many ranks, and plans for all ranks.
KEPT, KEPT_WHOLE = 10, 40
# Plans that are simulated at most, and the rows of their schedules together: about half a second.
SIMULATED, ROWS = 24, 400_000
# Plans are simulated only if their closed form is at most so much longer than the shortest.
MARGIN = 1.25
# By so much a plan ranks behind one of a level less, because forms of many levels leave out more.
PER_LEVEL = 0.02
# Segments for which plans are searched, and those that are tried of the plans that are found.
SEARCHED_SEGMENTS, SEGMENTS = (1, 4), (1, 2, 4, 8, 16)
# Forms of Bruck's all-to-all leave out that messages of a later digit may overtake: the simulator decides.
MOST_FOR_ALL_RADICES = 32
# A segment of fewer bytes a rank only adds overheads.
MIN_SEGMENT_BYTES = 512


class LevelLinks(NamedTuple):
    """The links between the ranks of a level: their class, and the seconds of a message and of a byte on a port."""

    inside: bool
    latency: float
    overhead: float
    beta: float


class Spent(NamedTuple):
    """Count what levels spend on one segment: latencies and busy seconds of a port, inside nodes and in the network."""

    inside_latency: float = 0.0
    network_latency: float = 0.0
    inside: float = 0.0
    network: float = 0.0
    # Parts that come round a ring one after the other, while the levels inside pass on others.
    parts: int = 1
    network_levels: int = 0

    def seconds(self, segments: int, both_ways: bool) -> float:
        """Return the seconds for all segments, each of which follows the one before as soon as a port is free.

        ``both_ways``: levels inside work before those of the network, and again after them, as in
        an all-reduce. Then other segments fill most of the time in which one is in the network. The
        shares of it that remain were fitted to simulations.
        """
        latency = self.inside_latency + self.network_latency
        by_network = latency + segments * self.network + self.inside / self.parts
        if segments > 2 and self.network_levels > 1:
            by_network += self.network / 2  # segments of several levels wait for each other's ports
        if self.parts > 1:
            away = self.network / (3 * self.parts)
        elif both_ways and segments > 1:
            filled = (segments - 1) * self.inside / 2
            least = self.network / 2 if segments > 2 else 0.0
            away = max(least, self.network + self.network_latency - filled)
        else:
            away = self.network
        by_inside = self.inside_latency + segments * self.inside + away
        return max(by_network, by_inside)


class Partial(NamedTuple):
    """The nearest levels of a plan, how many consecutive ranks they cover, and what they spend on a segment."""

    levels: tuple[PlanLevel, ...]
    block: int
    scattered: bool  # all of them, so that the next level may be scattered, too
    left: float  # bytes of the segment that the levels beyond work on
    spent: Spent


class Found(NamedTuple):
    """A plan, and the simulation of it."""

    plan: Plan
    simulation: Simulation


def fastest_plan(collective: str, p: int, nbytes: int, on: Machine) -> Found | None:
    """Return the plan with the shortest simulated time of those that the closed forms leave, None if there is none.

    ``nbytes`` is the buffer, as for `simulate`. Of equal times the plan with the fewest levels
    counts, then the one with the fewest radices. Raises ValueError as `simulate` does. Cost: at
    most `SIMULATED` simulations of `ROWS` rows together, or one of any length.

    >>> from collectives.machine import machine
    >>> found = fastest_plan("all_reduce", 96, 1 << 20, machine("dgx-h100"))
    >>> str(found.plan), round(found.simulation.seconds * 1e6, 1)
    ('direct8/ring2/ring2/one_shot3', 40.0)
    """
    best: tuple[float, int, int, str] | None = None
    chosen = None
    rows = 0
    for place, (_, plan) in enumerate(promising(collective, p, nbytes, on)):
        rows += rows_of(collective, plan)
        if place >= SIMULATED or (place > 0 and rows > ROWS):
            break
        simulation = simulate(build(collective, str(plan), p), on, nbytes)
        radices = sum(level.radix > 2 for level in plan.levels)
        rank = (float(f"{simulation.seconds:.6g}"), len(plan.levels), radices, str(plan))
        if best is None or rank < best:
            best, chosen = rank, Found(plan, simulation)
    return chosen


def promising(collective: str, p: int, nbytes: int, on: Machine) -> list[tuple[float, Plan]]:
    """Return plans whose closed forms are within `MARGIN` of the shortest, as (seconds, plan).

    The shortest comes first. There are none for a collective or machine without plans: one whose
    links are known one by one, and ranks that neither fill nodes nor are a part of one.
    """
    fills = p <= on.ranks_per_node or p % on.ranks_per_node == 0
    if collective not in KINDS or on.links or not fills or p < 2:
        return []
    found: dict[Plan, float] = {}
    for protocols in on.choices(None, nbytes):
        costs = LevelCosts(collective, p, on, protocols)
        for searched in SEARCHED_SEGMENTS:
            for levels in costs.cheapest(nbytes, searched):
                for segments in _cuts(p, nbytes):
                    spent = costs.spent(levels, nbytes / segments)
                    seconds = costs.startup + spent.seconds(segments, costs.both_ways)
                    plan = Plan(levels, segments)
                    if plan not in found or seconds < found[plan]:
                        found[plan] = seconds
    ordered = sorted(
        ((seconds, plan) for plan, seconds in found.items()),
        key=lambda each: (each[0] * (1 + PER_LEVEL * len(each[1].levels)), each[1]),
    )
    return [each for each in ordered if each[0] <= MARGIN * ordered[0][0]]


def rows_of(collective: str, plan: Plan) -> int:
    """Return about how many rows the steps of a plan's schedule have: what a simulation takes time for.

    >>> plan = Plan((PlanLevel("direct", 8), PlanLevel("ring", 4)))
    >>> rows_of("all_reduce", plan), sum(len(step) for step in build("all_reduce", str(plan), 32).steps())
    (1984, 1984)
    """
    p, block, rows = plan.p, 1, 0
    if collective in ("all_gather", "reduce_scatter"):
        return p * p * plan.segments
    if collective == "all_to_all":
        stops = sum(shape_of(level, collective).sent for level in plan.levels)
        return round(p * p * stops * plan.segments)
    for index, level in enumerate(plan.levels):
        block *= level.size
        messages = shape_of(level, collective).messages
        is_scattered = level.algorithm in SCATTERED
        beyond = [other.algorithm for other in plan.levels[index + 1 :]]
        # Parts that come round a ring farther out are passed on one by one.
        parts = p // block if is_scattered and "ring" in beyond else 1
        rows += (2 if is_scattered else 1) * messages * parts
    return p * rows * plan.segments


def _cuts(p: int, nbytes: int) -> list[int]:
    return [s for s in SEGMENTS if s == 1 or nbytes >= s * p * MIN_SEGMENT_BYTES]


class LevelCosts:
    """Compute what levels of a collective cost on a machine by one set of its protocols."""

    def __init__(
        self, collective: str, p: int, on: Machine, protocols: tuple[Protocol, ...]
    ) -> None:
        self.collective, self.p, self.on = collective, p, on
        self.both_ways = collective == "all_reduce"
        self.startup = protocols[-1].startup
        self.blocks = _blocks(p, on.ranks_per_node)
        self._links = links_of(on, np.arange(p) // on.ranks_per_node, protocols)
        self._known: dict[tuple[int, int], LevelLinks] = {}

    def cheapest(self, nbytes: float, segments: int) -> list[tuple[PlanLevel, ...]]:
        """Return the levels of the cheapest plans for all ranks."""
        by_block: dict[int, list[Partial]] = {block: [] for block in self.blocks}
        by_block[1] = [Partial((), 1, True, nbytes / segments, Spent())]
        for block in self.blocks:
            is_whole = block == self.p
            kept = self._cheapest(by_block[block], segments, KEPT_WHOLE if is_whole else KEPT)
            if is_whole:
                return [partial.levels for partial in kept]
            for following in self.blocks:
                if following > block and following % block == 0:
                    for partial in kept:
                        for level in self._next_levels(partial, following):
                            by_block[following].append(self._extended(partial, level))
        raise AssertionError("p is one of its divisors")

    def _cheapest(self, partials: list[Partial], segments: int, most: int) -> list[Partial]:
        """Return the cheapest of those whose levels are all scattered, and of the others."""
        kept: list[Partial] = []
        for scattered in (True, False):
            alike = [partial for partial in partials if partial.scattered is scattered]
            alike.sort(key=lambda partial: self._rank(partial, segments))
            kept += alike[:most]
        return kept

    def _rank(self, partial: Partial, segments: int) -> tuple[float, int]:
        seconds = partial.spent.seconds(segments, self.both_ways)
        return seconds * (1 + PER_LEVEL * len(partial.levels)), len(partial.levels)

    def spent(self, levels: tuple[PlanLevel, ...], nbytes: float) -> Spent:
        """Return what these levels spend on a segment of so many bytes."""
        partial = Partial((), 1, True, nbytes, Spent())
        for level in levels:
            partial = self._extended(partial, level)
        return partial.spent

    def _next_levels(self, partial: Partial, block: int) -> Iterator[PlanLevel]:
        """Yield the levels that may follow, so that the ranks of this block are covered."""
        size = block // partial.block
        names: list[str] = []
        if self.collective == "all_to_all":
            # All messages at once take no longer than pairwise ones, one by one.
            yield PlanLevel("direct", size)
            for radix in radices_of(size):
                yield PlanLevel("bruck", size, radix)
        elif self.collective in ("broadcast", "reduce"):
            names = list(BROADCAST)
        elif partial.scattered:
            # Of two or three ranks the others are the same messages, or more of them.
            names = ["direct", "ring", "bruck"] if size > 3 else ["direct", "ring"]
        if self.collective == "all_reduce":
            names.append("one_shot")
            if block == self.p and size > 3:
                names += ["recursive_doubling", "two_tree"]
        for name in names:
            yield PlanLevel(name, size)

    def _extended(self, partial: Partial, level: PlanLevel) -> Partial:
        block = partial.block * level.size
        left = partial.left
        shape = shape_of(level, self.collective)
        links = self._level_links(block, left * shape.largest)
        is_scattered = level.algorithm in SCATTERED and self.collective in (
            "all_reduce", "all_gather", "reduce_scatter"
        )  # fmt: skip
        halves = 2 if is_scattered and self.collective == "all_reduce" else 1
        latency = halves * shape.latencies * links.latency
        busy = halves * (shape.messages * links.overhead + shape.sent * left * links.beta)
        if self.collective in ("all_reduce", "reduce_scatter", "reduce"):
            busy += shape.sent * left * self.on.gamma
        spent = partial.spent
        inside, network = spent.inside, spent.network
        parts = spent.parts
        if level.algorithm == "ring" and partial.levels:
            parts += level.size - 1
            for near, more in self._passed_on(partial.levels, halves * (level.size - 1)):
                inside += more * near.overhead if near.inside else 0.0
                network += 0.0 if near.inside else more * near.overhead
        if links.inside:
            inside += busy
        else:
            network += busy
        return Partial(
            (*partial.levels, level),
            block,
            partial.scattered and is_scattered,
            left / level.size if is_scattered else left,
            Spent(
                spent.inside_latency + (latency if links.inside else 0.0),
                spent.network_latency + (0.0 if links.inside else latency),
                inside,
                network,
                parts,
                spent.network_levels + (0 if links.inside else 1),
            ),
        )

    def _passed_on(
        self, levels: tuple[PlanLevel, ...], times: int
    ) -> Iterator[tuple[LevelLinks, int]]:
        """Yield the messages that near levels send more, because each part from a ring is passed on by itself."""
        block = 1
        for level in levels:
            block *= level.size
            more = times * shape_of(level, self.collective).messages
            yield self._level_links(block, 0), more

    def _level_links(self, block: int, nbytes: float) -> LevelLinks:
        """Return the links between ranks of so many consecutive ranks, for messages of so many bytes."""
        protocol = int(np.searchsorted(self._links.limit, nbytes))
        known = self._known.get((block, protocol))
        if known is None:
            known = self._known[block, protocol] = self._slowest_links(block, protocol)
        return known

    def _slowest_links(self, block: int, protocol: int) -> LevelLinks:
        on, links = self.on, self._links
        is_inside = on.inside is not None and block <= on.ranks_per_node
        nodes = block // on.ranks_per_node
        kind = 0 if is_inside else 1 + sum(nodes > level.nodes for level in on.levels)
        beta = float(links.beta[protocol, kind])
        stretch = float(links.stretch[protocol])
        for level in range(links.lowest, kind):
            # All ranks that share a link send at once.
            sharing = on.ranks_per_node // on.ports
            if level > 0:
                sharing = on.levels[level - 1].nodes * on.ranks_per_node
            beta = max(beta, float(links.shared_beta[level]) * stretch * sharing)
        overhead = float(links.overhead[protocol, min(kind, 1)])
        return LevelLinks(is_inside, float(links.latency[protocol, kind]), overhead, beta)


def _blocks(p: int, node: int) -> list[int]:
    """Return how many consecutive ranks the nearest levels may cover: divisors of p that split no node.

    >>> _blocks(24, 8), _blocks(6, 8)
    ([1, 2, 4, 8, 24], [1, 2, 3, 6])
    """
    divisors = [block for block in range(1, p + 1) if p % block == 0]
    if node >= p:
        return divisors
    return [block for block in divisors if node % block == 0 or block % node == 0]


class Shape(NamedTuple):
    """Count what the busiest port of a level pays one after the other, for a buffer of one byte and one half."""

    latencies: int
    messages: int
    sent: float
    largest: float  # bytes of the largest message


def radices_of(size: int) -> list[int]:
    """Return the bases to try for Bruck's all-to-all: all up to 32 ranks, else the least for each number of digits.

    >>> radices_of(5), radices_of(64), radices_of(1000)
    ([2, 3, 4], [8, 4, 3, 2], [32, 10, 6, 4, 3, 2])
    """
    if size <= MOST_FOR_ALL_RADICES:
        return list(range(2, size))
    # The root of a whole power may be a little above the base.
    least = (math.ceil(size ** (1 / digits) - 1e-9) for digits in range(2, height(size) + 1))
    return list(dict.fromkeys(least))


@lru_cache(maxsize=4096)
def shape_of(level: PlanLevel, collective: str) -> Shape:
    """Return the shape of a level of a collective.

    >>> shape_of(PlanLevel("direct", 4), "all_reduce"), shape_of(PlanLevel("one_shot", 4), "all_reduce")
    (Shape(latencies=1, messages=3, sent=0.75, largest=0.25), Shape(latencies=1, messages=3, sent=3, largest=1))
    """
    algorithm, size = level.algorithm, level.size
    others, share = size - 1, (size - 1) / size
    if algorithm in ("direct", "pairwise"):
        return Shape(1, others, share, 1 / size)
    if algorithm == "bruck" and collective == "all_to_all":
        cost = bruck_all_to_all(size, level.radix)
        # The first message has every radix-th part.
        first = math.ceil(others / level.radix) / size
        return Shape(len(weights(size, level.radix)), int(cost.steps), cost.sent, first)
    if algorithm == "ring":
        return Shape(others, others, share, 1 / size)
    if algorithm == "bruck":
        return Shape(height(size), height(size), share, 0.5)
    if algorithm in ("one_shot", "flat"):
        return Shape(1, others, others, 1)
    if algorithm == "two_tree":
        steps = max(1, 4 * height(size) - 4) + 4
        return Shape(steps, steps, steps / 2, 0.5)
    if algorithm == "chain":
        return Shape(others, others, others, 1)
    steps = height(core(size)) + (0 if size == core(size) else 2)
    return Shape(steps, steps, steps, 1)
