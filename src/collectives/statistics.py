"""The median of samples, its confidence interval, the interval's confidence, and their columns in a row.

`scipy.stats.quantile_test` has the same intervals from six samples on. Its import costs each rank
60 MiB of memory, and takes three times as long as the start of a command.
"""

from collections.abc import Sequence
from functools import cache
from math import floor
from typing import Any

# Samples of a row that can win. With three each, the intervals of two equal series are apart in one
# of ten pairs; with five, in one of 126.
FEWEST = 5


def median_interval(
    samples: Sequence[float], confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return (low, median, high): the interval contains the true median with at least this confidence.

    It comes from order statistics and assumes no distribution: each sample is below the median with
    probability one half, so the number of samples below is binomial. Fewer than six samples cannot
    reach 95%: then the interval spans all of them, and `covered` returns its confidence. Raises
    ValueError without samples.

    >>> median_interval([3.0, 1.0, 2.0])
    (1.0, 2.0, 3.0)
    >>> median_interval([float(i) for i in range(1, 21)])
    (6.0, 10.5, 15.0)
    """
    x, n = sorted(samples), len(samples)
    cut, _ = _cut(n, confidence)
    return x[cut], (x[(n - 1) // 2] + x[n // 2]) / 2, x[n - 1 - cut]


def covered(n: int, confidence: float = 0.95) -> float:
    """Return the probability that `median_interval` of n samples contains the true median.

    0 for a single sample.

    >>> [covered(n) for n in (1, 2, 3, 5)]
    [0.0, 0.5, 0.75, 0.9375]
    """
    return _cut(n, confidence)[1]


def ratio(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return (least, of medians, most) of one (low, median, high) over another, for numbers or columns of them.

    Both intervals hold at once with at least the sum of their confidences less 1; then this one
    holds, too.

    >>> ratio((10.0, 12.0, 16.0), (4.0, 6.0, 8.0))
    (1.25, 2.0, 4.0)
    """
    return one[0] / other[2], one[1] / other[1], one[2] / other[0]


def percent(share: float) -> str:
    """Format a confidence in per cent, never rounded up.

    >>> percent(0.9375), percent(covered(11))
    ('93.75%', '98.82%')
    """
    return f"{floor(share * 1e4) / 100:g}%"


def interval_us(seconds: Sequence[float], name: str = "") -> dict[str, float]:
    """Return the columns of a row with median and interval, in microseconds.

    >>> interval_us([3e-6, 1e-6, 2e-6], "step_")
    {'step_median_us': 2.0, 'step_low_us': 1.0, 'step_high_us': 3.0}
    """
    low, median, high = microseconds(median_interval(seconds))
    return {f"{name}median_us": median, f"{name}low_us": low, f"{name}high_us": high}


def microseconds(seconds: Sequence[float]) -> list[float]:
    """Convert seconds to microseconds, rounded to the nanosecond, as rows have them."""
    return [round(each * 1e6, 3) for each in seconds]


@cache
def _cut(n: int, confidence: float) -> tuple[int, float]:
    """Return the number of samples to leave out at either end, and the confidence of the remaining interval."""
    if n < 1:
        raise ValueError(f"an interval needs samples: got {n}, expected 1 or more")
    cut, inside, ways = 0, 1 - 2 / 2**n, n  # ways to choose cut + 1 samples of n
    while 2 * cut + 3 < n and (further := inside - 2 * ways / 2**n) >= confidence:
        cut, inside, ways = cut + 1, further, ways * (n - cut - 1) // (cut + 2)
    return cut, inside
