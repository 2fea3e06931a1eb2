"""Rows of the experiment ``asynchronous`` as figures: updates per second, staleness, and loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from collectives.algorithms import Mark
from collectives.bench.statistics import median_interval
from collectives.figures.style import Picture, Theme
from collectives.units import duration
from collectives_book.figures import by_hand as kit
from collectives_book.figures import statements
from collectives_book.figures.statements import Rows

LOOKS = {
    "all_reduce": Mark("#8c8c8c", "P"),
    "synchronous": Mark("#0072B2", "o"),
    "stale": Mark("#E69F00", "s"),
    "asynchronous": Mark("#D55E00", "^"),
}


def name(mode: str, bound: int) -> str:
    """What a mode is called.

    >>> name("stale", 4), name("all_reduce", 4)
    ('at most 4 steps ahead', 'all-reduce')
    """
    return f"at most {bound} steps ahead" if mode == "stale" else mode.replace("_", "-")


def modes(rows: Rows) -> list[tuple[str, Rows]]:
    """The runs of each mode, with its name."""
    return [(name(str(mode), int(runs.bound.iloc[0])), runs) for mode, runs in rows.groupby("mode", sort=False)]


def slowness(row: object) -> str:
    """Who is slow in the runs of a row, and how much."""
    return {
        "nobody": "no worker is slow",
        "compute": f"one worker\ncomputes {row.factor}× as long",  # type: ignore[attr-defined]
        "link": f"one worker's link\nis {row.link_factor}× slower",  # type: ignore[attr-defined]
        "turns": f"each now and then\ncomputes {row.factor}× as long",  # type: ignore[attr-defined]
    }[row.slow]  # type: ignore[attr-defined]


def by_mode(rows: Rows) -> Rows:
    """A row for each slowness and mode, whose ``samples`` are the microseconds per update of each run."""
    lines = []
    for _, runs in rows.groupby(["slow", "mode"], sort=False):
        samples = [*(runs.seconds / runs.updates * 1e6)]
        low, median, high = median_interval(samples)
        own = {"samples": samples, "low_us": low, "median_us": median, "high_us": high}
        lines.append(runs.iloc[0].to_dict() | own)
    return pd.DataFrame(lines)


def rates(rows: Rows, predicted: dict[tuple[str, str], float]) -> Picture:
    """Updates per second of each mode, for each slow worker; ``predicted`` has the model's, by slowness and mode."""
    table = by_mode(rows)
    places = {slow: -nth for nth, slow in enumerate(dict.fromkeys(table.slow))}

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for nth, (mode, group) in enumerate(table.groupby("mode", sort=False)):
            heights = [places[slow] + 0.24 - 0.16 * nth for slow in group.slow]
            _markers(axes, str(mode), group, heights)
            for height, slow in zip(heights, group.slow, strict=True):
                if value := predicted.get((slow, str(mode))):
                    axes.plot([value] * 2, [height - 0.09, height + 0.09], color=theme.ink, lw=1.2)
        axes.set_yticks([*places.values()], [slowness(first) for first in table.drop_duplicates("slow").itertuples()])
        axes.set_xlim(left=0)
        axes.set_ylim(0.5 - len(places), 0.5)
        axes.set_xlabel("updates per second")
        kit.message(figure, theme, _quickest(table))
        kit.notes(figure, table, _kinds(theme, table, bool(predicted)))

    return kit.drawn(paint, f"Updates per second of {table.workers.iloc[0]} workers", 1.2 + 0.85 * len(places))


def _markers(axes: Axes, mode: str, group: Rows, heights: list[float]) -> None:
    rate, low, high = (1e6 / group[each] for each in ("median_us", "high_us", "low_us"))
    kit.measured_across(axes, LOOKS[mode], name(mode, int(group.bound.iloc[0])), rate, low, high, heights)


def _kinds(theme: Theme, table: Rows, is_predicted: bool) -> list[Line2D]:
    """A marker for each mode, and one for predictions: markers are level with who is slow, so no name fits beside."""
    modes = [
        kit.key(theme, name(row.mode, row.bound), color=LOOKS[row.mode].colour, marker=LOOKS[row.mode].marker, ls="")
        for row in table.drop_duplicates("mode").itertuples()
    ]
    return [*modes, *([kit.key(theme, "predicted", ls="", marker="|", ms=9)] if is_predicted else [])]


def _quickest(table: Rows) -> str:
    """Which modes do the most updates with the first slow worker; none is named where all tie."""
    slow = next((slow for slow in table.slow if slow != "nobody"), table.slow.iloc[0])
    group = table[table.slow == slow]
    ahead = [name(row.mode, row.bound) for row in statements.leaders(group)]
    who = slowness(next(group.itertuples())).replace("\n", " ")
    if len(ahead) == len(group):
        return f"Updates per second if {who}"
    return f"Most updates if {who}: {statements.listed(ahead)}"


