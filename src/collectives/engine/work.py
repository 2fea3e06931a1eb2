"""Calls in the background: a `Work` to wait for, and a thread for each group, on which its calls run in order."""

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

FORKED = (
    "this process was forked by a rank of the process group, whose connections are the rank's: call in the rank, or "
    "make a group in this process"
)

DESTROYED = (
    "the process group was destroyed, and with it all of its calls that had not ended: wait for their works before "
    "torch.distributed.destroy_process_group"
)

# How long the interpreter's end waits for each thread that was told to end.
JOIN_SECONDS = 1.0

_Jobs = SimpleQueue[tuple[Future[Tensors], Job | None]]
_own = threading.local()  # on the thread of a worker: its queue


class WaitTimeoutError(TimeoutError, RuntimeError):
    """A wait is over before its call: TimeoutError by what it is, and RuntimeError as over gloo."""


class Work(dist.Work):
    """The result of a call with ``async_op``, as torch's own: wait for it, ask whether it is done, or take its future.

    torch's C++ code takes it, too: that of DistributedDataParallel, and of the functional
    collectives.

    A call on CUDA tensors is done when its kernels are enqueued, and ``kernels`` is the event after
    them. Then `wait` makes the current stream of ``device`` wait for them, and so does waiting for
    the future.
    """

    def __init__(
        self,
        job: Future[Tensors],
        collective: str,
        kernels: torch.cuda.Event | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self._job, self._collective, self._process = job, collective, os.getpid()
        self._kernels, self._device = kernels, device

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; raises what went wrong, or WaitTimeoutError after ``timeout``.

        None and 0 are no limit. The error is a TimeoutError, and a RuntimeError as torch's groups
        raise.
        """
        job = self._awaited()
        if timeout and not wait([job], timeout.total_seconds()).done:
            raise WaitTimeoutError(
                f"{self._collective}: got no end within {timeout.total_seconds():g} s, the limit of this wait(); "
                "the call goes on until the timeout of its group, and then names the rank that it waits for"
            )
        job.result()
        self._wait_for_kernels()
        return True

    def result(self) -> Tensors:
        """Return the outputs, when it is done; raises what went wrong."""
        return self._awaited().result()

    def is_completed(self) -> bool:
        """Return whether it is done, well or not."""
        return self._job.done()

    def is_success(self) -> bool:
        """Return whether it is done, and well."""
        return self._job.done() and self._job.exception() is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, when it is done; None if nothing did."""
        return self._awaited().exception()

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Tensors]:
        """Return a torch future of the outputs, for ``then``.

        Waiting for it raises RuntimeError if the call failed.
        """
        self._awaited()  # C++ waits for a future, and runs nothing meanwhile
        done: torch.futures.Future[Tensors] = torch.futures.Future(
            devices=[self._device] if self._device else []
        )
        # A callback that raises is an error for C++, too. `Future.set_exception` is not: there it
        # is a value.
        outputs = done.then(lambda _: self._job.result())
        self._job.add_done_callback(lambda _: self._complete(done))
        return outputs

    def _complete(self, future: torch.futures.Future[Tensors]) -> None:
        """Give the future the outputs, because it records events only on the devices of the tensors in its value."""
        outputs = [] if self._job.exception() else self._job.result()
        if self._device is None:
            future.set_result(outputs)
            return
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            self._wait_for_kernels()
            future.set_result(outputs)

    def _wait_for_kernels(self) -> None:
        if self._kernels is not None:
            torch.cuda.current_stream(self._device).wait_event(self._kernels)

    def _awaited(self) -> Future[Tensors]:
        """Return the job to one who waits.

        A callback first runs what is queued on its thread, as nobody else would.
        """
        if self._process != os.getpid() and not self._job.done():
            raise RuntimeError(FORKED)
        jobs: _Jobs | None = getattr(_own, "jobs", None)
        while jobs is not None and not (self._job.done() or jobs.empty()):
            following = jobs.get()
            if not _do(*following):
                jobs.put(following)  # for `_run`
                break
        return self._job


class _Worker:
    """The thread on which the background calls of one group run, one after the other."""

    def __init__(self) -> None:
        self._jobs: _Jobs | None = SimpleQueue()  # None where the thread is another process's
        # A daemon: a call whose peers never come does not keep the interpreter from its end.
        self.thread = threading.Thread(
            target=_run, args=(self._jobs,), daemon=True, name="collectives"
        )
        self.thread.start()

    def put(self, job: Job | None) -> Future[Tensors]:
        """Have a job run after all that were put before, or with None nothing more.

        A callback of a call runs on this thread. What it calls runs at once, before what is queued:
        so the order of calls is the same on every rank, whatever the program has called meanwhile.
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
    """Run a job and its callbacks; return False for None, after which no other comes."""
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


_workers: WeakKeyDictionary[dist.ProcessGroup, _Worker] = WeakKeyDictionary()


def _forked() -> None:
    """Have all that is asked of a parent's threads fail: they do not run here."""
    for worker in list(_workers.values()):
        worker.refuse()


os.register_at_fork(after_in_child=_forked)


def start(
    job: Job,
    group: dist.ProcessGroup,
    collective: str,
    kernels: torch.cuda.Event | None = None,
    device: torch.device | None = None,
) -> Work:
    """Run ``job()`` in the background, after all that was started on the same group before."""
    worker = _workers.get(group)
    if worker is None:
        worker = _workers[group] = _Worker()
        finalize(group, worker.end).atexit = False  # the thread ends with its group
    return Work(worker.put(job), collective, kernels, device)


def end(group: dist.ProcessGroup) -> None:
    """Let what was started on the group end, and its thread with it."""
    worker = _workers.pop(group, None)
    if worker is not None:
        worker.end()
        if worker.thread is not threading.current_thread():
            worker.thread.join()
