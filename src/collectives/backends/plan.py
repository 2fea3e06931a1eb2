"""What one rank has to do, worked out once: a schedule turned into a straight program over offsets.

What arrives goes straight into the tensor where the plan proves the place free; otherwise into scratch memory, and is
moved in its step. A place is free if this step neither sends it nor gets it twice; an earlier send that still reads it
is waited for. That cannot lock up: a message of an earlier step has arrived with whoever has reached this one, and
those of this step are sent before their senders wait for any of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from collectives.backends.program import Finish, Fold, Instruction, Plan, Post, Send, Span, Wait
from collectives.contracts import cells, contract
from collectives.interpret import apply
from collectives.schedule import Ints, Schedule, Step

# Collectives that add up.
REDUCING = ("reduce", "reduce_scatter", "all_reduce")


def plan(schedule: Schedule, rank: int, edges: Ints) -> Plan:
    """The program of one rank whose chunks lie between ``edges`` of its buffer, from ``schedule.cut(n)`` or `compact`.

    Cost: the rows of the whole schedule are gone through twice, and p * k numbers kept. Made once per size.

    >>> from collectives.algorithms import ALGORITHMS
    >>> doubling = ALGORITHMS["all_reduce", "recursive_doubling"](2)
    >>> for instruction in plan(doubling, rank=0, edges=doubling.cut(8)).program:
    ...     print(instruction)
    Post(number=0, peer=1, step=0, into=Span(start=0, stop=8, scratch=True))
    Send(number=1, peer=1, step=0, spans=(Span(start=0, stop=8, scratch=False),))
    Wait(number=0)
    Wait(number=1)
    Fold(into=Span(start=0, stop=8, scratch=False), operands=(Span(start=0, stop=8, scratch=False), \
Span(start=0, stop=8, scratch=True)))
    Finish(span=Span(start=0, stop=8, scratch=False))
    """
    turns = [_turn(step, rank, edges) for step in schedule.steps()]
    program = list(_program(turns, rank, _finished(schedule, rank, edges)))
    scratch = max((i.into.stop for i in program if isinstance(i, Post) and i.into.scratch), default=0)
    return Plan(tuple(program), scratch, any(turn.receives for turn in turns))


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


class _Message(NamedTuple):
    """All rows of one pair of ranks in one step: the spans that move, in order, and whether each is added."""

    peer: int
    pieces: list[tuple[Span, bool]]

    @property
    def size(self) -> int:
        return sum(span.stop - span.start for span, _ in self.pieces)


class _Turn(NamedTuple):
    """What one rank sends and receives in one step."""

    sends: list[_Message]
    receives: list[_Message]


def _turn(step: Step, rank: int, edges: Ints) -> _Turn:
    return _Turn(
        _messages(step, np.flatnonzero(step.src == rank), step.dst, edges),
        _messages(step, np.flatnonzero(step.dst == rank), step.src, edges),
    )


def _messages(step: Step, rows: Ints, peers: Ints, edges: Ints) -> list[_Message]:
    """Rows grouped by peer; empty pieces, and messages of nothing else, are left out."""
    messages: dict[int, _Message] = {}
    for row in rows.tolist():
        chunk = step.chunk[row]
        span = Span(int(edges[chunk]), int(edges[chunk + step.count[row]]))
        if span.start < span.stop:
            peer = int(peers[row])
            _append(messages.setdefault(peer, _Message(peer, [])).pieces, span, bool(step.add[row]))
    return list(messages.values())


def _append(pieces: list[tuple[Span, bool]], span: Span, add: bool) -> None:
    """One more piece of a message, or a longer last one, where this one follows on it."""
    if pieces and pieces[-1] == (Span(pieces[-1][0].start, span.start), add):
        span = Span(pieces.pop()[0].start, span.stop)
    pieces.append((span, add))


def _finished(schedule: Schedule, rank: int, edges: Ints) -> dict[int, list[Span]]:
    """Step -> the spans whose sum this rank completes there, by adding the last of the p contributions.

    Whoever gets a complete sum instead gets it from a rank that has completed it, and seen to it, in an earlier step.
    """
    spans: dict[int, list[Span]] = defaultdict(list)
    if schedule.collective not in REDUCING:
        return spans
    contributions = np.ones((schedule.p, schedule.k), dtype=np.int64)
    for t, step in enumerate(schedule.steps()):
        apply(step, contributions)
        row, chunk = step.cells()
        added = np.unique(chunk[(step.dst[row] == rank) & step.add[row]])
        for c in added[contributions[rank, added] == schedule.p].tolist():
            if edges[c] < edges[c + 1]:
                spans[t].append(Span(int(edges[c]), int(edges[c + 1])))
    return spans


def _program(turns: list[_Turn], rank: int, finished: dict[int, list[Span]]) -> Iterator[Instruction]:
    """Step by step: say where messages go, send, wait for what arrives, and fold it in."""
    number = count()
    sending: dict[int, tuple[Span, ...]] = {}  # number -> what is still being read

    def settle(span: Span) -> Iterator[Wait]:
        """Nothing may be written where a send still reads."""
        for sent in [n for n, spans in sending.items() if any(s.overlaps(span) for s in spans)]:
            del sending[sent]
            yield Wait(sent)

    for t, turn in enumerate(turns):
        landed, posted = _landings(turn), []
        for peer, into in landed.items():
            yield from settle(into)
            posted.append(next(number))
            yield Post(posted[-1], peer, t, into)
        for message in turn.sends:
            sent, spans = next(number), tuple(span for span, _ in message.pieces)
            sending[sent] = spans
            yield Send(sent, message.peer, t, spans)
        yield from map(Wait, posted)
        for fold in _folds(turn, rank, landed):
            yield from settle(fold.into)
            yield fold
        yield from map(Finish, finished.get(t, []))
    yield from map(Wait, sending)


def _landings(turn: _Turn) -> dict[int, Span]:
    """For each peer that sends to us in this step: where its message lands."""
    landings, scratch = {}, 0
    for message in turn.receives:
        span, add = message.pieces[0]
        if len(message.pieces) == 1 and not add and _is_free(turn, span, message):
            landings[message.peer] = span
        else:
            landings[message.peer] = Span(scratch, scratch + message.size, scratch=True)
            scratch += message.size
    return landings


def _is_free(turn: _Turn, span: Span, of: _Message) -> bool:
    """Whether no other message of this step reads or writes the span."""
    others = (message for message in turn.sends + turn.receives if message is not of)
    return not any(own.overlaps(span) for message in others for own, _ in message.pieces)


def _folds(turn: _Turn, rank: int, landings: dict[int, Span]) -> Iterator[Fold]:
    """What arrived in scratch memory, combined into its places: operands in rank order, our own among them."""
    arrived: dict[Span, list[tuple[int, Span, bool]]] = defaultdict(list)
    marks = sorted({mark for m in turn.receives for span, _ in m.pieces for mark in (span.start, span.stop)})
    for message in turn.receives:
        landed = landings[message.peer]
        if landed.scratch:
            for own, offset, add in _split(message, marks):
                start = landed.start + offset
                arrived[own].append((message.peer, Span(start, start + own.stop - own.start, scratch=True), add))
    for own, pieces in arrived.items():
        operands = [*pieces, (rank, own, True)] if pieces[0][2] else pieces
        yield Fold(own, tuple(span for _, span, _ in sorted(operands)))


def _split(message: _Message, marks: list[int]) -> Iterator[tuple[Span, int, bool]]:
    """A message's pieces, cut where another one begins or ends: (own span, offset in the message, add)."""
    offset = 0
    for span, add in message.pieces:
        inside = [mark for mark in marks if span.start <= mark <= span.stop]
        for start, stop in pairwise(inside):
            yield Span(start, stop), offset + start - span.start, add
        offset += span.stop - span.start
