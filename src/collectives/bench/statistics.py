"""The median and how sure of it one may be, from the samples alone."""

from __future__ import annotations

from math import comb


def median_interval(samples: list[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """(low, median, high): an interval that holds the true median with at least this confidence, from order statistics.

    No distribution is assumed: each sample lies below the median with probability one half, so how many do is binomial.
    With fewer than six samples 95 % cannot be reached, and the interval is all of them.

    >>> median_interval([3.0, 1.0, 2.0])
    (1.0, 2.0, 3.0)
    >>> median_interval([float(i) for i in range(1, 21)])
    (6.0, 10.5, 15.0)
    """
    x, n = sorted(samples), len(samples)
    outside, cut = 0.0, 0
    while True:
        outside += 2 * comb(n, cut) / 2**n
        if outside > 1 - confidence or 2 * cut + 2 >= n:
            break
        cut += 1
    cut = max(0, cut - 1)
    return x[cut], (x[(n - 1) // 2] + x[n // 2]) / 2, x[n - 1 - cut]
