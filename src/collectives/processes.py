"""Supervisor: starts processes, watches them, and ends them and everything that they have started.

A process that we start has a session, and so a process group, of its own. There are three ways to
its end:

* `end` kills the whole group, by default at once. Call it when the block that started the process
  is left.
* `die_with`, called by the process itself, has the kernel kill it with its parent, even if that
  gets SIGKILL.
* `guarded` is for a command of others, which calls nothing of ours: a small process of ours starts
  it, and ends it and its group when this process has ended. That process runs this file as a
  script, which imports Python's own modules.

No other module sends a signal to a group, or asks the kernel to do so.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    import psutil  # type: ignore[import-untyped]

    from collectives.cause import Cause

Event = dict[str, Any]
Log = IO[bytes]

LAST_LINES = 20
LAST_BYTES = 1 << 16  # of a log: what is read of it again and again
POLL_SECONDS = 0.05

# How long we read the others' events after one has failed.
LINGER_SECONDS = 2.0

# How long a rank that is being killed may take until it has ended: its peers notice before we can.
DYING_SECONDS = 1.0

# How long a command that starts ranks may take to end them before its group is killed.
GRACE_SECONDS = 5.0

STDERR = 2
PR_SET_PDEATHSIG = 1


class RankError(RuntimeError):
    """A rank failed, or the ranks timed out.

    The message ends with the last lines that were printed.
    """


class Process(Protocol):
    """A process, or a rank whose end is reported, as `supervise` watches it."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""


class ChildProcess(subprocess.Popen[bytes]):
    """A process in a session of its own, so that `end` reaches all that it has started.

    `poll` does not reap it: its number, which is also its group's, stays reserved until `wait`. So
    `end` can kill the group of a process that has ended. macOS has `os.waitid` from Python 3.13 on.
    """

    def __init__(self, command: list[str], **options: Any) -> None:
        super().__init__(command, start_new_session=True, **options)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is not None or not hasattr(os, "waitid"):
            return super().poll()
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else has reaped it
            return super().poll()
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def start(
    command: list[str], log: Log, environment: dict[str, str], pass_fds: list[int]
) -> ChildProcess:
    """Start a process that prints into ``log`` and has ``environment`` besides this process's own."""
    return ChildProcess(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        pass_fds=pass_fds,
    )


def supervise(
    names: list[str],
    processes: Sequence[Process],
    logs: list[Log],
    events: Callable[[float], list[Event] | None],
    timeout: float,
    causes: "Mapping[int, Cause]",
) -> list[Event]:
    """Wait until every process has ended with exit code 0; return all events.

    ``events(seconds)`` waits at most so long and returns the events that have arrived, or None
    after the last one. It also fills ``causes``: why a rank says that it fails, by the process's
    place. Raises RankError if a process fails, or after ``timeout`` seconds. The
    others have `LINGER_SECONDS` to report that one has failed.
    """
    since, seen, is_open, failed_at = time.monotonic(), list[Event](), True, float("inf")
    while is_open or any(process.poll() is None for process in processes):
        arrived = events(POLL_SECONDS) if is_open else None
        is_open = arrived is not None
        seen += arrived or []
        if any(process.poll() for process in processes):
            failed_at = min(failed_at, time.monotonic())
            if not is_open or time.monotonic() > failed_at + LINGER_SECONDS:
                break
        else:
            _need_time(names, processes, logs, timeout, since)
        if not is_open:
            time.sleep(POLL_SECONDS)
    if any(process.poll() for process in processes):
        raise RankError(_first_failure(names, processes, logs, events, causes))
    return seen


def _need_time(
    names: list[str], processes: Sequence[Process], logs: list[Log], timeout: float, since: float
) -> None:
    """Raise RankError after ``timeout`` seconds.

    Name a stopped rank, which holds up the others, or the first one.
    """
    late = [which for which, process in enumerate(processes) if process.poll() is None]
    if not late or time.monotonic() < since + timeout:
        return
    stopped = _stopped(logs)
    which = stopped[0] if stopped else late[0]
    more = f" and {len(late) - 1} more" if len(late) > 1 else ""
    how = " is stopped (SIGSTOP):" if stopped else more
    raise RankError(f"{names[which]}{how} timed out after {timeout:g} s; {last_lines(logs[which])}")


def _first_failure(
    names: list[str],
    processes: Sequence[Process],
    logs: list[Log],
    events: Callable[[float], list[Event] | None],
    causes: "Mapping[int, Cause]",
) -> str:
    """Return which rank failed first and how: the one that printed its last line first, as its failure caused the rest.

    Before it come the ranks that do not say that another one is the cause: a kernel may close a
    rank's connections before it has ended, and it notes times of files by the tick only. If it
    failed because a running rank did not answer, the message begins with that rank.
    """
    until = time.monotonic() + DYING_SECONDS
    while _may_follow(processes, causes) and time.monotonic() < until:
        if events(POLL_SECONDS) is None:
            time.sleep(POLL_SECONDS)

    def order(place: int) -> tuple[bool, int]:
        return _names_another(place, causes), os.fstat(logs[place].fileno()).st_mtime_ns

    first = min((place for place in range(len(processes)) if processes[place].poll()), key=order)
    code = processes[first].poll() or 0
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    silent = "".join(
        f"{names[place]} did not answer the others\n" for place in _silent(processes, causes)
    )
    return f"{silent}{names[first]} {how}; {last_lines(logs[first])}"


