"""Messages between the ranks of a group, over TCP connections of our own: each goes out at once.

gloo's messages do not: a sender of gloo's waits until the receiver has said that it is ready, and a thread of the
receiver's is woken for each of both. Here a message costs one system call to send and two to receive, in the thread
that waits, and the latency once.

Every pair of ranks has one connection each way, made when it is first needed. All of it happens within `Mesh.wait`,
which reads nothing but messages that have been asked for. What else comes stays in the system's buffers, and when these
are full TCP holds its sender back: a rank that is ahead does not take the link away from one that is behind. A rank
asks for a peer's messages in the order in which they are sent.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import psutil  # type: ignore[import-untyped]
import torch
from torch import distributed as dist

HEADER = struct.Struct("<QQQ")  # call, step, bytes
TOKEN_BYTES = 16
MOST_PARTS = 1024  # that one system call takes
WORTH_WAKING = 128 << 10  # bytes of a longer message; with fewer a rank would do nothing but wake up and read
HELLO = struct.Struct(f"<{TOKEN_BYTES}sI")  # token, rank


class Message:
    """Bytes on their way: to or from whom, in which step of which call, and what is left of them."""

    __slots__ = ("call", "is_sent", "left", "parts", "peer", "step")

    def __init__(self, peer: int, call: int, step: int, parts: list[memoryview], is_sent: bool) -> None:
        self.peer, self.call, self.step, self.parts, self.is_sent = peer, call, step, parts, is_sent
        self.left = sum(map(len, parts))

    def advance(self, count: int) -> None:
        """So many bytes more are done."""
        self.left -= count
        while count:
            first = self.parts[0]
            if len(first) > count:
                self.parts[0] = first[count:]
                return
            count -= len(self.parts.pop(0))


class MessageError(RuntimeError):
    """A message that did not arrive or could not be sent: in which step, to or from whom, and why."""

    def __init__(self, is_sent: bool, step: int, peer: int, why: object) -> None:
        verb = "sending to" if is_sent else "receiving from"
        super().__init__(f"in step {step}, {verb} rank {peer}: {why}")


class _Connection:
    """One end of a connection to or from a peer, if there is one yet, and the messages that are to use it."""

    __slots__ = ("got", "handler", "header", "messages", "peer", "socket", "worth")

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.socket: Any = None
        self.handler: Callable[[], None] = _nothing
        self.messages: deque[Message] = deque()
        self.header, self.got = memoryview(bytearray(HEADER.size)), 0  # in: of the message that comes next
        self.worth = 1  # in: how many bytes wake us


class Mesh:
    """The connections of one rank to the others of its group; made by all of them together."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.seconds = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        self.call, self.deadline, self.is_open = 0, 0.0, True
        self._listener = socket.create_server((own_address(), 0), backlog=self.size)
        self._listener.setblocking(False)
        self._addresses = self._introduce(group)
        self._out: dict[int, _Connection] = {}
        self._into: dict[int, _Connection] = {}
        self._lost: dict[tuple[int, bool], OSError] = {}  # (peer, is sent) -> why
        self._poll, self._handlers = select.poll(), dict[int, Callable[[], None]]()
        self._watch(self._listener, select.POLLIN, self._accept)

    def _introduce(self, group: dist.ProcessGroup) -> list[tuple[str, int]]:
        mine = *self._listener.getsockname()[:2], secrets.token_bytes(TOKEN_BYTES)
        all_of_them = [mine] * self.size
        dist.all_gather_object(all_of_them, mine, group=group)
        self._token = all_of_them[0][2]
        return [(host, port) for host, port, _ in all_of_them]

    def begin(self) -> None:
        """A call begins: its messages are apart from those of other calls, and it has the group's timeout."""
        if not self.is_open:
            raise RuntimeError("a collective of this process group has failed before: make a new group")
        self.call += 1
        self.deadline = time.monotonic() + self.seconds

    def send(self, peer: int, step: int, parts: list[memoryview]) -> Message:
        """Have these bytes sent, as one message; they may not change until it has been waited for."""
        header = memoryview(HEADER.pack(self.call, step, sum(map(len, parts))))
        message = Message(peer, self.call, step, [header, *parts], is_sent=True)
        connection = self._out.get(peer) or self._connect(peer)
        connection.messages.append(message)
        if len(connection.messages) == 1:
            self._flush(connection)
        return message

    def receive(self, peer: int, step: int, into: memoryview) -> Message:
        """Have the message of this step taken from the peer, after those asked for before."""
        message = Message(peer, self.call, step, [into], is_sent=False)
        connection = self._into.get(peer) or self._into.setdefault(peer, _Connection(peer))
        connection.messages.append(message)
        return message

    def wait(self, messages: list[Message]) -> None:
        """Until one of these has moved, maybe. Raises MessageError when one has lost its peer, or time is over.

        Others that were asked for stay where they are: they would wake this rank for nothing.
        """
        for message in messages:
            if not message.is_sent:
                self._listen(self._into[message.peer])
            why = self._lost.get((message.peer, message.is_sent))
            if why is not None:
                raise MessageError(message.is_sent, message.step, message.peer, why) from why
        left = self.deadline - time.monotonic()
        if left <= 0:
            why = TimeoutError(f"not done within {self.seconds:g} s")
            raise MessageError(messages[0].is_sent, messages[0].step, messages[0].peer, why) from why
        for number, _ in self._poll.poll(left * 1e3):
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

    def _ignore(self, which: socket.socket) -> None:
        if self._handlers.pop(which.fileno(), None):
            self._poll.unregister(which)

    def _connect(self, peer: int) -> _Connection:
        connected = socket.socket()
        _prepare(connected)
        connection = self._out[peer] = _Connection(peer)
        connection.socket, connection.handler = connected, partial(self._flush, connection)
        hello = memoryview(HELLO.pack(self._token, self.rank))
        connection.messages.append(Message(peer, 0, 0, [hello], is_sent=True))
        connected.connect_ex(self._addresses[peer])
        self._flush(connection)
        return connection

    def _flush(self, connection: _Connection) -> None:
        """Send what the system takes."""
        try:
            while connection.messages:
                message = connection.messages[0]
                message.advance(connection.socket.sendmsg(message.parts[:MOST_PARTS]))
                if message.left:
                    raise BlockingIOError
                connection.messages.popleft()
            self._ignore(connection.socket)
        except BlockingIOError:
            self._watch(connection.socket, select.POLLOUT, connection.handler)
        except OSError as error:
            self._lose(connection, error, is_sent=True)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:  # who called has hung up
            return
        _prepare(connected)
        self._watch(connected, select.POLLIN, lambda: self._greet(connected))

    def _greet(self, connected: socket.socket) -> None:
        """Learn who it is; a stranger is turned away."""
        self._ignore(connected)
        said = b""
        with suppress(OSError):
            said = connected.recv(HELLO.size)
        if len(said) < HELLO.size or not secrets.compare_digest(said[:TOKEN_BYTES], self._token):
            connected.close()
            return
        peer = HELLO.unpack(said)[1]
        connection = self._into.get(peer) or self._into.setdefault(peer, _Connection(peer))
        connection.socket, connection.handler = connected, partial(self._read, connection)

    def _listen(self, connection: _Connection) -> None:
        """Be told of what comes, as soon as there is a connection."""
        if connection.socket and connection.socket.fileno() not in self._handlers:
            self._watch(connection.socket, select.POLLIN, connection.handler)

    def _be_woken_for(self, worth: int, connection: _Connection) -> None:
        """Only when so many bytes are there."""
        if worth != connection.worth:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, worth)
            connection.worth = worth

    def _read(self, connection: _Connection) -> None:
        """Take what has come of the first message that is asked for: its header and what is behind it."""
        message = connection.messages[0]
        try:
            header = connection.header[connection.got :]
            count = _some(connection.socket.recvmsg_into([header, message.parts[0]])[0])
            of_header = min(count, len(header))
            connection.got += of_header
            if connection.got < HEADER.size:
                return
            if of_header:
                _check(HEADER.unpack(connection.header), (message.call, message.step, message.left))
            message.advance(count - of_header)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(connection, error, is_sent=False)
            return
        self._be_woken_for(WORTH_WAKING if message.left >= WORTH_WAKING else 1, connection)
        if not message.left:
            connection.got = 0
            connection.messages.popleft()
            self._ignore(connection.socket)

    def _lose(self, connection: _Connection, error: OSError, is_sent: bool) -> None:
        self._ignore(connection.socket)
        self._lost[connection.peer, is_sent] = error


def _nothing() -> None:
    """What a connection does that is not there yet."""


def mesh(group: dist.ProcessGroup) -> Mesh:
    """The connections of a group, made in its first call; all of its ranks take part in that."""
    if group not in _meshes:
        _meshes[group] = Mesh(group)
    return _meshes[group]


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


def _prepare(connected: socket.socket) -> None:
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _check(came: tuple[int, int, int], awaited: tuple[int, int, int]) -> None:
    if came != awaited:
        said = [f"call {call}, step {step}, {count} bytes" for call, step, count in (came, awaited)]
        raise OSError(f"{said[0]} came, not {said[1]}: do all ranks make the same calls, with the same sizes?")


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("it has gone")
    return count
