"""A rank's end of one connection to or from a peer, and the messages that use it."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from collectives.backends.p2p.signature import SIZE, difference

AGREEMENT = 1 << 32  # the first step of a call's `agreement`, behind those of any schedule
HEADER = struct.Struct(f"<QQQ{SIZE}s")  # call, step, bytes, and what the call is
GONE = "it has gone"  # why a connection is lost that its peer has closed


class Message:
    """Bytes on their way: to or from whom, in which step of which call, and what is left of them."""

    __slots__ = ("call", "is_sent", "left", "parts", "peer", "size", "step")

    def __init__(self, peer: int, call: int, step: int, parts: list[bytes | memoryview], is_sent: bool) -> None:
        self.peer, self.call, self.step, self.parts, self.is_sent = peer, call, step, parts, is_sent
        self.size = self.left = sum(map(len, parts))

    @property
    def order(self) -> tuple[int, int]:
        """(call, step): the smaller goes first."""
        return self.call, self.step

    def advance(self, count: int) -> None:
        """Count bytes that were sent or received, and drop the parts that they complete."""
        self.left -= count
        while self.left and count:
            first = self.parts[0]
            if len(first) > count:
                self.parts[0] = first[count:]
                return
            count -= len(self.parts.pop(0))


def named(step: int) -> str:
    """How an error names a step.

    >>> named(3), named(AGREEMENT + 1)
    ('step 3', 'the agreement at its end')
    """
    return f"step {step}" if step < AGREEMENT else "the agreement at its end"


class MessageError(RuntimeError):
    """A message that did not arrive or could not be sent: in which step, to or from whom, and why."""

    def __init__(self, is_sent: bool, step: int, peer: int, why: object) -> None:
        verb = "sending to" if is_sent else "receiving from"
        super().__init__(f"in {named(step)}, {verb} rank {peer}: {why}")


def take(connection: Connection, message: Message, signature: bytes) -> int:
    """How many bytes of the message itself have come. Raises OSError if the peer has gone, or sends another message."""
    missing = HEADER.size - connection.got
    if not missing:
        return _some(connection.socket.recv_into(message.parts[0]))
    header = connection.header[connection.got :]
    count = _some(connection.socket.recvmsg_into([header, message.parts[0]])[0])
    connection.got += min(count, missing)
    if count < missing:
        return 0
    need_expected(HEADER.unpack(connection.header), (message.call, message.step, message.left, signature))
    return count - missing


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError(GONE)
    return count


def peek(connected: socket.socket, size: int) -> bytes | None:
    """What has come that nobody has read, at most ``size`` bytes: None if nothing, no byte if the peer has closed."""
    connected.setblocking(False)
    try:
        return bytes(connected.recv(size, socket.MSG_PEEK))
    except BlockingIOError:
        return None
    except OSError:
        return b""


def need_expected(came: tuple[int, int, int, bytes], awaited: tuple[int, int, int, bytes]) -> None:
    """Raise OSError where a header (call, step, bytes, signature) is not that of the message that is next."""
    if came[3] != awaited[3]:
        raise OSError(
            f"ranks must call alike, but its call differs from this rank's: {difference(came[3], awaited[3])}"
        )
    if came != awaited:
        said = [f"call {call}, {named(step)}, {count} bytes" for call, step, count, _ in (came, awaited)]
        raise OSError(f"{said[0]} came, not {said[1]}: do all ranks make the same calls, with the same sizes?")


class Connection:
    """One end of a connection to or from a peer, if there is one yet, and the messages that are to use it."""

    __slots__ = (
        "got",
        "handler",
        "header",
        "last",
        "messages",
        "number",
        "peer",
        "receive_low_water",
        "send_buffer",
        "socket",
    )

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.socket: Any = None
        self.number = -1  # of the socket, with the system
        self.handler: Callable[[], None] = nothing
        self.messages: deque[Message] = deque()
        self.header, self.got = memoryview(bytearray(HEADER.size)), 0  # in: of the message that comes next
        self.receive_low_water = 1  # in: how many bytes wake us
        self.send_buffer = 0  # out: how many bytes the system takes at once, where it was told
        self.last = 0, 0  # out: call and step of the last message that the system has taken


def nothing() -> None:
    """The handler of a connection that is not made yet."""


def prepare(connected: socket.socket) -> None:
    """Make a socket non-blocking, and have it send small messages at once."""
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
