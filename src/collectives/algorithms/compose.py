"""Schedules composed of others: of near ranks and far ranks, of two halves, of segments that follow each other.

    12 ranks as 4 x 3:  rank = i + 4 m      i: place in its node, m: node
    near                0 1 2 3, 4 5 6 7, …: the ranks of a node
    far                 0 4 8, 1 5 9, …: the ranks of a place

What is composed may be the near or the far part of another composition, so that a rank's number has
as many digits as one likes. `levels` composes what a plan's text names. Recursive doubling has
digits of two values (`halving`), and the ring in two dimensions is composed of rings
(`hierarchical`).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from collectives.core.schedule import Ints, Schedule, Step, beside, on, parts, reverse, then


def scatter_and_gather(gather: Schedule) -> Schedule:
    """Return the all-reduce that reduces and scatters by an all-gather in reverse, and then gathers.

    Steps and bytes: twice those of the all-gather.

    >>> from collectives.algorithms import direct
    >>> list(scatter_and_gather(direct.all_gather(2)).steps())
    [Step(1->0:+0, 0->1:+1), Step(0->1:=0, 1->0:=1)]
    """
    return then(reverse(gather, "reduce_scatter", add=True), gather, "all_reduce")


def all_gather(near: Schedule, far: Schedule) -> Schedule:
    """Gather in the far schedule, then in the near one, whose messages have parts of all far ranks.

    The near digit comes first in a part's number, so that such a message has consecutive parts.
    Part c begins at place c, which is no rank yet: `on_ranks` puts the places on ranks. Steps: those
    of both schedules.

    >>> from collectives.algorithms import direct
    >>> all_gather(direct.all_gather(2), direct.all_gather(2)).step(1)
    Step(0->2:=0-1, 1->3:=0-1, 2->0:=2-3, 3->1:=2-3)
    """
    return then(_in_each_place(near, far), _side_by_side(near, far.p, far.p), "all_gather")


def all_gather_at_once(near: Schedule, far: Schedule) -> Schedule:
    """Gather in both schedules at once: what comes in the far one in step t moves in the near one from t + 1 on.

    Places and parts are those of `all_gather`, and so are the steps.

    >>> from collectives.algorithms import direct, ring
    >>> all_gather_at_once(direct.all_gather(2), ring.all_gather(3)).nsteps
    3
    """
    nodes = far.p
    outside = _in_each_place(near, far)

    def inside(arrived: int, near_step: int) -> Step:
        """Return a near step for the parts that arrived in a far step, or were there before the first (-1)."""
        node = far_part = np.arange(nodes)
        if arrived >= 0:
            came = far.step(arrived)
            row, far_part = came.cells()
            node = came.dst[row]
        step = near.step(near_step)
        row, near_part = step.cells()
        src = step.src[row] * nodes + node[:, None]
        dst = step.dst[row] * nodes + node[:, None]
        return Step(src.ravel(), dst.ravel(), (near_part * nodes + far_part[:, None]).ravel())

    def make(t: int) -> Step:
        steps = [outside.step(t)] if t < far.nsteps else []
        for near_step in range(near.nsteps):
            arrived = t - 1 - near_step
            if -1 <= arrived < far.nsteps:
                steps.append(inside(arrived, near_step))
        return beside(*steps)

    return replace(outside, nsteps=far.nsteps + near.nsteps, make=make, one_port=False, repeats=())


def _in_each_place(near: Schedule, far: Schedule) -> Schedule:
    """Return the far all-gather for each place of the near one at the same time."""
    p = near.p * far.p
    rank = np.arange(p).reshape(near.p, far.p)
    return on(far, p, p, rank, rank)


def _side_by_side(one: Schedule, ranks: int, width: int) -> Schedule:
    """Return a schedule in which consecutive ranks do what one did, each with ``width`` chunks for one chunk."""
    beside_first = np.arange(ranks)

    def make(t: int) -> Step:
        step = one.step(t)
        src = step.src[:, None] * ranks + beside_first
        dst = step.dst[:, None] * ranks + beside_first
        chunk, count, add = (
            np.repeat(column, ranks)
            for column in (step.chunk * width, step.count * width, step.add)
        )
        return Step(src.ravel(), dst.ravel(), chunk, count, add)

    return replace(one, p=one.p * ranks, k=one.k * width, make=make)


def on_ranks(gather: Schedule, rank_of_part: Ints) -> Schedule:
    """Return an `all_gather` on ranks, each with the part of its place; parts keep their numbers.

    >>> from collectives.algorithms import direct
    >>> pair = direct.all_gather(2)
    >>> on_ranks(all_gather(pair, pair), rank_of_part([2, 2])).step(1)
    Step(0->1:=0-1, 2->3:=0-1, 1->0:=2-3, 3->2:=2-3)
    """
    return on(gather, gather.p, gather.p, rank_of_part, np.arange(gather.p))


def rank_of_part(sizes: Sequence[int]) -> Ints:
    """Return the rank that each part of an `all_gather` belongs to: its digits in the opposite order.

    >>> rank_of_part([2, 3]).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    return np.arange(prod(sizes)).reshape(sizes[::-1]).T.ravel()


