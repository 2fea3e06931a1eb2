"""One rank's program: the instructions that executors follow, and what the rank does in each step of a schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np

from collectives.contracts import REDUCING, cells, contract
from collectives.interpret import apply
from collectives.schedule import Ints, Schedule, Step

# Cells of ranks and chunks whose contributions are counted at a time, in a pass over the schedule.
MOST_CELLS = 1 << 24


class Span(NamedTuple):
    """Elements ``start`` to ``stop`` of the tensor, or of scratch memory; bytes of that where messages are coded."""

    start: int
    stop: int
    scratch: bool = False
    coded: bool = False

    def __repr__(self) -> str:
        """As a slice: ``tensor[0:8]``."""
        return f"{'coded' if self.coded else 'scratch' if self.scratch else 'tensor'}[{self.start}:{self.stop}]"

    def overlaps(self, other: Span) -> bool:
        """Whether the two have an element in common."""
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


class Encode(NamedTuple):
    """Encode these spans, one after the other, in the call's wire format, and round them to it."""

    into: Span
    spans: tuple[Span, ...]


class Decode(NamedTuple):
    """Decode into a span what has come in the call's wire format."""

    into: Span
    coded: Span


Instruction = Send | Recv | Wait | Reduce | Average | Encode | Decode


# What follows a program: a loop in compiled code, or Python, over NCCL.
COMPILED, PYTHON = "compiled", "python"
# How far an executor may run ahead: a task begins only if all tasks that many places before it are done.
AHEAD = 16


class Task(NamedTuple):
    """Instructions in their order, and the tasks that have to be done first, by their places in the program.

    Tasks without such a tie may change places: a rank that waits for one message sends what does not depend on it. One
    after the other, as they stand, is always right, too.
    """

    instructions: tuple[Instruction, ...]
    after: tuple[int, ...]


class Flat(NamedTuple):
    """The same program as arrays, which `tcp.state` describes."""

    tasks: Ints
    after: Ints
    instructions: Ints
    spans: Ints
    messages: int


class Plan(NamedTuple):
    """One rank's program, the elements of scratch memory it needs, and whether it writes into the tensor at all.

    ``exchanges`` says that this rank only ever swaps messages, or sends on what has come in the step before, to other
    peers, and as many messages as it receives. ``flat`` is the program as arrays. ``first_sends`` has the peers to
    which the rank sends, and the first step in which it does.
    """

    program: tuple[Task, ...]
    scratch: int
    writes: bool
    exchanges: bool
    flat: Flat
    first_sends: dict[int, int]

    def instructions(self) -> Iterator[Instruction]:
        """All of them, task by task."""
        for task in self.program:
            yield from task.instructions


class PairMessage(NamedTuple):
    """All rows of one pair of ranks in one step: the spans that move, in order, and whether each is added."""

    peer: int
    pieces: list[tuple[Span, bool]]

    @property
    def size(self) -> int:
        """Elements."""
        return sum(span.stop - span.start for span, _ in self.pieces)


class StepMessages(NamedTuple):
    """What one rank sends and receives in one step."""

    sends: list[PairMessage]
    receives: list[PairMessage]


def step_messages(step: Step, rank: int, edges: Ints) -> StepMessages:
    """A step as one rank sees it; its chunks lie between ``edges``.

    >>> step_messages(Step([0, 1], [1, 0], [0, 1], add=[True, True]), rank=0, edges=np.array([0, 4, 8])).sends
    [PairMessage(peer=1, pieces=[(tensor[0:4], True)])]
    """
    sent = step.messages(edges)
    return StepMessages(
        [_message(step, sent.rows(i), int(sent.dst[i]), edges) for i in np.flatnonzero(sent.src == rank).tolist()],
        [_message(step, sent.rows(i), int(sent.src[i]), edges) for i in np.flatnonzero(sent.dst == rank).tolist()],
    )


