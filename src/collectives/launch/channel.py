"""Authenticated messages between a launcher and the processes that it has started, over TCP.

    launcher                                        rank
             -- "collectives 1", a fresh nonce -->
             <-- role, rank, a fresh nonce ------
             <-- message 0 ----------------------        proves that the rank has the secret
             -- message 0 ---------------------->        proves that the launcher has it

A message is a line: HMAC-SHA256(key, direction, number, text) and the text, which is JSON. The key belongs to one
connection: HMAC-SHA256(secret, the launcher's address and port, role, rank, both nonces). A message is therefore
invalid on another connection, in the other direction and at another number. A relay that passes the first four lines on
cannot add, change, repeat or drop a later one. Nothing is encrypted.

A stranger, which has not shown the secret, has `STRANGER_SECONDS` and `STRANGER_BYTES` to do so. If there are more than
`MOST_STRANGERS`, one of them is closed, drawn at random: a flood cannot aim at a rank's handshake, and ranks retry.
"""

import hmac
import json
import re
import secrets
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

Event = dict[str, Any]
Address = tuple[str, int]

STRANGER_SECONDS = 10.0
STRANGER_BYTES = 256
MOST_STRANGERS = 128
MOST_BYTES = 64 << 20  # of a message
RETRY_SECONDS = 0.2
POLL_SECONDS = 0.1
LAUNCHER, PEER = "launcher", "peer"
CHALLENGE = re.compile(r"collectives 1 ([0-9a-f]{64})")
HELLO = re.compile(r"([a-z]{1,16}) ([0-9]{1,9}) ([0-9a-f]{64})")


class ChannelError(ConnectionError):
    """The other end has not shown the secret, or violates the protocol."""


