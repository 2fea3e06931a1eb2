"""Compile a schedule, once, into one rank's program of messages over offsets.

A message is received straight into the tensor if the compiler proves the place free; otherwise into
scratch memory, and moved from there. A place is free if this step neither sends it nor receives it
twice; the program waits for an earlier send that still reads it. That cannot deadlock: messages of
an earlier step have arrived at every rank that has reached this one, and a rank sends its messages
of this step before it waits for any of it. Independent tasks may change places, because ranks wait
for data, not for steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, count, pairwise, product
from typing import NamedTuple

from collectives.core.schedule import Ints, Schedule
from collectives.engine.program import (
    AHEAD,
    Average,
    Instruction,
    Plan,
    Recv,
    Reduce,
    Send,
    Span,
    StepMessages,
    Task,
    Transfer,
    Wait,
    completed,
    reductions,
    step_messages,
)

# Of how many steps messages are kept that nothing sent has needed yet.
LATE = 4
# Elements of a long message that are added up as soon as they are there, while the others are still
# on their way.
PIECE = 1 << 16


def plan(
    schedule: Schedule, rank: int, edges: Ints, finished: dict[int, list[int]] | None = None
) -> Plan:
    """Return the program of one rank, whose chunks lie between ``edges``: ``schedule.cut(n)``, or those of `compact`.

    ``finished`` has the chunks that an average divides, by step: those that are `completed`, if it
    is left out; with none the program serves every op but AVG. Cost: a pass over the rows of the
    whole schedule, and memory for this rank's messages. Made once per size.

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
    steps = [step_messages(step, {rank}, edges)[rank] for step in schedule.steps()]
    chunks = completed(schedule, rank) if finished is None else finished
    spans = {
        t: [Span(*edges[[c, c + 1]].tolist()) for c in each if edges[c] < edges[c + 1]]
        for t, each in chunks.items()
    }
    program = tuple(_program(steps, rank, spans))
    receives = [do.into for do in _instructions(program) if isinstance(do, Recv)]
    scratch = max((into.stop for into in receives if into.scratch), default=0)
    writes = any(messages.receives for messages in steps)
    by_step = _is_exchange(steps) or _fans_out(steps)
    return as_plan(program, scratch, writes, by_step)


def as_plan(
    program: tuple[Task, ...], scratch: int = 0, writes: bool = True, by_step: bool = False
) -> Plan:
    """Return the plan of a program, by default of one that needs no scratch memory and sends what it has."""
    first_sends = dict[int, int]()
    for do in _instructions(program):
        if isinstance(do, Send):
            first_sends[do.peer] = min(do.step, first_sends.get(do.peer, do.step))
    return Plan(program, scratch, writes, by_step, first_sends)


def _instructions(program: tuple[Task, ...]) -> Iterator[Instruction]:
    return chain.from_iterable(task.instructions for task in program)


def places(messages: list[Transfer]) -> list[Span]:
    """Return the spans of all these messages."""
    pieces = chain.from_iterable(message.pieces for message in messages)
    return [span for span, _ in pieces]


def overlap(some: list[Span], others: list[Span]) -> bool:
    """Tell if any of the one have an element in common with any of the others."""
    return any(one.overlaps(other) for one, other in product(some, others))


def _is_exchange(steps: list[StepMessages]) -> bool:
    """Tell if the rank swaps messages with others, or sends to others in each step what has come in the one before."""
    busy = [messages for messages in steps if messages.sends or messages.receives]
    to = [{message.dst for message in messages.sends} for messages in busy]
    by = [{message.src for message in messages.receives} for messages in busy]
    return to == by or (
        [*map(len, to)] == [*map(len, by)]
        and all(one.isdisjoint(following) for one, following in pairwise(to))
        and all(
            overlap(places(one.receives), places(following.sends))
            for one, following in pairwise(busy)
        )
    )


def _fans_out(steps: list[StepMessages]) -> bool:
    """Tell if the rank sends one message to each of several peers, after all that it receives has come.

    As in a binomial broadcast: the first peer passes on what it gets, so its message comes before
    the others'.
    """
    last_receive = -1
    first_send = len(steps)
    peers: list[int] = []
    for t, messages in enumerate(steps):
        if messages.receives:
            last_receive = t
        if messages.sends:
            first_send = min(first_send, t)
            peers += [message.dst for message in messages.sends]
    return last_receive < first_send and len(set(peers)) == len(peers) > 1


class _Access(NamedTuple):
    """Keep the memory that a task reads and writes, and the connections that it uses."""

    reads: list[Span]
    writes: list[Span]
    by: set[tuple[str, int]]

    def ties(self, earlier: _Access) -> bool:
        """Tell if their order matters: one writes what the other reads or writes, or both use a connection."""
        return (
            not self.by.isdisjoint(earlier.by)
            or overlap(self.writes, earlier.reads + earlier.writes)
            or overlap(self.reads, earlier.writes)
        )


class _Arrived(NamedTuple):
    """Keep where the messages of one step go in the tensor, and the scratch memory that they landed in."""

    destinations: list[Span]
    scratch: list[Span]


