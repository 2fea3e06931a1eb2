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

Tensors = list[torch.Tensor]
Job = Callable[[], Tensors]


class Work(dist.Work):
    """What an ``async_op`` returns, as torch's own does: wait for it, ask whether it is done, or take its future.

    torch's C++ code takes it, too: that of DistributedDataParallel, and of the functional collectives.
    """

    def __init__(self, job: Future[Tensors]) -> None:
        super().__init__()
        self._job = job

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; raises what went wrong, or TimeoutError after ``timeout``. None and 0 are no limit."""
        self._job.result(timeout.total_seconds() if timeout else None)
        return True

    def result(self) -> Tensors:
        """The outputs, when it is done; raises what went wrong."""
        return self._job.result()

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self._job.done()

    def is_success(self) -> bool:
        """Whether it is done, and well."""
        return self._job.done() and self._job.exception() is None

    def exception(self) -> BaseException | None:
        """What went wrong, when it is done; None if nothing did."""
        return self._job.exception()

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Tensors]:
        """A torch future of the outputs, for ``then`` and the like; waiting for it raises RuntimeError if it failed."""
        done = self._future()
        # A callback that raises is an error for C++, too. `Future.set_exception` is not: there it is a value.
        outputs = done.then(lambda _: self._job.result())
        self._job.add_done_callback(lambda _: self._tell(done))
        return outputs

    def _future(self) -> torch.futures.Future[None]:
        return torch.futures.Future()

    def _tell(self, future: torch.futures.Future[None]) -> None:
        future.set_result(None)


class _Lane:
    """Where the background calls of one group run, one after the other."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Tensors], Job | None]] = SimpleQueue()
        # A daemon: a call whose peers never come does not keep the interpreter from its end.
        self.thread = threading.Thread(target=_run, args=(self._jobs,), daemon=True, name="collectives")
        self.thread.start()

    def put(self, job: Job | None) -> Future[Tensors]:
        """Have a job run after all that were put before, or with None nothing more."""
        promised: Future[Tensors] = Future()
        self._jobs.put((promised, job))
        return promised


def _run(jobs: SimpleQueue[tuple[Future[Tensors], Job | None]]) -> None:
    while True:
        promised, job = jobs.get()
        if job is None:
            return
        try:
            outputs = job()
        except BaseException as error:
            promised.set_exception(error)
        else:
            promised.set_result(outputs)
            del outputs
        del promised, job  # what they hold, such as the group, may be wanted back before the next job comes


_lanes: WeakKeyDictionary[dist.ProcessGroup, _Lane] = WeakKeyDictionary()


def start(job: Job, group: dist.ProcessGroup) -> Work:
    """Run ``job()`` in the background, after all that was started on the same group before."""
    return Work(put(job, group))


def put(job: Job, group: dist.ProcessGroup) -> Future[Tensors]:
    """As `start`, for a `Work` of another kind."""
    lane = _lanes.get(group)
    if lane is None:
        lane = _lanes[group] = _Lane()
        finalize(group, lane.put, None).atexit = False  # the thread ends with its group
    return lane.put(job)


def end(group: dist.ProcessGroup) -> None:
    """Let what was started on the group end, and its thread with it."""
    lane = _lanes.pop(group, None)
    if lane is not None:
        lane.put(None)
        if lane.thread is not threading.current_thread():
            lane.thread.join()
