"""The connections of one rank to its peers: each rank listens, and a peer that shows the group's token is let in.

Every pair of ranks has one connection each way, made when it is first needed. Connections progress while a rank waits
(`Mesh.wait`), which reads only messages that have been asked for. All others stay in the system's buffers, and when
these are full TCP holds their sender back: a rank that is ahead does not take the link away from one that is behind.
(`outgoing` says how a rank does not take it away from itself.) A rank asks for a peer's messages in the order in which
they are sent.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from collectives.backends.p2p import local
from collectives.backends.p2p.abort import AbortError
from collectives.backends.p2p.address import GREETING, introduce, own_address
from collectives.backends.p2p.connection import HEADER, Connection, Message, peek, prepare, take
from collectives.backends.p2p.outgoing import Outgoing
from collectives.backends.p2p.signature import NO_CALL

RECEIVE_LOW_WATER = 128 << 10  # bytes of a longer message; with fewer a rank would do nothing but wake up and read
WINDOW = 384 << 10  # bytes of a message that come before they are asked for, or read
POLL_INTERVAL = 1.0  # seconds after which a rank that waits looks for aborts and for strangers that are overdue
# Connections that may wait to greet beside those of the group's own ranks, and for how many seconds each may.
MOST_VISITORS, VISIT = 64, 5.0


class Peers:
    """The connections of one rank to the others of its group; made by all of them together."""

    def __init__(self, group: dist.ProcessGroup, background: bool = False) -> None:
        self.rank, self.size = group.rank(), group.size()
        self._options: Any = group._get_backend(torch.device("cpu")).options
        self.call, self.signature, self.is_open, self._is_busy = 0, NO_CALL, True, False
        self.listener = socket.create_server((own_address(), 0), backlog=self.size + MOST_VISITORS)
        self.listener.setblocking(False)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)  # of what it accepts, too
        self.addresses, self._token, shares = introduce(self.listener, group, bool(local.published()))
        self.ranks_per_host = local.ranks_per_host(self.addresses) if shares else 1
        self.has_network = len({host for host, _ in self.addresses}) > 1  # whether any rank is on another host
        self.spins = local.spins(self.addresses, self.rank, background)
        # Connections that have not greeted yet, and until when they may.
        self._visitors: dict[socket.socket, float] = {}
        self.out: dict[int, Connection] = {}
        self.outgoing = Outgoing(partial(self.lose, is_sent=True))
        self.into: dict[int, Connection] = {}
        self._lost: dict[tuple[int, bool], OSError] = {}  # (peer, is sent) -> why
        self._heard: dict[int, AbortError] = {}  # peer -> why it has given up
        # For the compiled loop: numbers of the sockets to and from each peer; -1 without.
        self.sockets = np.full((self.size, 2), -1)
        self._poll, self._handlers = select.poll(), dict[int, Callable[[], None]]()
        self._watch(self.listener, select.POLLIN, self._accept)

    @property
    def on_host(self) -> range:
        """The ranks of this host, if they share memory."""
        first = self.rank - self.rank % self.ranks_per_host
        return range(first, first + self.ranks_per_host)

    def send(self, peer: int, step: int, parts: list[memoryview]) -> Message:
        """Send these bytes as one message, without waiting; they may not change until `Mesh.wait` has seen it leave."""
        header = HEADER.pack(self.call, step, sum(map(len, parts)), self.signature)
        message = Message(peer, self.call, step, [header, *parts], is_sent=True)
        connection = self.out.get(peer) or self._connect(peer)
        self.outgoing.send(connection, message)
        return message

    def receive(self, peer: int, step: int, into: memoryview) -> Message:
        """Receive the peer's message of this step into ``into``, without waiting; ask in the order of sending."""
        message = Message(peer, self.call, step, [into], is_sent=False)
        connection = self.into.get(peer) or self.into.setdefault(peer, Connection(peer))
        connection.messages.append(message)
        return message

    def progress(self, seconds: float) -> None:
        """Read what has arrived, and send what the system takes; wait at most so many seconds for the first of it."""
        for connection in self.outgoing.stuck():
            if connection.number not in self._handlers:
                self._watch(connection.socket, select.POLLOUT, connection.handler)
        for visitor, until in list(self._visitors.items()):
            if until < time.monotonic():
                self._dismiss(visitor)
        for number, _ in self._poll.poll(min(seconds, POLL_INTERVAL) * 1e3):
            if number in self._handlers:  # an earlier one may have ended it
                self._handlers[number]()

    @property
    def has_visitors(self) -> bool:
        """Whether somebody has connected and may say at any time which rank it is."""
        return bool(self._visitors)

    def _neighbours(self) -> set[int]:
        """The ranks that this one is connected with, and those at distances of 1, 2, 4, …: few, but all soon hear."""
        steps = [1 << i for i in range((self.size - 1).bit_length())]
        far = {(self.rank + sign * step) % self.size for step in steps for sign in (-1, 1)}
        return (far | set(self.out) | set(self.into)) - {self.rank}

    def close(self) -> None:
        """Give up, from any thread: a call under way here, and all ranks that wait for this one, fail at once."""
        self.is_open = False
        self._options = None  # they hold a socket of gloo's
        for each in self._sockets():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # which wakes a thread that waits for it, as closing would not
            if not self._is_busy:
                each.close()

    def _sockets(self) -> Iterator[socket.socket]:
        connections = [*self.out.values(), *self.into.values()]
        yield from (connection.socket for connection in connections if connection.socket)
        yield from self._visitors
        yield self.listener

    def _watch(self, which: socket.socket, events: int, handler: Callable[[], None]) -> None:
        self._poll.register(which, events)
        self._handlers[which.fileno()] = handler

    def _ignore(self, number: int) -> None:
        if self._handlers.pop(number, None):
            self._poll.unregister(number)

    def _connect(self, peer: int, step: int = 0) -> Connection:
        connection, greeting = self.out.setdefault(peer, Connection(peer)), self.greeting()
        connection.handler = partial(self._go_on, connection)
        connected = socket.socket()
        prepare(connected)
        self._use(connection, connected, is_sent=True)
        code = connected.connect_ex(self.addresses[peer])
        if code not in (0, errno.EINPROGRESS):
            self.lose(connection, OSError(code, os.strerror(code)), is_sent=True)
        self.outgoing.send(connection, Message(peer, 0, step, [greeting], is_sent=True))
        return connection

    def greeting(self, reason: str = "") -> bytes:
        """What this rank says first to one that it connects to; with a reason it gives up."""
        return GREETING.pack(self._token, self.rank, self.call, self.signature, reason.encode())

    def _use(self, connection: Connection, connected: socket.socket, is_sent: bool) -> None:
        """A connection goes over this socket."""
        connection.socket, connection.number = connected, connected.fileno()
        self.sockets[connection.peer, 0 if is_sent else 1] = connection.number

    def _go_on(self, connection: Connection) -> None:
        """There is room to send."""
        self._ignore(connection.number)
        self.outgoing.push()

    def _accept(self) -> None:
        try:
            connected, _ = self.listener.accept()
        except OSError:  # the caller has closed
            return
        prepare(connected)
        # Poll reports it when its whole greeting has come, or when it has closed.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, GREETING.size)
        self._visitors[connected] = time.monotonic() + VISIT
        self._watch(connected, select.POLLIN, partial(self._greet, connected))
        if len(peek(connected, GREETING.size) or b"") == GREETING.size:  # mostly it has by now
            self._greet(connected)
        for first in list(self._visitors)[: -(self.size + MOST_VISITORS)]:
            self._dismiss(first)

    def _greet(self, visitor: socket.socket) -> None:
        """Learn which rank it is, and whether it has given up; a stranger is turned away."""
        said = peek(visitor, GREETING.size) or b""
        token, peer, call, signature, reason = GREETING.unpack(said.ljust(GREETING.size))
        known = len(said) == GREETING.size and secrets.compare_digest(token, self._token) and peer < self.size
        if known and not reason.strip(b"\0"):
            self._let_in(visitor, peer)
            return
        if known:
            why = reason.rstrip(b"\0").decode(errors="replace")
            self._heard.setdefault(peer, AbortError(peer, why, call, signature))
        self._dismiss(visitor)

    def _let_in(self, visitor: socket.socket, peer: int) -> None:
        self._ignore(visitor.fileno())
        del self._visitors[visitor]
        visitor.recv(GREETING.size)
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        connection = self.into.get(peer) or self.into.setdefault(peer, Connection(peer))
        connection.handler = partial(self._read, connection)
        self._use(connection, visitor, is_sent=False)

    def _dismiss(self, visitor: socket.socket) -> None:
        self._ignore(visitor.fileno())
        del self._visitors[visitor]
        visitor.close()

    def _listen(self, connection: Connection) -> None:
        """Be told of what comes, as soon as there is a connection."""
        if connection.socket and connection.number not in self._handlers:
            self._watch(connection.socket, select.POLLIN, connection.handler)

    def _read(self, connection: Connection) -> None:
        """Take what has come of the first message that is asked for: its header and what is behind it."""
        if not connection.messages:  # what comes is for a later message, or an abort: it waits in the socket
            self._ignore(connection.number)
            return
        message = connection.messages[0]
        try:
            message.advance(take(connection, message, self.signature))
        except (BlockingIOError, TimeoutError):
            return
        except OSError as error:
            self.lose(connection, error, is_sent=False)
            return
        receive_low_water = RECEIVE_LOW_WATER if message.left >= RECEIVE_LOW_WATER else 1
        if receive_low_water != connection.receive_low_water:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, receive_low_water)
            connection.receive_low_water = receive_low_water
        if not message.left:
            connection.got = 0
            connection.messages.popleft()
            self._ignore(connection.number)

    def lose(self, connection: Connection, error: OSError, is_sent: bool) -> None:
        """A connection has failed: a call that needs it raises the error."""
        self._ignore(connection.number)
        # Without traceback and context: their frames hold the group, which is freed before this object.
        error.__context__ = None
        self._lost[connection.peer, is_sent] = error.with_traceback(None)
