"""Rows of the experiment ``asynchronous`` as figures and tables: updates per second, staleness, and loss."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from collectives.algorithms import Mark
from collectives.figures.style import Picture, Theme
from collectives.statistics import median_interval
from collectives.units import duration
from collectives_book.figures import kit, statements
from collectives_book.figures.charts import Curves, Dots, Panels
from collectives_book.figures.statements import Row, Rows

LOOKS = {
    "all_reduce": Mark("#8c8c8c", "P"),
    "synchronous": Mark("#0072B2", "o"),
    "stale": Mark("#E69F00", "s"),
    "asynchronous": Mark("#D55E00", "^"),
}


def name(mode: str, bound: int) -> str:
    """Return the name of a mode.

    >>> name("stale", 4), name("all_reduce", 4)
    ('at most 4 steps ahead', 'all-reduce')
    """
    return f"at most {bound} steps ahead" if mode == "stale" else mode.replace("_", "-")


def look(called: str) -> Mark:
    """Return the look of a mode by its `name`."""
    return LOOKS.get(called.replace("-", "_"), LOOKS["stale"])


def modes(rows: Rows) -> list[tuple[str, Rows]]:
    """Return the runs of each mode, with its name."""
    return [
        (name(str(mode), int(runs.bound.iloc[0])), runs)
        for mode, runs in rows.groupby("mode", sort=False)
    ]


def slowness(row: Row) -> str:
    """Return who is slow in the runs of a row, and by which factor."""
    texts = {
        "nobody": "no worker is slow",
        "compute": f"one worker\ncomputes {row.factor}× as long",
        "link": f"one worker's link\nis {row.link_factor}× slower",
        "turns": f"each now and then\ncomputes {row.factor}× as long",
    }
    return texts[row.slow]


def by_mode(rows: Rows) -> Rows:
    """Return the median updates per second of each slowness and mode, with the interval of its runs."""
    lines = []
    for _, runs in rows.groupby(["slow", "mode"], sort=False):
        samples = [*(runs.updates / runs.seconds)]
        low, rate, high = median_interval(samples)
        line = runs.iloc[0].to_dict()
        line |= {"samples": samples, "low": low, "rate": rate, "high": high}
        lines.append(line)
    return pd.DataFrame(lines)


def rates(rows: Rows, predicted: Mapping[tuple[str, str], float]) -> Picture:
    """Return updates per second of each mode, for each slow worker.

    ``predicted`` has the model's.
    """
    table = by_mode(rows)
    said = [predicted.get((row.slow, row.mode), np.nan) for row in table.itertuples()]
    names = [name(row.mode, row.bound) for row in table.itertuples()]
    who = [slowness(row) for row in table.itertuples()]
    table = table.assign(who=who, called=names, predicted=said)
    axis = kit.Axis("updates per second", "{:,.3g}".format)
    chart = Dots(table, "rate", "who", axis, "called", look).points(("low", "high"))
    if predicted:
        chart.predicted("predicted")
    return chart.picture(f"Updates per second of {table.workers.iloc[0]} workers")


def staleness(rows: Rows) -> Picture:
    """Return the staleness of all updates as a histogram of each mode."""
    histograms = {called: added(runs.staleness) for called, runs in modes(rows)}

    def paint(figure: Figure, _: Theme) -> None:
        panels = figure.subplots(1, len(histograms), squeeze=False, sharey=True)[0]
        for axes, (called, counts) in zip(panels, histograms.items(), strict=True):
            values = range(len(counts))
            shares = np.divide(counts, sum(counts))
            axes.bar(values, shares, 1.0, color=look(called).colour)
            axes.set_title(f"{called}\nlargest {len(counts) - 1}", loc="left", fontsize=9)
            axes.set_xlim(-0.5, max(len(counts), 2) - 0.5)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        panels[0].set_ylabel("updates")
        figure.supxlabel(
            "steps ahead of the slowest worker when parameters were read",
            fontsize=10,
        )

    shown = [f"{called} largest {len(counts) - 1}" for called, counts in histograms.items()]
    return kit.drawn(paint, "Histograms of the staleness of all updates", 2.4, shown)


def lag(rows: Rows) -> Rows:
    """Return a table of the largest staleness of each mode, and of its median and largest delay."""
    lines = {}
    for called, runs in modes(rows):
        delays = added(runs.delay)
        half = (sum(delays) + 1) // 2
        lines[called] = {
            "largest staleness": len(added(runs.staleness)) - 1,
            "median delay": np.searchsorted(np.cumsum(delays), half),
            "largest delay": len(delays) - 1,
        }
    return pd.DataFrame.from_dict(lines, "index")


def added(counts: Rows) -> list[int]:
    """Return several lists of counts as one.

    >>> added([[1, 2], [1, 0, 5]])
    [2, 2, 5]
    """
    columns = zip_longest(*counts, fillvalue=0)
    return [int(sum(column)) for column in columns]


def loss(rows: Rows) -> Picture:
    """Return the loss of each run against updates and against time."""
    names = [name(row.mode, row.bound) for row in rows.itertuples()]
    done = [np.arange(len(row.losses)) * row.workers for row in rows.itertuples()]
    runs = rows.assign(called=names, run=range(len(rows)))
    against = {"updates": runs.assign(x=done), "seconds": runs.assign(x=rows["at"])}
    table = pd.concat([part.assign(against=f"against {what}") for what, part in against.items()])
    table = table.explode(["x", "losses"], ignore_index=True)
    table = table.astype({"x": float, "losses": float})
    axes = kit.Axis(""), kit.Axis("loss of all samples")
    panels = Panels("against", columns=2, is_x_shared=False)
    chart = Curves(table, "x", "losses", "called", axes, look, panels)
    return chart.lines(group="run").picture("Loss of each run")


def outcome(rows: Rows) -> Rows:
    """Return a table of each mode's loss and accuracy, and of its way to the lowest loss that every run reaches."""
    goal = max(min(losses) for losses in rows.losses)
    # The round in which each run reaches the goal.
    first = [int(np.argmax(np.array(losses) <= goal)) for losses in rows.losses]
    seconds = [at[nth] for at, nth in zip(rows["at"], first, strict=True)]
    found = rows.assign(
        last=[losses[-1] for losses in rows.losses],
        updates_to=first * rows.workers,
        seconds_to=seconds,
    )
    lines = {}
    for called, runs in modes(found):
        lines[called] = {
            "loss in the end": statements.span(runs["last"], "{:.2f}".format),
            "test images correct": statements.span(runs.accuracy, "{:.0%}".format),
            f"updates to a loss of {goal:.2f}": statements.span(
                runs.updates_to,
                "{:.0f}".format,
            ),
            f"time to a loss of {goal:.2f}": statements.span(runs.seconds_to, duration),
        }
    return pd.DataFrame.from_dict(lines, "index")
