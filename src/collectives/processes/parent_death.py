"""Ends a process when its parent has ended.

As a script it does so for any command: ``python parent_death.py PARENT FILE mpirun -n 4 …``. It then also removes FILE,
unless that is empty, because a killed parent cannot. It imports Python's own modules only, so that it starts fast.
"""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends, even by SIGKILL. Exits if the parent has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_poll_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before prctl or the thread
        sys.exit("the launcher is gone")


def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def guard(parent: int, command: int, file: str) -> None:
    """Fork a guard that ends the command and removes the file when the parent has ended; returns at once.

    The guard sends SIGTERM first, so that the command removes its files. The command may hang instead, as horovodrun
    does if its ranks ended first: then the guard kills the whole process group. The guard is not a child of the
    command, because the command would not expect one.
    """
    launcher = watched(parent) if os.getppid() == parent else None
    watching = watched(command)
    if os.fork():
        os.wait()
        return
    if os.fork():
        os._exit(0)
    while is_alive(launcher) and is_alive(watching):
        time.sleep(POLL_SECONDS)
    if file:
        with suppress(FileNotFoundError):  # a living parent removes it, too
            os.unlink(file)  # noqa: PTH108, pathlib takes time to import
    if is_alive(watching):
        os.kill(command, signal.SIGTERM)
    until = time.monotonic() + GRACE_SECONDS
    while is_alive(watching):
        if time.monotonic() > until:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    os._exit(0)


def watched(pid: int) -> Any:
    """A process that runs now, for `is_alive`, which does not take another with its number for it; None if none does.

    Linux has a descriptor for a process; elsewhere psutil compares when it was started.
    """
    with suppress(AttributeError, OSError):  # another system, or Linux before 5.3
        return os.pidfd_open(pid)
    import psutil  # type: ignore[import-untyped]

    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def is_alive(process: Any) -> bool:
    """Whether a process from `watched` still runs."""
    if isinstance(process, int):
        ended = select.poll()
        ended.register(process, select.POLLIN)
        return not ended.poll(0)
    return process is not None and process.is_running()


if __name__ == "__main__":
    guard(int(sys.argv[1]), os.getpid(), sys.argv[2])
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        sys.exit(f"cannot start {sys.argv[3]}: {error.strerror}")
