"""Clocks of ranks that train: the time of a step, computing that takes at least so long, and times over all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import distributed as dist

P = ParamSpec("P")
T = TypeVar("T")


def now() -> float:
    """Return the seconds of a clock that the processes of a machine share, when the GPU has done what it was asked."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.monotonic()


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    """Sleep at the end of a ``with`` until it has taken so many seconds.

    A rank that sleeps stands for one that computes more, and takes no core from the other ranks.
    """
    start = now()
    yield
    time.sleep(max(0.0, start + seconds - now()))


def timed(act: Callable[P, T], seconds: list[float]) -> Callable[P, T]:
    """Return the same function, which adds how long each call took to a list."""

    def measured(*given: P.args, **named: P.kwargs) -> T:
        start = time.perf_counter()
        result = act(*given, **named)
        seconds.append(time.perf_counter() - start)
        return result

    return measured


def slowest(seconds: Sequence[float]) -> list[float]:
    """Return each value of the rank on which it is largest; every rank calls it."""
    values = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [float(value) for value in values]


def means(seconds: Sequence[float]) -> list[float]:
    """Return each value's mean over the ranks; every rank calls it."""
    values = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(values)
    return [float(value) for value in values / dist.get_world_size()]
