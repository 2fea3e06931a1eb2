"""Ends a process when the one that started it has ended.

As a script it does so for any command: ``python leash.py PARENT mpirun -n 4 …``. It needs nothing but Python, so
that it costs no time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1


def die_with(parent: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Have this process sent a signal when its parent ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, how)
    else:
        threading.Thread(target=_poll_parent, args=(parent, how), daemon=True).start()
    if os.getppid() != parent:  # it ended before we asked
        sys.exit("the launcher is gone")


def _poll_parent(parent: int, how: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), how)


if __name__ == "__main__":
    die_with(int(sys.argv[1]), signal.SIGTERM)  # which lets the command clear away what it has on disk
    os.execvp(sys.argv[2], sys.argv[2:])  # what Linux was asked to do outlives this; elsewhere a thread does not
