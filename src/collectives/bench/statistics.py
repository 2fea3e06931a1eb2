"""The median of samples, its confidence interval, and the true confidence of that interval."""

from math import comb, floor


def median_interval(samples: list[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """(low, median, high): an interval that contains the true median with at least this confidence.

    It comes from order statistics and assumes no distribution: each sample is below the median with probability one
    half, so the number of samples below is binomial. Fewer than six samples cannot reach 95%: then the interval spans
    all of them, and `covered` returns its confidence. Raises ValueError without samples.

    >>> median_interval([3.0, 1.0, 2.0])
    (1.0, 2.0, 3.0)
    >>> median_interval([float(i) for i in range(1, 21)])
    (6.0, 10.5, 15.0)
    """
    x, n = sorted(samples), len(samples)
    cut, _ = _cut(n, confidence)
    return x[cut], (x[(n - 1) // 2] + x[n // 2]) / 2, x[n - 1 - cut]


def covered(n: int, confidence: float = 0.95) -> float:
    """The probability that `median_interval` of n samples contains the true median; 0 for a single sample.

    >>> [covered(n) for n in (1, 2, 3, 5)]
    [0.0, 0.5, 0.75, 0.9375]
    """
    return _cut(n, confidence)[1]


def percent(share: float) -> str:
    """A confidence as text, never rounded up.

    >>> percent(0.9375), percent(covered(11))
    ('93.75%', '98.82%')
    """
    return f"{floor(share * 1e4) / 100:g}%"


def _cut(n: int, confidence: float) -> tuple[int, float]:
    """How many samples to leave out at either end, and the confidence of the remaining interval."""
    if n < 1:
        raise ValueError(f"an interval needs samples: got {n}, expected 1 or more")
    cut, inside = 0, 1 - 2 / 2**n
    while 2 * cut + 3 < n and (further := inside - 2 * comb(n, cut + 1) / 2**n) >= confidence:
        cut, inside = cut + 1, further
    return cut, inside
