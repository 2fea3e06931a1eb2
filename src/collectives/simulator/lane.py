"""The model of overlap: one lane that computes, one that communicates, and a bucket that waits for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sending(NamedTuple):
    """When a bucket's all-reduce begins and ends, in seconds."""

    begin: float
    end: float


def sendings(ready: Sequence[float], seconds: Sequence[float]) -> list[Sending]:
    """The buckets on the lane of communication, in order: each begins when it is ready and the one before has ended.

    ``ready`` is when the last gradient of each bucket is there, ``seconds`` how long its all-reduce takes alone.

    >>> sendings([1.0, 2.0, 3.0], [1.5, 1.5, 0.5])
    [Sending(begin=1.0, end=2.5), Sending(begin=2.5, end=4.0), Sending(begin=4.0, end=4.5)]
    """
    made: list[Sending] = []
    for at, lasts in zip(ready, seconds, strict=True):
        begin = max(at, made[-1].end if made else 0.0)
        made.append(Sending(begin, begin + lasts))
    return made


def exposed(ready: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds of communication after the computing, which ends when the last bucket is ready.

    One bucket hides nothing; of equal ones, all but the last can be hidden if computing them takes as long.

    >>> exposed([3.0], [3.0]), exposed([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    (3.0, 1.0)
    """
    return sendings(ready, seconds)[-1].end - ready[-1]


def ready_times(buckets: int, backward: float) -> list[float]:
    """When each of these equal buckets is ready, in seconds since the backward pass began, which takes ``backward``.

    >>> ready_times(4, 1.0)
    [0.25, 0.5, 0.75, 1.0]
    """
    return [backward * (nth + 1) / buckets for nth in range(buckets)]
