"""Messages between the ranks of a group, over TCP connections of our own: each goes out at once.

gloo's messages do not: a sender of gloo's waits until the receiver has said that it is ready, and a thread of the
receiver's is woken for each of both. Here a message costs one system call to send and three to receive, in the thread
that waits, and the latency once.

Every pair of ranks has one connection each way, made when it is first needed. All of it happens within `Mesh.wait`,
which reads nothing but the message that it waits for. What comes from others meanwhile stays in the system's buffers,
and when these are full TCP holds its sender back: a rank that is ahead does not take the link away from one that is
behind. A rank waits for a peer's messages in the order in which they were sent.
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
from weakref import WeakKeyDictionary

import psutil  # type: ignore[import-untyped]
import torch
from torch import distributed as dist

HEADER = struct.Struct("<QQQ")  # call, step, bytes
TOKEN_BYTES = 16
MOST_PARTS = 1024  # that one system call takes
WORTH_WAKING = 128 << 10  # bytes of a message; with fewer a rank would do nothing but wake up and read
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


class _Connection:
    """One end of a connection to or from a peer."""

    __slots__ = ("got", "header", "messages", "peer", "socket", "worth")

    def __init__(self, peer: int, connected: socket.socket) -> None:
        self.peer, self.socket = peer, connected
        self.messages: deque[Message] = deque()  # out: to be sent
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
        """Where the message of this step is to go."""
        return Message(peer, self.call, step, [into], is_sent=False)

    def wait(self, message: Message) -> None:
        """Until it is sent or received. Raises OSError when the peer has gone, or time is over."""
        while message.left:
            lost = self._lost.get((message.peer, message.is_sent))
            if lost is not None:
                raise lost
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"not done within {self.seconds:g} s")
            if not message.is_sent:
                self._await(message)
            for number, _ in self._poll.poll(left * 1e3):
                if number in self._handlers:  # an earlier one of these may have ended it
                    self._handlers[number]()
        if not message.is_sent:
            self._ignore(self._into[message.peer].socket)

    def _await(self, message: Message) -> None:
        """Read from the message's connection, as soon as there is one, as much as is worth waking for."""
        connection = self._into.get(message.peer)
        if connection is None:
            return
        if connection.socket.fileno() not in self._handlers:
            self._watch(connection.socket, select.POLLIN, lambda: self._read(connection, message))
        worth = min(message.left, WORTH_WAKING) if connection.got == HEADER.size else 1
        if worth != connection.worth:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, worth)
            connection.worth = worth

    def close(self) -> None:
        """Give up: whoever waits for this rank learns of it at once."""
        self.is_open = False
        for connection in [*self._out.values(), *self._into.values()]:
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
        connection = self._out[peer] = _Connection(peer, connected)
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
            self._watch(connection.socket, select.POLLOUT, lambda: self._flush(connection))
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
        self._into[peer] = _Connection(peer, connected)

    def _read(self, connection: _Connection, message: Message) -> None:
        """Take what has come: the rest of the header, or bytes of the message behind it."""
        try:
            if connection.got < HEADER.size:
                connection.got += _some(connection.socket.recv_into(connection.header[connection.got :]))
                if connection.got < HEADER.size:
                    return
                _check(HEADER.unpack(connection.header), (message.call, message.step, message.left))
            message.advance(_some(connection.socket.recv_into(message.parts[0])))
            if not message.left:
                connection.got = 0
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(connection, error, is_sent=False)

    def _lose(self, connection: _Connection, error: OSError, is_sent: bool) -> None:
        self._ignore(connection.socket)
        self._lost[connection.peer, is_sent] = error


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
