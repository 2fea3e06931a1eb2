"""Collectives by levels: a rank's number has several digits, near ranks first, and each digit an algorithm of its own.

    96 ranks as 8 x 12:  rank = i + 8 m     i: place in its node, m: node
    direct8/ring12       8 ranks of a node reduce and scatter at once, 12 nodes all-reduce their parts
                         round a ring, and the 8 ranks gather

A plan names the levels from the nearest to the farthest: an algorithm and a number of ranks each,
whose product is p. A *scattered* level has the name of an all-gather (`SCATTERED`): it reduces and
scatters on the way out and gathers on the way back, so that the levels beyond it work on a part of
the buffer. A *whole* level has the name of an all-reduce (`WHOLE`) and exchanges all that is left.
Where a ring is farther out, a part that has come round it is passed on inside at once. Segments,
after a star, follow each other one step apart, so that links of all levels are busy at the same
time.

After a colon, Bruck's all-to-all has the base of its digits: ``bruck17:4`` (`bruck`).

Named algorithms are members of the family. ``direct8`` is two-shot, ``bruck12`` is circulant, and
``bruck5:5`` is the pairwise all-to-all. ``one_shot2/one_shot2`` is recursive doubling,
``direct2/direct2`` is halving and doubling, and its reduce-scatter sends the long messages to near
ranks. ``ring8/ring12`` is the ring in two dimensions, with parts passed on earlier. What joins
levels stands in `compose`, from which those names are made, too. HiCCL (Hidayetoglu et al. 2024)
composes collectives by levels, too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from collectives.algorithms import bruck, compose, direct, halving, ring, swing, tree
from collectives.core.schedule import Ints, Schedule, on, reverse
from collectives.errors import unknown
from collectives.units import MAX_RANKS, MAX_RANKS_IN_PAIRS

Maker = Callable[[int], Schedule]

# All-gathers, which reduce and scatter if they are reversed.
SCATTERED: dict[str, Maker] = {
    "direct": direct.all_gather,
    "ring": ring.all_gather,
    "bruck": bruck.all_gather,
}
WHOLE: dict[str, Maker] = {
    "one_shot": direct.one_shot,
    "two_shot": direct.two_shot,
    "recursive_doubling": halving.recursive_doubling,
    "halving_doubling": halving.halving_doubling,
    "circulant": bruck.all_reduce,
    "swing": swing.all_reduce,
    "swing_doubling": swing.doubling,
    "tree": tree.all_reduce,
    "two_tree": tree.two_tree,
}
# Bruck's all-to-all goes by digits to any base: `bruck17:4`.
WITH_RADIX = "bruck"
ALL_TO_ALL: dict[str, Maker] = {
    "direct": direct.all_to_all,
    "pairwise": direct.pairwise_all_to_all,
    "bruck": bruck.all_to_all,
}
BROADCAST: dict[str, Callable[[int, int], Schedule]] = {
    "flat": direct.broadcast,
    "binomial": tree.binomial_broadcast,
    "chain": tree.chain_broadcast,
}
# The algorithms that a level of each collective may have.
KINDS: dict[str, Sequence[str]] = {
    "all_reduce": (*SCATTERED, *WHOLE),
    "all_gather": tuple(SCATTERED),
    "reduce_scatter": tuple(SCATTERED),
    "all_to_all": tuple(ALL_TO_ALL),
    "broadcast": tuple(BROADCAST),
    "reduce": tuple(BROADCAST),
}
# With these, a step has a message for each pair of ranks of a group.
IN_PAIRS = ("direct", "one_shot", "two_shot")

MAX_SEGMENTS = 64

_WORD = re.compile(r"([a-z_]+)([0-9]+)(?::(.*))?", flags=re.ASCII)


class PlanLevel(NamedTuple):
    """One digit of the ranks' numbers: the algorithm of its groups, and how many ranks a group has.

    ``radix`` is the base of the digits by which Bruck's all-to-all moves pieces.

    >>> str(PlanLevel("ring", 12)), str(PlanLevel("bruck", 17)), str(PlanLevel("bruck", 17, radix=4))
    ('ring12', 'bruck17', 'bruck17:4')
    """

    algorithm: str
    size: int
    radix: int = 2

    def __str__(self) -> str:
        radix = f":{self.radix}" if self.radix != 2 else ""
        return f"{self.algorithm}{self.size}{radix}"


class Plan(NamedTuple):
    """A collective's levels, the nearest first, and the segments that follow each other through them.

    >>> plan = parse_plan("direct8/ring12*4", "all_reduce")
    >>> plan.levels[1], plan.segments, plan.p, str(plan)
    (PlanLevel(algorithm='ring', size=12, radix=2), 4, 96, 'direct8/ring12*4')
    """

    levels: tuple[PlanLevel, ...]
    segments: int = 1

    @property
    def p(self) -> int:
        """Return the number of ranks: the product of the levels' sizes."""
        return prod(level.size for level in self.levels)

    def __str__(self) -> str:
        text = "/".join(map(str, self.levels))
        return f"{text}*{self.segments}" if self.segments > 1 else text