class AuthenticatedConnection:
    """One end of a connection; messages are authenticated once `agree` has given it the key."""

    def __init__(self, to: socket.socket, own: str, seconds: float) -> None:
        to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        to.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket, self._unread, self._lock = to, bytearray(), Lock()
        self._own, self._other = (LAUNCHER, PEER) if own == LAUNCHER else (PEER, LAUNCHER)
        self._sent = self._received = 0
        self._key, self._until, self._most = b"", time.monotonic() + seconds, STRANGER_BYTES

    def agree(self, secret: str, address: Address, role: str, rank: int, nonces: tuple[str, str]) -> None:
        """Compute the key of this connection, and prove it to the other end; both ends call it.

        Raises ChannelError if the other end has another secret, or does not prove in time that it has this one.
        """
        text = json.dumps([*address, role, rank, *nonces])
        self._key = hmac.digest(secret.encode(), text.encode(), "sha256")
        if self._own == PEER:
            self.send({})
        if self.receive() is None:
            raise ChannelError("the other end does not have our secret")
        if self._own == LAUNCHER:
            self.send({})
        self._until, self._most = float("inf"), MOST_BYTES
        self._socket.settimeout(None)

    def send(self, message: Event) -> None:
        """Send a message. Raises ValueError for one that is too long, and OSError if the connection is lost."""
        with self._lock:
            text = encoded(message, "message")
            self.write(f"{self._mac(self._own, self._sent, text)} {text}")
            self._sent += 1

    def receive(self) -> Event | None:
        """The next message, or None at the end of the connection. Raises ChannelError if it is not the other end's."""
        line = self.read()
        if line is None:
            return None
        mac, _, text = line.partition(" ")
        if not hmac.compare_digest(mac.encode(), self._mac(self._other, self._received, text).encode()):
            raise ChannelError("a message that the other end has not sent, or not as it came")
        self._received += 1
        message: Event = json.loads(text)
        return message

    def write(self, line: str) -> None:
        """Send a line without authentication."""
        self._socket.sendall(line.encode() + b"\n")

    def read(self) -> str | None:
        """The next line, unauthenticated, or None at the end of the connection.

        Raises ChannelError for a line that is too long, or if a stranger takes too long.
        """
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > self._most:
                raise ChannelError(f"a line too long: got more than {self._most} bytes")
            if not (piece := self._piece()):
                return None
            self._unread += piece
        line = self._unread[:end].decode("ascii", errors="replace")
        del self._unread[: end + 1]
        return line

    def _piece(self) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0:
            raise ChannelError("the other end has not shown the secret in time")
        try:
            if self._until < float("inf"):
                self._socket.settimeout(left)
            return self._socket.recv(1 << 16)
        except TimeoutError:
            raise ChannelError("the other end has not shown the secret in time") from None
        except OSError:  # reset by the other end, or closed by this one
            return b""

    def _mac(self, direction: str, number: int, text: str) -> str:
        return hmac.digest(self._key, f"{direction} {number} {text}".encode(), "sha256").hex()

    def close(self) -> None:
        """End the connection, also for a thread that waits for a message."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def encoded(message: Event, what: str) -> str:
    """The message as JSON. Raises ValueError, with its name, for one that is too long for a connection."""
    text = json.dumps(message)
    if len(text) > MOST_BYTES - STRANGER_BYTES:
        raise ValueError(f"{what} too long: got {len(text)} bytes, expected at most {MOST_BYTES}")
    return text


class Listener:
    """Accepts the processes of a launcher on one address; a thread serves each of them."""

    def __init__(
        self, host: str, secret: str, roles: Collection[str], serve: Callable[[AuthenticatedConnection, str, int], None]
    ) -> None:
        self._listener = socket.create_server((host, 0), backlog=MOST_STRANGERS)
        self._listener.settimeout(POLL_SECONDS)
        self.address: Address = (host, self._listener.getsockname()[1])
        self._secret, self._roles, self._serve = secret, roles, serve
        self._strangers: list[AuthenticatedConnection] = []
        self._known: list[AuthenticatedConnection] = []
        self._lock, self._is_open = Lock(), True
        self._thread = Thread(target=self._accept, daemon=True)
        self._thread.start()

    def has_peers(self) -> bool:
        """Whether a process that has shown the secret is still connected."""
        return bool(self._known)

    def close(self) -> None:
        """End all connections; the processes at their other ends notice."""
        with self._lock:
            self._is_open = False
            for connection in [*self._strangers, *self._known]:
                connection.close()
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                come, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # the peer has closed, or no descriptor is free
                time.sleep(POLL_SECONDS)
                continue
            stranger = AuthenticatedConnection(come, LAUNCHER, STRANGER_SECONDS)
            with self._lock:
                if len(self._strangers) == MOST_STRANGERS:
                    self._strangers.pop(secrets.randbelow(MOST_STRANGERS)).close()
                self._strangers.append(stranger)
            Thread(target=self._meet, args=(stranger,), daemon=True).start()

    def _meet(self, connection: AuthenticatedConnection) -> None:
        """Serve a process that shows the secret, until its connection ends; close any other."""
        try:
            role, rank = self._greet(connection)
            self._admit(connection)
            self._serve(connection, role, rank)
        except (OSError, ValueError):  # also ChannelError
            pass
        finally:
            connection.close()
            with self._lock:
                for group in (self._strangers, self._known):
                    if connection in group:
                        group.remove(connection)

    def _greet(self, connection: AuthenticatedConnection) -> tuple[str, int]:
        nonce = secrets.token_hex(32)
        connection.write(f"collectives 1 {nonce}")
        hello = HELLO.fullmatch(connection.read() or "")
        if hello is None or hello[1] not in self._roles:
            raise ChannelError("not a process of ours")
        role, rank = hello[1], int(hello[2])
        connection.agree(self._secret, self.address, role, rank, (nonce, hello[3]))
        return role, rank

    def _admit(self, connection: AuthenticatedConnection) -> None:
        with self._lock:
            if not self._is_open:
                raise ChannelError("closed meanwhile")
            if connection in self._strangers:
                self._strangers.remove(connection)
            self._known.append(connection)


def connect(address: Address, secret: str, role: str, rank: int, seconds: float) -> AuthenticatedConnection:
    """A connection to a launcher with the same secret. Retries for ``seconds``, then raises ChannelError."""
    until = time.monotonic() + seconds
    while True:
        try:
            return _connect(address, secret, role, rank)
        except OSError as error:
            if time.monotonic() > until:
                host, port = address
                raise ChannelError(f"no launcher with our secret at {host}:{port}: {error}") from None
        time.sleep(RETRY_SECONDS)


def _connect(address: Address, secret: str, role: str, rank: int) -> AuthenticatedConnection:
    connection = AuthenticatedConnection(socket.create_connection(address, STRANGER_SECONDS), PEER, STRANGER_SECONDS)
    try:
        challenge = CHALLENGE.fullmatch(connection.read() or "")
        if challenge is None:
            raise ChannelError("the listener there is not a launcher")
        nonce = secrets.token_hex(32)
        connection.write(f"{role} {rank} {nonce}")
        connection.agree(secret, address, role, rank, (challenge[1], nonce))
    except OSError:
        connection.close()
        raise
    return connection
