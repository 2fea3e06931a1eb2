"""A program whose messages travel in a wire's format: encoded before they are sent, decoded when they have come."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.engine.program import Decode, Encode, Instruction, Recv, Send, Span, Task, Wait
from collectives.wire import FLOAT, WIRES


class Coder:
    """Gives each message a place of its own in scratch memory, behind what the program needs already.

    Elements are float32, and every span has whole blocks. What is sent is rounded in the sender's tensor, too.
    """

    def __init__(self, wire: str, scratch: int) -> None:
        self._wire, self._end = WIRES[wire], FLOAT * scratch
        self._arriving: dict[int, Decode] = {}  # number of a message -> what is to be done when it has come

    @property
    def scratch(self) -> int:
        """The elements of scratch memory that are needed now."""
        return -(-self._end // FLOAT)

    def coded(self, program: tuple[Task, ...]) -> tuple[Task, ...]:
        """The same program with encoded messages."""
        return tuple(task._replace(instructions=tuple(self._task(task.instructions))) for task in program)

    def _task(self, instructions: tuple[Instruction, ...]) -> Iterator[Instruction]:
        encoded: dict[tuple[Span, ...], Span] = {}  # what was sent since this task last wrote
        for do in instructions:
            if isinstance(do, Send):
                if do.spans not in encoded:
                    encoded[do.spans] = self._place(*do.spans)
                    yield Encode(encoded[do.spans], do.spans)
                yield do._replace(spans=(encoded[do.spans],))
            elif isinstance(do, Recv):
                self._arriving[do.number] = Decode(do.into, self._place(do.into))
                yield do._replace(into=self._arriving[do.number].coded)
            elif isinstance(do, Wait):
                yield from self._wait(do)
            else:
                yield do
            if not isinstance(do, Send | Recv):
                encoded.clear()

    def _wait(self, do: Wait) -> Iterator[Instruction]:
        """For a whole message, and once: no part of it can be decoded alone."""
        if decode := self._arriving.pop(do.number, None):
            yield from (do._replace(missing=0), decode)
        elif not do.missing:
            yield do

    def _place(self, *spans: Span) -> Span:
        """Scratch memory for these elements, encoded."""
        start = self._end
        self._end += self._wire.nbytes(sum(span.stop - span.start for span in spans))
        return Span(start, self._end, scratch=True, coded=True)
