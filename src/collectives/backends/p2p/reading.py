"""What comes over a connection: the header of the message that is asked for, and its bytes; or a farewell."""

from __future__ import annotations

from collectives.backends.p2p.connection import HEADER, Connection, Message, need_expected
from collectives.backends.p2p.farewell import CALL, heard


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
    came = HEADER.unpack(connection.header)
    if came[0] == CALL:
        raise heard(connection.socket, came, bytes(message.parts[0][: count - missing]))
    need_expected(came, (message.call, message.step, message.left, signature))
    return count - missing


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("it has gone")
    return count
