"""Rows of the experiment ``data-parallel`` as figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from collectives.algorithms import NEUTRAL, Mark
from collectives.figures.style import Picture, Theme
from collectives_book.figures import by_hand as kit
from collectives_book.figures import measured, statements
from collectives_book.figures.statements import Rows

ALONE = "one process"

RULES = {"same": "the same rate", "linear": "a rate that grows with the batch"}
LOOKS = {"same": Mark("#0072B2", "o"), "linear": Mark("#D55E00", "^")}


def one_process(rows: Rows) -> Any:
    """The row of the training in one process."""
    return next(measured.part(rows, "training")[lambda found: found.backend == ALONE].itertuples())


def replicated(rows: Rows) -> Rows:
    """The rows of the same training on several replicas."""
    found = measured.part(rows, "training")
    return found[found.backend != ALONE]


def name_of(row: Any) -> str:
    """The name of a row's series: Horovod's says whether it fuses tensors."""
    if row.backend == ALONE:
        return ALONE
    if row.backend == "horovod":
        return "horovod, tensor fusion" if row.fusion else "horovod, no fusion"
    return measured.label(row.backend, row.algorithm)


def differences(rows: Rows) -> dict[str, float]:
    """Of each series, the largest relative difference of a loss from that of one process."""
    alone = np.array(one_process(rows).losses)
    return {
        name_of(row): float(np.max(np.abs(np.array(row.losses) - alone) / alone))
        for row in replicated(rows).itertuples()
    }


def replicas_of(row: Any) -> str:
    """Return how many replicas a row is of, and what joins them."""
    return f"{row.ranks} replicas, {name_of(row)}"


def pair(rows: Rows) -> tuple[Any, Any]:
    """The row of the training that was killed, and that of the same training without."""
    row = next(measured.part(rows, "resumed").itertuples())
    series = replicated(rows)
    return row, next(series[(series.backend == row.backend) & (series.algorithm == row.algorithm)].itertuples())


def changed(rows: Rows) -> int:
    """Return the number of losses of the resumed training that differ from the undisturbed one, to the bit."""
    row, whole = pair(rows)
    return int(np.sum(np.array(row.losses) != np.array(whole.losses)))


def by_rule(rows: Rows) -> Rows:
    """The median accuracy over the seeds, with the least and the most, for each rule and batch."""
    grouped = measured.part(rows, "rates").groupby(["rule", "batch"], sort=False).accuracy
    return grouped.agg(accuracy="median", low="min", high="max").reset_index().sort_values("batch", kind="stable")


def losses(rows: Rows) -> Picture:
    """The loss of every step: in one process small markers and a line, on replicas larger markers upon it."""
    alone, series = one_process(rows), _one_of_each(rows)
    steps = np.arange(1, len(alone.losses) + 1)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.plot(steps, alone.losses, ".-", color=theme.ink, lw=1.2, ms=4, label=ALONE)
        for nth, row in enumerate(series):
            at = slice(2 * nth, None, 2 * len(series))
            look = measured.look(row.backend, row.algorithm)
            axes.plot(
                steps[at],
                np.array(row.losses)[at],
                look.marker,
                color=look.colour,
                label=replicas_of(row),
                ms=5,
            )
        axes.set_xlabel("step")
        axes.set_ylabel("loss of the batch")
        axes.set_ylim(bottom=0)
        worst = max(differences(rows).values())
        kit.message(figure, theme, f"Replicas and one process: the same losses, to a relative {worst:.1g}")
        kit.labels(figure)

    return kit.drawn(paint, f"Loss of a batch of {alone.batch} by step", 3.0)


def _one_of_each(rows: Rows) -> list[Any]:
    """The first row of every back end: more would cover each other."""
    return list(replicated(rows).drop_duplicates("backend").itertuples())


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
        axes.set_yticks([-nth for nth in range(len(drawn))], [name_of(row) for row in drawn])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: statements.us(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0.6 - len(drawn), 0.4)
        axes.set_xlabel("time of a step")
        least = min(drawn, key=lambda row: row.median_us, default=None)
        kit.message(figure, theme, f"The lowest median: {name_of(least)}" if least else "")

    return kit.drawn(paint, "Median time of a training step", 1.2 + 0.3 * len(drawn))


def _dot(axes: Axes, y: float, row: Any) -> None:
    look = NEUTRAL if row.backend == ALONE else measured.look(row.backend, row.algorithm)
    kit.measured_across(axes, look, None, [row.median_us], [row.low_us], [row.high_us], [y])
    beside = axes.get_yaxis_transform()  # in a column at the right, where no bar and no prediction is
    axes.annotate(statements.us(row.median_us), (1.02, y), xycoords=beside, va="center", fontsize=9.5)


def _predicted(row: Any) -> float | None:
    """Microseconds of a step by the model: computing as it was measured, and the all-reduce as it is simulated."""
    simulated = getattr(row, "simulated_us", float("nan"))
    return None if pd.isna(simulated) else row.median_us - row.reduce_us + simulated


def resumed(rows: Rows) -> Picture:
    """The losses around a killed rank: those of an undisturbed training, and those of the one that resumed."""
    row, whole = pair(rows)
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
        kit.message(figure, theme, f"Losses that differ from the undisturbed ones: {changed(rows)} of {end}")
        kit.labels(figure)

    return kit.drawn(paint, f"Losses around a rank that is killed in step {died}", 3.6)


def rates(rows: Rows) -> Picture:
    """Accuracy after the same number of epochs against the size of the batch, by both rules."""
    table = by_rule(rows)

    def paint(figure: Figure, _: Theme) -> None:
        axes = figure.subplots()
        for rule, series in table.groupby("rule", sort=False):
            look = LOOKS[str(rule)]
            bars = [series.accuracy - series.low, series.high - series.accuracy]
            line: dict[str, Any] = {"color": look.colour, "marker": look.marker, "capsize": 2, "lw": 1.2}
            axes.errorbar(series.batch, series.accuracy, yerr=bars, label=RULES[str(rule)], **line)
        kit.binary_axis(axes, sorted(table.batch.unique()), "samples of a batch", "{:g}".format)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("digits read right")
        kit.labels(figure)

    return kit.drawn(paint, "Share of unseen digits that are read right, against the samples of a batch", 3.0)