def _program(
    steps: list[StepMessages], rank: int, finished: dict[int, list[Span]]
) -> Iterator[Task]:
    """Yield the tasks step by step: one for each message that is sent, then one for all that are received.

    The last task waits for the sends that no earlier one has waited for.
    """
    message_numbers, task_places = count(), count()
    recent_tasks: deque[tuple[int, _Access]] = deque(maxlen=AHEAD)
    # The number of a send, and the memory that it may still read.
    unfinished_sends: dict[int, list[Span]] = {}
    # What has arrived in a step and is not sent on yet. As long its scratch memory is not used
    # again.
    arrived: deque[_Arrived] = deque(maxlen=LATE)

    def next_task(access: _Access, instructions: Iterable[Instruction]) -> Task:
        """Return the next task, which comes after the recent ones that it is tied to.

        `_with_waits` takes out of ``unfinished_sends`` what the task waits for.
        """
        after = tuple(place for place, earlier in recent_tasks if access.ties(earlier))
        recent_tasks.append((next(task_places), access))
        return Task(tuple(_with_waits(instructions, unfinished_sends)), after)

    for t, messages in enumerate(steps):
        sent_now = places(messages.sends)
        not_sent_yet = [each for each in arrived if not overlap(each.destinations, sent_now)]
        arrived = deque(not_sent_yet, maxlen=LATE)
        for message in messages.sends:
            number = next(message_numbers)
            spans = [span for span, _ in message.pieces]
            access = _Access(spans, [], {("to", message.dst)})
            yield next_task(access, [Send(number, message.dst, t, tuple(spans))])
            unfinished_sends[number] = spans
        if messages.receives:
            scratch_in_use = list(chain.from_iterable(each.scratch for each in arrived))
            landing_of = landing_places(messages, scratch_in_use)
            landings, destinations = list(landing_of.values()), places(messages.receives)
            receives = [
                Recv(next(message_numbers), peer, t, landing)
                for peer, landing in landing_of.items()
            ]
            reduces = list(_reduces(messages.receives, rank, landing_of))
            averages = [Average(span) for span in finished.get(t, [])]
            access = _Access([], landings + destinations, {("from", peer) for peer in landing_of})
            yield next_task(access, [*receives, *_arrival(receives, reduces), *averages])
            scratch = [span for span in landings if span.scratch]
            arrived.append(_Arrived(destinations, scratch))
    if unfinished_sends:
        waits = tuple(Wait(number) for number in unfinished_sends)
        yield Task(waits, tuple(place for place, _ in recent_tasks))


def _with_waits(
    instructions: Iterable[Instruction], sending: dict[int, list[Span]]
) -> Iterator[Instruction]:
    """Yield the same, and a wait before each that writes where a send still reads."""
    for do in instructions:
        if isinstance(do, Recv | Reduce):
            yield from _waits_before(sending, do.into)
        yield do


def _waits_before(sending: dict[int, list[Span]], written: Span) -> Iterator[Wait]:
    for number, spans in list(sending.items()):
        if overlap([written], spans):
            yield Wait(number)
            sending[number] = list(chain.from_iterable(_without(span, written) for span in spans))
            if not sending[number]:
                del sending[number]


def _without(span: Span, other: Span) -> Iterator[Span]:
    """Yield the parts of a span that are not in the other one."""
    if not span.overlaps(other):
        yield span
        return
    for start, stop in ((span.start, other.start), (other.stop, span.stop)):
        if start < stop:
            yield Span(start, stop, span.scratch)


def _arrival(receives: list[Recv], reductions: list[Reduce]) -> Iterator[Instruction]:
    """Yield waits for the messages of a step and reductions, of a single long one piece by piece while it arrives."""
    if len(receives) > 1 or not reductions:
        yield from (Wait(receive.number) for receive in receives)
        yield from reductions
        return
    for reduction in reductions:
        for piece in in_pieces(reduction):
            arrived = max(span.stop for span in piece.operands if span.scratch)
            yield Wait(receives[0].number, receives[0].into.stop - arrived)
            yield piece


def landing_places(messages: StepMessages, taken: list[Span]) -> dict[int, Span]:
    """Return for each peer that sends in this step the place where its message lands, apart from what is taken."""
    landings, aside = {}, []
    for message in messages.receives:
        span, add = message.pieces[0]
        if len(message.pieces) == 1 and not add and _is_free(messages, span, message):
            landings[message.src] = span
        else:
            aside.append(message)
    start = _first_free_offset(sum(message.size for message in aside), taken)
    for message in aside:
        landings[message.src] = Span(start, start + message.size, scratch=True)
        start += message.size
    return landings


def _first_free_offset(size: int, taken: list[Span]) -> int:
    """Return the first free range of ``size`` elements in scratch memory."""
    starts = sorted({0, *(span.stop for span in taken)})
    return next(
        start for start in starts if not overlap([Span(start, start + size, scratch=True)], taken)
    )


def _is_free(messages: StepMessages, span: Span, of: Transfer) -> bool:
    """Tell if no other message of this step reads or writes the span."""
    others = [message for message in messages.sends + messages.receives if message is not of]
    return not overlap(places(others), [span])


def _reduces(receives: list[Transfer], rank: int, landings: dict[int, Span]) -> Iterator[Reduce]:
    """Yield the reductions of the messages that have landed in scratch memory, which are not in their places."""
    aside = [each for each in receives if landings[each.src].scratch]
    for into, contributions in reductions(rank, aside):
        size, operands = into.stop - into.start, list[Span]()
        for peer, offset in contributions:
            start = landings[peer].start + offset if peer != rank else 0
            operands.append(into if peer == rank else Span(start, start + size, scratch=True))
        yield Reduce(into, tuple(operands))


def in_pieces(reduction: Reduce) -> Iterator[Reduce]:
    """Yield the same reduction, PIECE elements at a time."""
    for start in range(0, reduction.into.stop - reduction.into.start, PIECE):
        into, *operands = (
            span._replace(start=span.start + start, stop=min(span.start + start + PIECE, span.stop))
            for span in (reduction.into, *reduction.operands)
        )
        yield Reduce(into, tuple(operands))
