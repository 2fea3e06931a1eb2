"""The connections of one rank to its peers: each rank listens, and a peer that shows the group's token is let in.

Every pair of ranks has one connection each way, made when it is first needed. The `loop` sends and receives over them.
It reads only messages that have been asked for. All others stay in the system's buffers, and when these are full TCP
holds their sender back: a rank that is ahead does not take the link away from one that is behind. (`tcp.outgoing` says
how a rank does not take it away from itself.) A rank asks for a peer's messages in the order in which they are sent.
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

import torch
from torch import distributed as dist

from collectives.engine import local
from collectives.engine.abort import AbortError
from collectives.engine.address import GREETING, global_ranks, introduce, own_address, peek, prepare
from collectives.engine.signature import NO_CALL
from collectives.engine.tcp.arrays import INTO, OUT, new_links

WINDOW = 384 << 10  # bytes of a message that come before they are asked for, or read
POLL_INTERVAL = 1.0  # seconds after which a rank that waits looks for aborts and for strangers that are overdue
# Connections that may wait to greet beside those of the group's own ranks, and for how many seconds each may.
MOST_VISITORS, VISIT = 64, 5.0


class Peers:
    """The connections of one rank to the others of its group; made by all of them together."""

    def __init__(self, group: dist.ProcessGroup, background: bool = False) -> None:
        self.rank, self.size, self.names = group.rank(), group.size(), global_ranks(group)
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
        self._dialed: dict[int, socket.socket] = {}  # not connected yet, by peer
        self.out: dict[int, socket.socket] = {}
        self.into: dict[int, socket.socket] = {}
        self._lost: dict[tuple[int, bool], OSError] = {}  # (peer, is sent) -> why
        self._heard: dict[int, AbortError] = {}  # peer -> why it has given up
        self._awaited: set[int] = set()  # peers that this rank waited for when the loop last paused
        self.links = new_links(self.size)  # for the loop
        self._poll, self._handlers = select.poll(), dict[int, Callable[[], None]]()
        self._watch(self.listener, select.POLLIN, self._accept)

    @property
    def on_host(self) -> range:
        """The ranks of this host, if they share memory."""
        first = self.rank - self.rank % self.ranks_per_host
        return range(first, first + self.ranks_per_host)

    def progress(self, seconds: float) -> None:
        """Go on with connections that are being made; wait at most so many seconds for the first of them."""
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
        return (far | {*self.out, *self.into, *self._awaited}) - {self.rank}

    def close(self) -> None:
        """Give up, from any thread: a call under way here, and all ranks that wait for this one, fail at once."""
        self.is_open = False
        self._options = None  # they hold a socket of gloo's
        for each in self._sockets():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # which wakes a thread that waits for it, as closing would not
            if not self._is_busy:
                each.close()

    def release(self) -> None:
        """Close this process's copies of the sockets, and no connection: another process has them, too."""
        self.is_open = False
        for each in self._sockets():
            each.close()

    def _sockets(self) -> Iterator[socket.socket]:
        yield from (*self._dialed.values(), *self.out.values(), *self.into.values(), *self._visitors, self.listener)

    def _watch(self, which: socket.socket, events: int, handler: Callable[[], None]) -> None:
        self._poll.register(which, events)
        self._handlers[which.fileno()] = handler

    def _ignore(self, number: int) -> None:
        if self._handlers.pop(number, None):
            self._poll.unregister(number)

    def dial(self, peer: int) -> None:
        """Begin to connect to a peer; `progress` goes on with it."""
        dialed = self._dialed[peer] = socket.socket()
        prepare(dialed)
        code = dialed.connect_ex(self.addresses[peer])
        if code in (0, errno.EINPROGRESS):
            self._watch(dialed, select.POLLOUT, partial(self._connected, peer))
        else:
            self.lose(peer, True, OSError(code, os.strerror(code)))

    def _connected(self, peer: int) -> None:
        """A connection is made, or was refused."""
        dialed = self._dialed[peer]
        self._ignore(dialed.fileno())
        try:
            if code := dialed.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code))
            dialed.sendall(self.greeting())
        except OSError as error:
            self.lose(peer, True, error)
            return
        self.out[peer] = self._dialed.pop(peer)
        self.links[peer, OUT] = dialed.fileno()

    def greeting(self, reason: str = "") -> bytes:
        """What this rank says first to one that it connects to; with a reason it gives up."""
        return GREETING.pack(self._token, self.rank, self.call, self.signature, reason.encode())

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
            self._heard.setdefault(peer, AbortError(self.names[peer], why, call, signature))
        self._dismiss(visitor)

    def _let_in(self, visitor: socket.socket, peer: int) -> None:
        self._ignore(visitor.fileno())
        del self._visitors[visitor]
        visitor.recv(GREETING.size)
        visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self.into[peer] = visitor
        self.links[peer, INTO] = visitor.fileno()

    def _dismiss(self, visitor: socket.socket) -> None:
        self._ignore(visitor.fileno())
        del self._visitors[visitor]
        visitor.close()

    def lose(self, peer: int, is_sent: bool, error: OSError) -> None:
        """A connection has failed: a call that needs it raises the error."""
        # Without traceback and context: their frames hold the group, which is freed before this object.
        error.__context__ = None
        self._lost[peer, is_sent] = error.with_traceback(None)
