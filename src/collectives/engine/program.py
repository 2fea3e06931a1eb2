"""Describe what one rank does: the messages and reductions of each step, and the instructions of a program.

`step_messages` and `reductions` read a schedule for one rank. Each transport gives a *receive* its
meaning from there: `compile` has the messages read into memory (TCP), `nccl` makes them batches,
and `slots` has the rank wait for a peer's count and read the peer's slot in shared memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from collectives.core.contracts import REDUCING, cells, contract
from collectives.core.interpret import apply
from collectives.core.schedule import Ints, Schedule, Step

# Cells of ranks and chunks whose contributions are counted at a time, in a pass over the schedule.
MOST_CELLS = 1 << 24


class Span(NamedTuple):
    """Name elements ``start`` to ``stop`` of the tensor or of scratch memory."""

    start: int
    stop: int
    scratch: bool = False

    def __repr__(self) -> str:
        """Return it as a slice: ``tensor[0:8]``."""
        return f"{'scratch' if self.scratch else 'tensor'}[{self.start}:{self.stop}]"

    def overlaps(self, other: Span) -> bool:
        """Tell if the two have an element in common."""
        return self.start < other.stop and other.start < self.stop and self.scratch == other.scratch


class Send(NamedTuple):
    """Send these spans of the tensor to ``peer``, as one message, without waiting."""

    number: int
    peer: int
    step: int
    spans: tuple[Span, ...]


class Recv(NamedTuple):
    """Receive a message from ``peer`` into one span, without waiting."""

    number: int
    peer: int
    step: int
    into: Span


class Wait(NamedTuple):
    """Wait until no more than ``missing`` elements of the send or receive of this number are still to come."""

    number: int
    missing: int = 0


class Reduce(NamedTuple):
    """Combine the operands, in this order, into ``into``; one operand alone is copied there."""

    into: Span
    operands: tuple[Span, ...]


class Average(NamedTuple):
    """Divide the sum in this span if the op is an average: this rank has just completed it."""

    span: Span


Instruction = Send | Recv | Wait | Reduce | Average


def spans_of(do: Instruction) -> tuple[Span, ...]:
    """Return the spans of an instruction; the one that it writes is the first."""
    match do:
        case Send():
            return do.spans
        case Recv():
            return (do.into,)
        case Reduce():
            return do.into, *do.operands
        case Average():
            return (do.span,)
    return ()


# What follows a program: a loop in compiled code, or Python, over NCCL.
COMPILED, PYTHON = "compiled", "python"
# How far an executor may run ahead: a task begins only if all tasks that many places before it are
# done.
AHEAD = 16


class Task(NamedTuple):
    """Keep instructions in their order, and the places in the program of the tasks that have to be done first.

    Tasks without such a tie may change places: a rank that waits for one message sends what does
    not depend on it. One after the other, as they stand, is always right, too.
    """

    instructions: tuple[Instruction, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Keep one rank's program, the elements of scratch memory it needs, and if it writes into the tensor at all.

    ``by_step`` says that none of its messages begins before those of earlier steps have left: the
    rank only ever swaps messages, or sends on as many as came in the step before, or fans out.
    ``first_sends`` has the peers to which the rank sends, and the first step in which it does.
    """

    program: tuple[Task, ...]
    scratch: int
    writes: bool
    by_step: bool
    first_sends: dict[int, int]

    def instructions(self) -> Iterator[Instruction]:
        """Yield all instructions, task by task."""
        for task in self.program:
            yield from task.instructions


class Transfer(NamedTuple):
    """Keep all rows of one pair of ranks in one step: the spans that move, in order, and if each is added."""

    src: int
    dst: int
    pieces: list[tuple[Span, bool]]

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return sum(span.stop - span.start for span, _ in self.pieces)


class StepMessages(NamedTuple):
    """Keep the messages that one rank sends and receives in one step."""

    sends: list[Transfer]
    receives: list[Transfer]


