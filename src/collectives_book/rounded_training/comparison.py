"""What a summation variant changes: paired differences to the baseline with their intervals, and sentences about them.

Two trainings with one seed begin with the same weights and see the same batches. So their difference is not blurred by
what differs between seeds. The interval of its mean is Student's (95%), over seeds. One interval in twenty excludes 0
by chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from collectives.errors import unknown
from collectives_book.figures.statements import listed, span
from collectives_book.rounded_training.table import Trained
from collectives_book.rounded_training.variants import BASELINE, VARIANTS, Variant, name

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """By how much one variant differs from another for a model and a number of workers: the mean and its interval."""

    model: str
    workers: int
    variant: Variant
    seeds: int
    mean: float
    low: float
    high: float
    of: float  # the mean of the other variant

    @property
    def is_seen(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def share(self) -> float:
        """The mean difference as a share of the other variant's mean."""
        return self.mean / self.of


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(low, mean, high): Student's interval of the mean, at 95%. Raises ValueError for fewer than two values.

    >>> interval([1.0, 2.0, 3.0])
    (-0.484138, 2.0, 4.484138)
    """
    if len(values) < 2:
        raise ValueError(f"values for an interval: got {len(values)}, expected at least 2")
    mean = float(np.mean(values))
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return round(mean - half, 6), round(mean, 6), round(mean + half, 6)


def difference(
    rows: Iterable[Trained], model: str, workers: int, variant: Variant, other: Variant = BASELINE, of: str = "loss"
) -> Difference:
    """By how much a variant's ``loss`` or ``quality`` differs from another's, seed by seed.

    Raises ValueError for another column, and where the two have different seeds.
    """
    if of not in ("loss", "quality"):
        raise ValueError(unknown("column", of, ["loss", "quality"]))
    mine, theirs = (
        {row.seed: float(getattr(row, of)) for row in rows if row[:5] == (model, workers, *each.columns)}
        for each in (variant, other)
    )
    if mine.keys() != theirs.keys():
        raise ValueError(f"seeds of {name(variant)}: got {sorted(mine)}, expected {sorted(theirs)} as of {name(other)}")
    low, mean, high = interval([mine[seed] - theirs[seed] for seed in mine])
    return Difference(model, workers, variant, len(mine), mean, low, high, float(np.mean([*theirs.values()])))


def differences(rows: Sequence[Trained], of: str = "loss") -> list[Difference]:
    """Every variant against the baseline, for each model and number of workers."""
    places = dict.fromkeys((row.model, row.workers) for row in rows)
    return [difference(rows, *place, variant, of=of) for place in places for variant in VARIANTS if variant != BASELINE]


def verdict(found: Sequence[Difference], what: str = "the final loss") -> str:
    """Which variants change something, by how much, and for which no difference is seen; true for a tie of all.

    A variant changes a model where its intervals for all numbers of workers are on one side of 0. Of the others the
    intervals that exclude 0 are named.
    """
    if not any(one.is_seen for one in found):
        return f"No difference is seen: all {len(found)} intervals contain 0."
    groups = changed(found)
    said = [_always(group, what) for group in groups]
    rest = [one for one in found if not any(one in group for group in groups)]
    return " ".join([*said, *([_elsewhere(rest, "other " if said else "")] if rest else [])])


def changed(found: Sequence[Difference]) -> list[list[Difference]]:
    """The differences of a model and a variant whose intervals are all above 0, or all below."""
    places = dict.fromkeys((one.model, one.variant) for one in found)
    groups = [[one for one in found if (one.model, one.variant) == place] for place in places]
    return [group for group in groups if {(one.low > 0) - (one.high < 0) for one in group} in ({1}, {-1})]


def _always(group: Sequence[Difference], what: str) -> str:
    """By how much one variant changes a model."""
    share = span((abs(one.share) for one in group), "{:.1%}".format)
    one, verb = group[0], "rises" if group[0].mean > 0 else "falls"
    return f"With *{name(one.variant)}*, {what} of the {one.model} {verb} by {share}."


def _elsewhere(ones: Sequence[Difference], others: str) -> str:
    """Which of the intervals exclude 0, and how many would by chance."""
    seen = [one for one in ones if one.is_seen]
    if not seen:
        return f"Otherwise no difference is seen: all {len(ones)} intervals contain 0."
    which = listed([f"*{name(one.variant)}* ({_where(one)})" for one in seen])
    chance = f"by chance {(1 - CONFIDENCE) * len(ones):.1f} would"
    return f"Of {len(ones)} {others}intervals {len(seen)} exclude{'s' * (len(seen) == 1)} 0, {chance}: {which}."


def _where(one: Difference) -> str:
    return f"{one.model}, {one.workers} workers: {signed(one.share)}"


def signed(share: float) -> str:
    """A share in per cent with its sign, to a tenth; a smaller one to a hundredth.

    >>> signed(-0.0123), signed(0.0), signed(0.0002)
    ('−1.2%', '0%', '+0.02%')
    """
    said = f"{abs(share):.1%}" if abs(share) >= 0.001 else f"{abs(share):.2%}"
    return "0%" if said == "0.00%" else f"{'+' if share > 0 else '−'}{said}"


def feedback(rows: Sequence[Trained], wire: str = "mxfp4") -> str:
    """Whether feedback changes the final loss of a wire: trainings with it against those without, seed by seed."""
    variant = Variant(f"parameter_server/{wire}")
    places = dict.fromkeys((row.model, row.workers) for row in rows)
    found = [difference(rows, *place, variant._replace(feedback=True), variant) for place in places]
    seen = [_where(one) for one in found if one.is_seen]
    if not seen:
        wide = max(found, key=lambda one: (one.high - one.low) / one.of)
        ends = f"{signed(wide.low / wide.of)} to {signed(wide.high / wide.of)}"
        none = f"With {wire}, no difference is seen between feedback and none: all {len(found)} intervals contain 0."
        return f"{none} The widest ({wide.model}, {wide.workers} workers) goes from {ends}."
    return f"With {wire}, feedback changes the final loss in {len(seen)} of {len(found)} cases ({'; '.join(seen)})."
