"""One rank's program: the instructions that `plan` writes and executors follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from collectives.schedule import Ints


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
    """The same program as arrays, which `tcp.arrays` describes."""

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
