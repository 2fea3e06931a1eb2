"""Ranks that a command starts (mpirun, horovodrun, torchrun, srun), on one machine or several.

This process listens on one address. A rank connects to it (`channel`), gets its job, and sends its reports and the
reason of its failure. A rank that loses this connection ends itself, so none outlives this process on any machine. The
ranks meet in a torch store that this process keeps; the store holds nothing else. The ranks' Python is this one, or
that in the variable COLLECTIVES_PYTHON, such as a container's.
"""

import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from collectives.launch import secret
from collectives.launch.channel import AuthenticatedConnection, Listener, encoded
from collectives.launch.request import Request, task_of
from collectives.processes import (
    GRACE_SECONDS,
    LINGER_SECONDS,
    ChildProcess,
    Event,
    Log,
    RankError,
    end,
    guarded,
    indented,
    start,
    supervise,
    text,
)

PYTHON_VARIABLE = "COLLECTIVES_PYTHON"
# How long ranks may take to end themselves.
DISMISS_SECONDS = 0.5


class Heard(NamedTuple):
    """A message from a rank."""

    rank: int
    message: Event


def launch_by(
    command: list[str],
    wanted: Request,
    *,
    launcher: str,
    host: str,
    shared: str,
    secret_file: str = "",
    lost: re.Pattern[str] | None = None,
) -> list[Event]:
    """`collectives.launch.launch` by a command that takes the ranks' own command as its last arguments.

    ``launcher`` selects the entry of `collectives.launch.rank.VARIABLES` in which a rank finds its number; ``host`` is
    the address on which this process listens. The secret ``shared`` with the ranks is put into the command's
    environment, or the name of ``secret_file``, if the ranks read it from one; that file is removed even if this
    process is killed. ``lost`` matches the command's message about a killed rank, which cannot report itself; its
    groups are ``rank`` and ``how``.

    Raises RankError, with the first rank's own report, and ValueError for a module that is no task (`task_of`)
    and for a job that is too long for a connection (`channel.MOST_BYTES`).
    """
    ranks = wanted.ranks
    job = {"task": task_of(wanted.module), "settings": wanted.settings, "timeout": wanted.timeout, "ranks": ranks}
    with ExitStack() as stack:
        store = _store(host, wanted.timeout)
        job["store"] = [host, store.port]
        encoded(job, "job")  # so that one that is too long fails here, not in every rank
        listener, heard = _listen(host, shared, job)
        stack.callback(listener.close)
        log: Log = stack.enter_context(tempfile.TemporaryFile())
        python = os.environ.get(PYTHON_VARIABLE, sys.executable)
        rank = [python, "-m", "collectives.launch.rank", launcher, host, str(listener.address[1])]
        process = start(
            guarded([*command, *rank], secret_file),
            log,
            {**wanted.environment, **secret.variables(shared, secret_file)},
            [],
        )
        stack.callback(end, [process], GRACE_SECONDS)
        stack.callback(_dismiss, listener, process)
        failures: list[Heard] = []
        try:
            taking = _taking(listener, heard, failures, process)
            return supervise([launcher], [process], [log], taking, wanted.timeout, wanted.on_event)
        except RankError as error:
            raise RankError(f"{_lost(log, lost, ranks)}{_told(failures, ranks)}{error}") from None


def _store(host: str, timeout: float) -> Any:
    """The store of the ranks' process group. It holds no data of ours: torch does not authenticate its peers."""
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


def _listen(host: str, shared: str, job: Event) -> tuple[Listener, SimpleQueue[Heard]]:
    """Send the job to each rank that connects, and queue its messages."""
    heard: SimpleQueue[Heard] = SimpleQueue()

    def serve(connection: AuthenticatedConnection, _: str, rank: int) -> None:
        connection.send(job)
        while (message := connection.receive()) is not None:
            heard.put(Heard(rank, message))
            if "failed" in message:  # only now may the rank end, so that its consequences are heard of later
                connection.send({})

    return Listener(host, shared, {"rank"}, serve), heard


def _dismiss(listener: Listener, process: ChildProcess) -> None:
    """End the remaining ranks and their children, a moment before the command gets SIGTERM."""
    listener.close()
    if process.poll() is None:
        time.sleep(DISMISS_SECONDS)


def _taking(
    listener: Listener, heard: SimpleQueue[Heard], failures: list[Heard], process: ChildProcess
) -> Callable[[float], list[Event] | None]:
    """Events that ranks report; None after the process has ended and its ranks have, or had a second to."""
    until = float("inf")

    def events(seconds: float) -> list[Event] | None:
        nonlocal until
        if process.poll() is not None:
            until = min(until, time.monotonic() + LINGER_SECONDS)
        is_over = until < float("inf") and (not listener.has_peers() or time.monotonic() > until)
        arrived = _arrived(heard, 0 if is_over else seconds)
        failures.extend(each for each in arrived if "failed" in each.message)
        found = [each.message["event"] for each in arrived if "event" in each.message]
        return None if is_over and not arrived else found

    return events


def _arrived(heard: SimpleQueue[Heard], seconds: float) -> list[Heard]:
    """All messages in the queue, or those that arrive first within ``seconds``."""
    arrived: list[Heard] = []
    with suppress(Empty):
        arrived.append(heard.get(timeout=seconds) if seconds else heard.get_nowait())
        while True:
            arrived.append(heard.get_nowait())
    return arrived


def _lost(log: Log, lost: re.Pattern[str] | None, ranks: int) -> str:
    """The rank that was killed, if the command reports one: the other ranks fail as a consequence."""
    found = lost and lost.search(text(log))
    return f"rank {found['rank']} of {ranks} was lost: {found['how']}\n" if found else ""


def _told(failures: list[Heard], ranks: int) -> str:
    """The report of the first rank that failed; a killed one sends none."""
    if not failures:
        return ""
    rank, message = failures[0]
    return f"rank {rank} of {ranks} ended with exit code 1; {indented(message['failed'])}\n"
