"""Curves of time by size: latency and rate, falls of the rate, sizes that were disturbed, and columns that differ.

All functions take the sizes in ascending bytes, more than 0 and each once, and times in seconds, more than 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# busbw that falls by more between two sizes is a dip or a fall; two columns that differ by more are unlike.
FALL = 0.15

# A time above the line between its neighbours by this factor, or above the next size's by the other, was disturbed.
ABOVE_LINE, ABOVE_NEXT = 1.5, 1.25

# How many points decide a fit: each pair of them gives a line, and the best one is taken.
MOST_POINTS = 64

# Points that noise shows in, and how many times the noise a deviation must be to count.
LEAST_POINTS, TIMES_NOISE = 7, 6


class Fit(NamedTuple):
    """t = latency + bytes * per_byte, in seconds, and the median relative error of the points."""

    latency: float
    per_byte: float
    error: float

    @property
    def knee(self) -> float:
        """The bytes that cost as much as the latency; infinite if bytes cost nothing."""
        return self.latency / self.per_byte if self.per_byte > 0 else np.inf


def fit(nbytes: Floats, seconds: Floats) -> Fit:
    """The line with the least sum of relative errors, which a few disturbed points do not move.

    Such a line goes through two of the points, or through one of them and has no latency or no cost per byte.
    Takes time and memory O(MOST_POINTS^3).

    >>> found = fit(np.array([1e3, 1e4, 1e5, 1e6]), np.array([11e-6, 20e-6, 110e-6, 5.0]))
    >>> round(found.latency * 1e6, 6), round(found.per_byte * 1e9, 6)
    (10.0, 1.0)
    """
    some = np.unique(np.linspace(0, len(nbytes) - 1, min(len(nbytes), MOST_POINTS)).astype(int))
    n, t = nbytes[some], seconds[some]
    i, j = np.triu_indices(len(n), 1)
    slope = (t[j] - t[i]) / (n[j] - n[i])
    per_byte = np.concatenate([slope, t / n, np.zeros(len(n))])
    latency = np.concatenate([t[i] - slope * n[i], np.zeros(len(n)), t])
    valid = (per_byte >= 0) & (latency >= 0)
    per_byte, latency = per_byte[valid], latency[valid]
    off = np.abs((latency[:, None] + per_byte[:, None] * n) / t - 1)
    best = int(off.sum(axis=1).argmin())
    return Fit(float(latency[best]), float(per_byte[best]), float(np.median(off[best])))


def noise(nbytes: Floats, columns: list[Floats]) -> float:
    """How far times scatter round a smooth curve: a robust relative standard deviation, 0 for few points.

    Of two columns, what both show is no noise, and a difference between two smooth curves is none, either.

    >>> n = 2.0 ** np.arange(10)
    >>> round(noise(n, [1 + n]), 3), noise(n, [1 + n, 3 + 3 * n])
    (0.003, 0.0)
    """
    if len(nbytes) < LEAST_POINTS:
        return 0.0
    found = min(_scatter(nbytes, seconds) for seconds in columns)
    if len(columns) > 1:
        off = np.log(columns[1] / columns[0])
        found = min(found, float(np.median(np.abs(off - np.median(off)))) * 1.4826 / 2**0.5)
    return found


def _scatter(nbytes: Floats, seconds: Floats) -> float:
    off = np.log(seconds[1:-1]) - _between(nbytes, seconds)
    # A bend of the curve moves neighbours alike, and noise does not: differences of what lies side by side remain.
    off = np.diff(off)
    spread = float(np.median(np.abs(off - np.median(off)))) * 1.4826
    # The variance of such a difference is 5 times a time's: of weights 1/2, -3/2, 3/2 and -1/2.
    return spread / 5**0.5


def _between(nbytes: Floats, seconds: Floats) -> Floats:
    """The log of the time that the line between both neighbours has, for all sizes but the first and the last."""
    x, y = np.log(nbytes), np.log(seconds)
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    return np.asarray(y[:-2] + share * (y[2:] - y[:-2]))


def first_above(nbytes: Floats, rate: Floats, share: float) -> float:
    """The least size at which the rate is at least this share of its peak.

    >>> first_above(np.array([1.0, 2.0, 4.0]), np.array([3.0, 6.0, 10.0]), 0.5)
    2.0
    """
    return float(nbytes[int(np.argmax(rate >= share * rate.max()))])


def above_line(nbytes: Floats, seconds: Floats, noise: float = 0.0) -> NDArray[np.bool_]:
    """Which times are far above the line between their neighbours, both logarithmic; the first: above the second.

    >>> above_line(np.array([1.0, 2.0, 4.0]), np.array([5.0, 9.0, 6.0])).tolist()
    [False, True, False]
    """
    least = max(np.log(ABOVE_LINE), TIMES_NOISE * noise)
    found = np.zeros(len(nbytes), bool)
    if len(nbytes) > 2:
        found[1:-1] = np.log(seconds[1:-1]) - _between(nbytes, seconds) > least
        found[0] = np.log(seconds[0] / seconds[1]) > least
    return found


def above_next(seconds: Floats, noise: float = 0.0) -> NDArray[np.bool_]:
    """Which times are far above the next size's.

    >>> above_next(np.array([5.0, 9.0, 6.0])).tolist()
    [False, True, False]
    """
    least = max(np.log(ABOVE_NEXT), TIMES_NOISE * noise)
    return np.append(-np.diff(np.log(seconds)) > least, False)


class Dip(NamedTuple):
    """Positions of sizes: the last before a fall, the lowest, and the first that recovered; None for none."""

    before: int
    lowest: int
    after: int | None


def dips(rate: Floats, noise: float = 0.0) -> list[Dip]:
    """Where the rate falls by more than FALL from one size to the next, until it is what it was before.

    >>> dips(np.array([5.0, 3.0, 4.0, 9.0]))
    [Dip(before=0, lowest=1, after=3)]
    """
    least = max(-np.log(1 - FALL), TIMES_NOISE * noise)
    found, i = [], 0
    while i + 1 < len(rate):
        if np.log(rate[i] / rate[i + 1]) <= least:
            i += 1
            continue
        back = np.flatnonzero(rate[i + 1 :] >= 0.95 * rate[i])
        after = i + 1 + int(back[0]) if len(back) else None
        lowest = i + 1 + int(np.argmin(rate[i + 1 : after]))
        found.append(Dip(i, lowest, after))
        i = len(rate) if after is None else after
    return found


class Shape(NamedTuple):
    """What is odd about a curve: dips and falls that all columns show, and positions that were disturbed."""

    dips: list[Dip]
    disturbed: list[int]


def shape(nbytes: Floats, columns: list[Floats]) -> Shape:
    """Faults of one curve that was measured once or, out of place and in place, twice.

    What belongs to the size, such as a change of protocol, shows in each column. What shows in one of two does not. In
    both, one size alone was disturbed if its time is above the next size's.
    """
    spread = noise(nbytes, columns)
    falls = [{dip.before: dip for dip in dips(nbytes / seconds, spread)} for seconds in columns]
    tops = np.array([above_next(seconds, spread) for seconds in columns])
    lines = np.array([above_line(nbytes, seconds, spread) for seconds in columns])
    real, odd = [], []
    for before, dip in falls[0].items():
        alone = dip.after == dip.before + 2 and _is_alone(nbytes, columns, tops, dip.lowest)
        if not alone and all(_falls_too(nbytes, seconds, before) for seconds in columns):
            real.append(dip)
    inside = {at for dip in real for at in range(dip.before, dip.after or len(nbytes))}
    for at in range(len(nbytes)):
        fell = any(dip.lowest == at for some in falls for dip in some.values())
        is_step = lines[:, at].all() and not tops[:, at].any()
        if at not in inside and (fell or ((lines | tops)[:, at].any() and not is_step)):
            odd.append(at)
    return Shape(real, odd)


def _is_alone(nbytes: Floats, columns: list[Floats], tops: NDArray[np.bool_], at: int) -> bool:
    """Whether a slow size between two good ones is no step: a larger size takes less, or the one column is steep."""
    if tops[:, at].any():
        return True
    steep = np.log(columns[0][at + 1] / columns[0][at - 1]) > 0.8 * np.log(nbytes[at + 1] / nbytes[at - 1])
    return len(columns) == 1 and bool(steep)


def _falls_too(nbytes: Floats, seconds: Floats, before: int) -> bool:
    rate = nbytes / seconds
    return bool(rate[before + 1] < (1 - FALL / 2) * rate[before])


class Unlike(NamedTuple):
    """A range of positions, and by what factor the second column takes longer there."""

    first: int
    last: int
    factor: float


def unlike(first: Floats, second: Floats) -> list[Unlike]:
    """Where two columns differ by more than FALL at almost all sizes: of the smaller half, of the larger, or of both.

    >>> unlike(np.ones(8), np.array([1, 1, 1, 1, 2, 2, 2, 2.0]))
    [Unlike(first=4, last=7, factor=2.0)]
    """
    half = len(first) // 2
    found = []
    for some in (slice(0, half), slice(half, len(first))):
        off = np.log(second[some] / first[some])
        middle = float(np.median(off)) if len(off) >= 3 else 0.0
        if abs(middle) > np.log1p(FALL) and np.mean(off * np.sign(middle) > np.log1p(FALL / 2)) >= 0.8:
            found.append(Unlike(some.start, some.stop - 1, float(np.exp(middle))))
    if len(found) == 2 and (found[0].factor > 1) == (found[1].factor > 1):
        return [Unlike(0, len(first) - 1, float(np.median(second / first)))]
    return found


def common(sizes: list[Floats]) -> Floats:
    """The sizes that all curves have, ascending.

    >>> common([np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0])]).tolist()
    [2.0, 4.0]
    """
    found: Any = sizes[0]
    for other in sizes[1:]:
        found = np.intersect1d(found, other)
    return np.asarray(found, float)
