"""A pool of worker processes on this machine, killed when their parent ends."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from collectives.processes.parent_death import die_with


@contextmanager
def workers(count: int | None = None, *, fresh: bool = False) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``count`` processes, by default one for each core; ``fresh`` ones are spawned, not forked.

    An exception that leaves the block kills the workers and drops their jobs.

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole group; the parent ends us
