"""What a way of summing changes: paired differences to the baseline, with 95% intervals, and sentences about them.

Two trainings with one seed begin with the same weights and see the same batches. So their difference is not blurred by
what differs between seeds. The interval of its mean is Student's, over seeds. One interval in twenty excludes 0 by
chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from collectives.errors import unknown
from collectives_book.figures.statements import listed
from collectives_book.rounded_training.table import Trained
from collectives_book.rounded_training.ways import BASELINE, WAYS, Way, name

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """By how much one way differs from another for a model and a number of workers: the mean and its interval."""

    model: str
    workers: int
    way: Way
    seeds: int
    mean: float
    low: float
    high: float
    of: float  # the mean of the other way

    @property
    def is_seen(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(low, mean, high): Student's 95% interval of the mean. Raises ValueError for fewer than two values.

    >>> interval([1.0, 2.0, 3.0])
    (-0.484, 2.0, 4.484)
    """
    if len(values) < 2:
        raise ValueError(f"values for an interval: got {len(values)}, expected at least 2")
    mean = float(np.mean(values))
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return round(mean - half, 6), round(mean, 6), round(mean + half, 6)


def difference(
    rows: Iterable[Trained], model: str, workers: int, way: Way, other: Way = BASELINE, of: str = "loss"
) -> Difference:
    """By how much a way's ``loss`` or ``quality`` differs from another's, seed by seed.

    Raises ValueError for another column, and where the two have different seeds.
    """
    if of not in ("loss", "quality"):
        raise ValueError(unknown("column", of, ["loss", "quality"]))
    mine, theirs = (
        {row.seed: float(getattr(row, of)) for row in rows if row[:5] == (model, workers, *each.columns)}
        for each in (way, other)
    )
    if mine.keys() != theirs.keys():
        raise ValueError(f"seeds of {name(way)}: got {sorted(mine)}, expected {sorted(theirs)} as of {name(other)}")
    low, mean, high = interval([mine[seed] - theirs[seed] for seed in mine])
    return Difference(model, workers, way, len(mine), mean, low, high, float(np.mean([*theirs.values()])))


def differences(rows: Sequence[Trained], of: str = "loss") -> list[Difference]:
    """Every way against the baseline, for each model and number of workers."""
    places = dict.fromkeys((row.model, row.workers) for row in rows)
    return [difference(rows, *place, way, of=of) for place in places for way in WAYS if way != BASELINE]


def verdict(found: Sequence[Difference]) -> str:
    """Which ways change the final loss, by how much, and for which no difference is seen; true for a tie of all."""
    seen = [one for one in found if one.is_seen]
    chance = f"By chance, {(1 - CONFIDENCE) * len(found):.1f} of {len(found)} intervals would exclude 0."
    if not seen:
        return f"No difference is seen: all {len(found)} intervals contain 0."
    ways = [way for way in dict.fromkeys(one.way for one in found) if any(one.way == way for one in seen)]
    never = [name(way) for way in dict.fromkeys(one.way for one in found) if way not in ways]
    said = [_of_way([one for one in found if one.way == way]) for way in ways]
    none = f"No difference is seen for {listed([f'*{each}*' for each in never])}. " if never else ""
    return f"{' '.join(said)} {none}{chance}"


def _of_way(found: Sequence[Difference]) -> str:
    """What one way changes, and in how many of its intervals no difference is seen."""
    parts = [
        f"the {one.model}'s loss on {one.workers} workers {'up' if one.mean > 0 else 'down'} by {abs(one.mean):.3g}"
        f" ({percent(one)})"
        for one in found
        if one.is_seen
    ]
    ties = sum(not one.is_seen for one in found)
    rest = f"; {ties} of its {len(found)} intervals contain{'s' * (ties == 1)} 0" if ties else ""
    return f"*{name(found[0].way)}* takes {listed(parts)}{rest}."


def percent(one: Difference) -> str:
    """A difference as a share of the other way's mean.

    >>> percent(Difference("perceptron", 8, BASELINE, 10, -0.002, -0.003, -0.001, 0.05))
    '−4.0%'
    """
    return f"{100 * one.mean / one.of:+.1f}%".replace("-", "−")


def feedback(rows: Sequence[Trained], wire: str = "mxfp4") -> str:
    """Whether feedback changes the final loss of a wire: paired, with and without."""
    way = Way(f"parameter_server/{wire}")
    places = dict.fromkeys((row.model, row.workers) for row in rows)
    found = [difference(rows, *place, way._replace(feedback=True), way) for place in places]
    seen = [one for one in found if one.is_seen]
    if not seen:
        return f"Feedback changes nothing that is seen with {wire}: all {len(found)} intervals contain 0."
    return _of_way(found).replace(f"*{name(found[0].way)}*", f"With {wire}, feedback")
