"""Messages between ranks that are threads of one process: copied from memory to memory, without a socket.

It offers the executor what `mesh.Mesh` does, so that the same programs run.
"""

import secrets
import threading
import time
from collections import defaultdict, deque
from typing import Any

import torch
from torch import distributed as dist

from collectives.backends.exchange import everyones
from collectives.backends.p2p.abort import LATE, PATIENCE, AbortError, describe, reason
from collectives.backends.p2p.connection import Message, MessageError, need_expected
from collectives.backends.p2p.signature import NO_CALL

POLL_INTERVAL = 1.0  # seconds after which a rank that waits sees whether another one has given up
GONE = ConnectionResetError("it has gone")
Header = tuple[int, int, int, bytes]  # call, step, bytes, signature


class Inbox:
    """What has been sent to one rank and not taken yet, by sender; and the ranks that will send no more."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: dict[int, deque[tuple[Header, bytes]]] = defaultdict(deque)
        self.gone: dict[int, OSError] = {}  # and why


class MemoryMesh:
    """One rank of a group whose ranks share this process; made by all of them together."""

    over = "memory"

    def __init__(self, group: dist.ProcessGroup, shared: dict[bytes, Any]) -> None:
        self.rank, self.size = group.rank(), group.size()
        self._options: Any = group._get_backend(torch.device("cpu")).options
        self.call, self.deadline, self.is_open, self._signature = 0, 0.0, True, NO_CALL
        token = everyones(secrets.token_bytes(16), group)[0]
        self._inboxes: list[Inbox] = shared.setdefault(token, [Inbox() for _ in range(self.size)])
        self._awaited: dict[int, deque[Message]] = defaultdict(deque)

    def begin(self, step_by_step: bool, signature: bytes = NO_CALL) -> None:
        """Begin a call: its messages carry its number and ``signature``, and it has the group's timeout.

        Raises RuntimeError if a call of the group has failed before.
        """
        del step_by_step  # a copy takes no link from another message
        options = self._options  # before the question: `close` takes them from any thread
        if not self.is_open:
            raise RuntimeError("a collective of this process group has failed before: make a new group")
        self._signature = signature
        self.call += 1
        self.seconds = options._timeout.total_seconds()  # now, as it may be set between calls
        self.deadline = time.monotonic() + self.seconds

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank gives up."""
        self.is_open = False
        self._leave(AbortError(reason(self.rank, error), call=self.call, signature=self._signature))

    def end(self) -> None:
        """End the call; if it has failed, the other ranks learn that this one is gone."""
        if not self.is_open:
            self.close()

    def send(self, peer: int, step: int, parts: list[memoryview]) -> Message:
        """Copy these bytes into the peer's inbox, as one message, which is done at once."""
        data, inbox = b"".join(parts), self._inboxes[peer]
        with inbox.changed:
            inbox.sent[self.rank].append(((self.call, step, len(data), self._signature), data))
            inbox.changed.notify()
        return Message(peer, self.call, step, [], is_sent=True)

    def receive(self, peer: int, step: int, into: memoryview) -> Message:
        """Receive the peer's message of this step into ``into``, without waiting; ask in the order of sending."""
        message = Message(peer, self.call, step, [into], is_sent=False)
        self._awaited[peer].append(message)
        return message

    def wait(self, messages: list[Message]) -> None:
        """Wait until one of these has come. Raises MessageError if its peer is lost, or the call's time is over."""
        inbox, peers = self._inboxes[self.rank], {message.peer: message for message in messages}
        lost = self._lost(inbox, peers)
        if lost is None:
            return
        message, why = lost
        if isinstance(why, TimeoutError):
            self.fail(MessageError(False, message.step, message.peer, why))
        raise MessageError(False, message.step, message.peer, self._explained(why, inbox)) from why

    def _explained(self, error: OSError, inbox: Inbox) -> str:
        """The error; where time is over, rather that of a rank that calls differently, if there is one."""
        if describe(error, self.call, self._signature) == str(error) and LATE in str(error):
            error = self._peek_aborts(inbox, time.monotonic() + PATIENCE) or error
        return describe(error, self.call, self._signature)

    def _lost(self, inbox: Inbox, peers: dict[int, Message]) -> tuple[Message, OSError] | None:
        """Wait until one of these has come; or until one never will, and why."""
        with inbox.changed:
            while not any(self._take(peer, inbox) for peer in peers):
                left = self.deadline - time.monotonic()
                if left <= 0:
                    late = TimeoutError(f"{LATE} of {self.seconds:g} s")
                    return next(iter(peers.values())), late
                for peer, message in peers.items():
                    if peer in inbox.gone or not self.is_open:
                        return message, inbox.gone.get(peer, GONE)
                if not inbox.changed.wait(min(left, POLL_INTERVAL)) and (said := self._peek_aborts(inbox)):
                    return next(iter(peers.values())), said
        return None

    def _peek_aborts(self, inbox: Inbox, until: float = 0.0) -> AbortError | None:
        """What a rank says that has given up, if one does so in time; best one that calls differently."""
        last = None
        with inbox.changed:
            while True:
                for peer, error in inbox.gone.items():
                    if isinstance(error, AbortError):
                        last = AbortError(error.reason, f"rank {peer}", error.call, error.signature)
                        if describe(last, self.call, self._signature) != str(last):
                            return last
                if (left := until - time.monotonic()) <= 0:
                    return last
                inbox.changed.wait(left)

    def _take(self, peer: int, inbox: Inbox) -> bool:
        """Whether a message that was asked for has come from the peer; all that have are copied to their places."""
        came, awaited = inbox.sent[peer], self._awaited[peer]
        has_moved = False
        while came and awaited:
            header, data = came.popleft()
            message = awaited.popleft()
            try:
                need_expected(header, (message.call, message.step, message.left, self._signature))
            except OSError as error:
                raise MessageError(False, message.step, peer, error) from error
            message.parts[0][:] = data  # type: ignore[index]
            message.advance(len(data))
            has_moved = True
        return has_moved

    def close(self) -> None:
        """Give up, from any thread: a call under way here, and all ranks that wait for this one, fail at once."""
        self.is_open, self._options = False, None  # they hold a socket of gloo's
        self._leave(GONE)

    def _leave(self, why: OSError) -> None:
        for inbox in self._inboxes:
            with inbox.changed:
                inbox.gone.setdefault(self.rank, why)
                inbox.changed.notify()