def all_reduce(
    scatter: Schedule, far: Schedule, gather: Schedule, rank_of_part: Ints | None = None
) -> Schedule:
    """Reduce and scatter among near ranks, all-reduce every part among far ranks, and gather among the near ones.

    ``rank_of_part`` is the near rank that each part belongs to, by default the rank of its number.
    Steps: those of all three. Bytes between nodes: those of the far schedule for a part of the buffer.

    >>> from collectives.algorithms import direct, ring
    >>> all_reduce(ring.reduce_scatter(2), direct.one_shot(2), ring.all_gather(2)).step(1)
    Step(0->2:+0, 2->0:+0, 1->3:+1, 3->1:+1)
    """
    g, width = gather.p, far.k
    p, k = g * far.p, g * width
    near = np.arange(g) if rank_of_part is None else rank_of_part
    rank, part = np.arange(far.p)[:, None] * g + near, np.arange(k).reshape(g, width)

    def inside(half: Schedule) -> Schedule:
        of_buffer = replace(half, collective="all_reduce")
        return on(of_buffer, p, k, rank, part[:, 0], width=width, ranks_per_node=g)

    outside = on(far, p, k, rank.T, part, ranks_per_node=g)
    return then(then(inside(scatter), outside, "all_reduce"), inside(gather), "all_reduce")


def all_reduce_whole(near: Schedule, far: Schedule) -> Schedule:
    """All-reduce the whole buffer among near ranks, then among far ranks.

    Steps and bytes: those of both schedules.

    >>> from collectives.algorithms import direct
    >>> list(all_reduce_whole(direct.one_shot(2), direct.one_shot(2)).steps())
    [Step(0->1:+0, 1->0:+0, 2->3:+0, 3->2:+0), Step(0->2:+0, 1->3:+0, 2->0:+0, 3->1:+0)]
    """
    p, k = near.p * far.p, near.k * far.k
    rank = np.arange(p).reshape(far.p, near.p)
    inside = on(near, p, k, rank, np.arange(near.k) * far.k, width=far.k)
    return then(inside, _side_by_side(far, near.p, near.k), "all_reduce")


def all_to_all(near: Schedule, far: Schedule) -> Schedule:
    """Move each piece to its receiver's place among the near ranks, then along that place among the far ranks.

    So the pieces of a node for one place travel together. Steps: those of both schedules. Each piece
    moves once in each of them, if its digit there differs.

    >>> from collectives.algorithms import direct
    >>> [len(step) for step in all_to_all(direct.all_to_all(4), direct.all_to_all(2)).steps()]
    [48, 32]
    """
    p = near.p * far.p
    return then(_along_digit(near, p, 1), _along_digit(far, p, near.p), "all_to_all")


def _along_digit(exchange: Schedule, p: int, stride: int) -> Schedule:
    """Move every piece along one digit of its place, by an all-to-all of the ranks that differ in this digit alone.

    The digits before it are the receiver's by now, and those from it on still the sender's.
    """
    size = exchange.p
    sender, receiver = np.divmod(np.arange(p * p), p)
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


def broadcast(near: Schedule, far: Schedule, root: int) -> Schedule:
    """Broadcast among the far ranks of the root's place, then among the near ranks of every node.

    Steps: those of both schedules.

    >>> from collectives.algorithms import direct
    >>> list(broadcast(direct.broadcast(2, 1), direct.broadcast(2, 0), root=1).steps())
    [Step(1->3:=0), Step(1->0:=0, 3->2:=0)]
    """
    p, k = near.p * far.p, near.k * far.k
    rank = np.arange(p).reshape(far.p, near.p)
    outside = on(far, p, k, rank[:, root % near.p], np.arange(far.k) * near.k, width=near.k)
    inside = on(near, p, k, rank, np.arange(near.k) * far.k, width=far.k)
    return then(outside, inside, "broadcast", root)


def in_segments(whole: Schedule, segments: int) -> Schedule:
    """Run a schedule on each segment of the buffer, the next segment one step behind the last.

    A buffer of parts is cut part by part, so that each part stays with its owner. Steps: one more
    for each segment after the first.

    >>> from collectives.algorithms import direct
    >>> list(in_segments(direct.two_shot(2), 2).steps())[1]
    Step(0->1:=0, 1->0:=1, 1->0:+2, 0->1:+3)
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

    nsteps = whole.nsteps + segments - 1 if whole.nsteps else 0
    return replace(
        whole, k=whole.k * segments, nsteps=nsteps, make=make, one_port=False, repeats=()
    )
