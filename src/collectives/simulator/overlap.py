"""A training step in time: the model of overlap, and what each rank did when, as spans and as a trace for Perfetto.

In the model one lane computes, one communicates, and a bucket waits for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from collectives.simulator.trace import line, writing


class Sending(NamedTuple):
    """The begin and end of a bucket's all-reduce, in seconds."""

    begin: float
    end: float


def sendings(ready: Sequence[float], seconds: Sequence[float]) -> list[Sending]:
    """Return the buckets in the order of communication: each begins when it is ready and the one before has ended.

    ``ready`` is when the last gradient of each bucket is there, ``seconds`` how long its all-reduce
    takes alone.

    >>> sendings([1.0, 2.0, 3.0], [1.5, 1.5, 0.5])
    [Sending(begin=1.0, end=2.5), Sending(begin=2.5, end=4.0), Sending(begin=4.0, end=4.5)]
    """
    made: list[Sending] = []
    for at, lasts in zip(ready, seconds, strict=True):
        begin = max(at, made[-1].end if made else 0.0)
        made.append(Sending(begin, begin + lasts))
    return made


def exposed(ready: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the seconds of communication after the computing, which ends when the last bucket is ready.

    One bucket hides nothing; of equal ones, all but the last can be hidden if computing them takes
    as long.

    >>> exposed([3.0], [3.0]), exposed([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    (3.0, 1.0)
    """
    return sendings(ready, seconds)[-1].end - ready[-1]


def ready_times(buckets: int, backward: float) -> list[float]:
    """Return when each of these equal buckets is ready, in seconds since the backward pass of ``backward`` s began.

    >>> ready_times(4, 1.0)
    [0.25, 0.5, 0.75, 1.0]
    """
    return [backward * (nth + 1) / buckets for nth in range(buckets)]


FORWARD, BACKWARD, REDUCE = "forward", "backward", "all-reduce"
# The lines of a rank in a trace: what shares one cannot happen at the same time.
LINES = {FORWARD: 0, BACKWARD: 0, REDUCE: 1}


class Activity(NamedTuple):
    """A rank's work from ``begin`` to ``end``, in seconds since it left the barrier before the step.

    ``nth`` is the layer, or the bucket in the order of their all-reduces; ``bytes`` are those of
    the bucket.
    """

    rank: int
    what: str
    nth: int
    begin: float
    end: float
    bytes: int = 0


def computing(rank: int, marks: Sequence[float]) -> list[Activity]:
    """Return the layers' passes from the times at their borders: forward through all layers, and back.

    >>> [(span.what, span.nth, span.end) for span in computing(0, [0.0, 1.0, 1.0, 3.0])]
    [('forward', 0, 1.0), ('backward', 0, 3.0)]
    """
    there, back = marks[: len(marks) // 2], marks[len(marks) // 2 :]
    forward = [Activity(rank, FORWARD, nth, *times) for nth, times in enumerate(pairwise(there))]
    last = len(back) - 2
    return forward + [
        Activity(rank, BACKWARD, last - nth, *times) for nth, times in enumerate(pairwise(back))
    ]


def write(path: str | Path, spans: Iterable[Activity]) -> None:
    """Write the spans as a trace: a process for each rank, with a line for computing and one for communication.

    Raises ValueError for a path that is not a regular file, and OSError if the disk is full.
    """
    spans = list(spans)
    with writing(path, 1 + max(span.rank for span in spans)) as events:
        for span in spans:
            name = f"{span.what} {'bucket' if span.what == REDUCE else 'layer'} {span.nth}"
            shown = line(span.rank, LINES[span.what], name, span.begin, span.end - span.begin)
            events.append(shown | {"args": {"bytes": span.bytes}})
