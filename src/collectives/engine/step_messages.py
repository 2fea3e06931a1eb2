"""What one rank sends and receives in one step: its messages, where they land, and how they are reduced."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from collectives.engine.program import Reduce, Span
from collectives.schedule import Ints, Step

# Elements of a long message that are added up as soon as they are there, while the others are still on their way.
PIECE = 1 << 16


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


def landing_places(messages: StepMessages, taken: list[Span]) -> dict[int, Span]:
    """For each peer that sends to us in this step: where its message lands, apart from what is taken."""
    landings, aside = {}, []
    for message in messages.receives:
        span, add = message.pieces[0]
        if len(message.pieces) == 1 and not add and _is_free(messages, span, message):
            landings[message.peer] = span
        else:
            aside.append(message)
    start = _first_free_offset(sum(message.size for message in aside), taken)
    for message in aside:
        landings[message.peer] = Span(start, start + message.size, scratch=True)
        start += message.size
    return landings


def _first_free_offset(size: int, taken: list[Span]) -> int:
    """The first free range of ``size`` elements in scratch memory."""
    starts = sorted({0, *(span.stop for span in taken)})
    return next(start for start in starts if not overlap([Span(start, start + size, scratch=True)], taken))


def _is_free(messages: StepMessages, span: Span, of: PairMessage) -> bool:
    """Whether no other message of this step reads or writes the span."""
    others = (message for message in messages.sends + messages.receives if message is not of)
    return not any(own.overlaps(span) for message in others for own, _ in message.pieces)


def reductions(messages: StepMessages, rank: int, landings: dict[int, Span]) -> Iterator[Reduce]:
    """How to reduce what arrived in scratch memory into its places: operands in rank order, our own among them."""
    arrived: dict[Span, list[tuple[int, Span, bool]]] = defaultdict(list)
    marks = sorted({mark for m in messages.receives for span, _ in m.pieces for mark in (span.start, span.stop)})
    for message in messages.receives:
        landed = landings[message.peer]
        if landed.scratch:
            for own, offset, add in _split(message, marks):
                start = landed.start + offset
                arrived[own].append((message.peer, Span(start, start + own.stop - own.start, scratch=True), add))
    for own, pieces in arrived.items():
        operands = [*pieces, (rank, own, True)] if pieces[0][2] else pieces
        yield Reduce(own, tuple(span for _, span, _ in sorted(operands)))


def in_pieces(reduction: Reduce) -> Iterator[Reduce]:
    """The same reduction, PIECE elements at a time."""
    for start in range(0, reduction.into.stop - reduction.into.start, PIECE):
        into, *operands = (
            span._replace(start=span.start + start, stop=min(span.start + start + PIECE, span.stop))
            for span in (reduction.into, *reduction.operands)
        )
        yield Reduce(into, tuple(operands))


def _split(message: PairMessage, marks: list[int]) -> Iterator[tuple[Span, int, bool]]:
    """A message's pieces, cut where another one begins or ends: (own span, offset in the message, add)."""
    offset = 0
    for span, add in message.pieces:
        inside = [mark for mark in marks if span.start <= mark <= span.stop]
        for start, stop in pairwise(inside):
            yield Span(start, stop), offset + start - span.start, add
        offset += span.stop - span.start