def _silent(processes: Sequence[Process], causes: "Mapping[int, Cause]") -> list[int]:
    """Return the running ranks that failed ones waited for; none if a rank failed by itself.

    Those that gave no sign of life come before those that others only waited for, because these
    may themselves wait. A rank that has told a cause is no longer silent, although its process may
    not have ended yet.
    """
    failed = [place for place, process in enumerate(processes) if process.poll()]
    for place in failed:
        if place not in causes or not causes[place].blamed:
            return []
    no_sign, blamed = set[int](), set[int]()
    for cause in causes.values():
        no_sign.update(cause.silent)
        blamed.update(cause.blamed)
    suspects = no_sign or blamed
    running = {place for place, process in enumerate(processes) if process.poll() is None}
    return sorted(place for place in suspects if place in running and place not in causes)


def _may_follow(processes: Sequence[Process], causes: "Mapping[int, Cause]") -> bool:
    """Return True if all failed ranks name another, and a rank has not ended: it may be that one, about to end."""
    ends = [process.poll() for process in processes]
    failed = [place for place, code in enumerate(ends) if code]
    return all(_names_another(place, causes) for place in failed) and None in ends


def _names_another(place: int, causes: "Mapping[int, Cause]") -> bool:
    """Return True if a rank says that another one is the cause; one that is killed says nothing."""
    return place in causes and not causes[place].is_own


def _stopped(logs: list[Log]) -> list[int]:
    """Return the numbers of the logs into which a stopped process prints.

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
    """Return the last lines of a log, under a heading."""
    return indented(text(log).splitlines())


def text(log: Log) -> str:
    """Return the last `LAST_BYTES` bytes that have been printed into a log."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - LAST_BYTES))
    return log.read().decode(errors="replace")


def indented(lines: list[str]) -> str:
    """Return the last of these lines, under a heading."""
    kept = lines[-LAST_LINES:] or ["(nothing was printed)"]
    return "\n    ".join(["its last lines:", *kept])


def end(processes: list[ChildProcess], grace: float = 0.0) -> None:
    """Kill what is left of every process's group, and wait for it.

    SIGTERM goes ``grace`` seconds before, if above 0.

    A process that has ended may have left children in its group. One that was waited for is
    skipped, because its number may be another's by now.
    """
    until = time.monotonic() + grace
    for how in (signal.SIGTERM, signal.SIGKILL) if grace else (signal.SIGKILL,):
        for process in processes:
            if process.returncode is None:
                kill_group(process.pid, how)
        while (
            how != signal.SIGKILL
            and time.monotonic() < until
            and any(p.poll() is None for p in processes)
        ):
            time.sleep(POLL_SECONDS)
    for process in processes:
        process.wait()


def kill_group(group: int, how: int = signal.SIGKILL) -> None:
    """Send a signal to all processes of a group, if there is one."""
    with suppress(ProcessLookupError, PermissionError):  # only zombies are left, says macOS
        os.killpg(group, how)


def descendants() -> "set[psutil.Process]":
    """Return the processes that this one has started, and those that they have started."""
    import psutil

    return set(psutil.Process().children(recursive=True))


def kill_descendants(but: "set[psutil.Process]") -> None:
    """Kill the `descendants` of this process that are not in ``but``, and wait for them.

    They are not reaped here, because that is for who started them.
    """
    import psutil

    def is_running(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return bool(process.status() != psutil.STATUS_ZOMBIE)
        return False

    killed = descendants() - but
    for each in killed:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    until = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < until and any(map(is_running, killed)):
        time.sleep(POLL_SECONDS)


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends, even by SIGKILL.

    Exits if the parent has ended already.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_poll_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before prctl or the thread, so nobody is left to tell
        sys.exit(1)


def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def guarded(command: list[str], file: str = "") -> list[str]:
    """Return a command that runs ``command`` until this process ends, however it ends, and also removes ``file`` then.

    It passes the command's exit code or signal on. Start it with `start`, or as the first process
    of a session.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), file, *command]


def _guard(parent: int, file: str, command: list[str]) -> int:
    """Run a command until it or ``parent`` ends; return its exit code, negative for a signal.

    When the parent has ended, the command gets SIGTERM, so that it removes its files. It may hang
    instead, as horovodrun does if its ranks ended first: then, and for what the command leaves, the
    whole group is killed.
    """
    # These are for the command: `end` sends them to the group.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    if os.getppid() != parent:
        return 1
    process = subprocess.Popen(command)
    while os.getppid() == parent:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)
    if file:
        with suppress(FileNotFoundError):  # a living parent removes it, too
            os.unlink(file)  # noqa: PTH108  # as short as the rest of this path
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    kill_group(os.getpgrp())
    return 1


def end_as(code: int) -> None:
    """Exit with this code, or by this signal if it is negative."""
    if code < 0:
        if -code != signal.SIGKILL:  # SIGKILL has no handler; Python handles or ignores some others
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def open_streams() -> None:
    """Open standard input, output and errors if they are closed.

    Otherwise the next file that we open gets such a number, and a child process takes it for its
    standard input.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(file, True)
    os.close(file)


@contextmanager
def workers(count: int | None = None) -> "Iterator[ProcessPoolExecutor]":
    """Yield a pool of ``count`` worker processes, by default one for each core.

    An exception that leaves the block kills the workers and drops their jobs; they also end with
    their parent.

    >>> with workers(1) as pool:
    ...     pool.submit(pow, 2, 5).result()
    32
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(count, initializer=_begin_worker, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _begin_worker(parent: int) -> None:
    die_with(parent)
    # Ctrl-C signals the whole group; the parent ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    try:
        end_as(_guard(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
    except OSError as error:
        sys.exit(f"cannot start {sys.argv[3]}: {error.strerror}")
