"""Rows of the experiment ``weak-scaling`` as figures, beside what Baidu published.

Measured is a filled marker with its interval, the model's prediction a line, published a hollow marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from collectives.algorithms import BLUE, VERMILION, Mark
from collectives.figures.style import Picture, Theme
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.figures.statements import Row, Rows
from collectives_book.weak_scaling import published


class Series(NamedTuple):
    """The rows of one number of buckets, with a name and a look."""

    name: str
    rows: Rows
    look: Mark


def series(rows: Rows) -> list[Series]:
    """Without overlap, which is one bucket, and with the most buckets."""
    named = [("without overlap", rows.buckets.min(), BLUE), ("with overlap", rows.buckets.max(), VERMILION)]
    chosen = named[: 1 + (rows.buckets.nunique() > 1)]
    return [
        Series(name, rows[rows.buckets == number].sort_values("ranks", kind="stable"), look)
        for name, number, look in chosen
    ]


def speed(rows: Rows) -> Picture:
    """Samples per second against the number of workers: measured, predicted, published, and what would be linear."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        most = int(rows.ranks.max())
        kit.lower_bound(axes, theme, [0, most], [0, most * alone(rows)], "as fast as alone")
        _draw(axes, rows, "per_second", 1.0)
        axes.set_ylabel("samples per second")
        _finish(figure, axes, rows, theme, {p: each for p, each in published.SAMPLES.items() if p <= most})

    return kit.drawn(paint, "Samples per second by workers, beside points that Baidu published", 4.2)


def efficiency(rows: Rows) -> Picture:
    """Samples per second and worker, as a share of what one worker alone has, against the number of workers."""

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _draw(axes, rows, "per_second", 1 / alone(rows), each=True)
        axes.set_ylim(0, 1.08)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel("efficiency")
        shares = {p: share_published(p) for p in published.SAMPLES if p <= int(rows.ranks.max())}
        _finish(figure, axes, rows, theme, shares)

    return kit.drawn(paint, "Efficiency by workers, beside points that Baidu published", 3.8)


def _draw(axes: Axes, rows: Rows, name: str, factor: float, each: bool = False) -> None:
    for part in series(rows):
        by = factor / part.rows.ranks if each else factor
        middle, low, high = (part.rows[f"{end}{name}"] * by for end in ("", "low_", "high_"))
        axes.plot(part.rows.ranks, part.rows[f"predicted_{name}"].astype(float) * by, color=part.look.colour, lw=1.2)
        kit.measured(axes, part.look, part.name, part.rows.ranks, middle, low, high, ls="")


def _finish(figure: Figure, axes: Axes, rows: Rows, theme: Theme, points: dict[int, float]) -> None:
    kit.published(axes, Mark(theme.ink, "D"), list(points), list(points.values()))
    axes.set_xlabel("workers")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    shown = kit.key(theme, "published by Baidu", marker="D", mfc="none", ls="")
    known = [] if rows.predicted_per_second.isna().all() else [kit.key(theme, "predicted")]
    kit.message(figure, theme, f"{rows.ranks.max()} workers: {_gained(rows)}")
    kit.labels(figure, rows, [*known, shown])


def _gained(rows: Rows) -> str:
    """Say what overlap gains on the most workers, that its rows tie, or that its samples are too few."""
    without, *others = on_most(rows)
    if not others:
        return f"efficiency {share(without, rows):.0%}"
    (overlapped,) = others
    if statements.few(without) or statements.few(overlapped):
        shares = [f"{share(row, rows):.0%}" for row in (overlapped, without)]
        return f"median efficiency {shares[0]} with overlap, {shares[1]} without"
    if overlapped.low_per_second <= without.high_per_second and without.low_per_second <= overlapped.high_per_second:
        return "overlap makes no difference that the intervals show"
    verb = "raises" if overlapped.per_second > without.per_second else "lowers"
    return f"overlap {verb} the efficiency from {share(without, rows):.0%} to {share(overlapped, rows):.0%}"


def alone(rows: Rows) -> float:
    """Samples per second of one worker; where none was measured, of the fewest, each."""
    first = rows.sort_values(["ranks", "buckets"], kind="stable").iloc[0]
    return float(first.per_second / first.ranks)


def share(row: Row, rows: Rows) -> float:
    """A row's efficiency."""
    return float(row.per_second / row.ranks / alone(rows))


def share_published(p: int) -> float:
    """The efficiency that Baidu's numbers have.

    >>> round(share_published(40), 2)
    0.5
    """
    return published.SAMPLES[p] / p / published.SAMPLES[1]


def _ends(rows: Rows) -> tuple[Row, Row]:
    each = list(rows.itertuples())
    return each[0], each[-1]


def on_most(rows: Rows) -> Sequence[Row]:
    """The rows of the most workers, in the order of `series`."""
    return [_ends(part.rows)[1] for part in series(rows)]
