"""Sentences computed from rows that stay true in a tie: a winner is named only where the data tell two rows apart.

A row has a median and the interval around it, ``median_us``, ``low_us`` and ``high_us``, and perhaps its ``samples``.
Two rows tie where their intervals overlap and their samples, round by round, do not say which is faster. Rows of fewer
than `FEWEST` samples always tie.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import isclose, isnan
from typing import Any, NamedTuple

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


def runs(pairs: Sequence[tuple[int, str]], form: Callable[[int], str] = "{:,}".format) -> str:
    """Where along a row of numbers which name applies, equal neighbours joined.

    >>> runs([(96, "LL128"), (768, "LL128"), (3072, "LL")]), runs([(96, "LL")])
    ('LL128 on 96 to 768, LL on 3,072', 'LL on 96')
    """
    groups = [(name, [at for at, _ in group]) for name, group in groupby(pairs, key=lambda pair: pair[1])]
    return ", ".join(f"{name} on {span((at[0], at[-1]), lambda value: form(int(value)))}" for name, at in groups)


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


def fastest(rows: Rows, name: Callable[[Row], str], form: Callable[[float], str]) -> str:
    """Which row is fastest, by how much, or that the rows tie; a clause that a caller begins.

    ``name`` says what a row is called, ``form`` writes microseconds.
    """
    rows = rows.reset_index(drop=True)
    ahead = leaders(rows)
    first, names = ahead[0], [name(row) for row in ahead]
    behind = [row for row in rows.itertuples() if row.Index not in {row.Index for row in ahead}]
    if len(rows) == 1:
        return f"{names[0]} took {form(first.median_us)}"
    said = f"{names[0]} was fastest with {form(first.median_us)}"
    if len(ahead) > 1:
        overlap = "their intervals overlap" if len(ahead) == 2 else f"their intervals overlap with that of {names[0]}"
        why = f"fewer than {FEWEST} samples name no winner" if any(few(row) for row in ahead) else overlap
        said = f"{listed(names)} tie, with medians of {span((row.median_us for row in ahead), form)}: {why}"
    if not behind:
        return said
    last = max(behind, key=lambda row: row.median_us)
    return f"{said}; {name(last)} took {last.median_us / first.median_us:.1f} times as long"


def ahead(rows: Rows) -> str:
    """How many of the rows cannot be told from the one with the lowest median; as the end of a sentence."""
    tied, of = len(leaders(rows)), len(rows)
    if tied == 1:
        return f"one of {of} series is ahead of all others" if of > 1 else "there is one series"
    return f"{tied} of {of} series tie for the lowest time"


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


class Versus(NamedTuple):
    """In how many places one series was faster than another, slower, or tied with it."""

    faster: int
    slower: int
    tied: int


def versus(ours: Rows, theirs: Rows) -> Versus:
    """One series against another, each with one row per index; what only one of them has does not count."""
    pairs = [(ours.loc[at], theirs.loc[at]) for at in ours.index if at in theirs.index]
    decided = [(one, other) for one, other in pairs if apart(one, other)]
    faster = sum(bool(one.median_us < other.median_us) for one, other in decided)
    return Versus(faster, len(decided) - faster, len(pairs) - len(decided))


def ratio(one: Row, other: Row) -> tuple[float, float, float]:
    """(least, of the medians, most): the first row's time over the second's, as far as their intervals allow."""
    return one.low_us / other.high_us, one.median_us / other.median_us, one.high_us / other.low_us


def times_as_long(one: Row, other: Row, form: Callable[[float], str] = "{:.1f}".format) -> str:
    """Say how many times as long as another row one takes, or that they tie, or that few samples prove nothing."""
    times = f"{form(one.median_us / other.median_us)} times as long"
    if few(one) or few(other):
        return f"{times} by the medians, but fewer than {FEWEST} samples prove nothing"
    return times if apart(one, other) else "about as long, because the intervals overlap"


def verdict(least: float, most: float, goal: float, *, at_least: bool) -> str:
    """Whether a value that lies between two others reached a goal: "undecided" where the goal lies between them, too.

    >>> [verdict(*value, 1.5, at_least=True) for value in ((1.5, 2.0), (1.0, 1.4), (1.4, 1.6))]
    ['reached', 'missed', 'undecided']
    """
    reached = [value >= goal if at_least else value <= goal for value in (least, most)]
    return "undecided" if reached[0] != reached[1] else "reached" if reached[0] else "missed"


def at_both_ends(rows: Rows, sentence: Callable[[Rows], str]) -> str:
    """A sentence for the rows of the smallest size, and one for those of the largest; empty without rows."""
    ends = dict.fromkeys([rows.bytes.min(), rows.bytes.max()]) if len(rows) else ()
    return " ".join(sentence(rows[rows.bytes == nbytes]) for nbytes in ends)


def better(first: tuple[str, float], second: tuple[str, float], least: float = 0.5) -> str:
    """Which of two columns orders measurements better, by its rank correlation: no winner where both are written alike.

    >>> better(("in a row", 0.67), ("in all", 0.9)), better(("in a row", 0.671), ("in all", 0.669))
    ('the count *in all* is the better guide', 'both counts are equally good guides')
    >>> better(("in a row", -0.3), ("in all", 0.2))
    'neither count explains the order'
    """
    known = [
        (name, 0.0 if isnan(value) else value) for name, value in (first, second)
    ]  # a constant column orders nothing
    (_, low), (name, high) = sorted(known, key=lambda one: one[1])
    if high < least:
        return "neither count explains the order"
    if f"{low:.2f}" == f"{high:.2f}":
        return "both counts are equally good guides"
    return f"the count *{name}* is the better guide"
