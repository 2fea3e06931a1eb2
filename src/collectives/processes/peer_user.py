"""Tells whether the process at the other end of a Unix socket is the same user's (Linux)."""

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # process, user, group


def is_ours(peer: socket.socket) -> bool:
    """Whether the process that connected has this process's user; the kernel says so, not the peer.

    >>> one, other = socket.socketpair()
    >>> with one, other:
    ...     is_ours(one)
    True
    """
    said = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(said)[1] == os.geteuid())
