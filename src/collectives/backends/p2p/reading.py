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
    need_asked_for(connection, message, signature, bytes(message.parts[0][: count - missing]))
    return count - missing


def need_asked_for(connection: Connection, message: Message, signature: bytes, begun: bytes) -> None:
    """Raise OSError where the header that has come is another message's, or a farewell's, of which some has come."""
    came = HEADER.unpack(connection.header)
    if came[0] == CALL:
        raise heard(connection.socket, came, begun)
    need_expected(came, (message.call, message.step, message.left, signature))


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("it has gone")
    return count
