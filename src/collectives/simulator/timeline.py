"""When each rank computed and communicated in a training step: spans of time, from rows and as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from collectives.simulator.trace import line, writing

FORWARD, BACKWARD, REDUCE = "forward", "backward", "all-reduce"
# The lines of a rank in a trace: what shares one cannot happen at the same time.
LINES = {FORWARD: 0, BACKWARD: 0, REDUCE: 1}


class Span(NamedTuple):
    """What a rank did from ``begin`` to ``end``, in seconds since it left the barrier before the step.

    ``nth`` is the layer, or the bucket in the order of their all-reduces; ``bytes`` are those of the bucket.
    """

    rank: int
    what: str
    nth: int
    begin: float
    end: float
    bytes: int = 0


def computing(rank: int, marks: Sequence[float]) -> list[Span]:
    """The layers' passes, from the times at their borders: forward through all layers, and back.

    >>> [(span.what, span.nth, span.end) for span in computing(0, [0.0, 1.0, 1.0, 3.0])]
    [('forward', 0, 1.0), ('backward', 0, 3.0)]
    """
    there, back = marks[: len(marks) // 2], marks[len(marks) // 2 :]
    forward = [Span(rank, FORWARD, nth, *times) for nth, times in enumerate(pairwise(there))]
    last = len(back) - 2
    return forward + [Span(rank, BACKWARD, last - nth, *times) for nth, times in enumerate(pairwise(back))]


def write(path: str | Path, spans: Iterable[Span]) -> None:
    """Write the spans as a trace: a process for each rank, with a line for computing and one for communication.

    Raises ValueError for a path that is not a regular file, and OSError if the disk is full.
    """
    spans = list(spans)
    with writing(path, 1 + max(span.rank for span in spans)) as events:
        for span in spans:
            name = f"{span.what} {'bucket' if span.what == REDUCE else 'layer'} {span.nth}"
            shown = line(span.rank, LINES[span.what], name, span.begin, span.end - span.begin)
            events.append(shown | {"args": {"bytes": span.bytes}})
