"""The last words of a rank that fails: why, told to all others, so that each reports the cause and not a closed socket.

A farewell is a message as any other, with a call number that no call has. A rank that hears it passes it on.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from collectives.backends.p2p.connection import HEADER, Connection, Message, MessageError
from collectives.backends.p2p.signature import NO_CALL, difference

CALL = (1 << 64) - 1
LAST = 1 << 62  # a step behind all others
MOST = 1000  # bytes of a reason
REACH = 64 << 10  # bytes behind which a farewell is not looked for
LATE = "not done within the timeout"  # why most ranks fail that wait in vain: another one may know more
PATIENCE = 1.0  # seconds for telling it, and for hearing it


class FarewellError(OSError):
    """A peer has given up, for this reason; ``who`` where it is not the peer that this rank waits for.

    ``call`` and ``signature`` say in which call, and what it was.
    """

    def __init__(self, reason: str, who: str = "it", call: int = 0, signature: bytes = NO_CALL) -> None:
        super().__init__(f"{who} has given up, because {reason}")
        self.reason, self.call, self.signature = reason, call, signature


def told(error: OSError, call: int, signature: bytes) -> str:
    """The error, and how the call in which that rank has given up differs from this rank's call of the same number."""
    if not isinstance(error, FarewellError) or error.call != call or NO_CALL in (error.signature, signature):
        return str(error)
    how = difference(error.signature, signature)
    return f"{error}; its call differs from this rank's: {how}" if how else str(error)


def reason(rank: int, error: BaseException) -> str:
    """Why this rank fails: that of another if it has heard of one, otherwise its own."""
    if isinstance(error.__cause__, FarewellError):
        return error.__cause__.reason
    return f"rank {rank} failed {error if isinstance(error, MessageError) else f'by {type(error).__name__}: {error}'}"


def farewell(peer: int, call: int, signature: bytes, why: str) -> Message:
    """The message that tells a peer why, and in which call."""
    said = why.encode()[:MOST]
    return Message(peer, call, LAST, [HEADER.pack(CALL, call, len(said), signature) + said], is_sent=True)


def heard(connected: socket.socket, header: tuple[int, int, int, bytes], begun: bytes = b"") -> FarewellError:
    """The farewell behind this header, of which ``begun`` has been read; its step is the call that failed."""
    _, call, size, signature = header
    until = time.monotonic() + PATIENCE
    with suppress(OSError):
        begun += _read(connected, min(size, MOST) - len(begun), until)
    return FarewellError(begun.decode(errors="replace"), "it", call, signature)


def last_words(connection: Connection) -> FarewellError | None:
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
                return heard(connection.socket, came)
            _read(connection.socket, came[2], until)
            header = b""
    return None


def overheard(connection: Connection) -> FarewellError | None:
    """A farewell behind messages that this rank has not asked for yet; they stay where they are."""
    if not connection.socket:
        return None
    connection.socket.setblocking(False)
    try:
        came = connection.socket.recv(REACH, socket.MSG_PEEK)
    except OSError:
        return None
    came = bytes(connection.header[: connection.got]) + came
    if connection.got == HEADER.size:
        came = came[HEADER.size + connection.messages[0].left :]
    while len(came) >= HEADER.size:
        call, step, size, signature = HEADER.unpack_from(came)
        if call == CALL:
            said = came[HEADER.size :][:size].decode(errors="replace")
            return FarewellError(said, f"rank {connection.peer}", step, signature)
        came = came[HEADER.size + size :]
    return None


def has_come(connection: Connection) -> bool:
    """Whether something has come that nobody has read."""
    with suppress(OSError):
        if connection.socket:
            connection.socket.setblocking(False)
            return bool(connection.socket.recv(1, socket.MSG_PEEK))
    return False


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
