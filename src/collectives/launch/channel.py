"""The protocol between a launcher and the processes that it has started: JSON messages, each answered or the last.

    launcher (`Listener`)                            rank (`connect`)
             <-- each shows that it has the secret ->
             <-- {"role": "rank", "rank": 3} --------
             -- the job ---------------------------->
             <-- {"event": …} or {"failed": […], "cause": […]} ----
             -- {} --------------------------------->  it has been handled

Connections and the challenge are those of `multiprocessing.connection`; no message is pickled. The
challenge's key is HMAC-SHA256(secret, the launcher's address and port), so a process at another
address gains nothing by passing the challenge on. Nothing is encrypted. A rank ends when its
connection ends.

A connection is pending until it has shown the secret, for at most `PENDING_SECONDS`. Of more than
`MAX_PENDING` one is closed, drawn at random: a flood cannot aim at a rank's handshake, and ranks
retry.

As a script, ``python -I -S channel.py HOST PORT [WORD...]``, it speaks for mpirun on an emulated
host (`cluster`). It imports Python's own modules only, so that it starts fast.
"""

import hmac
import json
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError, reduction
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from threading import Lock, Thread, Timer
from typing import Any

Event = dict[str, Any]
Address = tuple[str, int]

PENDING_SECONDS = 10.0
JOIN_SECONDS = 60.0  # in which a process has to reach its launcher
MAX_PENDING = 128
MAX_BYTES = 64 << 20  # of a message
RETRY_SECONDS = 0.2
REFUSED_SECONDS = 5.0  # of retries after a connection was refused
POLL_SECONDS = 0.1


class ChannelError(ConnectionError):
    """The other end does not have the secret."""


