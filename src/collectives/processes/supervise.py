"""Watching over processes until all is well: their last lines when it is not, and none of them left in the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]
Log = IO[bytes]

LAST_LINES = 20
POLL_SECONDS = 0.05

# How long the others are listened to when one has failed.
LINGER_SECONDS = 1.0

# How long a process that starts ranks may take to end them before it is killed.
GRACE_SECONDS = 5.0

STDERR = 2

# How a rank says for which one it has waited in vain.
WAITED = re.compile(r"in step \d+, (?:sending to|receiving from) rank (\d+): ")


class RankError(RuntimeError):
    """A rank failed, or the ranks took too long; the message ends with the last lines that were printed."""


class Process(subprocess.Popen[bytes]):
    """A process that `poll` does not reap: until `wait`, its number, which is its group's, is given to no other.

    So `end` can kill the group of a process that has ended. macOS has what this takes from Python 3.13 on.
    """

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None as long as it runs."""
        if self.returncode is not None or not hasattr(os, "waitid"):
            return super().poll()
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def start(command: list[str], log: Log, environment: dict[str, str], pass_fds: list[int]) -> Process:
    """A process in a session of its own, so that it can be ended with all its children."""
    return Process(
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
    late = [which for which, process in enumerate(processes) if process.poll() is None]
    if late and time.monotonic() > deadline:
        raise RankError(_why_late(names, logs, late))


def _why_late(names: list[str], logs: list[Log], late: list[int]) -> str:
    """A stopped rank holds up all the others, so it is named; otherwise the first one, and how many more there are."""
    if stopped := _stopped(logs):
        return f"{names[stopped[0]]} is stopped (SIGSTOP) and not done in time; {last_lines(logs[stopped[0]])}"
    are = f" and {len(late) - 1} more are" if len(late) > 1 else " is"
    return f"{names[late[0]]}{are} not done in time; {last_lines(logs[late[0]])}"


def _first_failure(names: list[str], processes: list[Process], logs: list[Log]) -> str:
    """One failing rank brings the others down: the first is the one whose last words are the oldest.

    It may itself have waited for one that is not even down: that one comes first then.
    """
    failed = [which for which, process in enumerate(processes) if process.poll()]
    which = min(failed, key=lambda which: os.fstat(logs[which].fileno()).st_mtime_ns)
    code = processes[which].poll() or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    silent = "".join(f"{names[which]} did not answer the others\n" for which in _silent(processes, logs))
    return f"{silent}{names[which]} {how}; {last_lines(logs[which])}"


def _silent(processes: list[Process], logs: list[Log]) -> list[int]:
    """The ranks that still run while others failed because they waited for them; none if one failed by itself."""
    running = {which for which, process in enumerate(processes) if process.poll() is None}
    waited_for = [WAITED.findall(_text(log)) for process, log in zip(processes, logs, strict=True) if process.poll()]
    return sorted(running & {int(peer) for peers in waited_for for peer in peers}) if all(waited_for) else []


def _stopped(logs: list[Log]) -> list[int]:
    """Into which of the logs a stopped process prints.

    On an emulated host that is the rank; the process that was started only waits for it.
    """
    printed = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended, or is another user's
            if stat.read_text().rpartition(") ")[2][0] in "Tt":
                printed.add(_identity((stat.parent / "fd" / "1").stat()))
    return [which for which, log in enumerate(logs) if _identity(os.fstat(log.fileno())) in printed]


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def last_lines(log: Log) -> str:
    """What was printed last."""
    return indented(_text(log).splitlines())


def _text(log: Log) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")


def indented(lines: list[str]) -> str:
    """The last of these lines, under one that says what they are."""
    kept = lines[-LAST_LINES:] or ["(nothing was printed)"]
    return "\n    ".join(["its last lines:", *kept])


def end(processes: list[Process], grace: float = 0.0) -> None:
    """End whatever is left of every process's group, and wait for it; with ``grace`` ask before killing.

    A process that has ended may have left children in its group; one that was waited for is left alone, as its number
    may be another's by now.
    """
    until = time.monotonic() + grace
    for how in (signal.SIGTERM, signal.SIGKILL) if grace else (signal.SIGKILL,):
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):  # only zombies are left, says macOS
                    os.killpg(process.pid, how)
        while how != signal.SIGKILL and time.monotonic() < until and any(p.poll() is None for p in processes):
            time.sleep(POLL_SECONDS)
    for process in processes:
        process.wait()


def open_streams() -> None:
    """Open standard input, output and errors where they are closed: else the next file takes such a number.

    What is started then gets that number as its standard input, whatever it was meant to be.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(file, True)
    os.close(file)


def loopback_interface() -> str:
    """What the system calls the interface that leads nowhere but back."""
    return "lo0" if sys.platform == "darwin" else "lo"
