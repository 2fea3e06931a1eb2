"""Rows of the experiment ``data-parallel`` as figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from collectives.algorithms import NEUTRAL, Mark
from collectives.figures.style import Picture, Theme, picture
from collectives_book.data_parallel import captions
from collectives_book.figures import kit, measured, statements
from collectives_book.figures.statements import Rows

LOOKS = {"same": Mark("#0072B2", "o"), "linear": Mark("#D55E00", "^")}


def losses(rows: Rows) -> Picture:
    """The loss of every step: in one process small markers and a line, on replicas larger markers upon it."""
    alone, series = captions.one_process(rows), _one_of_each(rows)
    steps = np.arange(1, len(alone.losses) + 1)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.plot(steps, alone.losses, ".-", color=theme.ink, lw=1.2, ms=4, label=captions.ALONE)
        for nth, row in enumerate(series):
            at = slice(2 * nth, None, 2 * len(series))
            look = measured.look(row.backend, row.algorithm)
            axes.plot(
                steps[at],
                np.array(row.losses)[at],
                look.marker,
                color=look.colour,
                label=captions.replicas_of(row),
                ms=5,
            )
        axes.set_xlabel("step")
        axes.set_ylabel("loss of the batch")
        axes.set_ylim(bottom=0)
        worst = max(captions.differences(rows).values())
        kit.message(figure, theme, f"Replicas and one process: the same losses, to a relative {worst:.1g}")
        kit.labels(figure)

    return picture(paint, _losses_alt(rows), kit.WIDTH, 3.0)


def _one_of_each(rows: Rows) -> list[Any]:
    """The first row of every back end: more would cover each other."""
    return list(captions.replicated(rows).drop_duplicates("backend").itertuples())


def _losses_alt(rows: Rows) -> str:
    alone = captions.one_process(rows)
    worst = max(captions.differences(rows).values())
    names = statements.listed([captions.replicas_of(row) for row in _one_of_each(rows)])
    return (
        f"The loss of a batch of {alone.batch} falls from {alone.losses[0]:.2f} to {alone.losses[-1]:.2f} in "
        f"{len(alone.losses)} steps in one process. "
        f"{names} have the same losses, to a relative difference of {worst:.1g}."
    )


def times(rows: Rows) -> Picture:
    """The time of a step, a line of the figure for each series, beside one process and what the simulator says."""
    drawn = [row for row in measured.part(rows, "training").itertuples() if len(getattr(row, "samples", ()))]

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for nth, row in enumerate(drawn):
            _dot(axes, -nth, row)
        if points := [(_predicted(row), -nth) for nth, row in enumerate(drawn) if _predicted(row)]:
            axes.plot(*zip(*points, strict=True), "|", color=theme.ink, ms=16, mew=1.4, label="predicted")
            kit.notes(figure, more=[kit.key(theme, "predicted", ls="", marker="|", ms=9)])
        axes.set_yticks([-nth for nth in range(len(drawn))], [captions.name_of(row) for row in drawn])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: statements.us(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0.6 - len(drawn), 0.4)
        axes.set_xlabel("time of a step")
        least = min(drawn, key=lambda row: row.median_us, default=None)
        kit.message(figure, theme, f"The lowest median: {captions.name_of(least)}" if least else "")

    return picture(paint, _times_alt(drawn), kit.WIDTH, 1.2 + 0.3 * len(drawn))


def _dot(axes: Axes, y: float, row: Any) -> None:
    look = NEUTRAL if row.backend == captions.ALONE else measured.look(row.backend, row.algorithm)
    kit.measured_across(axes, look, None, [row.median_us], [row.low_us], [row.high_us], [y])
    beside = axes.get_yaxis_transform()  # in a column at the right, where no bar and no prediction is
    axes.annotate(statements.us(row.median_us), (1.02, y), xycoords=beside, va="center", fontsize=9.5)


def _predicted(row: Any) -> float | None:
    """Microseconds of a step by the model: computing as it was measured, and the all-reduce as it is simulated."""
    simulated = getattr(row, "simulated_us", float("nan"))
    return None if pd.isna(simulated) else row.median_us - row.reduce_us + simulated


def _times_alt(drawn: list[Any]) -> str:
    said = [f"{captions.name_of(row)} {statements.us(row.median_us)}" for row in drawn]
    predicted = [f"{captions.name_of(row)} {statements.us(at)}" for row in drawn if (at := _predicted(row)) is not None]
    more = f" Predicted: {'; '.join(predicted)}." if predicted else ""
    return f"Median time of a training step: {'; '.join(said)}.{more}"


def resumed(rows: Rows) -> Picture:
    """The losses around a killed rank: those of an undisturbed training, and those of the one that resumed."""
    row, whole = captions.pair(rows)
    kept, died, end = int(row.resumed_after), int(row.killed_at), len(row.losses)
    steps = np.arange(1, end + 1)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.plot(steps, whole.losses, ".-", color=theme.ink, lw=1.2, ms=4, label="undisturbed")
        look = measured.look(row.backend, row.algorithm)
        before = row.before
        axes.plot(steps[: len(before)], before, look.marker, color=look.colour, ms=5, label="until it was killed")
        after = np.array(row.losses[kept:])
        axes.plot(steps[kept:], after, look.marker, mfc="none", color=look.colour, ms=8, label="resumed")
        axes.axvline(died, color=theme.ink, lw=0.9, ls=(0, (5, 3)))
        axes.annotate(
            f"killed in step {died},\nresumed after {kept}",
            (died, max(row.losses) * 0.92),
            xytext=(8, 0),
            textcoords="offset points",
            ha="left",
            fontsize=9,
        )
        axes.set_xlabel("step")
        axes.set_ylabel("loss of the batch")
        axes.set_ylim(bottom=0)
        kit.message(figure, theme, captions.same_again(rows).removesuffix("."))
        kit.labels(figure)

    alt = (
        f"Losses of {end} steps. A rank is killed in step {died}, and the ranks that are started then go on after step "
        f"{kept}. {captions.same_again(rows)}"
    )
    return picture(paint, alt, kit.WIDTH, 3.6)


def rates(rows: Rows) -> Picture:
    """Accuracy after the same number of epochs against the size of the batch, by both rules."""
    table = captions.by_rule(rows)

    def paint(figure: Figure, _: Theme) -> None:
        axes = figure.subplots()
        for rule, series in table.groupby("rule", sort=False):
            look = LOOKS[str(rule)]
            bars = [series.accuracy - series.low, series.high - series.accuracy]
            line: dict[str, Any] = {"color": look.colour, "marker": look.marker, "capsize": 2, "lw": 1.2}
            axes.errorbar(series.batch, series.accuracy, yerr=bars, label=captions.RULES[str(rule)], **line)
        kit.binary_axis(axes, sorted(table.batch.unique()), "samples of a batch", "{:g}".format)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("digits read right")
        kit.labels(figure)

    return picture(paint, f"Share of unseen digits that are read right. {captions.rule_of_rates(rows)}", kit.WIDTH, 3.0)
