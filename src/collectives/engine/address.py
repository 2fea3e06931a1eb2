"""Addresses and names of a group's ranks, their greeting, and their sockets."""

from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.engine.exchange import everyones
from collectives.engine.signature import SIZE
from collectives.launch.address import interface_address, named_interface

TOKEN_BYTES = 16
_TOLD = struct.Struct(f"<4sH{TOKEN_BYTES}s?")  # host, port, token, whether it can share memory
# Token and rank. An abort adds the call that failed, its signature, and the reason, which zeros fill up.
GREETING = struct.Struct(f"<{TOKEN_BYTES}sIQ{SIZE}s1000s")


def introduce(
    listener: socket.socket, group: dist.ProcessGroup, shares: bool
) -> tuple[list[tuple[str, int]], bytes, bool]:
    """Each rank's (host, port), a token that all of them know, rank 0's, and whether all of them can share memory.

    All ranks of the group call it alike.
    """
    host, port = listener.getsockname()
    told = everyones(_TOLD.pack(socket.inet_aton(host), port, secrets.token_bytes(TOKEN_BYTES), shares), group)
    found = [_TOLD.unpack(each) for each in told]
    addresses = [(socket.inet_ntoa(host), port) for host, port, *_ in found]
    return addresses, found[0][2], all(each[3] for each in found)


def global_ranks(group: dist.ProcessGroup) -> list[int]:
    """Return the global rank of each rank of the group, as errors name it; its own where torch does not know it."""
    return [*c10d._world.pg_group_ranks.get(group, range(group.size()))]


def own_address() -> str:
    """The IPv4 address at which others reach this rank: of the interface in GLOO_SOCKET_IFNAME, or of the host name.

    Of several interfaces, with commas between them as torch takes them, it is the first.

    Raises OSError if the interface has no IPv4 address here, or the host's name has none.
    """
    name = named_interface()
    if not name:
        return socket.gethostbyname(socket.gethostname())
    address = interface_address(name)
    if address is None:
        raise OSError(f"GLOO_SOCKET_IFNAME names {name!r}, which has no IPv4 address here")
    return address


def prepare(connected: socket.socket) -> None:
    """Make a socket non-blocking, and have it send small messages at once."""
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def peek(connected: socket.socket, size: int) -> bytes | None:
    """What has come that nobody has read, at most ``size`` bytes: None if nothing, no byte if the peer has closed."""
    connected.setblocking(False)
    try:
        return bytes(connected.recv(size, socket.MSG_PEEK))
    except BlockingIOError:
        return None
    except OSError:
        return b""


def tell(addresses: Iterable[tuple[str, int]], greeting: bytes, seconds: float) -> None:
    """Connect to all of these addresses at once, send the greeting, and close; after ``seconds`` skip the rest."""
    until, poll, sockets = time.monotonic() + seconds, select.poll(), dict[int, socket.socket]()
    with ExitStack() as stack:
        for address in addresses:
            each = stack.enter_context(socket.socket())
            prepare(each)
            each.connect_ex(address)
            poll.register(each, select.POLLOUT)
            sockets[each.fileno()] = each
        while sockets and (left := until - time.monotonic()) > 0:
            for number, _ in poll.poll(left * 1e3):
                poll.unregister(number)
                with suppress(OSError):  # nobody listens there
                    sockets.pop(number).sendall(greeting)