def is_plan(name: str) -> bool:
    """Return whether a name has the form of a plan, right or wrong: a level's size, a slash, a colon or a star.

    >>> is_plan("direct8/ring12"), is_plan("direct/ring12"), is_plan("ring"), is_plan("my/file.py:ring")
    (True, True, False, False)
    """
    return bool(re.fullmatch(r"[a-z_]+([0-9]+|[0-9]*[:/*].*)", name)) and not re.search(
        r"\.py|\.xml|@", name
    )


def parse_plan(text: str, collective: str) -> Plan:
    """Return the plan that a text names.

    Raises ValueError, which points at the place, for an unknown algorithm, a level without a number
    of ranks, a radix where there is none, and too many segments or ranks.

    >>> parse_plan("direct8/ring", "all_reduce")
    Traceback (most recent call last):
        ...
    ValueError: plan direct8/ring, column 9: got 'ring', expected an algorithm and a number of ranks, as in ring12
    """
    if collective not in KINDS:
        raise ValueError(f"plan {text}: {collective} has no plans; {', '.join(KINDS)} have")
    words, star, count = text.partition("*")
    levels, column = [], 1
    for word in words.split("/"):
        levels.append(_level(word, collective, text, column))
        column += len(word) + 1
    segments = 1
    if star:
        if not _is_number(count, 1, MAX_SEGMENTS):
            raise ValueError(
                f"plan {text}, column {column}: got {count!r} segments, "
                f"expected 1 to {MAX_SEGMENTS}, as in direct8/ring12*4"
            )
        segments = int(count)
    plan = Plan(tuple(levels), segments)
    if plan.p > MAX_RANKS:
        raise ValueError(f"plan {text}: got {plan.p:,} ranks, expected at most {MAX_RANKS:,}")
    return plan


def _level(word: str, collective: str, text: str, column: int) -> PlanLevel:
    place = f"plan {text}, column {column}"
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(
            f"{place}: got {word!r}, expected an algorithm and a number of ranks, as in ring12"
        )
    algorithm, digits, radix = match.groups()
    if algorithm not in KINDS[collective]:
        raise ValueError(
            f"{place}: {unknown('algorithm of a level', algorithm, KINDS[collective])}"
        )
    most = MAX_RANKS_IN_PAIRS if algorithm in IN_PAIRS or collective == "all_to_all" else MAX_RANKS
    if not _is_number(digits, 2, most):
        raise ValueError(f"{place}: got {digits} ranks, expected 2 to {most:,}")
    size = int(digits)
    if radix is None:
        return PlanLevel(algorithm, size)
    place = f"plan {text}, column {column + match.start(3)}"
    if collective != "all_to_all" or algorithm != WITH_RADIX:
        raise ValueError(
            f"{place}: got radix {radix!r} for {algorithm} of {collective}, "
            f"expected none: only {WITH_RADIX} of all_to_all has one, as in bruck17:4"
        )
    if not _is_number(radix, 2, size):
        raise ValueError(f"{place}: got radix {radix!r}, expected 2 to {size}, as in bruck17:4")
    return PlanLevel(algorithm, size, int(radix))


def _is_number(text: str, least: int, most: int) -> bool:
    """Return whether a text is a number from least to most, and not one of thousands of digits."""
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    return is_short and least <= int(text) <= most