def step_messages(step: Step, ranks: Set[int], edges: Ints) -> dict[int, StepMessages]:
    """Return what each of the ranks sends and receives in a step, whose chunks lie between ``edges``.

    Cost: for one rank Python for its rows alone, for several of them for all rows of the step.

    >>> step_messages(Step([0, 1], [1, 0], [0, 1], add=[True, True]), {0}, edges=np.array([0, 4, 8]))[0].sends
    [Transfer(src=0, dst=1, pieces=[(tensor[0:4], True)])]
    """
    rows: Ints | slice = slice(None)
    if len(ranks) == 1:
        (rank,) = ranks
        rows = np.flatnonzero((step.src == rank) | (step.dst == rank))
    chunk, pairs = step.chunk[rows], dict[tuple[int, int], list[tuple[Span, bool]]]()
    columns = (
        step.src[rows],
        step.dst[rows],
        edges[chunk],
        edges[chunk + step.count[rows]],
        step.add[rows],
    )
    for src, dst, start, stop, add in zip(*(each.tolist() for each in columns), strict=True):
        if start < stop and (src in ranks or dst in ranks):
            pieces = pairs.setdefault((src, dst), [])
            if pieces and pieces[-1][0].stop == start and pieces[-1][1] == add:
                start = pieces.pop()[0].start  # one longer piece
            pieces.append((Span(start, stop), add))
    found: dict[int, StepMessages] = defaultdict(lambda: StepMessages([], []))
    for (src, dst), pieces in pairs.items():
        transfer = Transfer(src, dst, pieces)
        if src in ranks:
            found[src].sends.append(transfer)
        if dst in ranks:
            found[dst].receives.append(transfer)
    return found


class Reduction(NamedTuple):
    """Keep the contributions to one span, in the order in which they are added.

    One alone replaces it.

    A contribution is a rank, and the offset in its message; the offset of this rank's own is 0.
    """

    into: Span
    contributions: tuple[tuple[int, int], ...]


def reductions(rank: int, receives: list[Transfer]) -> list[Reduction]:
    """Return how a rank combines what it receives in a step: in the order of the ranks, its own among them.

    >>> swap = Step([0, 2], [1, 1], 0, add=True)
    >>> received = step_messages(swap, {1}, edges=np.array([0, 8]))[1].receives
    >>> reductions(1, received)
    [Reduction(into=tensor[0:8], contributions=((0, 0), (1, 0), (2, 0)))]
    """
    found: dict[Span, list[tuple[int, int]]] = {}
    borders = set[int]()
    for each in receives:
        for span, _ in each.pieces:
            borders |= {span.start, span.stop}
    marks = sorted(borders)
    for each in receives:
        offset = 0
        for span, add in each.pieces:
            # Cut where a piece of another message begins or ends.
            cuts = marks[bisect_left(marks, span.start) : bisect_right(marks, span.stop)]
            for own in [span] if len(cuts) == 2 else map(Span, cuts, cuts[1:]):
                contributions = found.setdefault(own, [])
                if add and not contributions:
                    contributions.append((rank, 0))
                contributions.append((each.src, offset + own.start - span.start))
            offset += span.stop - span.start
    return [Reduction(own, tuple(sorted(contributions))) for own, contributions in found.items()]


def is_straight(schedule: Schedule) -> bool:
    """Tell if every piece of an all-to-all goes from its sender to its receiver, and is cut no further.

    >>> from collectives.algorithms import ALGORITHMS
    >>> [is_straight(ALGORITHMS["all_to_all", name](4)) for name in ("direct", "pairwise", "bruck")]
    [True, True, False]
    """
    if schedule.k != schedule.p**2:
        return False
    for step in schedule.steps():
        row, chunk = step.cells()
        if (np.stack([step.src, step.dst])[:, row] != np.divmod(chunk, schedule.p)).any():
            return False
    return True


def compact(schedule: Schedule, rank: int, sizes: Ints) -> Ints:
    """Return edges of a buffer with room for the chunks that this rank ever holds.

    The others have length 0.

    >>> from collectives.algorithms import ALGORITHMS
    >>> compact(ALGORITHMS["scatter", "flat"](4), rank=2, sizes=np.array([5, 5, 5, 5])).tolist()
    [0, 0, 0, 5, 5]
    """
    own = contract(schedule).before(cells(schedule, rank))
    held = np.broadcast_to(own, (schedule.p, schedule.k))[rank].copy()
    for step in schedule.steps():
        row, chunk = step.cells()
        held[chunk[(step.src[row] == rank) | (step.dst[row] == rank)]] = True
    return np.concatenate([[0], np.cumsum(np.where(held, sizes, 0))])