def _message(step: Step, rows: Ints, peer: int, edges: Ints) -> PairMessage:
    pieces: list[tuple[Span, bool]] = []
    for row in rows.tolist():
        chunk = step.chunk[row]
        _append(pieces, Span(int(edges[chunk]), int(edges[chunk + step.count[row]])), bool(step.add[row]))
    return PairMessage(peer, pieces)


def _append(pieces: list[tuple[Span, bool]], span: Span, add: bool) -> None:
    """One more piece of a message, or a longer last one, where this one follows on it."""
    if pieces and pieces[-1] == (Span(pieces[-1][0].start, span.start), add):
        span = Span(pieces.pop()[0].start, span.stop)
    pieces.append((span, add))


def places(messages: list[PairMessage]) -> list[Span]:
    """The spans of all these messages."""
    return [span for message in messages for span, _ in message.pieces]


def overlap(some: list[Span], others: list[Span]) -> bool:
    """Whether any of the one have an element in common with any of the others."""
    return any(one.overlaps(other) for one in some for other in others)


def is_straight(schedule: Schedule) -> bool:
    """Whether every piece of an all-to-all goes from its sender to its receiver, and is cut no further.

    >>> from collectives.algorithms import ALGORITHMS
    >>> [is_straight(ALGORITHMS["all_to_all", name](4)) for name in ("direct", "pairwise", "bruck")]
    [True, True, False]
    """
    ends = (
        np.stack([step.src, step.dst])[:, row] == np.divmod(chunk, schedule.p) for step, row, chunk in _moves(schedule)
    )
    return schedule.k == schedule.p**2 and all(each.all() for each in ends)


def _moves(schedule: Schedule) -> Iterator[tuple[Step, Ints, Ints]]:
    return ((step, *step.cells()) for step in schedule.steps())


def compact(schedule: Schedule, rank: int, sizes: Ints) -> Ints:
    """Edges of a buffer with room for those chunks only that this rank ever holds; the others have length 0.

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
    """Step -> the chunks whose sum this rank completes there, by adding the last of the p contributions.

    Receivers of a finished sum get it already averaged, from a rank that completed it in an earlier step. Cost: a pass
    over the schedule for each `MOST_CELLS` of p * k.
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
    """What a step moves of the chunks from ``first`` up to ``last``, which are numbered from 0."""
    start, stop = np.maximum(step.chunk, first), np.minimum(step.chunk + step.count, last)
    rows = start < stop
    return Step(step.src[rows], step.dst[rows], start[rows] - first, (stop - start)[rows], step.add[rows])


NO_STEP = Step([], [], [])


class Stage(NamedTuple):
    """Consecutive steps of a schedule, which keep their numbers: all others are empty."""

    is_on_hosts: bool
    schedule: Schedule

    def on_host(self, ranks: range) -> Schedule:
        """What these ranks of one host do, numbered from 0."""
        whole = self.schedule

        def make(t: int) -> Step:
            step = whole.step(t)
            rows = np.isin(step.src, ranks)
            src, dst = step.src[rows] - ranks.start, step.dst[rows] - ranks.start
            return Step(src, dst, step.chunk[rows], step.count[rows], step.add[rows])

        return replace(whole, p=len(ranks), make=make, ranks_per_node=1)


def stages(schedule: Schedule, ranks_per_host: int) -> list[Stage]:
    """The schedule in stages; none where ranks share no memory, or a step is on hosts and between them.

    On several hosts only an all-reduce has stages: each stage changes the whole buffer in its place.

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
    kinds = []
    for step in schedule.steps():
        on_host = step.src // ranks_per_host == step.dst // ranks_per_host
        if on_host.any() != on_host.all():
            return []
        kinds.append(bool(on_host.all()))
    runs = [(kind, list(steps)) for kind, steps in groupby(range(schedule.nsteps), kinds.__getitem__)]
    return [Stage(kind, _part(schedule, steps)) for kind, steps in runs] if any(kinds) else []


def _part(schedule: Schedule, steps: list[int]) -> Schedule:
    first, last = steps[0], steps[-1]
    return replace(schedule, make=lambda t: schedule.step(t) if first <= t <= last else NO_STEP)
