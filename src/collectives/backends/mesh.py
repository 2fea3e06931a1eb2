"""Messages between the ranks of a group, over TCP connections of our own: each goes out at once.

gloo's messages do not: a sender of gloo's waits until the receiver has said that it is ready, and a thread of the
receiver's is woken for each of both. Here a message costs one system call to send and two to receive, in the thread
that waits, and the latency once.

Every pair of ranks has one connection each way, made when it is first needed. All of it happens within `Mesh.wait`,
which reads nothing but messages that have been asked for. What else comes stays in the system's buffers, and when these
are full TCP holds its sender back: a rank that is ahead does not take the link away from one that is behind. (How a
rank does not take it away from itself stands in `outgoing`.) A rank asks for a peer's messages in the order in which
they are sent.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

import psutil  # type: ignore[import-untyped]
import torch
from torch import distributed as dist

from collectives.backends.connection import HEADER, Connection, Message, MessageError, prepare
from collectives.backends.outgoing import Outgoing

TOKEN_BYTES = 16
WORTH_WAKING = 128 << 10  # bytes of a longer message; with fewer a rank would do nothing but wake up and read
WINDOW = 384 << 10  # bytes of a message that come before they are asked for, or read
HELLO = struct.Struct(f"<{TOKEN_BYTES}sI")  # token, rank


class Mesh:
    """The connections of one rank to the others of its group; made by all of them together."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        self.call, self.deadline, self.is_open = 0, 0.0, True
        self._listener = socket.create_server((own_address(), 0), backlog=self.size)
        self._listener.setblocking(False)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)  # of what it accepts, too
        self._addresses = self._introduce(group)
        self._out: dict[int, Connection] = {}
        self._outgoing = Outgoing(partial(self._lose, is_sent=True))
        self._into: dict[int, Connection] = {}
        self._lost: dict[tuple[int, bool], OSError] = {}  # (peer, is sent) -> why
        self._poll, self._handlers = select.poll(), dict[int, Callable[[], None]]()
        self._watch(self._listener, select.POLLIN, self._accept)

    def _introduce(self, group: dist.ProcessGroup) -> list[tuple[str, int]]:
        mine = *self._listener.getsockname()[:2], secrets.token_bytes(TOKEN_BYTES)
        all_of_them = [mine] * self.size
        dist.all_gather_object(all_of_them, mine, group=group)
        self._token = all_of_them[0][2]
        return [(host, port) for host, port, _ in all_of_them]

    def begin(self, step_by_step: bool) -> None:
        """A call begins: its messages are apart from those of other calls, and it has the group's timeout."""
        if not self.is_open:
            raise RuntimeError("a collective of this process group has failed before: make a new group")
        self.call += 1
        self._outgoing.step_by_step = step_by_step
        self.deadline = time.monotonic() + self.seconds

    def send(self, peer: int, step: int, parts: list[memoryview]) -> Message:
        """Have these bytes sent, as one message; they may not change until it has been waited for."""
        header = HEADER.pack(self.call, step, sum(map(len, parts)))
        message = Message(peer, self.call, step, [header, *parts], is_sent=True)
        connection = self._out.get(peer) or self._connect(peer)
        self._outgoing.send(connection, message)
        return message

    def receive(self, peer: int, step: int, into: memoryview) -> Message:
        """Have the message of this step taken from the peer, after those asked for before."""
        message = Message(peer, self.call, step, [into], is_sent=False)
        connection = self._into.get(peer) or self._into.setdefault(peer, Connection(peer))
        connection.messages.append(message)
        return message

    def wait(self, messages: list[Message]) -> None:
        """Until one of these has moved, maybe. Raises MessageError when one has lost its peer, or time is over.

        Others that were asked for stay where they are: they would wake this rank for nothing.
        """
        left, first = self.deadline - time.monotonic(), messages[0]
        if left <= 0:
            why = TimeoutError(f"not done within {self.seconds:g} s")
            raise MessageError(first.is_sent, first.step, first.peer, why) from why
        alone = len(messages) == 1 and len(self._handlers) == 1 and not self._outgoing.unsent
        if alone and not self._lost and not first.is_sent:
            connection = self._into[first.peer]
            if connection.socket:  # there is nothing else to do meanwhile: no need to ask who is ready
                connection.socket.settimeout(left)
                self._read(connection)
                return
        self._look_after(messages, left)

    def _look_after(self, messages: list[Message], seconds: float) -> None:
        """Whatever has come, or can be sent, of these and of all that is under way to others."""
        for message in messages:
            why = self._lost.get((message.peer, message.is_sent))
            if why is not None:
                raise MessageError(message.is_sent, message.step, message.peer, why) from why
            if not message.is_sent:
                self._listen(self._into[message.peer])
        for connection in self._outgoing.stuck():
            if connection.number not in self._handlers:
                self._watch(connection.socket, select.POLLOUT, connection.handler)
        for number, _ in self._poll.poll(seconds * 1e3):
            if number in self._handlers:  # an earlier one of these may have ended it
                self._handlers[number]()

    def close(self) -> None:
        """Give up: whoever waits for this rank learns of it at once."""
        self.is_open = False
        for connection in [*self._out.values(), *self._into.values()]:
            if connection.socket:
                connection.socket.close()
        self._listener.close()

    def _watch(self, which: socket.socket, events: int, handler: Callable[[], None]) -> None:
        self._poll.register(which, events)
        self._handlers[which.fileno()] = handler

    def _ignore(self, number: int) -> None:
        if self._handlers.pop(number, None):
            self._poll.unregister(number)

    def _connect(self, peer: int) -> Connection:
        connected = socket.socket()
        prepare(connected)
        connection = self._out[peer] = Connection(peer)
        connection.socket, connection.number = connected, connected.fileno()
        connection.handler = partial(self._go_on, connection)
        connected.connect_ex(self._addresses[peer])
        hello = Message(peer, 0, 0, [HELLO.pack(self._token, self.rank)], is_sent=True)
        self._outgoing.send(connection, hello)
        return connection

    def _go_on(self, connection: Connection) -> None:
        """There is room to send."""
        self._ignore(connection.number)
        self._outgoing.push()

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:  # who called has hung up
            return
        prepare(connected)
        self._watch(connected, select.POLLIN, lambda: self._greet(connected))

    def _greet(self, connected: socket.socket) -> None:
        """Learn who it is; a stranger is turned away."""
        self._ignore(connected.fileno())
        said = b""
        with suppress(OSError):
            said = connected.recv(HELLO.size)
        if len(said) < HELLO.size or not secrets.compare_digest(said[:TOKEN_BYTES], self._token):
            connected.close()
            return
        peer = HELLO.unpack(said)[1]
        connection = self._into.get(peer) or self._into.setdefault(peer, Connection(peer))
        connection.socket, connection.number = connected, connected.fileno()
        connection.handler = partial(self._read, connection)

    def _listen(self, connection: Connection) -> None:
        """Be told of what comes, as soon as there is a connection."""
        if connection.socket and connection.number not in self._handlers:
            self._watch(connection.socket, select.POLLIN, connection.handler)

    def _read(self, connection: Connection) -> None:
        """Take what has come of the first message that is asked for: its header and what is behind it."""
        message = connection.messages[0]
        try:
            message.advance(self._receive(connection, message))
        except (BlockingIOError, TimeoutError):
            return
        except OSError as error:
            self._lose(connection, error, is_sent=False)
            return
        worth = WORTH_WAKING if message.left >= WORTH_WAKING else 1
        if worth != connection.worth:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, worth)
            connection.worth = worth
        if not message.left:
            connection.got = 0
            connection.messages.popleft()
            self._ignore(connection.number)

    def _receive(self, connection: Connection, message: Message) -> int:
        """How many bytes of the message itself have come."""
        missing = HEADER.size - connection.got
        if not missing:
            return _some(connection.socket.recv_into(message.parts[0]))
        header = connection.header[connection.got :]
        count = _some(connection.socket.recvmsg_into([header, message.parts[0]])[0])
        connection.got += min(count, missing)
        if count < missing:
            return 0
        _check(HEADER.unpack(connection.header), (message.call, message.step, message.left))
        return count - missing

    def _lose(self, connection: Connection, error: OSError, is_sent: bool) -> None:
        self._ignore(connection.number)
        self._lost[connection.peer, is_sent] = error


def mesh(group: dist.ProcessGroup) -> Mesh:
    """The connections of a group, made in its first call; all of its ranks take part in that."""
    known = _meshes.get(group)
    if known is None:
        known = _meshes[group] = Mesh(group)
    return known


_meshes: WeakKeyDictionary[dist.ProcessGroup, Mesh] = WeakKeyDictionary()


def own_address() -> str:
    """Where other ranks reach this one: the interface that GLOO_SOCKET_IFNAME names, else what the host's name is."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if not name:
        return socket.gethostbyname(socket.gethostname())
    found = [each.address for each in psutil.net_if_addrs().get(name, []) if each.family == socket.AF_INET]
    if not found:
        raise OSError(f"GLOO_SOCKET_IFNAME names {name!r}, which has no IPv4 address here")
    return str(found[0])


def _check(came: tuple[int, int, int], awaited: tuple[int, int, int]) -> None:
    if came != awaited:
        said = [f"call {call}, step {step}, {count} bytes" for call, step, count in (came, awaited)]
        raise OSError(f"{said[0]} came, not {said[1]}: do all ranks make the same calls, with the same sizes?")


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("it has gone")
    return count
