"""Processes that we start: supervised until all have ended well or one fails, and then none of them is left."""

import multiprocessing
import os
import re
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from collectives.processes.parent_death import die_with

Event = dict[str, Any]
Log = IO[bytes]

LAST_LINES = 20
LAST_BYTES = 1 << 16  # of a log: what is read of it again and again
POLL_SECONDS = 0.05

# How long we read the others' events after one has failed.
LINGER_SECONDS = 2.0

# How long a rank that is being killed may take until it has ended: its peers notice before we can.
DYING_SECONDS = 1.0

# How long a process that starts ranks may take to end them before we kill it.
GRACE_SECONDS = 5.0

STDERR = 2

PEER_CREDENTIALS = struct.Struct("3i")  # process, user, group; Linux

# How a rank names the peer that it waited for, and the one that answered nobody; how gloo says that a peer has gone.
NO_SIGN = re.compile(r"\brank (\d+) gave no sign in time")
WAITED = re.compile(r"in step \d+, (?:sending to|receiving from) rank (\d+): ")
LOST = re.compile(r"Connection (?:closed|reset) by peer")


class RankError(RuntimeError):
    """A rank failed, or the ranks timed out; the message ends with the last lines that were printed."""


class ChildProcess(subprocess.Popen[bytes]):
    """A process that `poll` does not reap: its number, which is also its group's, stays reserved until `wait`.

    So `end` can kill the group of a process that has ended. macOS has `os.waitid` from Python 3.13 on.
    """

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is not None or not hasattr(os, "waitid"):
            return super().poll()
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def start(command: list[str], log: Log, environment: dict[str, str], pass_fds: list[int]) -> ChildProcess:
    """Start a process in a session of its own, so that `end` reaches all its children; it prints into ``log``."""
    return ChildProcess(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def supervise(
    names: list[str],
    processes: list[ChildProcess],
    logs: list[Log],
    events: Callable[[float], list[Event] | None],
    timeout: float,
    on_event: Callable[[Event], None],
    since: float | None = None,
) -> list[Event]:
    """Wait until every process has ended with exit code 0; returns all events, which ``on_event`` sees as they arrive.

    ``events(seconds)`` waits at most so long and returns the events that have arrived, or None after the last one.
    Raises RankError if a process fails, or ``timeout`` seconds after ``since`` (a time of the monotonic clock, by
    default now). The others have `LINGER_SECONDS` to report that one has failed.
    """
    since, seen, is_open, failed_at = time.monotonic() if since is None else since, list[Event](), True, float("inf")
    while is_open or any(process.poll() is None for process in processes):
        arrived = events(POLL_SECONDS) if is_open else None
        is_open = arrived is not None
        for event in arrived or []:
            seen.append(event)
            on_event(event)
        if any(process.poll() for process in processes):
            failed_at = min(failed_at, time.monotonic())
            if not is_open or time.monotonic() > failed_at + LINGER_SECONDS:
                break
        else:
            _need_time(names, processes, logs, timeout, since)
        if not is_open:
            time.sleep(POLL_SECONDS)
    if any(process.poll() for process in processes):
        raise RankError(_first_failure(names, processes, logs))
    return seen


def _need_time(names: list[str], processes: list[ChildProcess], logs: list[Log], timeout: float, since: float) -> None:
    """Name a stopped rank, because it holds up all others; otherwise the first one, and how many more there are."""
    late = [which for which, process in enumerate(processes) if process.poll() is None]
    if not late or time.monotonic() < since + timeout:
        return
    stopped = _stopped(logs)
    which = stopped[0] if stopped else late[0]
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    how = " is stopped (SIGSTOP):" if stopped else more
    raise RankError(f"{names[which]}{how} timed out after {timeout:g} s; {last_lines(logs[which])}")


def _first_failure(names: list[str], processes: list[ChildProcess], logs: list[Log]) -> str:
    """The first to fail is the rank that printed its last line first, because its failure makes the others fail.

    Before it come the ranks that name no peer as the reason: a kernel may close a rank's connections before it has
    ended, and it notes times of files by the tick only. If it failed because a running rank did not answer, the message
    begins with that rank.
    """
    until = time.monotonic() + DYING_SECONDS
    while _lost(processes, logs) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    failed = [which for which, process in enumerate(processes) if process.poll()]
    which = min(failed, key=lambda which: (_has_lost(logs[which]), os.fstat(logs[which].fileno()).st_mtime_ns))
    code = processes[which].poll() or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    silent = "".join(f"{names[which]} did not answer the others\n" for which in _silent(processes, logs))
    return f"{silent}{names[which]} {how}; {last_lines(logs[which])}"


def _silent(processes: list[ChildProcess], logs: list[Log]) -> list[int]:
    """The running ranks that all failed ranks waited for; none if a rank failed by itself.

    A rank that has printed such a failure is no longer silent, although its process may still be on its way out.
    """
    waited_for = [WAITED.findall(text(log)) for log in logs]
    no_sign = [peer for log in logs for peer in NO_SIGN.findall(text(log))]
    failed = [peers for process, peers in zip(processes, waited_for, strict=True) if process.poll()]
    silent = {w for w, process in enumerate(processes) if process.poll() is None and not waited_for[w]}
    named = no_sign or [peer for peers in waited_for for peer in peers]
    return sorted(silent & set(map(int, named))) if all(failed) else []


def _lost(processes: list[ChildProcess], logs: list[Log]) -> bool:
    """Whether all failed ranks name a peer, and a rank has not ended: it may be that peer, on its way out."""
    failed = [_has_lost(log) for process, log in zip(processes, logs, strict=True) if process.poll()]
    return all(failed) and any(process.poll() is None for process in processes)


def _has_lost(log: Log) -> bool:
    return bool(WAITED.search(text(log)) or LOST.search(text(log)))


def _stopped(logs: list[Log]) -> list[int]:
    """The logs into which a stopped process prints.

    On an emulated host that process is the rank; the process that we started only waits for it.
    """
    printed = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended, or is another user's
            if stat.read_text().rpartition(") ")[2][0] in "Tt":
                printed.add(_identity((stat.parent / "fd" / "1").stat()))
    return [which for which, log in enumerate(logs) if _identity(os.fstat(log.fileno())) in printed]


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


def last_lines(log: Log) -> str:
    """The last lines of a log, under a heading."""
    return indented(text(log).splitlines())


def text(log: Log) -> str:
    """Return the last `LAST_BYTES` bytes that have been printed into a log."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - LAST_BYTES))
    return log.read().decode(errors="replace")


def indented(lines: list[str]) -> str:
    """The last of these lines, under a heading."""
    kept = lines[-LAST_LINES:] or ["(nothing was printed)"]
    return "\n    ".join(["its last lines:", *kept])


def end(processes: list[ChildProcess], grace: float = 0.0) -> None:
    """Kill what is left of every process's group, and wait for it; SIGTERM goes ``grace`` seconds before, if above 0.

    A process that has ended may have left children in its group. One that was waited for is skipped, because its number
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
    """Open standard input, output and errors if they are closed.

    Otherwise the next file that we open gets such a number, and a child process takes it for its standard input.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(file, True)
    os.close(file)


@contextmanager
def workers(count: int | None = None, *, fresh: bool = False) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``count`` worker processes, by default one for each core; ``fresh`` ones are spawned, not forked.

    An exception that leaves the block kills the workers and drops their jobs; they also end with their parent.

    >>> with workers(1) as pool:
    ...     pool.submit(pow, 2, 5).result()
    32
    """
    context = multiprocessing.get_context("spawn") if fresh else None
    with ProcessPoolExecutor(count, context, initializer=_begin_worker, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _begin_worker(parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole group; the parent ends us


def is_ours(peer: socket.socket) -> bool:
    """Whether the process that connected has this process's user; the kernel says so, not the peer.

    >>> one, other = socket.socketpair()
    >>> with one, other:
    ...     is_ours(one)
    True
    """
    said = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
    return bool(PEER_CREDENTIALS.unpack(said)[1] == os.geteuid())
