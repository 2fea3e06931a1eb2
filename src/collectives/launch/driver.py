"""The launcher's side, the same for all launchers: gives ranks their job, collects their reports, explains a failure.

A launcher has a starter: a function that starts ranks which connect to the `Driver`, or inherit a
connection, and says what to watch (`Supervised`). It registers on the stack how that is ended.
"""

import resource
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from collectives.cause import Cause, Kind
from collectives.launch.channel import Address, Channel, Event, Listener, encoded
from collectives.launch.request import Request
from collectives.processes import LINGER_SECONDS, Log, Process, supervise

# That this process has open: a log, a connection, and its other end until the rank has it.
FILES_PER_RANK = 3


class Heard(NamedTuple):
    """A message from a rank."""

    rank: int
    message: Event
    channel: Channel


class Reported:
    """A rank whose end another process of ours reports."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self.code


class Supervised(NamedTuple):
    """Processes that a starter has started, the name of each for errors, and the log that it prints into.

    ``has_reports`` if the logs get ranks' reports of their failures instead, because they print
    elsewhere.
    """

    names: list[str]
    processes: Sequence[Process]
    logs: list[Log]
    has_reports: bool = False


class Driver:
    """Serves ranks.

    It listens on ``host`` only if it has a ``shared`` secret; else ranks inherit connections.

    ``serve_others`` gets the channels of processes that are no ranks.
    """

    def __init__(
        self,
        request: Request,
        host: str,
        shared: str = "",
        *,
        task: str = "",
        listening: socket.socket | None = None,
        serve_others: Callable[[Channel, Event], None] = lambda *_: None,
    ) -> None:
        self.request, self.secret = request, shared
        self._job = {"task": task, "settings": request.settings, "timeout": request.timeout}
        self._job |= {"ranks": request.ranks, "host": host}
        encoded(self._job, "job")  # so that one that is too long fails here, not in every rank
        self._store, self._heard = Future[list[Any]](), SimpleQueue[Heard]()
        self._inherited: set[Channel] = set()
        self._serve_others, self.failures, self.reported = serve_others, list[Heard](), list[Log]()
        self.causes = dict[int, Cause]()  # why a rank says that it fails
        self._listener = Listener(host, shared, self._serve, listening) if shared else None

    @property
    def address(self) -> Address:
        """Return the address on which it listens."""
        assert self._listener is not None  # noqa: S101
        return self._listener.address

    def inherited(self, rank: int) -> socket.socket:
        """Return the end of a new connection for a rank that inherits it, and serve the other end."""
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        self._inherited.add(channel)

        def serve() -> None:
            with suppress(OSError):  # the rank has ended
                self._serve(channel, {"role": "rank", "rank": rank})
            channel.end()
            channel.close()
            self._inherited.discard(channel)

        threading.Thread(target=serve, daemon=True).start()
        return theirs

    def close(self) -> None:
        """End all connections, and with them the ranks. Safe to call twice."""
        self._store.cancel()
        for channel in list(self._inherited):
            channel.end()
        if self._listener:
            self._listener.close()

    def _serve(self, channel: Channel, hello: Event) -> None:
        if hello["role"] != "rank":
            self._serve_others(channel, hello)
            return
        rank = hello["rank"]
        try:
            channel.send(self._job | ({"store": self._store.result()} if rank else {}))
        except CancelledError:
            return
        while (message := channel.receive()) is not None:
            if "store" in message:
                with suppress(InvalidStateError):  # this launch has ended
                    self._store.set_result(message["store"])
            else:
                self._heard.put(Heard(rank, message, channel))

    def events(self, processes: Sequence[Process]) -> Callable[[float], list[Event] | None]:
        """Return a function for `supervise`: handles what arrives in some seconds and returns rank 0's events.

        It returns None once the processes have ended and their ranks have, or had a moment to.
        """
        until = float("inf")

        def take(seconds: float) -> list[Event] | None:
            nonlocal until
            if all(process.poll() is not None for process in processes):
                until = min(until, time.monotonic() + LINGER_SECONDS)
            is_over = until < float("inf") and (not self._has_peers() or time.monotonic() > until)
            arrived = self._arrived(0 if is_over else seconds)
            events = [each.message["event"] for each in arrived if "event" in each.message]
            return None if is_over and not arrived else events

        return take

    def _has_peers(self) -> bool:
        return bool(self._inherited) or (self._listener is not None and self._listener.has_peers())

    def _arrived(self, seconds: float) -> list[Heard]:
        """Handle and answer all messages in the queue, or those that arrive first within ``seconds``."""
        arrived: list[Heard] = []
        with suppress(Empty):
            arrived.append(
                self._heard.get(timeout=seconds) if seconds else self._heard.get_nowait()
            )
            while True:
                arrived.append(self._heard.get_nowait())
        for each in arrived:
            if "event" in each.message:
                self.request.on_event(each.message["event"])
            else:
                self.failures.append(each)
                self.causes[each.rank] = _cause_in(each.message)
                for log in self.reported[each.rank : each.rank + 1]:
                    log.write("\n".join(each.message["failed"]).encode())
                    log.flush()
            with suppress(OSError):  # it has ended
                # A failed rank may end only now, so that its consequences are heard of later.
                each.channel.send({})
        return arrived


def _cause_in(message: Event) -> Cause:
    """Return the cause that a rank has sent with the report of its failure."""
    kind, rank, peer, step, silent = message["cause"]
    return Cause(Kind(kind), rank, "", peer, step, tuple(silent))


def rank_names(ranks: int) -> list[str]:
    """Return the names of ranks for errors.

    >>> rank_names(2)
    ['rank 0 of 2', 'rank 1 of 2']
    """
    return [f"rank {rank} of {ranks}" for rank in range(ranks)]


def unnamed_logs(count: int, stack: ExitStack) -> list[Log]:
    """Return files for what processes print; they have no name, so nothing of them is left."""
    return [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count)]


Starter = Callable[[Driver, ExitStack], Supervised]


def drive(driver: Driver, start: Starter) -> list[Event]:
    """Start ranks, supervise them and return rank 0's events; none of them is left afterwards.

    Raises RankError, which names the first process that failed, with its last lines.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 256 + FILES_PER_RANK * driver.request.ranks
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE,
            (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard),
        )
    with ExitStack() as stack:
        stack.callback(driver.close)
        started = start(driver, stack)
        driver.reported = started.logs if started.has_reports else []
        events = driver.events(started.processes)
        return supervise(
            started.names,
            started.processes,
            started.logs,
            events,
            driver.request.timeout,
            driver.causes,
        )
