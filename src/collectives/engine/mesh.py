"""The connections of one rank to the others of its group, and its calls over them.

Messages travel over TCP connections of our own, so each leaves immediately. gloo's do not: a sender
of gloo's waits until the receiver has said that it is ready, and a thread of the receiver's is
woken for each of both. Here a message costs one system call to send and two to receive, in the
thread that waits, and the latency once. Ranks of one host need few messages, because they share
memory.

Each rank listens, and accepts a peer that shows the group's token. Every pair of ranks has one
connection each way, made when it is first needed. The compiled loop (`tcp`) sends and receives over
them. It reads only messages that have been asked for. All others stay in the system's buffers, and
when these are full TCP holds their sender back: a rank that is ahead does not take the link away
from one that is behind. (`tcp.loop` says how a rank does not take it away from itself.) A rank asks
for a peer's messages in the order in which they are sent.

A call has the timeout of its group. A rank that fails sends others an abort, so that each reports
the cause and not a closed socket. An abort is a handshake with a cause, over a connection of its
own: it arrives immediately, whatever was sent before. A rank that receives one fails, too, and
passes the cause on. `blame` decides which of several causes a rank reports.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from collectives.cause import Cause, Kind, note
from collectives.engine import transport
from collectives.engine.blame import (
    AbortError,
    NumberedCall,
    WaitedError,
    cause_of,
    describe,
    gave_sign,
    is_only_late,
    most_telling,
    of_another_call,
)
from collectives.engine.handshake import (
    BARRIER,
    GONE,
    HANDSHAKE,
    NO_CALL,
    Message,
    MessageError,
    configure,
    exchange_addresses,
    global_ranks,
    own_address,
    peek,
    send_to_all,
)

WINDOW = 384 << 10  # bytes of a message that come before they are asked for, or read
# Seconds after which a rank that waits looks for aborts and for overdue handshakes.
POLL_INTERVAL = 1.0
# Connections without a handshake that may wait in addition to the group's own, and for how many
# seconds each may.
MAX_PENDING, PENDING_SECONDS = 64, 5.0

FAILED_BEFORE = "a collective of this process group has failed before: make a new group"
ABORT_SECONDS = 1.0  # for sending aborts, and for receiving them
# To wait for the abort of a peer that has closed a connection: it sends the abort first.
LOST_SECONDS = 0.2


class Connections:
    """The connections of one rank to the others of its group; made by all of them together."""

    def __init__(self, group: dist.ProcessGroup, background: bool = False) -> None:
        self.rank, self.size, self.names = group.rank(), group.size(), global_ranks(group)
        self._options: Any = group._get_backend(torch.device("cpu")).options
        self.call, self.signature, self.is_open, self._is_busy = 0, NO_CALL, True, False
        self._why_closed = FAILED_BEFORE
        self._process = os.getpid()
        self.listener = socket.create_server((own_address(), 0), backlog=self.size + MAX_PENDING)
        self.listener.setblocking(False)
        # Of what it accepts, too.
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        can_share = bool(transport.shared_memory_or_none())
        self.addresses, self._token, do_share = exchange_addresses(self.listener, group, can_share)
        self.ranks_per_host = transport.ranks_per_host(self.addresses) if do_share else 1
        # Whether any rank is on another host.
        self.has_network = len({host for host, _ in self.addresses}) > 1
        self.spins = transport.spins(self.addresses, self.rank, background)
        # Accepted, without a handshake yet, and until when they may be.
        self._pending: dict[socket.socket, float] = {}
        self._dialed: dict[int, socket.socket] = {}  # not connected yet, by peer
        self.out: dict[int, socket.socket] = {}
        self.into: dict[int, socket.socket] = {}
        self._lost: dict[tuple[int, bool], OSError] = {}  # (peer, is sent) -> why
        self._aborts: dict[int, AbortError] = {}  # by the peer that sent it
        # Their descriptors, -1 without: for the compiled loop.
        self.descriptors = np.full(self.size, -1, [("out", np.int64), ("into", np.int64)])
        self._poll, self._handlers = select.poll(), dict[int, Callable[[], None]]()
        self._watch(self.listener, select.POLLIN, self._on_connection)

    @property
    def on_host(self) -> range:
        """The ranks of this host if they share memory, or else this rank."""
        first = self.rank - self.rank % self.ranks_per_host
        return range(first, first + self.ranks_per_host)

    @property
    def has_pending(self) -> bool:
        """True if a peer may have connected that has not shown its handshake yet."""
        return bool(self._pending)

    def progress(self, seconds: float) -> None:
        """Serve connections that are being made; wait at most ``seconds`` for the first event."""
        for connection, until in list(self._pending.items()):
            if until < time.monotonic():
                self._reject(connection)
        for number, _ in self._poll.poll(min(seconds, POLL_INTERVAL) * 1e3):
            if number in self._handlers:  # an earlier one may have ended it
                self._handlers[number]()

    def close(self, why: str) -> None:
        """Give up, from any thread: a call in progress here, and all ranks that wait for this one, fail immediately.

        Their errors say ``why``. A process that the rank has forked closes its copies of the
        sockets, and no connection.
        """
        self._why_closed = why
        self.is_open, is_ours = False, os.getpid() == self._process
        self._options = None  # they hold a socket of gloo's
        for each in self._sockets():
            if is_ours:
                with suppress(OSError):
                    # Which wakes a thread that waits for it, as closing would not.
                    each.shutdown(socket.SHUT_RDWR)
            if not (is_ours and self._is_busy):
                each.close()

    def dial(self, peer: int) -> None:
        """Begin to connect to a peer; `progress` goes on with it."""
        dialed = self._dialed[peer] = socket.socket()
        configure(dialed)
        code = dialed.connect_ex(self.addresses[peer])
        if code in (0, errno.EINPROGRESS):
            self._watch(dialed, select.POLLOUT, partial(self._on_dialed, peer))
        else:
            self.lose(peer, True, OSError(code, os.strerror(code)))

    def lose(self, peer: int, is_sent: bool, error: OSError) -> None:
        """Record that a connection has failed: a call that needs it raises the error, which was never raised before.

        A traceback would hold the group, which is to be freed before this object.
        """
        self._lost[peer, is_sent] = error

    def handshake(self, cause: Cause | None = None) -> bytes:
        """Return the first bytes on a connection of this rank's; with a cause they are an abort."""
        told = (cause.kind, cause.rank, cause.text.encode()) if cause else (0, 0, b"")
        return HANDSHAKE.pack(self._token, self.rank, self.call, self.signature, *told)

    def _sockets(self) -> Iterator[socket.socket]:
        yield from (
            *self._dialed.values(),
            *self.out.values(),
            *self.into.values(),
            *self._pending,
            self.listener,
        )

    def _watch(self, which: socket.socket, events: int, handler: Callable[[], None]) -> None:
        self._poll.register(which, events)
        self._handlers[which.fileno()] = handler

    def _ignore(self, number: int) -> None:
        if self._handlers.pop(number, None):
            self._poll.unregister(number)

    def _on_dialed(self, peer: int) -> None:
        """Send the handshake on a connection that is made, or record that it was refused."""
        dialed = self._dialed[peer]
        self._ignore(dialed.fileno())
        code = dialed.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            if not code:
                dialed.sendall(self.handshake())
        except OSError as error:
            code = error.errno or errno.EIO
        if code:
            self.lose(peer, True, OSError(code, os.strerror(code)))
            return
        self.out[peer] = self._dialed.pop(peer)
        self.descriptors[peer]["out"] = dialed.fileno()

    def _on_connection(self) -> None:
        """Take a connection from the listener; it is pending until its whole handshake has come."""
        try:
            connection, _ = self.listener.accept()
        except OSError:  # the caller has closed
            return
        configure(connection)
        # Poll reports it when its whole handshake has come, or when it has closed.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, HANDSHAKE.size)
        self._pending[connection] = time.monotonic() + PENDING_SECONDS
        self._watch(connection, select.POLLIN, partial(self._on_handshake, connection))
        if len(peek(connection, HANDSHAKE.size) or b"") == HANDSHAKE.size:  # mostly it has by now
            self._on_handshake(connection)
        for first in list(self._pending)[: -(self.size + MAX_PENDING)]:
            self._reject(first)

    def _on_handshake(self, connection: socket.socket) -> None:
        """Accept a peer's connection, keep a peer's abort, and reject what is unauthenticated."""
        received = peek(connection, HANDSHAKE.size) or b""
        token, peer, call, signature, kind, failed, text = HANDSHAKE.unpack(
            received.ljust(HANDSHAKE.size, b"\0")
        )
        is_whole = len(received) == HANDSHAKE.size
        is_known = secrets.compare_digest(token, self._token) and peer < self.size
        if not (is_whole and is_known and kind in (0, *Kind)):
            self._reject(connection)
        elif kind:
            cause = Cause(Kind(kind), failed, text.rstrip(b"\0").decode(errors="replace"))
            self._aborts.setdefault(peer, AbortError(self.names[peer], cause, call, signature))
            self._reject(connection)
        else:
            self._accept(connection, peer)

    def _accept(self, connection: socket.socket, peer: int) -> None:
        self._ignore(connection.fileno())
        del self._pending[connection]
        connection.recv(HANDSHAKE.size)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self.into[peer] = connection
        self.descriptors[peer]["into"] = connection.fileno()

    def _reject(self, connection: socket.socket) -> None:
        self._ignore(connection.fileno())
        del self._pending[connection]
        connection.close()


