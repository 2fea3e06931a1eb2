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

Known algorithms are members of the family: ``direct8`` is two-shot, ``one_shot2/one_shot2`` is
recursive doubling, ``direct2/direct2`` is halving and doubling, and ``ring8/ring12`` is the ring in
two dimensions, with parts passed on earlier. HiCCL (Hidayetoglu et al. 2024) composes collectives
by levels, too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from collectives.algorithms import bruck, direct, halving, ring, swing, tree
from collectives.core.schedule import Ints, Schedule, Step, beside, on, parts, reverse, then
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

_WORD = re.compile(r"([a-z_]+)([0-9]+)", flags=re.ASCII)


class PlanLevel(NamedTuple):
    """One digit of the ranks' numbers: the algorithm of its groups, and how many ranks a group has."""

    algorithm: str
    size: int


class Plan(NamedTuple):
    """A collective's levels, the nearest first, and the segments that follow each other through them.

    >>> plan = parse_plan("direct8/ring12*4", "all_reduce")
    >>> plan.levels[1], plan.segments, plan.p, str(plan)
    (PlanLevel(algorithm='ring', size=12), 4, 96, 'direct8/ring12*4')
    """

    levels: tuple[PlanLevel, ...]
    segments: int = 1

    @property
    def p(self) -> int:
        """Return the number of ranks: the product of the levels' sizes."""
        return prod(level.size for level in self.levels)

    def __str__(self) -> str:
        text = "/".join(f"{level.algorithm}{level.size}" for level in self.levels)
        return f"{text}*{self.segments}" if self.segments > 1 else text


def is_plan(name: str) -> bool:
    """Return whether a name has the form of a plan, right or wrong: it has a level's size, a slash or a star.

    >>> is_plan("direct8/ring12"), is_plan("direct/ring12"), is_plan("ring"), is_plan("my/file.py:ring")
    (True, True, False, False)
    """
    return bool(re.fullmatch(r"[a-z_]+([0-9]+|[0-9]*[/*].*)", name)) and not re.search(
        r"\.py|\.xml|@", name
    )


