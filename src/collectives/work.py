"""Collectives in the background: a `Work` to wait for, and a thread and process group of their own to run on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch
from torch import distributed as dist


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

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="collectives")
        ranks = dist.get_process_group_ranks(group)
        self.group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)


_lanes: dict[dist.ProcessGroup, _Lane] = {}


def start(job: Callable[[dist.ProcessGroup], None], group: dist.ProcessGroup | None) -> Work:
    """Run ``job(its_group)`` in the background, after all that was started on the same group before.

    The first call on a group makes a group of the same ranks beside it, so all of them have to come along.
    """
    whole = group or dist.group.WORLD
    if whole is None:
        raise ValueError("there is no process group yet: call torch.distributed.init_process_group first")
    for gone in [g for g in _lanes if g is not whole and not _is_alive(g)]:
        _lanes.pop(gone).thread.shutdown(wait=False)
    lane = _lanes.get(whole) or _lanes.setdefault(whole, _Lane(whole))
    return Work(lane.thread.submit(job, lane.group))


def _is_alive(group: dist.ProcessGroup) -> bool:
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, ValueError):  # destroyed
        return False
    return True
