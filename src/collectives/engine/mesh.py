"""Messages between the ranks of a group, over TCP connections of our own: each goes out at once.

gloo's messages do not: a sender of gloo's waits until the receiver has said that it is ready, and a thread of the
receiver's is woken for each of both. Here a message costs one system call to send and two to receive, in the thread
that waits, and the latency once. Ranks of one host need few messages: they read each other's `published` buffers.

What a rank waits for has the timeout of its group. If it waits in vain, it says why: what other ranks say, or which
of them give no sign.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from torch import distributed as dist

from collectives.engine.abort import LATE, MOMENT, PATIENCE, AbortError, describe, no_sign, reason
from collectives.engine.address import peek, tell
from collectives.engine.cache import BoundedCache
from collectives.engine.message import AGREEMENT, GONE, Message, MessageError
from collectives.engine.peers import POLL_INTERVAL, Peers
from collectives.engine.signature import NO_CALL


class Mesh(Peers):
    """Messages of one call after the other between a rank and its peers, and why a call fails."""

    def __init__(self, group: dist.ProcessGroup, background: bool = False) -> None:
        super().__init__(group, background)
        self.deadline, self._looked, self._has_told = 0.0, 0.0, False
        self.segment: Any = None  # memory that all ranks of this host share
        # Arrays of the compiled loop, and the programs that they are for.
        self.kept: BoundedCache[Any] = BoundedCache(lambda made: sum(each.nbytes for each in (*made[0][:4], *made[1])))

    def begin(self, signature: bytes = NO_CALL) -> Mesh:
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
        self.seconds = options._timeout.total_seconds()  # now, as it may be set between calls
        now = time.monotonic()
        self.deadline = now + self.seconds
        if now > self._looked + POLL_INTERVAL:  # short calls never pause the loop
            self._looked = now
            self.progress(0.0)
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
        self.is_open, self._has_told = False, True
        peers = self._neighbours() - {peer for peer, is_sent in self._lost if is_sent}
        tell([self.addresses[peer] for peer in peers], self.greeting(reason(self.names[self.rank], error)), PATIENCE)

    def end(self) -> None:
        """End the call; if it has failed, all connections are closed."""
        self._is_busy = False
        if not self.is_open:
            self.close()

    def connect(self, first_sends: Mapping[int, int]) -> None:
        """Connect to each of these peers, for the step that first sends to it. Raises MessageError if one is lost."""
        missing = first_sends.keys() - self.out.keys()
        for peer in missing:
            self.dial(peer)
        while missing := missing - self.out.keys():
            self.progress(self.need_peers([Message(peer, first_sends[peer], is_sent=True) for peer in missing]))

    def need_peers(self, messages: list[Message]) -> float:
        """The seconds that are left for these messages. Raises MessageError if a peer is lost, or the time is over."""
        left, first = self.deadline - time.monotonic(), messages[0]
        self._awaited = {message.peer for message in messages}
        if left <= 0:
            raise self._explained(first, self._timeout())
        if not self.is_open:
            raise self._failed(first, "the process group was given up meanwhile")
        for message in messages if self._lost else ():
            if why := self._lost.get((message.peer, message.is_sent)):
                raise self._explained(message, self._hear(partial(self._heard.get, message.peer), MOMENT) or why)
        if self._heard and (said := self._said()):
            raise self._explained(first, said)
        return left

    def check(self, peer: int, step: int, is_done: Callable[[], bool], give_up: Callable[[], bool]) -> None:
        """Raise MessageError if this rank waits for a peer in vain: that is lost, or has given up, or time is over.

        For a rank that waits for the peer's memory, not for a message: nothing is read. ``is_done`` looks there once
        more, because the peer may have done all that is asked for, and then have gone. ``give_up`` tells the peer there
        before the others hear of it; False if the peer has come meanwhile.
        """
        self.progress(0.0)
        if peek(self.into[peer], 1) == b"" and not is_done():
            self.lose(peer, False, ConnectionResetError(GONE))
        is_vain = time.monotonic() >= self.deadline or not self.is_open or (peer, False) in self._lost or self._said()
        if is_vain and give_up():
            self.need_peers([Message(peer, step, is_sent=False)])

    def need_no_abort(self) -> None:
        """Raise MessageError if a peer has given up in this call, and the abort has come: a late rank has all data."""
        self.progress(0.0)
        if said := self._said():
            peer = next(each for each, why in self._heard.items() if why is said)
            raise self._explained(Message(peer, AGREEMENT, is_sent=False), said)

    @contextmanager
    def explaining(self, peer: int, step: int) -> Iterator[None]:
        """An OSError becomes the MessageError of what this rank waits for."""
        try:
            yield
        except OSError as why:
            raise self._explained(Message(peer, step, is_sent=False), why) from why

    def _explained(self, message: Message, why: OSError) -> MessageError:
        """The error of a message; if time is over, this rank says that it has waited, and hears what others know."""
        if self._describe(why) == str(why) and LATE in str(why):
            is_late = self.deadline - time.monotonic() > self.seconds / 2  # most of its own time is left
            waited = self._failed(message, self._timeout())
            waited.__cause__ = why if is_late else None
            self.fail(waited)
            why = self._cause(why, is_late)
        error = self._failed(message, self._describe(why))
        error.__cause__ = why
        return error

    def _failed(self, message: Message, why: object) -> MessageError:
        return MessageError(message.is_sent, message.step, self.names[message.peer], why)

    def _cause(self, why: OSError, is_late: bool) -> OSError:
        """Why time is over: what a rank says, or which ranks do not say that they have waited, too."""
        waited = {peer for peer, each in self.into.items() if peek(each, 1)}
        self._hear(self._other_call, PATIENCE)
        said = self._said()
        if said and (LATE not in said.reason or said is self._other_call()):
            return said
        waited |= {peer for peer in self._neighbours() if self._has_failed(peer)}
        silent = sorted(self._neighbours() - waited) + [self.rank] * is_late
        return self._timeout(f"{no_sign([self.names[each] for each in silent])}: ") if silent else said or why

    def _has_failed(self, peer: int) -> bool:
        """Whether the peer has gone, or says why it has failed; one that comes late says why others have."""
        said = self._lost.get((peer, False)) or self._heard.get(peer)
        named = f"rank {self.names[peer]} "
        return said is not None and getattr(said, "reason", named).startswith(named)

    def _hear(self, look: Callable[[], AbortError | None], seconds: float) -> AbortError | None:
        """Wait until ``look`` returns an abort, and return it; None after ``seconds`` without one."""
        until = time.monotonic() + seconds
        while not (found := look()) and (left := until - time.monotonic()) > 0:
            self.progress(left)
        return found

    def _said(self) -> AbortError | None:
        """What a rank says that has given up by now: best that it calls differently, or else why it failed itself."""
        said = [each for each in self._heard.values() if each.call <= self.call]
        return self._other_call() or min(said, key=lambda each: LATE in each.reason, default=None)

    def _other_call(self) -> AbortError | None:
        """The abort of a rank whose call of the same number differs from this rank's."""
        return next((each for each in self._heard.values() if self._describe(each) != str(each)), None)

    def _describe(self, error: OSError) -> str:
        return describe(error, self.call, self.signature)

    def _timeout(self, who: str = "") -> TimeoutError:
        return TimeoutError(f"{who}{LATE} of {self.seconds:g} s")
