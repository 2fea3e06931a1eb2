"""Messages between the ranks of a group, over TCP connections of our own: each goes out at once.

gloo's messages do not: a sender of gloo's waits until the receiver has said that it is ready, and a thread of the
receiver's is woken for each of both. Here a message costs one system call to send and two to receive, in the thread
that waits, and the latency once. Ranks of one host need few messages: they read each other's `published` buffers.

Every pair of ranks has one connection each way, made when it is first needed. All of it happens within `Mesh.wait`,
which reads nothing but messages that have been asked for. What else comes stays in the system's buffers, and when these
are full TCP holds its sender back: a rank that is ahead does not take the link away from one that is behind. (How a
rank does not take it away from itself stands in `outgoing`.) A rank asks for a peer's messages in the order in which
they are sent.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from collectives.backends.p2p import local
from collectives.backends.p2p.abort import (
    LATE,
    PATIENCE,
    AbortError,
    abort_message,
    describe,
    drain_abort,
    has_come,
    has_gone,
    no_sign,
    peek_abort,
    reason,
    take,
)
from collectives.backends.p2p.address import TOKEN_BYTES, introduce, own_address
from collectives.backends.p2p.cache import BoundedCache
from collectives.backends.p2p.connection import HEADER, Connection, Message, MessageError, prepare
from collectives.backends.p2p.outgoing import Outgoing
from collectives.backends.p2p.pending import MOST, PendingConnection, PendingConnections
from collectives.backends.p2p.signature import NO_CALL

RECEIVE_LOW_WATER = 128 << 10  # bytes of a longer message; with fewer a rank would do nothing but wake up and read
WINDOW = 384 << 10  # bytes of a message that come before they are asked for, or read
POLL_INTERVAL = 1.0  # seconds after which a rank that waits looks for aborts and for strangers that are overdue
DRAIN_INTERVAL = 0.05  # seconds between two looks at what others said at last
HELLO = struct.Struct(f"<{TOKEN_BYTES}sI")  # token, rank


class Mesh:
    """The connections of one rank to the others of its group; made by all of them together."""

    def __init__(self, group: dist.ProcessGroup, background: bool = False) -> None:
        self.rank, self.size = group.rank(), group.size()
        self._options: Any = group._get_backend(torch.device("cpu")).options
        self.call, self.deadline, self.is_open, self._listened, self._looked = 0, 0.0, True, 0.0, 0.0
        self._is_busy, self._has_told, self.signature = False, False, NO_CALL
        self._listener = socket.create_server((own_address(), 0), backlog=self.size + MOST)
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)  # of what it accepts, too
        self.listener = self._listener.fileno()  # for the compiled loop
        self.addresses, self._token, shares = introduce(self._listener, group, bool(local.published()))
        self.ranks_per_host = local.ranks_per_host(self.addresses) if shares else 1
        self.spins = local.spins(self.addresses, self.rank, background)
        self._pending = PendingConnections(self.size + MOST)
        self.out: dict[int, Connection] = {}
        self.outgoing = Outgoing(partial(self.lose, is_sent=True))
        self.into: dict[int, Connection] = {}
        self._lost: dict[tuple[int, bool], OSError] = {}  # (peer, is sent) -> why
        # For the compiled loop: numbers of the sockets to and from each peer; -1 without.
        self.sockets = np.full((self.size, 2), -1)
        self.half_sent: Callable[[], Iterable[Message]] = tuple  # the rest of what the compiled loop has begun to send
        self.has_network = len({host for host, _ in self.addresses}) > 1  # whether any rank is on another host
        self.segment: Any = None  # memory that all ranks of this host share
        # Its arrays, and the programs that they are for.
        self.kept: BoundedCache[Any] = BoundedCache(lambda made: sum(each.nbytes for each in (*made[0][:4], *made[1])))
        self._poll, self._handlers = select.poll(), dict[int, Callable[[], None]]()
        self._watch(self._listener, select.POLLIN, self._accept)

    @property
    def on_host(self) -> range:
        """The ranks of this host, if they share memory."""
        first = self.rank - self.rank % self.ranks_per_host
        return range(first, first + self.ranks_per_host)

    def begin(self, step_by_step: bool, signature: bytes = NO_CALL) -> Mesh:
        """Begin a call: its messages carry its number and ``signature``, and it has the group's timeout.

        Use it in a ``with``, where the call ends. An error there closes the connections, because peers may still send
        what the call has asked for, and the peers are told the reason. Raises RuntimeError if a call of the group has
        failed before.
        """
        options = self._options  # before the question: `close` takes them from any thread
        if not self.is_open:
            raise RuntimeError("a collective of this process group has failed before: make a new group")
        self._is_busy, self.signature = True, signature
        self.call += 1
        self.outgoing.step_by_step = step_by_step
        self._listened = time.monotonic()
        if self._listened > self._looked + POLL_INTERVAL:  # calls that do not wait let no stranger in, or out
            self._looked = self._listened
            self.progress(0.0)
        self.seconds = options._timeout.total_seconds()  # now, as it may be set between calls
        self.deadline = self._listened + self.seconds
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error:
            self.fail(error)
        self.end()

    def fail(self, error: BaseException) -> None:
        """Tell others why this rank gives up, as far as they listen; its connections are for no later call.

        Those who hear it tell theirs. If each of p ranks told all, p ranks that fail at once would make p**2
        connections.
        """
        if self._has_told:
            return
        self.is_open, self.outgoing.step_by_step, self._has_told = False, False, True
        why, until = reason(self.rank, error), time.monotonic() + PATIENCE
        for message in self.half_sent():  # before the abort
            self.out[message.peer].messages.append(message)
        for peer in self._neighbours() - {peer for peer, is_sent in self._lost if is_sent}:
            connection = self.out.get(peer) or self._connect(peer)
            self.outgoing.send(connection, abort_message(peer, self.call, self.signature, why))
        while self.outgoing.unsent and (left := until - time.monotonic()) > 0:
            self.progress(left)

    def _neighbours(self) -> set[int]:
        """The ranks that this one is connected with, and those at distances of 1, 2, 4, …: few, but all soon hear."""
        steps = [1 << i for i in range((self.size - 1).bit_length())]
        far = {(self.rank + sign * step) % self.size for step in steps for sign in (-1, 1)}
        return (far | set(self.out) | set(self.into)) - {self.rank}

    def _drain_abort(self, peer: int) -> AbortError | None:
        """Why the peer has given up. Its connection to this rank may still wait to be accepted, and to say its rank."""
        until = time.monotonic() + PATIENCE
        connection = self.into.get(peer) or self.into.setdefault(peer, Connection(peer))
        while not connection.socket and (left := until - time.monotonic()) > 0:
            self.progress(left)
        said = self._lost.get((peer, False))
        if isinstance(said, AbortError):
            return said
        return drain_abort(connection) if connection.socket else None

    def end(self) -> None:
        """End the call; if it has failed, all connections are closed."""
        self._is_busy = False
        if not self.is_open:
            self.close()

    def connect(self, first_sends: Mapping[int, int]) -> None:
        """Connect to each of these peers, for the step that first sends to it, and wait until they can be sent to."""
        if missing := first_sends.keys() - self.out.keys():
            self.finish([hello for peer in missing for hello in self._connect(peer, first_sends[peer]).messages])

    def send(self, peer: int, step: int, parts: list[memoryview]) -> Message:
        """Send these bytes as one message, without waiting; they may not change until `wait` has seen it leave."""
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

    def wait(self, messages: list[Message]) -> None:
        """Wait until one of these may have moved. Raises MessageError if its peer is lost, or the call's time is over.

        It reads no other message, because that would wake this rank for nothing. Returns after a second at most.
        """
        left, first = self.need_peers(messages), messages[0]
        alone = len(messages) == 1 and len(self._handlers) == 1 and not self.outgoing.unsent
        if alone and not self._lost and not first.is_sent:
            connection = self.into[first.peer]
            if connection.socket:  # there is nothing else to do meanwhile: no need to ask who is ready
                connection.socket.settimeout(min(left, POLL_INTERVAL))
                self._read(connection)
                return
        for message in messages:
            if not message.is_sent:
                self._listen(self.into[message.peer])
                continue
            for connection in self.into.values():  # its receiver may wait for this rank, too
                if connection.messages:
                    self._listen(connection)
        self.progress(left)

    def need_peers(self, messages: Sequence[Message]) -> float:
        """The seconds that are left for these messages. Raises MessageError as `wait` does, which calls it."""
        left = self._need_time(messages[0])
        for message in messages if self._lost else ():
            why = self._lost.get((message.peer, message.is_sent))
            if why is not None:
                why = (message.is_sent and self._drain_abort(message.peer)) or why
                raise self._explained(message, why) from why
        return left

    def check(self, peer: int, step: int, is_done: Callable[[], bool]) -> None:
        """Raise MessageError if this rank waits for a peer in vain: that is lost, or has given up, or time is over.

        For a rank that waits for the peer's memory, not for a message: nothing is read. ``is_done`` looks there once
        more, because the peer may have done all that is asked for, and then have gone.
        """
        message = Message(peer, self.call, step, [b"."], is_sent=False)
        self._need_time(message)
        self.progress(0.0)
        with self.explaining(peer, step):
            said = peek_abort(self.into[peer])
            why = AbortError(said.reason, "it", said.call, said.signature) if said else None
            if (why or has_gone(self.into[peer])) and not is_done():
                raise why or ConnectionResetError("it has gone")

    @contextmanager
    def explaining(self, peer: int, step: int) -> Iterator[None]:
        """An OSError becomes the MessageError of what this rank waits for."""
        try:
            yield
        except OSError as why:
            raise self._explained(Message(peer, self.call, step, [b"."], is_sent=False), why) from why

    def _need_time(self, message: Message) -> float:
        """The seconds that are left. Raises MessageError if none are, or the group, or any rank, has given up."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            late = self._timeout()
            raise self._explained(message, late) from late
        if not self.is_open:
            raise MessageError(message.is_sent, message.step, message.peer, "the process group was given up meanwhile")
        if left < self.deadline - self._listened - POLL_INTERVAL:
            self._need_others(message)
        return left

    def finish(self, messages: Sequence[Message]) -> None:
        """Wait until all of these have left, or arrived."""
        while left := [message for message in messages if message.left]:
            self.wait(left)

    def _need_others(self, message: Message) -> None:
        """Raise MessageError where any rank has given up: those that this one waits for may wait in vain, too."""
        self._listened = time.monotonic()
        if said := self._peek_aborts():
            raise self._explained(message, said) from said

    def _peek_aborts(self, seconds: float = 0.0) -> AbortError | None:
        """What a rank says that has given up, if one does: best that it calls differently, or why it failed itself."""
        until, last = time.monotonic() + seconds, None
        while True:
            self.progress(min(seconds, DRAIN_INTERVAL))
            for connection in self.into.values():
                said = peek_abort(connection)
                if said and self._describe(said) != str(said):
                    return said
                last = said if said and (not last or LATE in last.reason) else last
            if time.monotonic() >= until:
                return last

    def _describe(self, error: OSError) -> str:
        return describe(error, self.call, self.signature)

    def _explained(self, message: Message, why: OSError) -> MessageError:
        """The error of a message; where time is over, this rank says that it has waited, and hears what others know."""
        if self._describe(why) == str(why) and LATE in str(why):
            is_late = self.deadline - time.monotonic() > self.seconds / 2  # most of its own time is left
            waited = MessageError(message.is_sent, message.step, message.peer, self._timeout())
            waited.__cause__ = why if is_late else None
            self.fail(waited)
            why = self._cause(why, is_late)
        return MessageError(message.is_sent, message.step, message.peer, self._describe(why))

    def _cause(self, why: OSError, is_late: bool) -> OSError:
        """Why time is over: what a rank says, or which ranks do not say that they have waited, too."""
        waited = {peer for peer, each in self.into.items() if has_come(each)}
        said = self._peek_aborts(PATIENCE)
        if said and (LATE not in said.reason or self._describe(said) != str(said)):
            return said
        waited |= {peer for peer in self.into if self._has_failed(peer)}
        silent = sorted(self._neighbours() - waited) + [self.rank] * is_late
        return self._timeout(f"{no_sign(silent)}: ") if silent else said or why

    def _has_failed(self, peer: int) -> bool:
        """Whether the peer has gone, or says why it has failed; one that comes late says why others have."""
        said = self._lost.get((peer, False)) or peek_abort(self.into[peer])
        return said is not None and getattr(said, "reason", f"rank {peer} ").startswith(f"rank {peer} ")

    def _timeout(self, who: str = "") -> TimeoutError:
        return TimeoutError(f"{who}{LATE} of {self.seconds:g} s")

    def progress(self, seconds: float) -> None:
        """Whatever has come, or can be sent, of all that is under way."""
        for connection in self.outgoing.stuck():
            if connection.number not in self._handlers:
                self._watch(connection.socket, select.POLLOUT, connection.handler)
        for pending in self._pending.overdue():
            self._dismiss(pending)
        for number, _ in self._poll.poll(min(seconds, POLL_INTERVAL) * 1e3):
            if number in self._handlers:  # an earlier one may have ended it
                self._handlers[number]()

    @property
    def has_visitors(self) -> bool:
        """Whether somebody has connected and may say at any time which rank it is."""
        return len(self._pending) > 0

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
        yield from (pending.socket for pending in self._pending)
        yield self._listener

    def _watch(self, which: socket.socket, events: int, handler: Callable[[], None]) -> None:
        self._poll.register(which, events)
        self._handlers[which.fileno()] = handler

    def _ignore(self, number: int) -> None:
        if self._handlers.pop(number, None):
            self._poll.unregister(number)

    def _connect(self, peer: int, step: int = 0) -> Connection:
        connection, hello = self.out.setdefault(peer, Connection(peer)), HELLO.pack(self._token, self.rank)
        connection.handler = partial(self._go_on, connection)
        connected = socket.socket()
        prepare(connected)
        self._use(connection, connected, is_sent=True)
        code = connected.connect_ex(self.addresses[peer])
        if code not in (0, errno.EINPROGRESS):
            self.lose(connection, OSError(code, os.strerror(code)), is_sent=True)
        self.outgoing.send(connection, Message(peer, 0, step, [hello], is_sent=True))
        return connection

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
            connected, _ = self._listener.accept()
        except OSError:  # the caller has closed
            return
        prepare(connected)
        pending = self._pending.admit(connected)
        self._watch(connected, select.POLLIN, partial(self._greet, pending))
        self._greet(pending)  # a rank's greeting has mostly come by now
        for first in self._pending.too_many():
            self._dismiss(first)

    def _greet(self, pending: PendingConnection) -> None:
        """Learn which rank it is, maybe bit by bit; a stranger is turned away."""
        said = pending.listen(HELLO.size)
        if said is None:
            return
        known = len(said) == HELLO.size and secrets.compare_digest(said[:TOKEN_BYTES], self._token)
        peer = HELLO.unpack(said)[1] if known else self.size
        if peer >= self.size:
            self._dismiss(pending)
            return
        self._ignore(pending.socket.fileno())
        self._pending.remove(pending)
        connection = self.into.get(peer) or self.into.setdefault(peer, Connection(peer))
        connection.handler = partial(self._read, connection)
        self._use(connection, pending.socket, is_sent=False)

    def _dismiss(self, pending: PendingConnection) -> None:
        self._ignore(pending.socket.fileno())
        self._pending.remove(pending)
        pending.socket.close()

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
