"""Compare measured rows and write their values: a winner is named only where the data tell two rows apart.

A row has a median and the interval around it, ``median_us``, ``low_us`` and ``high_us``, and
perhaps its ``samples``. Two rows tie where their intervals overlap and their samples, round by
round, do not say which is faster. Rows of fewer than `FEWEST` samples always tie.
"""

from collections.abc import Callable, Iterable
from typing import Any

from collectives import statistics
from collectives.statistics import FEWEST, covered, median_interval, percent
from collectives.units import duration

# A pandas.DataFrame of measured rows, and one of them; the types cannot say what they hold.
Rows = Any
Row = Any


def span(values: Iterable[float], form: Callable[[float], str]) -> str:
    """Return the least to the most value as text; a single one where both are written alike.

    >>> span([3.04, 1.0, 2.0], "{:.1f}".format), span([1.01, 0.99], "{:.1f}".format)
    ('1.0 to 3.0', '1.0')
    """
    values = list(values)
    least = form(min(values))
    most = form(max(values))
    return least if least == most else f"{least} to {most}"


def us(microseconds: float) -> str:
    """Return a time in microseconds as people read it.

    >>> us(1500.0)
    '1.5 ms'
    """
    return duration(microseconds * 1e-6)


def signed(share: float) -> str:
    """Return a relative error in whole per cent, with its sign.

    >>> signed(0.496), signed(-0.004), signed(-0.12)
    ('+50%', '0%', '−12%')
    """
    whole = round(100 * share)
    return f"{'+' if whole > 0 else '−' if whole < 0 else ''}{abs(whole)}%"


def intervals(counts: Iterable[int]) -> str:
    """Return the confidence of intervals around medians, from their numbers of samples.

    >>> intervals([5, 5]), intervals([15, 3]), intervals([1])
    ('93.75% confidence intervals', '75% to 96.48% confidence intervals', 'single samples, without intervals')
    """
    sure = [covered(count) for count in counts]
    if min(sure) == 0:
        return (
            "single samples, without intervals"
            if max(sure) == 0
            else "some single samples, without intervals"
        )
    return f"{span(sure, percent)} confidence intervals"


def apart(one: Row, other: Row) -> bool:
    """Return True if two rows' intervals have nothing in common, or one is faster by rounds.

    False if one has `few`.
    """
    if few(one) or few(other):
        return False
    return bool(
        one.high_us < other.low_us or other.high_us < one.low_us or _is_faster_by_rounds(one, other)
    )


def _is_faster_by_rounds(one: Row, other: Row) -> bool:
    """Return True if the row of the lower median is faster in so many rounds that their ratio is not 1, at 95%.

    Samples of one launch are interleaved: what disturbs a round disturbs both rows, and widens the
    interval of each, but not that of their ratios. A ratio is above 1 where the difference is above
    0, which needs no division.
    """
    samples = [getattr(row, "samples", ()) for row in (one, other)]
    if (
        len(samples[0]) != len(samples[1])
        or len(samples[0]) == 0
        or covered(len(samples[0])) < 0.95
    ):
        return False
    low, _, high = median_interval([mine - theirs for mine, theirs in zip(*samples, strict=True)])
    return bool(low > 0) if one.median_us > other.median_us else bool(high < 0)


def few(row: Row) -> bool:
    """Return True if a row has fewer samples than a winner needs.

    Without a column of samples it has enough.
    """
    return hasattr(row, "samples") and len(row.samples) < FEWEST


def leaders(rows: Rows) -> list[Row]:
    """Return the row of the lowest median, and all that tie with it, by their medians: one row if there is a winner."""
    first, *others = rows.sort_values("median_us", kind="stable").itertuples()
    return [first, *(row for row in others if not apart(first, row))]


def ratio(one: Row, other: Row) -> tuple[float, float, float]:
    """Return (least, of medians, most) of one row's time over the other's, for one row each or columns of them."""
    intervals = [(row.low_us, row.median_us, row.high_us) for row in (one, other)]
    return statistics.ratio(*intervals)
