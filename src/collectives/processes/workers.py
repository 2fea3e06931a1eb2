"""Processes that share work on this machine, and that end with the process that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from collectives.processes.parent_death import die_with


@contextmanager
def workers(count: int | None = None, *, fresh: bool = False) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``count`` processes (one for each core); ``fresh`` ones share no memory with this one.

    When an exception leaves the block, the workers are killed, and their jobs are dropped.

    >>> with workers(1) as pool:
    ...     pool.submit(pow, 2, 5).result()
    32
    """
    context = multiprocessing.get_context("spawn") if fresh else None
    with ProcessPoolExecutor(count, context, initializer=_begin, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _begin(parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends us
