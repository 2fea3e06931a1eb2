"""Watching over processes until all is well: their last lines when it is not, and none of them left in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

Event = dict[str, Any]
Log = IO[bytes]
Process = subprocess.Popen[bytes]

LAST_LINES = 20
POLL_SECONDS = 0.05

# How long the others are listened to when one has failed.
LINGER_SECONDS = 1.0

# How long a process that starts ranks may take to end them before it is killed.
GRACE_SECONDS = 5.0


class RankError(RuntimeError):
    """A rank failed, or the ranks took too long; the message ends with the last lines that were printed."""


def start(command: list[str], log: Log, environment: dict[str, str], pass_fds: list[int]) -> Process:
    """A process in a session of its own, so that it can be ended with all its children."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def watch(
    names: list[str],
    processes: list[Process],
    logs: list[Log],
    events: Callable[[float], list[Event] | None],
    deadline: float,
) -> Iterator[Event]:
    """Events as they come, until every process has ended well; raises RankError otherwise.

    ``events(seconds)`` waits at most so long and returns what has come, or None when nothing will come any more.
    """
    is_open = True
    while is_open or any(process.poll() is None for process in processes):
        come = events(POLL_SECONDS) if is_open else None
        is_open = come is not None
        yield from come or []
        if not is_open:
            time.sleep(POLL_SECONDS)
        if any(process.poll() for process in processes):
            yield from _last_words(events, is_open)
        _need_well(names, processes, logs, deadline)
    _need_well(names, processes, logs, deadline)


def _last_words(events: Callable[[float], list[Event] | None], is_open: bool) -> Iterator[Event]:
    """What still comes when a process has failed: the others notice, and have a moment to say so."""
    until = time.monotonic() + LINGER_SECONDS
    while is_open and time.monotonic() < until:
        come = events(POLL_SECONDS)
        is_open = come is not None
        yield from come or []


def _need_well(names: list[str], processes: list[Process], logs: list[Log], deadline: float) -> None:
    if any(process.poll() for process in processes):
        raise RankError(_first_failure(names, processes, logs))
    late = [which for which, process in enumerate(processes) if process.returncode is None]
    if late and time.monotonic() > deadline:
        raise RankError(f"{names[late[0]]} is not done in time; {last_lines(logs[late[0]])}")


def _first_failure(names: list[str], processes: list[Process], logs: list[Log]) -> str:
    """One failing rank brings the others down: the first is the one whose last words are the oldest."""
    failed = [which for which, process in enumerate(processes) if process.poll()]
    which = min(failed, key=lambda which: os.fstat(logs[which].fileno()).st_mtime_ns)
    code = processes[which].returncode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"{names[which]} {how}; {last_lines(logs[which])}"


def last_lines(log: Log) -> str:
    """What was printed last."""
    log.seek(0)
    return indented(log.read().decode(errors="replace").splitlines())


def indented(lines: list[str]) -> str:
    """The last of these lines, under one that says what they are."""
    kept = lines[-LAST_LINES:] or ["(nothing was printed)"]
    return "\n    ".join(["its last lines:", *kept])


def end(processes: list[Process], grace: float = 0.0) -> None:
    """End whatever is left of every process's group, and wait for it; with ``grace`` ask before killing."""
    until = time.monotonic() + grace
    for how in (signal.SIGTERM, signal.SIGKILL) if grace else (signal.SIGKILL,):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, how)
        while how != signal.SIGKILL and time.monotonic() < until and any(p.poll() is None for p in processes):
            time.sleep(POLL_SECONDS)
    for process in processes:
        process.wait()


def loopback_interface() -> str:
    """What the system calls the interface that leads nowhere but back."""
    return "lo0" if sys.platform == "darwin" else "lo"
