"""Ranks that a command starts (mpirun, horovodrun, torchrun, srun), on this machine or on many.

The launcher keeps a store, which every rank reaches over TCP: there a rank finds its job and meets the others, rank 0
leaves its events, and whoever fails says why. A rank that loses the store ends itself, so none outlives its launcher,
wherever it runs.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from collectives.launch import leash
from collectives.launch.watch import GRACE_SECONDS, Event, Log, Process, RankError, end, indented, start, watch

# How long ranks have to end themselves.
DISMISS_SECONDS = 0.5


def launch_by(
    command: list[str],
    module: str,
    settings: Event,
    ranks: int,
    *,
    where: str,
    timeout: float,
    environment: Mapping[str, str],
    on_event: Callable[[Event], None],
    lost: re.Pattern[str] | None = None,
) -> list[Event]:
    """`collectives.launch.launch` by a command that takes the ranks' own command as its last arguments.

    ``where`` names the row of `collectives.launch.rank.VARIABLES` in which a rank finds its number. ``lost`` matches
    how the command tells of a rank that could not say itself why it ended, with the groups ``rank`` and ``how``.
    """
    with ExitStack() as stack:
        host, token = _host(), secrets.token_hex(16)
        store = _store(host, token, timeout)
        store.set("job", json.dumps({"module": module, "settings": settings, "timeout": timeout, "ranks": ranks}))
        log: Log = stack.enter_context(tempfile.TemporaryFile())
        rank = [sys.executable, "-m", "collectives.launch.rank", where, host, str(store.underlying_store.port), token]
        leashed = [sys.executable, leash.__file__, str(os.getpid()), *command, *rank]
        process = start(leashed, log, dict(environment), [])
        stack.callback(end, [process], GRACE_SECONDS)
        stack.callback(_dismiss, store, process)
        seen = []
        try:
            for event in watch([where], [process], [log], _taking(store, process), time.monotonic() + timeout):
                seen.append(event)
                on_event(event)
        except RankError as error:
            raise RankError(f"{_lost(log, lost, ranks)}{_told(store, ranks)}{error}") from None
        return seen


def _dismiss(store: Any, process: Process) -> None:
    """End the ranks that are left, with their children, a moment before the command is told to end."""
    store.set("end", "")
    if process.poll() is None:
        time.sleep(DISMISS_SECONDS)


def _host() -> str:
    """How this machine is reached from others; where it has no name that leads to it, from itself."""
    try:
        address = socket.gethostbyname(socket.gethostname())
        socket.create_server((address, 0)).close()
    except OSError:
        return "127.0.0.1"
    return socket.gethostname() if address.startswith("127.") else address


def _store(host: str, token: str, timeout: float) -> Any:
    """The launcher's store; under a name that nobody can guess, as anyone can reach its port."""
    from torch import distributed as dist

    own = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in the package's list
        host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout)
    )
    return dist.PrefixStore(token, own)  # type: ignore[attr-defined]


def _taking(store: Any, process: Any) -> Callable[[float], list[Event] | None]:
    """Events out of the store, numbered from 0; None when the process has ended and no more are there."""
    taken = 0

    def events(seconds: float) -> list[Event] | None:
        nonlocal taken
        ended, found = process.poll() is not None, []
        while store.check([f"event/{taken}"]):
            found.append(json.loads(store.get(f"event/{taken}")))
            taken += 1
        if not found and not ended:
            time.sleep(seconds)
        return None if ended and not found else found

    return events


def _lost(log: Log, lost: re.Pattern[str] | None, ranks: int) -> str:
    """The rank that was killed, if the command tells of one: what others say is but the consequence."""
    log.seek(0)
    found = lost and lost.search(log.read().decode(errors="replace"))
    return f"rank {found['rank']} of {ranks} was lost: {found['how']}\n" if found else ""


def _told(store: Any, ranks: int) -> str:
    """What the first rank that could say anything about its failure said; a killed one could not."""
    if not store.check(["failed"]):
        return ""
    failure = json.loads(store.get("failed"))
    return f"rank {failure['rank']} of {ranks} ended with exit code 1; {indented(failure['lines'])}\n"