def parse_plan(text: str, collective: str) -> Plan:
    """Return the plan that a text names.

    Raises ValueError, which points at the place, for an unknown algorithm, a level without a number
    of ranks, and too many segments or ranks.

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
        levels.append(_level(word, collective, f"plan {text}, column {column}"))
        column += len(word) + 1
    segments = 1
    if star:
        if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= MAX_SEGMENTS:
            raise ValueError(
                f"plan {text}, column {column}: got {count!r} segments, "
                f"expected 1 to {MAX_SEGMENTS}, as in direct8/ring12*4"
            )
        segments = int(count)
    plan = Plan(tuple(levels), segments)
    if plan.p > MAX_RANKS:
        raise ValueError(f"plan {text}: got {plan.p:,} ranks, expected at most {MAX_RANKS:,}")
    return plan


def _level(word: str, collective: str, place: str) -> PlanLevel:
    found = _WORD.fullmatch(word)
    if found is None:
        raise ValueError(
            f"{place}: got {word!r}, expected an algorithm and a number of ranks, as in ring12"
        )
    algorithm, digits = found.groups()
    if algorithm not in KINDS[collective]:
        raise ValueError(
            f"{place}: {unknown('algorithm of a level', algorithm, KINDS[collective])}"
        )
    most = MAX_RANKS_IN_PAIRS if algorithm in IN_PAIRS or collective == "all_to_all" else MAX_RANKS
    if len(digits) > len(str(most)) or not 2 <= int(digits) <= most:
        raise ValueError(f"{place}: got {digits} ranks, expected 2 to {most:,}")
    return PlanLevel(algorithm, int(digits))


def by_plan(collective: str, text: str) -> Callable[..., Schedule]:
    """Return the function that makes the schedule of a plan, whose ranks and segments stand in its text.

    It raises ValueError for another number of ranks. Raises ValueError as `parse_plan` does.

    >>> by_plan("all_reduce", "direct4/ring2")(8).nsteps
    4
    """
    plan = parse_plan(text, collective)

    def unrooted(p: int) -> Schedule:
        return _in_segments(_whole_schedule(collective, plan, p), plan.segments)

    def rooted(p: int, root: int = 0) -> Schedule:
        _check_ranks(plan, p)
        sent = _broadcast(plan.levels, root)
        if collective == "reduce":
            sent = reverse(sent, "reduce", add=True)
        return _in_segments(sent, plan.segments)

    return rooted if collective in ("broadcast", "reduce") else unrooted


def _check_ranks(plan: Plan, p: int) -> None:
    if plan.p != p:
        sizes = " x ".join(str(level.size) for level in plan.levels)
        raise ValueError(f"plan {plan}: got {p} ranks, expected {sizes} = {plan.p}")


def _whole_schedule(collective: str, plan: Plan, p: int) -> Schedule:
    _check_ranks(plan, p)
    if collective == "all_reduce":
        return _all_reduce(plan.levels)
    if collective == "all_to_all":
        return _all_to_all(plan.levels)
    gathered = _gathered_by_rank(plan.levels)
    if collective == "reduce_scatter":
        return reverse(gathered, "reduce_scatter", add=True)
    return gathered


def _all_gather(levels: Sequence[PlanLevel]) -> Schedule:
    """Gather from the farthest level to the nearest, with the parts in the order of `_part_of_rank`.

    Part ``i * nodes + m`` belongs to place i of node m: what one message carries to a near rank are
    consecutive parts.
    """
    near = SCATTERED[levels[0].algorithm](levels[0].size)
    if len(levels) == 1:
        return near
    far = _all_gather(levels[1:])
    if any(level.algorithm == "ring" for level in levels[1:]):
        own_part = np.argsort(_part_of_rank(levels[1:]))
        return _passed_on_at_once(near, far, own_part)
    p, nodes = near.p * far.p, far.p
    rank, part = np.arange(p).reshape(nodes, near.p), np.arange(p).reshape(near.p, nodes)
    outside = on(far, p, p, rank.T, part, ranks_per_node=near.p)
    inside = on(near, p, p, rank, part[:, 0], width=nodes, ranks_per_node=near.p)
    return replace(then(outside, inside, "all_gather"), one_port=False)


def _passed_on_at_once(near: Schedule, far: Schedule, own_part: Ints) -> Schedule:
    """Gather in both levels at once: what comes to a node in step t of the far level moves inside it from t + 1 on.

    ``own_part`` is the part of the far level's all-gather that each of its ranks begins with.
    """
    g, nodes = near.p, far.p
    p, place = g * nodes, np.arange(g)

    def outside(t: int) -> Step:
        step = far.step(t)
        row, node_of_part = step.cells()
        src = step.src[row, None] * g + place
        dst = step.dst[row, None] * g + place
        part = place * nodes + node_of_part[:, None]
        return Step(src.ravel(), dst.ravel(), part.ravel())

    def inside(arrived: int, t: int) -> Step:
        """Return step t of the near level for all parts that arrived in a step of the far one, or were there (-1)."""
        node, node_of_part = np.arange(nodes), own_part
        if arrived >= 0:
            step = far.step(arrived)
            row, node_of_part = step.cells()
            node = step.dst[row]
        step = near.step(t)
        row, place_of_part = step.cells()
        src = node[:, None] * g + step.src[row]
        dst = node[:, None] * g + step.dst[row]
        part = place_of_part * nodes + node_of_part[:, None]
        return Step(src.ravel(), dst.ravel(), part.ravel())

    def make(t: int) -> Step:
        steps = [outside(t)] if t < far.nsteps else []
        for near_step in range(near.nsteps):
            arrived = t - 1 - near_step
            if -1 <= arrived < far.nsteps:
                steps.append(inside(arrived, near_step))
        return beside(*steps)

    nsteps = far.nsteps + near.nsteps
    return Schedule("all_gather", p, p, nsteps, make, one_port=False, ranks_per_node=g)


def _part_of_rank(levels: Sequence[PlanLevel]) -> Ints:
    """Return, for each part of `_all_gather`, the rank that it belongs to: its digits in the opposite order.

    >>> _part_of_rank([PlanLevel("direct", 2), PlanLevel("ring", 3)]).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    sizes = [level.size for level in reversed(levels)]
    return np.arange(prod(sizes)).reshape(sizes).T.ravel()


def _gathered_by_rank(levels: Sequence[PlanLevel]) -> Schedule:
    """Return the all-gather in which part r belongs to rank r, as the collective promises."""
    gathered = _all_gather(levels)
    if len(levels) == 1:
        return gathered
    p = gathered.p
    return on(
        gathered,
        p,
        p,
        np.arange(p),
        _part_of_rank(levels),
        ranks_per_node=gathered.ranks_per_node,
    )


def _all_reduce(levels: Sequence[PlanLevel]) -> Schedule:
    """Reduce and scatter in the first levels that are scattered, all-reduce in those beyond, and gather."""
    scattered = 0
    while scattered < len(levels) and levels[scattered].algorithm in SCATTERED:
        scattered += 1
    if not scattered:
        return _whole_level(levels)
    gather = _all_gather(levels[:scattered])
    scatter = reverse(gather, "reduce_scatter", add=True)
    beyond = levels[scattered:]
    if not beyond:
        return then(scatter, gather, "all_reduce")
    far = _all_reduce(beyond)
    g, width = gather.p, far.k
    p, k = g * far.p, g * width
    rank, part = np.arange(p).reshape(far.p, g), np.arange(k).reshape(g, width)

    def inside(half: Schedule) -> Schedule:
        of_buffer = replace(half, collective="all_reduce")
        return on(of_buffer, p, k, rank, part[:, 0], width=width, ranks_per_node=g)

    own_part = np.argsort(_part_of_rank(levels[:scattered]))
    outside = on(far, p, k, rank.T, part[own_part], ranks_per_node=g)
    all_reduce = then(then(inside(scatter), outside, "all_reduce"), inside(gather), "all_reduce")
    return replace(all_reduce, one_port=False)


