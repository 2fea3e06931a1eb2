"""Connections that have not named their rank yet: few at a time, and each for a few seconds only."""

import socket
import time
from collections.abc import Iterator

# Connections that may wait beside those of the group's own ranks, and for how many seconds each may.
MOST = 64
PATIENCE = 5.0


class PendingConnection:
    """One of them, and what of its greeting has come."""

    __slots__ = ("leaves", "said", "socket")

    def __init__(self, connected: socket.socket, leaves: float) -> None:
        self.socket, self.leaves, self.said = connected, leaves, b""

    def listen(self, size: int) -> bytes | None:
        """The greeting; None while bytes are still to come, and a shorter one if the peer has closed."""
        try:
            came = self.socket.recv(size - len(self.said))
        except BlockingIOError:
            return None
        except OSError:
            came = b""
        self.said += came
        return self.said if len(self.said) == size or not came else None


class PendingConnections:
    """All of them, the first to come first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._there: list[PendingConnection] = []

    def __iter__(self) -> Iterator[PendingConnection]:
        return iter(list(self._there))

    def __len__(self) -> int:
        return len(self._there)

    def admit(self, connected: socket.socket) -> PendingConnection:
        """Keep one more connection; it has `PATIENCE` seconds."""
        pending = PendingConnection(connected, time.monotonic() + PATIENCE)
        self._there.append(pending)
        return pending

    def remove(self, pending: PendingConnection) -> None:
        """Forget one: it has named its rank, or was closed."""
        self._there.remove(pending)

    def overdue(self) -> list[PendingConnection]:
        """Those whose time is over."""
        now = time.monotonic() if self._there else 0.0
        return [pending for pending in self._there if pending.leaves <= now]

    def too_many(self) -> list[PendingConnection]:
        """The oldest, if there are more than the limit."""
        return self._there[: -self._most]
