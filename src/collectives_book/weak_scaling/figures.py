"""Rows of the experiment ``weak-scaling`` as figures, beside what Baidu published."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from collectives.algorithms import BLUE, NEUTRAL, VERMILION
from collectives.figures.style import Picture
from collectives_book.figures import kit
from collectives_book.figures.statements import Rows
from collectives_book.weak_scaling import published

RATES = ["per_second", "low_per_second", "high_per_second", "predicted_per_second"]
BAIDU = "published by Baidu"
LOOKS = {"without overlap": BLUE, "with overlap": VERMILION, BAIDU: NEUTRAL._replace(marker="o")}


def series(rows: Rows) -> Rows:
    """Return the rows without overlap, which is one bucket, and those of the most buckets, named in ``series``."""
    names = {rows.buckets.max(): "with overlap", rows.buckets.min(): "without overlap"}
    named = rows.assign(series=rows.buckets.map(names), predicted_per_second=rows.predicted_per_second.astype(float))
    return named.dropna(subset="series").sort_values(["buckets", "ranks"], kind="stable")


def speed(rows: Rows) -> Picture:
    """Return samples per second by workers: measured, predicted, published, and as fast as alone."""
    linear = rows.assign(alone=rows.ranks * alone(rows))
    about = "Samples per second by workers, beside points that Baidu published"
    return _by_workers(linear, published.SAMPLES, "samples per second", about, bound="alone")


def efficiency(rows: Rows) -> Picture:
    """Return samples per second and worker, as a share of what one worker alone has, by workers."""
    shares = rows.assign(**rows[RATES].astype(float).div(rows.ranks * alone(rows), axis=0))
    points = {p: share_published(p) for p in published.SAMPLES}
    about = "Efficiency by workers, beside points that Baidu published"
    return _by_workers(shares, points, "efficiency", about, form="{:.0%}")


def _by_workers(
    rows: Rows, points: Mapping[int, float], name: str, about: str, form: str = "{:,.0f}", bound: str | None = None
) -> Picture:
    known = {p: each for p, each in points.items() if p <= rows.ranks.max()}
    return kit.curves(
        series(rows),
        "ranks",
        RATES[0],
        "series",
        (kit.RANKS._replace(name="workers", base=0), kit.Axis(name, form.format)),
        about,
        interval=(RATES[1], RATES[2]),
        simulated=RATES[3],
        predicted="predicted",
        published=pd.DataFrame({"ranks": [*known], RATES[0]: [*known.values()], "series": BAIDU}),
        source=BAIDU,
        bound=bound,
        bounded="as fast as alone",
        looks=LOOKS.__getitem__,
    )


def alone(rows: Rows) -> float:
    """Return the samples per second of one worker; where none was measured, of the fewest, each."""
    first = rows.sort_values(["ranks", "buckets"], kind="stable").iloc[0]
    return float(first.per_second / first.ranks)


def share_published(p: int) -> float:
    """Return the efficiency that Baidu's numbers have.

    >>> round(share_published(40), 2)
    0.5
    """
    return published.SAMPLES[p] / p / published.SAMPLES[1]
