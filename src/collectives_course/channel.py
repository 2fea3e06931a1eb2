"""The grader's end of the connection to one rank: never blocks, reads no more than is allowed, and counts time.

A rank is charged for what it computes, and for what it sleeps in its turn, however often it asks something meanwhile.
Its waits for a processor, for a message or for the grader are free, so a busy machine gives the same verdict as an idle
one. In a criterion a rank may compute for ``limit`` seconds, less what all ranks have slept.
"""

import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from collectives_course import wire

PIECE = 1 << 20
TICK = 0.1  # seconds between two looks


class GoneError(Exception):
    """The rank has closed its end: its process has ended."""


class Used(NamedTuple):
    """Of a rank: seconds computed, whether it sleeps now, bytes of its own, and seconds waited for a processor."""

    computed: float
    sleeps: bool
    memory: int = 0
    waited: float = 0.0


Usage = Callable[[], Used]


def by_clock() -> Used:
    """The usage of a rank that is a thread: all time that passes."""
    return Used(time.monotonic(), False)


class UsageMeter:
    """``usage`` tells what a rank uses, ``last`` is the last answer; ``spent``, ``slept``, ``waited``: seconds so far.

    What a rank has slept is part of what it has spent. What it has waited for a processor is not.
    """

    def __init__(self, usage: Usage = by_clock) -> None:
        self.usage = usage
        self.spent = self.slept = self.waited = 0.0
        self.last, self.at = usage(), time.monotonic()

    def look(self) -> None:
        """Count what the rank has computed since the last look."""
        self.count(self.usage())

    def count(self, used: Used, is_its_turn: bool = False) -> None:
        """Count the time since the last look, by what ``usage`` told now; sleep counts only in the rank's turn.

        A look that comes late, because the grader itself waited for a processor, counts no more sleep than one in time.
        """
        now, computed = time.monotonic(), used.computed - self.last.computed
        asleep = max(0.0, min(now - self.at, 2 * TICK) - computed) if is_its_turn and used.sleeps else 0.0
        self.slept += asleep
        self.spent += computed + asleep
        self.waited += used.waited - self.last.waited
        self.last, self.at = used, now


def _no_line(_file: str) -> int:
    return 0


class Channel:
    """``connection`` leads to the rank. ``ended`` says why its process ended, ``stack`` the line at which it is.

    ``meter`` counts the time that the rank uses, by ``usage``; ``moved`` counts the pieces that have come or gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        ended: Callable[[], str] = lambda: "its thread has ended",
        stack: Callable[[str], int] = _no_line,
        usage: Usage = by_clock,
    ) -> None:
        self.connection = connection
        self.ended = ended
        self.stack = stack
        self.unread = bytearray()
        self.unsent = bytearray()
        self.moved = 0
        self.meter = UsageMeter(usage)
        connection.setblocking(False)

    def send(self, value: Any) -> None:
        """Send a value; what the socket does not take now goes with `flush`."""
        self.unsent += wire.pack(value)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        try:
            while self.unsent:
                del self.unsent[: self.connection.send(memoryview(self.unsent)[:PIECE])]
                self.moved += 1
        except BlockingIOError:
            return
        except OSError:
            self.unsent.clear()  # it has ended, which the next read says

    def receive(self) -> list[Any]:
        """The value that has arrived as a whole, or none.

        Raises GoneError, or WireError for bytes that are no value, and for a rank that speaks before it has read the
        last answer: one that only sends would otherwise fill this process's memory.
        """
        try:
            piece = self.connection.recv(PIECE)
        except BlockingIOError:
            return []
        except OSError:
            piece = b""
        if not piece:
            raise GoneError(self.ended())
        self.unread += piece
        self.moved += 1
        frame = self._frame()
        if frame is None:
            return []
        if self.unread or self.unsent:
            raise wire.WireError("it speaks before it has read the answer")
        return [wire.unpack(*wire.split(frame))]

    def wait(self, seconds: float) -> Any:
        """The next value. Raises TimeoutError after so many seconds, and what `receive` raises."""
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                self.flush()
                if selector.select(min(left, 0.1)) and (values := self.receive()):
                    return values[0]
        raise TimeoutError

    def _frame(self) -> bytes | None:
        if len(self.unread) < wire.LENGTHS.size:
            return None
        size = wire.LENGTHS.size + sum(wire.lengths(bytes(self.unread[: wire.LENGTHS.size])))
        if len(self.unread) < size:
            return None
        frame = bytes(self.unread[:size])
        del self.unread[:size]
        return frame
