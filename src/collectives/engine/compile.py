"""Compile a schedule, once, into one rank's program over offsets.

A message is received straight into the tensor if the compiler proves the place free; otherwise into scratch memory, and
moved from there. A place is free if this step neither sends it nor receives it twice; the program waits for an earlier
send that still reads it. That cannot deadlock: messages of an earlier step have arrived at every rank that has reached
this one, and a rank sends its messages of this step before it waits for any of it. Independent tasks may change places,
because ranks wait for data, not for steps.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from collectives.contracts import REDUCING, cells, contract
from collectives.engine.coded import Coder
from collectives.engine.program import AHEAD, Average, Instruction, Plan, Recv, Reduce, Send, Span, Task, Wait
from collectives.engine.step_messages import (
    StepMessages,
    in_pieces,
    landing_places,
    overlap,
    places,
    reductions,
    step_messages,
)
from collectives.engine.tcp.arrays import flatten
from collectives.interpret import apply
from collectives.schedule import Ints, Schedule, Step

# Of how many steps messages are kept that nothing sent has needed yet.
LATE = 4
# Cells of ranks and chunks whose contributions are counted at a time, in a pass over the schedule.
MOST_CELLS = 1 << 24


def plan(schedule: Schedule, rank: int, edges: Ints, finished: dict[int, list[int]] | None = None) -> Plan:
    """The program of one rank whose chunks lie between ``edges`` of its buffer, from ``schedule.cut(n)`` or `compact`.

    ``finished`` has the chunks that an average divides, by step: those that are `completed`, if it is left out; with
    none the program serves every op but AVG. With a wire format the buffer is float32, and messages are encoded.
    Cost: a pass over the rows of the whole schedule, and memory for this rank's messages. Made once per size.

    >>> from collectives.algorithms import ALGORITHMS
    >>> doubling = ALGORITHMS["all_reduce", "recursive_doubling"](2)
    >>> for instruction in plan(doubling, rank=0, edges=doubling.cut(8)).instructions():
    ...     print(instruction)
    Send(number=0, peer=1, step=0, spans=(tensor[0:8],))
    Recv(number=1, peer=1, step=0, into=scratch[0:8])
    Wait(number=1, missing=0)
    Wait(number=0, missing=0)
    Reduce(into=tensor[0:8], operands=(tensor[0:8], scratch[0:8]))
    Average(span=tensor[0:8])
    """
    steps = [step_messages(step, rank, edges) for step in schedule.steps()]
    chunks = completed(schedule, rank) if finished is None else finished
    spans = {
        t: [Span(*edges[[c, c + 1]].tolist()) for c in each if edges[c] < edges[c + 1]] for t, each in chunks.items()
    }
    program = tuple(_program(steps, rank, spans))
    receives = (do.into for task in program for do in task.instructions if isinstance(do, Recv))
    scratch = max((into.stop for into in receives if into.scratch), default=0)
    writes = any(messages.receives for messages in steps)
    if schedule.wire not in (None, "float32"):
        coder = Coder(schedule.wire, scratch)
        program, scratch = coder.coded(program), coder.scratch
    return as_plan(program, scratch, writes, _is_exchange(steps))


def as_plan(program: tuple[Task, ...], scratch: int = 0, writes: bool = True, exchanges: bool = False) -> Plan:
    """The plan of a program; by default of one that needs no scratch memory, and sends what there is."""
    sends = [do for task in program for do in task.instructions if isinstance(do, Send)]
    first_sends = {send.peer: send.step for send in sorted(sends, key=lambda send: -send.step)}
    return Plan(program, scratch, writes, exchanges, flatten(program), first_sends)


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


def _is_exchange(steps: list[StepMessages]) -> bool:
    """Whether the rank swaps messages with others, or sends to others in each step what has come in the one before."""
    busy = [messages for messages in steps if messages.sends or messages.receives]
    to = [{message.peer for message in messages.sends} for messages in busy]
    by = [{message.peer for message in messages.receives} for messages in busy]
    return to == by or (
        [*map(len, to)] == [*map(len, by)]
        and all(one.isdisjoint(following) for one, following in pairwise(to))
        and all(overlap(places(one.receives), places(following.sends)) for one, following in pairwise(busy))
    )


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


class _Access(NamedTuple):
    """Which memory a task reads and writes, and whose connections it uses which way."""

    reads: list[Span]
    writes: list[Span]
    by: set[tuple[str, int]]

    def ties(self, earlier: _Access) -> bool:
        """Whether the order of the two matters: one writes what the other reads or writes, or both use a connection."""
        return (
            not self.by.isdisjoint(earlier.by)
            or overlap(self.writes, earlier.reads + earlier.writes)
            or overlap(self.reads, earlier.writes)
        )


def _program(steps: list[StepMessages], rank: int, finished: dict[int, list[Span]]) -> Iterator[Task]:
    """Step by step: send, say where messages go, and reduce them as they arrive."""
    number, place = count(), count()
    recent: deque[tuple[int, _Access]] = deque(maxlen=AHEAD)
    sending: dict[int, list[Span]] = {}  # number of a send -> what nobody has waited for to be read
    late: deque[tuple[list[Span], list[Span]]] = deque(maxlen=LATE)  # what arrives and is not sent on yet: to and from

    def task(access: _Access, *instructions: Instruction) -> Task:
        after = tuple(at for at, earlier in recent if access.ties(earlier))
        recent.append((next(place), access))
        return Task(tuple(_with_waits(instructions, sending)), after)

    for t, messages in enumerate(steps):
        needed = places(messages.sends)
        late = deque((each for each in late if not overlap(each[0], needed)), maxlen=LATE)
        for message in messages.sends:
            sent, spans = next(number), [span for span, _ in message.pieces]
            yield task(_Access(spans, [], {("to", message.peer)}), Send(sent, message.peer, t, tuple(spans)))
            sending[sent] = spans
        if messages.receives:
            landed = landing_places(messages, [span for _, memory in late for span in memory])
            receives = [Recv(next(number), peer, t, into) for peer, into in landed.items()]
            memory, written = list(landed.values()), places(messages.receives)
            arrival = _arrival(receives, list(reductions(messages, rank, landed)))
            access = _Access([], memory + written, {("from", peer) for peer in landed})
            yield task(access, *receives, *arrival, *map(Average, finished.get(t, [])))
            late.append((written, [span for span in memory if span.scratch]))
    if sending:
        yield Task(tuple(map(Wait, sending)), tuple(at for at, _ in recent))


def _with_waits(instructions: Iterable[Instruction], sending: dict[int, list[Span]]) -> Iterator[Instruction]:
    """The same, and a wait before each that writes where a send still reads."""
    for do in instructions:
        if isinstance(do, Recv | Reduce):
            yield from _waits_before(sending, do.into)
        yield do


def _waits_before(sending: dict[int, list[Span]], written: Span) -> Iterator[Wait]:
    for number, spans in list(sending.items()):
        if overlap([written], spans):
            yield Wait(number)
            sending[number] = [rest for span in spans for rest in _without(span, written)]
            if not sending[number]:
                del sending[number]


def _without(span: Span, other: Span) -> Iterator[Span]:
    """What is left of a span."""
    if not span.overlaps(other):
        yield span
        return
    for start, stop in ((span.start, other.start), (other.stop, span.stop)):
        if start < stop:
            yield Span(start, stop, span.scratch)


def _arrival(receives: list[Recv], reductions: list[Reduce]) -> Iterator[Instruction]:
    """Wait for the messages of a step, and reduce them; a single long one piece by piece, while it arrives."""
    if len(receives) > 1 or not reductions:
        yield from (Wait(receive.number) for receive in receives)
        yield from reductions
        return
    for reduction in reductions:
        for piece in in_pieces(reduction):
            arrived = max(span.stop for span in piece.operands if span.scratch)
            yield Wait(receives[0].number, receives[0].into.stop - arrived)
            yield piece
