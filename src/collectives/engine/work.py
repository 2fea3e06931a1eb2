"""Collectives in the background: a `Work` to wait for, and a thread to run on."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from queue import SimpleQueue
from weakref import WeakKeyDictionary, WeakSet, finalize

import torch
from torch import distributed as dist

Tensors = list[torch.Tensor]
Job = Callable[[], Tensors]


class Work(dist.Work):
    """What an ``async_op`` returns, as torch's own does: wait for it, ask whether it is done, or take its future.

    torch's C++ code takes it, too: that of DistributedDataParallel, and of the functional collectives.
    """

    def __init__(self, job: Future[Tensors], collective: str) -> None:
        super().__init__()
        self._job, self._collective, self._process = job, collective, os.getpid()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; raises what went wrong, or TimeoutError after ``timeout``. None and 0 are no limit."""
        job = self._awaited()
        if timeout and not wait([job], timeout.total_seconds()).done:
            raise TimeoutError(
                f"{self._collective}: got no end within {timeout.total_seconds():g} s, the limit of this wait(); "
                "the call goes on until the timeout of its group, and then names the rank that it waits for"
            )
        job.result()
        return True

    def result(self) -> Tensors:
        """The outputs, when it is done; raises what went wrong."""
        return self._awaited().result()

    def is_completed(self) -> bool:
        """Whether it is done, well or not."""
        return self._job.done()

    def is_success(self) -> bool:
        """Whether it is done, and well."""
        return self._job.done() and self._job.exception() is None

    def exception(self) -> BaseException | None:
        """What went wrong, when it is done; None if nothing did."""
        return self._awaited().exception()

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Tensors]:
        """A torch future of the outputs, for ``then`` and the like; waiting for it raises RuntimeError if it failed."""
        self._awaited()  # C++ waits for a future, and runs nothing meanwhile
        done = self._future()
        # A callback that raises is an error for C++, too. `Future.set_exception` is not: there it is a value.
        outputs = done.then(lambda _: self._job.result())
        self._job.add_done_callback(lambda _: self._tell(done))
        return outputs

    def _awaited(self) -> Future[Tensors]:
        if self._process != os.getpid() and not self._job.done():
            raise RuntimeError(FORKED)
        return _awaited(self._job)

    def _future(self) -> torch.futures.Future[Tensors]:
        return torch.futures.Future()

    def _tell(self, future: torch.futures.Future[Tensors]) -> None:
        future.set_result([] if self._job.exception() else self._job.result())


FORKED = (
    "this process was forked by a rank of the process group, whose connections are the rank's: call in the rank, or "
    "make a group in this process"
)

# How long the interpreter's end waits for each thread that was told to end.
JOIN_SECONDS = 1.0

_Jobs = SimpleQueue[tuple[Future[Tensors], Job | None]]
_own = threading.local()  # on the thread of a worker: its queue


class _Worker:
    """Where the background calls of one group run, one after the other."""

    def __init__(self) -> None:
        self._jobs: _Jobs | None = SimpleQueue()  # None where the thread is another process's
        # A daemon: a call whose peers never come does not keep the interpreter from its end.
        self.thread = threading.Thread(target=_run, args=(self._jobs,), daemon=True, name="collectives")
        self.thread.start()

    def put(self, job: Job | None) -> Future[Tensors]:
        """Have a job run after all that were put before, or with None nothing more.

        A callback of a call runs on this thread. What it calls runs at once, before what is queued: so the order of
        calls is the same on every rank, whatever the program has called meanwhile.
        """
        promised: Future[Tensors] = Future()
        if job and threading.current_thread() is self.thread:
            _do(promised, job)
        elif self._jobs is None:
            promised.set_exception(RuntimeError(FORKED))
        else:
            self._jobs.put((promised, job))
        return promised

    def refuse(self) -> None:
        """Have every later job fail."""
        self._jobs = None

    def end(self) -> None:
        """Have the thread end after all that was put before."""
        self.put(None)
        _ending.add(self.thread)


_ending: WeakSet[threading.Thread] = WeakSet()


@atexit.register
def _join() -> None:
    """Wait for threads that are about to end: one that Python ends within torch's C++ code aborts the process."""
    for thread in list(_ending):
        thread.join(JOIN_SECONDS)


def _run(jobs: _Jobs) -> None:
    _own.jobs = jobs
    while _do(*jobs.get()):
        pass


def _do(promised: Future[Tensors], job: Job | None) -> bool:
    """Run a job and its callbacks; False for None, behind which there is no other."""
    if job is None:
        return False
    try:
        outputs = job()
    except BaseException as error:
        promised.set_exception(error)
    else:
        promised.set_result(outputs)
    del promised, job  # an error's traceback holds this frame, and the job holds its group
    return True


def _awaited(job: Future[Tensors]) -> Future[Tensors]:
    """The job, for one who waits; a callback runs first what is queued on its thread, as nobody else would."""
    jobs: _Jobs | None = getattr(_own, "jobs", None)
    while jobs is not None and not (job.done() or jobs.empty()):
        following = jobs.get()
        if not _do(*following):
            jobs.put(following)  # for `_run`
            break
    return job


_workers: WeakKeyDictionary[dist.ProcessGroup, _Worker] = WeakKeyDictionary()


def _forked() -> None:
    """Have all that is asked of a parent's threads fail: they do not run here."""
    for worker in list(_workers.values()):
        worker.refuse()


os.register_at_fork(after_in_child=_forked)


def start(job: Job, group: dist.ProcessGroup, collective: str) -> Work:
    """Run ``job()`` in the background, after all that was started on the same group before."""
    return Work(put(job, group), collective)


def put(job: Job, group: dist.ProcessGroup) -> Future[Tensors]:
    """As `start`, for a `Work` of another kind."""
    worker = _workers.get(group)
    if worker is None:
        worker = _workers[group] = _Worker()
        finalize(group, worker.end).atexit = False  # the thread ends with its group
    return worker.put(job)


def end(group: dist.ProcessGroup) -> None:
    """Let what was started on the group end, and its thread with it."""
    worker = _workers.pop(group, None)
    if worker is not None:
        worker.end()
        if worker.thread is not threading.current_thread():
            worker.thread.join()
