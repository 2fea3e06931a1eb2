"""The grader's end of the connection to one rank: never blocks, reads no more than is allowed, and counts time.

What counts of a rank's time is what it computes, and what it sleeps in its turn, but no wait for a processor. So a
submission gets the same on a machine that is busy with other things. A rank may use ``limit`` seconds in all calls
of a criterion together. What others make it wait for (a message, a processor, the grader) is free.
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
    """Of a rank: processor time so far in seconds, whether it sleeps now, and the bytes of memory that are its own."""

    seconds: float
    sleeps: bool
    memory: int = 0


Usage = Callable[[], Used]


def by_clock() -> Used:
    """The usage of a rank that is a thread: all time that passes."""
    return Used(time.monotonic(), False)


class UsageMeter:
    """``usage`` tells what a rank uses; ``spent``: the seconds that count, ``memory``: its bytes by the last look."""

    def __init__(self, usage: Usage = by_clock) -> None:
        self.usage = usage
        self.spent = 0.0
        self.computed, _, self.memory = usage()
        self.at = time.monotonic()

    def start(self) -> None:
        """A call begins: the time since the last one counts only as far as the rank has computed."""
        self.look(is_silent=False)

    def look(self, is_silent: bool) -> None:
        """Count the time since the last look. ``is_silent``: it was the rank's turn, and it said nothing.

        A look that comes late, because the grader itself waited for a processor, counts no more sleep than one in time.
        """
        (computed, sleeps, self.memory), now = self.usage(), time.monotonic()
        asleep = min(now - self.at, 2 * TICK) if is_silent and sleeps and computed <= self.computed else 0.0
        self.spent += max(computed - self.computed, asleep)
        self.computed, self.at = computed, now


def _no_line(_file: str) -> int:
    return 0


class Channel:
    """``connection`` leads to the rank. ``ended`` says why its process ended, ``stack`` the line at which it is.

    ``meter`` counts the time that the rank uses, by ``usage``; ``arrived`` the values that have
    come, and large pieces of one: bytes that trickle in are no sign of life.
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
        self.arrived = 0
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
        self.arrived += len(piece) >> 16
        frame = self._frame()
        if frame is None:
            return []
        self.arrived += 1
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