class Mesh(Connections):
    """The calls of one rank, one after the other, over its connections."""

    def __init__(self, group: dist.ProcessGroup, background: bool = False) -> None:
        super().__init__(group, background)
        self._began, self._last_poll, self._has_aborted = 0.0, 0.0, False
        self._seconds: float = self._options._timeout.total_seconds()
        self._awaited: set[int] = set()  # peers that this rank waited for when the loop last paused

    def begin(self, signature: bytes = NO_CALL) -> Mesh:
        """Begin a call: its messages carry its number and ``signature``, and it has the group's timeout.

        Use it in a ``with``, where the call ends. An error there closes the connections, because
        peers may still send what the call has asked for, and the peers are told the reason. Raises
        RuntimeError if a call of the group has failed before.
        """
        if not self.is_open:
            raise RuntimeError(self._why_closed)
        self._is_busy, self.signature = True, signature
        self.call += 1
        now = self._began = time.monotonic()
        if now > self._last_poll + POLL_INTERVAL:  # short calls never pause the loop
            self._last_poll = now
            self.progress(0.0)
        return self

    @property
    def seconds(self) -> float:
        """The group's timeout, which may be set between calls."""
        options = self._options  # `close` takes them from any thread
        if options:
            self._seconds = options._timeout.total_seconds()
        return self._seconds

    @property
    def deadline(self) -> float:
        """Return the second of the monotonic clock by which the call has to be done."""
        return self._began + self.seconds

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error:
            self.fail(error)
        self.end()

    def fail(self, error: BaseException) -> None:
        """Send others an abort, as far as they listen; the connections are for no later call.

        Those who receive it send theirs. If each of p ranks sent one to all, p ranks that fail at
        the same time would make p**2 connections.
        """
        cause = cause_of(self.names[self.rank], error)
        note(cause)  # also the second time, because after a timeout more is known
        if self._has_aborted:
            return
        self.is_open, self._has_aborted = False, True
        peers = self._neighbours() - {peer for peer, is_sent in self._lost if is_sent}
        abort = self.handshake(cause)
        send_to_all([self.addresses[peer] for peer in peers], abort, ABORT_SECONDS)

    def end(self) -> None:
        """End the call; if it has failed, all connections are closed."""
        self._is_busy = False
        if not self.is_open:
            self.close(self._why_closed)

    def connect(self, first_sends: Mapping[int, int]) -> None:
        """Connect to each of these peers, for the step that first sends to it.

        Raises MessageError if one is lost.
        """
        missing = first_sends.keys() - self.out.keys()
        for peer in missing:
            self.dial(peer)
        missing -= self.out.keys()
        while missing:
            messages = [Message(peer, first_sends[peer], is_sent=True) for peer in missing]
            self.progress(self.check_peers(messages))
            missing -= self.out.keys()

    def connect_all(self, peers: set[int]) -> None:
        """Connect with each of these peers, both ways, because all of them call this.

        Raises MessageError as above.
        """
        self.connect(dict.fromkeys(peers, BARRIER))
        missing = peers - self.into.keys()
        while missing:
            messages = [Message(peer, BARRIER, is_sent=False) for peer in missing]
            self.progress(self.check_peers(messages))
            missing -= self.into.keys()

    def check_peers(self, messages: list[Message]) -> float:
        """Return the seconds that are left for these messages.

        Raises MessageError if a peer is lost or has given up, or the time is over.
        """
        left, first = self.deadline - time.monotonic(), messages[0]
        self._awaited = {message.peer for message in messages}
        if left <= 0:
            raise self.explained(first, WaitedError(self.seconds))
        if not self.is_open:
            raise self._failed(first, self._why_closed)
        for message in messages if self._lost else ():
            why = self._lost.get((message.peer, message.is_sent))
            if why:
                abort = self._wait_for_abort(partial(self._aborts.get, message.peer), LOST_SECONDS)
                raise self.explained(message, abort or why)
        abort = self._abort() if self._aborts else None
        if abort:
            raise self.explained(first, abort)
        return left

    def check_memory(
        self, peer: int, step: int, is_done: Callable[[], bool], give_up: Callable[[], bool]
    ) -> None:
        """Raise MessageError if this rank waits for a peer in vain: that is lost, or has given up, or time is over.

        For a rank that waits for the peer's memory, not for a message: nothing is read. ``is_done``
        looks there once more, because the peer may have done all that is asked for, and then have
        gone. ``give_up`` tells the peer there before the others hear of it; False if the peer has
        come meanwhile.
        """
        self.progress(0.0)
        if peek(self.into[peer], 1) == b"" and not is_done():
            self.lose(peer, False, ConnectionResetError(GONE))
        is_vain = (
            time.monotonic() >= self.deadline
            or not self.is_open
            or (peer, False) in self._lost
            or self._abort()
        )
        if is_vain and give_up():
            self.check_peers([Message(peer, step, is_sent=False)])

    def check_aborts(self) -> None:
        """Raise MessageError if a peer has given up in this call, and its abort has come: a late rank has all data."""
        self.progress(0.0)
        abort = self._abort()
        if abort:
            (peer,) = [peer for peer, told in self._aborts.items() if told is abort]
            raise self.explained(Message(peer, BARRIER, is_sent=False), abort)

    def explained(self, message: Message, why: OSError) -> MessageError:
        """Return the error of a message.

        After a timeout, abort first, and ask the others for the cause.
        """
        if is_only_late(why, self._own):
            # An abort that came while most of this rank's own time is left: it is the late one.
            is_late = self.deadline - time.monotonic() > self.seconds / 2
            waited = self._failed(message, WaitedError(self.seconds))
            if is_late:
                waited.__cause__ = why
            self.fail(waited)
            why = self._cause_of_timeout(why, is_late)
        return self._failed(message, why)

    def _failed(self, message: Message, why: OSError | str) -> MessageError:
        """Return the error of a message, whose cause is ``why`` if that is an error."""
        told = describe(why, self._own) if isinstance(why, OSError) else why
        error = MessageError(message.is_sent, message.step, self.names[message.peer], told)
        error.__cause__ = why if isinstance(why, OSError) else None
        return error

    def _cause_of_timeout(self, why: OSError, is_late: bool) -> OSError:
        """Return the abort of a rank that knows more, or else a timeout that names the ranks that gave no sign."""
        alive = {peer for peer, connection in self.into.items() if peek(connection, 1)}
        self._wait_for_abort(self._other_call, ABORT_SECONDS)
        abort = self._abort()
        if abort and not is_only_late(abort, self._own):
            return abort
        neighbours = self._neighbours()
        alive |= {peer for peer in neighbours if self._gave_sign(peer)}
        silent = sorted(neighbours - alive)
        if is_late:
            silent.append(self.rank)
        if silent:
            return WaitedError(self.seconds, [self.names[peer] for peer in silent])
        return abort or why

    def _gave_sign(self, peer: int) -> bool:
        return gave_sign(self.names[peer], self._lost.get((peer, False)), self._aborts.get(peer))

    @property
    def _own(self) -> NumberedCall:
        return NumberedCall(self.call, self.signature)

    def _neighbours(self) -> set[int]:
        """Return the ranks that this one is connected with, and those at distances 1, 2, 4, …: few, who reach all."""
        found = self.out.keys() | self.into.keys() | self._awaited
        for i in range((self.size - 1).bit_length()):
            found |= {(self.rank + (1 << i)) % self.size, (self.rank - (1 << i)) % self.size}
        return found - {self.rank}

    def _wait_for_abort(
        self, look: Callable[[], AbortError | None], seconds: float
    ) -> AbortError | None:
        """Wait until ``look`` returns an abort, and return it.

        None after ``seconds`` without one.
        """
        until = time.monotonic() + seconds
        found, left = look(), seconds
        while not found and left > 0:
            self.progress(left)
            found, left = look(), until - time.monotonic()
        return found

    def _abort(self) -> AbortError | None:
        return most_telling(self._aborts.values(), self._own)

    def _other_call(self) -> AbortError | None:
        return of_another_call(self._aborts.values(), self._own)