def _whole_level(levels: Sequence[PlanLevel]) -> Schedule:
    """All-reduce the whole buffer in the first level, then in those beyond."""
    near = WHOLE[levels[0].algorithm](levels[0].size)
    if len(levels) == 1:
        return near
    far = _all_reduce(levels[1:])
    p, k = near.p * far.p, near.k * far.k
    rank = np.arange(p).reshape(far.p, near.p)
    inside = on(near, p, k, rank, np.arange(near.k) * far.k, width=far.k, ranks_per_node=near.p)
    outside = on(far, p, k, rank.T, np.arange(far.k) * near.k, width=near.k, ranks_per_node=near.p)
    return replace(then(inside, outside, "all_reduce"), one_port=False)


def _all_to_all(levels: Sequence[PlanLevel]) -> Schedule:
    """Move each piece to its receiver digit by digit, the nearest first: pieces for one rail travel together."""
    whole = ALL_TO_ALL[levels[0].algorithm](levels[0].size)
    if len(levels) == 1:
        return whole
    p = prod(level.size for level in levels)
    sender, receiver = np.divmod(np.arange(p * p), p)
    whole, stride = _along_digit(whole, sender, receiver, 1), levels[0].size
    for level in levels[1:]:
        exchange = ALL_TO_ALL[level.algorithm](level.size)
        whole = then(whole, _along_digit(exchange, sender, receiver, stride), "all_to_all")
        stride *= level.size
    return replace(whole, one_port=False, ranks_per_node=levels[0].size)


def _along_digit(exchange: Schedule, sender: Ints, receiver: Ints, stride: int) -> Schedule:
    """Move every piece along one digit of its place, by an all-to-all of the ranks that differ in this digit alone.

    The digits before it are the receiver's by now, and those from it on still the sender's.
    """
    size, p = exchange.p, int(np.sqrt(len(sender)))
    from_digit, to_digit = sender // stride % size, receiver // stride % size
    beside_digit = receiver % stride + sender // (stride * size) * (stride * size)

    def make(t: int) -> Step:
        step = exchange.step(t)
        row, piece = step.cells()
        src, dst = np.full((2, size * size), -1)
        src[piece], dst[piece] = step.src[row], step.dst[row]
        of_group = from_digit * size + to_digit
        moves = np.flatnonzero(src[of_group] >= 0)
        before, after = src[of_group[moves]], dst[of_group[moves]]
        others = beside_digit[moves]
        return Step(others + before * stride, others + after * stride, moves)

    return Schedule("all_to_all", p, p * p, exchange.nsteps, make, one_port=False)


def _broadcast(levels: Sequence[PlanLevel], root: int) -> Schedule:
    """Broadcast from the root along the farthest digit first, then in every group."""
    size = levels[0].size
    near = BROADCAST[levels[0].algorithm](size, root % size)
    if len(levels) == 1:
        return near
    far = _broadcast(levels[1:], root // size)
    p, k = near.p * far.p, near.k * far.k
    rank = np.arange(p).reshape(far.p, near.p)
    outside = on(far, p, k, rank[:, root % size], np.arange(far.k) * near.k, width=near.k)
    inside = on(near, p, k, rank, np.arange(near.k) * far.k, width=far.k, ranks_per_node=size)
    return replace(then(outside, inside, "broadcast", root), one_port=False)


def _in_segments(whole: Schedule, segments: int) -> Schedule:
    """Run a schedule on each segment of the buffer, the next segment one step behind the last.

    A buffer of parts is cut part by part, so that each part stays with its owner.
    """
    if segments == 1:
        return whole
    has_parts = parts(whole.collective, whole.p) > 1

    def of_segment(step: Step, segment: int) -> Step:
        if not has_parts:
            chunk = step.chunk + segment * whole.k
            return Step(step.src, step.dst, chunk, step.count, step.add)
        row, chunk = step.cells()
        chunk = chunk * segments + segment
        return Step(step.src[row], step.dst[row], chunk, 1, step.add[row])

    def make(t: int) -> Step:
        running = range(max(0, t - whole.nsteps + 1), min(t + 1, segments))
        return beside(*(of_segment(whole.step(t - segment), segment) for segment in running))

    nsteps = whole.nsteps + segments - 1
    return replace(
        whole, k=whole.k * segments, nsteps=nsteps, make=make, one_port=False, repeats=()
    )
