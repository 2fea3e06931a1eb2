"""The instructions of one rank's program: what `plan` writes and a player carries out, in order, without thinking."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """Elements ``start`` to ``stop`` of the tensor, or of scratch memory."""

    start: int
    stop: int
    scratch: bool = False

    def overlaps(self, other: Span) -> bool:
        """Whether the two have an element in common."""
        return self.start < other.stop and other.start < self.stop and self.scratch == other.scratch


class Send(NamedTuple):
    """Send these spans of the tensor to ``peer``, as one message, without waiting."""

    number: int
    peer: int
    step: int
    spans: tuple[Span, ...]


class Post(NamedTuple):
    """Get ready to receive a message from ``peer`` into one span."""

    number: int
    peer: int
    step: int
    into: Span


class Wait(NamedTuple):
    """Wait until the send or receive of this number is done."""

    number: int


class Fold(NamedTuple):
    """Combine the operands, in this order, into ``into``; one operand alone is copied there."""

    into: Span
    operands: tuple[Span, ...]


class Finish(NamedTuple):
    """The sum in this span is complete and was made here: divide it now, if an average is wanted."""

    span: Span


Instruction = Send | Post | Wait | Fold | Finish


class Plan(NamedTuple):
    """One rank's program, the elements of scratch memory it needs, and whether it writes into the tensor at all."""

    program: tuple[Instruction, ...]
    scratch: int
    writes: bool
