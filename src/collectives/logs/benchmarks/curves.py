"""Curves of time by size: latency and rate, dips of the rate, sizes that were disturbed, and columns that differ.

All functions take the sizes in ascending bytes, more than 0 and each once, and times in seconds, more than 0, of shape
(2, sizes), out of place and in place, or (1, sizes).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collectives.logs.benchmarks.table import Floats

# busbw that falls by more between two sizes is a dip; two columns that differ by more are unlike.
FALL = 0.15

# A time above the line between its neighbours by this factor, or above the next size's by the other, was disturbed.
ABOVE_LINE, ABOVE_NEXT = 1.5, 1.25

# How many points decide a fit: each pair of them gives a line, and the best one is taken.
MOST_POINTS = 64

# Points that noise shows in, and how many times the noise a deviation must be to count.
LEAST_POINTS, TIMES_NOISE = 7, 6


def fit(nbytes: Floats, seconds: Floats) -> tuple[float, float, float]:
    """Latency in seconds, seconds per byte and median relative error of the line that fits best.

    The sum of relative errors is least, which a few disturbed points do not change. Such a line goes through two of the
    points, or through one and has no latency or no cost per byte. Takes time and memory O(MOST_POINTS^3).

    >>> latency, per_byte, _ = fit(np.array([1e3, 1e4, 1e5, 1e6]), np.array([11e-6, 20e-6, 110e-6, 5.0]))
    >>> round(latency * 1e6, 6), round(per_byte * 1e9, 6)
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
    return float(latency[best]), float(per_byte[best]), float(np.median(off[best]))


def noise(nbytes: Floats, times: Floats) -> float:
    """How far times scatter round a smooth curve: a robust relative standard deviation, 0 for few points.

    Of two columns, what both show is no noise, and a difference between two smooth curves is none, either.

    >>> n = 2.0 ** np.arange(10)
    >>> round(noise(n, np.array([1 + n])), 3), noise(n, np.array([1 + n, 3 + 3 * n]))
    (0.003, 0.0)
    """
    if len(nbytes) < LEAST_POINTS:
        return 0.0
    # A bend of the curve moves neighbours alike, and noise does not: differences of what lies side by side remain.
    # The variance of such a difference is 5 times a time's: of weights 1/2, -3/2, 3/2 and -1/2.
    scatter = [_deviation(off) / 5**0.5 for off in np.diff(_above_line(nbytes, times)[:, 1:-1])]
    if len(times) > 1:
        scatter.append(_deviation(np.log(times[1] / times[0])) / 2**0.5)
    return min(scatter)


def _deviation(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values)))) * 1.4826


def _above_line(nbytes: Floats, times: Floats) -> Floats:
    """The log of each time over that on the line between its neighbours, both logarithmic; 0 at the ends."""
    x, y = np.log(nbytes), np.log(times)
    found = np.zeros_like(y)
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    found[:, 1:-1] = y[:, 1:-1] - y[:, :-2] - share * (y[:, 2:] - y[:, :-2])
    return found


class Dip(NamedTuple):
    """Positions of sizes: the last before a fall, the lowest, and the first that recovered, or one past the last."""

    before: int
    lowest: int
    after: int


def dips(rate: Floats, noise: float = 0.0) -> list[Dip]:
    """Where the rate falls by more than FALL from one size to the next, until it is what it was before.

    >>> dips(np.array([5.0, 3.0, 4.0, 9.0, 2.0]))
    [Dip(before=0, lowest=1, after=3), Dip(before=3, lowest=4, after=5)]
    """
    least = max(-np.log(1 - FALL), TIMES_NOISE * noise)
    found, i = [], 0
    while i + 1 < len(rate):
        after = i + 1
        if np.log(rate[i] / rate[i + 1]) > least:
            is_back = np.append(rate[i + 1 :] >= 0.95 * rate[i], True)
            after += int(is_back.argmax())
            found.append(Dip(i, i + 1 + int(rate[i + 1 : after].argmin()), after))
        i = after
    return found


def odd(nbytes: Floats, times: Floats) -> tuple[list[Dip], list[int]]:
    """Dips that all columns show, and positions that were disturbed.

    What belongs to the size, such as a change of protocol, shows in each column. What shows in one of two does not. In
    both, one size alone was disturbed if its time is above the next size's.

    >>> odd(2.0 ** np.arange(5), np.array([[1.0, 1.1, 4.0, 1.4, 1.7], [1.0, 1.2, 3.0, 1.4, 1.8]]))
    ([], [2])
    """
    spread, rates = noise(nbytes, times), nbytes / times
    tops = np.log(times / np.roll(times, -1, axis=1)) > max(np.log(ABOVE_NEXT), TIMES_NOISE * spread)
    tops[:, -1] = False  # it has no next one
    lines = _above_line(nbytes, times) > max(np.log(ABOVE_LINE), TIMES_NOISE * spread)
    disturbed = tops.any(axis=0) | (lines.any(axis=0) & ~lines.all(axis=0))
    falls = [dips(rate, spread) for rate in rates]
    disturbed[[dip.lowest for some in falls for dip in some]] = True
    real = []
    for dip in falls[0]:
        is_alone = dip.after == dip.before + 2 and tops[:, dip.lowest].any()
        falls_too = rates[:, dip.before + 1] < (1 - FALL / 2) * rates[:, dip.before]
        if not is_alone and falls_too.all():
            real.append(dip)
            disturbed[dip.before : dip.after] = False
    return real, np.flatnonzero(disturbed).tolist()


def unlike(first: Floats, second: Floats) -> list[tuple[int, int, float]]:
    """Where two columns differ by more than FALL at almost all sizes: of the smaller half, of the larger, or of both.

    The first and the last position, and by what factor the second column takes longer there.

    >>> unlike(np.ones(8), np.array([1, 1, 1, 1, 2, 2, 2, 2.0]))
    [(4, 7, 2.0)]
    """
    half, found = len(first) // 2, []
    for some in (slice(0, half), slice(half, len(first))):
        off = np.log(second[some] / first[some])
        middle = float(np.median(off)) if len(off) >= 3 else 0.0
        if abs(middle) > np.log1p(FALL) and np.mean(off * np.sign(middle) > np.log1p(FALL / 2)) >= 0.8:
            found.append((some.start, some.stop - 1, float(np.exp(middle))))
    if len(found) == 2 and (found[0][2] > 1) == (found[1][2] > 1):
        return [(0, len(first) - 1, float(np.median(second / first)))]
    return found
