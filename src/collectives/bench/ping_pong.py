"""What two ranks do to measure a link: a message there and back, and a burst of messages one way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist

Row = dict[str, Any]

BURST = 16


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure every size in turn, again and again; rank 0 reports the medians of the first and the last rank.

    ``one_way`` is half the time of a message there and back; ``each`` is by how much longer a burst takes for each
    message more. Seconds.
    """
    torch.set_num_threads(1)
    sizes, repetitions = settings["bytes"], settings["repetitions"]
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    there, single, burst = (torch.zeros(repetitions, len(sizes), dtype=torch.float64) for _ in range(3))
    for i in range(-2, repetitions):  # two rounds to warm up
        for nth, nbytes in enumerate(sizes):
            message = torch.zeros(nbytes, dtype=torch.uint8)
            dist.barrier()
            if rank in (0, last):
                seconds = _there_and_back(message, last), _burst(message, 1, last), _burst(message, BURST, last)
                for times, measured in zip((there, single, burst), seconds, strict=True):
                    times[max(i, 0), nth] = measured
    each = (burst - single) / (BURST - 1)
    for nth, nbytes in enumerate(sizes):
        one_way = there[:, nth].median().item() / 2
        report({"row": {"bytes": nbytes, "one_way": one_way, "each": each[:, nth].median().item()}})


def _there_and_back(message: torch.Tensor, last: int) -> float:
    other = last if dist.get_rank() == 0 else 0
    start = time.perf_counter()
    if dist.get_rank() == 0:
        dist.send(message, other)
        dist.recv(message, other)
    else:
        dist.recv(message, other)
        dist.send(message, other)
    return time.perf_counter() - start


def _burst(message: torch.Tensor, count: int, last: int) -> float:
    """So many messages to the last rank, which waits for them from before the first, and an answer when all are in."""
    mark, messages = torch.zeros(1, dtype=torch.uint8), [message.clone() for _ in range(count)]
    if dist.get_rank() == last:
        receives = [dist.irecv(each, 0) for each in messages]
        dist.send(mark, 0)
        _wait_for(receives)
        dist.send(mark, 0)
        return 0.0
    dist.recv(mark, last)
    start = time.perf_counter()
    _wait_for([dist.isend(each, last) for each in messages])
    dist.recv(mark, last)
    return time.perf_counter() - start


def _wait_for(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()
