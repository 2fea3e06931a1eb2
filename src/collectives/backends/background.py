"""Collectives in the background: a `Work` to wait for, and a thread to run on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from weakref import WeakKeyDictionary, finalize

import torch
from torch import distributed as dist

Job = Callable[[], None]


class Work:
    """What an ``async_op`` returns, as torch's own does: wait for it, ask whether it is done, or take its future."""

    def __init__(self, job: Future[None]) -> None:
        self._job = job
        self._future: torch.futures.Future[None] = torch.futures.Future()
        job.add_done_callback(self._tell)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; raises what went wrong, or TimeoutError when ``timeout`` is over."""
        self._job.result(None if timeout is None else timeout.total_seconds())
        return True

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self._job.done()

    def get_future(self) -> torch.futures.Future[None]:
        """A torch future that is set when it is done, for ``then`` and the like."""
        return self._future

    def _tell(self, job: Future[None]) -> None:
        error = job.exception()
        if isinstance(error, Exception):
            self._future.set_exception(error)  # type: ignore[arg-type]  # declared for results only
        else:
            self._future.set_result(None)


class _Lane:
    """Where the background calls of one group run, one after the other."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[None], Job | None]] = SimpleQueue()
        # A daemon: a call whose peers never come does not keep the interpreter from its end.
        threading.Thread(target=_run, args=(self._jobs,), daemon=True, name="collectives").start()

    def put(self, job: Job | None) -> Future[None]:
        """Have a job run after all that were put before, or with None nothing more."""
        promised: Future[None] = Future()
        self._jobs.put((promised, job))
        return promised


def _run(jobs: SimpleQueue[tuple[Future[None], Job | None]]) -> None:
    while True:
        promised, job = jobs.get()
        if job is None:
            return
        try:
            job()
        except BaseException as error:
            promised.set_exception(error)
        else:
            promised.set_result(None)
        del promised, job  # what they hold, such as the group, may be wanted back before the next job comes


_lanes: WeakKeyDictionary[dist.ProcessGroup, _Lane] = WeakKeyDictionary()


def start(job: Job, group: dist.ProcessGroup) -> Work:
    """Run ``job()`` in the background, after all that was started on the same group before."""
    lane = _lanes.get(group)
    if lane is None:
        lane = _lanes[group] = _Lane()
        finalize(group, lane.put, None).atexit = False  # the thread ends with its group
    return Work(lane.put(job))
