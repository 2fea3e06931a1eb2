"""The abort of a rank that fails: it tells all others why, so that each reports the cause and not a closed socket.

An abort is a message like any other, with a call number that no call has. A rank that receives one passes it on. What
comes over a connection is the message that the rank asked for, or an abort (`take`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from collectives.backends.p2p.connection import HEADER, Connection, Message, MessageError, need_expected
from collectives.backends.p2p.signature import NO_CALL, difference

CALL = (1 << 64) - 1
LAST = 1 << 62  # a step behind all others
MOST = 1000  # bytes of a reason
REACH = 64 << 10  # bytes behind which no abort is looked for
LATE = "not done within the timeout"  # why most ranks fail that wait in vain: another one may know more
PATIENCE = 1.0  # seconds for telling it, and for hearing it


class AbortError(OSError):
    """A peer has given up, for this reason; ``who`` where it is not the peer that this rank waits for.

    ``call`` and ``signature`` say in which call, and what it was.
    """

    def __init__(self, reason: str, who: str = "it", call: int = 0, signature: bytes = NO_CALL) -> None:
        super().__init__(f"{who} has given up, because {reason}")
        self.reason, self.call, self.signature = reason, call, signature


def describe(error: OSError, call: int, signature: bytes) -> str:
    """The error, and how the call in which that rank has given up differs from this rank's call of the same number."""
    if not isinstance(error, AbortError) or error.call != call or NO_CALL in (error.signature, signature):
        return str(error)
    how = difference(error.signature, signature)
    return f"{error}; its call differs from this rank's: {how}" if how else str(error)


def reason(rank: int, error: BaseException) -> str:
    """Why this rank fails: that of another if it has heard of one, otherwise its own."""
    if isinstance(error.__cause__, AbortError):
        return error.__cause__.reason
    return f"rank {rank} failed {error if isinstance(error, MessageError) else f'by {type(error).__name__}: {error}'}"


def abort_message(peer: int, call: int, signature: bytes, why: str) -> Message:
    """The message that tells a peer why, and in which call."""
    said = why.encode()[:MOST]
    return Message(peer, call, LAST, [HEADER.pack(CALL, call, len(said), signature) + said], is_sent=True)


def read_abort(connected: socket.socket, header: tuple[int, int, int, bytes], begun: bytes = b"") -> AbortError:
    """The abort behind this header, of which ``begun`` has been read; its step is the call that failed."""
    _, call, size, signature = header
    until = time.monotonic() + PATIENCE
    with suppress(OSError):
        begun += _read(connected, min(size, MOST) - len(begun), until)
    return AbortError(begun.decode(errors="replace"), "it", call, signature)


def drain_abort(connection: Connection) -> AbortError | None:
    """What the peer said at last, if it comes soon; messages before it are dropped, as this rank is about to fail."""
    until, header = time.monotonic() + PATIENCE, bytes(connection.header[: connection.got])
    with suppress(OSError):
        if connection.got == HEADER.size:
            _read(connection.socket, connection.messages[0].left, until)
            header = b""
        while True:
            header += _read(connection.socket, HEADER.size - len(header), until)
            came = HEADER.unpack(header)
            if came[0] == CALL:
                return read_abort(connection.socket, came)
            _read(connection.socket, came[2], until)
            header = b""
    return None


def peek_abort(connection: Connection) -> AbortError | None:
    """An abort behind messages that this rank has not asked for yet; they stay where they are."""
    if not connection.socket:
        return None
    came = bytes(connection.header[: connection.got]) + (_peek(connection, REACH) or b"")
    if connection.got == HEADER.size:
        came = came[HEADER.size + connection.messages[0].left :]
    while len(came) >= HEADER.size:
        call, step, size, signature = HEADER.unpack_from(came)
        if call == CALL:
            said = came[HEADER.size :][:size].decode(errors="replace")
            return AbortError(said, f"rank {connection.peer}", step, signature)
        came = came[HEADER.size + size :]
    return None


def has_come(connection: Connection) -> bool:
    """Whether something has come that nobody has read."""
    return bool(connection.socket and _peek(connection, 1))


def has_gone(connection: Connection) -> bool:
    """Whether the peer has closed its end, and all that it sent before has been read."""
    return _peek(connection, 1) == b""


def _peek(connection: Connection, size: int) -> bytes | None:
    """What has come that nobody has read, at most ``size`` bytes: None if nothing, no byte if the peer has closed."""
    connection.socket.setblocking(False)
    try:
        return bytes(connection.socket.recv(size, socket.MSG_PEEK))
    except BlockingIOError:
        return None
    except OSError:
        return b""


def no_sign(ranks: Sequence[int]) -> str:
    """What is known of ranks that have not waited as long as the others.

    >>> no_sign([1])
    'rank 1 gave no sign in time (late, stopped, or never called)'
    """
    named = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"{named} gave no sign in time (late, stopped, or never called)"


def _read(connected: socket.socket, size: int, until: float) -> bytes:
    """That number of bytes. Raises OSError if they do not come in time."""
    came = b""
    while len(came) < size:
        connected.settimeout(max(until - time.monotonic(), 1e-3))
        piece = connected.recv(min(size - len(came), 1 << 20))
        if not piece:
            raise ConnectionResetError("it has gone")
        came += piece
    return came


def take(connection: Connection, message: Message, signature: bytes) -> int:
    """How many bytes of the message itself have come. Raises OSError where the peer has gone, or says another thing."""
    missing = HEADER.size - connection.got
    if not missing:
        return _some(connection.socket.recv_into(message.parts[0]))
    header = connection.header[connection.got :]
    count = _some(connection.socket.recvmsg_into([header, message.parts[0]])[0])
    connection.got += min(count, missing)
    if count < missing:
        return 0
    need_asked_for(connection, message, signature, bytes(message.parts[0][: count - missing]))
    return count - missing


def need_asked_for(connection: Connection, message: Message, signature: bytes, begun: bytes) -> None:
    """Raise OSError where the header that has come is another message's, or an abort's, of which some has come."""
    came = HEADER.unpack(connection.header)
    if came[0] == CALL:
        raise read_abort(connection.socket, came, begun)
    need_expected(came, (message.call, message.step, message.left, signature))


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("it has gone")
    return count
