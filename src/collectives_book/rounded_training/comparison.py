"""What a summation variant changes: paired differences to the baseline with their intervals.

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


def changed(found: Sequence[Difference]) -> list[list[Difference]]:
    """The differences of a model and a variant whose intervals are all above 0, or all below."""
    places = dict.fromkeys((one.model, one.variant) for one in found)
    groups = [[one for one in found if (one.model, one.variant) == place] for place in places]
    return [group for group in groups if {(one.low > 0) - (one.high < 0) for one in group} in ({1}, {-1})]