def staleness(rows: Rows) -> Picture:
    """How stale the parameters were: a histogram for each mode, of all its runs with one slow worker."""
    counts = {str(mode): added(group.staleness) for mode, group in rows.groupby("mode", sort=False)}
    bound = int(rows.bound.iloc[0])

    def paint(figure: Figure, _: Theme) -> None:
        panels = figure.subplots(1, len(counts), squeeze=False)[0]
        for axes, (mode, found) in zip(panels, counts.items(), strict=True):
            axes.bar(range(len(found)), [100 * each / sum(found) for each in found], 1.0, color=LOOKS[mode].colour)
            axes.set_title(f"{name(mode, bound)}\nlargest {len(found) - 1}", loc="left", fontsize=9)
            axes.set_xlim(-0.5, max(len(found), 2) - 0.5)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        panels[0].set_ylabel("% of updates")
        figure.supxlabel("steps ahead of the slowest worker when parameters were read", fontsize=10)

    return kit.drawn(paint, "Histograms of the staleness of all updates", 2.4)


def lag(rows: Rows) -> Rows:
    """Return a table of the largest staleness of each mode, and of its median and largest delay."""
    delays = {mode: added(runs.delay) for mode, runs in modes(rows)}
    columns = {
        "largest staleness": [len(added(runs.staleness)) - 1 for _, runs in modes(rows)],
        "median delay": [np.repeat(range(len(each)), each)[(sum(each) - 1) // 2] for each in delays.values()],
        "largest delay": [len(each) - 1 for each in delays.values()],
    }
    return pd.DataFrame(columns, index=[*delays])


def added(counts: Rows) -> list[int]:
    """Several lists of counts as one.

    >>> added([[1, 2], [1, 0, 5]])
    [2, 2, 5]
    """
    longest = max(len(each) for each in counts)
    return [sum(int(each[value]) for each in counts if value < len(each)) for value in range(longest)]


def loss(rows: Rows) -> Picture:
    """Loss against updates and against time, a line with some markers for each run; modes are marked in turn."""
    order = [*dict.fromkeys(rows["mode"])]

    def paint(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for row in rows.itertuples():
            done = [nth * row.workers for nth in range(len(row.losses))]
            look, every = LOOKS[row.mode], max(1, len(done) // 10)
            first = order.index(row.mode) * every // len(order)
            marked: dict[str, Any] = {"marker": look.marker, "ms": 4, "markevery": (first, every)}
            for axes, x in ((left, done), (right, row.at)):
                label = name(row.mode, row.bound) if row.repetition == 0 and axes is right else None
                axes.plot(x, row.losses, color=look.colour, lw=1.2, alpha=0.8, label=label, **marked)
        left.set_xlabel("updates")
        right.set_xlabel("seconds")
        left.set_ylabel("loss of all samples")
        kit.message(figure, theme, _lowest(rows))
        kit.labels(figure)

    return kit.drawn(paint, "Loss of each run against updates, and against seconds", 3.6)


def _lowest(rows: Rows) -> str:
    """The mode with the lowest median loss in the end."""
    last = rows.assign(last=[row.losses[-1] for row in rows.itertuples()]).groupby(["mode", "bound"])["last"]
    medians = {name(str(mode), int(bound)): round(value, 2) for (mode, bound), value in last.median().items()}
    return f"Lowest median loss in the end: {statements.least(medians)}"


def outcome(rows: Rows) -> Rows:
    """Return a table of each mode's loss and accuracy, and of its way to the lowest loss that every run reaches."""
    goal = max(min(row.losses) for row in rows.itertuples())
    first = rows.losses.map(lambda losses: int(np.argmax(np.array(losses) <= goal)))
    found = rows.assign(
        last=rows.losses.map(lambda losses: losses[-1]),
        updates_to=first * rows.workers,
        seconds_to=[at[nth] for at, nth in zip(rows["at"], first, strict=True)],
    )
    forms = {
        "loss in the end": ("last", "{:.2f}".format),
        "test images correct": ("accuracy", "{:.0%}".format),
        f"updates to a loss of {goal:.2f}": ("updates_to", "{:.0f}".format),
        f"time to a loss of {goal:.2f}": ("seconds_to", duration),
    }
    lines = {
        mode: {of: statements.span(runs[each], form) for of, (each, form) in forms.items()}
        for mode, runs in modes(found)
    }
    return pd.DataFrame.from_dict(lines, orient="index")
