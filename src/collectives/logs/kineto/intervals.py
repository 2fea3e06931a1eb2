"""Intervals of time in numpy: when at least one of many is under way, and for how long two such sets meet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Spans(NamedTuple):
    """Disjoint intervals in ascending order."""

    starts: Floats
    ends: Floats

    @property
    def length(self) -> float:
        """Of all together."""
        return float((self.ends - self.starts).sum())


def union(starts: Floats, durations: Floats) -> Spans:
    """When at least one of these intervals is under way.

    >>> union(np.array([5.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0]))
    Spans(starts=array([0., 5.]), ends=array([4., 6.]))
    """
    order = np.argsort(starts, kind="stable")
    begin, latest = starts[order], np.maximum.accumulate((starts + durations)[order])
    is_new = np.ones(begin.size, bool)
    is_new[1:] = begin[1:] > latest[:-1]
    is_last = np.roll(is_new, -1)
    return Spans(begin[is_new], latest[is_last])


def shared(a: Spans, b: Spans) -> float:
    """For how long both are under way.

    >>> shared(Spans(np.array([0.0, 10.0]), np.array([4.0, 12.0])), Spans(np.array([3.0]), np.array([11.0])))
    2.0
    """
    before = np.concatenate([[0.0], np.cumsum(b.ends - b.starts)])
    ends = np.concatenate([[-np.inf], b.ends])

    def until(times: Floats) -> Floats:
        begun = np.searchsorted(b.starts, times, side="right")
        return before[begun] - np.maximum(ends[begun] - times, 0.0)

    return float((until(a.ends) - until(a.starts)).sum())