def completed(schedule: Schedule, rank: int) -> dict[int, list[int]]:
    """Return by step the chunks whose sum this rank completes there, by adding the last of the p contributions.

    Receivers of a finished sum get it already averaged, from a rank that completed it in an earlier
    step. Cost: a pass over the schedule for each `MOST_CELLS` of p * k.
    """
    chunks: dict[int, list[int]] = defaultdict(list)
    if schedule.collective not in REDUCING:
        return chunks
    width = max(1, MOST_CELLS // schedule.p)
    for first in range(0, schedule.k, width):
        last = min(first + width, schedule.k)
        contributions = np.ones((schedule.p, last - first), dtype=np.min_scalar_type(schedule.p))
        for t, step in enumerate(_within(step, first, last) for step in schedule.steps()):
            apply(step, contributions)
            row, chunk = step.cells()
            added = np.unique(chunk[(step.dst[row] == rank) & step.add[row]])
            whole = first + added[contributions[rank, added] == schedule.p]
            if len(whole):
                chunks[t] += whole.tolist()
    return chunks


def _within(step: Step, first: int, last: int) -> Step:
    """Return the step's moves of the chunks from ``first`` up to ``last``, which are numbered from 0."""
    start, stop = np.maximum(step.chunk, first), np.minimum(step.chunk + step.count, last)
    rows = start < stop
    return Step(
        step.src[rows], step.dst[rows], start[rows] - first, (stop - start)[rows], step.add[rows]
    )


NO_STEP = Step([], [], [])


class Stage(NamedTuple):
    """Keep consecutive steps of a schedule, with their numbers: all others are empty."""

    is_on_hosts: bool
    schedule: Schedule

    def on_host(self, ranks: range) -> Schedule:
        """Return the part of these ranks of one host, numbered from 0."""
        whole = self.schedule

        def make(t: int) -> Step:
            step = whole.step(t)
            rows = np.isin(step.src, ranks)
            src, dst = step.src[rows] - ranks.start, step.dst[rows] - ranks.start
            return Step(src, dst, step.chunk[rows], step.count[rows], step.add[rows])

        return replace(whole, p=len(ranks), make=make, ranks_per_node=1)


def stages(schedule: Schedule, ranks_per_host: int) -> list[Stage]:
    """Return the schedule in stages, or none if ranks share no memory or a step is on hosts and between them.

    On several hosts only an all-reduce has stages: each stage changes the whole buffer in its
    place.

    >>> from collectives.algorithms import build
    >>> ring = build("all_reduce", "hierarchical_ring", 6, ranks_per_node=2)
    >>> [(each.is_on_hosts, sum(len(step.src) > 0 for step in each.schedule.steps())) for each in stages(ring, 2)]
    [(True, 1), (False, 4), (True, 1)]
    >>> stages(build("all_reduce", "ring", 6), 2)
    []
    """
    if ranks_per_host == schedule.p:
        return [Stage(True, schedule)]
    if ranks_per_host == 1 or schedule.collective != "all_reduce":
        return []
    is_on_hosts: list[bool] = []  # for each step
    for step in schedule.steps():
        stays = step.src // ranks_per_host == step.dst // ranks_per_host  # for each message
        # Some messages stay on their hosts and others do not; or there is none, of which all() is
        # true.
        if stays.any() != stays.all():
            return []
        is_on_hosts.append(bool(stays.all()))
    if not any(is_on_hosts):
        return []
    found = []
    # A stage is a run of steps of one kind.
    for kind, run in groupby(enumerate(is_on_hosts), key=lambda numbered: numbered[1]):
        steps = [t for t, _ in run]
        found.append(Stage(kind, _part(schedule, steps)))
    return found


def _part(schedule: Schedule, steps: list[int]) -> Schedule:
    first, last = steps[0], steps[-1]
    return replace(schedule, make=lambda t: schedule.step(t) if first <= t <= last else NO_STEP)