def by_plan(collective: str, text: str) -> Callable[..., Schedule]:
    """Return the function that makes the schedule of a plan, whose ranks and segments stand in its text.

    It raises ValueError for another number of ranks. Raises ValueError as `parse_plan` does.

    >>> by_plan("all_reduce", "direct4/ring2")(8).nsteps
    4
    """
    plan = parse_plan(text, collective)

    def unrooted(p: int) -> Schedule:
        _check_ranks(plan, p)
        return _with_segments(plan, SCHEDULES[collective](plan.levels))

    def rooted(p: int, root: int = 0) -> Schedule:
        _check_ranks(plan, p)
        sent = _broadcast(plan.levels, root)
        if collective == "reduce":
            sent = reverse(sent, "reduce", add=True)
        return _with_segments(plan, sent)

    return rooted if collective in ("broadcast", "reduce") else unrooted


def _with_segments(plan: Plan, whole: Schedule) -> Schedule:
    """Return a plan's schedule in its segments; with several levels, the nearest is the node."""
    if len(plan.levels) > 1:
        whole = replace(whole, one_port=False, ranks_per_node=plan.levels[0].size)
    return compose.in_segments(whole, plan.segments)


def _check_ranks(plan: Plan, p: int) -> None:
    if plan.p != p:
        sizes = " x ".join(str(level.size) for level in plan.levels)
        raise ValueError(f"plan {plan}: got {p} ranks, expected {sizes} = {plan.p}")


def _all_gather(levels: Sequence[PlanLevel]) -> Schedule:
    """Gather from the farthest level to the nearest, in the places of `compose.all_gather`."""
    near = SCATTERED[levels[0].algorithm](levels[0].size)
    if len(levels) == 1:
        return near
    far = _all_gather(levels[1:])
    if any(level.algorithm == "ring" for level in levels[1:]):
        return compose.all_gather_at_once(near, far)
    return compose.all_gather(near, far)


def _rank_of_part(levels: Sequence[PlanLevel]) -> Ints:
    return compose.rank_of_part([level.size for level in levels])


def _gathered_by_rank(levels: Sequence[PlanLevel]) -> Schedule:
    """Return the all-gather in which part r belongs to rank r, as the collective promises."""
    gathered = _all_gather(levels)
    if len(levels) == 1:
        return gathered
    p, rank = gathered.p, _rank_of_part(levels)
    return on(gathered, p, p, rank, rank)


def _reduce_scatter(levels: Sequence[PlanLevel]) -> Schedule:
    return reverse(_gathered_by_rank(levels), "reduce_scatter", add=True)


def _all_reduce(levels: Sequence[PlanLevel]) -> Schedule:
    """Reduce and scatter in the first levels that are scattered, all-reduce in those beyond, and gather."""
    scattered = 0
    while scattered < len(levels) and levels[scattered].algorithm in SCATTERED:
        scattered += 1
    if not scattered:
        return _whole_level(levels)
    gather, rank_of_part = _all_gather(levels[:scattered]), _rank_of_part(levels[:scattered])
    if scattered == len(levels):
        return compose.scatter_and_gather(compose.on_ranks(gather, rank_of_part))
    scatter = reverse(gather, "reduce_scatter", add=True)
    far = _all_reduce(levels[scattered:])
    return compose.all_reduce(scatter, far, gather, rank_of_part)


def _whole_level(levels: Sequence[PlanLevel]) -> Schedule:
    """All-reduce the whole buffer in the first level, then in those beyond."""
    near = WHOLE[levels[0].algorithm](levels[0].size)
    if len(levels) == 1:
        return near
    return compose.all_reduce_whole(near, _all_reduce(levels[1:]))


def _all_to_all(levels: Sequence[PlanLevel]) -> Schedule:
    """Move each piece to its receiver level by level, the nearest first."""
    near = _exchange(levels[0])
    return near if len(levels) == 1 else compose.all_to_all(near, _all_to_all(levels[1:]))


def _exchange(level: PlanLevel) -> Schedule:
    if level.algorithm == WITH_RADIX:
        return bruck.all_to_all_by_digits(level.size, level.radix)
    return ALL_TO_ALL[level.algorithm](level.size)


def _broadcast(levels: Sequence[PlanLevel], root: int) -> Schedule:
    """Broadcast from the root in the farthest level first, then in every group of the nearer ones."""
    size = levels[0].size
    near = BROADCAST[levels[0].algorithm](size, root % size)
    if len(levels) == 1:
        return near
    far = _broadcast(levels[1:], root // size)
    return compose.broadcast(near, far, root)


SCHEDULES: dict[str, Callable[[Sequence[PlanLevel]], Schedule]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gathered_by_rank,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
