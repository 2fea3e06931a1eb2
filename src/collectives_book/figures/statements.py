"""Compare measured rows and write their values: a winner is named only where the data tell two rows apart.

A row has a median and the interval around it, ``median_us``, ``low_us`` and ``high_us``, and perhaps its ``samples``.
Two rows tie where their intervals overlap and their samples, round by round, do not say which is faster. Rows of fewer
than `FEWEST` samples always tie.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import isclose
from typing import Any

from collectives.bench.statistics import covered, median_interval, percent
from collectives.units import duration

# Samples of a row that can win. With three each, the intervals of two equal series are apart in one of ten pairs; with
# five, in one of 126.
FEWEST = 5

# A pandas.DataFrame of measured rows, and one of them; the types cannot say what they hold.
Rows = Any
Row = Any


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["ring"]), listed(["ring", "tree"]), listed(["ring", "tree", "root"])
    ('ring', 'ring and tree', 'ring, tree and root')
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def span(values: Iterable[float], form: Callable[[float], str]) -> str:
    """From the least to the most; a single value where both are written alike.

    >>> span([3.04, 1.0, 2.0], "{:.1f}".format), span([1.01, 0.99], "{:.1f}".format)
    ('1.0 to 3.0', '1.0')
    """
    least, most = form(min(values := list(values))), form(max(values))
    return least if least == most else f"{least} to {most}"


def us(microseconds: float) -> str:
    """A time of a row as people read it.

    >>> us(1500.0)
    '1.5 ms'
    """
    return duration(microseconds * 1e-6)


def signed(share: float) -> str:
    """A relative error in whole per cent, with its sign.

    >>> signed(0.496), signed(-0.004), signed(-0.12)
    ('+50%', '0%', '−12%')
    """
    whole = round(100 * share)
    return f"{'+' if whole > 0 else '−' if whole < 0 else ''}{abs(whole)}%"


def intervals(counts: Iterable[int]) -> str:
    """The confidence of intervals around medians, from their numbers of samples.

    >>> intervals([5, 5]), intervals([15, 3]), intervals([1])
    ('93.75% intervals', '75% to 96.48% intervals', 'single samples, without intervals')
    """
    sure = [covered(count) for count in counts]
    if min(sure) == 0:
        return "single samples, without intervals" if max(sure) == 0 else "some single samples, without intervals"
    return f"{span(sure, percent)} intervals"


def apart(one: Row, other: Row) -> bool:
    """Return True if two rows' intervals have nothing in common, or one is faster by rounds; False if one has `few`."""
    if few(one) or few(other):
        return False
    return bool(one.high_us < other.low_us or other.high_us < one.low_us or _is_faster_by_rounds(one, other))


def _is_faster_by_rounds(one: Row, other: Row) -> bool:
    """Whether the row of the lower median is faster in so many rounds that the median ratio is not 1, at 95%.

    Samples of one launch are interleaved: what disturbs a round disturbs both rows, and widens the interval of each,
    but not that of their ratios. A ratio is above 1 where the difference is above 0, which needs no division.
    """
    samples = [getattr(row, "samples", ()) for row in (one, other)]
    if len(samples[0]) != len(samples[1]) or len(samples[0]) == 0 or covered(len(samples[0])) < 0.95:
        return False
    low, _, high = median_interval([mine - theirs for mine, theirs in zip(*samples, strict=True)])
    return bool(low > 0) if one.median_us > other.median_us else bool(high < 0)


def few(row: Row) -> bool:
    """Return True if a row has fewer samples than a winner needs; without a column of samples it has enough."""
    return hasattr(row, "samples") and len(row.samples) < FEWEST


def leaders(rows: Rows) -> list[Row]:
    """The row of the lowest median, and all that tie with it, by their medians: one row if there is a winner."""
    first, *others = rows.sort_values("median_us", kind="stable").itertuples()
    return [first, *(row for row in others if not apart(first, row))]


def least(values: Mapping[str, float]) -> str:
    """The name of the least value, or the names of several that are equal.

    >>> least({"ring": 6, "tree": 2, "two_tree": 2}), least({"ring": 1.5, "tree": 2.0})
    ('tree and two_tree', 'ring')
    """
    lowest = min(values.values())
    return listed([name for name, value in values.items() if isclose(value, lowest)])


def wins(groups: Iterable[Rows], name: Callable[[Row], str]) -> str:
    """In how many of the groups which row is fastest, and how many are ties.

    A group of a single row has nobody to be faster than, and counts as that row's.
    """
    ahead = [leaders(rows) for rows in groups]
    won = Counter(name(rows[0]) for rows in ahead if len(rows) == 1)
    ties = sum(len(rows) > 1 for rows in ahead)
    said = [f"{each} is fastest in {count}" for each, count in won.most_common()]
    return listed([*said, f"several tie for first in {ties}"] if ties else said)


def takeover(
    leading: Sequence[tuple[float, Sequence[str]]], form: Callable[[float], str], best: str = "fastest"
) -> tuple[str, float | None]:
    """Which name leads at the last place, and from which place on; ``leading`` has the names in front at each place.

    More than one name is a tie; with three or more, the text names the last one that led alone. The place is None for a
    tie, and for a name that leads everywhere.

    >>> takeover([(1, ["tree"]), (2, ["ring", "tree"]), (4, ["ring"]), (8, ["ring"])], "{} B".format)
    ('ring is fastest from 4 B', 4)
    >>> takeover([(1, ["ring"]), (2, ["ring"])], "{} B".format)
    ('ring is fastest throughout', None)
    >>> takeover([(1, ["ring"]), (2, ["ring", "tree"])], "{} B".format)
    ('ring and tree tie at 2 B', None)
    >>> takeover([(1, ["ring"]), (2, ["ring", "tree", "root"])], "{} B".format)
    ('ring is fastest at 1 B, several tie at 2 B', None)
    """
    if not leading:
        return "", None
    last, names = leading[-1]
    if len(names) == 2:
        return f"{listed(names)} tie at {form(last)}", None
    if len(names) > 2:
        alone = [f"{first[0]} is {best} at {form(at)}, " for at, first in leading if len(first) == 1]
        return f"{alone[-1] if alone else ''}several tie at {form(last)}", None
    *before, (name, at) = [(tuple(names), [at for at, _ in run]) for names, run in groupby(leading, lambda one: one[1])]
    if not before:
        return f"{name[0]} is {best} throughout", None
    return f"{name[0]} is {best} {'at' if len(at) == 1 else 'from'} {form(at[0])}", at[0]


def in_front(rows: Rows, along: str, name: Callable[[Row], str]) -> list[tuple[float, list[str]]]:
    """At each place the names of the rows that cannot be told from the fastest one, for `takeover`."""
    return [(at, [name(row) for row in leaders(group)]) for at, group in rows.groupby(along)]


def ratio(one: Row, other: Row) -> tuple[float, float, float]:
    """(least, of the medians, most): the first row's time over the second's, as far as their intervals allow."""
    return one.low_us / other.high_us, one.median_us / other.median_us, one.high_us / other.low_us


def verdict(least: float, most: float, goal: float, *, at_least: bool) -> str:
    """Whether a value that lies between two others reached a goal: "undecided" where the goal lies between them, too.

    >>> [verdict(*value, 1.5, at_least=True) for value in ((1.5, 2.0), (1.0, 1.4), (1.4, 1.6))]
    ['reached', 'missed', 'undecided']
    """
    reached = [value >= goal if at_least else value <= goal for value in (least, most)]
    return "undecided" if reached[0] != reached[1] else "reached" if reached[0] else "missed"
