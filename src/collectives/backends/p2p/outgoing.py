"""Messages on their way out of a rank: at once or, where ranks exchange, one step's after the other.

Two messages that share a link both come late. In an exchange, such as recursive doubling or `optimal`, a rank which is
behind has the message of its step before its own has left. If it went on to the next peer at once, the first one would
wait twice as long, and be behind in its turn. So there none of a later step begins before those of the earlier ones
have left: a long one has when no more of it is under way than a link holds. A pipeline, a ring or a tree, sends what is
there, because it has to overlap. So does a pairwise all-to-all, because none of its steps waits for another.
"""

import errno
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Callable
from contextlib import suppress

from collectives.backends.p2p.connection import Connection, Message

# Bytes in flight on a link, there and back: 5 us each way at 25 GB/s, and the same in slow motion, are 250 KB.
BANDWIDTH_DELAY = 192 << 10
SEND_BUFFER = 2 << 20  # what the system takes of a message at once …
# … or how little. The system doubles it, and reports room when a third is free: when BANDWIDTH_DELAY is left.
SMALL_SEND_BUFFER = BANDWIDTH_DELAY * 3 // 4
MOST_PARTS = 1024  # that one system call takes


class Outgoing:
    """What a rank has to send, over all of its connections."""

    def __init__(self, lose: Callable[[Connection, OSError], None]) -> None:
        self.unsent: list[Connection] = []  # with messages that the system has not taken yet
        self._leaving: list[Connection] = []  # with a long last one that it has taken, but that may be on its way out
        self.step_by_step = False
        self._lose = lose

    @property
    def is_busy(self) -> bool:
        """Whether something waits to be sent, or may be on its way out."""
        return bool(self.unsent or self._leaving)

    def send(self, connection: Connection, message: Message) -> None:
        """Queue a message, and send whatever can be sent now."""
        connection.messages.append(message)
        if connection not in self.unsent:
            self.unsent.append(connection)
        self.push()

    def push(self) -> None:
        """Pass the system as much as it takes, in the order of steps."""
        if self._leaving:
            self._leaving = [each for each in self._leaving if _under_way(each.socket) > BANDWIDTH_DELAY]
        moved = True
        while moved:
            moved = False
            for connection in list(self.unsent):
                if not self._earlier(connection):
                    moved |= self._flush(connection)

    def stuck(self) -> list[Connection]:
        """The connections that need room before anything else can be sent."""
        stuck = []
        for connection in self.unsent:
            earlier = self._earlier(connection)
            leaving = [each for each in earlier if each in self._leaving]
            for each in leaving:
                _take(each, SMALL_SEND_BUFFER)
            stuck += leaving if earlier else [connection]
        return stuck

    def _earlier(self, connection: Connection) -> list[Connection]:
        """The others that have a message to send, or to see off, before this one's next."""
        if not self.step_by_step:
            return []
        order = connection.messages[0].order
        unsent = [each for each in self.unsent if each.messages[0].order < order]
        return unsent + [each for each in self._leaving if each.last < order and each is not connection]

    def _flush(self, connection: Connection) -> bool:
        """Whether all of a connection's first message is handed over."""
        message = connection.messages[0]
        if connection.send_buffer == SMALL_SEND_BUFFER:
            _take(connection, SEND_BUFFER)
        try:
            message.advance(connection.socket.sendmsg(message.parts[:MOST_PARTS]))
        except BlockingIOError:
            return False
        except OSError as error:
            failed = _failed(connection.socket, error)
            if failed:
                self.unsent.remove(connection)
                self._leaving = [each for each in self._leaving if each is not connection]
                self._lose(connection, failed)
            return False
        if message.left:
            return False
        connection.messages.popleft()
        connection.last = message.order
        if message.size > BANDWIDTH_DELAY and connection not in self._leaving:
            self._leaving.append(connection)
        if not connection.messages:
            self.unsent.remove(connection)
        return True


def _failed(connected: socket.socket, error: OSError) -> OSError | None:
    """Why a connection is lost; None where it is still being made, which macOS reports as ENOTCONN, Linux as EAGAIN."""
    if error.errno != errno.ENOTCONN:
        return error
    code = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return OSError(code, os.strerror(code)) if code else None


def _take(connection: Connection, send_buffer: int) -> None:
    """Ask the system for a send buffer of that size."""
    if connection.send_buffer != send_buffer:
        connection.send_buffer = send_buffer
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)


def _under_way(connected: socket.socket) -> int:
    """Bytes that the system has taken, but the peer's has not acknowledged."""
    with suppress(OSError):
        return int.from_bytes(fcntl.ioctl(connected, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0  # it cannot say