class Channel:
    """One end of a connection, over which messages go in both directions."""

    def __init__(self, to: socket.socket) -> None:
        to.settimeout(None)
        if to.family == socket.AF_INET:
            to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            to.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._connection = Connection(to.detach())
        self._sending, self._closing = Lock(), Lock()

    def fileno(self) -> int:
        """Return the number of the open file, to wait for."""
        return self._connection.fileno()

    def authenticate(self, key: bytes, *, is_launcher: bool) -> None:
        """Prove to the other end that this one has the key, and have it do the same.

        Raises ChannelError.
        """
        both = (
            (deliver_challenge, answer_challenge)
            if is_launcher
            else (answer_challenge, deliver_challenge)
        )
        try:
            for challenge in both:
                challenge(self._connection, key)
        except (AuthenticationError, AssertionError, EOFError, OSError, ValueError) as error:
            raise ChannelError(f"the other end does not have our secret ({error})") from None

    def send(self, message: Event, *files: int) -> None:
        """Send a message and, to a process of this machine, open files.

        Raises ValueError for one that is too long.
        """
        text = encoded(message, "message")
        with self._sending:
            self._connection.send_bytes(text)
            for file in files:
                reduction.send_handle(self._connection, file, None)

    def receive(self) -> Event | None:
        """Return the next message; None at the end of the connection."""
        try:
            message: Event = json.loads(self._connection.recv_bytes(MAX_BYTES))
        except (EOFError, OSError, ValueError):  # ended, or not one of ours
            return None
        return message

    def receive_file(self) -> int:
        """Return the number of an open file that came after a message."""
        return int(reduction.recv_handle(self._connection))

    def end(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection, also for a thread that waits for a message."""
        with self._closing:
            if not self._connection.closed:
                same = socket.socket(fileno=os.dup(self._connection.fileno()))
                with same, suppress(OSError):  # the other end has ended it
                    same.shutdown(how)

    def close(self) -> None:
        """Close this process's end; for the thread that receives.

        A fork that has inherited it keeps the connection.
        """
        with self._closing:
            self._connection.close()


def encoded(message: Event, what: str) -> bytes:
    """Return the message as JSON. Raises ValueError for one that is too long for a connection."""
    text = json.dumps(message).encode()
    if len(text) > MAX_BYTES:
        raise ValueError(f"{what} too long: got {len(text)} bytes, expected at most {MAX_BYTES}")
    return text


class Listener:
    """Accepts processes on one address.

    A thread calls ``serve`` for each that has the secret, with its first message.

    ``listening`` is a socket that listens already, on the network of an emulated host.
    """

    def __init__(
        self,
        host: str,
        secret: str,
        serve: Callable[[Channel, Event], None],
        listening: socket.socket | None = None,
    ) -> None:
        self._socket = listening or socket.create_server((host, 0), backlog=MAX_PENDING)
        self._socket.settimeout(POLL_SECONDS)
        self.address: Address = (host, self._socket.getsockname()[1])
        self._key, self._serve = _key(secret, self.address), serve
        self._pending: dict[Channel, float] = {}
        self._known: set[Channel] = set()
        self._lock, self._is_open = Lock(), True
        self._thread = Thread(target=self._accept, daemon=True)
        self._thread.start()

    def has_peers(self) -> bool:
        """Return True while a process that has the secret is connected."""
        return bool(self._known)

    def close(self) -> None:
        """End all connections; the processes at their other ends notice. Safe to call twice."""
        with self._lock:
            self._is_open = False
            for channel in [*self._pending, *self._known]:
                channel.end()
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while self._is_open:
            for channel, until in list(self._pending.items()):
                if time.monotonic() > until:
                    channel.end()
            try:
                channel = Channel(self._socket.accept()[0])
            except TimeoutError:
                continue
            except OSError:  # the peer has closed, or no descriptor is free
                time.sleep(POLL_SECONDS)
                continue
            with self._lock:
                if len(self._pending) >= MAX_PENDING:
                    rejected = random.SystemRandom().choice(list(self._pending))
                    del self._pending[rejected]
                    rejected.end()
                self._pending[channel] = time.monotonic() + PENDING_SECONDS
            Thread(target=self._meet, args=(channel,), daemon=True).start()

    def _meet(self, channel: Channel) -> None:
        """Serve a process that has the secret, until its connection ends; close any other."""
        try:
            channel.authenticate(self._key, is_launcher=True)
            hello = channel.receive()
            with self._lock:
                is_accepted = self._is_open and hello is not None and channel in self._pending
                self._pending.pop(channel, None)
                if is_accepted:
                    self._known.add(channel)
            if is_accepted and hello is not None:
                self._serve(channel, hello)
        except OSError:  # also ChannelError
            pass
        finally:
            channel.end()
            channel.close()
            with self._lock:
                self._pending.pop(channel, None)
                self._known.discard(channel)


def connect(address: Address, secret: str, hello: Event, seconds: float) -> Channel:
    """Return a channel to a launcher with the same secret.

    Retries for ``seconds``, then raises ChannelError.

    A launcher listens before its ranks start, so one that refuses connections has ended: retries
    are fewer then.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return _connect(address, secret, hello)
        except OSError as error:
            if isinstance(error, ConnectionRefusedError):
                until = min(until, time.monotonic() + REFUSED_SECONDS)
            if time.monotonic() > until:
                host, port = address
                raise ChannelError(
                    f"no launcher with our secret at {host}:{port}: {error}"
                ) from None
        time.sleep(RETRY_SECONDS)


def _connect(address: Address, secret: str, hello: Event) -> Channel:
    channel = Channel(socket.create_connection(address, PENDING_SECONDS))
    limit = Timer(PENDING_SECONDS, channel.end)
    limit.start()
    try:
        channel.authenticate(_key(secret, address), is_launcher=False)
        channel.send(hello)
    except OSError:
        channel.close()
        raise
    finally:
        limit.cancel()
    return channel


def _key(secret: str, address: Address) -> bytes:
    return hmac.digest(secret.encode(), f"{address[0]} {address[1]}".encode(), "sha256")


def main(host: str, port: str, *words: str) -> None:
    """Tell the launcher that mpirun has started this process for a rank, or wants ``words`` run, and end as it says."""
    hello = {
        "role": "mpirun",
        "host": socket.gethostname(),
        "environment": dict(os.environ),
        "words": words,
    }
    answer = connect(
        (host, int(port)), os.environ["COLLECTIVES_SECRET"], hello, JOIN_SECONDS
    ).receive()
    sys.exit(answer["code"] if answer else "the launcher has ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
