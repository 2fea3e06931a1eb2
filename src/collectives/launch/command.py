"""Ranks that a command starts (mpirun, horovodrun, torchrun, srun), on this machine or on many.

The launcher listens on one address. A rank connects to it (`channel`), gets its job, and says there what it reports and
why it failed. A rank that loses this connection ends itself, so none outlives its launcher, wherever it runs. The ranks
meet one another in a store of torch's that the launcher keeps beside it; nothing else is in that store.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]

from collectives.launch import tasks
from collectives.launch.channel import LOOPBACK, Connection, Listener
from collectives.processes import parent_death
from collectives.processes.supervise import (
    GRACE_SECONDS,
    LINGER_SECONDS,
    Event,
    Log,
    Process,
    RankError,
    end,
    indented,
    start,
    watch,
)

# How long ranks have to end themselves.
DISMISS_SECONDS = 0.5
ELSEWHERE = ("192.0.2.1", 9)  # an address for documentation (RFC 5737): some other machine


class Heard(NamedTuple):
    """A message from a rank."""

    rank: int
    message: Event


def launch_by(
    command: list[str],
    module: str,
    settings: Event,
    ranks: int,
    *,
    where: str,
    host: str,
    secret: str,
    timeout: float,
    environment: Mapping[str, str],
    on_event: Callable[[Event], None],
    secret_file: str = "",
    lost: re.Pattern[str] | None = None,
) -> list[Event]:
    """`collectives.launch.launch` by a command that takes the ranks' own command as its last arguments.

    ``where`` names the row of `collectives.launch.rank.VARIABLES` in which a rank finds its number, ``host`` is the
    address on which the launcher listens. The ``secret`` has to be in the ranks' environment; ``secret_file``, if they
    read it from one, is removed even if the launcher is killed. ``lost`` matches how the command tells of a rank that
    could not say itself why it ended, with the groups ``rank`` and ``how``.
    """
    job: Event = {"task": tasks.name_of(module), "settings": settings, "timeout": timeout, "ranks": ranks}
    with ExitStack() as stack:
        store = _store(host, timeout)
        job["store"] = [host, store.port]
        listener, heard = _listen(host, secret, job)
        stack.callback(listener.close)
        log: Log = stack.enter_context(tempfile.TemporaryFile())
        rank = [sys.executable, "-m", "collectives.launch.rank", where, host, str(listener.address[1])]
        leashed = [sys.executable, parent_death.__file__, str(os.getpid()), secret_file, *command, *rank]
        process = start(leashed, log, dict(environment), [])
        stack.callback(end, [process], GRACE_SECONDS)
        stack.callback(_dismiss, listener, process)
        seen: list[Event] = []
        failures: list[Heard] = []
        try:
            taking = _taking(listener, heard, failures, process)
            for event in watch([where], [process], [log], taking, time.monotonic() + timeout):
                seen.append(event)
                on_event(event)
        except RankError as error:
            raise RankError(f"{_lost(log, lost, ranks)}{_told(failures, ranks)}{error}") from None
        return seen


def reachable(is_local: bool) -> str:
    """The one address on which a launcher listens.

    That is the address of the interface in GLOO_SOCKET_IFNAME, if this machine has it; else loopback's if all ranks are
    on this machine; else the one that this machine's name leads to; else the one by which it reaches others.
    """
    if address := _address_of(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]):
        return address
    for candidate in () if is_local else (_named, _outgoing):
        with suppress(OSError):
            address = candidate()
            socket.create_server((address, 0)).close()
            if not address.startswith("127."):
                return address
    return LOOPBACK


def _address_of(interface: str) -> str | None:
    known = psutil.net_if_addrs().get(interface, [])
    return next((str(each.address) for each in known if each.family == socket.AF_INET), None)


def _named() -> str:
    return socket.gethostbyname(socket.gethostname())


def _outgoing() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(ELSEWHERE)  # sends nothing
        return str(probe.getsockname()[0])


def _store(host: str, timeout: float) -> Any:
    """The store of the ranks' process group. torch does not authenticate its peers, so it holds no data of ours."""
    from torch import distributed as dist

    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in the package's list
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
        master_listen_fd=listener.detach(),
    )


def _listen(host: str, secret: str, job: Event) -> tuple[Listener, SimpleQueue[Heard]]:
    """Give the job to each rank that connects, and put what it says into a queue."""
    heard: SimpleQueue[Heard] = SimpleQueue()

    def serve(connection: Connection, _: str, rank: int) -> None:
        connection.send(job)
        while (message := connection.receive()) is not None:
            heard.put(Heard(rank, message))

    return Listener(host, secret, {"rank"}, serve), heard


def _dismiss(listener: Listener, process: Process) -> None:
    """End the ranks that are left, with their children, a moment before the command is told to end."""
    listener.close()
    if process.poll() is None:
        time.sleep(DISMISS_SECONDS)


def _taking(
    listener: Listener, heard: SimpleQueue[Heard], failures: list[Heard], process: Process
) -> Callable[[float], list[Event] | None]:
    """Events as ranks report them; None once the process has ended and its ranks have, or should have."""
    until = float("inf")

    def events(seconds: float) -> list[Event] | None:
        nonlocal until
        if process.poll() is not None:
            until = min(until, time.monotonic() + LINGER_SECONDS)
        is_over = until < float("inf") and (not listener.has_peers() or time.monotonic() > until)
        come = _come(heard, 0 if is_over else seconds)
        failures.extend(each for each in come if "failed" in each.message)
        found = [each.message["event"] for each in come if "event" in each.message]
        return None if is_over and not come else found

    return events


def _come(heard: SimpleQueue[Heard], seconds: float) -> list[Heard]:
    """What is in the queue, or the next that comes within so many seconds."""
    come: list[Heard] = []
    with suppress(Empty):
        come.append(heard.get(timeout=seconds) if seconds else heard.get_nowait())
        while True:
            come.append(heard.get_nowait())
    return come


def _lost(log: Log, lost: re.Pattern[str] | None, ranks: int) -> str:
    """The rank that was killed, if the command tells of one: what others say is but the consequence."""
    log.seek(0)
    found = lost and lost.search(log.read().decode(errors="replace"))
    return f"rank {found['rank']} of {ranks} was lost: {found['how']}\n" if found else ""


def _told(failures: list[Heard], ranks: int) -> str:
    """What the first rank that could say anything about its failure said; a killed one could not."""
    if not failures:
        return ""
    rank, message = failures[0]
    return f"rank {rank} of {ranks} ended with exit code 1; {indented(message['failed'])}\n"
